"""Functions of masked values: the mask is applied after the function, if the filled value becomes small.

sigmoid(masked_fill(x, mask, -1e9)) needs qparams for -1e9 to the largest x, which leave no precision for x.  The
function of -1e9 is 0, so masked_fill(sigmoid(x), mask, 0) is equivalent, with the qparams of x and of its sigmoid.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.fx import GraphModule, Node

from micronpu.frontend.constants import attribute
from micronpu.frontend.program import arguments, is_float32, overload_name, value_of
from micronpu.ir.lowering import Capabilities
from micronpu.ops.elementwise import EXTREMA
from micronpu.ops.facts import is_function
from micronpu.quantize.readers import line_of
from micronpu.quantize.switches import switchable
from micronpu.quantize.thresholds import INFINITE
from micronpu.quantize.writer import GraphWriter


class _Fill(NamedTuple):
    """A masked fill: operand, fill value, and a function that writes a similar fill."""

    x: Node
    value: float
    write: Callable[[GraphWriter, Node, float], Node]


@switchable
def function_before_fill(model: GraphModule, able: Capabilities) -> bool:
    """f(masked_fill(x, mask, -1e9)) -> masked_fill(f(x), mask, f(-1e9)), where f(-1e9) is a number like others

    Exact, and the same of `where` with a constant, of infinity, and of a scale between fill and function.
    """
    changed = False
    for node in list(model.graph.nodes):
        changed |= _fill_behind(model, node, able) or _infinite_bound(model, node) or _infinite_pad(node)
    return changed


def _fill_behind(model: GraphModule, node: Node, able: Capabilities) -> bool:
    if not _is_function(model, node):
        return False
    fill = _fill_of(model, node.args[0])
    if fill is None or fill.x is node:
        return False
    at: Any = node.target(torch.tensor(fill.value), *node.args[1:], **node.kwargs)  # type: ignore[operator]
    end = float(at)
    if math.isnan(end) or (abs(end) >= INFINITE and line_of(model, node) is None):
        return False
    write = GraphWriter(model, node, able, {})
    computed = write(overload_name(node), fill.x, *node.args[1:], **node.kwargs)
    made = fill.write(write, computed, end)
    node.replace_all_uses_with(made)
    model.graph.erase_node(node)
    return True


def _infinite_bound(model: GraphModule, node: Node) -> bool:
    """maximum(x, -inf) -> x, and the same of minimum(x, inf)"""
    name = overload_name(node)
    if name not in EXTREMA:
        return False
    for x, bound in (node.args[:2], node.args[1::-1]):
        has_effect = _number(model, bound) != (-math.inf if name.startswith("max") else math.inf)
        if isinstance(x, Node) and not has_effect and value_of(x).shape == value_of(node).shape:
            node.replace_all_uses_with(x)
            model.graph.erase_node(node)
            return True
    return False


def _infinite_pad(node: Node) -> bool:
    """pad(x, value=-inf) -> pad(x, value=-1e9), which saturates where it changes no result"""
    if overload_name(node) not in ("pad.default", "constant_pad_nd.default"):
        return False
    places = [i for i, x in enumerate(node.args) if isinstance(x, float) and math.isinf(x)]
    for place in places:
        node.update_arg(place, math.copysign(1e9, float(node.args[place])))  # type: ignore[arg-type]
    return bool(places)


def _is_function(model: GraphModule, node: Node) -> bool:
    """Return True if a node is a function of one float, with numbers as further operands."""
    if not node.args or not isinstance(node.args[0], Node) or len(node.all_input_nodes) != 1:
        return False
    return is_float32(node) and (is_function(overload_name(node)) or line_of(model, node) is not None)


def _fill_of(model: GraphModule, node: Any) -> _Fill | None:
    """Return the parts of a fill with a number far from others, or None."""
    name = overload_name(node)
    given = arguments(node) if name.startswith(("masked_fill.", "where.")) else {}
    if name.startswith("masked_fill."):
        x, mask, value = given["self"], given["mask"], _number(model, given["value"])

        def again(write: GraphWriter, made: Node, number: float) -> Node:
            return write("masked_fill.Scalar", made, mask, number)

    elif name.startswith("where.") and "self" in given:
        hidden = _number(model, given["self"])
        x, value = (given["self"], _number(model, given["other"])) if hidden is None else (given["other"], hidden)
        condition = given["condition"]

        def again(write: GraphWriter, made: Node, number: float) -> Node:
            if hidden is None:
                return write("where.ScalarOther", condition, made, number)
            return write("where.ScalarSelf", condition, number, made)

    else:
        return None
    is_far = value is not None and abs(value) >= INFINITE and isinstance(x, Node)
    return _Fill(x, value, again) if is_far and value is not None else None


def _number(model: GraphModule, x: Any) -> float | None:
    """Return a number, or the one that all elements of a constant are."""
    if isinstance(x, (int, float)):
        return float(x)
    known = attribute(model, x)
    if known is None or not known.numel() or not known.is_floating_point() or isinstance(known, torch.nn.Parameter):
        return None
    first = known.flatten()[0]
    return float(first) if bool((known == first).all()) else None
