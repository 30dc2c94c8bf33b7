"""Between which numbers the values of a TOSA program are, where the reference model reads memory by them or divides.

It ends the process over a row that a table does not have and over a divisor of zero.  What a graph computes is followed
by its bounds; what is an input is looked at when it comes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from micronpu.host.tosa_rules import WIDTHS, Call, Operand, need

_SINGLE_ROUND, _DOUBLE_ROUND = 1, 3
_NUMPY = {"BOOL": "<u1", "INT8": "<i1", "INT16": "<i2", "INT32": "<i4", "SHAPE": "<i8"}


class Bounds(NamedTuple):
    """Smallest and largest number; of an input's own values, however moved, also its name."""

    low: int
    high: int
    input: str = ""


Parts = frozenset[Bounds]
"""What a value is made of: joined inputs and constants each have their own bounds."""


class Demand(NamedTuple):
    """What an operator asks of a value: it would end the process over others.

    Attributes:
        operand: of the operator.
        what: the values are, for a sentence.
    """

    operand: int
    low: int
    high: int
    what: str


def limits(dtype: str) -> Bounds:
    """All numbers of a type."""
    bits = 8 * WIDTHS[dtype]
    return Bounds(0, 1) if dtype == "BOOL" else Bounds(-(1 << (bits - 1)), (1 << (bits - 1)) - 1)


def of_constant(operand: Operand) -> Parts:
    """Of a constant; of one of 48 bits, by which nothing is looked up, those of its type."""
    kind = _NUMPY.get(operand.dtype)
    if not operand.data or kind is None:
        return frozenset({limits(operand.dtype)})
    numbers = np.frombuffer(operand.data, kind)
    return frozenset({Bounds(int(numbers.min()), int(numbers.max()))})


def of_input(operand: Operand, name: str) -> Parts:
    return frozenset({limits(operand.dtype)._replace(input=name)})


def demands_of(name: str, call: Call) -> list[Demand]:
    """What an operator asks of the values of its operands."""
    if name in ("GATHER", "SCATTER"):
        return [Demand(1, 0, call.shape(0)[1] - 1, "rows that it looks up")]
    if name == "INTDIV":
        return [Demand(1, 1, limits("INT32").high, "numbers that it divides by")]
    return []


def of_result(name: str, call: Call, given: Sequence[Parts]) -> Parts:
    """Bounds of what an operator makes.

    Args:
        given: those of its operands.
    """
    if name in _MOVES:
        return given[0]
    if name == "CONCAT":
        return frozenset().union(*given)
    if name == "PAD":
        return given[0] | given[2]
    rule = _RULES.get(name)
    found = limits(call.result.dtype) if rule is None else rule(call, [_whole(parts) for parts in given])
    return frozenset({found})


def _whole(parts: Parts) -> Bounds:
    return Bounds(min(p.low for p in parts), max(p.high for p in parts))


_MOVES = ("RESHAPE", "TRANSPOSE", "REVERSE", "SLICE", "TILE", "IDENTITY")


def _position(call: Call, given: Sequence[Bounds]) -> Bounds:
    return Bounds(0, call.shape(0)[call.axis()] - 1)


def _clamped(call: Call, given: Sequence[Bounds]) -> Bounds:
    low, high = call.scalar(0, ""), call.scalar(1, "")
    return Bounds(min(max(given[0].low, low), high), min(max(given[0].high, low), high))


def _cast(call: Call, given: Sequence[Bounds]) -> Bounds:
    inside = limits(call.result.dtype)
    return given[0] if inside.low <= given[0].low and given[0].high <= inside.high else inside


def _rescaled(call: Call, given: Sequence[Bounds]) -> Bounds:
    """By the largest and smallest number: a change of scale keeps the order."""
    inside, rounding = limits(call.result.dtype), call.number(1, 0, 3, "")
    if rounding not in (_SINGLE_ROUND, _DOUBLE_ROUND) or call.flag(3, "") or call.flag(4, ""):
        return inside
    count = call.operands[1].shape[0]
    (zero,), (added,) = call.values(3, 1), call.values(4, 1)

    def scaled(x: int, multiplier: int, shift: int) -> int:
        half = 1 << (shift - 1)
        if rounding == _DOUBLE_ROUND and shift > 31:
            half += (1 << 30) if x >= zero else -(1 << 30)
        return min(max((((x - zero) * multiplier + half) >> shift) + added, inside.low), inside.high)

    pairs = set(zip(call.values(1, count), call.values(2, count), strict=True))
    return Bounds(min(scaled(given[0].low, *p) for p in pairs), max(scaled(given[0].high, *p) for p in pairs))


_RULES: dict[str, Callable[[Call, Sequence[Bounds]], Bounds]] = {
    "ARGMAX": _position,
    "CLAMP": _clamped,
    "CAST": _cast,
    "RESCALE": _rescaled,
    "ADD": lambda call, given: Bounds(given[0].low + given[1].low, given[0].high + given[1].high),
    "SUB": lambda call, given: Bounds(given[0].low - given[1].high, given[0].high - given[1].low),
    "MAXIMUM": lambda call, given: Bounds(max(g.low for g in given), max(g.high for g in given)),
    "MINIMUM": lambda call, given: Bounds(min(g.low for g in given), min(g.high for g in given)),
}
"""Of operators that positions come from; all others make any number of their type."""


def asked_of_inputs(demand: Demand, parts: Parts) -> list[str]:
    """The inputs that have to be looked at before a run.

    Raises:
        CorruptFlatbufferError: what is computed may be another number.
    """
    far = [part for part in parts if not (demand.low <= part.low and part.high <= demand.high)]
    need(
        all(part.input for part in far),
        f"{demand.what} are computed, and may be others than {demand.low} to {demand.high}",
    )
    return sorted({part.input for part in far})
