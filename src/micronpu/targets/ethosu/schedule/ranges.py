"""Bytes of several regions as ranges in order."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator


class Ranges:
    """A set of bytes.

    Args:
        spans: region, first byte and the one behind the last, in any order.
    """

    def __init__(self, spans: Iterable[tuple[int, int, int]] = ()) -> None:
        by_region: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
        for region, begin, end in spans:
            if begin < end:
                by_region[region].append((begin, end))
        self._spans: dict[int, list[tuple[int, int]]] = {}
        for region, found in by_region.items():
            merged: list[tuple[int, int]] = []
            for begin, end in sorted(found):
                if merged and begin <= merged[-1][1]:
                    merged[-1] = merged[-1][0], max(merged[-1][1], end)
                else:
                    merged.append((begin, end))
            self._spans[region] = merged

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

    def of(self, region: int) -> list[tuple[int, int]]:
        """Those of a region, in order, none touching another."""
        return self._spans.get(region, [])

    def meets(self, other: Ranges) -> bool:
        """Whether a byte is in both."""
        return any(_meet(spans, other.of(region)) for region, spans in self._spans.items())


def _meet(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> bool:
    if not a or not b or a[0][0] >= b[-1][1] or b[0][0] >= a[-1][1]:
        return False
    few, many = (a, b) if len(a) < len(b) else (b, a)
    begins = [begin for begin, _ in many]
    for begin, end in few:
        at = bisect_right(begins, begin)
        if (at and many[at - 1][1] > begin) or (at < len(many) and begins[at] < end):
            return True
    return False
