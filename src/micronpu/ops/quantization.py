"""Change of scale and zero point between two quantized operators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from micronpu.ir.types import TensorType
from micronpu.ops.activation import Elementwise
from micronpu.ops.arithmetic import requantize, saturate
from micronpu.ops.base import Value, operator, own_qparams

if TYPE_CHECKING:
    from micronpu.emit.litert import LiteRtEmitter


@operator("requantize")
class Requantize(Elementwise):
    """The same real values on another int8 grid; made where a dequantize meets a quantize.

    x int8 [any]  ->  y int8 [same], qparams of its own.
    """

    quantization = own_qparams()

    def reference(self, y: TensorType, *operands: Value) -> npt.NDArray[Any]:
        (x,) = operands
        return saturate(requantize(x.centered, x.scale / y.scale) + y.zero_point, *y.dtype.limits, y.dtype.value)

    def to_litert(self, emit: LiteRtEmitter) -> None:
        emit.add("QUANTIZE")
