"""Rewrites of operators, or of attributes, for which a Cortex-M core has no kernel.

The rewritten graph defines the core's result: `micronpu.ir.interpreter` computes it bit for bit.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from micronpu.base.arrays import Array
from micronpu.base.errors import UnsupportedError
from micronpu.ir.arithmetic import float32_quotient, requantize
from micronpu.ir.graph import Node, Tensor
from micronpu.ir.op import Op
from micronpu.ir.types import DType, QParams, TensorType
from micronpu.ir.window import NO_PADDING, Activation, Padding2d
from micronpu.ops.activation import Prelu
from micronpu.ops.clamps import Relu
from micronpu.ops.convolution import Conv2d, DepthwiseConv2d, TransposeConv2d
from micronpu.ops.elementwise import Add, Mul, Sub
from micronpu.ops.matmul import FullyConnected
from micronpu.ops.movement import Pad, Transpose
from micronpu.ops.pooling import AvgPool2d, MaxPool2d, by_parts, clipped_windows, pools
from micronpu.ops.reduction import Mean
from micronpu.ops.resize import ResizeBilinear, axis_weights
from micronpu.ops.slicing import Concat, Slice
from micronpu.ops.tables.table import LookupTable
from micronpu.ops.unary import Neg
from micronpu.passes.rewrite import Chain, ReflectBySlices, Rewrite, RewriteOf, block, mirrored, run


def is_even(sides: Padding2d) -> bool:
    """True if the padding is symmetric in each axis, which CMSIS-NN's kernels support."""
    return sides.top == sides.bottom and sides.left == sides.right


class RowsAsPixels(RewriteOf[FullyConnected]):
    """A fully connected layer as a convolution of images of one pixel.

    x [R, I] -> fully_connected(w [O, I]) -> y        x -> reshape [R,1,1,I] -> conv2d(w [O,1,1,I]) -> reshape -> y

    Not exact: LiteRT's reference rounds a fully connected layer once, CMSIS-NN twice.
    """

    name = "rows_as_pixels"
    max_steps = 1

    def replaced(self, node: Node, op: FullyConnected, chain: Chain) -> list[Node] | None:
        (x, weight, bias), y = node.inputs, node.output
        outputs, inputs = weight.shape
        rows = chain.reshape(x, x.type.size // inputs, 1, 1, inputs)
        kernel = chain.reshape(weight, outputs, 1, 1, inputs)
        made = chain.add(Conv2d(activation=op.activation), rows, kernel, bias, qparams=y.type.qparams)
        return chain.result(made, y)


class MeanAsColumn(RewriteOf[Mean]):
    """A mean as an average of one column.

    x [N, A, B, C] -> mean(axes 1, 2) -> y        x -> reshape [N, A * B, 1, C] -> avg_pool2d{A * B x 1} -> reshape -> y

    Not exact: CMSIS-NN adds the zero point to the sum, which is rounded once.
    """

    name = "mean_as_column"
    max_steps = 1

    def replaced(self, node: Node, op: Mean, chain: Chain) -> list[Node] | None:
        (x,), y = node.inputs, node.output
        axes = tuple(sorted(op.axes))
        if not axes:
            return chain.result(x, y)
        if run(axes) is None:
            others = tuple(i for i in range(x.type.rank) if i not in axes)
            x = chain.add(Transpose((*others, *axes)), x)
            axes = tuple(range(len(others), x.type.rank))
        before, count, after = block(x.shape, axes[0], axes[-1])
        column = chain.reshape(x, before, count, 1, after)
        return chain.result(chain.add(AvgPool2d((count, 1), (count, 1)), column, qparams=y.type.qparams), y)


class AddOpposite(RewriteOf[Sub]):
    """A difference as a sum with the negated operand, whose integers have all bits flipped.

    x - z -> y        neg(z) with mirrored qparams -> x + -z -> y

    Not exact: a tie of the second operand is rounded the other way.
    """

    name = "add_opposite"
    max_steps = 1

    def replaced(self, node: Node, op: Sub, chain: Chain) -> list[Node] | None:
        (x, z), y = node.inputs, node.output
        assert z.type.qparams is not None
        qparams: QParams = mirrored(z.type.qparams)
        if z.data is None:
            opposite = chain.add(Neg(), z, qparams=qparams)
        else:
            opposite = Tensor(z.name, z.type.with_qparams(qparams), ~z.data)
        return chain.result(chain.add(Add(op.activation), x, opposite, qparams=y.type.qparams), y)


class ClampBehindProduct(RewriteOf[Mul]):
    """Splits a product with a clamp into both. Exact.

    x * z {relu} -> y        x * z -> relu -> y
    """

    name = "clamp_behind_product"

    def replaced(self, node: Node, op: Mul, chain: Chain) -> list[Node] | None:
        y = node.output
        if op.activation is Activation.NONE:
            return None
        product = chain.add(Mul(), *node.inputs, qparams=y.type.qparams)
        return chain.result(chain.add(Relu(op.activation), product, qparams=y.type.qparams), y)


_Window = AvgPool2d | MaxPool2d | Conv2d | DepthwiseConv2d


class PadBeforeWindow(RewriteOf[_Window]):
    """Moves padding that is asymmetric, or that an average counts, before the window. Exact.

    x -> conv2d{padding 0,1,0,1} -> y        x -> pad -> conv2d -> y
    """

    name = "pad_before_window"

    def replaced(self, node: Node, op: _Window, chain: Chain) -> list[Node] | None:
        if not op.count_padding if isinstance(op, AvgPool2d) else is_even(op.padding):
            return None
        (x, *operands), y, p = node.inputs, node.output, op.padding
        value = -math.inf if isinstance(op, MaxPool2d) else 0.0
        padded = chain.add(Pad((0, p.top, p.left, 0), (0, p.bottom, p.right, 0), value), x)
        return chain.result(chain.add(replace(op, padding=NO_PADDING), padded, *operands, qparams=y.type.qparams), y)


class AverageByParts(RewriteOf[AvgPool2d]):
    """Splits an average pool with asymmetric padding into averages of the interior and of the border, concatenated.
    Exact.

    x -> avg_pool2d{padding 0,1,0,1} -> y        x -> slices -> avg_pool2d each -> concat -> y
    """

    name = "average_by_parts"

    def replaced(self, node: Node, op: AvgPool2d, chain: Chain) -> list[Node] | None:
        x, y = node.inputs[0], node.output
        if is_even(op.padding) or op.count_padding:
            return None
        rows, columns = (
            clipped_windows(n, k, s, sides)
            for n, k, s, sides in zip(
                x.shape[1:3], op.kernel, op.stride, (op.padding.rows, op.padding.columns), strict=True
            )
        )

        def emit(part: Op, *inputs: Tensor) -> Tensor:
            return chain.add(part, *inputs, qparams=y.type.qparams)

        try:
            return chain.result(by_parts(emit, x, rows, columns, pools(emit, AvgPool2d)), y)
        except UnsupportedError:  # too many parts
            return None


class CropBehindConvolution(RewriteOf[TransposeConv2d]):
    """Replaces an asymmetric crop of a transposed convolution by a slice after it. Exact.

    x -> transpose_conv2d{crop 0,1,0,1} -> y        x -> transpose_conv2d -> slice -> y
    """

    name = "crop_behind_convolution"

    def replaced(self, node: Node, op: TransposeConv2d, chain: Chain) -> list[Node] | None:
        y = node.output
        if is_even(op.crop):
            return None
        full = chain.add(replace(op, crop=NO_PADDING), *node.inputs, qparams=y.type.qparams)
        return chain.result(chain.add(Slice((0, op.crop.top, op.crop.left, 0), y.shape), full), y)


_AT_ONCE, _BY_AXES = (1, 2, 4), (8,)
"""Factors for which the products of weights along both axes, and those along one axis, are int8 numbers."""


class BilinearByPhases(RewriteOf[ResizeBilinear]):
    """A bilinear resize to 2, 4 or 8 times the size as a depthwise convolution for each phase of an output pixel.

    x -> resize_bilinear{2H, 2W} -> y
    x, its borders repeated -> depthwise_conv2d{2x2}, for the upper left of 2x2 places in an element ─┬ concat -> y
                            -> depthwise_conv2d{2x2}, for the upper right, and so on ─────────────────┘

    Not exact: ties are rounded away from the zero point; a factor of 8 is rounded for each axis.
    """

    name = "bilinear_by_phases"
    max_steps = 1

    def replaced(self, node: Node, op: ResizeBilinear, chain: Chain) -> list[Node] | None:
        x, y = node.inputs[0], node.output
        if not op.half_pixel_centers:
            return None
        factor = op.size[0] // x.shape[1]
        if factor not in (*_AT_ONCE, *_BY_AXES) or op.size != (factor * x.shape[1], factor * x.shape[2]):
            return None
        if factor in _AT_ONCE:
            return chain.result(_enlarged(chain, x, factor, factor), y)
        return chain.result(_enlarged(chain, _enlarged(chain, x, factor, 1), 1, factor), y)


def _enlarged(chain: Chain, x: Tensor, down: int, across: int) -> Tensor:
    """Enlarge x by factors of rows and columns; all results of one phase are one convolution."""
    if down == across == 1:
        return x
    qparams, channels = x.type.qparams, x.shape[3]
    assert qparams is not None
    # The weights are doubled: the double rounding of their sums is then a single rounding.
    steps = 2 * math.prod(2 * factor for factor in (down, across) if factor > 1)
    weights = TensorType((1, 1, 1, channels), DType.INT8, QParams.per_tensor(1 / steps, 0))
    zeros = TensorType((channels,), DType.INT32, QParams.per_tensor(x.type.scale / steps, 0))
    bias = chain.constant(np.zeros(channels), zeros)
    heights = _places(chain, x, 1, down)
    widths = {above: _places(chain, above, 2, across) for above, _ in heights}
    rows = []
    for above, vertical in heights:
        parts = []
        for image, horizontal in widths[above]:
            kernel = 2 * np.outer(vertical, horizontal)[None, :, :, None]
            weight = chain.constant(kernel.repeat(channels, 3), weights.with_shape((1, *kernel.shape[1:3], channels)))
            parts.append(chain.add(DepthwiseConv2d(), image, weight, bias, qparams=qparams))
        rows.append(_by_turns(chain, parts, 2))
    return _by_turns(chain, rows, 1)


def _places(chain: Chain, x: Tensor, axis: int, factor: int) -> list[tuple[Tensor, npt.NDArray[np.int64]]]:
    """Windows of two neighbours for each phase along an axis, and their weights."""
    if factor == 1:
        return [(x, np.ones(1, np.int64))]
    size = x.shape[axis]
    first, last = chain.cut(x, axis, 0, 1), chain.cut(x, axis, size - 1, 1)
    before, behind = chain.add(Concat(axis), first, x), chain.add(Concat(axis), x, last)
    taps = axis_weights(factor)
    return [(before, w[:2]) if w[0] else (behind, w[1:]) for w in taps]


def _by_turns(chain: Chain, parts: list[Tensor], axis: int) -> Tensor:
    if len(parts) == 1:
        return parts[0]
    shape = parts[0].shape
    outer, size, inner = block(shape, axis)
    joined = chain.add(Concat(1), *(chain.reshape(part, outer * size, 1, inner) for part in parts))
    return chain.reshape(joined, *shape[:axis], size * len(parts), *shape[axis + 1 :])


class PreluByParts(RewriteOf[Prelu]):
    """A PReLU as the sum of the positive part and a depthwise convolution of the negative part.

    x -> prelu(slope [C]) -> y        x -> table ──────────────────────────────────────────────┬ add -> y
                                        -> table -> reshape -> depthwise_conv2d{1x1} -> reshape ┘

    Not exact: the product of the scales becomes another multiplier.
    """

    name = "prelu_by_parts"
    max_steps = 1

    def replaced(self, node: Node, op: Prelu, chain: Chain) -> list[Node] | None:
        if node.output.type.dtype is not DType.INT8:
            return None
        (x, slope), y = node.inputs, node.output
        if slope.data is None or slope.type.zero_point or slope.type.size != x.type.channels:
            return None
        channels = x.type.channels
        numbers = np.arange(-128, 128)
        assert y.type.qparams is not None and slope.type.qparams is not None
        ratio = float32_quotient(y.type.scale, x.type.scale)
        positive = requantize(np.maximum(numbers - x.type.zero_point, 0), ratio) + y.type.zero_point
        above = chain.add(_table_of(positive), x, qparams=y.type.qparams)
        negative = chain.add(_table_of(np.minimum(numbers, x.type.zero_point)), x, qparams=x.type.qparams)
        rows = chain.reshape(negative, 1, 1, x.type.size // channels, channels)
        weight = Tensor(slope.name, slope.type.with_shape((1, 1, 1, channels)), slope.data.reshape(1, 1, 1, channels))
        zeros = TensorType((channels,), DType.INT32, QParams.per_tensor(x.type.scale * slope.type.scale, 0))
        bias = chain.constant(np.zeros(channels), zeros)
        below = chain.add(DepthwiseConv2d(), rows, weight, bias, qparams=y.type.qparams)
        # One of the two is zero everywhere, so the sum is exact.
        return chain.result(chain.add(Add(), above, chain.reshape(below, *x.shape), qparams=y.type.qparams), y)


def _table_of(results: Array) -> LookupTable:
    return LookupTable(tuple(int(v) for v in results.clip(*DType.INT8.limits)))


REWRITES: tuple[Rewrite, ...] = (
    RowsAsPixels(),
    MeanAsColumn(),
    AddOpposite(),
    ClampBehindProduct(),
    PadBeforeWindow(),
    AverageByParts(),
    CropBehindConvolution(),
    ReflectBySlices(),
    BilinearByPhases(),
    PreluByParts(),
)
