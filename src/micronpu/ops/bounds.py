"""Bounds of values: by the facts of the operators that compute them, and by rules that state such facts."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from micronpu.ir.facts import ANY, POSITIVE, Facts, Given, Interval, IntervalOf, Jumps, joined, keeps
from micronpu.ir.lowering import Writer, facts_of

_FARTHEST = 16  # maximum depth of the analysis


def never_negative(write: Writer, operand: object) -> bool:
    """True if every element is non-negative for any inputs; False if unknown."""
    known: dict[Any, Interval] = {}

    def of(operand: object, depth: int = _FARTHEST) -> Interval:
        if isinstance(operand, (int, float)):
            return (float(operand), float(operand))
        constant = write.stored(operand)
        if constant is not None:
            return (float(constant.min()), float(constant.max())) if constant.size else ANY
        if operand not in known and depth:
            known[operand] = ANY  # unknown for loops
            if (call := write.call(operand)) is not None:
                known[operand] = facts_of(call.overload).range_of(call.given, lambda x: of(x, depth - 1))
        return known.get(operand, ANY)

    return of(operand)[0] >= 0


# ---------------------------------------------------------------- rules


def jumps_at(*numbers: object) -> Jumps:
    """Return the jumps at numbers, of which those that are computed or not finite are left out."""
    known = [float(np.float32(n)) for n in numbers if isinstance(n, (int, float)) and math.isfinite(n)]
    return frozenset((number, 0.0) for number in known)


def with_zeros(given: Given, of: IntervalOf) -> Interval:
    """Results are among the first operand and zeros, or means of them."""
    return joined([keeps(given, of), (0.0, 0.0)])


def sign_of_operand(given: Given, of: IntervalOf) -> Interval:
    """Results have the sign of the first operand."""
    return only_sign(keeps(given, of))


def at_ends(function: Callable[[float, float], float], given: Given, of: IntervalOf) -> Interval:
    """Return the bounds of a function of two operands that has its extremes at their ends."""
    ends = [function(a, b) for a in of(given["self"]) for b in of(given["other"])]
    ends = [0.0 if math.isnan(end) else end for end in ends]  # of 0 and infinity, or of infinities, between others
    return min(ends), max(ends)


def _products(given: Given, of: IntervalOf) -> Interval:
    operands = [given[name] for name in _FACTORS if given.get(name) is not None]
    return POSITIVE if all(of(x)[0] >= 0 for x in operands) else ANY


def only_sign(x: Interval) -> Interval:
    """Return the interval of all numbers with a sign that those of x may have."""
    return (0.0 if x[0] >= 0 else -math.inf, 0.0 if x[1] <= 0 else math.inf)


def divided(x: Interval, z: Interval) -> Interval:
    """Return the bounds of quotients: only the sign, if the divisor has a fixed sign."""
    return ANY if z[0] < 0 else only_sign(x)


def squared(x: Interval) -> Interval:
    return 0.0, max(x[0] * x[0], x[1] * x[1])


_FACTORS = ("self", "input", "mat1", "mat2", "other", "vec", "tensor", "weight", "bias")
PRODUCT = Facts(range=_products, adds=True)
AMONG_WINDOW = Facts(range=keeps, degree=1.0, by_channel=True)
MEAN_WITH_PADDING = replace(AMONG_WINDOW, range=with_zeros)
