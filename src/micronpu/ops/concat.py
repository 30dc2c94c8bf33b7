"""Concatenation of tensors along an axis."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from micronpu.base.errors import InternalError
from micronpu.ir.aten import AtenNode, axis_of
from micronpu.ir.graph import Node, Tensor
from micronpu.ir.op import Op, Permutation, Value, shares_qparams
from micronpu.ir.registry import from_aten, operator
from micronpu.ir.types import TensorType
from micronpu.ops.calls import CONCATENATION

if TYPE_CHECKING:
    from micronpu.emit.litert import LiteRtEmitter
    from micronpu.emit.tosa import TosaEmitter, TosaTensor


CONCATENATIONS = (CONCATENATION, "concat.default", "concatenate.default")


@operator("concat")
class Concat(Op):
    """Tensors concatenated along an axis; all share scale and zero point.

    tensors int8 [.., n_i, ..]  ->  y int8 [.., sum n_i, ..], qparams of the first.
    """

    axis: int = 0

    quantization = shares_qparams(of="tensors")

    def infer(self, *tensors: TensorType) -> TensorType:
        first = tensors[0]
        for other in tensors[1:]:
            rest = [n for i, n in enumerate(other.shape) if i != self.axis]
            if rest != [n for i, n in enumerate(first.shape) if i != self.axis]:
                raise InternalError(f"{list(first.shape)} and {list(other.shape)} cannot be joined along {self.axis}.")
        shape = list(first.shape)
        shape[self.axis] = sum(t.shape[self.axis] for t in tensors)
        return first.with_shape(shape)

    def permuted(self, permutation: Permutation, y: TensorType) -> tuple[Op, Permutation] | None:
        return Concat(permutation[self.axis]), permutation

    def reference(self, y: TensorType, *tensors: Value) -> npt.NDArray[Any]:
        return np.concatenate([v.data for v in tensors], axis=self.axis)

    @from_aten(*CONCATENATIONS, tensors="tensors", moves_only=True)
    @classmethod
    def build(cls, node: AtenNode) -> Tensor:
        tensors = node.tensors("tensors")
        return node.emit(cls(axis_of(node, "dim", len(node.shape))), *tensors)

    def to_aten(self, emit: Any, node: Node, *operands: Any) -> Any:
        return emit.aten(CONCATENATION, list(operands), self.axis)

    def to_litert(self, emit: LiteRtEmitter) -> None:
        emit.add("CONCATENATION", options="ConcatenationOptions", fields={"axis": self.axis}, version=2)

    def to_tosa(self, emit: TosaEmitter) -> TosaTensor:
        return emit.concat(emit.operands, self.axis)
