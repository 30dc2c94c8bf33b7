"""Truth values as the numbers 0 and 1, with fixed qparams that represent both regardless of calibration."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import numpy as np

from micronpu.base.order import operands_first
from micronpu.ir.lowering import Float, FloatCall, Writer
from micronpu.ir.op import fixed_qparams
from micronpu.ir.types import DType

TRUTH = fixed_qparams(1.0, 0, limits=(0.0, 1.0))
"""Rule for a truth value as the number 0 or 1."""
GIVEN = fixed_qparams(1.0, 0, int16_scale=2.0**-14, limits=(0.0, 1.0))
"""Rule for a number that the core casts: with `TRUTH`, products with int16 numbers other than 0 and 1 exceed int32."""

WHOLE = fixed_qparams(1.0, -128, int16_scale=1.0)
"""Rule for whole numbers from 0 to 255: indices and counts, regardless of calibration."""

LOGIC = {
    **dict.fromkeys(("__and__.Tensor", "bitwise_and.Tensor", "logical_and.default"), "and"),
    **dict.fromkeys(("__or__.Tensor", "bitwise_or.Tensor", "logical_or.default"), "or"),
    **dict.fromkeys(("__xor__.Tensor", "bitwise_xor.Tensor", "logical_xor.default"), "xor"),
    **dict.fromkeys(("bitwise_not.default", "logical_not.default"), "not"),
}
"""Operators on truth values, and their logical functions."""

_MOVES = (
    *(f"{name}.default" for name in ("expand", "permute", "reshape", "unsqueeze", "view")),
    *("select.int", "slice.Tensor", "squeeze.dim", "transpose.int"),
)
"""Operators that move truth values."""


def number_of(write: Writer, truth: Float) -> Float | None:
    """The number of a truth value; None for other values, and for constants."""
    # Inputs of the program and results of the core are cast at their origin: later moves and logic are computed with
    # numbers, as they often expand a short mask along other axes.
    if isinstance(truth, (int, float)) or write.stored(truth) is not None:
        return None
    return _number(write, truth)


def opposite_of(write: Writer, truth: Float) -> Float | None:
    """The number of the opposite of a truth value, like `number_of`."""
    made = write.call(truth)
    if made is not None and LOGIC.get(made.overload) == "not":
        return number_of(write, made.given["self"])
    number = number_of(write, truth)
    return None if number is None else opposite(write, number, number)


def is_made_of_others(write: Writer, truth: Float) -> bool:
    """True if a truth value is another one, moved, or follows from others by logic."""
    made = write.call(truth)
    return made is not None and (made.overload in _MOVES or made.overload in LOGIC)


def _number(write: Writer, truth: Float) -> Float | None:
    numbers: dict[Float, Float | None] = {}
    for value in operands_first(truth, lambda value: _sources(write, value)):
        numbers[value] = write.once(value, functools.partial(_made, write, value, numbers))
    return numbers[truth]


def _sources(write: Writer, truth: Float) -> list[Float]:
    """Return the truth values from which the number of another one is computed."""
    if write.number(truth) is not None or write.dtype(truth) is not DType.BOOL:
        return []
    made = write.call(truth)
    if made is None:
        return []
    names = ("self",) if made.overload in _MOVES else ("self", "other") if made.overload in LOGIC else ()
    given = [made.given[name] for name in names if name in made.given]
    return given if made.overload in _MOVES else [x for x in given if write.stored(x) is None]


def _made(write: Writer, truth: Float, numbers: Mapping[Float, Float | None]) -> Float | None:
    number = write.number(truth)
    if number is not None or write.dtype(truth) is not DType.BOOL:
        return number
    made = write.call(truth)
    if made is not None and made.overload in _MOVES:
        inner = numbers[made.given["self"]]
        others = [value for name, value in made.given.items() if name not in ("self", "implicit")]
        return None if inner is None else write.beside(truth, made.overload, inner, *others)
    if made is not None and made.overload in LOGIC:
        return _of_logic(write, truth, made, numbers)
    return write.with_qparams(write.beside(truth, "to.dtype", truth, DType.FLOAT32), GIVEN)


def _of_logic(write: Writer, truth: Float, made: FloatCall, numbers: Mapping[Float, Float | None]) -> Float | None:
    operands = [made.given[name] for name in ("self", "other") if name in made.given]
    made_of = [numbers[x] if write.stored(x) is None else _constant(write, truth, x) for x in operands]
    found = [number for number in made_of if number is not None]
    return logic(write, truth, LOGIC[made.overload], found) if len(found) == len(operands) else None


def _constant(write: Writer, place: Float, x: Float) -> Float | None:
    known = write.stored(x)
    if known is None or known.dtype != np.bool_:
        return None
    return write.with_qparams(write.constant(known.astype(np.float32), place), GIVEN)


def logic(write: Writer, place: Float, what: str, numbers: list[Float]) -> Float:
    """Apply an operator of `LOGIC` to numbers, next to the operator that computes ``place``."""
    a, b = numbers[0], numbers[-1]
    if what == "not":
        return opposite(write, place, a)
    if what == "xor":
        difference = write.with_qparams(write.beside(place, "sub.Tensor", a, b), TRUTH)
        return write.with_qparams(write.beside(place, "abs.default", difference), TRUTH)
    return write.with_qparams(write.beside(place, "mul.Tensor" if what == "and" else "maximum.default", a, b), TRUTH)


def opposite(write: Writer, place: Float, number: Float) -> Float:
    """1 - number, next to the operator that computes ``place``."""
    return write.with_qparams(write.beside(place, "rsub.Scalar", number, 1.0), TRUTH)
