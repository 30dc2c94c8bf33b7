"""Magnitudes of vectors of two without squares, whose range int8 does not hold.

    sqrt(a^2 + b^2)  ->  gain * max(|a|, |b|, (|a| + |b|) / sqrt(2))

Values that differ 20 times have squares that differ 400 times: with 255 LSBs the smaller ones become 0.  The largest of
the projections on four directions is between cos(pi / 8) of the magnitude and all of it; the gain halves the error,
which is 3.96 % of the magnitude at most.
"""

from __future__ import annotations

import math
from typing import Any

from torch.fx import GraphModule, Node

from micronpu.frontend.program import arguments, is_float32, overload_name
from micronpu.ir.lowering import Capabilities
from micronpu.ops.facts import is_sum, magnitude_of
from micronpu.quantize.readers import power_of
from micronpu.quantize.switches import clean
from micronpu.quantize.thresholds import PROJECTION_GAIN
from micronpu.quantize.writer import GraphWriter


def project_magnitudes(model: GraphModule, able: Capabilities) -> int:
    """Replace each magnitude of a pair in a float program by projections, in place; return how many there were."""
    pairs = {node: pair for node in model.graph.nodes if (pair := _pair(node)) is not None}
    for node, (a, b) in pairs.items():
        write = GraphWriter(model, node, able, {})
        a, b = write("abs.default", a), write("abs.default", b)
        diagonal = write("mul.Tensor", write("add.Tensor", a, b), write.constant(math.sqrt(0.5)))
        largest = write("maximum.default", write("maximum.default", a, b), diagonal)
        node.replace_all_uses_with(write("mul.Tensor", largest, write.constant(PROJECTION_GAIN)))
        model.graph.erase_node(node)
    clean(model, bool(pairs))
    return len(pairs)


def has_magnitudes(model: GraphModule) -> bool:
    """Return whether `project_magnitudes` would replace anything."""
    return any(_pair(node) is not None for node in model.graph.nodes)


def _pair(node: Node) -> tuple[Any, Any] | None:
    """Return the two values whose magnitude a node computes, or None."""
    name = overload_name(node)
    if not name or not is_float32(node):
        return None
    given = arguments(node)
    total = given.get("self")
    if (pair := magnitude_of(name, given)) is not None or power_of(node) != 0.5 or not isinstance(total, Node):
        return pair
    terms = arguments(total) if overload_name(total) else {}
    if not is_sum(overload_name(total), terms):
        return None
    a, b = _root_of(terms["self"]), _root_of(terms["other"])
    return (a, b) if a is not None and b is not None and a is not b else None


def _root_of(square: Any) -> Any:
    """Return x of x * x, x ** 2 and square(x), or None."""
    return arguments(square)["self"] if isinstance(square, Node) and power_of(square) == 2 else None
