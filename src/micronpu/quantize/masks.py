"""What calibration sees of the scores that a softmax reads: nothing so far below them that it only says "hidden".

A mask adds a number that stands for minus infinity.  A grid that reached down to it would have few steps left for the
scores that count; one that ends `FLOOR` below the lowest of them is as good, since what saturates there weighs at most
exp(-16) = 1.1e-7 times as much as any other, which is zero on the grids of a softmax.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule, Node

from micronpu.frontend.importer import known_import
from micronpu.frontend.program import arguments, overload_name
from micronpu.ir.op import Quantization
from micronpu.ops.attention import HIDDEN, MASKED
from micronpu.ops.softmax import SOFTMAX
from micronpu.quantize.attributes import attribute
from micronpu.quantize.observers import is_fixed, is_observer
from micronpu.quantize.specs import GRID

FLOOR = 16.0
"""How far below the lowest score that counts those lie that a mask hides."""
_FAR = 32.0
"""How far below the largest of its row a score counts; what lies lower weighs 1.3e-14 times as much, or less."""


def observe_what_counts(model: GraphModule, places: Mapping[Any, Any]) -> None:
    """Lifts scores that a mask hides before they are observed, in place.

    Args:
        places: observer by node or by (operand, reader) edge, as torchao has them while it prepares.
    """
    for node in model.graph.nodes:
        if overload_name(node) not in SOFTMAX:
            continue
        scores = arguments(node)["self"]
        observer = places.get((scores, node), places.get(scores))
        if observer is None or is_fixed(observer) or observer._forward_pre_hooks or not _is_last(node, scores):
            continue
        values = {p[0] if isinstance(p, tuple) else p for p, other in places.items() if other is observer}
        if all(_is_for_softmax(value, _row(scores)) for value in values):
            may_hide = any(_hides(value) for value in values) and is_observer(observer)
            keeps = may_hide and "MovingAverage" not in type(observer).__name__
            observer.register_forward_pre_hook(functools.partial(_lifted, also_floor=keeps))


def give_grids_to_sums(model: GraphModule) -> None:
    """Gives sums of masks the grid that the masks have, in place: their range is known, whatever calibration sees."""
    for node in model.graph.nodes:
        if overload_name(node) != "add.Tensor" or len(node.all_input_nodes) != 2:
            continue
        if any(map(_is_mask, node.all_input_nodes)):
            others = [attribute(model, n) for n in node.all_input_nodes if not _is_mask(n)]
            if all(v is not None and bool(((v == 0) | (v <= MASKED)).all()) for v in others):
                node.meta[GRID] = (node.name, HIDDEN)


def given_grid_of(value: Node, *, moved: bool = True) -> Quantization | None:
    """The annotation rule with the grid that a value was given when it was written, see `micronpu.quantize.specs.GRID`.

    Args:
        moved: it may have been moved since.
    """
    name, rule = value.meta.get(GRID, ("", None))
    if name == value.name:
        return rule  # type: ignore[no-any-return]
    entry = known_import(value)
    if not moved or entry is None or not entry.moves_only or len(value.all_input_nodes) != 1:
        return None
    return given_grid_of(value.all_input_nodes[0])


def _is_mask(value: Node) -> bool:
    return given_grid_of(value) == HIDDEN


def _lifted(observer: nn.Module, given: tuple[Any, ...], *, also_floor: bool) -> tuple[Any, ...]:
    """Scores [.., row], of which those that are hidden are `FLOOR` below the lowest of the others.

    Hidden is what lies `_FAR` below the largest of its row, and a row of which all is.

    Args:
        also_floor: the floor is observed, too: that no key was hidden says nothing about the next inputs.
    """
    x, *others = given
    if not x.numel():
        return given
    top = x.detach().amax(-1, keepdim=True)
    shown = x.detach()[(x >= top - _FAR) & (top > MASKED / 2)]
    if not shown.numel():
        return given
    floor = shown.min() - FLOOR
    if also_floor:
        observer.forward(floor.expand(top.numel()))
    return x.clamp(min=float(floor)), *others


def _row(x: Node) -> int:
    return int(x.meta["val"].shape[-1])


def _is_last(softmax: Node, scores: Node) -> bool:
    """Whether a softmax goes along the last axis."""
    rank = len(scores.meta["val"].shape)
    return bool(rank) and int(arguments(softmax)["dim"]) % rank == rank - 1


def _is_for_softmax(value: Node, row: int) -> bool:
    """Whether nothing but softmaxes along the same rows read a value, be it moved before."""
    if not isinstance(value.meta.get("val"), torch.Tensor) or value.meta["val"].dim() == 0 or _row(value) != row:
        return False
    for user in value.users:
        entry = known_import(user)
        if overload_name(user) in SOFTMAX:
            if not _is_last(user, value):
                return False
        elif entry is None or not entry.moves_only or not _is_for_softmax(user, row):
            return False
    return True


def _hides(value: Node) -> bool:
    """Whether a mask that the program is given or computes is added to a value."""
    return any(node.op == "call_function" and _is_mask(node) for node in _addends(value))


def _addends(value: Node, depth: int = 16) -> Iterator[Node]:
    """A value, and what it is the sum of, as far as it was only moved since."""
    yield value
    entry = known_import(value)
    if depth and (overload_name(value) == "add.Tensor" or (entry is not None and entry.moves_only)):
        for operand in value.all_input_nodes:
            yield from _addends(operand, depth - 1)
