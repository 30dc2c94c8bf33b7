"""Compare the float and the quantized network, layer by layer.

A layer is anything that ends in a quantization: an operator, or an operator with a following clamp. Three values of its
result are computed for every sample:

    exact  the float network
    total  the quantized network
    own    the quantized operator on float operands rounded to their qparams

own - exact is the layer's own error, total - own its inherited error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch.fx import GraphModule, Node

from micronpu.frontend.constants import constant_nodes
from micronpu.frontend.program import (
    arguments,
    is_compute,
    is_dequantize,
    is_quantize,
    qualified_name,
)
from micronpu.quantize.ranges import places_of
from micronpu.quantize.running import FloatRun, function_of, representable_range
from micronpu.upstream.torch import tree_leaves

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

    def count_clipped(self, before: torch.Tensor) -> None:
        """Count values outside of the range of the result's qparams."""
        low, high = representable_range(self.quantize)
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
        row_noise: the same two for each sample.
    """

    def __init__(self, prepared: GraphModule, converted: GraphModule) -> None:
        self.prepared, self.converted = prepared, converted
        self._constant = constant_nodes(converted)
        names = {n.name for n in prepared.graph.nodes}
        self.layers = [
            _layer(n, self._constant)
            for n in converted.graph.nodes
            if is_quantize(n) and n not in self._constant and _origin(n.args[0]).name in names
        ]
        self._by_quantize = {layer.quantize: layer for layer in self.layers}
        self._places = places_of(prepared)
        self.signal = self.noise = 0.0
        self.row_noise: list[tuple[float, float]] = []
        self._steps = {n: function_of(converted, n) for n in converted.graph.nodes if n.op != "placeholder"}
        self._fixed: dict[Node, Any] = {}
        with torch.no_grad():
            for node in converted.graph.nodes:
                if node in self._constant:
                    self._fixed[node] = self._steps[node](self._fixed)

    def add(self, row: Row, *, follow: bool = True) -> None:
        """Run one sample through both and add the errors.

        Args:
            follow: also measure each layer, and its contribution to the output.
        """
        run = FloatRun(self.prepared, gradients=follow)
        with torch.set_grad_enabled(follow):
            outputs = [r for r in tree_leaves(run.run(*row)) if isinstance(r, torch.Tensor) and r.is_floating_point()]
        exact = run.values
        with torch.no_grad():
            if not follow:
                self._run(row, outputs)
                return
            errors = self._walk(row, exact, [o.detach() for o in outputs])
        self._follow(outputs, errors, exact)

    def _run(self, row: Row, outputs: list[torch.Tensor]) -> None:
        """Run the quantized network only."""
        total: dict[Node, Any] = dict(self._fixed)
        given = iter(row)
        for node in self.converted.graph.nodes:
            if node not in self._fixed:
                total[node] = next(given) if node.op == "placeholder" else self._steps[node](total)
                if node.op == "output":
                    self._outputs(total[node], outputs)

    def _walk(
        self, row: Row, exact: dict[str, Any], outputs: list[torch.Tensor]
    ) -> list[tuple[LayerErrors, torch.Tensor]]:
        """Run the quantized network, and each layer on float operands. Return the error that each layer adds alone."""
        total: dict[Node, Any] = dict(self._fixed)
        own: dict[Node, Any] = dict(self._fixed)
        added: list[tuple[LayerErrors, torch.Tensor]] = []
        given = iter(row)
        for node in self.converted.graph.nodes:
            if node in self._fixed:
                continue
            if node.op == "placeholder":
                total[node] = own[node] = next(given)
                continue
            total[node] = self._steps[node](total)
            if node.op == "output":
                self._outputs(total[node], outputs)
                continue
            layer = self._by_quantize.get(node)
            if layer is None:
                own[node] = self._steps[node](own)
                continue
            # The layer's result for rounded float operands; its readers get the rounded float result.
            before = own[layer.result]
            wanted = _float_value(layer.result, exact).detach()
            qparams = {n: own[n] for n in node.all_input_nodes[1:]}
            own[node] = self._steps[node]({**qparams, node.args[0]: wanted})
            result = _as_float(node, self._steps[node]({**qparams, node.args[0]: before}))
            alone = wanted if layer.weight is None else self._with_weights(layer, exact)
            # Replace infinities, from a division by an operand that was rounded to 0, by the float result.
            rounding = result - torch.where(before.isfinite(), before, wanted)
            added.append((layer, alone - wanted + rounding))
            _add(layer, wanted, _as_float(node, total[node]), result, alone - wanted, rounding)
            layer.count_clipped(before)
        return added

    def settle(self) -> None:
        """Compute for each layer the error that another range would leave, after all samples are added."""
        places = {node.name: place for place in self._places for node in place.nodes}
        for layer in self.layers:
            place = places.get(_origin(layer.result).name)
            if place is not None and layer.followed:
                layer.range_left = place.left(*representable_range(layer.quantize))

    def _with_weights(self, layer: LayerErrors, exact: dict[str, Any]) -> torch.Tensor:
        """The layer's result with its quantized weights and float operands."""
        values: dict[Node, Any] = {}
        for operand in layer.first.all_input_nodes:
            values[operand] = self._fixed[operand] if operand in self._fixed else _float_value(operand, exact)
        result = self._steps[layer.first](values)
        node = layer.first
        while node is not layer.result:
            (node,) = node.users
            result = self._steps[node]({**self._fixed, node.all_input_nodes[0]: result})
        return result  # type: ignore[no-any-return]

    def _outputs(self, found: Any, wanted: list[torch.Tensor]) -> None:
        results = [r for r in tree_leaves(found) if isinstance(r, torch.Tensor) and r.is_floating_point()]
        signal = noise = 0.0
        for y, x in zip(results, wanted, strict=True):
            known = x.isfinite() & y.isfinite()
            signal += float(x[known].double().square().sum())
            noise += float((y[known].double() - x[known].double()).square().sum())
        self.signal += signal
        self.noise += noise
        self.row_noise.append((signal, noise))

    def _follow(
        self, outputs: list[torch.Tensor], errors: list[tuple[LayerErrors, torch.Tensor]], exact: dict[str, Any]
    ) -> None:
        """Estimate how much each layer's own error changes the outputs, to first order.

        For a random vector v of signs, E (v . J e)^2 = |J e|^2, where J are the derivatives of the outputs with respect
        to the layer's result and e is its error; one backward run gives v . J for all layers.
        """
        generator = torch.Generator().manual_seed(len(self.row_noise))
        layers = [(layer, error, _float_value(layer.result, exact)) for layer, error in errors]
        layers = [(layer, error, value) for layer, error, value in layers if value.requires_grad]
        tracked = [value for _, _, value in layers]
        places = self._places if len(self.row_noise) <= _RANGE_ROWS else []
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
            slopes = {_origin(layer.result).name: g for (layer, _, _), g in zip(layers, gradients, strict=True)}
            for place in places:
                place.add(exact, [slopes])


def _add(
    layer: LayerErrors,
    wanted: torch.Tensor,
    total: torch.Tensor,
    own: torch.Tensor,
    weights: torch.Tensor,
    rounding: torch.Tensor,
) -> None:
    """Add one sample's errors to a layer's sums."""
    layer.shape = tuple(wanted.shape)
    layer.signal += _power(wanted)
    layer.total += _power(total - wanted)
    layer.own += _power(own - wanted)
    layer.inherited += _power(total - own)
    layer.weights += _power(weights)
    layer.rounding += _power(rounding)
    layer.elements += wanted.numel()
    if wanted.numel():
        layer.largest = max(layer.largest, float((total - wanted).abs().max()))
        layer.peak = max(layer.peak, float(wanted.abs().max()))


def _power(x: torch.Tensor) -> float:
    return float(x.double().square().sum())


def step_of(node: Node) -> float:
    """Scale of a quantize node."""
    return float(arguments(node)["scale"])


def _as_float(node: Node, integers: torch.Tensor) -> torch.Tensor:
    given = arguments(node)
    return (integers.float() - int(given["zero_point"])) * float(given["scale"])


def _origin(node: Any) -> Node:
    """The node whose float value a node of the converted module represents."""
    while is_quantize(node) or is_dequantize(node):
        node = node.args[0]
    return node  # type: ignore[no-any-return]


def _float_value(node: Node, exact: dict[str, Any]) -> torch.Tensor:
    return exact[_origin(node).name]  # type: ignore[no-any-return]


def _layer(quantize: Node, constants: set[Node]) -> LayerErrors:
    result = quantize.args[0]
    assert isinstance(result, Node)
    first = result
    # A clamp belongs to its preceding operator, unless there is a quantization in between.
    while first.op == "call_function" and is_compute(first) and not _has_weight(first, constants):
        floats = [n for n in first.all_input_nodes if n not in constants]
        if len(floats) != 1 or not is_compute(floats[0]) or len(floats[0].users) != 1:
            break
        (first,) = floats
    weight = next((n for n in first.all_input_nodes[1:] if n in constants and _is_quantized(n)), None)
    if not (first.op == "call_function" and is_compute(first)):
        weight = None
    return LayerErrors(quantize, result, first, weight)


def _has_weight(node: Node, constants: set[Node]) -> bool:
    return any(n in constants and _is_quantized(n) for n in node.all_input_nodes[1:])


def _is_quantized(node: Node) -> bool:
    return qualified_name(node).startswith("quantized_decomposed::dequantize")
