"""Float and quantized network side by side, layer by layer.

A layer is whatever ends in a quantization: an operator, or an operator with the clamp behind it. Three values of its
result are computed for every row:

    exact  the float network
    total  the quantized network
    own    the quantized operator with float operands that are rounded to their grids

own - exact is the layer's own error, total - own what it has inherited.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch.fx import GraphModule, Node

from micronpu.frontend.program import (
    arguments,
    is_compute,
    is_dequantize,
    is_quantize,
    qualified_name,
)
from micronpu.quantize.attributes import constant_nodes
from micronpu.quantize.floats import FloatRun
from micronpu.quantize.ranges import places_of
from micronpu.quantize.unrounded import computed, grid_limits
from micronpu.upstream.torch import tree_leaves

Row: TypeAlias = tuple[torch.Tensor, ...]
_PROJECTIONS = 2
"""Random directions at the output along which a row's errors are followed back."""
_RANGE_ROWS = 8
"""Rows with which ranges are tried: whether another range helps much is known after a few."""


@dataclass
class Layer:
    """Sums over rows for one layer.

    Attributes:
        quantize: the node that ends it, in the converted module.
        result: the node whose result it quantizes.
        first: the operator itself: `result`, or what is clamped by it.
        moved: by how much the output moves because of the layer alone: sum over rows and directions of squares.
        range_left: of what rounding and clipping to the grid of its result do to the output, the share that the best
            range would leave; None where the range is given.
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
    grid: float = 0.0
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
        """Whether it brings in any error: what only moves values on their grid does not."""
        return self.weights > 0 or self.grid > 0

    def count_clipped(self, before: torch.Tensor) -> None:
        """Counts what the grid of the result does not reach."""
        low, high = grid_limits(self.quantize)
        self.clipped += int(((before < low) | (before > high)).sum())
        self.clipping += _power(before - before.clamp(low, high))


class SideBySide:
    """Compares a converted module with the prepared one that it was made of.

    Args:
        prepared: with observers; a copy, since conversion uses it up.
        converted: what `convert_pt2e` made.

    Attributes:
        layers: in the order of the network.
        signal, noise: of the outputs, summed over rows.
        row_noise: by row the same two.
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
        self._fixed: dict[Node, Any] = {}
        with torch.no_grad():
            for node in converted.graph.nodes:
                if node in self._constant:
                    self._fixed[node] = computed(converted, node, self._fixed)

    def add(self, row: Row, *, follow: bool = True) -> None:
        """Runs one row through both and adds up.

        Args:
            follow: also look at each layer, and follow its error to the output.
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
        """The quantized network alone."""
        total: dict[Node, Any] = dict(self._fixed)
        given = iter(row)
        for node in self.converted.graph.nodes:
            if node not in self._fixed:
                total[node] = next(given) if node.op == "placeholder" else computed(self.converted, node, total)
                if node.op == "output":
                    self._outputs(total[node], outputs)

    def _walk(self, row: Row, exact: dict[str, Any], outputs: list[torch.Tensor]) -> list[tuple[Layer, torch.Tensor]]:
        """The quantized network, and each of its layers on float operands. Returns what each layer adds by itself."""
        total: dict[Node, Any] = dict(self._fixed)
        own: dict[Node, Any] = dict(self._fixed)
        added: list[tuple[Layer, torch.Tensor]] = []
        given = iter(row)
        for node in self.converted.graph.nodes:
            if node in self._fixed:
                continue
            if node.op == "placeholder":
                total[node] = own[node] = next(given)
                continue
            total[node] = computed(self.converted, node, total)
            if node.op == "output":
                self._outputs(total[node], outputs)
                continue
            layer = self._by_quantize.get(node)
            if layer is None:
                own[node] = computed(self.converted, node, own)
                continue
            # What the layer makes of rounded float operands, and what its readers get: the float result, rounded.
            before = own[layer.result]
            wanted = _float_value(layer.result, exact).detach()
            own[node] = computed(self.converted, node, {**_constants(node, own), node.args[0]: wanted})
            result = _rounded(self.converted, node, before, own)
            alone = wanted if layer.weight is None else self._with_weights(layer, exact)
            # An operand that was rounded to 0 may be divided by: what is endless has the float result's place.
            rounding = result - torch.where(before.isfinite(), before, wanted)
            added.append((layer, alone - wanted + rounding))
            _add(layer, wanted, _as_float(node, total[node]), result, alone - wanted, rounding)
            layer.count_clipped(before)
        return added

    def settle(self) -> None:
        """Tells each layer what another range would leave, once the rows are added."""
        places = {node.name: place for place in self._places for node in place.nodes}
        for layer in self.layers:
            place = places.get(_origin(layer.result).name)
            if place is not None and layer.followed:
                layer.range_left = place.left(*grid_limits(layer.quantize))

    def _with_weights(self, layer: Layer, exact: dict[str, Any]) -> torch.Tensor:
        """The layer's result with its quantized weights and float operands."""
        values: dict[Node, Any] = {}
        for operand in layer.first.all_input_nodes:
            values[operand] = self._fixed[operand] if operand in self._fixed else _float_value(operand, exact)
        result = computed(self.converted, layer.first, values)
        node = layer.first
        while node is not layer.result:
            (node,) = node.users
            result = computed(self.converted, node, {**self._fixed, node.all_input_nodes[0]: result})
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
        self, outputs: list[torch.Tensor], errors: list[tuple[Layer, torch.Tensor]], exact: dict[str, Any]
    ) -> None:
        """By how much each layer's own error moves the outputs, to first order.

        For a random direction v of signs, E (v . J e)^2 = |J e|^2, where J are the derivatives of the outputs by the
        layer's result and e is its error; one run backwards gives v . J for all layers.
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
                place.add(exact, slopes)


def _add(
    layer: Layer,
    wanted: torch.Tensor,
    total: torch.Tensor,
    own: torch.Tensor,
    weights: torch.Tensor,
    rounding: torch.Tensor,
) -> None:
    """Adds one row's errors to a layer's sums."""
    layer.shape = tuple(wanted.shape)
    layer.signal += _power(wanted)
    layer.total += _power(total - wanted)
    layer.own += _power(own - wanted)
    layer.inherited += _power(total - own)
    layer.weights += _power(weights)
    layer.grid += _power(rounding)
    layer.elements += wanted.numel()
    if wanted.numel():
        layer.largest = max(layer.largest, float((total - wanted).abs().max()))
        layer.peak = max(layer.peak, float(wanted.abs().max()))


def _power(x: torch.Tensor) -> float:
    return float(x.double().square().sum())


def step_of(node: Node) -> float:
    """The step of a quantize node's grid."""
    return float(arguments(node)["scale"])


def _as_float(node: Node, integers: torch.Tensor) -> torch.Tensor:
    given = arguments(node)
    return (integers.float() - int(given["zero_point"])) * float(given["scale"])


def _rounded(module: GraphModule, node: Node, value: torch.Tensor, env: dict[Node, Any]) -> torch.Tensor:
    """A value rounded to the grid of a quantize node."""
    near: dict[Any, Any] = {**_constants(node, env), node.args[0]: value}
    return _as_float(node, computed(module, node, near))


def _constants(node: Node, env: Mapping[Node, Any]) -> dict[Any, Any]:
    return {n: env[n] for n in node.all_input_nodes[1:]}


def _origin(node: Any) -> Node:
    """The node whose float value a node of the converted module stands for."""
    while is_quantize(node) or is_dequantize(node):
        node = node.args[0]
    return node  # type: ignore[no-any-return]


def _float_value(node: Node, exact: dict[str, Any]) -> torch.Tensor:
    return exact[_origin(node).name]  # type: ignore[no-any-return]


def _layer(quantize: Node, constants: set[Node]) -> Layer:
    result = quantize.args[0]
    assert isinstance(result, Node)
    first = result
    # A clamp belongs to the operator in front of it, where nothing is quantized in between.
    while first.op == "call_function" and is_compute(first) and not _has_weight(first, constants):
        floats = [n for n in first.all_input_nodes if n not in constants]
        if len(floats) != 1 or not is_compute(floats[0]) or len(floats[0].users) != 1:
            break
        (first,) = floats
    weight = next((n for n in first.all_input_nodes[1:] if n in constants and _is_quantized(n)), None)
    if not (first.op == "call_function" and is_compute(first)):
        weight = None
    return Layer(quantize, result, first, weight)


def _has_weight(node: Node, constants: set[Node]) -> bool:
    return any(n in constants and _is_quantized(n) for n in node.all_input_nodes[1:])


def _is_quantized(node: Node) -> bool:
    return qualified_name(node).startswith("quantized_decomposed::dequantize")
