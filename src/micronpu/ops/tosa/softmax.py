"""TOSA forms of the softmax.

int8: exponentials by tables of bytes, and a division by Newton and Raphson's method.

x -> x - max -> table (three bytes of the exponential) -> e [.., C], 20 bits
e -> sum -> count of leading zeros, reciprocal
e * reciprocal, shifted back by the leading zeros -> y

int16: the same with a table of exponentials and one of reciprocals, as in LiteRT.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from micronpu.base.errors import UnsupportedError

if TYPE_CHECKING:
    from micronpu.emit.tosa import TosaEmitter, TosaTensor

EXPONENTIAL_BITS = 20
"""Bits of an exponential; the largest is ``2**19``."""

MOST_CHANNELS = 4096

_48_OVER_17, _32_OVER_17 = 1515870810, 1010580540
_NEWTON_STEPS = 3


def softmax(emit: TosaEmitter, exponentials: npt.NDArray[np.int64]) -> TosaTensor:
    """Softmax along the last axis with a scale of 1/256 and a zero point of -128.

    Args:
        exponentials: [256] of the differences -255 to 0 to the largest element, as `EXPONENTIAL_BITS` numbers.
    """
    x, y = emit.input(0), emit.output_type
    if y.channels >= MOST_CHANNELS:
        raise UnsupportedError(
            f"`softmax` of {y.channels} elements has no TOSA form: their sum may leave int32.",
            hint=f"fewer than {MOST_CHANNELS} elements",
        )
    rows = emit.reshape(x, (y.size // y.channels, y.channels))
    largest = emit.reduce("REDUCE_MAX", rows, [1])
    difference = emit.elementwise("SUB", emit.wide(rows, 0), emit.wide(largest, 0), "INT32")
    # 0 is the table's last index.
    index = emit.rescale(difference, "INT8", [1 << 30], [30], zeros=(0, 127), rounding="SINGLE_ROUND")
    numbers = _numbers(emit, index, exponentials)
    total = emit.reduce("REDUCE_SUM", numbers, [1])
    headroom = emit.elementwise("SUB", emit.add("CLZ", [total], total.shape, "INT32"), _number(emit, 1), "INT32")
    # In [1/2, 1) with 31 fraction bits; its reciprocal in [1, 2] with 30 - 1.
    half = emit.elementwise("LOGICAL_LEFT_SHIFT", total, headroom, "INT32")
    inverse = _reciprocal(emit, half)
    quotients = emit.multiply(numbers, inverse, shift=31)
    back = emit.elementwise("SUB", _number(emit, EXPONENTIAL_BITS + 1), headroom, "INT32")
    result = emit.elementwise("ARITHMETIC_RIGHT_SHIFT", quotients, back, "INT32", True)
    return emit.reshape(emit.result(result), y.shape)


def wide_softmax(
    emit: TosaEmitter, multiplier: tuple[int, int], exponentials: npt.NDArray[Any], reciprocals: npt.NDArray[Any]
) -> TosaTensor:
    """Softmax of int16 numbers along the last axis, with a scale of 2**-15.

    Args:
        multiplier: from differences to the largest element to numbers from -65535 to 0, and its shift.
        exponentials: int16 [513].
        reciprocals: int16 [513], of 1 + x for x in [0, 1].
    """
    x, y = emit.input(0), emit.output_type
    rows = emit.reshape(x, (y.size // y.channels, y.channels))
    largest = emit.reduce("REDUCE_MAX", rows, [1])
    difference = emit.elementwise("SUB", emit.wide(rows, 0), emit.wide(largest, 0), "INT32")
    factor = multiplier[0] * 2.0 ** (multiplier[1] - 31)
    if factor > 2**12:
        # TOSA requires products inside of int32; larger distances from the largest element saturate anyway.
        lowest = _number(emit, -math.ceil(2**16 / factor) - 1)
        difference = emit.elementwise("MAXIMUM", difference, lowest, "INT32", emit.IGNORE_NAN)
    scaled = emit.rescale(difference, "INT32", [multiplier[0]], [31 - multiplier[1]])
    position = emit.elementwise("ADD", scaled, _number(emit, 32767), "INT32")
    numbers = emit.wide(emit.table(emit.result(position), exponentials), 0)
    total = emit.reduce("REDUCE_SUM", numbers, [1])
    zeros = emit.add("CLZ", [total], total.shape, "INT32")
    normalized = emit.elementwise(
        "LOGICAL_LEFT_SHIFT", total, emit.elementwise("SUB", zeros, _number(emit, 1), "INT32"), "INT32"
    )
    fraction = emit.elementwise("ARITHMETIC_RIGHT_SHIFT", normalized, _number(emit, 14), "INT32", True)
    centered = emit.elementwise("SUB", fraction, _number(emit, (1 << 15) + (1 << 16)), "INT32")
    inverse = emit.wide(emit.table(emit.result(centered), reciprocals), 0)
    back = emit.elementwise("SUB", _number(emit, 31), zeros, "INT32")
    quotients = emit.elementwise("ARITHMETIC_RIGHT_SHIFT", emit.multiply(numbers, inverse), back, "INT32", True)
    return emit.reshape(emit.result(quotients), y.shape)


def _number(emit: TosaEmitter, value: int) -> TosaTensor:
    return emit.constant([[value]], "INT32")


def _numbers(emit: TosaEmitter, index: TosaTensor, values: npt.NDArray[np.int64]) -> TosaTensor:
    """A table of numbers of up to 23 bits: the sum of tables of their base-256 digits, from -128 to 127."""
    total = None
    for place in range(0, 24, 8):
        digits = ((values + 128) & 0xFF) - 128
        values = (values - digits) >> 8
        part = emit.rescale(emit.table(index, digits), "INT32", [1 << 30], [30 - place], rounding="SINGLE_ROUND")
        total = part if total is None else emit.elementwise("ADD", total, part, "INT32")
    assert total is not None
    return total


def _reciprocal(emit: TosaEmitter, half: TosaTensor) -> TosaTensor:
    """1 / (2 * half) of numbers in [1/2, 1) with 31 fraction bits, with 30 - 1 of them."""
    x = emit.elementwise(
        "ADD", emit.multiply(half, _number(emit, -_32_OVER_17), shift=31), _number(emit, _48_OVER_17), "INT32"
    )
    for _ in range(_NEWTON_STEPS):
        error = emit.elementwise("SUB", _number(emit, 1 << 29), emit.multiply(half, x, shift=31), "INT32")
        x = emit.elementwise("ADD", x, emit.multiply(x, error, shift=29), "INT32")
    return x
