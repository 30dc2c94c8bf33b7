"""Free bytes of the scratch memory over time."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np

from micronpu.targets.ethosu.schedule.ranges import Ranges

GRAIN = 16
"""Granularity in bytes: the alignment of transfers and weights."""
_MOST_GRAINS = 8192
"""Maximum number of grains; a large memory has larger grains, since addresses need not be exact there."""

Flags = np.ndarray[Any, np.dtype[np.bool_]]


class Space:
    """The scratch memory over time, in units of operations.

    A byte is occupied from the operation that writes it, or from the beginning for an input, to the last operation that
    reads it, or to the end for an output.

    Args:
        reads, writes: of each operation, in order.
        outputs: bytes that are read after the last one.
        region: the region of the scratch memory.
        size: its bytes in use.
        limit: maximum bytes that may be used.
    """

    def __init__(
        self, reads: Sequence[Ranges], writes: Sequence[Ranges], outputs: Ranges, region: int, size: int, limit: int
    ) -> None:
        grain = GRAIN
        while limit > _MOST_GRAINS * grain:
            grain *= 2
        self._grain = grain
        count, used = limit // grain, -(-size // grain)
        self._taken = np.zeros((len(reads), max(count, used)), np.bool_)
        self._taken[:, count:] = True
        alive = np.zeros(used * grain, np.bool_)
        _mark(alive, outputs.of(region), True)
        for time in range(len(reads) - 1, -1, -1):
            written, read = writes[time].of(region), reads[time].of(region)
            row = _grains(alive, grain) | _grains_of(written, used, grain) | _grains_of(read, used, grain)
            self._taken[time, :used] |= row
            _mark(alive, written, False)
            _mark(alive, read, True)
        self._least = used * grain

    def within(self, limit: int) -> Space:
        """Copy with a smaller limit, for independent allocation."""
        made = copy.copy(self)
        made._taken = self._taken.copy()
        made._taken[:, max(limit, self._least) // self._grain :] = True
        return made

    def find(self, size: int, first: int, last: int) -> int | None:
        """Return an address where ``size`` bytes are free between two operations; None if there is none.

        Best fit: the smallest gap that is large enough, to keep larger ones for others.
        """
        taken = self._taken[max(first, 0) : last + 1].any(axis=0)
        edges = np.flatnonzero(np.diff(np.concatenate(([True], taken, [True])).astype(np.int8)))
        begins, ends = edges[::2], edges[1::2]
        lengths = ends - begins
        fitting = np.flatnonzero(lengths >= -(-size // self._grain))
        if not fitting.size:
            return None
        # Prefer memory that is in use anyway.
        inside = fitting[ends[fitting] * self._grain <= self._least]
        chosen = inside if inside.size else fitting
        return int(begins[chosen[np.argmin(lengths[chosen])]]) * self._grain

    def earliest(self, size: int, begin: int, first: int, last: int) -> int | None:
        """The first operation from `begin` to `first` after which ``size`` bytes are free until `last`; else None."""
        if self.find(size, first, last) is None:
            return None
        low, high = max(begin, 0), first
        while low < high:
            middle = (low + high) // 2
            if self.find(size, middle, last) is None:
                low = middle + 1
            else:
                high = middle
        return low

    def give(self, address: int, size: int, first: int, last: int) -> None:
        """Release bytes."""
        begin, end = address // self._grain, -(-(address + size) // self._grain)
        self._taken[max(first, 0) : last + 1, begin:end] = False

    def take(self, address: int, size: int, first: int, last: int) -> None:
        """Occupy bytes from one operation to another."""
        begin, end = address // self._grain, -(-(address + size) // self._grain)
        self._taken[max(first, 0) : last + 1, begin:end] = True


def _mark(flags: Flags, spans: Sequence[tuple[int, int]], value: bool) -> None:
    for begin, end in spans:
        flags[begin:end] = value


def _grains(flags: Flags, grain: int) -> Flags:
    found: Flags = flags.reshape(-1, grain).any(axis=1)
    return found


def _grains_of(spans: Sequence[tuple[int, int]], count: int, grain: int) -> Flags:
    found = np.zeros(count, np.bool_)
    for begin, end in spans:
        found[begin // grain : -(-end // grain)] = True
    return found
