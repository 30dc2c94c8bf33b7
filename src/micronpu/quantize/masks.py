"""Exclude masked scores from the calibration of a softmax's operand.

A mask adds a number that means minus infinity.  A range that covered it would leave few LSBs for the unmasked scores. A
range that ends `MASKED_FLOOR` below the lowest of them is as good, since a score that saturates there has hardly any
weight, which is zero in the result of a softmax.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule, Node

from micronpu.frontend.constants import attribute
from micronpu.frontend.facts import QPARAMS
from micronpu.frontend.importer import NodeArguments, known_import
from micronpu.frontend.program import arguments, overload_name
from micronpu.ir.op import NewValues, QuantizationRule
from micronpu.ops.attention import HIDDEN, MASKED
from micronpu.ops.facts import Form
from micronpu.ops.softmax import SOFTMAX
from micronpu.quantize.observers import is_average, is_fixed, is_observer
from micronpu.quantize.readers import form_of
from micronpu.quantize.thresholds import MASKED_FLOOR, SCORE_REACH


def observe_what_counts(model: GraphModule, places: Mapping[Any, Any]) -> None:
    """Lift masked scores before they are observed, in place.

    Args:
        places: observer by node or by (operand, reader) edge, as in torchao's preparation.
    """
    lifted: set[nn.Module] = set()
    for node in model.graph.nodes:
        if overload_name(node) in SOFTMAX:
            scores = arguments(node)["self"]
        elif _distance_axis(node) is not None:
            scores = node.args[0]
            distances = places.get(node)
            if distances is not None and is_observer(distances) and distances not in lifted:
                distances.register_forward_pre_hook(_near_the_largest)
                lifted.add(distances)
        else:
            continue
        observer = places.get((scores, node), places.get(scores))
        if observer is None or is_fixed(observer) or observer in lifted:
            continue
        values = dict.fromkeys(p[0] if isinstance(p, tuple) else p for p, other in places.items() if other is observer)
        found = {value: _rows(value) for value in values}
        if not all(found.values()):
            continue
        rows = [(tuple(value.meta["val"].shape), axes) for value, axes in found.items()]
        may_hide = any(_hides(value) for value in values) and is_observer(observer)
        keeps = may_hide and not is_average(observer)
        observer.register_forward_pre_hook(functools.partial(_lifted, rows=rows, also_floor=keeps))
        lifted.add(observer)


def give_qparams_to_sums(model: GraphModule) -> None:
    """Give sums of masks the qparams of the masks, in place: their range is known before calibration."""
    for node in model.graph.nodes:
        if form_of(node) is not Form.SUM or len(node.all_input_nodes) != 2:
            continue
        if any(map(_is_mask, node.all_input_nodes)):
            others = [attribute(model, n) for n in node.all_input_nodes if not _is_mask(n)]
            if all(v is not None and bool(((v == 0) | (v <= MASKED)).all()) for v in others):
                QPARAMS.say(node, (node.name, HIDDEN))


def given_qparams_of(value: Node, *, moved: bool = True) -> QuantizationRule | None:
    """Return the rule with the qparams that were given to a value when it was written, see
    `micronpu.frontend.facts.QPARAMS`.

    Args:
        moved: it may have been moved since.
    """
    name, rule = QPARAMS.of(value)
    if name == value.name:
        return rule  # type: ignore[no-any-return]
    entry = known_import(value)
    if not moved or entry is None or not entry.moves_only or not value.all_input_nodes:
        return None
    if callable(entry.quantization) and entry.quantization(NodeArguments(value)).new_values is not NewValues.NONE:
        return None  # it has its own qparams
    rules = [given_qparams_of(operand) for operand in value.all_input_nodes]
    return rules[0] if all(rule == rules[0] for rule in rules) else None


def _is_mask(value: Node) -> bool:
    return given_qparams_of(value) == HIDDEN


def _lifted(
    observer: nn.Module,
    given: tuple[Any, ...],
    *,
    rows: Sequence[tuple[tuple[Any, ...], frozenset[int | None]]],
    also_floor: bool,
) -> tuple[Any, ...]:
    """Return scores, with masked ones lifted to `MASKED_FLOOR` below the lowest of the others.

    Masked are scores `SCORE_REACH` below the largest of their row, and rows that are completely masked.

    Args:
        rows: shapes of scores with the axes along which softmaxes read them; None for rows along none.
        also_floor: also observe the floor: later inputs may have masked keys even if these have none.
    """
    x, *others = given
    if not x.numel():
        return given
    data = x.detach()
    counts, number = torch.zeros_like(data, dtype=torch.bool), 0
    axes = {axis for shape, axes in rows for axis in axes if _is_of_shape(x, shape)}
    for axis in sorted(axes or {None}, key=str):
        if axis is None:
            top, near = data.amax(), data > MASKED / 2
        else:
            top = data.amax(axis, keepdim=True)
            near = (data >= top - SCORE_REACH) & (top > MASKED / 2)
        counts, number = counts | near, max(number, top.numel())
    shown = data[counts]
    if not shown.numel():
        return given
    floor = shown.min() - MASKED_FLOOR
    if also_floor:
        observer.forward(floor.expand(number))
    return x.clamp(min=float(floor)), *others


def _near_the_largest(observer: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
    """Clip distances to the largest of a row where the exponential is zero compared with one."""
    x, *others = given
    return x.clamp(min=-MASKED_FLOOR), *others


def _is_of_shape(x: torch.Tensor, shape: tuple[Any, ...]) -> bool:
    """Return True if a value has a shape, some of whose sizes may be known only at run time."""
    pairs = list(zip(x.shape, shape, strict=False))
    return x.dim() == len(shape) and all(own == size for own, size in pairs if isinstance(size, int))


def _rows(value: Node) -> frozenset[int | None]:
    """Return the axes along which softmaxes read a value, possibly moved; empty if it has other readers.

    None means rows along no axis: for concatenated or cut rows, more than one row decides which scores count.
    """
    known = value.meta.get("val")
    if not isinstance(known, torch.Tensor) or known.dim() == 0:
        return frozenset()
    found: set[int | None] = set()
    axes = [_distance_axis(user) for user in value.users]
    if form_of(value) is Form.ROW_MAXIMUM and any(axis is not None for axis in axes):
        return frozenset(axes) - {None}
    for user, axis in zip(value.users, axes, strict=True):
        entry = known_import(user)
        if overload_name(user) in SOFTMAX:
            found.add(int(arguments(user)["dim"]) % known.dim())
        elif axis is not None:
            found.add(axis)
        elif form_of(user) is Form.ROW_MAXIMUM and any(u.args[:1] == (value,) for u in _distances(user)):
            pass
        elif entry is not None and entry.moves_only and (behind := _rows(user)):
            found |= {None if axis is None else _axis_before(user, value, axis) for axis in behind}
        else:
            return frozenset()
    return frozenset(found)


def _distances(largest: Node) -> list[Node]:
    """Return the distances of values to the largest of their row."""
    return [user for user in largest.users if _distance_axis(user) is not None and user.args[1] is largest]


def _distance_axis(node: Node) -> int | None:
    """Return the axis of x - amax(x), if only its exponentials are read, as in a logsumexp, or None."""
    if form_of(node) is not Form.DIFFERENCE:
        return None
    x, largest = node.args
    if not isinstance(largest, Node) or form_of(largest) is not Form.ROW_MAXIMUM or largest.args[0] is not x:
        return None
    given, rank = arguments(largest), int(largest.meta["val"].dim())
    if not given["keepdim"] or len(given["dim"]) != 1 or {*map(form_of, node.users)} != {Form.EXPONENTIAL}:
        return None
    return int(given["dim"][0]) % rank


def _axis_before(move: Node, value: Node, axis: int) -> int | None:
    """Return the axis of a value that becomes a whole axis of the moved value, or None.

    The strides of a view show this: steps along both axes have the same stride.
    """
    others = [node for node in move.all_input_nodes if node is not value]
    if not callable(move.target) or not all(isinstance(node.meta.get("val"), (int, torch.SymInt)) for node in others):
        return None
    numbers = {node: _size(node.meta["val"]) for node in others}
    before = torch.empty([_size(n) for n in value.meta["val"].shape])  # not on meta: a move may name the device
    after = move.target(*torch.fx.map_arg(move.args, lambda n: numbers.get(n, before)), **move.kwargs)
    if not isinstance(after, torch.Tensor) or after.untyped_storage().data_ptr() != before.untyped_storage().data_ptr():
        return None
    size, stride = after.shape[axis], after.stride(axis)
    return next((a for a, n in enumerate(before.shape) if n == size > 1 and before.stride(a) == stride), None)


def _size(number: Any) -> int:
    """Return a size, or an example of one that is known only at run time."""
    return number if isinstance(number, int) else int(number.node.hint)


def _hides(value: Node) -> bool:
    """Return True if a mask that the program receives or computes is added to a value."""
    return any(node.op == "call_function" and _is_mask(node) for node in _addends(value))


def _addends(value: Node, depth: int = 16) -> Iterator[Node]:
    """Yield a value, and the addends of it through operators that only move it."""
    yield value
    entry = known_import(value)
    if depth and (form_of(value) is Form.SUM or (entry is not None and entry.moves_only)):
        for operand in value.all_input_nodes:
            yield from _addends(operand, depth - 1)
