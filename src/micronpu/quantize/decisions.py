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
from micronpu.ops.comparisons import CHOICES, FILLS, LOGIC, OPPOSITES, STEEPNESS
from micronpu.ops.indices import MOST_POSITIONS
from micronpu.quantize.switches import switchable
from micronpu.quantize.transforms import add_constant

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
    Where no table says which of two is larger, their difference does, which is made steep and cut at 0 and 1: numbers
    that differ by less than 1 / `STEEPNESS` are neither.
    """
    changed = False
    for node in list(model.graph.nodes):
        name = overload_name(node)
        if name in _COMPARISONS and _compares_floats(node):
            if capabilities.computes(name):
                _make_number(model, node)
            elif not _make_ramp(model, node):
                continue
            changed = True
        elif name in _LOGIC and (numbers := _truths(model, node)) is not None:
            _decide(model, node, _LOGIC[name](model, node, numbers))
            changed = True
        elif name in (*CHOICES, *FILLS) and _by_known_mask(model, node):
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


def _make_ramp(model: GraphModule, node: Node) -> bool:
    """Where somebody chooses or computes by a comparison: x > z -> clamp(steep * (x - z), 0, 1)"""
    if not any(overload_name(r) in (*CHOICES, *FILLS, *_CASTS, *_LOGIC) for r in node.users):
        return False
    given, name = arguments(node), overload_name(node).split(".")[0]
    x, z = given["self"], given["other"]

    def above(strictly: bool) -> Node:
        """x > z, or z > x the other way round."""
        apart = call(model, node, aten.sub.Tensor, x, z)
        steep = call(model, node, aten.mul.Tensor, apart, STEEPNESS if strictly else -STEEPNESS)
        return call(model, node, aten.clamp.default, steep, 0.0, 1.0)

    if name in ("gt", "lt"):
        number = above(name == "gt")
    elif name in ("ge", "le"):
        number = _opposite(model, node, above(name == "le"))
    else:
        number = call(model, node, aten.add.Tensor, above(True), above(False))
        number = number if name == "ne" else _opposite(model, node, number)
    _decide(model, node, number)
    return True


def _opposite(model: GraphModule, before: Node, number: Node) -> Node:
    return call(model, before, aten.rsub.Scalar, number, 1.0)


def _decide(model: GraphModule, node: Node, number: Node) -> None:
    """Lets everybody who reads a truth value read the number."""
    opposites: list[Node] = []

    def opposite() -> Node:
        if not opposites:
            opposites.append(_opposite(model, number.next, number))
        return opposites[0]

    for reader in list(node.users):
        new = _chosen(model, reader, node, number, opposite)
        if new is not None:
            reader.replace_all_uses_with(new)
            model.graph.erase_node(reader)
    _cast_readers(model, node, number)
    if not node.users:
        model.graph.erase_node(node)


def _truths(model: GraphModule, node: Node) -> list[Node] | None:
    """The numbers of the truth values that an operator reads, or None where one of them has none."""
    found = []
    for source in node.all_input_nodes:
        number = source.args[0] if overload_name(source) in _CASTS and source.args else None
        if _value(source) is None or _value(source).dtype is not torch.bool or not _is_float(number):
            return None
        found.append(number)
    return found or None  # type: ignore[return-value]


def _and(model: GraphModule, node: Node, numbers: list[Node]) -> Node:
    return call(model, node, aten.mul.Tensor, numbers[0], numbers[-1])


def _or(model: GraphModule, node: Node, numbers: list[Node]) -> Node:
    return call(model, node, aten.maximum.default, numbers[0], numbers[-1])


def _xor(model: GraphModule, node: Node, numbers: list[Node]) -> Node:
    return call(model, node, aten.abs.default, call(model, node, aten.sub.Tensor, numbers[0], numbers[-1]))


def _not(model: GraphModule, node: Node, numbers: list[Node]) -> Node:
    return _opposite(model, node, numbers[0])


def _reduced(model: GraphModule, node: Node, numbers: list[Node]) -> Node:
    given = arguments(node)
    name = overload_name(node).split(".")[0]
    target = {"any": aten.amax.default, "all": aten.amin.default, "sum": aten.sum.dim_IntList}[name]
    axes = given.get("dim")
    axes = list(range(_value(numbers[0]).dim())) if axes is None else axes
    axes = list(axes) if isinstance(axes, (list, tuple)) else [axes]
    return call(model, node, target, numbers[0], axes, bool(given.get("keepdim")))


_LOGIC: dict[str, Callable[[GraphModule, Node, list[Node]], Node]] = {
    **{
        name: {"and": _and, "or": _or, "xor": _xor, "not": _not, "any": _reduced, "all": _reduced}[kind]
        for name, kind in LOGIC.items()
    },
    **{name: _reduced for name in ("sum.default", "sum.dim_IntList")},
}


def _by_known_mask(model: GraphModule, node: Node) -> bool:
    """where(mask, a, b) -> a * mask + b * ~mask, for a constant mask."""
    given, name = arguments(node), overload_name(node)
    mask = given["condition"] if name in CHOICES else given["mask"]
    known = _constant(model, mask)
    if known is None or not _is_float(node):
        return False
    yes, no = (given["self"], given["other"]) if name in CHOICES else (given["value"], given["self"])
    terms: list[Node] = []
    for value, factor in ((yes, known.bool()), (no, ~known.bool())):
        constant = _constant(model, value)
        if constant is not None and not bool((constant.abs() < _LARGEST_FILL).all()):
            return False
        if constant is None and not _is_float(value):
            return False
        if constant is None:
            kept = add_constant(model, node, factor.float(), "mask")
            terms.append(call(model, node, aten.mul.Tensor, value, kept))
        elif bool((constant != 0).any()) and bool(factor.any()):
            terms.append(add_constant(model, node, torch.where(factor, constant.float(), 0.0), "filled"))
    if all(term.op == "get_attr" for term in terms):
        return False
    total = terms[0] if len(terms) == 1 else call(model, node, aten.add.Tensor, *terms)
    shape = list(_value(node).shape)
    if list(_value(total).shape) != shape:
        total = call(model, node, aten.expand.default, total, shape)
    node.replace_all_uses_with(total)
    model.graph.erase_node(node)
    return True


_LARGEST_FILL = 1e3
"""Larger ones stand for minus infinity in front of a softmax, see `micronpu.ops.attention`."""


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
