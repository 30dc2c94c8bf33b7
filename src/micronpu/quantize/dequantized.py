"""Dequantized reference: a quantized module computed in float, and the error of single layers.

A layer ends in a quantization: an operator, or an operator followed by a clamp.  Three results follow from the
quantized module alone, which has its weights in their rounded form:

    exact  the values if no activation is rounded
    own    a layer's result on exact operands, if these and its result are rounded
    alone  the outputs if only this layer returns `own`, and nothing else is rounded
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias

import torch
from torch.fx import GraphModule, Node

from micronpu.frontend.constants import constant_nodes
from micronpu.frontend.importer import known_import
from micronpu.frontend.program import arguments, is_compute, is_dequantize, is_quantize
from micronpu.quantize.eager import function_of
from micronpu.upstream.torch import tree_leaves

Row: TypeAlias = tuple[torch.Tensor, ...]
Values: TypeAlias = dict[Node, Any]
ScaleZero: TypeAlias = tuple[float, int]
"""Scale and zero point."""
_NOTHING: Mapping[Node, float] = MappingProxyType({})


@dataclass(frozen=True)
class RoundedLayer:
    """A value that a quantized module rounds.

    Attributes:
        quantize: the node that ends it.
        first: the operator before the quantization, and before a clamp.
        moves: True if it only moves or selects values, with unchanged qparams.
    """

    quantize: Node
    first: Node
    moves: bool


class DequantizedReference:
    """Runs a converted module without its rounding.

    Args:
        module: result of `convert_pt2e`; its states, if it has any, are buffers.
    """

    def __init__(self, module: GraphModule) -> None:
        self.module = module
        self._constant = constant_nodes(module)
        self._fixed: dict[bool, Values] = {True: {}, False: {}}
        self._steps = {n: function_of(module, n, in_float=True) for n in module.graph.nodes if n.op != "placeholder"}
        self.layers = tuple(
            RoundedLayer(node, first, moves(first) and sum(n not in self._constant for n in first.all_input_nodes) == 1)
            for node in module.graph.nodes
            if is_quantize(node) and node not in self._constant
            for first in (self._first(node),)
        )

    def exact(self, row: Row, but: Mapping[Node, float] = _NOTHING) -> Values:
        """Return every value for a sample.

        Args:
            but: quantize nodes that do round, each with a symmetric int16 scale; 0 for its own qparams.
        """

        def rounds(node: Node, value: Any) -> Any:
            if node not in but or not value.is_floating_point():
                return value
            step = but[node]
            return _on_int16(value, step) if step else rounded(node, value)

        return self.values(row, rounds)

    def own(self, exact: Values) -> Iterator[tuple[RoundedLayer, torch.Tensor, torch.Tensor]]:
        """Yield each layer with its exact result and its own."""
        by_quantize = {layer.quantize: layer for layer in self.layers}
        values: Values = {}
        for node in self.module.graph.nodes:
            if node in self._constant:
                values[node] = self._constant_value(node, in_float=False)
            elif node.op == "placeholder":
                values[node] = exact[node]
            elif is_quantize(node):
                values[node] = exact[node]
                before, wanted = values[node.args[0]], exact[node.args[0]]
                if node in by_quantize and isinstance(wanted, torch.Tensor):
                    # The logarithm of a value rounded to 0 saturates; NaN is replaced by the exact result.
                    yield by_quantize[node], wanted, rounded(node, torch.where(before.isnan(), wanted, before))
            elif is_dequantize(node) and isinstance(exact[node.args[0]], torch.Tensor):
                operand = exact[node.args[0]]
                values[node] = rounded(node, operand) if operand.is_floating_point() else exact[node]
            elif node.op != "output":
                values[node] = self._steps[node](values)

    def alone(self, exact: Values, changes: Mapping[Node, torch.Tensor]) -> list[torch.Tensor]:
        """Return the float outputs if quantize nodes return other values, and nothing else is rounded."""
        changed: Values = dict(changes)
        for node in self.module.graph.nodes:
            if node not in changed and any(operand in changed for operand in node.all_input_nodes):
                near = {operand: changed.get(operand, exact[operand]) for operand in node.all_input_nodes}
                changed[node] = self._steps[node](near)
        output = self.module.graph.output_node()
        return float_leaves(changed.get(output, exact[output]))

    def with_qparams(self, row: Row, all_qparams: Mapping[Node, ScaleZero]) -> list[torch.Tensor]:
        """Return the float outputs for a sample if some quantize nodes round, each with other qparams."""
        values = self.values(
            row, lambda node, value: _on_int8(value, *all_qparams[node]) if node in all_qparams else value
        )
        return self.outputs(values)

    def outputs(self, exact: Values) -> list[torch.Tensor]:
        """Return the float outputs among all values."""
        return float_leaves(exact[self.module.graph.output_node()])

    def values(self, row: Row, changed: Callable[[Node, Any], Any]) -> Values:
        """Return every value for a sample; each computed one is changed before others read it."""
        values: Values = {}
        given = iter(row)
        for node in self.module.graph.nodes:
            if node in self._constant:
                values[node] = self._constant_value(node, in_float=True)
            elif node.op == "placeholder":
                values[node] = next(given)
            else:
                values[node] = changed(node, self._steps[node](values))
        return values

    def _constant_value(self, node: Node, *, in_float: bool) -> Any:
        known = self._fixed[in_float]
        if node not in known:
            for operand in node.all_input_nodes:
                self._constant_value(operand, in_float=in_float)
            known[node] = (self._steps[node] if in_float else function_of(self.module, node))(known)
        return known[node]

    def _first(self, quantize: Node) -> Node:
        """Return the operator before a quantization, and before a clamp without rounding between them."""
        node: Any = quantize.args[0]
        while is_quantize(node) or is_dequantize(node):  # requantization of a quantized value
            node = node.args[0]
        while is_compute(node) and not any(n in self._constant for n in node.all_input_nodes):
            floats = node.all_input_nodes
            if len(floats) != 1 or not is_compute(floats[0]) or len(floats[0].users) != 1:
                break
            (node,) = floats
        return node  # type: ignore[no-any-return]


def rounded(node: Node, value: torch.Tensor) -> torch.Tensor:
    """Return a value rounded with the qparams of a quantize or dequantize node."""
    given = arguments(node)
    scale, zero = float(given["scale"]), int(given["zero_point"])
    steps = (value / scale).round_()
    return steps.clamp_(int(given["quant_min"]) - zero, int(given["quant_max"]) - zero).mul_(scale)


def _on_int8(value: torch.Tensor, step: float, zero: int) -> torch.Tensor:
    limits = torch.iinfo(torch.int8)
    return (value / step).add_(zero).round_().clamp_(limits.min, limits.max).sub_(zero).mul_(step)


def _on_int16(value: torch.Tensor, step: float) -> torch.Tensor:
    limits = torch.iinfo(torch.int16)
    return (value / step).round_().clamp_(limits.min, limits.max).mul_(step)


def representable_range(node: Node) -> tuple[float, float]:
    """Return the smallest and largest value of a quantize node's range."""
    given = arguments(node)
    scale, zero = float(given["scale"]), int(given["zero_point"])
    return (int(given["quant_min"]) - zero) * scale, (int(given["quant_max"]) - zero) * scale


def float_leaves(found: Any) -> list[torch.Tensor]:
    """Return the floats among a program's results, in order."""
    return [r for r in tree_leaves(found) if isinstance(r, torch.Tensor) and r.is_floating_point()]


def noise(found: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor]) -> list[tuple[float, float]]:
    """Return for each output the power of its finite reference values, and of the difference, which may be infinite."""
    pairs = []
    for y, x in zip(found, wanted, strict=True):
        if not (known := x.isfinite()).all():
            y, x = y[known], x[known]
        exact = x.double()
        error = float((y.double() - exact).square().sum())
        pairs.append((float(exact.square().sum()), math.inf if math.isnan(error) else error))
    return pairs


def moves(node: Node) -> bool:
    """Return whether a node is an operator that only moves elements."""
    entry = known_import(node) if node.op == "call_function" else None
    return entry is not None and bool(entry.moves_only)
