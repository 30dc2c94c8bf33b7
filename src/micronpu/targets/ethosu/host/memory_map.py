"""Memory over time: live bytes of a scratch region, operation by operation.

A byte is live from the operation that writes it, or from the beginning for an input, to the last operation that reads
it, or to the end for an output. A value that is never read is live only during the operation that writes it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from micronpu.targets.ethosu.host.simulator import Bytes

GRAIN = 16
"""Granularity in bytes: Vela's alignment of tensors."""
READ, WRITTEN, BOTH, ALIVE, FREE = "r", "w", "x", "#", "."
"""State of a column in a picture: some byte of it is read, is written, both, or is live; or none is."""


@dataclass(frozen=True)
class Use:
    """Bytes that an operation reads and writes."""

    reads: tuple[Bytes, ...]
    writes: tuple[Bytes, ...]


@dataclass(frozen=True)
class MemoryMap:
    """One region over time.

    Attributes:
        region: its number in the stream.
        size: bytes up to the last used one.
        live: live bytes during each operation, in multiples of 16.
        picture: a row per operation; each column covers an equal part of the size. "r": read, "w": written, "x": both,
            "#": live, ".": free.
    """

    region: int
    size: int
    live: tuple[int, ...]
    picture: tuple[str, ...]

    @property
    def peak(self) -> int:
        """Maximum number of live bytes."""
        return max(self.live, default=0)

    @property
    def busiest(self) -> int:
        """Index of the first operation with that many live bytes."""
        return self.live.index(self.peak) if self.live else 0


def sources(uses: Sequence[Use], inputs: Sequence[Bytes], outputs: Sequence[Bytes]) -> list[tuple[int, ...]]:
    """Producers of the data that each operation, and then each output, reads: operation numbers, and -1 - i for input
    i.

    Args:
        uses: of the operations in order.
        inputs, outputs: location of the stream's inputs and outputs.
    """
    owned: defaultdict[int, _Owners] = defaultdict(_Owners)

    def read(ranges: Iterable[Bytes]) -> tuple[int, ...]:
        return tuple(sorted({owner for b in ranges for owner in owned[b.region].of(b.address, b.address + b.size)}))

    for number, own in enumerate(inputs):
        owned[own.region].put(own.address, own.address + own.size, -1 - number)
    found = []
    for number, use in enumerate(uses):
        found.append(read(use.reads))
        for b in use.writes:
            owned[b.region].put(b.address, b.address + b.size, number)
    return [*found, *(read((own,)) for own in outputs)]


class _Owners:
    """The last writer of each byte of a region: sorted ranges that do not touch, or have different writers.

    An operation writes a tensor row by row, in thousands of ranges; merging adjacent ones keeps their number small.
    """

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._owners: list[int] = []

    def put(self, start: int, end: int, owner: int) -> None:
        """Assign the bytes [start, end) to a writer."""
        if start >= end:
            return
        # All ranges that overlap or touch the new one.
        first, behind = bisect_left(self._ends, start), bisect_right(self._starts, end)
        before: list[tuple[int, int, int]] = []
        after: list[tuple[int, int, int]] = []
        for a, b, o in zip(*(x[first:behind] for x in (self._starts, self._ends, self._owners)), strict=True):
            if o == owner:
                start, end = min(a, start), max(b, end)
                continue
            if a < start:
                before = [(a, min(b, start), o)]
            if b > end:
                after = [(max(a, end), b, o)]
        parts = [*before, (start, end, owner), *after]
        for index, values in enumerate((self._starts, self._ends, self._owners)):
            values[first:behind] = [part[index] for part in parts]

    def of(self, start: int, end: int) -> list[int]:
        """The writers of the bytes [start, end)."""
        return self._owners[bisect_right(self._ends, start) : bisect_left(self._starts, end)] if start < end else []


def memory_map(uses: Sequence[Use], region: int, outputs: Sequence[Bytes], columns: int = 64) -> MemoryMap:
    """Return the map of a region.

    Args:
        uses: of every operation in order.
        outputs: bytes that are read after the last operation.
        columns: of the picture.
    """
    spans = [*outputs, *(b for use in uses for b in (*use.reads, *use.writes))]
    size = max((b.address + b.size for b in spans if b.region == region), default=0)
    grains = -(-size // GRAIN)
    alive = _grains(outputs, region, grains)
    live, picture = [], []
    for use in reversed(uses):
        reads, writes = (_grains(ranges, region, grains) for ranges in (use.reads, use.writes))
        before = (alive & ~writes) | reads
        during = before | writes | alive
        live.append(int(np.count_nonzero(during)) * GRAIN)
        picture.append(_row(during, reads, writes, columns))
        alive = before
    return MemoryMap(region, size, tuple(reversed(live)), tuple(reversed(picture)))


def _grains(ranges: Sequence[Bytes], region: int, count: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
    found = np.zeros(count, np.bool_)
    for b in ranges:
        if b.region == region:
            found[b.address // GRAIN : -(-(b.address + b.size) // GRAIN)] = True
    return found


def _row(during: np.ndarray[Any, Any], reads: np.ndarray[Any, Any], writes: np.ndarray[Any, Any], columns: int) -> str:
    if not during.size:
        return ""
    starts = np.arange(min(columns, during.size)) * during.size // min(columns, during.size)
    d, r, w = (np.logical_or.reduceat(a, starts) for a in (during, reads, writes))
    return "".join(np.where(r & w, BOTH, np.where(w, WRITTEN, np.where(r, READ, np.where(d, ALIVE, FREE)))))
