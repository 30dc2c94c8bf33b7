"""Truth values and indices of the float program as numbers, for chips that look results up in tables.

Quantization needs floats: a comparison or an index of the largest element becomes the number that it stands for, with a
grid of its own on which it is exact, and what the program does with it becomes arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import GraphModule, Node

from micronpu.frontend.program import arguments, overload_name
from micronpu.ir.way import Capabilities
from micronpu.ops.comparisons import CHOICES, FILLS, OPPOSITES
from micronpu.ops.indices import MOST_POSITIONS
from micronpu.quantize.switches import switchable

aten = torch.ops.aten

_COMPARISONS = tuple(f"{name}.{form}" for name in OPPOSITES for form in ("Scalar", "Tensor"))
_CASTS = ("to.dtype", "_to_copy.default", "to.dtype_layout")
_INDICES = ("argmax.default", "argmin.default")


@switchable
def decisions_to_numbers(model: GraphModule, capabilities: Capabilities) -> bool:
    """where(x > z, a, b) -> (x > z) * a + (x <= z) * b: comparisons and indices become numbers, choices arithmetic.

    x, z -> gt -> y         x, z -> gt -> to(float32) -> to(bool) -> y
    x -> argmax -> y        x -> argmax -> to(float32) -> to(int64) -> y

    Exact up to float rounding where both sides of a choice are finite; a choice with an infinite constant stays.
    """
    changed = False
    for node in list(model.graph.nodes):
        name = overload_name(node)
        if name in _COMPARISONS and capabilities.computes(name) and _compares_floats(node):
            _make_number(model, node)
            changed = True
        elif name in _INDICES and capabilities.index_types and _indexes_floats(node):
            _cast_readers(model, node, _number(model, node))
            changed = True
    return changed


def call(model: GraphModule, before: Node, target: Any, *args: Any) -> Node:
    """A new node in front of ``before``, with the type that its result has and the origin of ``before``."""
    with model.graph.inserting_before(before):
        node = model.graph.call_function(target, args)
    node.meta = {k: v for k, v in before.meta.items() if k in ("stack_trace", "nn_module_stack", "source_fn_stack")}

    def value(argument: Any) -> Any:
        return argument.meta["val"] if isinstance(argument, Node) else argument

    values = torch.utils._pytree.tree_map(value, args)
    fake = next((n.meta["val"] for n in node.all_input_nodes if hasattr(n.meta.get("val"), "fake_mode")), None)
    if fake is None:
        node.meta["val"] = target(*values)
    else:
        with fake.fake_mode:
            node.meta["val"] = target(*values)
    return node


def _value(node: Any) -> Any:
    return node.meta.get("val") if isinstance(node, Node) else None


def _is_float(node: Any) -> bool:
    value = _value(node)
    return isinstance(value, torch.Tensor) and value.dtype == torch.float32


def _compares_floats(node: Node) -> bool:
    given = arguments(node)
    other = given["other"]
    return _is_float(given["self"]) and (_is_float(other) or isinstance(other, (int, float)))


def _indexes_floats(node: Node) -> bool:
    given = arguments(node)
    x, axis = given["self"], given["dim"]
    return _is_float(x) and axis is not None and 1 < _value(x).shape[axis] <= MOST_POSITIONS


def _number(model: GraphModule, node: Node) -> Node:
    """The float of a comparison or index, which stands behind it."""
    following = node.next
    number = call(model, following, aten.to.dtype, node, torch.float32)
    number.meta |= {k: v for k, v in node.meta.items() if k in ("stack_trace", "nn_module_stack", "source_fn_stack")}
    return number


def _make_number(model: GraphModule, node: Node) -> None:
    number = _number(model, node)
    opposites: list[Node] = []

    def opposite() -> Node:
        """The number of the opposite comparison, made once."""
        if not opposites:
            target = getattr(getattr(aten, OPPOSITES[overload_name(node).split(".")[0]]), _form(node))
            compared = call(model, node, target, *node.args)
            opposites.append(_number(model, compared))
        return opposites[0]

    for reader in list(node.users):
        if reader is number or reader in opposites:
            continue
        new = _chosen(model, reader, node, number, opposite)
        if new is not None:
            reader.replace_all_uses_with(new)
            model.graph.erase_node(reader)
    _cast_readers(model, node, number)


def _form(node: Node) -> str:
    return overload_name(node).split(".")[1]


def _cast_readers(model: GraphModule, node: Node, number: Node) -> None:
    """Whoever still reads the truth value or index reads the number, made one of these again."""
    readers = [r for r in node.users if r is not number]
    if not readers:
        return
    again = call(model, number.next, aten.to.dtype, number, _value(node).dtype)
    for reader in readers:
        if overload_name(reader) in _CASTS and _is_float(reader):
            reader.replace_all_uses_with(number)
            model.graph.erase_node(reader)
        else:
            reader.replace_input_with(node, again)
    if not again.users:
        model.graph.erase_node(again)


def _chosen(model: GraphModule, reader: Node, mask: Node, number: Node, opposite: Callable[[], Node]) -> Node | None:
    """What a choice by the mask computes, or None where the reader is none."""
    name = overload_name(reader)
    if name not in (*CHOICES, *FILLS) or not _is_float(reader):
        return None
    given = arguments(reader)
    if name in CHOICES and given["condition"] is mask:
        yes, no = given["self"], given["other"]
    elif name in FILLS and given["mask"] is mask:
        yes, no = given["value"], given["self"]
    else:
        return None
    parts: list[tuple[Callable[[], Node], Any]] = []
    sides: tuple[tuple[Any, Callable[[], Node]], ...] = ((yes, lambda: number), (no, opposite))
    for value, factor in sides:
        constant = _constant(model, value)
        if constant is not None and not bool(torch.isfinite(constant).all()):
            return None
        if not _is_float(value) and constant is None:
            return None
        if constant is None or bool((constant != 0).any()):
            operand = value if _is_float(value) else float(constant)  # type: ignore[arg-type]
            parts.append((factor, operand))
    terms = [call(model, reader, aten.mul.Tensor, factor(), operand) for factor, operand in parts]
    shape = list(_value(reader).shape)
    if not terms:
        return None
    total = terms[0] if len(terms) == 1 else call(model, reader, aten.add.Tensor, *terms)
    return total if list(_value(total).shape) == shape else call(model, reader, aten.expand.default, total, shape)


def _constant(model: GraphModule, value: Any) -> torch.Tensor | None:
    """The value of a number or of a constant of the program."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return torch.tensor(float(value)) if not math.isnan(value) else torch.tensor(math.nan)
    if isinstance(value, Node) and value.op == "get_attr":
        found: Any = model
        for part in str(value.target).split("."):
            found = getattr(found, part)
        return found.detach() if isinstance(found, torch.Tensor) else None
    return None
