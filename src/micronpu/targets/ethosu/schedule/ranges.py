"""Bytes of several regions as sorted ranges."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

Span = tuple[int, int]
_REGION_BIT = 48
"""Position of the region in an integer with an address, which has 40 bits."""


class Ranges:
    """A set of bytes.

    Args:
        spans: region, first byte and the one after the last, in any order.
    """

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
