"""Rewrites of operators on several tensors, of clamps, and of argmax. All are exact."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

import numpy as np

from micronpu.ir.arithmetic import multiply_by_quantized_multiplier, quantize_multiplier
from micronpu.ir.graph import Node, Tensor
from micronpu.ir.types import DType, QParams, TensorType
from micronpu.ops.clamps import Clamp
from micronpu.ops.elementwise import Add, Binary, Mul, Sub
from micronpu.ops.indices import MOST_POSITIONS, ArgMax
from micronpu.ops.matmul import BatchMatmul
from micronpu.ops.movement import Reshape, Transpose
from micronpu.ops.quantization import Requantize
from micronpu.ops.reduction import Amax, Amin
from micronpu.ops.resize import ResizeNearest
from micronpu.ops.unary import Neg
from micronpu.passes.rewrite import Chain, Rewrite, RewriteOf, block, mirrored
from micronpu.targets.neutron.rules import LANES

_LOWEST, _HIGHEST = DType.INT8.limits
_SMALLEST_SCALE = 1e-30
"""Below it the scales of a rewrite approach the limits of float32."""


def copies(chain: Chain, x: Tensor, outer: int, count: int, inner: int) -> Tensor:
    """Repeat each block of ``inner`` elements of x, of outer * inner elements, to [outer, count, inner].

    A pixel resized by 2 or 4 in both directions becomes 4 or 16 pixels, in any order. Blocks of one element are
    repeated as a whole, and a transpose groups their copies.
    """
    if inner == 1 and outer > 1:
        whole = copies(chain, x, 1, count, outer)
        return chain.reshape(chain.add(Transpose((0, 2, 1)), whole), outer, count, 1)
    made = 1
    while made < count:
        factor = 2 if count <= 4 * made else 4
        x = chain.add(ResizeNearest((factor, factor)), chain.reshape(x, outer * made, 1, 1, inner))
        made *= factor * factor
    return chain.cut(chain.reshape(x, outer, made, inner), 1, 0, count)


def _repeated(shape: tuple[int, ...], whole: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """First and last axis of each run along which a shape has to be repeated to become ``whole``."""
    for differs, axes in groupby(range(len(whole)), lambda i: shape[i] != whole[i]):
        if differs:
            run = list(axes)
            yield run[0], run[-1]


class ExpandOperand(RewriteOf[Binary]):
    """Repeats an operand that is smaller than the result. Exact; a constant is repeated in memory.

    x[1,8,4,4] + z[1,8,1,1] -> y        z -> reshape [8,1,1,1] -> resize [8,4,4,1] -> reshape [1,8,4,4] -> x + z' -> y
    """

    name = "expand_operand"

    def replaced(self, node: Node, op: Binary, chain: Chain) -> list[Node] | None:
        y = node.output
        if all(t.shape == y.shape for t in node.inputs):
            return None
        operands = [self._expanded(chain, t, y.shape) for t in node.inputs]
        return chain.result(chain.add(op, *operands, qparams=y.type.qparams), y)

    @staticmethod
    def _expanded(chain: Chain, x: Tensor, whole: tuple[int, ...]) -> Tensor:
        if x.data is not None:
            return chain.constant(np.broadcast_to(x.data, whole), x.type.with_shape(whole))
        x = chain.reshape(x, *((1,) * (len(whole) - x.type.rank)), *x.shape)
        for first, last in _repeated(x.shape, whole):
            shape = (*x.shape[:first], *whole[first : last + 1], *x.shape[last + 1 :])
            x = chain.reshape(copies(chain, x, *block(shape, first, last)), *shape)
        return x


class ExpandByProduct(RewriteOf[Binary]):
    """Multiplies an operand that is smaller than the result by ones, if a product may broadcast. Exact.

    x[1,8,4,4] + z[1,8,1,1] -> y        z * ones[1,8,4,4] -> z';  x + z' -> y

    The ones take as many bytes of the program as the result has elements.
    """

    name = "expand_by_product"

    def replaced(self, node: Node, op: Binary, chain: Chain) -> list[Node] | None:
        y = node.output
        smaller = [t for t in node.inputs if t.shape != y.shape and not t.is_constant]
        if not smaller or (isinstance(op, Mul) and len(smaller) < 2):
            return None
        operands = []
        for x in node.inputs:
            if x in smaller:
                qparams = x.type.with_shape(y.shape).with_qparams(QParams.per_tensor(1.0, 0))
                ones = chain.constant(np.ones(y.shape), qparams)
                x = chain.add(Mul(), x, ones, qparams=x.type.qparams)
            operands.append(x)
        return chain.result(chain.add(op, *operands, qparams=y.type.qparams), y)


class AddNegative(RewriteOf[Sub]):
    """A difference as a sum with the negated operand, in the qparams that represent -q as -1 - q.

    x - z -> y        z -> neg (q -> -1 - q) -> x + z' -> y

    Exact, and offered only if LiteRT rounds a number and its negative symmetrically for these scales, which holds
    unless a scaled number is a tie.
    """

    name = "add_negative"

    def replaced(self, node: Node, op: Sub, chain: Chain) -> list[Node] | None:
        x, z = node.inputs
        qparams = z.type.qparams
        if qparams is None or not self._is_odd(x, z):
            return None
        if z.data is not None:
            z = chain.constant(-1 - z.data, z.type.with_qparams(mirrored(qparams)))
        else:
            z = chain.add(Neg(), z, qparams=mirrored(qparams))
        y = node.output
        return chain.result(chain.add(Add(op.activation), x, z, qparams=y.type.qparams), y)

    @staticmethod
    def _is_odd(x: Tensor, z: Tensor) -> bool:
        """True if the negative of every value of z is scaled to the negative of its scaled value."""
        values = (np.arange(-255, 256, dtype=np.int64)) << 20
        scaled = multiply_by_quantized_multiplier(
            values, *quantize_multiplier(z.type.scale / (2.0 * max(x.type.scale, z.type.scale)))
        )
        return bool((scaled == -scaled[::-1]).all())


class ShiftAndBack(RewriteOf[Clamp]):
    """A clamp by saturation of int8: shifts the tensor until values beyond a bound saturate, and shifts it back. Exact.

    x -> clamp(-1, 2) -> y        x -> requantize (zero point up) -> requantize (down) -> requantize (back) -> y
    """

    name = "shift_and_back"

    def replaced(self, node: Node, op: Clamp, chain: Chain) -> list[Node] | None:
        x, y = node.inputs[0], node.output
        low, high = op.integer_limits(x.type)
        lowest, highest = x.type.dtype.limits
        zero = x.type.zero_point
        if not low <= zero <= high or (low, high) == (lowest, highest):
            return None
        for shift in (highest - high, lowest - low, 0):
            if shift or chain.nodes:
                x = chain.add(Requantize(), x, qparams=QParams.per_tensor(x.type.scale, zero + shift))
        chain.nodes[-1].outputs = [y]
        return chain.nodes


class FillMatrices(RewriteOf[BatchMatmul]):
    """Pads rows and columns of both matrices of a product with zeros, and removes them from the result. Exact.

    x[2,5,7] @ z[2,7,3] -> y[2,5,3]        pad to [2,8,8], [2,8,8] -> product -> slice [2,5,3] -> y
    """

    name = "fill_matrices"

    def replaced(self, node: Node, op: BatchMatmul, chain: Chain) -> list[Node] | None:
        y = node.output
        operands = []
        for x in node.inputs:
            for axis in (1, 2):
                missing = -x.shape[axis] % LANES
                x = chain.padded(x, axis, 0, missing) if missing else x
            operands.append(x)
        if all(a is b for a, b in zip(operands, node.inputs, strict=True)):
            return None
        product = chain.add(op, *operands, qparams=y.type.qparams)
        part = chain.cut(chain.cut(product, 1, 0, y.shape[1]), 2, 0, y.shape[2])
        return chain.finish(Reshape(y.shape), part, y)


class PositionByScore(RewriteOf[ArgMax]):
    """Argmax as a difference, two maxima, a sum and a product. Exact.

    x[6,10] -> argmax -> y[6]        x -> amax -> m[6,1];  x - m -> e: 0, or less than every score where x < m
                                     e + (-0, -1, .. -9) -> amax -> s[6], minus the first position;  s * -1 -> y

    The scales are 256 times that of x, so that every value below the maximum saturates.
    """

    name = "position_by_score"

    def replaced(self, node: Node, op: ArgMax, chain: Chain) -> list[Node] | None:
        (x,), y = node.inputs, node.output
        scale, count, rank = x.type.scale / MOST_POSITIONS, x.type.channels, x.type.rank
        if scale < _SMALLEST_SCALE:
            return None
        last = (rank - 1,)
        extreme = chain.add(Amin(last, True) if op.smallest else Amax(last, True), x, qparams=x.type.qparams)
        operands = (extreme, x) if op.smallest else (x, extreme)
        equal = chain.add(Sub(), *operands, qparams=QParams.per_tensor(scale, _HIGHEST))
        places = _HIGHEST - np.arange(count)
        scores = chain.constant(places, TensorType((count,), DType.INT8, QParams.per_tensor(scale, _HIGHEST)))
        # The zero point is as high as the lowest score allows.
        qparams = QParams.per_tensor(scale, _LOWEST + count - 1)
        first = chain.add(Amax(last), chain.add(Add(), equal, scores, qparams=qparams), qparams=qparams)
        minus_one = TensorType((1,) * max(rank - 1, 1), DType.INT8, QParams.per_tensor(1.0 / scale, 0))
        if rank == 1:
            first = chain.reshape(first, 1)
        found = chain.add(Mul(), first, chain.constant(np.array([-1]), minus_one), qparams=y.type.qparams)
        return chain.result(found, y)


ARITHMETIC: tuple[Rewrite, ...] = (
    ExpandOperand(),
    ExpandByProduct(),
    AddNegative(),
    ShiftAndBack(),
    FillMatrices(),
    PositionByScore(),
)
