"""Clamps, sigmoid and tanh: functions of one element."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from micronpu.errors import UnsupportedError
from micronpu.ir.types import QParams, TensorType
from micronpu.ops.arithmetic import lookup_table, requantize, saturate
from micronpu.ops.base import (
    Op,
    Permutation,
    Quantization,
    Value,
    fixed_qparams,
    from_aten,
    operator,
    own_qparams,
    shares_qparams,
)
from micronpu.ops.fused import Activation

if TYPE_CHECKING:
    from micronpu.emit.litert import LiteRtEmitter
    from micronpu.ir.graph import Tensor
    from micronpu.ops.aten import AtenArguments, AtenNode


class Elementwise(Op):
    """Base of operators that treat every element alike, so that a transpose passes through unchanged."""

    def infer(self, *operands: TensorType) -> TensorType:
        return operands[0].with_qparams(None)

    def permuted(self, permutation: Permutation, y: TensorType) -> tuple[Op, Permutation] | None:
        return self, permutation


def clamp_bounds(node: AtenArguments) -> tuple[float | None, float | None]:
    """Bounds of a clamp-like ATen operator; infinite ones count as absent."""
    fixed = {"relu": (0.0, None), "relu6": (0.0, 6.0)}.get(node.overload.split(".")[0].rstrip("_"))
    if fixed is not None:
        return fixed
    names = ("min_val", "max_val") if node.overload.startswith("hardtanh") else ("min", "max")
    low, high = (None if v is None or math.isinf(v) else float(v) for v in (node.value(n) for n in names))
    return low, high


def _clamp_quantization(node: AtenArguments) -> Quantization:
    """A clamp that LiteRT has a name for may rescale; any other is a minimum and a maximum on one grid."""
    return own_qparams() if Activation.of_bounds(*clamp_bounds(node)) else shares_qparams()


@operator("relu")
class Relu(Elementwise):
    """A clamp with one of LiteRT's four pairs of bounds, which may change scale and zero point.

    x int8 [any]  ->  y int8 [same], qparams of its own.
    """

    kind: Activation = Activation.RELU

    quantization = own_qparams()

    def reference(self, y: TensorType, *operands: Value) -> npt.NDArray[Any]:
        (x,) = operands
        scaled = requantize(x.centered, x.scale / y.scale) + y.zero_point
        return saturate(scaled, *self.kind.limits(y), y.dtype.value)

    @from_aten(
        *(
            f"{name}.default"
            for name in ("relu", "relu_", "relu6", "relu6_", "hardtanh", "hardtanh_", "clamp", "clamp_")
        ),
        quantization=_clamp_quantization,
        is_activation=True,
    )
    @classmethod
    def build(cls, node: AtenNode) -> Tensor:
        low, high = clamp_bounds(node)
        kind = Activation.of_bounds(low, high)
        x = node.tensor("x")
        if kind is Activation.NONE:
            return x
        if kind is not None:
            return node.emit(cls(kind), x)
        return node.emit(Clamp(low, high), x)

    def to_litert(self, emit: LiteRtEmitter) -> None:
        emit.add(self.kind.name)


@operator("clamp")
class Clamp(Elementwise):
    """A clamp with any bounds; x and y share scale and zero point.

    x int8 [any]  ->  y int8 [same], qparams of x.
    """

    low: float | None = None
    high: float | None = None

    quantization = shares_qparams()

    def infer(self, *operands: TensorType) -> TensorType:
        return operands[0]

    def integer_limits(self, x: TensorType) -> tuple[int, int]:
        """The bounds on the grid of x; a bound beyond the grid has no effect."""
        low, high = x.dtype.limits

        def quantize(bound: float) -> int:
            # Python's round is half to even, as torch quantizes.
            return min(max(round(bound / x.scale) + x.zero_point, low), high)

        return (
            low if self.low is None else quantize(self.low),
            high if self.high is None else quantize(self.high),
        )

    def reference(self, y: TensorType, *operands: Value) -> npt.NDArray[Any]:
        (x,) = operands
        low, high = self.integer_limits(x.type)
        return np.minimum(np.maximum(x.data, low), high).astype(y.dtype.value)

    def to_litert(self, emit: LiteRtEmitter) -> None:
        low, high = self.integer_limits(emit.input_type(0))
        type_min, type_max = emit.input_type(0).dtype.limits
        scalar = emit.input_type(0).with_shape(())
        if low > type_min and high < type_max:
            middle = emit.intermediate(emit.input_type(0))
            emit.add(
                "MAXIMUM", options="MaximumMinimumOptions", inputs=[0, emit.constant(low, scalar)], outputs=[middle]
            )
            emit.add("MINIMUM", options="MaximumMinimumOptions", inputs=[middle, emit.constant(high, scalar)])
        elif high < type_max:
            emit.add("MINIMUM", options="MaximumMinimumOptions", inputs=[0, emit.constant(high, scalar)])
        else:
            emit.add("MAXIMUM", options="MaximumMinimumOptions", inputs=[0, emit.constant(low, scalar)])


def sigmoid(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """1 / (1 + exp(-x)) in float64 without overflow."""
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1.0 / (1.0 + e), e / (1.0 + e))


class Table(Elementwise):
    """Base of unary functions that LiteRT evaluates through a table of 256 int8 results."""

    @staticmethod
    def function(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The real function."""
        raise UnsupportedError("A table operator defines its function.")

    def table(self, x: TensorType, y: TensorType) -> npt.NDArray[Any]:
        """Result for the inputs -128 to 127."""
        return lookup_table(self.function, x.scale, x.zero_point, y.scale, y.zero_point)

    def reference(self, y: TensorType, *operands: Value) -> npt.NDArray[Any]:
        (x,) = operands
        return np.asarray(self.table(x.type, y)[x.data.astype(np.int64) + 128])


@operator("sigmoid")
class Sigmoid(Table):
    """1 / (1 + exp(-x)).

    x int8 [any]  ->  y int8 [same], scale 1/256, zero point -128, as LiteRT demands.
    """

    quantization = fixed_qparams(1 / 256, -128)

    @staticmethod
    def function(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return sigmoid(x)

    def infer(self, *operands: TensorType) -> TensorType:
        return operands[0].with_qparams(QParams.per_tensor(1 / 256, -128))

    @from_aten("sigmoid.default", "sigmoid_.default")
    @classmethod
    def build(cls, node: AtenNode) -> Tensor:
        return node.emit(cls(), node.tensor("x"))

    def to_litert(self, emit: LiteRtEmitter) -> None:
        emit.add("LOGISTIC")


@operator("tanh")
class Tanh(Table):
    """Hyperbolic tangent.

    x int8 [any]  ->  y int8 [same], scale 1/128, zero point 0, as LiteRT demands.
    """

    quantization = fixed_qparams(1 / 128, 0)

    @staticmethod
    def function(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return np.asarray(np.tanh(x))

    def infer(self, *operands: TensorType) -> TensorType:
        return operands[0].with_qparams(QParams.per_tensor(1 / 128, 0))

    @from_aten("tanh.default", "tanh_.default")
    @classmethod
    def build(cls, node: AtenNode) -> Tensor:
        return node.emit(cls(), node.tensor("x"))

    def to_litert(self, emit: LiteRtEmitter) -> None:
        emit.add("TANH")
