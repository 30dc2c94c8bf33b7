"""The integer arithmetic against the same rules in Python's own exact integers and fractions."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from micronpu.ir.arithmetic import (
    INT32_MAX,
    INT32_MIN,
    doubling_high_multiply,
    exp_on_negative_values,
    float32_quotient,
    lookup_table,
    multiply_by_quantized_multiplier,
    one_over_one_plus_x,
    per_channel_multipliers,
    quantize_multiplier,
    quantize_multipliers,
    reciprocal,
    requantize,
    round_half_away,
    round_scaled,
    rounding_right_shift,
    saturate,
    saturating_left_shift,
    wrap_int32,
)
from micronpu.ops.activation import sigmoid

EXTREMES = [INT32_MIN, INT32_MIN + 1, -(2**30), -1, 0, 1, 2**30, 2**30 - 1, INT32_MAX - 1, INT32_MAX]
int32s = st.integers(INT32_MIN, INT32_MAX) | st.sampled_from(EXTREMES) | st.integers(-1000, 1000)
multipliers = st.integers(2**30, INT32_MAX) | st.sampled_from([0, 2**30, 2**30 + 1, INT32_MAX])
shifts = st.integers(-31, 30)
reals = st.floats(min_value=0, max_value=1e12, allow_subnormal=True) | st.floats(1e-12, 10)


def away(value: Fraction) -> int:
    """Nearest integer, ties away from zero."""
    return math.floor(abs(value) + Fraction(1, 2)) * (1 if value >= 0 else -1)


def upwards(value: Fraction) -> int:
    """Nearest integer, ties towards plus infinity."""
    return math.floor(value + Fraction(1, 2))


def wrapped(value: int) -> int:
    """Two's complement of 32 bits."""
    return int.from_bytes((value % 2**32).to_bytes(4, "little"), "little", signed=True)


def exact_multiplier(value: float) -> tuple[int, int]:
    """Multiplier and shift by halving and doubling an exact fraction."""
    fraction, shift = Fraction(value), 0
    if fraction == 0:
        return 0, 0
    while fraction >= 1:
        fraction, shift = fraction / 2, shift + 1
    while fraction < Fraction(1, 2):
        fraction, shift = fraction * 2, shift - 1
    multiplier = away(fraction * 2**31)
    if multiplier == 2**31:
        multiplier, shift = 2**30, shift + 1
    if shift < -31:
        return 0, 0
    return (INT32_MAX, 30) if shift > 30 else (multiplier, shift)


def exact_high(a: int, b: int) -> int:
    return INT32_MAX if a == b == INT32_MIN else upwards(Fraction(a * b, 2**31))


def exact_product(x: int, multiplier: int, shift: int) -> int:
    high = exact_high(wrapped(x << max(shift, 0)), multiplier)
    return away(Fraction(high, 2 ** max(-shift, 0)))


# ---------------------------------------------------------------- requantization


def test_quotients_beyond_float32_are_numbers():
    assert float32_quotient(1e30, 1e25, 1e25) == pytest.approx(1e20, rel=1e-12)
    assert float32_quotient(3.0, 0.5, 0.25) == float(np.float32(np.float32(0.125) / np.float32(3.0)))
    assert quantize_multiplier(math.inf) == quantize_multiplier(1e300) == (2**31 - 1, 30)


@given(reals)
@example(0.0)
@example(1.0)
@example(0.5)
@example(1 - 2**-53)
@example(2.0**-32)
@example(2.0**-33)
@example(1 - 2**-32)
@example(5e-324)
@example(2.0**30)
@example(2.0**31)
def test_quantize_multiplier_is_the_rule(value):
    assert quantize_multiplier(value) == exact_multiplier(value)


@given(st.lists(reals, min_size=1, max_size=40))
@example([0.0, 1.0, 1 - 2**-53, 2.0**-32, 2.0**-33, 1 - 2**-32, 5e-324, 2.0**30, 2.0**31, 2.0**40])
def test_many_multipliers_are_those_of_each(values):
    multipliers, shifts = quantize_multipliers(values)
    assert list(zip(multipliers, shifts, strict=True)) == [quantize_multiplier(value) for value in values]
    assert all(type(number) is int for number in (*multipliers, *shifts))


@given(st.floats(2.0**-31, 2.0**29))
def test_a_multiplier_is_31_bits_of_the_value(value):
    multiplier, shift = quantize_multiplier(value)
    assert 2**30 <= multiplier < 2**31
    assert abs(Fraction(multiplier) * Fraction(2) ** (shift - 31) - Fraction(value)) <= Fraction(value) / 2**31


@given(int32s, int32s)
@example(INT32_MIN, INT32_MIN)
@example(INT32_MIN, INT32_MAX)
@example(-(2**30), 1)
@example(2**30, 1)
def test_doubling_high_multiply(a, b):
    assert int(doubling_high_multiply(np.array(a), b)) == exact_high(a, b)


def test_doubling_high_multiply_saturates_only_where_both_are_the_minimum():
    a = np.array(EXTREMES)
    results = doubling_high_multiply(a[:, None], a[None, :])
    assert results[0, 0] == INT32_MAX
    assert doubling_high_multiply(np.array(INT32_MIN), INT32_MAX) == -INT32_MAX
    assert results.min() >= INT32_MIN
    assert results.max() <= INT32_MAX


@given(int32s, st.integers(0, 31))
@example(INT32_MIN, 31)
@example(INT32_MAX, 31)
@example(-1, 1)
@example(1, 1)
@example(-3, 1)
def test_rounding_right_shift(x, exponent):
    assert int(rounding_right_shift(np.array(x), exponent)) == away(Fraction(x, 2**exponent))


@given(int32s, multipliers, shifts)
@example(INT32_MIN, INT32_MAX, 30)
@example(INT32_MAX, INT32_MAX, 0)
@example(INT32_MIN, 2**30, -31)
@example(1, 2**30, 0)
@example(-1, 2**30, 0)
def test_multiply_by_quantized_multiplier(x, multiplier, shift):
    assert int(multiply_by_quantized_multiplier(np.array(x), multiplier, shift)) == exact_product(x, multiplier, shift)


@given(st.lists(int32s, min_size=1, max_size=5), st.lists(st.tuples(multipliers, shifts), min_size=1, max_size=4))
def test_arrays_of_multipliers_broadcast(values, pairs):
    x = np.array(values)[:, None]
    got = multiply_by_quantized_multiplier(x, np.array([m for m, _ in pairs]), np.array([s for _, s in pairs]))
    assert got.tolist() == [[exact_product(v, m, s) for m, s in pairs] for v in values]


def test_two_roundings_are_not_one():
    """The double rounding of the contract shows where the first one lands on a tie."""
    x, multiplier, shift = 2, INT32_MAX, -2  # just below 0.5 is 2 after the first rounding, and 0.5 then rounds up
    assert multiply_by_quantized_multiplier(np.array(x), multiplier, shift) == 1
    assert round_scaled(np.array(x), multiplier * 2.0 ** (shift - 31)) == 0


@given(int32s, st.floats(1e-6, 0.999))
def test_requantize_is_within_a_step_of_the_real_product(x, factor):
    """Half a step for each rounding, and what 31 bits of the factor leave of it."""
    error = abs(Fraction(int(requantize(np.array(x), factor))) - Fraction(x) * Fraction(factor))
    assert error <= 1 + Fraction(abs(x), 2**31)


def test_per_channel_multipliers_are_those_of_each_channel():
    scales = (0.01, 1e-6, 3.0)
    multiplier, shift = per_channel_multipliers(0.05, scales, 0.2)
    assert list(zip(multiplier.tolist(), shift.tolist(), strict=True)) == [
        quantize_multiplier(0.05 * s / 0.2) for s in scales
    ]


@given(int32s, st.floats(1e-9, 1e6))
@example(1, 0.5)
@example(-1, 0.5)
@example(INT32_MIN, 1e6)
@example(INT32_MAX, 1e6)
def test_round_scaled_rounds_once(x, factor):
    """One float64 product, which is exact enough to model, then ties away from zero, held in int32."""
    expected = min(max(away(Fraction(float(x) * factor)), INT32_MIN), INT32_MAX)
    if abs(float(x) * factor) < 2**51:  # below, adding a half is exact
        assert int(round_scaled(np.array(x), factor)) == expected
    assert INT32_MIN <= int(round_scaled(np.array(x), factor)) <= INT32_MAX


# ---------------------------------------------------------------- small parts


@given(st.integers(-(2**62), 2**62))
def test_wrap_int32(x):
    assert int(wrap_int32(np.array(x))) == wrapped(x)


@given(st.floats(-1e9, 1e9))
@example(0.5)
@example(-0.5)
@example(2.5)
@example(-0.0)
def test_round_half_away(value):
    assert round_half_away(value) == away(Fraction(value))


@given(int32s, st.integers(0, 30))
def test_saturating_left_shift(x, exponent):
    assert int(saturating_left_shift(np.array(x), exponent)) == min(max(x << exponent, INT32_MIN), INT32_MAX)


def test_saturate():
    result = saturate(np.array([-(10**9), -129, -128, 0, 127, 128]), -128, 127)
    assert result.dtype == np.int8
    assert result.tolist() == [-128, -128, -128, 0, 127, 127]
    assert saturate(np.array([300]), -500, 500, "int16").dtype == np.int16


# ---------------------------------------------------------------- fixed point


@pytest.mark.parametrize("integer_bits", range(6))
def test_exp_is_right_to_22_bits(integer_bits):
    """The error of the polynomial: 492 units of 2**-31, which is 2**-22."""
    random = np.random.default_rng(integer_bits)
    a = np.concatenate([-random.integers(0, 2**31, 100_000), [0, -1, INT32_MIN, INT32_MIN + 1], -(2 ** np.arange(31))])
    got = exp_on_negative_values(a, integer_bits)
    assert np.abs(got - np.exp(a / 2.0 ** (31 - integer_bits)) * 2**31).max() < 512
    assert got.min() >= 0
    assert got.max() <= INT32_MAX
    assert exp_on_negative_values(np.array([0]), integer_bits) == INT32_MAX


def test_exp_does_not_grow_towards_minus_infinity():
    """By more than the polynomial's error, where its pieces meet."""
    a = np.arange(0, -(2**31), -12345)
    assert np.diff(exp_on_negative_values(a, 5)).max() < 1024


def test_one_over_one_plus_x_is_right_to_28_bits():
    random = np.random.default_rng(0)
    a = np.concatenate([random.integers(0, 2**31, 100_000), [0, 1, INT32_MAX, INT32_MAX - 1]])
    got = one_over_one_plus_x(a)
    assert np.abs(got - 2**31 / (1 + a / 2**31)).max() < 8
    assert got.max() <= INT32_MAX


@given(st.integers(1, INT32_MAX), st.integers(0, 12))
@example(1, 0)
@example(INT32_MAX, 12)
@example(2**30, 5)
def test_reciprocal(x, integer_bits):
    value, shift = reciprocal(np.array([x]), integer_bits)
    real = Fraction(2 ** (31 - integer_bits), x)
    got = Fraction(int(value[0]), 2**31) / Fraction(2) ** int(shift[0])
    assert abs(got - real) <= real / 2**27


# ---------------------------------------------------------------- tables

scales = st.floats(1e-6, 30).map(lambda s: float(np.float32(s)))
zeros = st.integers(-128, 127)


@pytest.mark.parametrize(
    ("function", "scale", "zero"), [(sigmoid, 1 / 256, -128), (np.tanh, 1 / 128, 0)], ids=["sigmoid", "tanh"]
)
@given(x_scale=scales, x_zero=zeros)
def test_tables_are_the_rounded_function(function, scale, zero, x_scale, x_zero):
    """Half a step away from the real function, and the few units in the last place of float32 that LiteRT loses."""
    table = lookup_table(function, x_scale, x_zero, scale, zero)
    assert table.dtype == np.int8
    assert table.shape == (256,)
    real = function(x_scale * (np.arange(-128, 128) - x_zero)) / scale + zero
    assert np.abs(table - np.clip(real, -128, 127)).max() <= 0.5 + 1e-4
    assert np.diff(table.astype(int)).min() >= 0


@given(x_scale=scales, x_zero=zeros, y_scale=scales, y_zero=zeros)
def test_a_table_of_the_identity_is_a_change_of_qparams(x_scale, x_zero, y_scale, y_zero):
    table = lookup_table(lambda x: x, x_scale, x_zero, y_scale, y_zero).astype(int)
    real = x_scale * (np.arange(-128, 128) - x_zero) / y_scale
    inside = np.abs(real) < 1000
    assert np.abs(table - np.clip(real + y_zero, -128, 127))[inside].max(initial=0) <= 0.5 + 1e-3
    assert set(table[~inside]) <= {-128, 127}


def test_ties_in_a_table_go_away_from_zero():
    table = lookup_table(lambda x: x, 0.5, 0, 1.0, 0)
    assert [int(table[128 + i]) for i in (-3, -1, 1, 3)] == [-2, -1, 1, 2]
