"""Positions in a program: integers that select or replace rows, and their ranges."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

import torch

from micronpu.frontend.facts import NOT_NEGATIVE
from micronpu.frontend.graphs import GraphModule, Node
from micronpu.frontend.program import arguments, overload_name, value_of
from micronpu.frontend.tensors import attribute, state_ends, states_of
from micronpu.ir.facts import ANY, POSITIVE, Given
from micronpu.ir.lowering import facts_of
from micronpu.ops import facts
from micronpu.ops.slicing import SELECTIONS, SLICES

_INTEGERS = (torch.int64, torch.int32)
_Bounds: TypeAlias = tuple[Node | None, int, int]
"""An input or a state, or None, and minimum and maximum of the number added to it."""


class Count(NamedTuple):
    """Use of an integer state by a method."""

    number: int  # index among the method's states
    size: int | None  # exclusive upper bound of its value in a call, because it selects rows; None for no limit
    counts: bool  # True if `step` is added to it, False if `step` replaces it
    step: int | None  # None if unknown


def is_position(node: object) -> bool:
    """Return True if a value holds integers that can be positions."""
    value = node.meta.get("val") if isinstance(node, Node) else None
    return isinstance(value, torch.Tensor) and value.dtype in _INTEGERS


def root_of(node: Node) -> Node:
    """Return the position from which a node is made by operators that only change its shape or dtype."""
    while (same := _same(node)) is not None and is_position(node) and is_position(same):
        node = same
    return node


def _same(node: Node) -> Node | None:
    """Return the operand whose numbers an operator returns unchanged, or None."""
    name = overload_name(node)
    first = node.args[0] if node.args else None
    if name in facts.HANDING_ON or (name in SELECTIONS and _elements(first) == 1):
        return first if isinstance(first, Node) else None
    if name == facts.COPY and _elements(node.args[1]) == _elements(node):
        return node.args[1] if isinstance(node.args[1], Node) else None
    if name and facts.is_sum(name, arguments(node)):  # such as the addition of `arange(1)`
        given = arguments(node)
        rest = [arg for arg in (given["self"], given["other"]) if not _is_zero(arg)]
        only = rest[0] if len(rest) == 1 else None
        return only if isinstance(only, Node) and _elements(only) == _elements(node) else None
    return None


def _elements(node: object) -> int:
    value = value_of(node) if isinstance(node, Node) else None
    return value.numel() if isinstance(value, torch.Tensor) else 0


def _is_zero(value: object) -> bool:
    """Return True if an operand contains only zeros."""
    if not isinstance(value, Node):
        return isinstance(value, (int, float)) and value == 0
    name = overload_name(value)
    if (start := facts.counts_from(name, arguments(value)) if name else None) is not None:
        return _elements(value) == 1 and bool(start == 0)
    owner = value.graph.owning_module
    constant = _constant(owner, value) if value.op == "get_attr" and isinstance(owner, GraphModule) else None
    return constant is not None and not bool(constant.any())


def indexed(node: Node) -> Iterator[tuple[Node, int]]:
    """Yield the positions by which an operator selects or replaces rows, each with the size of the axis."""
    name = overload_name(node)
    for table, index, axis in facts.indices_of(name, arguments(node)) if name else ():
        shape = value_of(table).shape if isinstance(table, Node) else ()
        if is_position(index) and len(shape):
            yield index, int(shape[axis])


def _keeps_sign(node: Node, found: Collection[Node]) -> bool:
    """Return True if an operator counts from zero, or keeps non-negative operands non-negative."""
    if node.op != "call_function":
        return False
    name = overload_name(node)
    start = facts.counts_from(name, arguments(node)) if name else None
    if start is not None and _number(start) >= 0:
        return True
    picked = node.args[0] if name in (*SELECTIONS, *SLICES) else _same(node)
    if picked in found:
        return True
    if not name or not is_position(node):
        return False
    return facts_of(name).range_of(arguments(node), lambda x: POSITIVE if _fits(x, found) else ANY)[0] >= 0


def not_negative(module: GraphModule) -> set[Node]:
    """Return the integer values of a program that are never negative.

    They are inputs that the module's meta names, states that start and remain non-negative, constants, and results of
    operators that keep them non-negative.
    """
    sure = [n for n in module.graph.find_nodes(op="placeholder") if n.name in NOT_NEGATIVE.of(module)]
    integers = [end for end in state_ends(module) if end[0].initial.dtype in _INTEGERS and end[0].initial.numel()]
    kept = [(own, new) for state, own, new in integers if int(state.initial.min()) >= 0]
    while True:
        found = {*sure, *(own for own, _ in kept)}
        for node in module.graph.nodes:
            value = _constant(module, node)
            if bool((value >= 0).all()) if value is not None else _keeps_sign(node, found):
                found.add(node)
        stay = [(own, new) for own, new in kept if new in found]
        if len(stay) == len(kept):
            return {node for node in found if is_position(node)}
        kept = stay


def _fits(operand: object, found: Collection[Node]) -> bool:
    if isinstance(operand, (list, tuple)):
        return all(_fits(o, found) for o in operand)
    return operand in found if isinstance(operand, Node) else _number(operand) >= 0


def _number(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) else -1.0


def _constant(module: GraphModule, node: Node) -> torch.Tensor | None:
    value = attribute(module, node)
    return value if value is not None and value.dtype in _INTEGERS else None


def ranges_of(module: GraphModule) -> dict[int, int]:
    """Return inputs that select rows, by index, with the number of rows; states are the last inputs."""
    own = {state.node for state in states_of(module).values}
    inputs = module.graph.find_nodes(op="placeholder")
    sizes = _sizes(module, _all_bounds(module))
    return {inputs.index(root): size for root, size in sizes.items() if root.name not in own}


def counts_of(module: GraphModule) -> list[Count]:
    """Return the states, which are inputs and outputs, that select rows: positions that the model counts itself."""
    bounds, found = _all_bounds(module), list[Count]()
    sizes = _sizes(module, bounds)
    for number, (state, own, new) in enumerate(state_ends(module)):
        if state.initial.dtype in _INTEGERS:
            root, low, high = bounds.get(new) or (None, 0, 1)
            known = low == high and root in (None, own)
            size = sizes.get(own)
            found.append(Count(number, size, root is own, low if known else None))
    return found


def _sizes(module: GraphModule, bounds: Mapping[Node, _Bounds]) -> dict[Node, int]:
    found: dict[Node, int] = {}
    for node in module.graph.nodes:
        for index, size in indexed(node):
            root, _, added = bounds.get(index) or (None, 0, 0)
            if root is not None:
                found[root] = min(max(size - added, 0), found.get(root, size))
    return found


def _counted(first: Any, given: Given) -> tuple[None, int, int] | None:
    """Return minimum and maximum of a result that counts from a first number, by its arguments."""
    end = given["end"]
    plain = isinstance(first, int) and isinstance(end, int) and given.get("step", 1) == 1 and first < end
    return (None, first, end - 1) if plain else None


def _all_bounds(module: GraphModule) -> dict[Node, _Bounds]:
    """Return each integer value that is an input or a state and a number, with minimum and maximum of the number."""
    found: dict[Node, _Bounds] = {}
    for node in module.graph.nodes:
        bounds = _bounds(module, node, found) if is_position(node) else None
        if bounds is not None:
            found[node] = bounds
    return found


def _bounds(module: GraphModule, node: Node, known: Mapping[Node, _Bounds]) -> _Bounds | None:
    """Return the bounds of a value, given those of its operands, or None."""
    if node.op == "placeholder":
        return node, 0, 0
    name = overload_name(node)
    if node.op == "get_attr":
        value = _constant(module, node)
        return (None, int(value.min()), int(value.max())) if value is not None and value.numel() else None
    if (same := _same(node)) is not None:
        return known.get(same)
    if name and (first := facts.counts_from(name, arguments(node))) is not None:
        return _counted(first, arguments(node))
    if name and facts.is_sum(name, arguments(node)):
        given = [arguments(node)[operand] for operand in ("self", "other")]
        one, other = ((None, x, x) if isinstance(x, int) else known.get(x) for x in given)
        if one is not None and other is not None and None in (one[0], other[0]):
            return one[0] or other[0], one[1] + other[1], one[2] + other[2]
    return None
