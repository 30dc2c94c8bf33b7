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
    """A tensor that must be placed.

    Attributes:
        size: bytes, a multiple of the alignment.
        first, last: steps between which it must not be overwritten, both included.
    """

    size: int
    first: int
    last: int

    def meets(self, other: Lifetime) -> bool:
        """Return True if both are alive at some step."""
        return self.first <= other.last and other.first <= self.last


@dataclass(frozen=True)
class Placement:
    """Offsets in bytes, in the order of the tensors, and the total size."""

    offsets: tuple[int, ...]
    size: int


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
    count = len(tensors)
    neighbours = _neighbours(tensors)
    bound = lower_bound(tensors)

    def fit(order: Sequence[int]) -> Placement:
        return _first_fit(tensors, neighbours, order)

    best, order = _best_fixed(tensors, neighbours, bound)
    if best.size == bound:
        return best
    dice = random.Random(0)
    current, size = order, best
    for _ in range(TRIES):
        # Move a topmost tensor before one of its neighbours: tensors that are placed late end up at the top.
        top = [i for i in range(count) if size.offsets[i] + tensors[i].size == size.size]
        moved = dice.choice(top)
        candidate = [i for i in current if i != moved]
        candidate.insert(dice.randrange(current.index(moved) + 1), moved)
        if neighbours[moved] and dice.random() < 0.5:
            other = dice.choice(neighbours[moved])
            candidate.remove(other)
            candidate.insert(dice.randrange(count), other)
        found = fit(candidate)
        if found.size <= size.size:
            current, size = candidate, found
        if found.size < best.size:
            best = found
        if best.size == bound:
            break
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


def _best_fixed(
    tensors: Sequence[Lifetime], neighbours: Sequence[Sequence[int]], bound: int
) -> tuple[Placement, list[int]]:
    """Return the best placement of a few fixed orders, and its order."""

    def length(i: int) -> int:
        return tensors[i].last - tensors[i].first + 1

    keys = (
        lambda i: (-tensors[i].size, tensors[i].first),
        lambda i: (-tensors[i].size * length(i), tensors[i].first),
        lambda i: (-length(i), -tensors[i].size),
        lambda i: (tensors[i].first, -tensors[i].size),
        lambda i: (-sum(tensors[j].size for j in neighbours[i]) - tensors[i].size, tensors[i].first),
    )
    order: list[int] = []
    best: Placement | None = None
    for key in keys:
        candidate = sorted(range(len(tensors)), key=key)
        found = _first_fit(tensors, neighbours, candidate)
        if best is None or found.size < best.size:
            best, order = found, candidate
        if best.size == bound:
            break
    assert best is not None
    return best, order


def _first_fit(tensors: Sequence[Lifetime], neighbours: Sequence[Sequence[int]], order: Sequence[int]) -> Placement:
    """Place each tensor in turn at the lowest offset that is free during its lifetime."""
    offsets = [-1] * len(tensors)
    top = 0
    for i in order:
        taken = sorted((offsets[j], offsets[j] + tensors[j].size) for j in neighbours[i] if offsets[j] >= 0)
        offset = 0
        for start, end in taken:
            if start - offset >= tensors[i].size:
                break
            offset = max(offset, end)
        offsets[i] = offset
        top = max(top, offset + tensors[i].size)
    return Placement(tuple(offsets), top)
