"""Matrix products with constant weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from micronpu.base.errors import UnsupportedError
from micronpu.ir.arithmetic import round_scaled, saturate
from micronpu.ir.aten import AtenNode
from micronpu.ir.graph import Tensor
from micronpu.ir.op import Rescaling, Steps, Value, weighted
from micronpu.ir.registry import from_aten, operator
from micronpu.ir.types import DType, QParams, TensorType
from micronpu.ir.window import Activation
from micronpu.ops.constants import fused_activation, quantized_weights

if TYPE_CHECKING:
    from micronpu.emit.litert import LiteRtEmitter
    from micronpu.emit.tosa import TosaEmitter, TosaTensor

LINEAR = ("linear.default",)


@operator("fully_connected")
class FullyConnected(Rescaling):
    """Product with a constant matrix, plus bias.

    x [..., I] int8, weight [O, I] int8 symmetric (one scale, or one per O), bias [O] int32 at scale
    ``s_x * s_weight``  ->  y [..., O] int8.
    """

    activation: Activation = Activation.NONE

    quantization = weighted()
    tosa_steps = Steps(int8=1, int16=1)

    def infer(self, x: TensorType, weight: TensorType, bias: TensorType) -> TensorType:
        return TensorType((*x.shape[:-1], weight.shape[0]), self.dtype or x.dtype)

    def macs(self, y: TensorType, x: TensorType, weight: TensorType, bias: TensorType) -> int:
        return y.size * weight.shape[1]

    def reference(self, y: TensorType, x: Value, weight: Value, bias: Value) -> npt.NDArray[Any]:
        accumulators = x.centered @ weight.data.T.astype(np.int64) + bias.data
        assert weight.type.qparams is not None
        # Unlike its convolution, LiteRT's reference kernel uses a float64 factor here, with a single rounding.
        scaled = round_scaled(accumulators, x.scale * np.array(weight.type.qparams.scale) / y.scale)
        return saturate(scaled + y.zero_point, *self.activation.limits(y), y.dtype.value)

    @from_aten(*LINEAR, x="input", fuses=True)
    @from_aten("addmm.default", x="mat1", weight="mat2", bias="self", quantization=weighted(axis=1), fuses=True)
    @from_aten("mm.default", x="self", weight="mat2", quantization=weighted(axis=1), fuses=True)
    @classmethod
    def build(cls, node: AtenNode) -> Tensor:
        output_axis = 0 if node.overload.startswith("linear") else 1
        if output_axis and any(node.value(name) != 1 for name in ("alpha", "beta") if node.overload == "addmm.default"):
            raise UnsupportedError("addmm with alpha or beta other than 1 is not imported.")
        x = node.tensor("x")
        weight, qparams, bias = quantized_weights(node, x.type, output_axis)
        if output_axis:
            weight = weight.T
        if qparams.axis is not None:
            if qparams.axis != output_axis:
                raise UnsupportedError("The weights have one scale per input, where one per output is expected.")
            qparams = QParams.per_channel(qparams.scale, 0)
        constant = node.constant(weight, TensorType(weight.shape, DType.INT8, qparams))
        return node.emit(cls(fused_activation(node)), x, constant, bias, qparams=node.output)

    def to_litert(self, emit: LiteRtEmitter) -> None:
        fields = {
            "keepNumDims": emit.input_type(0).rank != 2,
            "fusedActivationFunction": emit.activation(self.activation),
        }
        emit.add("FULLY_CONNECTED", options="FullyConnectedOptions", fields=fields, version=12)

    def to_tosa(self, emit: TosaEmitter) -> TosaTensor:
        """A convolution of one element per row.

        Differs by at most 1 LSB, if the float64 result is closer to a tie than a relative 2**-30.
        """
        x, weight, y = emit.input_type(0), emit.input_type(1), emit.output_type
        assert weight.qparams is not None
        outputs, inputs = weight.shape
        rows = emit.reshape(emit.input(0), (1, 1, x.size // inputs, inputs))
        kernel = emit.reshape(emit.input(1), (outputs, 1, 1, inputs))
        shape = (1, 1, x.size // inputs, outputs)
        sums = emit.convolution("CONV2D", rows, kernel, shape, (0, 0, 0, 0), (1, 1), (1, 1))
        factors = [x.scale * scale / y.scale for scale in weight.qparams.scale]
        return emit.reshape(emit.requantize_once(sums, factors, self.activation.limits(y)), y.shape)
