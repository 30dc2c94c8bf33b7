"""Rewrites of convolutions, pools and resizes.  All are exact."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from micronpu.ir.graph import Node, Tensor
from micronpu.ir.types import QParams
from micronpu.ir.window import NO_PADDING, Padding2d
from micronpu.ops.convolution import Conv2d, DepthwiseConv2d, TransposeConv2d
from micronpu.ops.movement import TO_CHANNELS_FIRST, TO_CHANNELS_LAST, Pad, Reshape, Transpose
from micronpu.ops.pooling import AvgPool2d, MaxPool2d
from micronpu.ops.resize import ResizeNearest
from micronpu.ops.slicing import Concat
from micronpu.passes.rewrite import Chain, Rewrite, RewriteOf
from micronpu.targets.neutron.rewrites.arithmetic import copies

MOST_PARTS = 64


class DenseKernel(RewriteOf[Conv2d | DepthwiseConv2d]):
    """A dilated kernel as a larger one with zeros between its elements.  Exact; the zeros cost multiplications.

    x -> conv2d{3x3, dilation 2} -> y        x -> conv2d{5x5} -> y
    """

    name = "dense_kernel"

    def replaced(self, node: Node, op: Conv2d | DepthwiseConv2d, chain: Chain) -> list[Node] | None:
        if max(op.dilation) == 1:
            return None
        x, weight, bias = node.inputs
        assert weight.data is not None
        first, rows, columns, last = weight.shape
        down, across = op.dilation
        data = np.zeros((first, (rows - 1) * down + 1, (columns - 1) * across + 1, last), weight.data.dtype)
        data[:, ::down, ::across] = weight.data
        dense = chain.constant(data, weight.type.with_shape(data.shape))
        y = chain.add(replace(op, dilation=(1, 1)), x, dense, bias, qparams=node.output.type.qparams)
        return chain.result(y, node.output)


def _multiplier(node: Node) -> int:
    """Results per channel of a depthwise convolution."""
    return node.inputs[1].shape[3] // node.inputs[0].type.channels


class SplitMultiplier(RewriteOf[DepthwiseConv2d]):
    """Splits a depthwise convolution by result of a channel, and interleaves the results. Exact.

    x[1,4,4,8] -> depthwise_conv2d{16 results} -> y        x -> depthwise_conv2d (results 0, 2, ..) ─┐
                                                          x -> depthwise_conv2d (results 1, 3, ..) ─┴─ concat [16,16]
                                                          -> reshape [16,2,8] -> transpose [16,8,2] -> reshape -> y
    """

    name = "split_multiplier"

    def replaced(self, node: Node, op: DepthwiseConv2d, chain: Chain) -> list[Node] | None:
        multiplier = _multiplier(node)
        if not 1 < multiplier <= MOST_PARTS:
            return None
        (x, weight, bias), y = node.inputs, node.output
        channels = x.type.channels
        rows = y.type.size // y.type.channels
        parts = []
        for number in range(multiplier):
            taken = [_taken(chain, t, number, multiplier) for t in (weight, bias)]
            part = chain.add(op, x, *taken, qparams=y.type.qparams)
            parts.append(chain.reshape(part, rows, channels))
        joined = chain.reshape(chain.add(Concat(1), *parts), rows, multiplier, channels)
        return chain.finish(Reshape(y.shape), chain.add(Transpose((0, 2, 1)), joined), y)


def _taken(chain: Chain, x: Tensor, first: int, step: int) -> Tensor:
    """Every ``step``-th element of a constant along its last axis, with its scales."""
    assert x.data is not None
    data, qparams = x.data[..., first::step], x.type.qparams
    if qparams is not None and not qparams.is_per_tensor:
        qparams = QParams(qparams.scale[first::step], qparams.zero_point[first::step], qparams.axis)
    return chain.constant(data, x.type.with_shape(data.shape).with_qparams(qparams))


class DenseDepthwise(RewriteOf[DepthwiseConv2d]):
    """A depthwise convolution as a dense one whose other weights are zero. Exact; zeros cost multiplications.

    x[..,2] -> depthwise_conv2d{6 results} -> y        x -> conv2d{weights [6,..,2], two thirds of them zero} -> y
    """

    name = "dense_depthwise"

    def replaced(self, node: Node, op: DepthwiseConv2d, chain: Chain) -> list[Node] | None:
        multiplier = _multiplier(node)
        if multiplier < 2:
            return None
        (x, weight, bias), y = node.inputs, node.output
        assert weight.data is not None and weight.type.qparams is not None
        _, rows, columns, results = weight.shape
        data = np.zeros((results, rows, columns, x.type.channels), weight.data.dtype)
        for number in range(results):
            data[number, :, :, number // multiplier] = weight.data[0, :, :, number]
        scales = weight.type.qparams
        qparams = scales if scales.is_per_tensor else QParams.per_channel(scales.scale, 0)
        dense = chain.constant(data, weight.type.with_shape(data.shape).with_qparams(qparams))
        made = Conv2d(op.stride, op.padding, op.dilation, op.activation)
        return chain.result(chain.add(made, x, dense, bias, qparams=y.type.qparams), y)


class PadBeforePool(RewriteOf[AvgPool2d]):
    """Pads zeros that an average pool counts before the pool. Exact.

    x -> avg_pool2d{padding 1, count_padding} -> y        x -> transpose -> pad(h 1/1, w 1/1) -> transpose
                                                          -> avg_pool2d -> y
    """

    name = "pad_before_pool"

    def replaced(self, node: Node, op: AvgPool2d, chain: Chain) -> list[Node] | None:
        if not op.count_padding:
            return None
        p = op.padding
        picture = chain.add(Transpose(TO_CHANNELS_FIRST), node.inputs[0])
        padded = chain.add(Pad((0, 0, p.top, p.left), (0, 0, p.bottom, p.right)), picture)
        last = chain.add(Transpose(TO_CHANNELS_LAST), padded)
        return chain.finish(replace(op, padding=NO_PADDING), last, node.output)


class PoolOneByOne(RewriteOf[MaxPool2d]):
    """A max pool of several images as one of an image that contains all, or as a pool of each. Exact.

    x[4,8,8,16] -> max_pool2d{2x2, stride 2} -> y        x -> reshape [1,32,8,16] -> max_pool2d -> reshape -> y
    x[4,8,8,16] -> max_pool2d{3x3, stride 1} -> y        x -> slices -> max_pool2d each -> concat -> y
    """

    name = "pool_one_by_one"

    def replaced(self, node: Node, op: MaxPool2d, chain: Chain) -> list[Node] | None:
        x, y = node.inputs[0], node.output
        batch, height, width, channels = x.shape
        if not 1 < batch <= MOST_PARTS:
            return None
        if op.padding.rows == (0, 0) and op.kernel[0] <= op.stride[0] and height % op.stride[0] == 0:
            pooled = chain.add(op, chain.reshape(x, 1, batch * height, width, channels))
        else:
            pooled = chain.add(Concat(0), *(chain.add(op, chain.cut(x, 0, i, 1)) for i in range(batch)))
        return chain.finish(Reshape(y.shape), pooled, y)


class PickRows(RewriteOf[MaxPool2d]):
    """A max pool of any vertical stride as one of stride 1 and a slice of every stride-th row. Exact.

    x -> max_pool2d{3x3, stride 3} -> y        x -> max_pool2d{3x3, stride (1,3)} -> reshape [.., 3 rows in one]
                                               -> slice (first of each three) -> reshape -> y
    """

    name = "pick_rows"

    def replaced(self, node: Node, op: MaxPool2d, chain: Chain) -> list[Node] | None:
        x, y = node.inputs[0], node.output
        if op.stride[0] < 3:
            return None
        step, (batch, height, *_) = op.stride[0], y.shape
        pooled = chain.add(replace(op, stride=(1, op.stride[1])), x)
        rows, row = pooled.shape[1], y.shape[2] * y.shape[3]
        flat = chain.reshape(pooled, batch, rows * row)
        if rows < height * step:
            flat = chain.padded(flat, 1, 0, (height * step - rows) * row)
        flat = chain.cut(flat, 1, 0, height * step * row)
        first = chain.cut(chain.reshape(flat, batch * height, step * row), 1, 0, row)
        return chain.finish(Reshape(y.shape), first, y)


class RepeatElements(RewriteOf[ResizeNearest]):
    """A nearest resize by integer factors as copies of rows, then of elements. Exact.

    x[1,4,4,8] -> resize_nearest [12,4] -> y        x -> reshape [4,1,1,32] -> resize [4,2,2,32] -> reshape [4,4,32]
                                                    -> slice [4,3,32] -> reshape [1,12,4,8] -> y
    """

    name = "repeat_elements"

    def replaced(self, node: Node, op: ResizeNearest, chain: Chain) -> list[Node] | None:
        x, y = node.inputs[0], node.output
        (batch, height, width, channels), (rows, columns) = x.shape, op.size
        if (rows, columns) in ((2 * height, 2 * width), (4 * height, 4 * width)):
            return None
        for before, after in ((height, rows), (width, columns)):
            if after % before or not np.array_equal(op.sources(before, after), np.arange(after) // (after // before)):
                return None
        x = copies(chain, x, batch * height, rows // height, width * channels)
        x = copies(chain, x, batch * rows * width, columns // width, channels)
        return chain.finish(Reshape(y.shape), x, y)


class TransposedByPhases(RewriteOf[TransposeConv2d]):
    """A transposed convolution of a large stride as a convolution with every s-th element of the kernel. Exact.

    x[1,1,15,16] -> transpose_conv2d{kernel 8, stride 4} -> y[1,1,64,1]
    x -> conv2d{kernel 2} -> [1,1,16,4]: results 4 q, 4 q + 1, .. side by side -> reshape -> y

    With two strides, a transpose swaps rows and columns; a kernel that is not a multiple of the stride is padded with
    zeros.
    """

    name = "transposed_by_phases"

    def replaced(self, node: Node, op: TransposeConv2d, chain: Chain) -> list[Node] | None:
        if max(op.stride) == 1:
            return None
        (x, weight, bias), y, (down, across) = node.inputs, node.output, op.stride
        assert weight.data is not None and bias.data is not None
        outputs, rows, columns, channels = weight.shape
        high, wide = -(-rows // down), -(-columns // across)
        whole = np.zeros((outputs, high * down, wide * across, channels), weight.data.dtype)
        whole[:, :rows, :columns] = weight.data
        # An output of a phase combines earlier elements of x with later ones of the kernel.
        taps = whole.reshape(outputs, high, down, wide, across, channels)[:, ::-1, :, ::-1]
        data = taps.transpose(2, 4, 0, 1, 3, 5).reshape(down * across * outputs, high, wide, channels)
        kernel = chain.constant(data, weight.type.with_shape(data.shape).with_qparams(_repeated(weight, down * across)))
        offset = np.tile(bias.data, down * across)
        offsets = chain.constant(
            offset, bias.type.with_shape(offset.shape).with_qparams(_repeated(bias, down * across))
        )
        padding = Padding2d(high - 1, high - 1, wide - 1, wide - 1)
        phases = chain.add(
            Conv2d(padding=padding, activation=op.activation), x, kernel, offsets, qparams=y.type.qparams
        )
        batch, height, width, _ = phases.shape
        if down > 1:
            apart = chain.reshape(phases, batch * height, width, down, across * outputs)
            phases = chain.add(Transpose((0, 2, 1, 3)), apart)
        full = chain.reshape(phases, batch, height * down, width * across, outputs)
        part = chain.cut(chain.cut(full, 1, op.crop.top, y.shape[1]), 2, op.crop.left, y.shape[2])
        return chain.result(part, y)


def _repeated(constant: Tensor, times: int) -> QParams | None:
    qparams = constant.type.qparams
    if qparams is None or qparams.is_per_tensor:
        return qparams
    return QParams.per_channel(qparams.scale * times, 0, qparams.zero_point * times)


WINDOWS: tuple[Rewrite, ...] = (
    DenseKernel(),
    SplitMultiplier(),
    DenseDepthwise(),
    PadBeforePool(),
    PoolOneByOne(),
    PickRows(),
    RepeatElements(),
    TransposedByPhases(),
)
