"""Arithmetic on two activations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from micronpu.errors import InternalError, UnsupportedError
from micronpu.ir.types import TensorType
from micronpu.ops.arithmetic import multiply_by_quantized_multiplier, quantize_multiplier, saturate
from micronpu.ops.base import Op, Permutation, Value, from_aten, operator, own_qparams
from micronpu.ops.constants import fused_activation
from micronpu.ops.fused import Activation

if TYPE_CHECKING:
    from micronpu.emit.litert import LiteRtEmitter
    from micronpu.ir.graph import Tensor
    from micronpu.ops.aten import AtenNode

# Bits by which both addends are scaled up before their scales are made equal.
_ADD_SHIFT = 20


@operator("add")
class Add(Op):
    """Sum of two tensors, with NumPy's broadcasting.

    x int8, z int8  ->  y int8 [broadcast shape], qparams of its own.
    """

    activation: Activation = Activation.NONE

    operand_names = ("x", "z")
    quantization = own_qparams("x", "z")

    def infer(self, *operands: TensorType) -> TensorType:
        x, z = operands
        try:
            shape = np.broadcast_shapes(x.shape, z.shape)
        except ValueError as error:
            raise InternalError(f"Shapes {list(x.shape)} and {list(z.shape)} cannot be added.") from error
        return TensorType(tuple(shape), x.dtype)

    def permuted(self, permutation: Permutation, y: TensorType) -> tuple[Op, Permutation] | None:
        return self, permutation

    def reference(self, y: TensorType, *operands: Value) -> npt.NDArray[Any]:
        x, z = operands
        largest = 2.0 * max(x.scale, z.scale)
        total: Any = 0
        for operand in operands:
            scaled = multiply_by_quantized_multiplier(
                operand.centered << _ADD_SHIFT, *quantize_multiplier(operand.scale / largest)
            )
            total = total + scaled
        back = quantize_multiplier(largest / ((1 << _ADD_SHIFT) * y.scale))
        result = multiply_by_quantized_multiplier(total, *back) + y.zero_point
        return saturate(result, *self.activation.limits(y), y.dtype.value)

    @from_aten("add.Tensor", "add_.Tensor", z="other", fuses=True)
    @classmethod
    def build(cls, node: AtenNode) -> Tensor:
        if node.value("alpha") != 1:
            raise UnsupportedError(
                f"`add` scales its second operand by alpha = {node.value('alpha')}.", hint="multiply explicitly"
            )
        return node.emit(cls(fused_activation(node)), node.tensor("x"), node.tensor("z"), qparams=node.output)

    def to_litert(self, emit: LiteRtEmitter) -> None:
        emit.add(
            "ADD", options="AddOptions", fields={"fusedActivationFunction": emit.activation(self.activation)}, version=2
        )
