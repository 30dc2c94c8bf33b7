"""Tables of int16 functions that are steep somewhere, such as 1/x and sqrt(x) near zero: finer tables for that range.

A table interpolates linearly between every 128th number, which may deviate from the function near zero. There a second
table is added, whose operand is multiplied by a power of two and saturates, and whose entries are closer by that
factor; if necessary, a third one is added:

    y = coarse(x) + fine(32 x) + finest(128 x)

A function that is steep elsewhere, such as logit(x) at both ends of its range, has one such table for each place:

    y = coarse(x) + fine(32 (x - 32640)) + fine(16 x)

Within the window of the next table, at whose ends the next operand saturates, each table is a straight line; the next
table adds the difference, which is zero at both ends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from micronpu.ir.arithmetic import wide_lookup
from micronpu.ir.types import DType

Reals = npt.NDArray[Any]

NEAR = 32
"""Maximum error of a table in LSB of int16: an eighth of an LSB of int8."""
_GAINS = (*((gain,) for gain in (2, 4, 8, 16, 32, 64, 128)), *((gain, 128) for gain in (2, 4, 8, 16, 32)))
"""Powers of two by which the operands of finer tables are multiplied; with 128 there is an entry for every number."""
_LEAST_GAIN = 2.0
"""Minimum factor by which another table must reduce the largest error if no table reduces it below `NEAR`."""
_LINE = 128
"""Distance between two entries."""
_MOST_PLACES, _PLACE_GAINS = 2, (2, 4, 8, 16, 32, 64, 128)
"""Maximum number of places of finer tables for a function that is steep away from zero, and their gains."""
_BEYOND = 2.0
"""Values beyond this multiple of the result's range are ignored: they are a problem of calibration, not of tables."""
_LOWEST, _HIGHEST = DType.INT16.limits


@dataclass(frozen=True)
class TablePart:
    """A table to be added.

    Attributes:
        gain: factor of its operand.
        entries: 513 results.
        center: the middle of its window, which is subtracted from the operand first.
    """

    gain: int
    entries: tuple[int, ...]
    center: int = 0


def parts_of(function: Callable[[Reals], Reals], coarse: npt.ArrayLike) -> tuple[TablePart, ...]:
    """The fewest tables whose sum approximates a function of int16 numbers.

    Args:
        function: of the numbers themselves, in LSB of the result; non-finite results may be replaced by anything.
        coarse: entries of a single table, which suffices for most functions.
    """
    wanted, counts = _wanted(function)
    best: tuple[TablePart, ...] = (TablePart(1, tuple(int(e) for e in np.asarray(coarse))),)
    least = _off(best, wanted, counts)
    for number in (1, 2):
        if least <= NEAR:
            break
        tried = min((_split(wanted, gains) for gains in _GAINS if len(gains) == number), key=_off_of(wanted, counts))
        if (error := _off(tried, wanted, counts)) <= max(least / _LEAST_GAIN, NEAR):
            best, least = tried, error
    return best if least <= NEAR else _with_places(wanted, counts, best, least)


def _with_places(
    wanted: npt.NDArray[np.float64], counts: npt.NDArray[np.bool_], best: tuple[TablePart, ...], least: float
) -> tuple[TablePart, ...]:
    """Tables with finer ones for up to two places, each with the largest error so far; ``best`` unless better."""
    every = np.arange(_LOWEST, _HIGHEST + 1)
    places: list[tuple[int, int]] = []
    parts = _placed(wanted, places)
    while len(places) < _MOST_PLACES and _off(parts, wanted, counts) > NEAR:
        worst = every[np.where(counts, np.abs(_sum(parts, every) - wanted), 0.0).argmax()]
        last = -_LOWEST // _LINE - 1
        center = min(max(round(worst / _LINE), -last), last) * _LINE
        around = counts & (np.abs(every - center) <= -_LOWEST // _PLACE_GAINS[0])
        tried = {
            gain: _placed(wanted, [*places, (center, gain)])
            for gain in _PLACE_GAINS
            if all(abs(center - c) >= -_LOWEST // gain - _LOWEST // g for c, g in places)
        }
        if not tried:
            break
        gain = min(tried, key=lambda g: _off(tried[g], wanted, around))
        places.append((center, gain))
        parts = tried[gain]
    return parts if _off(parts, wanted, counts) <= least / _LEAST_GAIN else best


def _placed(wanted: npt.NDArray[np.float64], places: list[tuple[int, int]]) -> tuple[TablePart, ...]:
    """Tables for places given as center and gain, with disjoint windows."""
    margin = -_LOWEST
    wide = np.pad(wanted, margin, mode="edge")  # windows may exceed the range
    own = wide.copy()
    for center, gain in places:
        width, middle = margin // gain, center - _LOWEST + margin
        own[middle - width : middle + width + 1] = np.linspace(
            wide[middle - width], wide[middle + width], 2 * width + 1
        )
    inside = own[margin : margin + len(wanted) + 1]
    parts = [TablePart(1, tuple(int(e) for e in _not_too_steep(_entries(inside, _LINE))))]
    rest = np.pad(wanted - _sum(tuple(parts), np.arange(_LOWEST, _HIGHEST + 1)), margin, mode="edge")
    for center, gain in places:
        width, middle = margin // gain, center - _LOWEST + margin
        entries = _entries(rest[middle - width : middle + width + 1], _LINE // gain)
        entries[0], entries[-1] = 0, -round(entries[-2] / (_LINE - 1))
        parts.append(TablePart(gain, tuple(int(e) for e in _not_too_steep(entries)), center))
    return tuple(parts)


def is_near(function: Callable[[Reals], Reals], entries: npt.ArrayLike) -> bool:
    """True if one table approximates a function of int16 numbers; arguments as in `parts_of`."""
    return _off((TablePart(1, tuple(int(e) for e in np.asarray(entries))),), *_wanted(function)) <= NEAR


def _wanted(function: Callable[[Reals], Reals]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    """The saturated result of every number, and a mask of relevant ones."""
    numbers = np.arange(_LOWEST, _HIGHEST + 1, dtype=np.float64)
    with np.errstate(all="ignore"):
        counts = np.abs(function(numbers)) <= -_BEYOND * _LOWEST
    return continued(function, numbers, _HIGHEST).clip(_LOWEST, _HIGHEST), counts


def continued(function: Callable[[Reals], Reals], numbers: Reals, largest: float) -> Reals:
    """Results for increasing numbers; undefined ones are interpolated from their neighbours.

    Args:
        largest: replacement of infinity.
    """
    with np.errstate(all="ignore"):
        results = np.asarray(function(numbers), np.float64)
    has = ~np.isnan(results)
    if not has.any():
        return np.zeros(len(results))
    finite = np.nan_to_num(results, posinf=largest, neginf=-largest)
    return np.asarray(np.interp(numbers, numbers[has], finite[has]))


def _off_of(wanted: npt.NDArray[np.float64], counts: npt.NDArray[np.bool_]) -> Callable[[tuple[TablePart, ...]], float]:
    return lambda parts: _off(parts, wanted, counts)


def _off(parts: tuple[TablePart, ...], wanted: npt.NDArray[np.float64], counts: npt.NDArray[np.bool_]) -> float:
    """Maximum error of the sum of tables, in LSB."""
    found = _sum(parts, np.arange(_LOWEST, _HIGHEST + 1))
    return float(np.abs(found - wanted)[counts].max(initial=0.0))


def _sum(parts: tuple[TablePart, ...], numbers: npt.NDArray[Any]) -> npt.NDArray[Any]:
    total = np.zeros(len(numbers), np.int64)
    for part in parts:
        operand = ((numbers - part.center) * part.gain).clip(_LOWEST, _HIGHEST)
        total = (total + wide_lookup(np.array(part.entries, np.int64), operand)).clip(_LOWEST, _HIGHEST)
    return total


def _split(wanted: npt.NDArray[np.float64], gains: tuple[int, ...]) -> tuple[TablePart, ...]:
    """Tables of increasing resolution for results of all numbers.

    Args:
        gains: of the second and later tables.
    """
    rest, parts = wanted, []
    every = np.arange(_LOWEST, _HIGHEST + 1)
    for gain, finer in zip((1, *gains), (*gains, 0), strict=True):
        last = -_LOWEST // gain  # of the window
        own = rest[-_LOWEST - last : -_LOWEST + last + 1] if gain > 1 else np.append(rest, rest[-1])
        if finer:
            own = _straight(own, -_LOWEST // finer)
        entries = _entries(own, _LINE // gain)
        if gain > 1:  # saturation: the last interpolated number is at 127/128 of the last interval
            entries[0], entries[-1] = 0, -round(entries[-2] / (_LINE - 1))
        parts.append(TablePart(gain, tuple(int(e) for e in _not_too_steep(entries))))
        rest = wanted - _sum(tuple(parts), every)
    return tuple(parts)


def _straight(values: npt.NDArray[np.float64], width: int) -> npt.NDArray[np.float64]:
    """Values around zero, with a straight line across a window around it."""
    middle = len(values) // 2
    found = values.copy()
    found[middle - width : middle + width + 1] = np.linspace(
        values[middle - width], values[middle + width], 2 * width + 1
    )
    return found


def _entries(values: npt.NDArray[np.float64], apart: int) -> npt.NDArray[np.int64]:
    """Every ``apart``-th value, shifted by half of the interpolation error at the midpoint of its interval."""
    entries = values[::apart].copy()
    if apart > 1:
        off = (entries[:-1] + entries[1:]) / 2 - values[apart // 2 :: apart]
        entries[:-1] -= off / 2
    return np.asarray(np.rint(entries).clip(_LOWEST, _HIGHEST), np.int64)


def _not_too_steep(entries: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Limit steps between entries to int16, which TOSA requires: a jump, as of 1/x, takes several entries."""
    limited = entries.copy()
    for i in range(1, len(limited)):
        limited[i] = min(max(limited[i], limited[i - 1] - _HIGHEST), limited[i - 1] + _HIGHEST)
    return limited
