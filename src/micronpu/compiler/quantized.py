"""Quantized module from the user's arguments: check, export, optionally make sparse, then train or calibrate."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.fx import GraphModule

from micronpu.base.errors import ModelError
from micronpu.compiler.clock import Clock
from micronpu.compiler.precision import Allowed, chosen
from micronpu.frontend.checks import Train
from micronpu.frontend.exported import Exported, export_for_training, exported, inputs_not_negative
from micronpu.frontend.facts import BOTH_BRANCHES, CONVERTED, LOOPS_ALLOWED, NOT_NEGATIVE, WRITTEN_OUT
from micronpu.frontend.integers import IntegerIO, integer_states, to_integer_io
from micronpu.frontend.program import is_quantize
from micronpu.frontend.tensors import State, copied, states_of
from micronpu.program.data import VECTORS
from micronpu.quantize.calibrate import forget, quantize
from micronpu.quantize.calibration_cache import FloatStatistics
from micronpu.quantize.data import CalibrationData, Digests, HeldOut, Trial, check_stateless, of_model
from micronpu.quantize.quantizer import StaticQuantizer
from micronpu.quantize.running import Row
from micronpu.report.diagnosis import Frontier
from micronpu.report.sparsity import SparsityReport
from micronpu.report.warnings import ReportWarning
from micronpu.transforms.sparsity.entry import Reduce
from micronpu.transforms.sparsity.layers import keep_what_is_sparse
from micronpu.verify.static_checks import of_data


@dataclass(frozen=True)
class Quantized:
    """A quantized model, from which programs are made, and the reference for them.

    Attributes:
        module: with its states as its last inputs and outputs.
        examples: inputs for it.
        rows: the first samples of the user's data, in its dtypes.
        trial: the samples for the evaluation, in the float model's dtypes.
        integer_io: meaning of integer inputs and outputs, or None.
        sparsity: report on its sparse weights, or None.
        notes: notes about its weights.
        warnings: about the calibration data.
        digests: of the user's arguments.
        frontier: measurements of a search for precision; None without one, or if int8 suffices.
        results: results of the module for all calls of the trial; None if unknown.
        proposal: hint for more precision than int8; "" without one.
        names: of the inputs, if they were given in a dictionary.
    """

    module: GraphModule
    examples: tuple[torch.Tensor, ...]
    rows: tuple[tuple[torch.Tensor, ...], ...]
    trial: Trial
    integer_io: IntegerIO | None = None
    sparsity: SparsityReport | None = None
    notes: tuple[str, ...] = ()
    warnings: tuple[ReportWarning, ...] = ()
    digests: Digests = Digests()  # noqa: RUF009 (a frozen value)
    frontier: Frontier | None = None
    results: list[list[Row]] | None = None
    proposal: str = ""
    names: tuple[str, ...] = ()

    @property
    def states(self) -> tuple[State, ...]:
        """States that persist from one call to the next."""
        return states_of(self.module).values

    @classmethod
    def of_integers(cls, given: Exported) -> Quantized:
        """Return a model that was quantized before."""
        rows, digests = (given.examples,), Digests(of_model(given))
        return cls(integer_states(given.module), given.examples, rows, Trial((rows,)), digests=digests)

    @classmethod
    def of_float(cls, given: Exported, data: CalibrationData | None, quantizer: StaticQuantizer) -> Quantized:
        """Return a model that is not yet quantized, with its data; None without any, for training."""
        notes, digests = _import_notes(given.module), Digests(of_model(given))
        if data is None:
            rows = (given.examples,)
            return cls(given.module, given.examples, rows, Trial((rows,)), notes=notes, digests=digests)
        names = [n.name for n in given.module.graph.nodes if n.op == "placeholder"][: len(given.examples)]
        count = sum(map(len, data.sequences))
        warnings = of_data(data.rows, names, count, data.distinct, _steps(quantizer))
        return cls(
            given.module,
            given.examples,
            data.rows[:VECTORS],
            data.trial,
            notes=notes,
            warnings=warnings,
            digests=replace(digests, data=data.digests),
        )

    def quantized(self, module: GraphModule, quantizer: StaticQuantizer) -> Quantized:
        """Return the model after quantization."""
        made = replace(self, module=module, warnings=_of_quantized(self.warnings, module))
        if (io := quantizer.settings.io) is None:
            return made
        integer_io = to_integer_io(module, as_bytes=io.as_bytes)
        rows, examples = tuple(map(integer_io.quantize, self.rows)), integer_io.quantize(self.examples)
        return replace(made, integer_io=integer_io, rows=rows, examples=examples)


def mark_for_calibration(given: Exported, sequences: Sequence[Sequence[Row]]) -> None:
    """Allow loops in a float model that is calibrated, and mark its inputs that are never negative."""
    LOOPS_ALLOWED.say(given.module, True)
    NOT_NEGATIVE.say(given.module, inputs_not_negative(given, [row for calls in sequences for row in calls]))


def _import_notes(module: GraphModule) -> tuple[str, ...]:
    """Return notes of the report on converted dtypes, branches and loops."""
    converted = " and ".join(CONVERTED.of(module))
    both = "both branches are computed and one result chosen, as no NPU branches; both cost cycles."
    notes = [f"The model's {converted} is computed as float32, also its inputs and outputs."] if converted else []
    notes += [f"`{name}`: {both}" for name in BOTH_BRANCHES.of(module)]
    for name, steps, ends_early in WRITTEN_OUT.of(module):
        text = f"`{name}`: its {steps} steps are written out, as no NPU loops; each costs cycles and commands"
        notes.append(f"{text}, also those behind the end that data decide." if ends_early else f"{text}.")
    return tuple(notes)


def quantized_module(
    model: nn.Module | ExportedProgram,
    example_inputs: Sequence[Any] | torch.Tensor,
    quantizer: StaticQuantizer,
    *,
    calibration: Any,
    clock: Clock,
    train: Train | None = None,
    held_out: HeldOut | int | None = None,
    reduced: Reduce | None = None,
    float_too: bool = False,
    allowed: Allowed | None = None,
) -> Quantized:
    """Check all input, export and quantize.

    Args:
        reduced: makes weights sparse or of fewer bits; None to keep them.
        allowed: limits of a search for the best program; None for no search.
        float_too: also run the float model on the samples for the evaluation.
    """
    with clock.step("export"):
        given = exported(model, example_inputs)
    if not given.is_float:
        if train is not None or reduced is not None:
            what = "trained" if train is not None else "made sparse"
            raise ModelError(f"The model is quantized already and cannot be {what}.", hint="the float model")
        return Quantized.of_integers(given)
    sequences: list[list[Row]] = []
    data = None
    if train is None or reduced is not None:
        data = CalibrationData.of(given, calibration, held_out, float_too=float_too)
        sequences = data.sequences
    made = Quantized.of_float(given, data, quantizer)
    if reduced is not None:
        with clock.step("sparsify") as progress:
            given, quantizer, report, notes = reduced(given, sequences, quantizer, progress)
        made = replace(made, sparsity=report, notes=notes)
    if train is not None:
        if calibration is not None and reduced is None:
            raise ModelError(
                "`train` and `calibration` are both given, and each chooses the ranges of the quantized tensors.",
                hint="leave out one of them",
            )
        check_stateless(given.states)
        from micronpu.quantize.qat import train_or_calibrate

        with clock.step("train"):
            program = export_for_training(given.model, given.examples)
            module = train_or_calibrate(program, [given.examples], quantizer, train, keep_what_is_sparse)
        return made.quantized(module, quantizer)
    calls = sum(map(len, sequences))
    mark_for_calibration(given, sequences)
    second = copied(given.module) if allowed is not None else None  # the first copy is consumed
    statistics = FloatStatistics() if second is not None else None
    with clock.step("quantize") as progress:
        module = quantize(
            given.module, sequences, quantizer, lambda done: progress(done / calls), given.states, statistics
        )
        forget(given.module, module)
    if second is not None and allowed is not None:
        found = chosen(second, given.states, sequences, made.trial, module, allowed, clock, statistics)
        made = replace(made, frontier=found.frontier, results=found.results, proposal=found.proposal)
        module = found.module
    return made.quantized(module, quantizer)


def _steps(quantizer: StaticQuantizer) -> int:
    """Return the number of LSBs in the range of an input."""
    default = quantizer.settings.default
    return 65535 if default is not None and default.activations == "int16" else 255


def _of_quantized(warnings: Iterable[ReportWarning], module: GraphModule) -> tuple[ReportWarning, ...]:
    """Return the warnings without those about the scale of an input that is standardized before it is quantized."""
    inputs = (node for node in module.graph.nodes if node.op == "placeholder")
    raw = {node.name for node in inputs if any(map(is_quantize, node.users))}
    return tuple(w for w in warnings if w.rule != "unlike-features" or w.node in raw)
