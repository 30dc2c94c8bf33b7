"""Rewrites that pad or reshape tensors to shapes that the chip supports. All are exact, but for a padded softmax."""

from __future__ import annotations

import math

from micronpu.ir.graph import Node, Tensor
from micronpu.ir.types import QParams, TensorType
from micronpu.ops.activation import LeakyRelu, Prelu
from micronpu.ops.elementwise import Add, Mul
from micronpu.ops.matmul import FullyConnected
from micronpu.ops.movement import Pad, Reshape, Transpose
from micronpu.ops.pooling import MaxPool2d
from micronpu.ops.quantization import Requantize
from micronpu.ops.reduction import Amax, Amin, Mean
from micronpu.ops.resize import ResizeBilinear, ResizeNearest
from micronpu.ops.slicing import Concat, Slice
from micronpu.ops.softmax import Softmax
from micronpu.ops.unary import Neg
from micronpu.passes.rewrite import Chain, ReflectBySlices, Rewrite, RewriteOf, block, mirrored, run
from micronpu.targets.neutron.rules import LANES, MAX_PRELU_ROWS

_NOTHING = 8.0
"""exp(-8) is 0.0003, less than a tenth of an LSB of softmax's result."""


def _span(x: TensorType) -> float:
    """Range of representable values."""
    low, high = x.dtype.limits
    return x.scale * (high - low)


def _lowered(x: TensorType) -> QParams:
    """Qparams with the same highest value and a lowest value decreased by `_NOTHING`."""
    low, high = x.dtype.limits
    scale = (_span(x) + _NOTHING) / (high - low)
    return QParams.per_tensor(scale, high - round(x.scale * (high - x.zero_point) / scale))


_Lanes = MaxPool2d | ResizeNearest | ResizeBilinear | Softmax


class PadChannels(RewriteOf[_Lanes]):
    """Pads channels for an operator that requires multiples of the lanes, and removes the padding from the result.

        x[.., 10] -> softmax -> y[.., 10]
        x[.., 10] -> pad(-128, to 16) -> softmax -> slice(0:10) -> y[.., 10]

    Exact for a max pool and a resize, whose channels are independent. In a softmax an added lane contributes exp(-d)
    relative to the largest element, with d its distance from the lowest representable value: below one LSB of 1/256 if
    d is at least 8. If the representable range is less than 16, x is requantized first to a range extended by 8
    downwards, so that this holds for every row; this costs a rounding of at most half of ``s + 8 / 255``.
    """

    name = "pad_channels"
    max_steps = None

    def replaced(self, node: Node, op: _Lanes, chain: Chain) -> list[Node] | None:
        y = node.output
        if y.type.channels % LANES == 0 or y.type.rank < 2:
            return None
        x = node.inputs[0]
        if isinstance(op, Softmax) and _span(x.type) < 2 * _NOTHING:
            x = chain.add(Requantize(), x, qparams=_lowered(x.type))
        wide = chain.add(op, chain.widened(x, LANES), qparams=y.type.qparams)
        return chain.finish(Slice((0,) * y.type.rank, y.shape), wide, y)


class FillProduct(RewriteOf[Mul]):
    """Pads a product for a chip that requires a multiple of the lanes as number of elements. Exact.

    x[3,5] * z[3,5] -> y        reshape both to [1,1,1,15], pad to 16, multiply, slice, reshape -> y
    """

    name = "fill_product"

    def replaced(self, node: Node, op: Mul, chain: Chain) -> list[Node] | None:
        if any(t.shape != node.output.shape for t in node.inputs):
            return None
        y = node.output
        size = y.type.size
        if size % LANES == 0:
            return None
        wide = [chain.widened(chain.add(Reshape((1, 1, 1, size)), t), LANES) for t in node.inputs]
        product = chain.add(op, *wide, qparams=y.type.qparams)
        flat = chain.add(Slice((0, 0, 0, 0), (1, 1, 1, size)), product)
        return chain.finish(Reshape(y.shape), flat, y)


CHANNELS: tuple[Rewrite, ...] = (PadChannels(), FillProduct())


MOST_PARTS = 64
_SWAP = Transpose((0, 2, 1))


class FlattenRows(RewriteOf[FullyConnected]):
    """Merges the leading axes for a matrix product that supports only two. Exact and free.

    x[2,3,8] -> fully_connected -> y[2,3,4]        x -> reshape [6,8] -> fully_connected -> reshape [2,3,4] -> y
    """

    name = "flatten_rows"

    def replaced(self, node: Node, op: FullyConnected, chain: Chain) -> list[Node] | None:
        x, *constants = node.inputs
        if x.type.rank == 2:
            return None
        rows = chain.reshape(x, x.type.size // x.type.channels, x.type.channels)
        y = chain.add(op, rows, *constants, qparams=node.output.type.qparams)
        return chain.finish(Reshape(node.output.shape), y, node.output)


class AddRow(RewriteOf[Softmax]):
    """Adds a second axis to a softmax of a vector. Exact and free.

    x[10] -> softmax -> y        x -> reshape [1,10] -> softmax -> reshape [10] -> y
    """

    name = "add_row"

    def replaced(self, node: Node, op: Softmax, chain: Chain) -> list[Node] | None:
        if node.output.type.rank != 1:
            return None
        y = chain.add(op, chain.reshape(node.inputs[0], 1, *node.output.shape))
        return chain.finish(Reshape(node.output.shape), y, node.output)


class HalveRows(RewriteOf[Softmax]):
    """Splits a softmax of many rows into halves. Exact.

    x[8192,16] -> softmax -> y        x -> slice [4096,16] -> softmax ─┐
                                      x -> slice [4096,16] -> softmax ─┴─ concat -> y
    """

    name = "halve_rows"

    def replaced(self, node: Node, op: Softmax, chain: Chain) -> list[Node] | None:
        y = node.output
        rows = y.type.size // y.type.channels
        if rows < 2:
            return None
        flat = chain.reshape(node.inputs[0], rows, y.type.channels)
        half = rows // 2
        halves = [chain.cut(flat, 0, first, size) for first, size in ((0, half), (half, rows - half))]
        joined = chain.add(Concat(0), *(chain.add(op, part) for part in halves))
        return chain.finish(Reshape(y.shape), joined, y)


class PadAsPicture(RewriteOf[Pad]):
    """Pads an axis as the width of an image of one channel, axis by axis. Exact.

    x[1,5,4,4] -> pad(axis 1, 0/3) -> y        x -> reshape [1,1,1,80] -> pad(w 0/48) -> reshape [1,8,4,4] -> y
    """

    name = "pad_as_picture"

    def replaced(self, node: Node, op: Pad, chain: Chain) -> list[Node] | None:
        x = node.inputs[0]
        if x.shape[:2] == (1, 1):
            return None
        for axis, (before, after) in enumerate(zip(op.before, op.after, strict=True)):
            if before or after:
                x = chain.padded(x, axis, before, after, op.value)
        return chain.result(x, node.output)


class JoinRows(RewriteOf[Concat]):
    """Concatenates tensors as rows of all axes from the concatenation axis on. Exact and free.

    a[1,3,4,4], b[1,5,4,4] -> concat(axis 1) -> y        reshape both to [1,48], [1,80] -> concat -> reshape -> y
    """

    name = "join_rows"

    def replaced(self, node: Node, op: Concat, chain: Chain) -> list[Node] | None:
        y = node.output
        if y.type.rank == 2 and op.axis == 1:
            return None
        rows = [chain.reshape(t, *_row(t, op.axis)) for t in node.inputs]
        return chain.finish(Reshape(y.shape), chain.add(Concat(1), *rows), y)


def _row(x: Tensor, axis: int) -> tuple[int, int]:
    outer, size, inner = block(x.shape, axis)
    return outer, size * inner


class AddParts(RewriteOf[Concat]):
    """Pads each part of a concatenation with zeros and adds them. Exact: adding zero with equal qparams is.

    a[1,3], b[1,5] -> concat -> y        a -> pad(0/5) ─┐
                                         b -> pad(3/0) ─┴─ add -> y
    """

    name = "add_parts"

    def replaced(self, node: Node, op: Concat, chain: Chain) -> list[Node] | None:
        y = node.output
        if len(node.inputs) > MOST_PARTS or len({t.type.qparams for t in node.inputs}) > 1:
            return None
        outer, width = _row(y, op.axis)
        total, begin = None, 0
        for part in node.inputs:
            size = _row(part, op.axis)[1]
            picture = chain.reshape(part, 1, 1, outer, size)
            padded = chain.padded(picture, 3, begin, width - begin - size)
            total = padded if total is None else chain.add(Add(), total, padded, qparams=y.type.qparams)
            begin += size
        assert total is not None
        return chain.finish(Reshape(y.shape), total, y)


class MeanOfRows(RewriteOf[Mean]):
    """A mean over any axes as a mean over height and width of an image. Exact.

    x[2,6,8] -> mean(axis 2) -> y        x -> reshape [1,12,1,8] -> mean(h, w) -> reshape [2,6] -> y
    x[2,6,8] -> mean(axis 1) -> y        x -> transpose [2,8,6] -> reshape [1,16,1,6] -> mean(h, w) -> reshape -> y
    """

    name = "mean_of_rows"

    def replaced(self, node: Node, op: Mean, chain: Chain) -> list[Node] | None:
        x, y = node.inputs[0], node.output
        ends = run(op.axes)
        if ends is None or (x.type.rank == 4 and ends == (2, 3)):
            return None
        outer, size, inner = block(x.shape, *ends)
        if inner > 1 and size > 1:
            x = chain.add(_SWAP, chain.reshape(x, outer, size, inner))
        picture = chain.reshape(x, 1, outer * inner, 1, size)
        return chain.finish(Reshape(y.shape), chain.add(Mean((2, 3)), picture), y)


class MaximumOfWindows(RewriteOf[Amax | Amin]):
    """A maximum along axes as a max pool, a minimum as a max pool of negated values. Exact.

    x[4,6,8] -> amax(axis 1) -> y[4,8]        x -> reshape [1,4,6,8] -> max_pool2d{1x6} -> reshape -> y
    x[4,6]   -> amax(axis 1) -> y[4]          x -> transpose [6,4] -> reshape [1,1,6,4] -> max_pool2d{1x6} -> y
    x -> amin -> y                            x -> neg (q -> -1 - q) -> amax -> neg -> y
    """

    name = "maximum_of_windows"

    def replaced(self, node: Node, op: Amax | Amin, chain: Chain) -> list[Node] | None:
        x, y = node.inputs[0], node.output
        ends = run(op.axes)
        if ends is None or x.type.qparams is None:
            return None
        qparams = x.type.qparams
        if isinstance(op, Amin):
            x = chain.add(Neg(), x, qparams=mirrored(qparams))
        outer, size, inner = block(x.shape, *ends)
        if inner == 1 and outer > 1:
            x = chain.add(_SWAP, chain.reshape(x, 1, outer, size))
            outer, inner = 1, outer
        windows = chain.reshape(x, 1, outer, size, inner)
        largest = chain.add(MaxPool2d((1, size), (1, size)), windows)
        if isinstance(op, Amin):
            largest = chain.add(Neg(), largest, qparams=qparams)
        return chain.finish(Reshape(y.shape), largest, y)


class PreluAsPicture(RewriteOf[Prelu]):
    """A PReLU of rows of channels as one of an image with padded channels. Exact.

    x[6,10] -> prelu(slope[10]) -> y        x -> pad -> reshape [1,1,6,16] -> prelu(slope[16]) -> slice -> reshape -> y
    """

    name = "prelu_as_picture"

    def replaced(self, node: Node, op: Prelu, chain: Chain) -> list[Node] | None:
        (x, slope), y = node.inputs, node.output
        channels = y.type.channels
        if y.type.rank == 4 and channels % LANES == 0:
            return None
        wide = chain.widened(chain.reshape(x, 1, 1, math.prod(y.shape[:-1]), channels), LANES)
        if slope.type.size > 1:
            slope = chain.padded(slope, 0, 0, -channels % LANES)
        z = chain.add(op, wide, slope, qparams=y.type.qparams)
        return chain.finish(Reshape(y.shape), chain.cut(z, 3, 0, channels), y)


class PreluOfOneSlope(RewriteOf[Prelu]):
    """A PReLU with one slope as a leaky ReLU, where an image needs padding or is too large. Not exact: it rounds twice.

    x[6,10] -> prelu(slope[1]) -> y        x -> leaky_relu -> y
    """

    name = "prelu_of_one_slope"
    max_steps = 1

    def replaced(self, node: Node, op: Prelu, chain: Chain) -> list[Node] | None:
        (x, slope), y = node.inputs, node.output
        if slope.data is None or slope.type.size > 1 or slope.data.item() < slope.type.zero_point:
            return None
        if y.type.channels % LANES == 0 and y.type.size // y.type.channels <= MAX_PRELU_ROWS:
            return None
        factor = (slope.data.item() - slope.type.zero_point) * slope.type.scale
        return chain.result(chain.add(LeakyRelu(factor), x, qparams=y.type.qparams), y)


VIEWS: tuple[Rewrite, ...] = (
    FlattenRows(),
    PadAsPicture(),
    ReflectBySlices(MOST_PARTS),
    JoinRows(),
    AddParts(),
    MeanOfRows(),
    MaximumOfWindows(),
    AddRow(),
    HalveRows(),
    PreluAsPicture(),
    PreluOfOneSlope(),
)
