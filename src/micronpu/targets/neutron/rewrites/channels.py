"""Rewrites that fill up channels and elements to multiples of the lanes."""

from __future__ import annotations

from micronpu.ir.graph import Node
from micronpu.ir.types import QParams, TensorType
from micronpu.ops.elementwise import Mul
from micronpu.ops.movement import Reshape
from micronpu.ops.pooling import MaxPool2d
from micronpu.ops.quantization import Requantize
from micronpu.ops.resize import ResizeBilinear, ResizeNearest
from micronpu.ops.slicing import Slice
from micronpu.ops.softmax import Softmax
from micronpu.passes.rewrite import Chain, Rewrite
from micronpu.targets.neutron.rules.published import LANES

_NOTHING = 8.0
"""exp(-8) is a third of a thousandth, less than a tenth of a step of softmax's result."""


def _span(x: TensorType) -> float:
    """Distance of the highest value of a grid from the lowest."""
    low, high = x.dtype.limits
    return x.scale * (high - low)


def _lowered(x: TensorType) -> QParams:
    """A grid with the same highest value whose lowest is `_NOTHING` lower."""
    low, high = x.dtype.limits
    scale = (_span(x) + _NOTHING) / (high - low)
    return QParams.per_tensor(scale, high - round(x.scale * (high - x.zero_point) / scale))


class PadChannels(Rewrite):
    """Fills up channels for an operator that takes only multiples of the lanes, and cuts them off again.

        x[.., 10] -> softmax -> y[.., 10]
        x[.., 10] -> pad(-128, to 16) -> softmax -> slice(0:10) -> y[.., 10]

    Exact for a max pool and a resize, whose channels do not see each other.  In a softmax an added lane weighs
    exp(-d) beside the largest element, with d the distance of that one from the lowest value of the grid: nothing on
    the grid of 1/256 once d is 8.  Where the whole grid spans less than 16, x goes to a coarser grid first that reaches
    8 lower, so that this holds for every row; the price is the rounding to it, at most half of ``s + 8 / 255``.
    """

    name = "pad_channels"
    max_steps = None

    def apply(self, node: Node) -> list[Node] | None:
        if not isinstance(node.op, MaxPool2d | ResizeNearest | ResizeBilinear | Softmax):
            return None
        y = node.output
        if y.type.channels % LANES == 0 or y.type.rank < 2:
            return None
        chain = Chain(self.name, node)
        x = node.inputs[0]
        if isinstance(node.op, Softmax) and _span(x.type) < 2 * _NOTHING:
            x = chain.add(Requantize(), x, qparams=_lowered(x.type))
        wide = chain.add(node.op, chain.widened(x, LANES), qparams=y.type.qparams)
        return chain.finish(Slice((0,) * y.type.rank, y.shape), wide, y)


class FillProduct(Rewrite):
    """Fills up a product for a chip that takes only a multiple of the lanes as number of elements.  Exact.

    x[3,5] * z[3,5] -> y        reshape both to [1,1,1,15], pad to 16, multiply, slice, reshape -> y
    """

    name = "fill_product"

    def apply(self, node: Node) -> list[Node] | None:
        if not isinstance(node.op, Mul) or any(t.shape != node.output.shape for t in node.inputs):
            return None
        y = node.output
        size = y.type.size
        if size % LANES == 0:
            return None
        chain = Chain(self.name, node)
        wide = [chain.widened(chain.add(Reshape((1, 1, 1, size)), t), LANES) for t in node.inputs]
        product = chain.add(node.op, *wide, qparams=y.type.qparams)
        flat = chain.add(Slice((0, 0, 0, 0), (1, 1, 1, size)), product)
        return chain.finish(Reshape(y.shape), flat, y)


CHANNELS: tuple[Rewrite, ...] = (
    PadChannels(),
    FillProduct(),
)
