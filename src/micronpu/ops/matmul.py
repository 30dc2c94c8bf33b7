"""Matrix products of two activations."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from micronpu.errors import InternalError, UnsupportedError
from micronpu.ir.arithmetic import (
    multiply_by_quantized_multiplier,
    multiply_wide,
    quantize_multiplier,
    saturate,
)
from micronpu.ir.op import Op, Value, from_aten, operator, symmetric_operands
from micronpu.ir.types import DType, TensorType
from micronpu.ops.movement import Reshape, transposed

if TYPE_CHECKING:
    from micronpu.emit.litert import LiteRtEmitter
    from micronpu.emit.tosa import TosaEmitter, TosaTensor
    from micronpu.ir.aten import AtenNode
    from micronpu.ir.graph import Tensor


@operator("batch_matmul")
class BatchMatmul(Op):
    """A product of matrices per batch.

    x int8 [B, M, K], z int8 [B, K, N]  ->  y int8 [B, M, N], qparams of its own.
    """

    operand_names = ("x", "z")
    quantization = symmetric_operands("x", "z")

    def infer(self, *operands: TensorType) -> TensorType:
        x, z = operands
        if x.rank != 3 or z.rank != 3 or x.shape[0] != z.shape[0] or x.shape[2] != z.shape[1]:
            raise InternalError(f"Matrices {list(x.shape)} and {list(z.shape)} cannot be multiplied.")
        return TensorType((x.shape[0], x.shape[1], z.shape[2]), x.dtype)

    def macs(self, y: TensorType, *operands: TensorType) -> int:
        return y.size * operands[0].shape[2]

    def reference(self, y: TensorType, *operands: Value) -> npt.NDArray[Any]:
        x, z = operands
        multiplier = quantize_multiplier(x.scale * z.scale / y.scale)
        multiply = multiply_wide if x.type.dtype is DType.INT16 else multiply_by_quantized_multiplier
        scaled = multiply(x.centered @ z.centered, *multiplier) + y.zero_point
        return saturate(scaled, *y.dtype.limits, y.dtype.value)

    @from_aten("bmm.default", z="mat2")
    @from_aten("matmul.default", z="other")
    @from_aten("mv.default", z="vec")
    @from_aten("dot.default", z="tensor")
    @classmethod
    def build(cls, node: AtenNode) -> Tensor:
        x, z = node.tensor("x"), node.tensor("z")
        rows = x.shape if len(x.shape) > 1 else (1, *x.shape)
        columns = z.shape if len(z.shape) > 1 else (*z.shape, 1)
        return _reshaped(node, _product(node, cls(), _reshaped(node, x, rows), _reshaped(node, z, columns)), node.shape)

    def to_litert(self, emit: LiteRtEmitter) -> None:
        emit.add("BATCH_MATMUL", options="BatchMatMulOptions", version=2)

    def to_tosa(self, emit: TosaEmitter) -> TosaTensor:
        x, z, y = emit.input_type(0), emit.input_type(1), emit.output_type
        return emit.requantize(emit.matmul(), [x.scale * z.scale / y.scale], y.dtype.limits)


def _reshaped(node: AtenNode, x: Tensor, shape: tuple[int, ...]) -> Tensor:
    return x if x.shape == shape else node.emit(Reshape(shape), x)


def _product(node: AtenNode, op: BatchMatmul, x: Tensor, z: Tensor) -> Tensor:
    """x [..., M, K] times z [..., K, N] as one product of rank 3, whose shape is that of the result up to a reshape.

    One matrix for many is joined with the rows: [5, M, K] x [K, N] is [1, 5 * M, K] x [1, K, N].
    """
    (m, k), n = x.shape[-2:], z.shape[-1]
    left, right = math.prod(x.shape[:-2]), math.prod(z.shape[:-2])
    if right == 1:
        return node.emit(op, _reshaped(node, x, (1, left * m, k)), _reshaped(node, z, (1, k, n)), qparams=node.output)
    if left == 1:
        # The product of the transposes, the other way round: z' [B * N, K] x x' [K, M].
        columns = _reshaped(node, _swapped(node, _reshaped(node, z, (right, k, n))), (1, right * n, k))
        rows = _swapped(node, _reshaped(node, x, (1, m, k)))
        y = node.emit(op, columns, rows, qparams=node.output)
        return _swapped(node, _reshaped(node, y, (right, n, m)))
    batch = [(a, b) for a, b in zip(_padded(x.shape[:-2], z), _padded(z.shape[:-2], x), strict=True)]
    if any(a != b for a, b in batch):
        raise UnsupportedError(
            f"`{node.overload}` multiplies {list(x.shape)} with {list(z.shape)}, whose batches are of different sizes.",
            hint="expand both operands to the same batch sizes first",
        )
    return node.emit(op, _reshaped(node, x, (left, m, k)), _reshaped(node, z, (right, k, n)), qparams=node.output)


def _padded(batch: tuple[int, ...], other: Tensor) -> tuple[int, ...]:
    return (1,) * (len(other.shape) - 2 - len(batch)) + batch


def _swapped(node: AtenNode, x: Tensor) -> Tensor:
    """[B, M, N] to [B, N, M]."""
    return transposed(node, x, (0, 2, 1))
