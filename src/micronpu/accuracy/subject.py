"""Model and data of `micronpu.blame`, `micronpu.fix` and `micronpu.evaluate`, and errors of layers.

A layer is anything that ends in a quantization: an operator, or an operator with a following clamp. Three values of its
result are computed for every sample:

    exact  the float network
    total  the quantized network
    own    the quantized operator on float operands rounded to their qparams

own - exact is the layer's own error, total - own its inherited error.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from micronpu.base.arrays import Array
from micronpu.base.errors import ModelError
from micronpu.base.quiet import quiet
from micronpu.frontend.export import as_inputs
from micronpu.frontend.exported import exported
from micronpu.frontend.facts import LOOPS_ALLOWED
from micronpu.frontend.graphs import GraphModule, Node, by_name, findings
from micronpu.frontend.integers import IntegerIO
from micronpu.frontend.model_files import opened
from micronpu.frontend.program import Edge, ProgramView, float_behind, qualified_name
from micronpu.frontend.run import Known, Run
from micronpu.frontend.tensors import constant_nodes, copied
from micronpu.quantize.calibrate import calibrated, finished, of_one
from micronpu.quantize.data import Trial, calibration_batches, calibration_sequences, in_turn, labels_of
from micronpu.quantize.quantization import Quantization
from micronpu.quantize.quantizer import StaticQuantizer
from micronpu.quantize.ranges import places_of
from micronpu.quantize.running import float_leaves, float_run, float_values, function_of, noise, operator_before
from micronpu.report.accuracy import MetricAccuracy
from micronpu.report.metrics import Metric, metric_of
from micronpu.targets.options import Options
from micronpu.targets.registry import device_for
from micronpu.upstream.session import one_thread
from micronpu.verify.judge import metric_accuracy
from micronpu.verify.verification import Verification

Row: TypeAlias = tuple[torch.Tensor, ...]
_PROJECTIONS = 2
"""Random directions at the output for which a sample's errors are backpropagated."""
_RANGE_ROWS = 8
"""Number of samples used to try other ranges; a few suffice to see whether they help."""


@dataclass
class LayerErrors:
    """Sums over samples for one layer.

    Attributes:
        quantize: the node that ends it, in the converted module.
        result: the node whose result it quantizes.
        first: the operator itself: `result`, or the input of its clamp.
        moved: change of the output caused by the layer alone: sum of squares over samples and directions.
        range_left: fraction of the output's error from rounding and clipping the layer's result that the best range
            would leave; None if the range is fixed.
    """

    quantize: Node
    edge: Edge
    result: Node
    first: Node
    weight: Node | None = None
    signal: float = 0.0
    total: float = 0.0
    own: float = 0.0
    inherited: float = 0.0
    weights: float = 0.0
    rounding: float = 0.0
    clipping: float = 0.0
    clipped: int = 0
    elements: int = 0
    largest: float = 0.0
    peak: float = 0.0
    moved: float = 0.0
    followed: bool = False
    range_left: float | None = None
    shape: tuple[int, ...] = ()

    @property
    def adds(self) -> bool:
        """True if it adds any error; operators that only move quantized values do not."""
        return self.weights > 0 or self.rounding > 0

    def add(self, wanted: Tensor, total: Tensor, own: Tensor, weights: Tensor, rounding: Tensor) -> None:
        """Add one sample's errors to the sums."""
        self.shape = tuple(wanted.shape)
        self.signal += _power(wanted)
        self.total += _power(total - wanted)
        self.own += _power(own - wanted)
        self.inherited += _power(total - own)
        self.weights += _power(weights)
        self.rounding += _power(rounding)
        self.elements += wanted.numel()
        if wanted.numel():
            self.largest = max(self.largest, float((total - wanted).abs().max()))
            self.peak = max(self.peak, float(wanted.abs().max()))

    def count_clipped(self, before: torch.Tensor) -> None:
        """Count values outside of the range of the result's qparams."""
        low, high = self.edge.range
        self.clipped += int(((before < low) | (before > high)).sum())
        self.clipping += _power(before - before.clamp(low, high))


class SideBySide:
    """Compares a converted module with the prepared one it was converted from.

    Args:
        prepared: with observers; a copy, since conversion consumes it.
        converted: result of `convert_pt2e`.

    Attributes:
        layers: in the order of the network.
        signal, noise: of the outputs, summed over samples.
        rows: number of samples.
        results: of both, the float network's first, for each sample, if `keeps_results`.
    """

    keeps_results = False

    def __init__(self, prepared: GraphModule, converted: GraphModule) -> None:
        self.prepared, self.converted = prepared, converted
        self._constant = constant_nodes(converted)
        names, view = by_name(prepared), ProgramView(converted)
        self.layers = [
            LayerErrors(n, edge, result, first, _weight(first, self._constant))
            for n, edge in findings(converted, view.result_qparams).items()
            if n not in self._constant and float_behind(n).name in names
            for result in n.all_input_nodes[:1]
            for first in (operator_before(result, self._constant),)
        ]
        self._by_quantize = {layer.quantize: layer for layer in self.layers}
        self._places = places_of(prepared)
        self.signal = self.noise = 0.0
        self.rows = 0
        self.results: list[tuple[Row, Row]] = []
        self._step = functools.cache(functools.partial(function_of, converted))
        self._float = float_run(prepared)
        self._run = Run(converted, self._step, wanted=converted.graph.nodes)
        with torch.no_grad():
            self._fixed = Run(converted, self._step, wanted=self._constant).values()

    def add(self, row: Row) -> None:
        """Run one sample through both; add the errors of each layer, and its contribution to the output."""
        with torch.enable_grad():
            values = float_values(self._float, row, gradients=True)
        outputs = float_leaves(values[self.prepared.graph.output_node().name])
        with torch.no_grad():
            errors = self._walk(row, values, [o.detach() for o in outputs])
        self._follow(outputs, errors, values)

    def _walk(
        self, row: Row, exact: dict[str, torch.Tensor], outputs: list[torch.Tensor]
    ) -> list[tuple[LayerErrors, torch.Tensor]]:
        """Run the quantized network, and each layer on float operands. Return the error that each layer adds alone."""
        total, added = self._run.values(self._fixed, *row), list[tuple[LayerErrors, torch.Tensor]]()
        self.rows += 1
        found = float_leaves(total[self.converted.graph.output_node()])
        self.results += [(tuple(outputs), tuple(found))] if self.keeps_results else []
        for signal, error in noise(found, outputs):
            self.signal, self.noise = self.signal + signal, self.noise + error

        def behind(node: Node, value: Any, own: Known) -> object:
            if (layer := self._by_quantize.get(node)) is None:
                return value
            # The layer's result for rounded float operands; its readers get the rounded float result.
            before, wanted = own[layer.result], _float_value(layer.result, exact).detach()
            result = layer.edge.dequantized(value)
            alone = wanted if layer.weight is None else self._with_weights(layer, exact)
            # Replace infinities, from a division by an operand that was rounded to 0, by the float result.
            rounding = result - torch.where(before.isfinite(), before, wanted)
            added.append((layer, alone - wanted + rounding))
            layer.add(wanted, layer.edge.dequantized(total[node]), result, alone - wanted, rounding)
            layer.count_clipped(before)
            return self._step(node)({n: own[n] for n in node.all_input_nodes} | {layer.result: wanted})

        self._run.values(self._fixed, *row, behind=behind)
        return added

    def settle(self) -> None:
        """Compute for each layer the error that another range would leave, after all samples are added."""
        places = {node.name: place for place in self._places for node in place.nodes}
        for layer in self.layers:
            place = places.get(float_behind(layer.result).name)
            if place is not None and layer.followed:
                layer.range_left = place.left(*layer.edge.range)

    def _with_weights(self, layer: LayerErrors, exact: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """The layer's result with its quantized weights and float operands."""
        values: dict[Node, object] = {}
        for operand in layer.first.all_input_nodes:
            values[operand] = self._fixed[operand] if operand in self._fixed else _float_value(operand, exact)
        result: torch.Tensor = self._step(layer.first)(values)
        node = layer.first
        while node is not layer.result:
            (node,) = node.users
            result = self._step(node)({**self._fixed, node.all_input_nodes[0]: result})
        return result

    def _follow(
        self,
        outputs: list[torch.Tensor],
        errors: list[tuple[LayerErrors, torch.Tensor]],
        exact: dict[str, torch.Tensor],
    ) -> None:
        """Estimate how much each layer's own error changes the outputs, to first order.

        For a random vector v of signs, E (v . J e)^2 = |J e|^2, where J are the derivatives of the outputs with respect
        to the layer's result and e is its error; one backward run gives v . J for all layers.
        """
        generator = torch.Generator().manual_seed(self.rows)
        layers = [(a, error, x) for a, error in errors if (x := _float_value(a.result, exact)).requires_grad]
        tracked = [value for _, _, value in layers]
        places = self._places if self.rows <= _RANGE_ROWS else []
        reachable = [o for o in outputs if o.requires_grad]
        if not tracked or not reachable:
            return
        for number in range(_PROJECTIONS):
            target = sum(((torch.randint(0, 2, o.shape, generator=generator) * 2 - 1) * o).sum() for o in reachable)
            assert isinstance(target, torch.Tensor)
            gradients = torch.autograd.grad(target, tracked, retain_graph=number < _PROJECTIONS - 1, allow_unused=True)
            for (layer, error, _), gradient in zip(layers, gradients, strict=True):
                if gradient is not None:
                    layer.moved += float((gradient * error).double().sum()) ** 2 / _PROJECTIONS
                    layer.followed = True
            slopes = {float_behind(layer.result).name: g for (layer, _, _), g in zip(layers, gradients, strict=True)}
            for place in places:
                place.add(exact, [slopes])


def _power(x: torch.Tensor) -> float:
    return float(x.double().square().sum())


def _float_value(node: Node, exact: Mapping[str, torch.Tensor]) -> torch.Tensor:
    return exact[float_behind(node).name]


def _weight(node: Node, constants: set[Node]) -> Node | None:
    """Quantized constant that an operator reads; None without one."""
    found = (n for n in node.all_input_nodes[1:] if n in constants)
    return next((n for n in found if qualified_name(n).startswith("quantized_decomposed::dequantize")), None)


@dataclass(frozen=True)
class Sequences:
    """The calls of all sequences, concatenated.

    Attributes:
        rows: inputs of each call.
        lengths: calls of each sequence.
    """

    rows: list[Row]
    lengths: tuple[int, ...]

    @classmethod
    def of(cls, data: object, examples: tuple[torch.Tensor, ...], io: IntegerIO | None) -> Sequences:
        """Parse data in the form of calibration data.

        Raises:
            ModelError: a sequence is empty, or an input does not fit.
        """
        found = calibration_sequences(data, examples, "evaluation", io)
        return cls([row for sequence in found for row in sequence], tuple(map(len, found)))

    @property
    def begins(self) -> frozenset[int]:
        """Indices of the calls that start a sequence."""
        return frozenset(int(n) for n in np.cumsum((0, *self.lengths[:-1])))

    def judged(self, labels: object) -> tuple[object, Array | None, str]:
        """Return labels of the evaluated calls, the indices of these calls (None for all), and a note.

        With one label per call, all calls are evaluated; with one per sequence, its last call.
        """
        given = list(labels) if isinstance(labels, (list, tuple)) else labels
        if isinstance(given, list) and given and all(hasattr(g, "__len__") for g in given):
            lengths = tuple(map(len, given))
            if lengths != self.lengths:
                raise ModelError(
                    f"The labels are for sequences of {list(lengths)} calls, the data for {list(self.lengths)}.",
                    hint="a label for each call, or one for each sequence",
                )
            given = [label for sequence in given for label in sequence]
        count, calls = len(self.lengths), len(self.rows)
        text = f"{calls:,} calls of {count:,} sequences, each from the initial state"
        if hasattr(given, "__len__") and len(given) == count != calls:
            return given, np.cumsum(self.lengths) - 1, f"{text}; judged is the last call of each."
        return given, None, f"{text}; intervals and p take every call for itself, though those of a sequence are alike."


@contextmanager
def begun_anew(module: Callable[..., object]) -> Iterator[Callable[[], None]]:
    """Yield a function that resets the buffers of a module to their current values; reset them at the end too."""
    holders = list(module.modules()) if isinstance(module, nn.Module) else []
    first = [
        (m, name, b, b.clone()) for m in holders for name, b in m.named_buffers(recurse=False, remove_duplicate=False)
    ]

    def reset() -> None:
        for holder, name, _, value in first:
            setattr(holder, name, value.clone())

    try:
        yield reset
    finally:
        with torch.no_grad():
            for holder, name, own, value in first:
                setattr(holder, name, own.copy_(value))


ProgressCallback: TypeAlias = Callable[[str, float], None]


@dataclass(frozen=True)
class Subject:
    """A model to quantize, its target, and the data to measure its error on.

    Attributes:
        model: as given by the user.
        data: inputs to measure on, as given by the user.
        calibration: inputs that choose the ranges, as given by the user; None to use ``data``.
        examples: inputs to export the model with.
        target, options: as for `micronpu.compile`.
        asked: name of the called function of micronpu, for errors.
        labels, metric: of the user's task, see `Verification`.
    """

    model: Any
    data: Any
    calibration: Any
    examples: Row
    target: str
    options: Options | None
    asked: str = "blame"
    labels: object = None
    metric: Metric | None = None

    @classmethod
    def of(
        cls,
        asked: str,
        model: nn.Module | ExportedProgram | str | os.PathLike[str],
        data: object,
        calibration: object,
        examples: Sequence[object] | torch.Tensor | None,
        target: str,
        options: Options | None,
    ) -> Subject:
        """Return the arguments of `micronpu.blame` or `micronpu.fix`; data are inputs, or a `Verification` of them."""
        given = data if isinstance(data, Verification) else Verification(data=data)
        inputs = list(in_turn(given.data, asked)) if isinstance(given.data, Iterator) else given.data
        model, examples, inputs = opened(model, examples, inputs)
        metric = None if given.metric is None else metric_of(given.metric)
        examples = examples_of(inputs, examples, asked)
        return cls(model, inputs, calibration, examples, target, options, asked, given.labels, metric)

    def metric_of(self, chosen: slice, exact: Sequence[Row], found: Sequence[Row]) -> MetricAccuracy | None:
        """Return the metric of the float and of the quantized model on some rows; None without a metric.

        Args:
            exact, found: results of the two for each of these rows.
        """
        if self.metric is None:
            return None
        recordings = tuple([row] for row in self.rows)
        labels = None if self.labels is None else np.concatenate(labels_of(self.labels, recordings)[chosen])
        return metric_accuracy(self.metric, found, exact, Trial(recordings[chosen], labels=labels))

    @property
    def has_int16(self) -> bool:
        """True if the target supports int16."""
        return device_for(self.target, self.options).capabilities.has_int16

    def quantizer(self, how: Quantization) -> StaticQuantizer:
        """Return the quantizer for the target."""
        return how.quantizer_for(device_for(self.target, self.options).quantizer)

    @cached_property
    def module(self) -> GraphModule:
        """The float model as a graph, checked.

        Raises:
            ModelError: it cannot be exported, or is already quantized.
        """
        found = exported(self.model, self.examples)
        if not found.is_float:
            raise ModelError(
                "The model is quantized already, so that there is no float model to compare it with.",
                hint="the float model that it was made of",
            )
        if states := found.states.values:
            raise ModelError(
                f"The model keeps a state, `{states[0].name}`, from one call to the next, and {self.asked} compares "
                "single inputs.",
                hint="a model that takes its states as inputs and returns them",
            )
        LOOPS_ALLOWED.say(found.module, True)  # as `compile` does: a recurrent layer that is left alone stays in float
        return found.module

    @cached_property
    def rows(self) -> list[Row]:
        """The data, sample by sample, after the model's checks."""
        self.module  # noqa: B018  (report errors of the model first)
        return calibration_batches(self.data, self.examples, kind=self.asked)

    @cached_property
    def ranges(self) -> list[Row] | None:
        """The calibration data; None if `rows` choose the ranges."""
        return None if self.calibration is None else calibration_batches(self.calibration, self.examples)

    def measured(
        self,
        quantizer: StaticQuantizer,
        batches: Sequence[Row],
        rows: Sequence[Row],
        notify: ProgressCallback = lambda name, part: None,
        most: Callable[[int], int] = lambda layers: sys.maxsize,
    ) -> SideBySide:
        """Quantize a copy of the model and compare it with the float one on samples.

        Args:
            most: returns the maximum number of samples for a number of layers; of more, some are measured.
        """
        quantizers, calls, count = {"": quantizer}, of_one([batches]), max(len(batches), 1)
        prepared = calibrated({"": copied(self.module)}, calls, quantizers, lambda d: notify("quantize", d / count))
        exact = copied(prepared[""])
        exact.requires_grad_(False)
        with quiet(), one_thread():
            found = SideBySide(exact, finished(prepared, calls, quantizers)[""])
            found.keeps_results = self.metric is not None
            rows = rows[:: -(-len(rows) // most(len(found.layers)))]
            for number, row in enumerate(rows):
                notify("blame", number / len(rows))
                found.add(row)
            found.settle()
            notify("blame", 1.0)
        return found


def examples_of(data: object, given: Sequence[object] | torch.Tensor | None, asked: str) -> tuple[torch.Tensor, ...]:
    """Return the given example inputs, or the first of the data."""
    if data is None:
        raise ModelError(
            "There is no data to compare the quantized model with the float model on.",
            hint=f"{asked}(model, data) with a dozen typical inputs",
        )
    if given is not None:
        return as_inputs(given)
    if isinstance(data, dict) or not isinstance(data, Iterable) or getattr(data, "ndim", 1) == 0:
        raise ModelError(
            f"The data of {asked} is of type {type(data).__name__}, not a list of inputs.", hint="[x1, x2, ...]"
        )
    first = data[:1] if isinstance(data, np.ndarray | torch.Tensor) else next(iter(data), None)
    if first is None or (isinstance(first, np.ndarray | torch.Tensor) and not len(first)):
        raise ModelError(f"The data of {asked} is empty.", hint="pass a dozen typical inputs")
    return as_inputs(first)
