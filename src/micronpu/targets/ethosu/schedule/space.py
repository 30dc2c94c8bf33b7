"""Which bytes of the scratch memory are free, and when."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np

from micronpu.targets.ethosu.schedule.ranges import Ranges

GRAIN = 16
"""Bytes that are free together at the least: what transfers and weights are aligned to."""
_MOST_GRAINS = 8192
"""Where there would be more, a grain has more bytes: places need not be found to the byte in a large memory."""

Flags = np.ndarray[Any, np.dtype[np.bool_]]


class Space:
    """The scratch memory over time, which is counted in operations.

    A byte is taken from the operation that writes it, or from the beginning where it is an input, to the last that
    reads it, or to the end where it is an output.

    Args:
        reads, writes: of each operation, in order.
        outputs: bytes that are read after the last.
        region: the region that is looked at.
        size: bytes of it in use.
        limit: bytes of it that may be used.
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
        """The same with fewer bytes that may be used, and nothing taken by itself."""
        made = copy.copy(self)
        made._taken = self._taken.copy()
        made._taken[:, max(limit, self._least) // self._grain :] = True
        return made

    def find(self, size: int, first: int, last: int) -> int | None:
        """Where so many bytes are free from one operation to another; None where nowhere.

        The smallest gap that is large enough: the larger ones are for others.
        """
        taken = self._taken[max(first, 0) : last + 1].any(axis=0)
        edges = np.flatnonzero(np.diff(np.concatenate(([True], taken, [True])).astype(np.int8)))
        begins, ends = edges[::2], edges[1::2]
        lengths = ends - begins
        fitting = np.flatnonzero(lengths >= -(-size // self._grain))
        if not fitting.size:
            return None
        # Memory that is in use anyhow before memory that is not.
        inside = fitting[ends[fitting] * self._grain <= self._least]
        chosen = inside if inside.size else fitting
        return int(begins[chosen[np.argmin(lengths[chosen])]]) * self._grain

    def earliest(self, size: int, begin: int, first: int, last: int) -> int | None:
        """The first operation from `begin` to `first` from which on so many bytes are free up to `last`; None: none."""
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
        """Gives back what was taken."""
        begin, end = address // self._grain, -(-(address + size) // self._grain)
        self._taken[max(first, 0) : last + 1, begin:end] = False

    def take(self, address: int, size: int, first: int, last: int) -> None:
        """Takes bytes from one operation to another."""
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
