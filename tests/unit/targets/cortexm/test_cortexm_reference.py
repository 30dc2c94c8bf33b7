"""The reference of the `cortex_m::*` operators against loops over Python's exact integers."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.cortexm_reference import REFERENCES, pool_output_size

from micronpu.base.errors import ModelError

INT32_MAX = (1 << 31) - 1


def wrap(value: int) -> int:
    return (value + (1 << 31)) % (1 << 32) - (1 << 31)


def rounding_shift(value: int, exponent: int) -> int:
    """Nearest, ties away from zero."""
    half = (1 << exponent) // 2
    return math.copysign(1, value) * ((abs(value) + half) >> exponent)


def high(a: int, b: int) -> int:
    """Doubling high multiplication, rounded to nearest, ties upwards."""
    return (a * b + (1 << 30)) >> 31


def requantized(value: int, multiplier: int, shift: int) -> int:
    return int(rounding_shift(high(wrap(value << max(shift, 0)), multiplier), max(-shift, 0)))


def clamp(value: int, low: int = -128, most: int = 127) -> int:
    return max(low, min(most, value))


def random_int8(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-128, 128, shape).astype(np.int8)


int8 = st.integers(-128, 127)
multipliers = st.integers(1 << 30, INT32_MAX)


@given(int8, int8, int8, int8, int8, multipliers, st.integers(-31, 10))
@example(127, -128, -128, 127, 0, INT32_MAX, 10)
@example(1, 0, 1, 0, 0, 1 << 30, 0)
@example(-1, 0, 1, 0, 0, 1 << 30, 0)
@example(-3, 0, 1, 0, 0, 1 << 30, -1)
@settings(max_examples=500, deadline=None)
def test_mul(a: int, a_zero: int, b: int, b_zero: int, zero: int, multiplier: int, shift: int) -> None:
    y = REFERENCES["quantized_mul"](np.int8([a]), a_zero, np.int8([b]), b_zero, zero, multiplier, shift)
    assert y.tolist() == [clamp(requantized((a - a_zero) * (b - b_zero), multiplier, shift) + zero)]
    assert y.dtype == np.int8


@given(int8, int8, int8, int8, int8, multipliers, multipliers, multipliers, st.integers(-20, 0), st.integers(-25, -10))
@settings(max_examples=500, deadline=None)
def test_add(
    a: int, a_zero: int, b: int, b_zero: int, zero: int, first: int, second: int, last: int, shift: int, final: int
) -> None:
    arguments = (np.int8([a]), a_zero, first, shift, np.int8([b]), b_zero, second, 0, zero, last, final, -100, 90)
    left = requantized((a - a_zero) << 20, first, shift)
    right = requantized((b - b_zero) << 20, second, 0)
    expected = clamp(requantized(left + right, last, final) + zero, -100, 90)
    assert REFERENCES["quantized_add"](*arguments).tolist() == [expected]


def test_quantize_rounds_ties_to_even_and_saturates() -> None:
    x = np.float32([0.25, 0.75, 1.25, -0.25, -0.75, np.nan, np.inf, -np.inf, 1e30])
    y = REFERENCES["quantize_per_tensor"](x, 0.5, 1, -128, 127, np.int8)
    assert y.tolist() == [1, 3, 3, 1, -1, 1, 127, -128, 127]
    wide = REFERENCES["quantize_per_tensor"](x, 0.5, 1, -32768, 32767, np.int16)
    assert wide.tolist()[-3:] == [32767, -32768, 32767]
    assert wide.dtype == np.int16


def test_dequantize() -> None:
    y = REFERENCES["dequantize_per_tensor"](np.int16([-32768, 0, 32767]), 0.1, 5, -32768, 32767, np.int16)
    assert y.dtype == np.float32
    assert np.array_equal(y, np.float32([-32773, -5, 32762]) * np.float32(0.1))


def test_div_rounds_ties_away_and_divides_by_zero_to_zero() -> None:
    a, b = np.int8([1, -1, 3, 5, 0, 100]), np.int8([2, 2, 2, 0, 0, 1])
    assert REFERENCES["quantized_div"](a, 0, b, 0, 0, 1.0).tolist() == [1, -1, 2, 0, 0, 100]
    assert REFERENCES["quantized_div"](a, 0, b, 0, 7, 1.0).tolist() == [8, 6, 9, 7, 7, 107]
    assert REFERENCES["quantized_div"](a, 0, b, 0, 0, 1e30).tolist() == [127, -128, 127, 0, 0, 127]


def test_activation() -> None:
    table = random_int8(256)
    assert (
        REFERENCES["quantized_activation"](np.int8([-128, -1, 0, 127]), table).tolist()
        == table[[0, 127, 128, 255]].tolist()
    )


def test_kernel_sum_is_another_way_to_say_bias() -> None:
    x, weights, bias = random_int8(3, 17), random_int8(5, 17, seed=1), np.arange(-2, 3, dtype=np.int32) * 700
    end = (9, 3, -4, [1518500250], [-8], 127, -128)
    sums = (weights.astype(np.int32) + 3).sum(1) * 9 + bias
    first = REFERENCES["quantized_linear"](x, weights, bias, None, *end)
    assert np.array_equal(first, REFERENCES["quantized_linear"](x, weights, None, sums.reshape(1, 5), *end))
    assert len(np.unique(first)) > 10


def test_batch_matmul() -> None:
    lhs, rhs = random_int8(2, 3, 5), random_int8(2, 4, 5, seed=1)
    y = REFERENCES["quantized_batch_matmul"](lhs, 7, rhs, -9, 3, 1 << 30, -6)
    for b, i, j in itertools.product(range(2), range(3), range(4)):
        total = sum((int(lhs[b, i, k]) + 7) * (int(rhs[b, j, k]) - 9) for k in range(5))
        assert y[b, i, j] == clamp(requantized(total, 1 << 30, -6) + 3)


# ---------------------------------------------------------------- softmax


def saturating_left(value: int, exponent: int) -> int:
    return clamp(value << exponent, -(1 << 31), INT32_MAX)


def exponential(value: int) -> int:
    """exp(value / 2**26) in units of 2**-31, for value <= 0."""
    if value == 0:
        return INT32_MAX
    part = (value & 0xFFFFFF) - (1 << 24)
    rest = part - value
    x = (part << 5) + (1 << 28)
    x2 = high(x, x)
    tail = int(rounding_shift(high(int(rounding_shift(high(x2, x2), 2)) + high(x2, x), 715827883) + x2, 1))
    result = 1895147668 + high(1895147668, x + tail)
    factors = (1672461947, 1302514674, 790015084, 290630308, 39332535, 720401, 242)
    for bit, factor in enumerate(factors, start=24):
        if rest >> bit & 1:
            result = high(result, factor)
    return result


def softmax_row(row: list[int], multiplier: int, shift: int, diff_min: int) -> list[int]:
    largest = max(row)
    parts = [exponential(high((x - largest) << shift, multiplier)) if x - largest >= diff_min else None for x in row]
    total = int(sum(rounding_shift(part, 12) for part in parts if part is not None))
    headroom = 32 - total.bit_length()
    half = ((total << headroom) - (1 << 31) + INT32_MAX + 1) // 2
    x = 1515870810 + high(half, -1010580540)
    for _ in range(3):
        x += saturating_left(high(x, (1 << 29) - high(half, x)), 2)
    scale = saturating_left(x, 1)
    return [
        -128 if part is None else clamp(int(rounding_shift(high(scale, part), 12 - headroom + 23)) - 128)
        for part in parts
    ]


def softmax_parameters(scale: float) -> tuple[int, int, int]:
    """As ExecuTorch's compiler computes them."""
    fraction, shift = math.frexp(min(scale * 2**26, float(INT32_MAX)))
    return round(fraction * 2**31), shift, -math.floor(31 * 2**26 / 2**shift)


@pytest.mark.parametrize("scale", [0.002, 0.0123, 0.1, 1.0, 9.0])
@pytest.mark.parametrize("size", [1, 2, 10, 77])
def test_softmax(scale: float, size: int) -> None:
    x = random_int8(50, size, seed=size)
    parameters = softmax_parameters(scale)
    y = REFERENCES["softmax"](x, -1, 0, -128, *parameters)
    assert y.tolist() == [softmax_row(row, *parameters) for row in x.tolist()]
    real = np.exp((x - x.max(1, keepdims=True).astype(np.int64)) * scale)
    real = real / real.sum(1, keepdims=True) * 256 - 128
    assert np.abs(np.clip(real, -128, 127) - y).max() <= 1
    assert np.array_equal(REFERENCES["softmax"](x.T, 0, 0, -128, *parameters), y.T)


def test_softmax_refuses_sums_that_cmsis_nn_cannot_hold() -> None:
    parameters = softmax_parameters(0.1)
    assert REFERENCES["softmax"](np.zeros((1, 511), np.int8), 1, 0, -128, *parameters).tolist() == [[-127] * 511]
    with pytest.raises(ModelError, match="512 or more"):
        REFERENCES["softmax"](np.zeros((1, 512), np.int8), 1, 0, -128, *parameters)


# ---------------------------------------------------------------- images

SCALES = (np.int32([1 << 30, INT32_MAX, 1518500250, 1 << 30]), np.int32([-7, -8, -7, 0]))
BIAS = np.int32([100, -100, 0, 1])
END = (5, -3, *SCALES, -100, 110)


def finished(total: int, channel: int) -> int:
    scale = int(SCALES[0][channel]), int(SCALES[1][channel])
    return clamp(requantized(total, *scale) - 3, -100, 110)


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("stride", [(1, 1), (2, 3)])
@pytest.mark.parametrize("padding", [(0, 0), (2, 1)])
@pytest.mark.parametrize("dilation", [(1, 1), (1, 2)])
def test_conv2d(groups: int, stride: tuple[int, int], padding: tuple[int, int], dilation: tuple[int, int]) -> None:
    x, weight = random_int8(2, 4, 6, 7), random_int8(4, 3, 2, 4 // groups, seed=1)
    y = REFERENCES["quantized_conv2d"](x, weight, BIAS, stride, padding, dilation, *END)
    for n, o, row, column in np.ndindex(*y.shape):
        total = int(BIAS[o])
        for i, j, c in np.ndindex(3, 2, 4 // groups):
            h, w = row * stride[0] - padding[0] + i * dilation[0], column * stride[1] - padding[1] + j * dilation[1]
            if 0 <= h < 6 and 0 <= w < 7:
                channel = o // (4 // groups) * (4 // groups) + c
                total += (int(x[n, channel, h, w]) + 5) * int(weight[o, i, j, c])
        assert y[n, o, row, column] == finished(total, o)
    nhwc = REFERENCES["quantized_conv2d_nhwc"](x.transpose(0, 2, 3, 1), weight, BIAS, stride, padding, dilation, *END)
    assert np.array_equal(nhwc, y.transpose(0, 2, 3, 1))
    if groups == 4:
        depthwise = weight[..., 0].transpose(1, 2, 0)[None]
        same = REFERENCES["quantized_depthwise_conv2d"](x, depthwise, BIAS, stride, padding, dilation, 1, *END)
        assert np.array_equal(same, y)


def test_depth_multiplier() -> None:
    x, weight = random_int8(1, 2, 4, 4), random_int8(1, 3, 3, 4, seed=1)
    y = REFERENCES["quantized_depthwise_conv2d"](x, weight, None, (1, 1), (1, 1), (1, 1), 2, *END)
    grouped = weight.transpose(3, 1, 2, 0)
    assert np.array_equal(y, REFERENCES["quantized_conv2d"](x, grouped, None, (1, 1), (1, 1), (1, 1), *END))


@pytest.mark.parametrize(("stride", "padding"), [((1, 1), (0, 0)), ((2, 3), (1, 0)), ((3, 2), (0, 1))])
def test_transpose_conv2d(stride: tuple[int, int], padding: tuple[int, int]) -> None:
    x, weight = random_int8(2, 3, 3, 4), random_int8(4, 3, 2, 3, seed=1)
    y = REFERENCES["quantized_transpose_conv2d"](x, weight, BIAS, stride, padding, (0, 0), (1, 1), *END)
    size = 2 * stride[0] + 3 - 2 * padding[0], 3 * stride[1] + 2 - 2 * padding[1]
    totals = np.broadcast_to(BIAS.reshape(1, 4, 1, 1), (2, 4, *size)).astype(np.int64)
    for n, c, h, w, o, i, j in np.ndindex(2, 3, 3, 4, 4, 3, 2):
        row, column = h * stride[0] + i - padding[0], w * stride[1] + j - padding[1]
        if 0 <= row < size[0] and 0 <= column < size[1]:
            totals[n, o, row, column] += (int(x[n, c, h, w]) + 5) * int(weight[o, i, j, c])
    expected = [finished(int(total), index[1]) for index, total in np.ndenumerate(totals)]
    assert y.shape == totals.shape
    assert y.ravel().tolist() == expected


def test_sums_wrap_around_as_int32_registers_do() -> None:
    x, weight = np.ones((1, 1, 1, 1), np.int8), np.ones((1, 1, 1, 1), np.int8)
    arguments = ((1, 1), (0, 0), (1, 1), 0, 0, np.int32([1 << 30]), np.int32([-31]), -128, 127)
    y = REFERENCES["quantized_conv2d"](x, weight, np.int32([INT32_MAX]), *arguments)
    assert y.item() == -1  # -2**31 / 2**32 is a tie


def test_average_pool() -> None:
    """Ties go away from the number 0, and what lies outside the image does not count."""
    x = np.int8([[[[1, 0, -1, 0], [0, 1, 0, -2]]]])
    arguments = (False, -128, 1 << 30, -3)
    assert REFERENCES["quantized_avg_pool2d"](x, [2, 2], [2, 2], [0, 0], *arguments).tolist() == [[[[1, -1]]]]
    assert REFERENCES["quantized_avg_pool2d"](x, [1, 2], [1, 2], [0, 0], *arguments).tolist() == [[[[1, -1], [1, -1]]]]
    padded = REFERENCES["quantized_avg_pool2d"](x, [2, 2], [2, 2], [1, 1], *arguments)
    assert padded.tolist() == [[[[1, -1, 0], [0, 1, -2]]]]


def test_max_pool() -> None:
    x = np.int8([[[[-128, -128], [-127, 100]]]])
    arguments = ([1, 1], False, 4, 4, -120, 90)
    assert REFERENCES["quantized_max_pool2d"](x, [2, 2], [2, 2], [0, 0], *arguments).tolist() == [[[[90]]]]
    padded = REFERENCES["quantized_max_pool2d"](x, [2, 2], [1, 1], [1, 1], *arguments)
    assert padded.tolist() == [[[[-120, -120, -120], [-120, 90, 90], [-120, 90, 90]]]]


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "padding", "floor", "ceiling"),
    [(6, 3, 2, 0, 2, 3), (5, 3, 2, 0, 2, 2), (5, 2, 3, 1, 2, 2), (7, 2, 3, 0, 2, 3), (1, 1, 1, 0, 1, 1)],
)
def test_pool_output_size(size: int, kernel: int, stride: int, padding: int, floor: int, ceiling: int) -> None:
    assert pool_output_size(size, kernel, stride, padding, False) == floor
    assert pool_output_size(size, kernel, stride, padding, True) == ceiling


def test_padding_counts_axes_as_they_lie_in_memory() -> None:
    x = random_int8(1, 2, 3, 4)
    plain = REFERENCES["pad"](x, [0, 1, 2, 3], [0, 0, 1, 0], 9)
    last = REFERENCES["pad"](x, [0, 1, 2, 3], [0, 0, 1, 0], 9, channels_last=True)
    assert plain.shape == (1, 3, 6, 7)
    assert last.shape == (1, 5, 4, 7)
    assert np.array_equal(plain[:, 1:, 2:5, 3:], x)
    assert np.array_equal(last[:, 3:, 1:, 2:6], x)
    assert (plain == 9).sum() >= plain.size - x.size
    assert REFERENCES["pad"](x[0, 0], [0, 0, 0, 1], [0, 0, 0, 2], 0).shape == (3, 7)


def test_transpose() -> None:
    x = random_int8(2, 3, 4)
    assert np.array_equal(REFERENCES["transpose"](x, [2, 0, 1]), np.moveaxis(x, 2, 0))


def test_minimum_and_maximum() -> None:
    a, b = random_int8(2, 1, 4), random_int8(3, 1, seed=1)
    assert REFERENCES["minimum"](a, b).tolist() == [
        [[min(x, y[0]) for x in r[0]] for y in b.tolist()] for r in a.tolist()
    ]
    assert REFERENCES["maximum"](a, b).tolist() == [
        [[max(x, y[0]) for x in r[0]] for y in b.tolist()] for r in a.tolist()
    ]
