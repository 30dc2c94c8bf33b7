"""Decomposed norms over rows of unequal size, if int16 is not available for their squares.

The norm of a row does not change if the row is multiplied with a positive number g.  With g near 1 / max(|x|) all rows
have the same size, and int8 represents all of them.  An eps is multiplied with g, too:

    (x - mean(x)) / (sqrt(var(x)) + eps)  =  (x * g - mean(x * g)) / (sqrt(var(x * g)) + eps * g)
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

from torch.fx import GraphModule, Node

from micronpu.frontend.facts import ROW_SIZE, SETTING, UNEVEN
from micronpu.frontend.program import arguments, overload_name
from micronpu.ir.lowering import Capabilities
from micronpu.ops.facts import degree_of
from micronpu.ops.normalization import SMALLEST_ROW, UNEQUAL
from micronpu.quantize.norms import measured, parts_of
from micronpu.quantize.switches import switchable
from micronpu.quantize.writer import GraphWriter

_SUMS = ("add.Tensor", "sub.Tensor")
_LEAST = ("clamp_min.default", "clamp.default")

Scaled = tuple[Node, float]
"""Replacement of a value with rows multiplied with g, and its additional power of g."""


@switchable
def scale_rows(model: GraphModule, able: Capabilities) -> bool:
    """x / norm(x) -> x * g / norm(x * g), g = 1 / (max(|x|) + e) of each row, where rows are of unequal size in int8"""
    norms = [n for n in model.graph.nodes if UNEVEN.of(n) >= UNEQUAL and measured(n)]
    norms = [] if norms and able.has_int16 else norms
    changed = False
    for node in norms:
        changed |= SETTING.of(node) != (None,) and _scaled(model, node, able)
    return changed


def _scaled(model: GraphModule, measure: Node, able: Capabilities) -> bool:
    """Rewrite one norm; return False for an unknown form, or if it reads anything but rows."""
    parts = {n: None for n in model.graph.nodes if n in set(parts_of(measure))}
    first = next(iter(parts))
    x = first.args[0]
    given = arguments(measure)
    axes = given.get("dim")
    if not isinstance(x, Node) or not axes or not given.get("keepdim"):
        return False
    write = GraphWriter(model, first, able, {})
    largest = write("amax.default", write("abs.default", x), list(axes) if isinstance(axes, list) else [axes], True)
    gain = write("reciprocal.default", write("add.Tensor", largest, SMALLEST_ROW * ROW_SIZE.of(measure)))
    known: dict[Node, Scaled] = {x: (write("mul.Tensor", x, gain), 1.0)}
    ends = []
    for node in parts:
        made = _of_node(GraphWriter(model, node, able, {}), node, known, gain)
        if made is None:
            return False
        known[node] = made
        if made[1] == 0.0:
            ends.append(node)
    for end in ends:
        end.replace_all_uses_with(known[end][0])
    for new, _ in known.values():
        UNEVEN.say(new, 1.0)
    return bool(ends)


def _of_node(write: GraphWriter, node: Node, known: Mapping[Node, Scaled], gain: Node) -> Scaled | None:
    """Return a node of a norm with scaled operands, or None if it is unknown."""
    name, given = overload_name(node), arguments(node)
    operands = [known.get(n) for n in node.args if isinstance(n, Node)]
    if not operands or operands[0] is None:
        return None
    (first, power), others = operands[0], operands[1:]
    again = partial(_again, write, node)
    degree = degree_of(name, given) if name != "mul.Tensor" else None  # which multiplies two scaled values
    if degree is not None:
        is_plain = given.get("keepdim", True) and given.get("ord", 2) == 2
        return (again(first), power * degree) if is_plain else None
    if name in _LEAST:
        least = _least(given)
        return None if least is None else _with_number(write, "maximum.default", first, power, least, gain)
    if name in _SUMS and not others and isinstance(given["other"], (int, float)) and given.get("alpha", 1) == 1:
        number = float(given["other"]) * (1 if name == "add.Tensor" else -1)
        return _with_number(write, "add.Tensor", first, power, number, gain)
    return _of_two(name, again, first, power, others)


def _least(given: Mapping[str, Any]) -> float | None:
    """Return the lower end of a clamp that has no upper end, by its arguments."""
    least = given.get("min", 0.0)
    return float(least) if isinstance(least, (int, float)) and given.get("max") is None else None


def _of_two(
    name: str, again: Callable[..., Node], first: Node, power: float, others: Collection[Scaled | None]
) -> Scaled | None:
    (other,) = others if len(others) == 1 else (None,)
    if other is None:
        return None
    second, more = other
    if name in _SUMS:
        return (again(first, second), power) if power == more else None
    combined = {"mul.Tensor": operator.add, "div.Tensor": operator.sub}.get(name)
    return None if combined is None else (again(first, second), combined(power, more))


def _again(write: GraphWriter, node: Node, *operands: Node) -> Node:
    """Write the call of a node with other operands instead of its first ones."""
    replaced = iter(operands)
    args = [next(replaced, a) if isinstance(a, Node) else a for a in node.args]
    return write(overload_name(node), *args, **node.kwargs)


def _with_number(write: GraphWriter, overload: str, x: Node, power: float, number: float, gain: Node) -> Scaled | None:
    """Return x + number * g ** power, or the larger of the two."""
    if number == 0.0 and overload == "add.Tensor":
        return x, power
    if power not in (1.0, 2.0):
        return None
    scaled = write("mul.Tensor", gain, number)
    scaled = write("mul.Tensor", gain, scaled) if power == 2.0 else scaled
    return write(overload, x, scaled), power
