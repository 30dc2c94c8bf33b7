"""Rewrites that pad channels and elements to multiples of the lanes."""

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
from micronpu.passes.rewrite import Chain, Rewrite, RewriteOf
from micronpu.targets.neutron.rules import LANES

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


CHANNELS: tuple[Rewrite, ...] = (
    PadChannels(),
    FillProduct(),
)
