"""Operators over depth, height and width as operators over height and width; depth becomes another axis of images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from micronpu.base.errors import UnsupportedError
from micronpu.ir.aten import AtenNode, one_each, sizes_of
from micronpu.ir.facts import Facts
from micronpu.ir.graph import Tensor
from micronpu.ir.lowering import Float, Results, Writer, decomposes
from micronpu.ir.op import weighted
from micronpu.ir.registry import imports
from micronpu.ir.types import DType, TensorType
from micronpu.ir.window import Padding2d
from micronpu.ops.bounds import AMONG_WINDOW, MEAN_WITH_PADDING, PRODUCT, sign_of_operand
from micronpu.ops.constants import fused_activation, quantized_weights
from micronpu.ops.convolution import Conv2d
from micronpu.ops.elementwise import scaled
from micronpu.ops.movement import Pad, inverse, reshaped, transposed
from micronpu.ops.slicing import Concat
from micronpu.ops.tiling import strided


def _in_two_steps(write: Writer, x: Float, pool: Any) -> Float:
    """Pool over height and width, then over depth.

    x [N, C, D, H, W] -> [N, C * D, H, W] -> pool -> [N, C, D, OH * OW] -> pool over D -> y [N, C, OD, OH, OW]

    Args:
        pool: writes the pool of [.., H, W] with the sizes at two of its three indices.
    """
    shape, result = write.shape(x), write.shape()
    count, channels, depth = (1, *shape)[-5:-2]
    flat = pool(write("reshape.default", x, [count, channels * depth, *shape[-2:]]), (1, 2))
    height, width = write.shape(flat)[-2:]
    deep = pool(write("reshape.default", flat, [count, channels, depth, height * width]), (0, None))
    return write("reshape.default", deep, list(result))


def _at(sizes: Sequence[int], places: Sequence[int | None], otherwise: int) -> list[int]:
    return [otherwise if p is None else sizes[p] for p in places]


@decomposes("max_pool3d.default", "max_pool3d_with_indices.default", facts=AMONG_WINDOW)
def _max_pool(write: Writer) -> Float:
    """The largest element of a window -> the largest over its rows and columns, then over its depth."""
    given = write.given
    several = write.overload.endswith("indices.default")
    read = write.read() if several else None
    if several and (read is None or not read <= {0}):
        return None
    kernel, padding, dilation = (one_each(given[name], 3) for name in ("kernel_size", "padding", "dilation"))
    stride = one_each(given["stride"] or kernel, 3)

    def pool(x: Float, places: Sequence[int | None]) -> Float:
        sizes = (_at(kernel, places, 1), _at(stride, places, 1), _at(padding, places, 0), _at(dilation, places, 1))
        return write("max_pool2d.default", x, *sizes, bool(given["ceil_mode"]))

    y = _in_two_steps(write, given["self"], pool)
    return Results({0: y}) if several else y


@decomposes("avg_pool3d.default", facts=MEAN_WITH_PADDING)
def _avg_pool(write: Writer) -> Float:
    """The mean over a window -> the mean over its rows and columns, then over its depth."""
    given = write.given
    kernel, padding = (one_each(given[name], 3) for name in ("kernel_size", "padding"))
    stride, divisor = one_each(given["stride"] or kernel, 3), given["divisor_override"]
    if divisor is not None and given["ceil_mode"]:
        return None

    def pool(x: Float, places: Sequence[int | None]) -> Float:
        sizes = (_at(kernel, places, 1), _at(stride, places, 1), _at(padding, places, 0))
        counted = divisor is not None or bool(given["count_include_pad"])
        return write("avg_pool2d.default", x, *sizes, bool(given["ceil_mode"]), counted)

    y = _in_two_steps(write, given["self"], pool)
    return y if divisor is None else scaled(write, y, float(np.prod(kernel)) / float(divisor))


@decomposes("adaptive_avg_pool3d.default", "_adaptive_avg_pool3d.default", facts=AMONG_WINDOW)
def _adaptive_avg_pool(write: Writer) -> Float:
    """Like `avg_pool3d`: over rows and columns, then over depth."""
    sizes = write.shape()[-3:]

    def pool(x: Float, places: Sequence[int | None]) -> Float:
        return write("adaptive_avg_pool2d.default", x, _at(sizes, places, write.shape(x)[-1]))

    return _in_two_steps(write, write.given["self"], pool)


@decomposes("avg_pool2d.default")
def _avg_pool_by_number(write: Writer) -> Float:
    """avg_pool2d(x, divisor_override=d) -> depthwise conv2d(x, w = 1 / d)"""
    given, x = write.given, write.given["self"]
    divisor = given["divisor_override"]
    if divisor is None or given["ceil_mode"] or len(write.shape(x)) != 4:
        return None
    kernel = [int(k) for k in given["kernel_size"]] * (1 if len(given["kernel_size"]) == 2 else 2)
    stride = list(given["stride"]) or kernel
    channels = write.shape(x)[1]
    weight = write.constant(np.full((channels, 1, *kernel), 1.0 / float(divisor), np.float32))
    return write("conv2d.default", x, weight, None, stride, list(given["padding"]), [1, 1], channels)


@decomposes("conv3d.default")
def _convolution_in_groups(write: Writer) -> Float:
    """A grouped convolution -> a dense one with zero weights between groups.

    The multipliers of these chips would be idle for small groups anyway.
    """
    given = write.given
    groups, weight = int(given["groups"]), write.stored(given["weight"])
    if groups == 1 or weight is None or write.is_trained(given["weight"]):
        return None
    outputs, inner = weight.shape[:2]
    dense = np.zeros((outputs, inner * groups, *weight.shape[2:]), np.float32)
    for o in range(outputs):
        first = o // (outputs // groups) * inner
        dense[o, first : first + inner] = weight[o]
    names = ("stride", "padding", "dilation")
    sizes = [one_each(given[name], 3) for name in names]
    return write("conv3d.default", given["input"], write.constant(dense), given["bias"], *sizes, 1)


@decomposes("conv_transpose3d.input", facts=PRODUCT)
def _transposed_convolution(write: Writer) -> Float:
    """A transposed convolution: each depth of the result is one convolution of the images and taps that reach it.

    y[:, :, d] = conv_transpose2d(cat(x[:, :, i] for each i), cat(w[:, :, k] for each k)), i * stride + k * dilation = d
    """
    given = write.given
    x, weight = given["input"], write.stored(given["weight"])
    if int(given["groups"]) != 1 or weight is None or write.is_trained(given["weight"]) or len(write.shape(x)) != 5:
        return None
    names = ("stride", "padding", "output_padding", "dilation")
    stride, padding, extra, dilation = (one_each(given[name], 3) for name in names)
    count, channels, depth, height, width = write.shape(x)
    images = []
    for i in range(depth):
        part = x if depth == 1 else write("slice.Tensor", x, 2, i, i + 1)
        images.append(write("reshape.default", part, [count, channels, height, width]))
    taps, planes = weight.shape[2], []
    for place in range(write.shape()[2]):
        reached = [
            (i, k) for i in range(depth) for k in range(taps) if i * stride[0] + k * dilation[0] == place + padding[0]
        ]
        # The bias alone if no tap reaches it: a product with zeros.
        kernels = [weight[:, :, k] for _, k in reached] or [np.zeros_like(weight[:, :, 0])]
        seen = [images[i] for i, _ in reached] or [images[0]]
        joined = seen[0] if len(seen) == 1 else write("cat.default", seen, 1)
        kernel = write.constant(np.ascontiguousarray(np.concatenate(kernels)))
        sizes = (stride[1:], padding[1:], extra[1:], 1, dilation[1:])
        planes.append(write("conv_transpose2d.input", joined, kernel, given["bias"], *sizes))
    return write("stack.default", planes, 2)


@decomposes("col2im.default", facts=Facts(range=sign_of_operand, degree=1.0))
def _fold(write: Writer) -> Float:
    """fold(x) -> conv_transpose2d(x, ones and zeros): each element of a window has a separate channel.

    x [N, C * KH * KW, L] -> reshape [N, C * KH * KW, OH, OW] -> conv_transpose2d(w [C * KH * KW, C, KH, KW])
    """
    given, x = write.given, write.given["self"]
    names = ("output_size", "kernel_size", "dilation", "padding", "stride")
    output, kernel, dilation, padding, stride = ([int(v) for v in given[name]] for name in names)
    if len(write.shape(x)) != 3:
        return None
    count, depth, _ = write.shape(x)
    spans = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
    sizes = [(n + 2 * p - w) // s + 1 for n, p, w, s in zip(output, padding, spans, stride, strict=True)]
    ends = [(m - 1) * s + w - 2 * p for m, s, w, p in zip(sizes, stride, spans, padding, strict=True)]
    extra = [n - e for n, e in zip(output, ends, strict=True)]
    if any(e >= max(s, d) for e, s, d in zip(extra, stride, dilation, strict=True)):
        return None
    weight = np.eye(depth, dtype=np.float32).reshape(depth, depth // (kernel[0] * kernel[1]), *kernel)
    image = write("reshape.default", x, [count, depth, *sizes])
    return write("conv_transpose2d.input", image, write.constant(weight), None, stride, padding, extra, 1, dilation)


CONVOLUTIONS_3D = ("conv3d.default", "conv3d.padding")
_CHANNELS_LAST = (0, 2, 3, 4, 1)


@imports("conv3d.default", x="input", quantization=weighted(), moves_only=False, fuses=True, facts=PRODUCT)
def build_conv3d(node: AtenNode) -> Tensor:
    """Convert the depth slices of a window to channels of one image, and the depth to the batch.

    x [N, D, H, W, C] -> pad D -> slice D at each position of the window -> reshape [N * OD, H, W, C] each ┐
                                                                            concat [N * OD, H, W, KD * C] ┘
      -> conv2d(w [O, KH, KW, KD * C]) -> reshape [N, OD, OH, OW, O]

    Exact: the sums have the same products.
    """
    if int(node.value("groups")) != 1:
        raise UnsupportedError(f"`conv3d` with {node.value('groups')} groups is not imported.", hint="groups=1")
    x = node.tensor("x")
    if len(x.shape) not in (4, 5):
        raise UnsupportedError(f"`conv3d` of a tensor of rank {len(x.shape)} is not imported.")
    x = reshaped(node, x, (1,) * (5 - len(x.shape)) + x.shape)
    weight, qparams, bias = quantized_weights(node, x.type)
    stride, padding, dilation = (sizes_of(node, name, 3) for name in ("stride", "padding", "dilation"))
    image = transposed(node, x, _CHANNELS_LAST)
    count, depth, height, width, channels = image.shape
    # Rank 4, because Vela 5.2 crashes on slices of a padded tensor of rank 5.
    rows = reshaped(node, image, (count, depth, height * width, channels))
    if padding[0]:
        sides = (0, padding[0], 0, 0)
        rows = node.emit(Pad(sides, sides), rows)
    depth = rows.shape[1]
    outputs, _, taps, high, wide = weight.shape
    reach = depth - dilation[0] * (taps - 1)
    parts = []
    for i in range(taps):
        tap = strided(node, rows, 1, i * dilation[0], i * dilation[0] + reach, stride[0])
        parts.append(reshaped(node, tap, (count * tap.shape[1], height, width, channels)))
    slices = node.emit(Concat(3), *parts) if len(parts) > 1 else parts[0]
    ordered = weight.transpose(0, 3, 4, 2, 1).reshape(outputs, high, wide, taps * channels)
    constant = node.constant(ordered, TensorType(ordered.shape, DType.INT8, qparams))
    op = Conv2d(
        (stride[1], stride[2]), Padding2d.symmetric(*padding[1:]), (dilation[1], dilation[2]), fused_activation(node)
    )
    y = node.emit(op, slices, constant, bias, qparams=node.output)
    y = reshaped(node, y, (count, y.shape[0] // count, *y.shape[1:]))
    return reshaped(node, transposed(node, y, inverse(_CHANNELS_LAST)), node.shape)
