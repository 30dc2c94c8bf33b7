"""The integer arithmetic of the `cortex_m::*` operators, in NumPy: the definition that the host kernels are held to.

One function per schema of `executorch.backends.cortex_m`, with the schema's arguments in the schema's order and arrays
in place of tensors. Arrays have the tensor's logical shape: [N, C, H, W], and [N, H, W, C] for the `_nhwc` forms.
Scratch tensors are accepted and ignored; they have no influence on the numbers.

The arithmetic is that of CMSIS-NN's kernels as a board runs them, with two roundings per requantization
(`CMSIS_NN_USE_SINGLE_ROUNDING` not set). ExecuTorch's own eager implementations of four operators compute in floating
point and differ: by at most one step for `quantized_avg_pool2d`, `softmax` and `quantized_div`, and for
`quantized_batch_matmul` and `quantized_transpose_conv2d` once an accumulator exceeds 2**24.

Source: https://github.com/ARM-software/CMSIS-NN, `Include/arm_nnsupportfunctions.h` (arm_nn_requantize) and `Source/`
(Apache-2.0); the file of each operator is named in its doc-string. Described here by their results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from micronpu.base.errors import ModelError
from micronpu.ir.arithmetic import (
    doubling_high_multiply,
    exp_on_negative_values,
    multiply_by_quantized_multiplier,
    reciprocal,
    rounding_right_shift,
    saturate,
    wrap_int32,
)

Array = npt.NDArray[Any]
Reference = Callable[..., Array]

REFERENCES: dict[str, Reference] = {}
"""Operator name without `cortex_m::`, such as "quantized_add", to its reference."""

ADD_LEFT_SHIFT = 20
"""Bits that `quantized_add` shifts its inputs left, for precision."""

_SUM_INTEGER_BITS = 12
_DIFFERENCE_INTEGER_BITS = 5
SOFTMAX_SUM_LIMIT = 1 << 28
"""From this sum of a row's exponentials on, arm_softmax_s8 shifts by more than 31 bits, which C leaves undefined."""


def _operator(function: Reference) -> Reference:
    REFERENCES[function.__name__] = function
    return function


def _channels_last_form(function: Reference) -> Reference:
    """Registers the function, and its `_nhwc` form, whose first argument and result are [N, H, W, C]."""

    def nhwc(x: Array, *arguments: Any) -> Array:
        return function(x.transpose(0, 3, 1, 2), *arguments).transpose(0, 2, 3, 1)

    REFERENCES[function.__name__ + "_nhwc"] = nhwc
    return _operator(function)


def _requantize(accumulator: Array, multiplier: Array | int, shift: Array | int) -> Array:
    """arm_nn_requantize of an int32 accumulator, which wraps around as an int32 register does."""
    return multiply_by_quantized_multiplier(wrap_int32(accumulator), multiplier, shift)


def _wide(x: Array) -> Array:
    return np.asarray(x).astype(np.int64)


def _per_channel(values: Array) -> Array:
    """[C] to [1, C, 1, 1]."""
    return _wide(values).reshape(1, -1, 1, 1)


def _pair(values: Sequence[int]) -> tuple[int, int]:
    """A size of both axes, or one for both."""
    return (int(values[0]), int(values[-1]))


# ---------------------------------------------------------------- quantize and dequantize


@_operator
def quantize_per_tensor(
    x: Array, scale: float, zero_point: int, quant_min: int, quant_max: int, dtype: npt.DTypeLike
) -> Array:
    """float32 to int8 or int16: `round(x * (1 / scale)) + zero_point`, all in float32, ties to even.

    Values beyond int32 saturate and NaN counts as 0, as Arm's conversion instruction has it.
    """
    inverse = np.float32(1.0) / np.float32(scale)
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = np.rint(np.asarray(x, np.float32) * inverse)
    as_int32 = np.clip(np.nan_to_num(rounded.astype(np.float64), nan=0.0), -(2.0**31), 2.0**31 - 1)
    return np.asarray(np.clip(as_int32.astype(np.int64) + zero_point, quant_min, quant_max).astype(dtype))


@_operator
def dequantize_per_tensor(
    x: Array, scale: float, zero_point: int, quant_min: int, quant_max: int, dtype: npt.DTypeLike
) -> Array:
    """int8 or int16 to float32: `(x - zero_point) * scale`, in float32."""
    return (_wide(x) - zero_point).astype(np.float32) * np.float32(scale)


# ---------------------------------------------------------------- element by element


@_operator
def quantized_add(
    a: Array,
    a_zero_point: int,
    a_multiplier: int,
    a_shift: int,
    b: Array,
    b_zero_point: int,
    b_multiplier: int,
    b_shift: int,
    zero_point: int,
    multiplier: int,
    shift: int,
    activation_min: int,
    activation_max: int,
) -> Array:
    """arm_elementwise_add_s8: both inputs shifted left by 20 bits, rescaled, added, rescaled again."""
    left = _requantize((_wide(a) - a_zero_point) << ADD_LEFT_SHIFT, a_multiplier, a_shift)
    right = _requantize((_wide(b) - b_zero_point) << ADD_LEFT_SHIFT, b_multiplier, b_shift)
    total = _requantize(left + right, multiplier, shift) + zero_point
    return saturate(total, activation_min, activation_max)


@_operator
def quantized_mul(
    a: Array, a_zero_point: int, b: Array, b_zero_point: int, zero_point: int, multiplier: int, shift: int
) -> Array:
    """arm_elementwise_mul_s8."""
    product = (_wide(a) - a_zero_point) * (_wide(b) - b_zero_point)
    return saturate(_requantize(product, multiplier, shift) + zero_point, -128, 127)


@_operator
def quantized_div(
    a: Array, a_zero_point: int, b: Array, b_zero_point: int, zero_point: int, effective_scale: float
) -> Array:
    """Quotient of int8 or int16 numbers: float32 division, `round(quotient * effective_scale)` with ties away from 0.

    A divisor that equals its zero point gives the quotient 0. CMSIS-NN has no division: the board's kernel (ExecuTorch
    `backends/cortex_m/ops/op_quantized_div.cpp`) computes in float32 too. The eager one rounds ties to even.
    """
    numerator = (_wide(a) - a_zero_point).astype(np.float32)
    denominator = (_wide(b) - b_zero_point).astype(np.float32)
    safe = np.where(denominator == 0, np.float32(1), denominator)
    quotient = np.where(denominator == 0, np.float32(0), numerator / safe)
    with np.errstate(over="ignore"):
        scaled = (quotient * np.float32(effective_scale)).astype(np.float64)
    rounded = np.copysign(np.floor(np.abs(scaled) + 0.5), scaled)
    limits = np.iinfo(a.dtype)
    as_int32 = np.clip(rounded, -(2.0**31), 2.0**31 - 1).astype(np.int64)
    return np.clip(as_int32 + zero_point, limits.min, limits.max).astype(a.dtype)


@_operator
def quantized_activation(x: Array, table: Array) -> Array:
    """`table[x + 128]`: any function of one int8 number."""
    return np.asarray(table[_wide(x) + 128])


@_operator
def minimum(a: Array, b: Array) -> Array:
    """arm_minimum_s8; shapes broadcast."""
    return np.asarray(np.minimum(a, b))


@_operator
def maximum(a: Array, b: Array) -> Array:
    """arm_maximum_s8; shapes broadcast."""
    return np.asarray(np.maximum(a, b))


# ---------------------------------------------------------------- matrices and softmax


@_operator
def quantized_linear(
    x: Array,
    weights: Array,
    bias: Array | None,
    kernel_sum: Array | None,
    input_offset: int,
    filter_offset: int,
    output_offset: int,
    multipliers: Sequence[int],
    shifts: Sequence[int],
    activation_max: int,
    activation_min: int,
) -> Array:
    """arm_fully_connected_s8: x [..., I], weights [O, I], bias [O] or kernel_sum [1, O] -> [..., O].

    `kernel_sum` is `input_offset * sum(weights + filter_offset) + bias`, computed at compile time for cores with MVE.
    """
    rows = _wide(x).reshape(-1, x.shape[-1])
    matrix = _wide(weights) + filter_offset
    if kernel_sum is None:
        accumulator = (rows + input_offset) @ matrix.T
        if bias is not None:
            accumulator = accumulator + _wide(bias).reshape(-1)
    else:
        accumulator = rows @ matrix.T + _wide(kernel_sum).reshape(-1)
    result = _requantize(accumulator, int(multipliers[0]), int(shifts[0])) + output_offset
    return saturate(result, activation_min, activation_max).reshape(*x.shape[:-1], weights.shape[0])


@_operator
def quantized_batch_matmul(
    lhs: Array,
    lhs_offset: int,
    rhs_transposed: Array,
    rhs_offset: int,
    output_offset: int,
    multiplier: int,
    shift: int,
    scratch: Array | None = None,
) -> Array:
    """arm_batch_matmul_s8: lhs [B, M, K], rhs_transposed [B, N, K] -> [B, M, N]. Offsets are negated zero points."""
    accumulator = (_wide(lhs) + lhs_offset) @ (_wide(rhs_transposed) + rhs_offset).transpose(0, 2, 1)
    return saturate(_requantize(accumulator, multiplier, shift) + output_offset, -128, 127)


@_operator
def softmax(
    x: Array, dim: int, input_zero_point: int, output_zero_point: int, multiplier: int, shift: int, diff_min: int
) -> Array:
    """arm_softmax_s8 over the axis `dim`; the result has scale 1/256 and zero point -128.

    Differences to the row's largest element become Q5 numbers; exponentials are summed as Q12 numbers; elements below
    the largest by more than `-diff_min` count as 0.

    Raises:
        ModelError: the exponentials of a row sum up to `SOFTMAX_SUM_LIMIT` or more, that is, to 512 largest elements.
    """
    rows = np.moveaxis(_wide(x), dim, -1)
    difference = rows - rows.max(axis=-1, keepdims=True)
    counts = difference >= diff_min
    scaled = doubling_high_multiply(np.where(counts, difference, 0) << shift, multiplier)
    exponential = np.where(counts, exp_on_negative_values(scaled, _DIFFERENCE_INTEGER_BITS), 0)
    total = rounding_right_shift(exponential, _SUM_INTEGER_BITS).sum(axis=-1, keepdims=True)
    if total.size and total.max() >= SOFTMAX_SUM_LIMIT:
        raise ModelError(
            "softmax: the exponentials of a row sum up to 512 or more, which CMSIS-NN's fixed point cannot hold.",
            hint="fewer classes, or a larger scale of the input",
        )
    scale, excess = reciprocal(total, _SUM_INTEGER_BITS)
    result = rounding_right_shift(doubling_high_multiply(scale, exponential), excess + 23) - 128
    return np.moveaxis(np.where(counts, saturate(result, -128, 127), np.int8(-128)), -1, dim)


# ---------------------------------------------------------------- moving data


@_operator
def transpose(x: Array, permutation: Sequence[int]) -> Array:
    """arm_transpose_s8: axis i of the result is axis `permutation[i]` of x."""
    return np.transpose(x, [int(axis) for axis in permutation])


@_operator
def pad(
    x: Array, pre_pad: Sequence[int], post_pad: Sequence[int], pad_value: int, *, channels_last: bool = False
) -> Array:
    """arm_pad_s8: `pre_pad` and `post_pad` have four entries, the last ones for x's axes in their order in memory.

    `channels_last` says whether that order is N, H, W, C.
    """
    pairs = list(zip(map(int, pre_pad), map(int, post_pad), strict=True))[4 - x.ndim :]
    if channels_last:
        n, h, w, c = pairs
        pairs = [n, c, h, w]
    return np.pad(x, pairs, constant_values=pad_value)


# ---------------------------------------------------------------- convolutions and pools


def _taps(
    x: Array, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int], out: Sequence[int]
) -> Iterator[tuple[int, int, Array]]:
    """For each kernel position the elements of the padded [N, C, H, W] that it meets, [N, C, OH, OW]."""
    for row in range(kernel[0]):
        for column in range(kernel[1]):
            top, left = row * dilation[0], column * dilation[1]
            rows = slice(top, top + (out[0] - 1) * stride[0] + 1, stride[0])
            columns = slice(left, left + (out[1] - 1) * stride[1] + 1, stride[1])
            yield row, column, x[:, :, rows, columns]


def _output_size(
    size: Sequence[int], kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int]
) -> list[int]:
    return [(size[i] + 2 * padding[i] - dilation[i] * (kernel[i] - 1) - 1) // stride[i] + 1 for i in (0, 1)]


def _pad_image(x: Array, padding: Sequence[int]) -> Array:
    return np.pad(x, ((0, 0), (0, 0), (padding[0], padding[0]), (padding[1], padding[1])))


@_channels_last_form
def quantized_conv2d(
    x: Array,
    weight: Array,
    bias: Array | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    input_offset: int,
    *finish: Any,
) -> Array:
    """arm_convolve_s8: weight [O, KH, KW, C / groups], bias [O] int32. Padding counts as the input's zero point."""
    outputs, *kernel, group_size = weight.shape
    groups = x.shape[1] // group_size
    image = _pad_image(_wide(x) + input_offset, padding)
    size = _output_size(x.shape[2:], kernel, stride, padding, dilation)
    weights = _wide(weight).reshape(groups, outputs // groups, *kernel, group_size)
    accumulator = np.zeros((x.shape[0], groups, outputs // groups, *size), np.int64)
    for row, column, elements in _taps(image, kernel, stride, dilation, size):
        grouped = elements.reshape(x.shape[0], groups, group_size, -1)
        accumulator += (weights[:, :, row, column] @ grouped).reshape(accumulator.shape)
    return _finish(accumulator.reshape(x.shape[0], outputs, *size), bias, *finish)


@_channels_last_form
def quantized_depthwise_conv2d(
    x: Array,
    weight: Array,
    bias: Array | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    depth_multiplier: int,
    input_offset: int,
    *finish: Any,
) -> Array:
    """arm_depthwise_conv_s8: weight [1, KH, KW, O]; output channel o reads input channel o // depth_multiplier."""
    _, *kernel, outputs = weight.shape
    image = _pad_image(_wide(x) + input_offset, padding)
    size = _output_size(x.shape[2:], kernel, stride, padding, dilation)
    accumulator = np.zeros((x.shape[0], outputs, *size), np.int64)
    for row, column, elements in _taps(image, kernel, stride, dilation, size):
        accumulator += np.repeat(elements, depth_multiplier, axis=1) * _per_channel(weight[0, row, column])
    return _finish(accumulator, bias, *finish)


@_channels_last_form
def quantized_transpose_conv2d(
    x: Array,
    weight: Array,
    bias: Array | None,
    stride: Sequence[int],
    padding: Sequence[int],
    output_padding: Sequence[int],
    dilation: Sequence[int],
    input_offset: int,
    *finish: Any,
) -> Array:
    """arm_transpose_conv_s8: weight [O, KH, KW, C]; each input element adds a scaled kernel to the output.

    CMSIS-NN knows neither dilation nor output padding, so both must be neutral.
    """
    outputs, *kernel, _ = weight.shape
    image = _wide(x) + input_offset
    whole = [(x.shape[2 + i] - 1) * stride[i] + kernel[i] for i in (0, 1)]
    accumulator = np.zeros((x.shape[0], outputs, *whole), np.int64)
    for row, column, elements in _taps(accumulator, kernel, stride, (1, 1), x.shape[2:]):
        elements += np.einsum("oc,nchw->nohw", _wide(weight[:, row, column]), image)
    size = [whole[i] - 2 * padding[i] for i in (0, 1)]
    inner = accumulator[:, :, padding[0] : padding[0] + size[0], padding[1] : padding[1] + size[1]]
    return _finish(inner, bias, *finish)


def _finish(
    accumulator: Array,
    bias: Array | None,
    output_offset: int,
    multipliers: Array,
    shifts: Array,
    activation_min: int,
    activation_max: int,
    *scratch: Array | None,
) -> Array:
    """The arguments that all convolutions end with: bias, requantization by channel, output zero point, activation.

    A kernel's scratch memory, behind them, is not needed here.
    """
    if bias is not None:
        accumulator = accumulator + _per_channel(bias)
    result = _requantize(accumulator, _per_channel(multipliers), _per_channel(shifts)) + output_offset
    return saturate(result, activation_min, activation_max)


@_channels_last_form
def quantized_avg_pool2d(
    x: Array,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    zero_point: int,
    multiplier: int,
    shift: int,
    scratch: Array | None = None,
) -> Array:
    """arm_avgpool_s8: integer mean of the window's elements inside the image, ties away from the number 0.

    The zero point plays no part: a tie between two numbers goes to the one further from the *quantized* 0.
    """
    kernel, stride, padding = _pair(kernel_size), _pair(stride), _pair(padding)
    size = [pool_output_size(x.shape[2 + i], kernel[i], stride[i], padding[i], ceil_mode) for i in (0, 1)]
    result = np.empty((*x.shape[:2], *size), np.int8)
    for row in range(size[0]):
        for column in range(size[1]):
            window = _wide(_window(x, kernel, stride, padding, row, column))
            total, count = window.sum(axis=(2, 3)), window.shape[2] * window.shape[3]
            mean = (np.abs(total) + count // 2) // count * np.sign(total)
            result[:, :, row, column] = saturate(mean, -128, 127)
    return result


@_channels_last_form
def quantized_max_pool2d(
    x: Array,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
    input_zero_point: int,
    output_zero_point: int,
    activation_min: int,
    activation_max: int,
) -> Array:
    """arm_max_pool_s8: largest element of each window. Input and output share their zero point; no dilation."""
    kernel, stride, padding = _pair(kernel_size), _pair(stride), _pair(padding)
    size = [pool_output_size(x.shape[2 + i], kernel[i], stride[i], padding[i], ceil_mode) for i in (0, 1)]
    result = np.empty((*x.shape[:2], *size), np.int8)
    for row in range(size[0]):
        for column in range(size[1]):
            window = _window(x, kernel, stride, padding, row, column)
            result[:, :, row, column] = saturate(window.max(axis=(2, 3)), activation_min, activation_max)
    return result


def pool_output_size(size: int, kernel: int, stride: int, padding: int, ceil_mode: bool) -> int:
    """Windows along one axis. With `ceil_mode` the last may hang over, if it starts inside the image or its padding."""
    room = size + 2 * padding - kernel
    count = room // stride + 1
    if ceil_mode and room % stride and count * stride < size + padding:
        count += 1
    return count


def _window(
    x: Array, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int], row: int, column: int
) -> Array:
    """The part of a pool's window that lies inside the image."""
    top, left = row * stride[0] - padding[0], column * stride[1] - padding[1]
    return x[:, :, max(top, 0) : top + kernel[0], max(left, 0) : left + kernel[1]]
