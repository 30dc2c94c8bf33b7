"""From what the user gives to a quantized module: checked, exported, sparse where asked for, trained or calibrated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.fx import GraphModule

from micronpu.base.errors import ModelError, OptionError
from micronpu.compiler.clock import Clock
from micronpu.compiler.verify import HELD_OUT, INPUTS, Trial, float_results, rows_kept_back
from micronpu.deploy.vectors import MOST as MOST_ROWS
from micronpu.frontend.checks import check_examples, check_parameters, check_results
from micronpu.frontend.export import as_inputs, check_static, export
from micronpu.frontend.states import State, States, integer_states, lift, states_of
from micronpu.partition.device import Device
from micronpu.quantize.borders import IntegerBorders, integer_borders
from micronpu.quantize.calibrate import calibration_batches, graph_module, quantize
from micronpu.quantize.config import Activations
from micronpu.quantize.converted import finished, is_exported, is_float
from micronpu.quantize.loops import ALLOWED
from micronpu.quantize.quantizer import StaticQuantizer
from micronpu.quantize.sequences import calibration_sequences
from micronpu.quantize.settings_file import Quantization, configure
from micronpu.quantize.states import check_stateless
from micronpu.quantize.training import Train
from micronpu.report.sparsity import SparsityReport
from micronpu.sparsity.entry import Sparsity, keep_what_is_sparse


@dataclass(frozen=True, kw_only=True)
class HowToQuantize:
    """What a user says about quantization, in the words of `micronpu.compile`, which explains them."""

    per_channel: bool = True
    activations: Activations = "int8"
    io: Activations | None = None
    quantizer: StaticQuantizer | None = None
    quantization: Quantization | None = None

    def quantizer_for(self, device: Device, is_qat: bool = False) -> StaticQuantizer:
        """The user's quantizer, or the device's with what the user says of quantization.

        Raises:
            OptionError: they contradict each other, or a value does not fit.
        """
        given = self.quantizer
        if given is None:
            made = device.quantizer(
                per_channel=self.per_channel, is_qat=is_qat, activations=self.activations, io=self.io
            )
            return made if self.quantization is None else configure(made, self.quantization)
        if self.quantization is not None:
            raise OptionError(
                "`quantizer` and `quantization` are both given, and each says how parts are quantized.",
                hint="micronpu.quantize.settings_file.configure(quantizer, quantization)",
            )
        if not isinstance(given, StaticQuantizer):
            raise OptionError(
                f"`quantizer` is a {type(given).__name__}.",
                hint="the quantizer of the NPU's family, such as NeutronQuantizer",
            )
        if not self.per_channel or self.activations != "int8" or self.io is not None:
            raise OptionError(
                "`quantizer` is given together with `per_channel`, `activations` or `io`, which it decides.",
                hint="set them on the quantizer",
            )
        if given.is_qat != is_qat:
            raise OptionError(
                f"The quantizer has is_qat={given.is_qat}, but `train` is {'given' if is_qat else 'not given'}.",
                hint="is_qat=True with `train`, and is_qat=False with `calibration`",
            )
        return given


class Quantized(NamedTuple):
    """A quantized module, example inputs for it, what its inputs and outputs mean where they are integers, the first
    rows of the user's data as it takes them, the rows that the program is tried on, as the float model takes them, and
    what was made sparse.
    """

    module: GraphModule
    examples: tuple[torch.Tensor, ...]
    borders: IntegerBorders | None
    rows: tuple[tuple[torch.Tensor, ...], ...]
    trial: Trial
    sparsity: SparsityReport | None = None
    compressed: str = ""

    @property
    def states(self) -> tuple[State, ...]:
        """What lives on from one call to the next: further inputs and outputs of the module."""
        return states_of(self.module).values


def _trial(
    module: GraphModule,
    states: States,
    sequences: Sequence[Sequence[tuple[torch.Tensor, ...]]],
    kept: Sequence[int],
) -> Trial:
    """What the program will be tried on: rows that are kept back; of a model with states the first such sequence.

    Args:
        sequences: of the calibration data, of one row each for a model without states.
        kept: numbers of those that are kept back.
    """
    first, numbers = 0, []
    for sequence in sequences:
        numbers.append(range(first, first + len(sequence)))
        first += len(sequence)
    chosen = list(kept) or list(range(min(len(sequences), INPUTS)))
    most = (HELD_OUT if kept else INPUTS) if states else len(chosen)
    places = [i for n in (chosen[:1] if states else chosen) for i in numbers[n]][:most]
    rows = [row for sequence in sequences for row in sequence]
    tried = tuple(rows[i] for i in places)
    return Trial(tried, tuple(places), first, bool(kept), float_results(module, tried))


def exported_module(model: nn.Module | ExportedProgram, examples: tuple[torch.Tensor, ...]) -> GraphModule:
    """The model as a graph, checked; its states are further inputs and outputs.

    Raises:
        ModelError: it cannot be exported, or cannot be compiled whatever the target.
    """
    ready = isinstance(model, GraphModule) and (is_exported(model) or not is_float(model))
    given = model if isinstance(model, GraphModule) and ready else graph_module(export(model, examples))
    if not ready:
        check_static(given)
    check_results(given)
    module = lift(given)
    every = (*examples, *states_of(module).initial)
    if ready:
        module = finished(module, every)
        check_static(module)
    check_examples(module, every)
    check_parameters(module)
    return module


def quantized_module(
    model: nn.Module | ExportedProgram,
    example_inputs: Sequence[Any] | torch.Tensor,
    quantizer: StaticQuantizer,
    *,
    calibration: Any,
    clock: Clock,
    train: Train | None = None,
    held_out: int | None = None,
    sparsity: Sparsity | None = None,
) -> Quantized:
    """Checks all input, exports and quantizes."""
    examples = as_inputs(example_inputs)
    with clock.step("export"):
        module = exported_module(model, examples)
    states = states_of(module)
    if not is_float(module):
        if train is not None or sparsity is not None:
            what = "trained" if train is not None else "made sparse"
            raise ModelError(f"The model is quantized already and cannot be {what}.", hint="the float model")
        return Quantized(integer_states(module), examples, None, (examples,), Trial((examples,)))
    rows: tuple[tuple[torch.Tensor, ...], ...] = (examples,)
    trial = Trial((examples,))
    report: SparsityReport | None = None
    sequences: list[list[tuple[torch.Tensor, ...]]] = []
    if train is None or sparsity is not None:
        sequences = calibration_sequences(calibration, examples) if states else []
        sequences = sequences or [[batch] for batch in calibration_batches(calibration, examples)]
        rows = tuple(row for sequence in sequences[: 1 if states else MOST_ROWS] for row in sequence)[:MOST_ROWS]
        kept = rows_kept_back(len(sequences), held_out)
        trial = _trial(module, states, sequences, kept)
        sequences = [sequence for i, sequence in enumerate(sequences) if i not in kept]
    smaller = ""
    if sparsity is not None:
        with clock.step("sparsify") as progress:
            model, quantizer, report, smaller = sparsity.reduced(model, examples, sequences, quantizer, progress)
        module = finished(model, (*examples, *states.initial))
    if train is not None:
        if calibration is not None and sparsity is None:
            raise ModelError(
                "`train` and `calibration` are both given, and each chooses the ranges of the quantized tensors.",
                hint="leave out one of them",
            )
        check_stateless(states)
        from micronpu.quantize.qat import quantize_aware_training

        with clock.step("train"):
            module = quantize_aware_training(model, examples, train, quantizer, around=keep_what_is_sparse)
    else:
        calls = sum(map(len, sequences))
        module.meta[ALLOWED] = True
        with clock.step("quantize") as progress:
            module = quantize(module, sequences, quantizer, lambda done: progress(done / calls))
    if quantizer.settings.io is None:
        return Quantized(module, examples, None, rows, trial, report, smaller)
    borders = integer_borders(module)
    rows = tuple(map(borders.quantize, rows))
    return Quantized(module, borders.quantize(examples), borders, rows, trial, report, smaller)
