"""The integer arithmetic of the int8 and int16 contracts, in NumPy.

Requantization multiplies by a Q31 multiplier and a power of two with *two* roundings, as LiteRT's reference
kernels, gemmlowp and CMSIS-NN do.  Everything here works on arrays, in int64 where an int32 product would not fit,
and is the definition that every faster implementation is compared with.

Source: LiteRT ``kernels/internal/common.h`` and ``quantization_util.cc``, gemmlowp ``fixedpoint.h`` (Apache-2.0),
described here by their results.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from micronpu.base.arrays import Array

IntArray = Array

INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1


def round_half_away(value: float) -> int:
    """Nearest integer, ties away from zero."""
    return math.floor(abs(value) + 0.5) * (1 if value >= 0 else -1)


def quantize_multiplier(value: float) -> tuple[int, int]:
    """Writes a non-negative real as ``multiplier * 2**(shift - 31)`` with a multiplier in [2**30, 2**31).

    Values below 2**-32 become (0, 0), since they round every int32 to zero.
    """
    (multiplier,), (shift,) = quantize_multipliers([value])
    return multiplier, shift


def quantize_multipliers(values: Sequence[float]) -> tuple[list[int], list[int]]:
    """The multipliers and the shifts of `quantize_multiplier` for each of some numbers, one per channel."""
    fractions, shifts = np.frexp(np.minimum(np.array(values, np.float64), 2.0**31))  # more saturates
    multipliers = np.floor(fractions * 2.0**31 + 0.5).astype(np.int64)
    up = multipliers == 1 << 31
    multipliers, shifts = np.where(up, 1 << 30, multipliers), shifts.astype(np.int64) + up
    small, large = (shifts < -31) | (multipliers == 0), shifts > 30
    multipliers = np.where(small, 0, np.where(large, INT32_MAX, multipliers))
    return multipliers.tolist(), np.where(small, 0, np.where(large, 30, shifts)).tolist()


def wrap_int32(x: IntArray) -> IntArray:
    """Two's complement int32 held in int64."""
    return ((x.astype(np.int64) + 2**31) & 0xFFFFFFFF) - 2**31


def doubling_high_multiply(a: IntArray, b: IntArray | int) -> IntArray:
    """High 32 bits of ``2 * a * b``, rounded to nearest, saturated where both are the int32 minimum."""
    product = np.asarray(a, dtype=np.int64) * np.asarray(b, dtype=np.int64)
    nudge = np.where(product >= 0, 1 << 30, 1 - (1 << 30))
    total = product + nudge
    # C++ divides towards zero.
    result = np.where(total >= 0, total >> 31, -((-total) >> 31))
    return np.minimum(result, INT32_MAX)


def rounding_right_shift(x: IntArray, exponent: IntArray | int) -> IntArray:
    """``x / 2**exponent`` rounded to nearest, ties away from zero."""
    x = np.asarray(x, dtype=np.int64)
    exponent = np.asarray(exponent, dtype=np.int64)
    mask = (np.int64(1) << exponent) - 1
    threshold = (mask >> 1) + (x < 0)
    return np.asarray((x >> exponent) + ((x & mask) > threshold))


def multiply_by_quantized_multiplier(x: IntArray, multiplier: IntArray | int, shift: IntArray | int) -> IntArray:
    """``x * multiplier * 2**(shift - 31)``, rounded twice.  Arrays broadcast; the result is int64."""
    shift = np.asarray(shift, dtype=np.int64)
    left, right = np.maximum(shift, 0), np.maximum(-shift, 0)
    shifted = wrap_int32(np.asarray(x, dtype=np.int64) << left)
    return rounding_right_shift(doubling_high_multiply(shifted, multiplier), right)


def multiply_wide(x: IntArray, multiplier: IntArray | int, shift: IntArray | int) -> IntArray:
    """``x * multiplier * 2**(shift - 31)`` for the 64-bit accumulators of int16 activations, rounded once, half up."""
    # The multiplier is cut to 15 bits, so that the product of an accumulator of up to 48 bits fits into 64.
    right = 15 - np.asarray(shift, np.int64)
    return np.asarray((np.asarray(x, np.int64) * short_multiplier(multiplier) + (np.int64(1) << (right - 1))) >> right)


def short_multiplier(multiplier: IntArray | int) -> IntArray:
    """The upper 15 bits of a multiplier, rounded to nearest."""
    multiplier = np.asarray(multiplier, np.int64)
    return np.where(multiplier < 0x7FFF0000, (multiplier + (1 << 15)) >> 16, 0x7FFF)


def requantize(x: IntArray, real_multiplier: float) -> IntArray:
    """Scales int32 values by one real number through its quantized multiplier."""
    return multiply_by_quantized_multiplier(x, *quantize_multiplier(real_multiplier))


def float32_quotient(divisor: float, *factors: float) -> float:
    """Product of scales divided by another, every step rounded to float32, as LiteRT computes most multipliers.

    Computed in float64 if an intermediate result exceeds float32, such as the product of two scales of 1e20.
    """
    product = np.float32(factors[0])
    with np.errstate(over="ignore"):
        for factor in factors[1:]:
            product = np.float32(product * np.float32(factor))
        quotient = float(np.float32(product / np.float32(divisor)))
    return quotient if math.isfinite(quotient) else math.prod(factors) / divisor


def round_scaled(x: IntArray, factor: Array | float) -> IntArray:
    """``x * factor`` in float64, rounded once to nearest with ties away from zero, saturated to int32."""
    scaled = np.asarray(x).astype(np.float64) * factor
    rounded = np.copysign(np.floor(np.abs(scaled) + 0.5), scaled)
    return np.asarray(np.clip(rounded, INT32_MIN, INT32_MAX).astype(np.int64))


def per_channel_multipliers(
    input_scale: float, weight_scales: tuple[float, ...], output_scale: float
) -> tuple[IntArray, IntArray]:
    """Multiplier and shift for each output channel of a convolution or linear layer."""
    multipliers, shifts = quantize_multipliers([input_scale * w / output_scale for w in weight_scales])
    return np.array(multipliers, np.int64), np.array(shifts, np.int64)


def saturate(x: IntArray, low: int, high: int, dtype: str = "int8") -> IntArray:
    """Clamps to [low, high] and converts."""
    return np.clip(x, low, high).astype(dtype)


# ---------------------------------------------------------------- fixed point, for softmax
# A number in "Qm" below is an int32 with m integer bits, so its unit is 2**(m - 31).


def saturating_left_shift(x: IntArray, exponent: int) -> IntArray:
    return np.clip(np.asarray(x, np.int64) << exponent, INT32_MIN, INT32_MAX)


def _exp_between_minus_quarter_and_zero(a: IntArray) -> IntArray:
    """exp(a) for a in [-1/4, 0), Q0 to Q0: Taylor's series around -1/8."""
    exp_of_minus_eighth, one_third = 1895147668, 715827883
    x = a + (1 << 28)
    x2 = doubling_high_multiply(x, x)
    x3 = doubling_high_multiply(x2, x)
    x4 = doubling_high_multiply(x2, x2)
    tail = rounding_right_shift(doubling_high_multiply(rounding_right_shift(x4, 2) + x3, one_third) + x2, 1)
    return exp_of_minus_eighth + doubling_high_multiply(x + tail, exp_of_minus_eighth)


def exp_on_negative_values(a: IntArray, integer_bits: int) -> IntArray:
    """exp(a) for a <= 0 given in Q``integer_bits`` (at most 5); the result is in Q0."""
    fractional_bits = 31 - integer_bits
    quarter = 1 << (fractional_bits - 2)
    remainder_of_quarter = (a & (quarter - 1)) - quarter
    result = _exp_between_minus_quarter_and_zero(saturating_left_shift(remainder_of_quarter, integer_bits))
    remainder = remainder_of_quarter - a
    powers = {-2: 1672461947, -1: 1302514674, 0: 790015084, 1: 290630308, 2: 39332535, 3: 720401, 4: 242}
    for exponent, multiplier in powers.items():  # exp(-2**exponent)
        if integer_bits > exponent:
            bit = 1 << (fractional_bits + exponent)
            result = np.where(remainder & bit, doubling_high_multiply(result, multiplier), result)
    return np.where(a == 0, INT32_MAX, result)


def one_over_one_plus_x(a: IntArray) -> IntArray:
    """1 / (1 + a) for a in [0, 1], Q0 to Q0: three steps of Newton and Raphson's division."""
    half_denominator = (a + INT32_MAX + 1) >> 1
    x = 1515870810 + doubling_high_multiply(half_denominator, -1010580540)  # 48/17 - 32/17 d, in Q2
    for _ in range(3):
        error = (1 << 29) - doubling_high_multiply(half_denominator, x)
        x = x + saturating_left_shift(doubling_high_multiply(x, error), 2)
    return saturating_left_shift(x, 1)


def reciprocal(x: IntArray, integer_bits: int) -> tuple[IntArray, IntArray]:
    """1 / x for positive x in Q``integer_bits``: a Q0 number, and the right shift still to be applied."""
    headroom = np.array([32 - int(v).bit_length() for v in np.ravel(x)], np.int64).reshape(np.shape(x))
    normalized = wrap_int32((x << headroom) - (1 << 31))
    return one_over_one_plus_x(normalized), integer_bits - headroom


def wide_lookup_table(
    function: Any, x_scale: float, x_zero: int, y_scale: float, y_zero: int, real: type[np.floating[Any]] = np.float32
) -> IntArray:
    """513 int16 results of a real function at every 128th int16 input, to be interpolated linearly.

    Every entry but the last is shifted by half of the interpolation error at the midpoint of its interval, which halves
    the largest error of a curved function.

    Args:
        real: type in which LiteRT computes this table.

    Source: LiteRT ``kernels/internal/common.h`` (Apache-2.0), described here by its results.
    """
    low, high = -(2**15), 2**15 - 1
    x_low, x_high = (real(x_scale) * real(n - x_zero) for n in (low, high))
    y_low, y_high = (real(y_scale) * real(n - y_zero) for n in (low, high))
    step = (x_high - x_low) / real(512)
    inverse = real(65536) / (y_high - y_low)

    def rounded(x: Array) -> Array:
        return np.asarray(np.copysign(np.floor(np.abs(x) + real(0.5)), x), real)

    def at(x: Array) -> Array:
        return np.asarray(np.asarray(function(x.astype(np.float64))).astype(real) * inverse, real)

    numbers = np.arange(512, dtype=real)
    sample = rounded(at(x_low + numbers * step))
    between = rounded((at(x_low + (numbers + real(1)) * step) + sample) / real(2))
    middle = rounded(at(x_low + numbers * step + step / real(2)))
    last = rounded(at(np.array([x_high], real)))
    entries = np.concatenate([sample - rounded((between - middle) / real(2)), last])
    return np.asarray(entries.clip(low, high).astype(np.int16))


def wide_lookup(table: IntArray, x: IntArray) -> IntArray:
    """Interpolate linearly between the 513 entries of `wide_lookup_table` for int16 inputs; int64."""
    entries, found = table.astype(np.int64), x.astype(np.int64)
    index = found >> 7
    index += 256
    found &= 0x7F  # in place: memory for temporaries of all 65,536 numbers takes longer than computing them
    found *= np.diff(entries)[index]
    found += 64
    found >>= 7
    found += entries[index]
    return found


def wide_results(table: IntArray) -> IntArray:
    """`wide_lookup` of all int16 numbers, from the lowest to the highest."""
    table = table.astype(np.int64)
    return np.asarray(table[:-1, None] + ((np.diff(table)[:, None] * np.arange(128) + 64) >> 7)).reshape(-1)


def lookup_table(function: Any, x_scale: float, x_zero: int, y_scale: float, y_zero: int) -> IntArray:
    """The 256 int8 results of a real function of an int8 input; entry ``i`` is the result for ``i - 128``.

    Scales enter as float32 and the scaled result is rounded in float32, as LiteRT builds its tables.
    """
    x = np.float32(x_scale) * (np.arange(-128, 128, dtype=np.int32) - x_zero).astype(np.float32)
    y = function(x.astype(np.float64)).astype(np.float32)
    scaled = y * (np.float32(1.0) / np.float32(y_scale))
    rounded = np.copysign(np.floor(np.abs(scaled) + np.float32(0.5)), scaled)
    return np.asarray(np.clip(rounded.astype(np.int64) + y_zero, -128, 127).astype(np.int8))
