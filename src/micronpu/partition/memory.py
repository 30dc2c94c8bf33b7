"""Memory planning of tensors between delegate calls: lifetimes, a placement, and a lower bound.

Placing is two-dimensional packing: a tensor is a rectangle of its lifetime and its size, and only its offset can be
chosen.  `place` tries a few orders with first fit and then moves the topmost tensors to the front of the order, until
the bound is met or a fixed number of tries is over.  The same tensors get the same offsets.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

TRIES = 400
"""Number of orders that are tried after the fixed ones."""


@dataclass(frozen=True)
class Lifetime:
    """A tensor that must be placed, and must not be overwritten from the first to the last step."""

    size: int  # bytes, a multiple of the alignment
    first: int
    last: int


@dataclass(frozen=True)
class Placement:
    """Offsets in bytes of the tensors, the total size, and the order in which they were placed."""

    offsets: tuple[int, ...]
    size: int
    order: Sequence[int]


def alive_bytes(tensors: Iterable[Lifetime]) -> dict[int, int]:
    """Return the live bytes at each step at which a tensor begins; the peak is among them."""
    tensors = list(tensors)
    changes: dict[int, int] = {}
    for t in tensors:
        changes[t.first] = changes.get(t.first, 0) + t.size
        changes[t.last + 1] = changes.get(t.last + 1, 0) - t.size
    found, alive, begins = {}, 0, {t.first for t in tensors}
    for step in sorted(changes):
        alive += changes[step]
        if step in begins:
            found[step] = alive
    return found


def lower_bound(tensors: Iterable[Lifetime]) -> int:
    """Return the largest sum of live bytes, a lower bound for placements."""
    return max(alive_bytes(tensors).values(), default=0)


def place(tensors: Sequence[Lifetime]) -> Placement:
    """Return offsets at which tensors with common lifetimes do not overlap."""
    neighbours = _neighbours(tensors)
    bound = lower_bound(tensors)
    best = latest = _best_fixed(tensors, neighbours, bound)
    dice = random.Random(0)
    for _ in range(TRIES):
        if best.size == bound:
            break
        # Move a topmost tensor before one of its neighbours: tensors that are placed late end up at the top.
        moved = other = dice.choice([i for i, t in enumerate(tensors) if latest.offsets[i] + t.size == latest.size])
        order = [i for i in latest.order if i != moved]
        order.insert(dice.randrange(latest.order.index(moved) + 1), moved)
        if neighbours[moved] and dice.random() < 0.5:
            other = dice.choice(neighbours[moved])
            order.remove(other)
            order.insert(dice.randrange(len(tensors)), other)
        latest = _first_fit(tensors, neighbours, order, latest, {moved, other})
        best = min(best, latest, key=lambda placement: placement.size)
    return best


def _neighbours(tensors: Sequence[Lifetime]) -> list[list[int]]:
    """Return the tensors that are alive together with each tensor, in order."""
    first, last = np.array([t.first for t in tensors], np.int64), np.array([t.last for t in tensors], np.int64)
    found = []
    for i, t in enumerate(tensors):
        alive = (first <= t.last) & (t.first <= last)
        alive[i] = False
        found.append(np.flatnonzero(alive).tolist())
    return found


def _best_fixed(tensors: Sequence[Lifetime], neighbours: Sequence[Sequence[int]], bound: int) -> Placement:
    def length(i: int) -> int:
        return tensors[i].last - tensors[i].first + 1

    keys = (
        lambda i: (-tensors[i].size, tensors[i].first),
        lambda i: (-tensors[i].size * length(i), tensors[i].first),
        lambda i: (-length(i), -tensors[i].size),
        lambda i: (tensors[i].first, -tensors[i].size),
        lambda i: (-sum(tensors[j].size for j in neighbours[i]) - tensors[i].size, tensors[i].first),
    )
    indices = range(len(tensors))
    best = Placement((0,) * len(tensors), sum(t.size for t in tensors) + 1, indices)
    for key in keys:
        placement = _first_fit(tensors, neighbours, sorted(indices, key=key), best, indices)
        best = min(best, placement, key=lambda placement: placement.size)
        if best.size == bound:
            break
    return best


def _first_fit(
    tensors: Sequence[Lifetime],
    neighbours: Sequence[Sequence[int]],
    order: Sequence[int],
    earlier: Placement,
    moved: Iterable[int],
) -> Placement:
    """Place each tensor in turn at the lowest offset that is free during its lifetime.

    The order of the placement `earlier` differs in the tensors `moved` only.  Other tensors keep their offsets as long
    as no neighbour leaves or takes bytes below their ends.  Return `earlier` if it is smaller.
    """

    def reached(i: int, offset: int) -> Iterable[int]:
        return (j for j in neighbours[i] if earlier.offsets[j] + tensors[j].size > offset)

    affected = {*moved, *(j for i in moved for j in reached(i, earlier.offsets[i]))}
    offsets = [-1] * len(tensors)
    for i in order:
        if i not in affected:
            offsets[i] = earlier.offsets[i]
            continue
        size, offset = tensors[i].size, 0
        for start, end in sorted((offsets[j], offsets[j] + tensors[j].size) for j in neighbours[i] if offsets[j] >= 0):
            if start - offset >= size:
                break
            offset = max(offset, end)
        if offset + size > earlier.size:
            return earlier
        if offset != earlier.offsets[i]:
            affected.update(reached(i, min(offset, earlier.offsets[i])))
        offsets[i] = offset
    size = max((offset + t.size for offset, t in zip(offsets, tensors, strict=True)), default=0)
    return Placement(tuple(offsets), size, order)
