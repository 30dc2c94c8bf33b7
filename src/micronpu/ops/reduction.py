"""Reductions over whole axes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from micronpu.ir.types import TensorType
from micronpu.ops.arithmetic import multiply_by_quantized_multiplier, quantize_multiplier, saturate
from micronpu.ops.base import Op, Permutation, Value, from_aten, operator, shares_qparams

if TYPE_CHECKING:
    from micronpu.emit.litert import LiteRtEmitter
    from micronpu.ir.graph import Tensor
    from micronpu.ops.aten import AtenNode


@operator("mean")
class Mean(Op):
    """Mean over axes.

    x int8 [any]  ->  y int8 [without ``axes``, or with them as size 1 if ``keep``], qparams of x.
    """

    axes: tuple[int, ...]
    keep: bool = False

    quantization = shares_qparams()

    def infer(self, *operands: TensorType) -> TensorType:
        (x,) = operands
        if self.keep:
            return x.with_shape(tuple(1 if i in self.axes else n for i, n in enumerate(x.shape)))
        return x.with_shape(tuple(n for i, n in enumerate(x.shape) if i not in self.axes))

    def permuted(self, permutation: Permutation, y: TensorType) -> tuple[Op, Permutation] | None:
        axes = tuple(sorted(permutation[i] for i in self.axes))
        if self.keep:
            return Mean(axes, True), permutation
        kept = [permutation[i] for i in range(len(permutation)) if i not in self.axes]
        order = sorted(kept)
        return Mean(axes), tuple(order.index(i) for i in kept)

    def macs(self, y: TensorType, *operands: TensorType) -> int:
        return operands[0].size

    def reference(self, y: TensorType, *operands: Value) -> npt.NDArray[Any]:
        (x,) = operands
        count = math.prod(x.type.shape[i] for i in self.axes)
        total = x.centered.sum(axis=self.axes, keepdims=self.keep)
        multiplier, shift = quantize_multiplier(x.scale / y.scale)
        # The division goes into the multiplier, with as many extra bits as the count has.
        extra = min(count.bit_length() - 1, 32, 31 + shift)
        scaled = multiply_by_quantized_multiplier(total, (multiplier << extra) // count, shift - extra)
        return saturate(scaled + y.zero_point, *y.dtype.limits, y.dtype.value)

    @from_aten("mean.dim")
    @classmethod
    def build(cls, node: AtenNode) -> Tensor:
        x = node.tensor("x")
        rank = len(x.shape)
        given = node.value("dim")
        axes = tuple(sorted(int(d) % rank for d in given)) if given else tuple(range(rank))
        return node.emit(cls(axes, bool(node.value("keepdim"))), x)

    def to_litert(self, emit: LiteRtEmitter) -> None:
        axes = emit.int32(self.axes)
        emit.add("MEAN", options="ReducerOptions", fields={"keepDims": self.keep}, inputs=[0, axes], version=2)
