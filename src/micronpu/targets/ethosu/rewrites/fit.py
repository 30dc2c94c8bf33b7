"""Rewrites of an operator that Vela refuses for an Ethos-U."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from micronpu.base.errors import UnsupportedError
from micronpu.ir.graph import Node, Tensor
from micronpu.ir.registry import operator
from micronpu.ir.types import DType, QParams, TensorType
from micronpu.ops.constants import BIAS_TYPE
from micronpu.ops.convolution import DepthwiseConv2d
from micronpu.ops.elementwise import Minimum
from micronpu.ops.matmul import BatchMatmul, FullyConnected
from micronpu.ops.movement import Transpose
from micronpu.ops.pooling import MaxPool2d
from micronpu.ops.reduction import Amin
from micronpu.ops.resize import ResizeBilinear, axis_weights
from micronpu.ops.slicing import Slice
from micronpu.passes.rewrite import Chain, Rewrite, RewriteOf
from micronpu.targets.ethosu.rewrites.byte_products import LONGEST_SUM, BytesBatchMatmul

if TYPE_CHECKING:
    from micronpu.emit.tosa import TosaEmitter, TosaTensor

FACTORS = (2, 4)
"""Factors for which every product of two weights is an int8 number, with one bit to spare."""


@operator("resize_bilinear_products")
class BilinearProducts(ResizeBilinear):
    """`ResizeBilinear` to 2 or 4 times the height and width with half-pixel centers, as a depthwise convolution.

    x [N, H, W, C] int8  ->  y [N, f * H, f * W, C] int8, qparams of x.

    Computes the same integers with another TOSA form: every phase of the result is a separate channel.
    """

    def factor(self, height: int, width: int) -> int:
        """Ratio of the sizes of result and input; 0 if products do not apply."""
        factor = self.size[0] // height
        fits = self.half_pixel_centers and self.size == (factor * height, factor * width)
        return factor if fits and factor in FACTORS else 0

    def to_tosa(self, emit: TosaEmitter) -> TosaTensor:
        """Repeat x with extended borders for every phase -> DEPTHWISE_CONV2D -> RESCALE -> interleave the phases.

        The weights are doubled: the double rounding of their sums is then a single rounding with ties away from zero.
        """
        x = emit.input(0)
        count, height, width, channels = x.shape
        factor = self.factor(height, width)
        if not factor or x.dtype != "INT8":
            raise UnsupportedError(f"{self} of {list(x.shape)} is no resize by {' or '.join(map(str, FACTORS))}.")
        for axis in (1, 2):
            first, last, size = [0] * 4, [0] * 4, list(x.shape)
            last[axis], size[axis] = x.shape[axis] - 1, 1
            x = emit.concat([emit.slice(x, first, size), x, emit.slice(x, last, size)], axis)
        phases = factor * factor
        wide = emit.concat([x] * phases, 3)
        along = axis_weights(factor)
        kernels = 2 * np.einsum("ri,sj->ijrs", along, along).reshape(3, 3, phases)
        weight = emit.constant(np.repeat(kernels, channels, axis=2)[..., None])
        shape = (count, height, width, phases * channels)
        sums = emit.plain_convolution(wide, weight, shape, (0, 0), "DEPTHWISE_CONV2D")
        shift = (2 * (2 * factor) ** 2).bit_length() - 1
        rounded = emit.rescale(sums, "INT8", [1 << 30], [30 + shift])
        rows = emit.reshape(rounded, (count * height, width, factor, factor * channels))
        return emit.reshape(emit.transpose(rows, (0, 2, 1, 3)), (count, *self.size, channels))


class MultiplyBilinear(RewriteOf[ResizeBilinear]):
    """A bilinear resize to 2 or 4 times the size as a depthwise convolution whose channels are phases of the result.

    x -> resize_bilinear{2H, 2W} -> y        x -> resize_bilinear_products{2H, 2W} -> y
    """

    name = "multiply_bilinear"

    def replaced(self, node: Node, op: ResizeBilinear, chain: Chain) -> list[Node] | None:
        x, y = node.inputs[0], node.output
        if isinstance(op, BilinearProducts) or x.type.dtype is not DType.INT8:
            return None
        products = BilinearProducts(op.size, op.align_corners, op.half_pixel_centers)
        if not products.factor(x.shape[1], x.shape[2]):
            return None
        return chain.finish(products, x, y)


class BilinearByMatrices(RewriteOf[ResizeBilinear]):
    """A bilinear resize to 2, 4 or 8 times the size as a product with the filter's weights along each axis.

    x [H, W] -> resize_bilinear{2H, 2W} -> y
    x -> transpose -> fully_connected(w [2W, W]) -> transpose -> fully_connected(w [2H, H]) -> transpose -> y

    Not exact: each axis is rounded.
    """

    name = "bilinear_by_matrices"
    max_steps = 1

    def replaced(self, node: Node, op: ResizeBilinear, chain: Chain) -> list[Node] | None:
        x, y = node.inputs[0], node.output
        if isinstance(op, BilinearProducts) or not op.half_pixel_centers:
            return None
        factor = op.size[0] // x.shape[1]
        if factor not in _FACTORS or op.size != (factor * x.shape[1], factor * x.shape[2]):
            return None
        columns = _along(chain, chain.add(Transpose((0, 3, 1, 2)), x), factor)
        rows = _along(chain, chain.add(Transpose((0, 1, 3, 2)), columns), factor)
        return chain.finish(Transpose((0, 3, 2, 1)), rows, y)


_FACTORS = (2, 4, 8)


def _along(chain: Chain, x: Tensor, factor: int) -> Tensor:
    """x with ``factor`` times the elements along the last axis."""
    size, steps = x.shape[-1], 2 * factor
    weights = np.zeros((size, factor, size), np.int64)
    for element in range(size):
        for offset in (-1, 0, 1):
            neighbour = min(max(element + offset, 0), size - 1)
            weights[element, :, neighbour] += axis_weights(factor)[:, offset + 1]
    shape = (size * factor, size)
    matrix = chain.constant(weights, TensorType(shape, DType.INT8, QParams.per_tensor(1 / steps, 0)))
    qparams = QParams.per_tensor(x.type.scale / steps, 0)
    bias = chain.constant(np.zeros(shape[0]), TensorType(shape[:1], BIAS_TYPE[x.type.dtype], qparams))
    rows = chain.reshape(x, x.type.size // size, size)
    wide = chain.add(FullyConnected(), rows, matrix, bias, qparams=x.type.qparams)
    return chain.reshape(wide, *x.shape[:-1], shape[0])


class SmallestByHalves(RewriteOf[Amin]):
    """The smallest of int16 elements by repeatedly taking the minimum of two halves. Exact.

    x [4, 6] -> amin(axis 1) -> y        x -> minimum of slices [4, 3] -> minimum of slices [4, 2] -> [4, 1] -> reshape

    Vela's program of an int16 minimum along axes reads one row only, and the smallest number has no negative.
    """

    name = "smallest_by_halves"

    def replaced(self, node: Node, op: Amin, chain: Chain) -> list[Node] | None:
        x, y = node.inputs[0], node.output
        if x.type.dtype is not DType.INT16:
            return None
        for axis in op.axes:
            while (size := x.shape[axis]) > 1:
                half = -(-size // 2)  # for an odd size, the middle element is in both
                x = chain.add(Minimum(), chain.cut(x, axis, 0, half), chain.cut(x, axis, size - half, half))
        return chain.result(x, y)


class PickFromDepthwise(RewriteOf[DepthwiseConv2d]):
    """A depthwise convolution with large strides as one with stride 1 and a selection of its results.

        x -> depthwise_conv2d{stride 4} -> y        x -> depthwise_conv2d{stride 1} -> max_pool2d{1x1, stride 4} -> y

    Costs as many products per result as a block of the strides has elements.
    """

    name = "pick_from_depthwise"

    def replaced(self, node: Node, op: DepthwiseConv2d, chain: Chain) -> list[Node] | None:
        y = node.output
        if op.stride == (1, 1):
            return None
        dense = chain.add(replace(op, stride=(1, 1)), *node.inputs, qparams=y.type.qparams)
        # Remove windows after the last one that a stride reaches.
        size = [(n - 1) * s + 1 for n, s in zip(y.shape[1:3], op.stride, strict=True)]
        if dense.shape[1:3] != tuple(size):
            dense = chain.add(Slice((0, 0, 0, 0), (dense.shape[0], *size, dense.shape[3])), dense)
        return chain.finish(MaxPool2d((1, 1), op.stride), dense, y)


class MultiplyBytes(RewriteOf[BatchMatmul]):
    """A product of two int16 matrices as four products of their bytes, combined in 32 bits.

        x, z -> batch_matmul{int16} -> y        x, z -> batch_matmul_bytes -> y

    Exact, including saturated results. Costs four times the cycles of an int8 product and a few percent.
    """

    name = "multiply_bytes"

    def replaced(self, node: Node, op: BatchMatmul, chain: Chain) -> list[Node] | None:
        y = node.output
        if isinstance(op, BytesBatchMatmul) or any(t.type.dtype is not DType.INT16 for t in (*node.inputs, y)):
            return None
        if node.inputs[0].shape[2] > LONGEST_SUM:
            return None
        return chain.result(chain.add(BytesBatchMatmul(), *node.inputs, qparams=y.type.qparams), y)


TO_FIT: tuple[Rewrite, ...] = (
    MultiplyBilinear(),
    BilinearByMatrices(),
    MultiplyBytes(),
    PickFromDepthwise(),
    SmallestByHalves(),
)
"""Applied to operators that Vela refuses."""
