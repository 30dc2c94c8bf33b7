"""Rewrites of an operator to an equivalent form that takes fewer cycles on an Ethos-U.

The utilization of the multiplier array depends on how channels, pixels and kernel elements fill it: channels in groups
of 8 or 64, kernel elements in groups of 4, pixels of a row in groups of 2 or 4. A rewrite moves elements between these
axes, which is free if it only reads the same bytes with another shape. `micronpu.targets.ethosu.plans` measures whether
it pays; nothing here depends on an accelerator.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

import numpy as np

from micronpu.ir.graph import Graph, Node, Tensor
from micronpu.ir.types import DType, QParams, TensorType
from micronpu.ir.window import NO_PADDING, Activation, Padding2d
from micronpu.ops.activation import Prelu
from micronpu.ops.convolution import Conv2d, DepthwiseConv2d
from micronpu.ops.matmul import FullyConnected
from micronpu.ops.movement import TO_CHANNELS_FIRST, TO_CHANNELS_LAST, Pad, Transpose
from micronpu.ops.slicing import Concat, Slice
from micronpu.passes.rewrite import Chain, Rewrite, RewriteOf
from micronpu.targets.ethosu.rewrites.byte_products import BytesConv2d, byte_factors

_BLOCKS = (8, 16)
"""Numbers of pixels that a convolution interleaves from each plane at once."""
_LANES = 8
_GROUPED = (16, 32, 64, 128, 256)
"""Numbers of channels into which pixels are combined."""
_MOST_ZEROS = 2
"""Maximum number of products of such a convolution per product before."""
_MOST_PLANES = 16
_MOST_DEPTH = 64
_MOST_CHANNELS = 4096
_MOST_PIXELS = 16


class _Offers(Rewrite):
    def apply(self, node: Node) -> list[Node] | None:
        return next(self.offers(node), None)

    @abstractmethod
    def offers(self, node: Node, before: Node | None = None) -> Iterator[list[Node]]: ...


class TransposeAsMatrix(RewriteOf[Transpose]):
    """A layout transpose as a transpose of a matrix of planes and pixels.

    x [1, C, H, W] -> transpose(0, 2, 3, 1) -> y
    x -> reshape [C, H * W] -> transpose(1, 0) -> reshape [1, H, W, C] -> y
    """

    name = "transpose_as_matrix"

    def replaced(self, node: Node, op: Transpose, chain: Chain) -> list[Node] | None:
        x = node.inputs[0]
        if not _is_layout(node, TO_CHANNELS_LAST) and not _is_layout(node, TO_CHANNELS_FIRST):
            return None
        _, a, b, c = x.shape
        rows, columns = (a, b * c) if _is_layout(node, TO_CHANNELS_LAST) else (a * b, c)
        return chain.result(chain.add(Transpose((1, 0)), chain.reshape(x, rows, columns)), node.output)


class PlanesIntoConvolution(_Offers):
    """Combines the pixels of one stride into channels for a strided convolution that reads planes.

    x [1, C, H, W] -> transpose(0, 2, 3, 1) -> conv2d{3x3, stride (2, 2)} -> y
    x -> transpose by convolution to [1, H, W / 2, 2 * C, and zeros up to 8] -> conv2d{3x2, stride (2, 1)} -> y

    Exact: the same products, with zeros between them.
    """

    name = "planes_into_convolution"

    def offers(self, node: Node, before: Node | None = None) -> Iterator[list[Node]]:
        if before is None or not _is_layout(before, TO_CHANNELS_LAST) or not _is_plain(node):
            return
        x, depth = before.inputs[0], before.output.shape[3]
        for group in sorted({1, node.op.stride[1]} if isinstance(node.op, Conv2d) else {1}):
            filled = -(-group * depth // _LANES) * _LANES
            for lanes in sorted({group * depth, filled, 2 * _LANES} if filled == _LANES else {group * depth, filled}):
                for pixels in _BLOCKS:
                    chain = Chain(self.name, node)
                    y = _interleaved(chain, x, pixels, group, lanes)
                    if y is not None and (result := _pixels_in_channels(chain, node, y, group)) is not None:
                        yield result


class PixelsIntoChannels(_Offers):
    """Combines the pixels of some strides of a convolution of few channels into channels.

    x [N, H, W, C] -> conv2d{3x3, stride (2, 2)} -> y
    x -> reshape [N, H, W / 2, 2 * C] -> conv2d{3x2, stride (2, 1)} -> y

    x [1, 1, W, 1] -> conv2d{1x256, stride (1, 2)} -> y [1, 1, V, 1]
    x -> pad to whole groups -> reshape [1, 1, W / 32, 32] -> conv2d{1x9} to 16 channels -> reshape and slice -> y

    Exact: the same products, with zeros between them.
    """

    name = "pixels_into_channels"

    def offers(self, node: Node, before: Node | None = None) -> Iterator[list[Node]]:
        if not _is_plain(node, DType.INT8, DType.INT16) or not isinstance(node.op, Conv2d):
            return
        (x, weight, bias), stride, size = node.inputs, node.op.stride[1], node.output.shape[2]
        depth, wide = x.type.channels, weight.shape[2]
        own = stride * depth <= 2 * _LANES and x.shape[2] % stride == 0 and x.type.dtype is DType.INT8
        groups = {stride} if own else set[int]()
        if depth < _LANES:
            groups |= {stride * max(1, lanes // (stride * depth)) for lanes in _GROUPED}
        for group in sorted(groups - {1}):
            count, places = group // stride, _places(node, group)
            is_large = group * depth > _GROUPED[-1] or (count > 1 and count * weight.shape[0] > _MOST_DEPTH)
            is_large = is_large or (count > 1 and bias.data is None)
            if not (group == stride and own) and (is_large or len(places) * group > _MOST_ZEROS * wide):
                continue
            chain = Chain(self.name, node)
            groups_read = min(-(-x.shape[2] // group), -(-size // count) + places[-1])
            missing = groups_read * group - x.shape[2]
            even = chain.padded(x, 2, 0, missing) if missing > 0 else _first_pixels(chain, x, groups_read * group)
            picture = chain.reshape(even, *x.shape[:2], groups_read, group * depth)
            if (result := _pixels_in_channels(chain, node, picture, group)) is not None:
                yield result


class ChannelsIntoKernel(_Offers):
    """Splits channels into pixels that a wider kernel combines.

    x [N, H, W, 32] -> conv2d{1x1} -> y
    x -> reshape [N, H, W * 2, 16] -> conv2d{1x2, stride (1, 2)} -> y

    Exact: the same products at the same memory locations.
    """

    name = "channels_into_kernel"

    def offers(self, node: Node, before: Node | None = None) -> Iterator[list[Node]]:
        if not _is_plain(node) or not isinstance(node.op, Conv2d):
            return
        op, (x, weight, bias), y = node.op, node.inputs, node.output
        depth = x.type.channels
        for parts in (2, 3):
            if depth > _MOST_DEPTH or depth % (parts * _LANES) or op.stride[1] * parts > 3:
                continue
            chain = Chain(self.name, node)
            thin, kernel = (chain.reshape(t, *t.shape[:2], t.shape[2] * parts, depth // parts) for t in (x, weight))
            p = op.padding
            padding = Padding2d(p.top, p.bottom, p.left * parts, p.right * parts)
            moved = replace(op, stride=(op.stride[0], op.stride[1] * parts), padding=padding)
            result = chain.add(moved, thin, kernel, bias, qparams=y.type.qparams)
            if result.shape == y.shape:
                yield chain.result(result, y)


class FlatPixels(RewriteOf[Conv2d]):
    """Puts all pixels into one row for a pointwise convolution.

    x [1, 7, 7, C] -> conv2d{1x1} -> y
    x -> reshape [1, 1, 49, C] -> conv2d{1x1} -> reshape [1, 7, 7, O] -> y
    """

    name = "flat_pixels"

    def replaced(self, node: Node, op: Conv2d, chain: Chain) -> list[Node] | None:
        (x, weight, bias), y = node.inputs, node.output
        if not _is_plain(node) or not _is_pointwise(op, weight) or x.shape[1] == 1 or x.shape[2] % 4 == 0:
            return None
        flat = chain.reshape(x, x.shape[0], 1, x.shape[1] * x.shape[2], x.type.channels)
        return chain.result(chain.add(op, flat, weight, bias, qparams=y.type.qparams), y)


class DiagonalConvolution(RewriteOf[DepthwiseConv2d]):
    """A depthwise convolution of few channels as a dense convolution with zero weights between channels.

    x [N, H, W, 8] -> depthwise_conv2d(w [1, 3, 3, 8]) -> y
    x -> conv2d(w' [8, 3, 3, 8], diagonal) -> y
    """

    name = "diagonal_convolution"

    def replaced(self, node: Node, op: DepthwiseConv2d, chain: Chain) -> list[Node] | None:
        (x, weight, bias), y, qparams = node.inputs, node.output, node.inputs[1].type.qparams
        depth = x.type.channels
        if x.type.dtype is not DType.INT8 or weight.shape[3] != depth or depth > 2 * _LANES:
            return None
        if weight.data is None or qparams is None:
            return None
        dense = np.zeros((depth, *weight.shape[1:3], depth), np.int8)
        every = np.arange(depth)
        dense[every, :, :, every] = weight.data[0].transpose(2, 0, 1)
        if not qparams.is_per_tensor:
            qparams = QParams.per_channel(qparams.scale, 0)
        kernel = chain.constant(dense, TensorType(dense.shape, DType.INT8, qparams))
        made = Conv2d(op.stride, op.padding, op.dilation, op.activation, dtype=op.dtype)
        return chain.result(chain.add(made, x, kernel, bias, qparams=y.type.qparams), y)


class RowsIntoChannels(RewriteOf[Prelu | Pad | Slice]):
    """An operator with the pixels of a row as further channels: a PReLU with repeated slopes, a pad or a slice. Exact.

    x [1, H, W, C] -> prelu(slope [C]) -> y
    x -> reshape [1, H, 1, W * C] -> prelu(slope [W * C]) -> reshape -> y

    x [N, H, W, 1] -> pad or slice of height and width -> y
    x -> reshape [N, H, 1, W] -> pad or slice of height and channels -> reshape -> y
    """

    name = "rows_into_channels"

    def replaced(self, node: Node, op: Prelu | Pad | Slice, chain: Chain) -> list[Node] | None:
        (x, *operands), y = node.inputs, node.output
        if x.type.rank != 4 or x.data is not None:
            return None
        count, height, width, depth = x.shape
        if isinstance(op, Prelu):
            (slope,) = operands
            if slope.data is None or slope.type.size != depth or width * depth > _MOST_CHANNELS:
                return None
            operands = [chain.constant(np.tile(slope.data, width), slope.type.with_shape((width * depth,)))]
        elif depth >= _LANES or y.shape[3] != depth or width == y.shape[2]:
            return None
        elif isinstance(op, Pad):
            op = replace(op, before=_as_channels(op.before, depth), after=_as_channels(op.after, depth))
        else:
            op = Slice(_as_channels(op.begin, depth), (*y.shape[:2], 1, y.shape[2] * depth))
        rows = chain.reshape(x, count, height, 1, width * depth)
        return chain.result(chain.add(op, rows, *operands, qparams=y.type.qparams), y)


def _as_channels(counts: Sequence[int], depth: int) -> tuple[int, ...]:
    """Pixels of a pad or slice of an image, those of a row as channels."""
    return (*counts[:2], 0, counts[2] * depth)


def _is_layout(node: Node, permutation: tuple[int, ...]) -> bool:
    """True if the node is a layout transpose of one int8 image."""
    x = node.inputs[0].type
    return (
        isinstance(node.op, Transpose)
        and node.op.permutation == permutation
        and x.shape[0] == 1
        and x.dtype is DType.INT8
        and x.qparams is not None
    )


def _is_plain(node: Node, *types: DType) -> bool:
    """True if the node is a dense convolution without dilation, of int8 or one of some types."""
    op = node.op
    return (
        isinstance(op, Conv2d)
        and op.dilation == (1, 1)
        and node.inputs[1].data is not None
        and node.inputs[0].type.dtype in (types or (DType.INT8,))
        and node.inputs[1].shape[3] == node.inputs[0].type.channels
    )


def _is_pointwise(op: Conv2d, weight: Tensor) -> bool:
    return weight.shape[1:3] == op.stride == (1, 1) and op.padding == NO_PADDING


def _interleaved(chain: Chain, x: Tensor, pixels: int, group: int, lanes: int) -> Tensor | None:
    """Planes [1, C, H, W] as [1, H, W / group, lanes], the pixels of a group side by side, padded with zeros; a
    position of the convolution has ``pixels`` of each plane."""
    _, planes, high, wide = x.shape
    if planes > _MOST_PLANES or (high * wide) % pixels or wide % group or pixels % group or x.type.qparams is None:
        return None
    groups = pixels // group
    kernel = np.zeros((groups, lanes, planes, 1, pixels), np.int8)
    for pixel in range(pixels):
        for plane in range(planes):
            kernel[pixel // group, pixel % group * planes + plane, plane, 0, pixel] = 1
    count = groups * lanes
    ones = QParams.per_channel((1.0,) * count, 0)
    weight = chain.constant(kernel, TensorType((count, planes, 1, pixels), DType.INT8, ones))
    sums = QParams.per_channel((x.type.scale,) * count, 0)
    bias = chain.constant(np.zeros(count), TensorType((count,), DType.INT32, sums))
    picture = chain.reshape(x, 1, planes, high * wide // pixels, pixels)
    op = Conv2d((1, 1), NO_PADDING, (1, 1), Activation.NONE)
    return chain.reshape(chain.add(op, picture, weight, bias, qparams=x.type.qparams), 1, high, wide // group, lanes)


def _places(node: Node, group: int) -> range:
    """Groups of pixels, counted from its first one, that the results of one group depend on."""
    op, wide = node.op, node.inputs[1].shape[2]
    assert isinstance(op, Conv2d)
    last = max(group // op.stride[1] - 1, 0) * op.stride[1] + wide - 1
    return range(-op.padding.left // group, (last - op.padding.left) // group + 1)


def _pixels_in_channels(chain: Chain, node: Node, x: Tensor, group: int) -> list[Node] | None:
    """The convolution of pixels whose channels contain ``group`` of them and padding, or None.

    The result at j depends on the pixels ``j * stride - left + u``, which are in the group
    ``(j * stride - left + u) // group``; results of one group become channels.
    No padding is negative: rows consist of whole groups, and the last result reads from the last group.

    Args:
        group: 1, or a multiple of the horizontal stride.
    """
    op, (_, weight, bias), y = node.op, node.inputs, node.output
    assert isinstance(op, Conv2d) and weight.data is not None
    outputs, high, wide, depth = weight.shape
    count, places, stride = max(group // op.stride[1], 1), _places(node, group), op.stride[1]
    size = -(-y.shape[2] // count)
    right = size + places[-1] - x.shape[2] if group > 1 else op.padding.right
    kernel = np.zeros((count, outputs, high, len(places), x.type.channels), weight.data.dtype)
    for i, u in ((i, u) for i in range(count) for u in range(wide)):
        place, pixel = divmod(i * stride - op.padding.left + u, group)
        kernel[i, :, :, place - places[0], pixel * depth : (pixel + 1) * depth] = weight.data[:, :, u]
    moved = replace(
        op,
        stride=(op.stride[0], -(-stride // group)),
        padding=Padding2d(op.padding.top, op.padding.bottom, -places[0], right),
    )
    shape = (count * outputs, *kernel.shape[2:])
    weights = chain.constant(kernel, _repeated(weight.type.with_shape(shape), count))
    biases = (
        bias
        if bias.data is None
        else chain.constant(np.tile(bias.data, count), _repeated(bias.type.with_shape(shape[:1]), count))
    )
    result = chain.add(moved, x, weights, biases, qparams=y.type.qparams)
    if result.shape != (*y.shape[:2], size, shape[0]):
        return None
    result = chain.reshape(result, *y.shape[:2], size * count, outputs)
    return chain.result(_first_pixels(chain, result, y.shape[2]), y)


def _first_pixels(chain: Chain, x: Tensor, count: int) -> Tensor:
    """The first pixels of each row, which are copied as channels, see `RowsIntoChannels`."""
    if count == x.shape[2]:
        return x
    high, depth = math.prod(x.shape[:2]), x.shape[3]
    flat = chain.reshape(x, 1, 1, high, x.shape[2] * depth)
    return chain.reshape(chain.cut(flat, 3, 0, count * depth), *x.shape[:2], count, depth)


def _repeated(type: TensorType, count: int) -> TensorType:
    """The type of a constant with the qparams of its channels repeated."""
    q = type.qparams
    if q is None or q.axis is None:
        return type
    return type.with_qparams(QParams.per_channel(q.scale * count, q.axis, q.zero_point * count))


class RowsOfBytes(RewriteOf[Conv2d]):
    """A convolution of few int16 pixels with a kernel of one as a convolution of their bytes as int8 pixels.

        x [1, 1, 1, 256] int16 -> conv2d(w [1024, 1, 1, 256]) -> y        x -> conv2d_bytes(w) -> y

    Exact. On U85, 74 thousand cycles become 21, for which the same convolution of int8 pixels takes 19.
    """

    name = "rows_of_bytes"

    def replaced(self, node: Node, op: Conv2d, chain: Chain) -> list[Node] | None:
        (x, weight, bias), y = node.inputs, node.output
        is_plain = _is_plain(node, DType.INT16) and _is_pointwise(op, weight)
        is_few = x.type.size <= _MOST_PIXELS * x.type.channels
        if not (is_plain and is_few) or weight.data is None or bias.data is None:
            return None
        if byte_factors(x.type, weight.type, y.type, weight.data, bias.data) is None:
            return None
        made = BytesConv2d(activation=op.activation, dtype=y.type.dtype)
        return chain.result(chain.add(made, *node.inputs, qparams=y.type.qparams), y)


TO_COST_LESS: tuple[Rewrite, ...] = (
    TransposeAsMatrix(),
    PlanesIntoConvolution(),
    PixelsIntoChannels(),
    ChannelsIntoKernel(),
    FlatPixels(),
    DiagonalConvolution(),
    RowsIntoChannels(),
    RowsOfBytes(),
)
"""Applied to operators that Vela accepts, if its estimate is lower."""


_BRICK = 16
"""Channels that are adjacent in memory; the channels of a part are a multiple."""
PARTS = 64 * 1024
"""Default size of the weights of a part in bytes."""


class SplitChannels(RewriteOf[Conv2d | FullyConnected]):
    """Splits a convolution or a linear layer with many weights by output channels.

        x [1, 7, 7, 320] -> conv2d(w [1280, 1, 1, 320]) -> y [1, 7, 7, 1280]
        x -> conv2d(w[0:432]) , x -> conv2d(w[432:864]) , x -> conv2d(w[864:1280]) -> concat -> y

    A prefetch needs memory for all weights of an operation, and the operation waits for the last of them. Exact.

    Args:
        most: maximum bytes of weights of a part.
    """

    name = "split_channels"

    def __init__(self, most: int = PARTS) -> None:
        self.most = most

    def replaced(self, node: Node, op: Conv2d | FullyConnected, chain: Chain) -> list[Node] | None:
        x, weight, bias = node.inputs
        if weight.data is None or bias.data is None or (isinstance(op, Conv2d) and weight.shape[3] != x.shape[3]):
            return None
        channels = weight.shape[0]
        count = min(-(-weight.data.nbytes // self.most), channels // _BRICK)
        if count < 2:
            return None
        step = -(-math.ceil(channels / count) // _BRICK) * _BRICK
        qparams, firsts = node.output.type.qparams, range(0, channels, step)
        parts = [chain.add(op, x, _rows(weight, n, step), _rows(bias, n, step), qparams=qparams) for n in firsts]
        y = chain.add(Concat(node.output.type.rank - 1), *parts)
        return chain.result(y, node.output)


def _rows(constant: Tensor, first: int, count: int) -> Tensor:
    """A slice of a constant's first axis, with its scales."""
    assert constant.data is not None
    data = np.ascontiguousarray(constant.data[first : first + count])
    qparams = constant.type.qparams
    if qparams is not None and qparams.axis is not None:
        rows = slice(first, first + count)
        qparams = QParams.per_channel(qparams.scale[rows], qparams.axis, qparams.zero_point[rows])
    return Tensor(constant.name, constant.type.with_shape(data.shape).with_qparams(qparams), data)


TO_COME_EARLIER: tuple[Rewrite, ...] = (SplitChannels(),)


def in_parts(graph: Graph, disabled: Collection[str], most: int = PARTS) -> dict[str, int]:
    """Split operators with more bytes of weights, in place; return the number of operators by rewrite."""
    rewrite = SplitChannels(most)
    made = [None if rewrite.name in disabled else rewrite.apply(node) for node in graph.nodes]
    if not (count := sum(nodes is not None for nodes in made)):
        return {}
    graph.nodes = [new for node, nodes in zip(graph.nodes, made, strict=True) for new in nodes or [node]]
    graph.rename()
    return {rewrite.name: count}
