"""Ranges and qparams of values: pure functions of what calibration collects, and of facts about the values.

A range of n samples ends at their extremes, and other samples exceed it.  So it gets a margin where an end is the
extreme of a sample, and no bound.  Of k calls whose extremes exceed a threshold by s on average, as in the tail of a
Laplace distribution, a part of exp(-d / s) reaches d beyond it, and is clipped there by 2 s^2 in the mean square.  The
calls have N values, of which each is rounded by R^2 / (12 steps^2) in a range R:

    exp(-d / s) = N R / (12 k steps^2 s)    where clipping and rounding together cost least

Qparams depend on exact values and on IEEE 754 operations that every machine rounds alike.

Source: Pickands, Statistical inference using extreme order statistics, Annals of Statistics 3 (1975).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from micronpu.quantize import thresholds as at

Floats: TypeAlias = NDArray[np.float32]
Ends: TypeAlias = tuple[float, float]
UNLIMITED: Ends = (-math.inf, math.inf)


@dataclass(frozen=True)
class Thresholds:
    """Thresholds of a value's readers, which must be halfway between two quantized values.

    Attributes:
        rows: (first, distance) of an infinite sequence of numbers; the distance of a single number is 0.
    """

    rows: frozenset[tuple[float, float]] = frozenset()

    def __repr__(self) -> str:
        return f"Thresholds({sorted(self.rows)})"

    def __or__(self, other: Thresholds) -> Thresholds:
        return Thresholds(self.rows | other.rows)

    def before(self, factor: float, addend: float) -> Thresholds:
        """Return the thresholds of x for thresholds of factor * x + addend."""
        return Thresholds(
            frozenset(((first - addend) / factor, distance / abs(factor)) for first, distance in self.rows)
        )

    def within(self, low: float, high: float) -> list[float]:
        """Return the thresholds inside of a range, in order; zero is none, as it is exact in all qparams."""
        found = set()
        for first, distance in self.rows:
            if not distance:
                found.add(first)
            elif (high - low) / distance <= at.MOST_THRESHOLDS:
                ends = math.ceil((low - first) / distance), math.floor((high - first) / distance)
                found |= {first + n * distance for n in range(ends[0], ends[1] + 1)}
        return sorted(number for number in found if low < number < high and number)


@dataclass(frozen=True)
class Statistics:
    """Extremes of values and counts, from calibration.

    Attributes:
        low, high: ends of the range that the observer finds, of shape [] or [channels].
        calls, values: numbers of observed calls and values.
        farthest: downwards and upwards, the farthest extremes of single calls with the numbers of these calls, largest
            first, if they are collected.
        lowest, highest: observed extremes, even beyond `Needs.within`.
    """

    low: Floats
    high: Floats
    calls: int = 0
    values: int = 0
    farthest: Sequence[Sequence[tuple[float, int]]] = ((), ())
    lowest: float = 0.0
    highest: float = 0.0

    def without(self, calls: Collection[int]) -> Statistics:
        """Return the statistics without some calls; with the nearest known extreme if all known ones are theirs."""
        kept = [[own for own in row if own[1] not in calls] or row[-1:] for row in self.farthest]
        low, high = (np.array(row[0][0], np.float32) for row in kept)
        return replace(self, low=-low, high=high, farthest=kept)


@dataclass
class Needs:
    """Facts about values and their readers, which decide the range.

    Attributes:
        limits: smallest and largest integer.
        eps: the smallest scale.
        symmetric: the zero point is 0.
        has_margin: False for a range that covers what calibration shows, and no others.
        bounds: of all results of the operators that compute the values.
        within: limits of the observed values; values beyond count as the limit, unless they are very far.
        part: fraction of the found range that the qparams cover; values beyond saturate, and above 1 there is room.
        singular: ends of results whose operand is not 0 with its own qparams.
        thresholds: must be between two LSBs, for int8.
        is_whole: True for whole numbers, all of which int8 must represent.
    """

    limits: tuple[int, int] = (-128, 127)
    eps: float = at.WEIGHT_EPS
    symmetric: bool = False
    has_margin: bool = True
    bounds: Ends = UNLIMITED
    within: Ends = UNLIMITED
    part: float = 1.0
    singular: Ends = UNLIMITED
    thresholds: Thresholds = Thresholds()
    is_whole: bool = False

    @property
    def steps(self) -> int:
        """LSBs of the range."""
        return self.limits[1] - self.limits[0]


def range_of(seen: Statistics, needs: Needs) -> tuple[Floats, Floats]:
    """Return the ends of the range of values, of shape [] or [channels]."""
    low, high = seen.low, seen.high
    if low.size > 1:
        return low * np.float32(needs.part), high * np.float32(needs.part)
    reach = needs.within[1] - needs.within[0]
    part = np.float32(1.0 if math.isfinite(reach) else needs.part)  # beyond these ends values saturate already
    if max(-seen.lowest, seen.highest) > at.FARTHEST_BEYOND * reach:
        ends = np.full_like(low, seen.lowest), np.full_like(high, seen.highest)
    else:
        less, more = _margins(seen, needs)
        ends = low - np.float32(less), high + np.float32(more)
    least, most = map(np.float32, needs.singular)
    return np.maximum(ends[0] * part, least), np.minimum(ends[1] * part, most)


def _margins(seen: Statistics, needs: Needs) -> Ends:
    """Return the margins of a range, downwards and upwards: none without an extreme that others may exceed."""
    ends = -seen.low.item(), seen.high.item()
    reach = 2.0 * max(ends) if needs.symmetric else sum(max(end, 0.0) for end in ends)
    rows = [[end for end, _ in row] for row in seen.farthest]
    steps = [end * needs.steps / reach for row in rows for end in row] if reach > 0 else []
    is_exact = all(abs(step - round(step)) <= at.ON_STEP for step in steps)  # as of pixels, which a margin would round
    if not needs.has_margin or needs.is_whole or seen.calls < at.FEWEST_EXTREMES or is_exact:
        return 0.0, 0.0
    bounds = -max(needs.bounds[0], needs.within[0]), min(needs.bounds[1], needs.within[1])
    less, more = (
        max(min(_margin(row, end, reach, seen, needs.steps), bound - end), 0.0)
        for row, end, bound in zip(rows, ends, bounds, strict=True)
    )
    return less, more


def _margin(extremes: Sequence[float], end: float, reach: float, seen: Statistics, steps: int) -> float:
    """Return the margin beyond an end of a range, see the head of this module.

    Args:
        extremes: the farthest ones of single calls, largest first.
        end: of the range, which is `reach` large.
    """
    counts = [len([*equal]) for _, equal in itertools.groupby(extremes)]
    times = math.gcd(*counts[:-1]) or 1  # an observer sees moved values, too: then all extremes occur several times
    values, extremes = seen.values / times, extremes[::times][: seen.calls // times // 2 + 1]  # others are no tail
    count = len(extremes) - 1
    if count < 1 or extremes[0] <= 0.0 or end < extremes[0] - reach / steps:
        return 0.0  # beyond zero there are no values of one sign, and a range that clips has no need
    # Clipping costs more than rounding, so that the larger of two estimates counts.
    excess = max(sum(row[:-1]) / (len(row) - 1) - row[-1] for row in (extremes[: at.FEWEST_EXTREMES], extremes))
    cost = values * reach / (12 * count * steps**2)
    if not 0.0 < cost < excess < math.inf:
        return 0.0
    most = min(at.ENOUGH_VALUES / (at.ENOUGH_VALUES + values) + at.LARGEST_MARGIN, 1.0)
    return min(extremes[-1] + excess * _logarithm(excess / cost) - end, extremes[0] * most)


def _logarithm(number: float) -> float:
    """Return the natural logarithm by linear interpolation, so that all machines agree; the error is at most 0.06."""
    mantissa, exponent = math.frexp(number)
    return (2.0 * mantissa - 2.0 + exponent) * 0.6931471805599453


# ---------------------------------------------------------------- qparams


@np.errstate(all="ignore")  # of float32 where a range ends at its largest number
def qparams_of(seen: Statistics, needs: Needs) -> tuple[Floats, NDArray[np.int64]]:
    """Return float32 scales and int64 zero points of values, as for the core's kernels, of shape [1] or [channels]."""
    low, high = (end.reshape(-1) for end in range_of(seen, needs))
    low, high = np.minimum(low, 0.0), np.maximum(high, 0.0)  # zero is in every range
    is_zero = (low == 0.0) & (high == 0.0) & (not needs.symmetric)
    eps = np.where(is_zero, np.float32(max(needs.eps, at.NOTHING)), np.float32(needs.eps))
    if needs.symmetric:
        scale = np.maximum(np.maximum(-low, high) / np.float32(needs.steps / 2), eps)
    else:
        scale = np.maximum((high - low) / np.float32(needs.steps), eps)
    if needs.steps < 256 and needs.is_whole:
        scale = _with_whole_numbers(scale)
    elif needs.steps < 256 and low.size == 1 and (between := needs.thresholds.within(float(low[0]), float(high[0]))):
        scale = np.full_like(scale, _between_steps(float(scale[0]), between))
    if needs.symmetric:
        return scale, np.zeros(scale.shape, np.int64)
    zero_point = needs.limits[0] - np.rint(low / scale).astype(np.int64)
    return scale, zero_point.clip(*needs.limits)


def _with_whole_numbers(scale: Floats) -> Floats:
    """Return the next scale of which whole numbers are exact multiples; or, above 1, the next whole number."""
    part, exponent = np.frexp(scale)  # scale = part * 2 ** exponent, and part from 0.5 to below 1
    power = np.ldexp(np.ones_like(scale), exponent - (part == 0.5))
    return np.where(scale > 1.0, np.ceil(scale), power)


def _between_steps(scale: float, thresholds: list[float]) -> float:
    """Return the scale, not below a given one, with which thresholds are nearest to halfway between two LSBs.

    Of equal ones the smallest; the given one if no other is nearer.
    """

    sizes = [abs(threshold) for threshold in thresholds]
    tried = [scale * (1.0 + (at.WIDER - 1.0) * n / at.SCALES) for n in range(at.SCALES + 1)]
    for size in sizes:
        last = math.floor(size / scale - 0.5)
        tried += [size / (n + 0.5) for n in range(max(0, last - at.SCALES), last + 1) if size / (n + 0.5) >= scale]
    scales = np.array([s for s in tried if s <= at.WIDER * scale])
    # Fraction of an LSB by which thresholds miss the middle, plus a penalty for larger scales.
    missed = sum((abs(size / scales % 1.0 - 0.5) for size in sizes), np.zeros_like(scales))
    missed += at.WIDER_COST * (scales / scale - 1.0)
    nearest = missed <= missed.min() + at.AS_NEAR
    best = min(zip(missed[nearest], scales[nearest], strict=True), key=lambda pair: (round(float(pair[0]), 9), pair[1]))
    return float(best[1])
