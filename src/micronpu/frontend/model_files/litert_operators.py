"""Lowerings of LiteRT operators: functions of PyTorch with the same semantics.

Semantics: https://www.tensorflow.org/mlir/tfl_ops and the reference kernels of LiteRT.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from micronpu.frontend.model_files.litert import FIRST, LAST, FileOperator, LiteRtBuilder
from micronpu.frontend.model_files.network import Function, Operand, Rounding, tensor

Lowering = Callable[[LiteRtBuilder, FileOperator], None]
LOWERINGS: dict[str, Lowering] = {}
"""Lowerings by the name in LiteRT's `BuiltinOperator`."""
_SAME = 0
AXIS = (0, 2, 3, 1)
"""Axis of [N, C, H, W] by the axis of [N, H, W, C]."""


def lowering(*kinds: str) -> Callable[[Lowering], Lowering]:
    """Register the lowering of operators."""

    def register(function: Lowering) -> Lowering:
        LOWERINGS.update(dict.fromkeys(kinds, function))
        return function

    return register


# ---------------------------------------------------------------- elementwise


Make = Callable[[LiteRtBuilder, FileOperator], Function]
"""Returns the function of an operator, by its options and constants."""


def of_operands(make: Make, count: int = 1, *, elementwise: bool = False) -> Lowering:
    """Return the lowering as a function of the first operands, with channels last unless it is elementwise."""

    def lower(build: LiteRtBuilder, operator: FileOperator) -> None:
        order = build.order_of(operator) if elementwise else LAST
        operands = [build.read(operator, i, order) for i in range(count)]
        build.compute(operator, make(build, operator), operands, order)

    return lower


def _elementwise(function: Function, count: int) -> Lowering:
    return of_operands(lambda build, operator: function, count, elementwise=True)


_UNARY: dict[str, Function] = {
    "ABS": torch.abs, "NEG": torch.neg, "EXP": torch.exp, "LOG": torch.log, "SQRT": torch.sqrt, "RSQRT": torch.rsqrt,
    "SIN": torch.sin, "COS": torch.cos, "FLOOR": torch.floor, "CEIL": torch.ceil, "ROUND": torch.round,
    "SQUARE": torch.square, "SIGN": torch.sign, "RELU": torch.relu, "RELU6": functional.relu6,
    "RELU_N1_TO_1": functional.hardtanh, "RELU_0_TO_1": partial(torch.clamp, min=0.0, max=1.0), "ELU": functional.elu,
    "HARD_SWISH": functional.hardswish, "LOGISTIC": torch.sigmoid, "TANH": torch.tanh, "LOGICAL_NOT": torch.logical_not,
}  # fmt: skip
_BINARY: dict[str, Function] = {
    "ADD": torch.add, "SUB": torch.sub, "MUL": torch.mul, "MAXIMUM": torch.maximum,
    "MINIMUM": torch.minimum, "POW": torch.pow, "SQUARED_DIFFERENCE": lambda a, b: torch.square(a - b),
    "FLOOR_MOD": torch.remainder, "ATAN2": torch.atan2,
    "EQUAL": torch.eq, "NOT_EQUAL": torch.ne, "GREATER": torch.gt, "GREATER_EQUAL": torch.ge, "LESS": torch.lt,
    "LESS_EQUAL": torch.le, "LOGICAL_AND": torch.logical_and, "LOGICAL_OR": torch.logical_or,
    "FLOOR_DIV": lambda a, b: torch.div(a, b, rounding_mode="floor"),
}  # fmt: skip
LOWERINGS |= {kind: _elementwise(function, 1) for kind, function in _UNARY.items()}
LOWERINGS |= {kind: _elementwise(function, 2) for kind, function in _BINARY.items()}
LOWERINGS["SELECT_V2"] = _elementwise(torch.where, 3)


def _divided(build: LiteRtBuilder, operator: FileOperator) -> Function:
    is_float = operator.outputs[0].rounding or operator.outputs[0].type == "FLOAT32"
    return partial(torch.div, rounding_mode=None if is_float else "trunc")


def _gelu(build: LiteRtBuilder, operator: FileOperator) -> Function:
    return partial(functional.gelu, approximate="tanh" if operator.option("approximate", False) else "none")


def _leaky_relu(build: LiteRtBuilder, operator: FileOperator) -> Function:
    return partial(functional.leaky_relu, negative_slope=float(operator.option("alpha", 0.0)))


LOWERINGS |= {
    "DIV": of_operands(_divided, 2, elementwise=True),
    "GELU": of_operands(_gelu, elementwise=True),
    "LEAKY_RELU": of_operands(_leaky_relu, elementwise=True),
    "EMBEDDING_LOOKUP": of_operands(lambda build, operator: functional.embedding, 2),
    "L2_NORMALIZATION": of_operands(lambda build, operator: partial(functional.normalize, dim=-1, eps=1e-6)),
    "LOG_SOFTMAX": of_operands(lambda build, operator: partial(torch.log_softmax, dim=-1)),
}


@lowering("SELECT")
def _select(build: LiteRtBuilder, operator: FileOperator) -> None:
    """Select whole rows if there is one condition for each, otherwise elements."""
    if len(operator.operand(0).shape) != 1 or len(operator.outputs[0].shape) < 2:
        return _elementwise(torch.where, 3)(build, operator)
    shape = (-1,) + (1,) * (len(operator.outputs[0].shape) - 1)
    operands = [build.read(operator, i) for i in range(3)]
    build.compute(operator, lambda c, a, b: torch.where(c.reshape(shape), a, b), operands)


@lowering("ADD_N")
def _sum_of_all(build: LiteRtBuilder, operator: FileOperator) -> None:
    operands = [build.read(operator, i) for i in range(len(operator.inputs))]
    build.compute(operator, lambda first, *others: sum(others, first), operands)


@lowering("PRELU")
def _prelu(build: LiteRtBuilder, operator: FileOperator) -> None:
    slope, given = operator.operand(1), operator.operand(0).shape
    values = build.real_constant(slope)
    is_each = values is not None and values.size in (1, given[-1]) and values.size == (slope.shape or (1,))[-1]
    if values is None or not is_each or len(given) not in (2, 4):
        if operator.outputs[0].rounding is not None:
            raise operator.error(
                "has slopes that are not one for each channel of an image", "shared_axes=[1, 2] in Keras"
            )
        operands = [build.read(operator, 0), build.read(operator, 1)]
        return build.compute(operator, lambda x, a: torch.relu(x) - a * torch.relu(-x), operands)
    order = FIRST if len(given) == 4 else LAST
    slopes: Operand = tensor(values.reshape(-1))
    if (integers := build.constant(slope)) is not None and integers.dtype == np.int8:
        rounding = Rounding(slope.scale[0], slope.zero_point[0], torch.int8)
        (slopes,) = build.add(slope.name, rounding.dequantize, [tensor(integers.reshape(-1))])
    build.compute(operator, functional.prelu, [build.read(operator, 0, order), slopes], order)


@lowering("CAST")
def _cast(build: LiteRtBuilder, operator: FileOperator) -> None:
    kinds = {"FLOAT32": torch.float32, "INT32": torch.int32, "INT64": torch.int64, "BOOL": torch.bool}
    kind = kinds.get(operator.outputs[0].type)
    if kind is None:
        raise operator.error(f"makes {operator.outputs[0].type}, which is not read", f"a cast to {', '.join(kinds)}")
    rounding = operator.operand(0).rounding
    if rounding is None:
        return _elementwise(lambda x: x.to(kind), 1)(build, operator)
    # LiteRT casts the integers of a quantized tensor, not what they mean.
    scale, zero_point = rounding.scale, rounding.zero_point
    _elementwise(lambda x: (torch.round(x / scale) + zero_point).to(kind), 1)(build, operator)


@lowering("QUANTIZE", "DEQUANTIZE")
def _requantize(build: LiteRtBuilder, operator: FileOperator) -> None:
    given, made, order = operator.operand(0), operator.outputs[0], build.order_of(operator)
    if operator.kind == "QUANTIZE" and made.rounding is None:
        raise operator.error(f"quantizes to {made.type}", "int8, uint8 or int16")
    number = build.number(given, order)
    is_same = given.shape == made.shape and made.rounding in (None, given.rounding)
    if number is not None and is_same and given.type != "UINT8":
        build.define(made, number, made.rounding, order, operator)  # the same numbers
    else:  # the result is rounded with its own parameters
        _elementwise(lambda x: x, 1)(build, operator)


# ---------------------------------------------------------------- convolution, linear


def _window(build: LiteRtBuilder, operator: FileOperator, kernel: Sequence[int], dilation: Sequence[int]) -> Any:
    """Return strides, and (before, after) paddings of rows and of columns."""
    size = operator.operand(0).shape[1:3]
    stride = (operator.option("strideH", 1), operator.option("strideW", 1))
    pads = []
    for n, k, s, d in zip(size, kernel, stride, dilation, strict=True):
        reach = (k - 1) * d + 1
        total = max((-(-n // s) - 1) * s + reach - n, 0) if operator.option("padding") == _SAME else 0
        pads.append((total // 2, total - total // 2))
    return stride, pads


def _padded(build: LiteRtBuilder, operator: FileOperator, pads: Any) -> tuple[Operand, tuple[int, int]]:
    """Return the image with the padding that PyTorch's operator does not support, and the remaining padding."""
    (top, bottom), (left, right) = pads
    if (top, left) == (bottom, right):
        return build.read(operator, 0, FIRST), (top, left)
    return build.before(operator, 0, FIRST, partial(functional.pad, pad=(left, right, top, bottom))), (0, 0)


def _weights(
    build: LiteRtBuilder, operator: FileOperator, axes: Sequence[int], shape: Sequence[int], channels: int = 0
) -> list[Operand]:
    """Return weights, and the bias if there is one: integers with their parameters in a quantized file, floats
    otherwise.

    Args:
        axes: the file's axes in PyTorch's order.
        shape: of the permuted weights.
        channels: axis of the output channels in the permuted weights.
    """
    given, x = operator.operand(1), operator.operand(0)
    bias = operator.operand(2) if operator.has(2) else None
    constants = [build.constant(t) for t in (given, bias) if t is not None]
    if any(c is None for c in constants):
        raise operator.error("has weights or a bias that are computed at run time", "a model with constant weights")
    if x.rounding is None or given.type != "INT8":
        if given.type == "UINT8" and not any(given.zero_point):
            # Older converters wrote int8 weights as uint8, and the kernels read them as int8.
            build.fold(given, np.asarray(constants[0]).view(np.int8))
        values = [build.real_constant(t) for t in (given, bias) if t is not None]
        return [tensor(v if i else v.transpose(axes).reshape(shape)) for i, v in enumerate(values) if v is not None]
    if any(given.zero_point):
        raise operator.error("has weights with a zero point", "the converter's int8 quantization, which is symmetric")
    integers, *biases = (tensor(c) for c in constants if c is not None)
    scales = torch.tensor(given.scale, dtype=torch.float64)
    made: list[Operand] = [build.dequantized(given.name, integers.permute(*axes).reshape(shape), scales, channels)]
    for integer in biases:
        # The scale of the bias is the product of the two scales; that of its tensor is the same, rounded to float32.
        units = x.rounding.scale * scales
        if int(integer.abs().max()) < 1 << 31:
            made.append(build.dequantized(f"{given.name}_bias", integer.to(torch.int32), units))
        else:  # PyTorch dequantizes no wider type; the rounding to float32 is far below one LSB of an int16 result
            made.append((integer * units).to(torch.float32))
    return made


@lowering("CONV_2D", "DEPTHWISE_CONV_2D")
def _convolution(build: LiteRtBuilder, operator: FileOperator) -> None:
    outputs, rows, columns, depth = operator.operand(1).shape
    channels = operator.operand(0).shape[3]
    dilation = (operator.option("dilationHFactor", 1), operator.option("dilationWFactor", 1))
    stride, pads = _window(build, operator, (rows, columns), dilation)
    if operator.kind == "CONV_2D":
        groups, axes, shape = channels // depth, (0, 3, 1, 2), (outputs, depth, rows, columns)
    else:
        groups, axes, shape = channels, (3, 0, 1, 2), (depth, 1, rows, columns)
    x, padding = _padded(build, operator, pads)
    function = partial(functional.conv2d, stride=stride, padding=padding, dilation=dilation, groups=groups)
    build.compute(operator, function, [x, *_weights(build, operator, axes, shape)], FIRST)


@lowering("TRANSPOSE_CONV")
def _transposed(build: LiteRtBuilder, operator: FileOperator) -> None:
    # Operands: shape of the result, weights, x, bias.
    moved = (operator.operand(2), operator.operand(1), operator.inputs[3] if operator.has(3) else None)
    stride = (operator.option("strideH", 1), operator.option("strideW", 1))
    _transpose_convolution(build, replace(operator, inputs=moved), stride)


@lowering("CUSTOM Convolution2DTransposeBias")
def _transposed_with_bias(build: LiteRtBuilder, operator: FileOperator) -> None:
    """MediaPipe's transposed convolution; its options are LiteRT's C structure `TfLiteTransposeConvParams`."""
    _, columns, rows = map(int, np.frombuffer(operator.options, "<i4", 3))
    if min(rows, columns) < 1:
        raise operator.error(f"has the strides {[rows, columns]}", "copy the file again")
    _transpose_convolution(build, operator, (rows, columns))


def _transpose_convolution(build: LiteRtBuilder, moved: FileOperator, stride: tuple[int, int]) -> None:
    """Append a transposed convolution of operand 0 with the weights and the bias that follow it."""
    outputs, rows, columns, depth = moved.operand(1).shape
    size, result = moved.operand(0).shape[1:3], moved.outputs[0].shape[1:3]
    cuts = [
        max((n - 1) * s + k - o, 0) for n, s, k, o in zip(size, stride, (rows, columns), result, strict=True)
    ]  # of the full result
    before = [cut // 2 for cut in cuts]
    weights = _weights(build, moved, (3, 0, 1, 2), (depth, outputs, rows, columns), channels=1)

    given = [build.read(moved, 0, FIRST), *weights]
    sizes = zip(size, stride, (rows, columns), result, before, strict=True)
    extra = [o - ((n - 1) * s + k - 2 * p) for n, s, k, o, p in sizes]
    if all(0 <= e < s for e, s in zip(extra, stride, strict=True)):
        whole = partial(functional.conv_transpose2d, stride=stride, padding=before, output_padding=extra)
        build.compute(moved, whole, given, FIRST)
        return
    # Larger cuts than PyTorch's padding allows are made on the full result.
    made = moved.outputs[0]
    (x,) = build.add(f"{made.name}_full", partial(functional.conv_transpose2d, stride=stride), given, [made.rounding])
    parts = [slice(None), slice(None), *(slice(p, p + n) for p, n in zip(before, result, strict=True))]
    *first, last = cut(parts, tuple(build.meta[x].shape))
    for k, function in enumerate(first):
        (x,) = build.add(f"{made.name}_cut{k}", function, [x], [made.rounding])
    build.compute(moved, last, [x], FIRST)


def cut(cuts: Sequence[slice | int], shape: Sequence[int]) -> list[Function]:
    """Return indexing by slices and numbers: a function for each axis that it changes, at least one."""
    functions: list[Function] = []
    for axis, one in reversed(list(enumerate(cuts))):
        if isinstance(one, int):
            functions.append(partial(torch.select, dim=axis, index=one))
        elif one.indices(shape[axis]) != (0, shape[axis], 1):
            functions.append(lambda x, at=(slice(None),) * axis + (one,): x[at])
    return functions or [lambda x: x]


@lowering("FULLY_CONNECTED")
def _linear(build: LiteRtBuilder, operator: FileOperator) -> None:
    outputs, depth = operator.operand(1).shape
    given, made = operator.operand(0).shape, operator.outputs[0].shape
    if build.constant(operator.operand(1)) is None:
        build.compute(operator, functional.linear, [build.read(operator, 0), build.read(operator, 1)])
        return
    x = build.read(operator, 0)
    if not given or given[-1] != depth or len(made) != len(given):
        flat = (math.prod(given) // depth, depth)
        x = build.before(operator, 0, LAST, lambda v: v.reshape(flat))
    build.compute(operator, functional.linear, [x, *_weights(build, operator, (0, 1), (outputs, depth))])


@lowering("BATCH_MATMUL")
def _matmul(build: LiteRtBuilder, operator: FileOperator) -> None:
    turned = [operator.option("adjX", False), operator.option("adjY", False)]
    swap: Function = lambda x: x.transpose(-1, -2)  # noqa: E731
    operands = [build.before(operator, i, LAST, *([swap] if t else [])) for i, t in enumerate(turned)]
    build.compute(operator, torch.matmul, operands)


# ---------------------------------------------------------------- windows, reductions


@lowering("AVERAGE_POOL_2D", "MAX_POOL_2D", "L2_POOL_2D")
def _pool(build: LiteRtBuilder, operator: FileOperator) -> None:
    kernel = (operator.option("filterHeight", 1), operator.option("filterWidth", 1))
    stride, pads = _window(build, operator, kernel, (1, 1))
    before: Any = tuple(before for before, _ in pads)
    if any(b > k // 2 for b, k in zip(before, kernel, strict=True)):
        raise operator.error("has a window that is smaller than its padding", "a pool without padding")
    pool: Function = functional.max_pool2d
    if operator.kind != "MAX_POOL_2D":  # each mean is over existing elements only
        pool = partial(functional.avg_pool2d, count_include_pad=False)
    # `ceil_mode` adds a last window that exceeds the end by more than the padding.
    uneven = any(a != b for a, b in pads)
    if uneven and operator.kind == "L2_POOL_2D":
        raise operator.error("has an uneven padding", "a pool without padding")
    whole: Function = partial(pool, kernel_size=kernel, stride=stride, padding=before, ceil_mode=uneven)
    function = (lambda x: torch.sqrt(whole(x * x))) if operator.kind == "L2_POOL_2D" else whole
    build.compute(operator, function, [build.read(operator, 0, FIRST)], FIRST)


@lowering("LOCAL_RESPONSE_NORMALIZATION")
def _local_response_normalization(build: LiteRtBuilder, operator: FileOperator) -> None:
    radius, bias, alpha, beta = (operator.option(name) for name in ("radius", "bias", "alpha", "beta"))
    channels = operator.operand(0).shape[-1]
    apart = np.subtract.outer(np.arange(channels), np.arange(channels))
    near = (apart >= -radius) & (apart < radius)  # LiteRT leaves out the last one
    band = tensor(near.astype(np.float32) * np.float32(alpha))
    operands = [build.read(operator, 0), band]
    build.compute(operator, lambda x, m: x * torch.pow(torch.matmul(x * x, m) + bias, -beta), operands)


def axes_of(build: LiteRtBuilder, operator: FileOperator, i: int, order: str) -> list[int]:
    rank = len(operator.operand(0).shape)
    axes = sorted({a % rank for a in build.integers(operator, i)})
    return [AXIS[a] for a in axes] if order == FIRST else axes


def _reduction(function: Callable[[torch.Tensor, list[int], bool], torch.Tensor]) -> Lowering:
    def lower(build: LiteRtBuilder, operator: FileOperator) -> None:
        keeps = bool(operator.option("keepDims", False))
        order = build.order_of(operator)
        if not keeps and build.is_first(operator.operand(0)) and sorted(axes_of(build, operator, 1, LAST)) == [1, 2]:
            order = FIRST  # N and C remain, in this order
        axes = axes_of(build, operator, 1, order)
        whole: Function = (lambda x: function(x, axes, keeps)) if axes else (lambda x: x)
        build.compute(operator, whole, [build.read(operator, 0, order)], order)

    return lower


def _mean(x: torch.Tensor, axes: list[int], keeps: bool) -> torch.Tensor:
    if x.is_floating_point():
        return x.mean(axes, keepdim=keeps)
    whole = x.sum(axes, keepdim=keeps, dtype=x.dtype)
    return torch.div(whole, x.numel() // max(whole.numel(), 1), rounding_mode="trunc")


def _one_by_one(function: Callable[..., torch.Tensor]) -> Lowering:
    """Return the lowering of a reduction that PyTorch has for one axis."""

    def reduced(x: torch.Tensor, axes: list[int], keeps: bool) -> torch.Tensor:
        for axis in sorted(axes, reverse=True):
            x = function(x, dim=axis, keepdim=keeps)
        return x

    return _reduction(reduced)


LOWERINGS |= {
    "MEAN": _reduction(_mean),
    "SUM": _reduction(lambda x, axes, keeps: x.sum(axes, keepdim=keeps, dtype=x.dtype)),
    "REDUCE_MAX": _reduction(lambda x, axes, keeps: x.amax(axes, keepdim=keeps)),
    "REDUCE_MIN": _reduction(lambda x, axes, keeps: x.amin(axes, keepdim=keeps)),
    "REDUCE_PROD": _one_by_one(lambda x, dim, keepdim: torch.prod(x, dim=dim, keepdim=keepdim, dtype=x.dtype)),
    "REDUCE_ANY": _one_by_one(torch.any),
    "REDUCE_ALL": _one_by_one(torch.all),
}


@lowering("ARG_MAX", "ARG_MIN")
def _arg(build: LiteRtBuilder, operator: FileOperator) -> None:
    (axis,) = build.integers(operator, 1)
    function = torch.argmax if operator.kind == "ARG_MAX" else torch.argmin
    kind = torch.int64 if operator.outputs[0].type == "INT64" else torch.int32
    build.compute(operator, lambda x: function(x, axis).to(kind), [build.read(operator, 0)])


@lowering("SOFTMAX")
def _softmax(build: LiteRtBuilder, operator: FileOperator) -> None:
    beta, function = operator.option("beta", 1.0), partial(torch.softmax, dim=-1)
    if beta != 1.0 and operator.outputs[0].rounding is not None:
        raise operator.error(f"has beta {beta}", "beta of 1, the scores multiplied before")
    whole: Function = function if beta == 1.0 else lambda x: function(x * beta)
    build.compute(operator, whole, [build.read(operator, 0)])
