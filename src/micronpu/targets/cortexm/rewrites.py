"""The rewrites of one operator for a Cortex-M core that has no kernel for it, or none for its attributes.

The rewritten graph is the definition of what the core computes: `micronpu.ir.interpreter` gives its result bit for bit.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from micronpu.base.errors import UnsupportedError
from micronpu.ir.graph import Node, Tensor
from micronpu.ir.op import Op
from micronpu.ir.types import QParams
from micronpu.ir.window import NO_PADDING, Activation, Padding2d
from micronpu.ops.activation import Relu
from micronpu.ops.adaptive import by_parts, clipped_windows
from micronpu.ops.convolution import Conv2d, DepthwiseConv2d
from micronpu.ops.elementwise import Add, Mul, Sub
from micronpu.ops.linear import FullyConnected
from micronpu.ops.movement import Pad, Transpose
from micronpu.ops.pooling import AvgPool2d, MaxPool2d
from micronpu.ops.reduction import Mean
from micronpu.ops.slicing import Slice
from micronpu.ops.transposed import TransposeConv2d
from micronpu.ops.unary import Neg
from micronpu.passes.rewrite import Chain, Rewrite, block, mirrored, run
from micronpu.passes.rewrites import ReflectBySlices


def is_even(sides: Padding2d) -> bool:
    """Whether both sides of each axis are alike, which is what CMSIS-NN's kernels have an argument for."""
    return sides.top == sides.bottom and sides.left == sides.right


class RowsAsPixels(Rewrite):
    """A fully connected layer as a convolution of pictures of one pixel.

    x [R, I] -> fully_connected(w [O, I]) -> y        x -> reshape [R,1,1,I] -> conv2d(w [O,1,1,I]) -> reshape -> y

    Not exact: LiteRT's reference rounds a fully connected layer once, CMSIS-NN twice.
    """

    name = "rows_as_pixels"
    max_steps = 1

    def apply(self, node: Node) -> list[Node] | None:
        if not isinstance(node.op, FullyConnected):
            return None
        (x, weight, bias), y = node.inputs, node.output
        outputs, inputs = weight.shape
        assert weight.data is not None
        chain, shape = Chain(self.name, node), (outputs, 1, 1, inputs)
        rows = chain.reshape(x, x.type.size // inputs, 1, 1, inputs)
        kernel = Tensor(weight.name, weight.type.with_shape(shape), weight.data.reshape(shape))
        op = Conv2d(activation=node.op.activation)
        return chain.result(chain.add(op, rows, kernel, bias, qparams=y.type.qparams), y)


class MeanAsColumn(Rewrite):
    """A mean as an average of one column.

    x [N, A, B, C] -> mean(axes 1, 2) -> y        x -> reshape [N, A * B, 1, C] -> avg_pool2d{A * B x 1} -> reshape -> y

    Not exact: the zero point is part of CMSIS-NN's sum, which is rounded once.
    """

    name = "mean_as_column"
    max_steps = 1

    def apply(self, node: Node) -> list[Node] | None:
        if not isinstance(node.op, Mean):
            return None
        (x,), y = node.inputs, node.output
        axes = tuple(sorted(node.op.axes))
        chain = Chain(self.name, node)
        if not axes:
            return chain.result(x, y)
        if run(axes) is None:
            others = tuple(i for i in range(x.type.rank) if i not in axes)
            x = chain.add(Transpose((*others, *axes)), x)
            axes = tuple(range(len(others), x.type.rank))
        before, count, after = block(x.shape, axes[0], axes[-1])
        column = chain.reshape(x, before, count, 1, after)
        return chain.result(chain.add(AvgPool2d((count, 1), (count, 1)), column, qparams=y.type.qparams), y)


class AddOpposite(Rewrite):
    """A difference as the sum with the opposite, whose integers are those of the operand with all bits flipped.

    x - z -> y        neg(z) on the mirrored grid -> x + -z -> y

    Not exact: a tie of the second operand is rounded the other way.
    """

    name = "add_opposite"
    max_steps = 1

    def apply(self, node: Node) -> list[Node] | None:
        if not isinstance(node.op, Sub):
            return None
        (x, z), y = node.inputs, node.output
        chain = Chain(self.name, node)
        assert z.type.qparams is not None
        grid: QParams = mirrored(z.type.qparams)
        if z.data is None:
            opposite = chain.add(Neg(), z, qparams=grid)
        else:
            opposite = Tensor(z.name, z.type.with_qparams(grid), ~z.data)
        return chain.result(chain.add(Add(node.op.activation), x, opposite, qparams=y.type.qparams), y)


class ClampBehindProduct(Rewrite):
    """A product with a clamp as the two.  Exact.

    x * z {relu} -> y        x * z -> relu -> y
    """

    name = "clamp_behind_product"

    def apply(self, node: Node) -> list[Node] | None:
        op, y = node.op, node.output
        if not isinstance(op, Mul) or op.activation is Activation.NONE:
            return None
        chain = Chain(self.name, node)
        product = chain.add(Mul(), *node.inputs, qparams=y.type.qparams)
        return chain.result(chain.add(Relu(op.activation), product, qparams=y.type.qparams), y)


class PadBeforeWindow(Rewrite):
    """Padding that differs from side to side, or that an average counts, before the window.  Exact.

    x -> conv2d{padding 0,1,0,1} -> y        x -> pad -> conv2d -> y
    """

    name = "pad_before_window"

    def apply(self, node: Node) -> list[Node] | None:
        op: Any = node.op
        if isinstance(op, AvgPool2d):
            if not (op.count_padding and op.padding):
                return None
            without: Op = replace(op, padding=NO_PADDING, count_padding=False)
        elif isinstance(op, (Conv2d, DepthwiseConv2d, MaxPool2d)) and not is_even(op.padding):
            without = replace(op, padding=NO_PADDING)
        else:
            return None
        (x, *operands), y, p = node.inputs, node.output, op.padding
        chain = Chain(self.name, node)
        value = -math.inf if isinstance(op, MaxPool2d) else 0.0
        padded = chain.add(Pad((0, p.top, p.left, 0), (0, p.bottom, p.right, 0), value), x)
        return chain.result(chain.add(without, padded, *operands, qparams=y.type.qparams), y)


class AverageByParts(Rewrite):
    """An average whose padding differs from side to side as averages of the inside and of the border, joined.  Exact.

    x -> avg_pool2d{padding 0,1,0,1} -> y        x -> slices -> avg_pool2d each -> concat -> y
    """

    name = "average_by_parts"

    def apply(self, node: Node) -> list[Node] | None:
        op, x, y = node.op, node.inputs[0], node.output
        if not isinstance(op, AvgPool2d) or is_even(op.padding) or op.count_padding:
            return None
        rows, columns = (
            clipped_windows(n, k, s, sides)
            for n, k, s, sides in zip(
                x.shape[1:3], op.kernel, op.stride, (op.padding.rows, op.padding.columns), strict=True
            )
        )
        chain = Chain(self.name, node)

        def emit(part: Op, *inputs: Tensor) -> Tensor:
            return chain.add(part, *inputs, qparams=y.type.qparams)

        try:
            return chain.result(by_parts(emit, x, rows, columns, AvgPool2d), y)
        except UnsupportedError:  # too many parts
            return None


class CropBehindConvolution(Rewrite):
    """A transposed convolution whose crop differs from side to side without it, cut afterwards.  Exact.

    x -> transpose_conv2d{crop 0,1,0,1} -> y        x -> transpose_conv2d -> slice -> y
    """

    name = "crop_behind_convolution"

    def apply(self, node: Node) -> list[Node] | None:
        op, y = node.op, node.output
        if not isinstance(op, TransposeConv2d) or is_even(op.crop):
            return None
        chain = Chain(self.name, node)
        full = chain.add(replace(op, crop=NO_PADDING), *node.inputs, qparams=y.type.qparams)
        return chain.result(chain.add(Slice((0, op.crop.top, op.crop.left, 0), y.shape), full), y)


REWRITES: tuple[Rewrite, ...] = (
    RowsAsPixels(),
    MeanAsColumn(),
    AddOpposite(),
    ClampBehindProduct(),
    PadBeforeWindow(),
    AverageByParts(),
    CropBehindConvolution(),
    ReflectBySlices(),
)
