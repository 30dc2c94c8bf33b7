"""Bytes of several regions as sorted ranges, and free bytes of the scratch memory over time."""

from __future__ import annotations

import copy
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Span = tuple[int, int]
_REGION_BIT = 48
"""Position of the region in an integer with an address, which has 40 bits."""


class Ranges:
    """A set of bytes, from regions with a first byte and the one after the last, in any order."""

    def __init__(self, spans: Iterable[tuple[int, int, int]] = ()) -> None:
        by_region: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
        for region, begin, end in spans:
            if begin < end:
                by_region[region].append((begin, end))
        self._spans: dict[int, list[Span]] = {}
        self._begins: dict[int, list[int]] = {}
        for region, found in by_region.items():
            merged: list[Span] = []
            for begin, end in sorted(found):
                if merged and begin <= merged[-1][1]:
                    merged[-1] = merged[-1][0], max(merged[-1][1], end)
                else:
                    merged.append((begin, end))
            self._spans[region] = merged

    @classmethod
    def of_rows(cls, rows: npt.NDArray[np.int64]) -> Ranges:
        """Create from rows [ranges, 3] of region, first byte and number of bytes, in any order."""
        made = cls()
        begins = rows[:, 0] << _REGION_BIT | rows[:, 1]
        order = np.argsort(begins, kind="stable")
        begins, lengths = begins[order], rows[order, 2]
        begins, lengths = begins[lengths > 0], lengths[lengths > 0]
        if not len(begins):
            return made
        ends = np.maximum.accumulate(begins + lengths)
        apart = np.flatnonzero(begins[1:] > ends[:-1])
        first, last = begins[np.concatenate(([0], apart + 1))], ends[np.concatenate((apart, [len(ends) - 1]))]
        inside = (1 << _REGION_BIT) - 1
        for region, begin, end in zip(
            (first >> _REGION_BIT).tolist(), (first & inside).tolist(), (last & inside).tolist(), strict=True
        ):
            made._spans.setdefault(region, []).append((begin, end))
        return made

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        return ((region, begin, end) for region, spans in self._spans.items() for begin, end in spans)

    def __bool__(self) -> bool:
        return bool(self._spans)

    def __or__(self, other: Ranges) -> Ranges:
        return Ranges([*self, *other])

    def __sub__(self, other: Ranges) -> Ranges:
        left = []
        for region, begin, end in self:
            for first, last in other.of(region):
                if last <= begin or first >= end:
                    continue
                if first > begin:
                    left.append((region, begin, first))
                begin = max(begin, last)
                if begin >= end:
                    break
            left.append((region, begin, end))
        return Ranges(left)

    def of(self, region: int) -> list[Span]:
        """The ranges of a region, sorted and not adjacent."""
        return self._spans.get(region, [])

    def meets(self, other: Ranges) -> bool:
        """True if both have a byte in common."""
        for region, a in self._spans.items():
            b = other._spans.get(region)
            # Most pairs are disjoint as a whole, and there are ten thousands of queries.
            if b and a[0][0] < b[-1][1] and b[0][0] < a[-1][1] and self._meets(other, region):
                return True
        return False

    def _meets(self, other: Ranges, region: int) -> bool:
        a, b = self.of(region), other.of(region)
        few, many, begins = (a, b, other._begins_of(region)) if len(a) < len(b) else (b, a, self._begins_of(region))
        for begin, end in few:
            at = bisect_right(begins, begin)
            if (at and many[at - 1][1] > begin) or (at < len(many) and begins[at] < end):
                return True
        return False

    def _begins_of(self, region: int) -> list[int]:
        if region not in self._begins:
            self._begins[region] = [begin for begin, _ in self._spans[region]]
        return self._begins[region]


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
