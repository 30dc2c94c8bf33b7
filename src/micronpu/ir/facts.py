"""Facts of ATen operators, which hold on every device; declared where an operator is defined.

An operator is given by its overload and by its arguments under the names of the schema, as `FloatCall` has them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

Given: TypeAlias = Mapping[str, Any]
Interval: TypeAlias = tuple[float, float]
IntervalOf: TypeAlias = Callable[[Any], Interval]
"""Returns the lower and upper bound of an operand."""
Jumps: TypeAlias = frozenset[tuple[float, float]]

NOWHERE: Jumps = frozenset()
ANY: Interval = (-math.inf, math.inf)
POSITIVE: Interval = (0.0, math.inf)
TRUTHS: Interval = (0.0, 1.0)
SIGNS: Interval = (-1.0, 1.0)


class Form(Enum):
    """Function of the operands of an operator, for rewrites of several operators."""

    SUM = "a + b"
    DIFFERENCE = "a - b"
    REVERSED_DIFFERENCE = "b - a"
    PRODUCT = "a * b"
    QUOTIENT = "a / b"
    NEGATIVE = "-a"
    EXPONENTIAL = "exp(a)"
    LOGARITHM = "log(a)"
    LOGARITHM_OF_MORE = "log(1 + a)"
    RECIPROCAL = "1 / a"
    ROOT = "sqrt(a)"
    MAGNITUDE = "sqrt(a * a + b * b)"
    SIGMOID = "1 / (1 + exp(-a))"
    ROW_SUM = "sum of a along axes"
    ROW_MEAN = "mean of a along axes"
    ROW_MAXIMUM = "largest of a along axes"
    MAXIMUM_AND_POSITION = "largest of a along an axis, and where it is"


class Amplifier(NamedTuple):
    """A function that spreads small operands over much of its range."""

    of: Callable[[float], float]  # its result; of a quotient, by the divisor
    inverse: Callable[[float], float]  # the operand of a result
    divides: bool = False  # True for a quotient


@dataclass(frozen=True, kw_only=True)
class Facts:
    """The answers of an operator to every question about its results.

    The default of each is "no": a test looks for what ATen computes that shows the opposite.
    """

    elementwise: bool = False  # each result is a function of one element of the only tensor, and of numbers
    moves: bool = False  # each element of the result is one of the operands, or the number of a padding
    # Bounds of the results for any operands, or a function that returns them for the bounds of the operands.
    range: Interval | Callable[[Given, IntervalOf], Interval] | None = None
    # Exponent c of a result that is ``self ** c``, or a function of the arguments that returns it.
    power: float | Callable[[Given], float | None] | None = None
    # The d of f(g * x) = ``g ** d * f(x)`` for g > 0 and the only tensor x; by default that of `power`.
    degree: float | None = None
    form: Form | None = None  # the function that it computes, with an ``alpha`` of 1 if it has one
    # The arguments in each of which the result is affine, element by element, where others are constants.
    affine_in: tuple[str, ...] = ()
    # Jumps of the result: (first, distance) of operands in a row without end; distance 0 for a single one.
    jumps: Jumps | Callable[[Given], Jumps] = NOWHERE
    whole: bool = False  # all results are whole numbers
    singular: bool = False  # the result, or its gradient, is infinite at 0; by default so of a power less than 1
    is_bounded: bool = False  # a function on an interval, at whose ends it is steep
    # Magnitude of the operand from which a function is y from its limits at both ends, a function of y.
    tail: Callable[[float], float] | None = None
    # The result is a sum of squares if the first operand consists of such sums, and others are not negative.
    adds: bool = False
    by_channel: bool = False  # f(s x) is ``s * f(x)`` for an s > 0 of each channel, the second axis
    amplifier: Amplifier | None = None  # a function that spreads small operands over much of its range
    # Why a question has no answer although ATen's results suggest one, by the name of the question.
    unknown: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    def __post_init__(self) -> None:
        for question, why in self.unknown.items():
            if question not in QUESTIONS or not why:
                raise TypeError(f"`{question}` is no question about an operator, or has no reason.")

    def power_of(self, given: Given) -> float | None:
        """Return the exponent c of a result that is ``self ** c``."""
        return self.power(given) if callable(self.power) else self.power

    def degree_of(self, given: Given) -> float | None:
        """Return the degree d for which f(g * x) is ``g ** d * f(x)`` for g > 0."""
        return self.degree if self.degree is not None else self.power_of(given)

    def is_singular(self, given: Given) -> bool:
        """Return whether the result, or its gradient, is infinite at 0."""
        power = self.power_of(given)
        return self.singular or (power is not None and power < 1)

    def jumps_of(self, given: Given) -> Jumps:
        """Return where a result jumps, see `jumps`."""
        return self.jumps(given) if callable(self.jumps) else self.jumps

    def range_of(self, given: Given, of: IntervalOf) -> Interval:
        return ANY if self.range is None else self.range(given, of) if callable(self.range) else self.range

    def tail_of(self, margin: float) -> float | None:
        """Return the magnitude of operands from which a function is within ``margin`` of its limits at both ends.

        Args:
            margin: half an LSB of the result, so that all larger operands give the same integers.
        """
        return None if self.tail is None else round(self.tail(margin), 6)  # so that all machines agree


QUESTIONS = tuple(f.name for f in fields(Facts) if f.name != "unknown")


def keeps(given: Given, of: IntervalOf) -> Interval:
    """Return the bounds of results that are among the first operand and rows that replace some, or means of them."""
    first = next(iter(given.values()))
    every = list(first) if isinstance(first, (list, tuple)) else [first]
    every += [given[rows] for rows in ("values", "source") if rows in given]
    return ANY if given.get("accumulate") else joined(map(of, every))


def joined(intervals: Iterable[Interval]) -> Interval:
    """Return the smallest interval that contains all of these."""
    ends = list(intervals)
    return min(low for low, _ in ends), max(high for _, high in ends)
