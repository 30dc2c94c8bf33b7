"""`micronpu.sparsify`, and `Transforms`: changes of a model before it is compiled, such as weights of fewer bits.

A weight of fewer bits is an ordinary int8 weight with a larger scale: Vela's codec stores small numbers in fewer bytes,
and nothing else changes. The other weights of a row compensate for rounding, see `second_order`. Each bit width is
priced by compiling the network, with the codec itself.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from micronpu.base.arguments import check_type, described
from micronpu.base.errors import ModelError, OptionError, first_line
from micronpu.base.quiet import quiet
from micronpu.base.texts import plural
from micronpu.frontend.checks import check_callback, check_evaluation_mode
from micronpu.frontend.export import as_inputs
from micronpu.frontend.exported import Exported, exported, exported_for_any_batch
from micronpu.frontend.graphs import GraphModule
from micronpu.frontend.tensors import states_of
from micronpu.partition.device import Device
from micronpu.passes.pipeline import Pipeline
from micronpu.quantize.data import calibration_calls
from micronpu.quantize.float64 import as_learner, learner
from micronpu.quantize.quantization import HowToQuantize, Quantization
from micronpu.quantize.quantizer import StaticQuantizer
from micronpu.report.sparsity import SparsityReport
from micronpu.targets.options import Options
from micronpu.targets.registry import device_for, target_required
from micronpu.transforms.sparsity.judge import Judge, Score, nearest, price, with_corrections
from micronpu.transforms.sparsity.layers import (
    FloatNetwork,
    Moments,
    PrunableLayer,
    Row,
    batches,
    find_layers,
    stateless,
    tensor_of,
)
from micronpu.transforms.sparsity.options import SparsityOptions, sparsity_options
from micronpu.transforms.sparsity.search import ProgressCallback, Sparsified, as_callback, sparsified
from micronpu.transforms.sparsity.second_order import pruned
from micronpu.upstream.session import exclusive

BITS = (7, 6, 5)
"""Bit widths of weights, in the order of trial."""
_LEAST_ROWS = 8
_KEPT = 5
"""One of this many inputs is held out for evaluation."""
_DAMPING = 0.01


@dataclass(frozen=True)
class WidthResult:
    """A network with a bit width of weights.

    Attributes:
        bits: of the weights; 8 for the original network.
        bytes: of weights and tables as the NPU reads them.
        cycles: of the NPU for the whole network.
        agreement: of the integer network with the float one, see `micronpu.transforms.sparsity.SparsePoint`.
        corrections: quantization corrections that gave the most accurate integer network.
    """

    bits: int
    bytes: int
    cycles: int
    agreement: float
    corrections: tuple[str, ...] = ()

    def __str__(self) -> str:
        text = f"{self.bits} bits {self.bytes:,} bytes, {self.cycles:,} cycles, agreement {self.agreement:.1%}"
        return f"{text} with {' and '.join(self.corrections)}" if self.corrections else text


@dataclass(frozen=True)
class Compressed:
    """A network with compressed weights.

    Attributes:
        model: the float network with weights rounded to the chosen bit width.
        widths: results by bit width; the first is the original network.
        note: one sentence with the figures.
        corrections: quantization corrections chosen for these weights.
    """

    model: GraphModule
    bits: int
    widths: tuple[WidthResult, ...]
    note: str
    corrections: tuple[str, ...] = ()


def check_compress(given: object) -> float | None:
    """Return the maximum loss of agreement, or None to keep the weights."""
    if given is not None and (isinstance(given, bool) or not isinstance(given, (int, float)) or not 0 <= given <= 1):
        raise OptionError(
            f"`compress` is {given!r}; it is the share of the held-out inputs that may get another answer, 0 to 1.",
            hint="compress=0.01",
        )
    return given


def compressed(
    network: FloatNetwork,
    device: Device,
    quantizer: StaticQuantizer,
    most: float,
    progress: Callable[[float], None] = lambda part: None,
    tries: bool = True,
) -> Compressed:
    """Reduce the bits of a network's weights, in place, as far as accuracy allows.

    Args:
        most: maximum decrease of the agreement with the float network, relative to the original int8 network.
        tries: also try quantization corrections, see `nearest`.
    """
    model, rows = network.model, network.rows
    if len(rows) < _LEAST_ROWS:
        raise ModelError(
            f"{len(rows)} calibration inputs are too few to judge smaller weights with, which takes {_LEAST_ROWS}.",
            hint="some hundred typical inputs, without labels",
        )
    kept, seen = list(rows[::_KEPT]), [row for i, row in enumerate(rows) if i % _KEPT]
    layers, _ = find_layers(model)
    device = device.unverified()

    def result_of(bits: int) -> WidthResult:
        made = nearest(model, seen, with_bits(quantizer, bits), judge, tries)
        cost = price(made.network, network.examples, layers, device)
        return WidthResult(bits, cost.bytes, cost.cycles, made.judgement.agreement, made.corrections)

    with quiet(), stateless(model, network.states) as results:
        judge = Judge(model, kept, None, results)
        before = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
        widths = [result_of(8)]
        if not widths[0].bytes:
            note = f"{device.target} stores weights as they are, as far as is known, and they keep their eight bits."
            return Compressed(model, 8, tuple(widths), note)
        wide = learner(model, seen)
        moments = Moments(wide, layers, len(seen)).collect(batches(wide, [as_learner(wide, row) for row in seen]))
        chosen, state = widths[0], before
        for number, bits in enumerate(BITS):
            model.load_state_dict(before)
            round_weights(model, layers, moments, bits)
            widths.append(result_of(bits))
            progress((number + 1) / len(BITS))
            if widths[-1].agreement < widths[0].agreement - most:
                break
            if widths[-1].bytes < chosen.bytes:
                state = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
                chosen = widths[-1]
        model.load_state_dict(state)
    return Compressed(model, chosen.bits, tuple(widths), _note(widths, chosen, len(kept)), chosen.corrections)


def with_bits(quantizer: StaticQuantizer, bits: int) -> StaticQuantizer:
    """Return a quantizer with weights of ``bits`` bits, except in parts with other settings."""
    config = quantizer.global_config
    if config is None or bits == config.weight_bits:
        return quantizer
    return copy.deepcopy(quantizer).set_global(replace(config, weight_bits=bits))


def round_weights(model: GraphModule, layers: Sequence[PrunableLayer], moments: Moments, bits: int) -> None:
    """Round the weights of a network to ``bits`` bits, in place; zeros of sparse layers stay."""
    with torch.no_grad():
        for layer in layers:
            for m in layer.matrices:
                weight = tensor_of(model, m.attribute)
                rows = m.rows(weight)
                stays = rows != 0 if m.is_sparse(weight) else torch.ones_like(rows, dtype=torch.bool)
                moment = moments.mean(m.attribute)
                weight.copy_(m.weights(pruned(rows, moment, m.groups, damping=_DAMPING, mask=stays, bits=bits)))


def _note(widths: Sequence[WidthResult], chosen: WidthResult, rows: int) -> str:
    first = widths[0]
    tried = "; ".join(str(result_of) for result_of in widths)
    if chosen is first:
        return f"Weights keep eight bits, as fewer lose more than allowed on {plural(rows, 'input')}: {tried}."
    return (
        f"Weights of {chosen.bits} bits take {chosen.bytes:,} bytes instead of {first.bytes:,} "
        f"({1 - chosen.bytes / first.bytes:.0%} less). On {rows} held-out inputs: {tried}."
    )


@target_required
@exclusive()
def sparsify(
    model: nn.Module | ExportedProgram,
    calibration: object,
    target: str,
    *,
    example_inputs: Sequence[object] | Tensor | None = None,
    sparsity: SparsityOptions | None = None,
    score: Score | None = None,
    quantization: HowToQuantize = None,
    options: Options | None = None,
    callback: ProgressCallback | None = None,
) -> Sparsified:
    """Make two of every four weights zero if the target computes such layers in half the cycles.

    Args:
        model: a trained float module in evaluation mode, or an exported program of one.
        calibration: some hundred typical inputs without labels, as for `micronpu.compile`; sequences of them for a
            model with states.
        target: see ``micronpu targets``.
        example_inputs: fix shapes and dtypes; default: the first calibration input.
        sparsity: pattern, search and limits of the loss.
        score: a measure of a network, larger is better, instead of the agreement with the float network.
        quantization, options: as for `micronpu.compile`.
        callback: progress callback; called with the name of the step and the completed fraction.

    Returns:
        The sparse network with its report. If the target gains nothing from sparsity, the network is unchanged, and the
        report states the gain in bytes.

    Raises:
        MicroNpuError: an input is invalid; the message states what, where, why and what to try.
    """
    check_callback(callback)
    if sparsity is not None and not isinstance(sparsity, SparsityOptions):
        raise OptionError(f"`sparsity` is of type {type(sparsity).__name__}.", hint="SparsityOptions(steps=1000)")
    chosen = sparsity or SparsityOptions()
    if score is not None and not callable(score):
        raise OptionError(f"`score` is of type {type(score).__name__}.", hint="score=lambda network: accuracy(network)")
    if not isinstance(target, str):
        raise OptionError(
            f"The target is {described(target)}; it is a name.", hint="sparsify(model, calibration, target, ...)"
        )
    device = device_for(target, options)
    quantizer = Quantization.of(quantization).quantizer_for(device.quantizer)
    if example_inputs is None:
        example_inputs = _first(calibration)
    examples = as_inputs(example_inputs)
    if isinstance(model, nn.Module) and not isinstance(model, GraphModule):
        check_evaluation_mode(model)
    program = exported_for_any_batch(model, examples)
    sequences = calibration_calls(calibration, examples, in_turn=bool(states_of(program)))
    network = FloatNetwork.of(program, examples, sequences)
    return sparsified(network, device, quantizer, chosen, score, callback)


class Reduced(NamedTuple):
    """A model with fewer weights or bits, its quantizer, the sparsity report, and notes."""

    model: Exported
    quantizer: StaticQuantizer
    report: SparsityReport | None = None
    notes: tuple[str, ...] = ()


Reduce = Callable[[Exported, Sequence[Sequence[Row]], StaticQuantizer, Callable[[float], None]], Reduced]
"""`Transforms.reduced` on a device."""


@dataclass(frozen=True, kw_only=True)
class Transforms:
    """Transformations of a float model's weights, in this order, and of the compiled graphs.

    Attributes:
        sparsity: "2:4" or `SparsityOptions`: make two of every four weights zero if the target computes such layers in
            half the cycles; needs some hundred calibration inputs, with ``train`` as well. See ``report.sparsity`` and
            `micronpu.sparsify`.
        compress: maximum fraction of held-out samples that may change their top-1 result, e.g. 0.01; reduces the bits
            of the weights, which Vela stores in fewer bytes, within this limit.
        passes: the `Pipeline` for the graphs of the program, with user-defined passes.

    Raises:
        OptionError: a value is invalid.
    """

    sparsity: str | SparsityOptions | None = None
    compress: float | None = None
    passes: Pipeline | None = None

    def __post_init__(self) -> None:
        sparsity_options(self.sparsity)
        check_compress(self.compress)
        check_type("passes", self.passes, Pipeline, type(None), hint='Pipeline().without("fuse_activations")')

    @classmethod
    def of(cls, given: object) -> Transforms:
        """Convert an argument of `micronpu.compile`: a pattern or `SparsityOptions` is `sparsity`, a `Pipeline` is
        `passes`.

        Raises:
            OptionError: it is none of these.
        """
        if given is None:
            return cls()
        if isinstance(given, Transforms):
            return given
        if isinstance(given, str | SparsityOptions):
            return cls(sparsity=given)
        if isinstance(given, Pipeline):
            return cls(passes=given)
        raise OptionError(f"`transforms` is {described(given)}.", hint='Transforms(sparsity="2:4", compress=0.01)')

    @property
    def reduces(self) -> bool:
        """Return True if it makes weights sparse or of fewer bits."""
        return self.sparsity is not None or self.compress is not None

    def reduced(
        self,
        device: Device,
        model: Exported,
        sequences: Sequence[Sequence[Row]],
        quantizer: StaticQuantizer,
        progress: Callable[[float], None],
    ) -> Reduced:
        """Make weights sparse, and then reduce their bits, in a copy of the model.

        Args:
            sequences: of the calibration data, of one sample each for a model without states.
            quantizer: of the finished program; if it is for training, the search uses another one.
        """
        program = exported_for_any_batch(model.model, model.examples)
        own = device.quantizer() if quantizer.is_qat else quantizer
        network = FloatNetwork.of(program, model.examples, sequences)
        last, report = quantizer, None
        notes: tuple[str, ...] = ()
        if (options := sparsity_options(self.sparsity)) is not None:
            report = sparsified(network, device, own, options, callback=as_callback(progress)).report
            own = with_corrections(own, report.point.corrections)
            last = quantizer if quantizer.is_qat else own
        if self.compress is not None:
            tries = options is None or options.corrections
            less = compressed(network, device, own, self.compress, progress, tries)
            last = with_bits(quantizer if quantizer.is_qat else with_corrections(own, less.corrections), less.bits)
            notes = (less.note,)
        return Reduced(exported(program, model.examples), last, report, notes)


def _first(calibration: Any) -> Any:
    is_list = hasattr(calibration, "__getitem__") and getattr(calibration, "ndim", 1) > 0
    if isinstance(calibration, dict) or not is_list:
        raise ModelError(
            "Without `example_inputs` the calibration data is a list of inputs, the first of which fixes shapes.",
            hint="sparsify(model, calibration, example_inputs=...)",
        )
    if not len(calibration):
        raise ModelError("The calibration data is empty.", hint="pass some hundred typical inputs")
    try:
        first = calibration[0]
        tensors = [torch.as_tensor(t) for t in (first if isinstance(first, (tuple, list)) else (first,))]
    except (TypeError, ValueError, RuntimeError) as error:
        raise ModelError(
            f"The first of the calibration data is no tensor: {first_line(error)}.", hint="[x1, x2, ...]"
        ) from error
    if not all(t.numel() for t in tensors):
        raise ModelError("The first of the calibration data is an empty tensor.", hint="some hundred typical inputs")
    return tuple(tensors)
