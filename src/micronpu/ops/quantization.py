"""Change of scale and zero point between two quantized operators."""

from __future__ import annotations

from typing import TYPE_CHECKING

from micronpu.base.arrays import Array
from micronpu.ir.arithmetic import requantize, saturate
from micronpu.ir.op import Value, own_qparams
from micronpu.ir.registry import operator
from micronpu.ir.types import DType, TensorType
from micronpu.ops.elementwise import Elementwise

if TYPE_CHECKING:
    from micronpu.emit.litert import LiteRtEmitter
    from micronpu.emit.tosa import TosaEmitter, TosaTensor


@operator("requantize")
class Requantize(Elementwise):
    """The same real values with other qparams; created for a dequantize followed by a quantize.

    x int8, uint8 or int16 [any]  ->  y ``dtype`` [same], own qparams.
    """

    dtype: DType = DType.INT8

    quantization = own_qparams()

    def infer(self, x: TensorType) -> TensorType:
        return TensorType(x.shape, self.dtype)

    def reference(self, y: TensorType, x: Value) -> Array:
        return saturate(requantize(x.centered, x.scale / y.scale) + y.zero_point, *y.dtype.limits, y.dtype.value)

    def to_litert(self, emit: LiteRtEmitter) -> None:
        emit.add("QUANTIZE")

    def to_tosa(self, emit: TosaEmitter) -> TosaTensor:
        x, y = emit.input_type(0), emit.output_type
        if DType.UINT8 in (x.dtype, y.dtype) and x.scale == y.scale:
            return emit.shift_bytes()
        return emit.requantize(emit.input(0), [x.scale / y.scale], y.dtype.limits, x.zero_point)
