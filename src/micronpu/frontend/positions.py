"""Positions in a program: integers by which rows are picked and replaced, and what is known of their range."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import GraphModule, Node

from micronpu.frontend.facts import NOT_NEGATIVE
from micronpu.frontend.program import arguments, overload_name, value_of
from micronpu.frontend.states import states_of

_INTEGERS = (torch.int64, torch.int32)
_SAME = frozenset(
    (
        "to.dtype",
        "_to_copy.default",
        "to.dtype_layout",
        "view.default",
        "reshape.default",
        "unsqueeze.default",
        "squeeze.default",
        "squeeze.dim",
        "flatten.using_ints",
        "expand.default",
        "clone.default",
        "alias.default",
        "detach.default",
        "detach_.default",
        "contiguous.default",
    )
)
"""Operators behind which the same positions stand in another shape or type."""
_GROWING = frozenset(("add.Tensor", "mul.Tensor", "add.Scalar", "mul.Scalar", "cat.default", "maximum.default"))
"""Operators of numbers that are not negative whose result is none either."""


def is_position(node: Any) -> bool:
    """Whether a value holds integers that can be positions."""
    value = node.meta.get("val") if isinstance(node, Node) else None
    return isinstance(value, torch.Tensor) and value.dtype in _INTEGERS


def root_of(node: Node) -> Node:
    """What a position is called where it is made: without the operators that only give it another shape or type."""
    while overload_name(node) in _SAME and is_position(node) and is_position(node.args[0]):
        node = node.args[0]  # type: ignore[assignment]
    return node


def indexed(node: Node) -> Iterator[tuple[Node, int]]:
    """The positions by which an operator picks or replaces, each with the size of the axis that they are of."""
    name = overload_name(node)
    given = arguments(node) if name else {}
    found: list[tuple[Any, Any, int]] = []
    if name in ("index.Tensor", "index_put.default", "index_put_.default"):
        found = [(given["self"], index, axis) for axis, index in enumerate(given["indices"])]
    elif name in ("index_select.default", "index_copy.default", "scatter.src", "scatter.value", "gather.default"):
        found = [(given["self"], given["index"], int(given["dim"]))]
    elif name == "embedding.default":
        found = [(given["weight"], given["indices"], 0)]
    for table, index, axis in found:
        shape = value_of(table).shape if isinstance(table, Node) else ()
        if is_position(index) and len(shape):
            yield index, int(shape[axis])


def not_negative(module: GraphModule) -> set[Node]:
    """The integer values of a program that are never negative.

    Inputs that the module's meta names; states that begin so and of which no call makes anything else; what is computed
    of those by operators that keep to it; constants.
    """
    states = states_of(module).values
    inputs = {n.name: n for n in module.graph.nodes if n.op == "placeholder"}
    results: Any = module.graph.output_node().args[0]
    new = dict(zip(states, results[len(results) - len(states) :], strict=True)) if states else {}
    sure = NOT_NEGATIVE.of(module)
    kept = [s for s in states if s.initial.dtype in _INTEGERS and s.initial.numel() and int(s.initial.min()) >= 0]
    while True:
        found = {inputs[name] for name in sure if name in inputs} | {inputs[s.node] for s in kept}
        for node in module.graph.nodes:
            if node.op == "get_attr" or node in found:
                if node.op == "get_attr" and _is_not_negative(module, node):
                    found.add(node)
                continue
            name = overload_name(node)
            if name == "arange.default" or (name.startswith("arange.start") and _number(node.args[0]) >= 0):
                found.add(node)
            elif name in _SAME | _GROWING and is_position(node):
                operands = [*node.args[:2]] if name in _GROWING and name != "cat.default" else [node.args[0]]
                if all(_fits(operand, found) for operand in operands):
                    found.add(node)
        stay = [s for s in kept if new[s] in found]
        if len(stay) == len(kept):
            return {node for node in found if is_position(node)}
        kept = stay


def _fits(operand: Any, found: set[Node]) -> bool:
    if isinstance(operand, (list, tuple)):
        return all(_fits(o, found) for o in operand)
    return operand in found if isinstance(operand, Node) else _number(operand) >= 0


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else -1.0


def _is_not_negative(module: GraphModule, node: Node) -> bool:
    value: Any = module
    for part in str(node.target).split("."):
        value = getattr(value, part)
    return isinstance(value, torch.Tensor) and value.dtype in _INTEGERS and bool((value >= 0).all())


def ranges_of(module: GraphModule) -> dict[int, int]:
    """Inputs that are positions as they are, by number, with the size of the shortest axis that they are of."""
    inputs = [n for n in module.graph.nodes if n.op == "placeholder"]
    found: dict[int, int] = {}
    for node in module.graph.nodes:
        for index, size in indexed(node):
            root = root_of(index)
            if root in inputs:
                number = inputs.index(root)
                found[number] = min(size, found.get(number, size))
    return found
