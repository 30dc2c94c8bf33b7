"""Clamps: ReLU, and arbitrary bounds."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from micronpu.base.arrays import Array
from micronpu.ir.arithmetic import float32_quotient, requantize, saturate
from micronpu.ir.aten import AtenArguments, AtenNode
from micronpu.ir.facts import POSITIVE, Facts, Given, Interval, IntervalOf
from micronpu.ir.graph import Tensor
from micronpu.ir.op import NewValues, Value, own_qparams, shares_qparams
from micronpu.ir.registry import Marked, from_aten, operator
from micronpu.ir.types import DType, TensorType
from micronpu.ir.window import Activation
from micronpu.ops.elementwise import Elementwise

if TYPE_CHECKING:
    from micronpu.emit.litert import LiteRtEmitter
    from micronpu.emit.tosa import TosaEmitter, TosaTensor


def clamp_bounds(node: AtenArguments) -> tuple[float | None, float | None]:
    """Bounds of a clamp-like ATen operator; infinite ones count as absent."""
    name = node.overload.split(".")[0].rstrip("_")
    fixed = {"relu": (0.0, None), "relu6": (0.0, 6.0)}.get(name)
    if fixed is not None:
        return fixed
    if name in ("clamp_min", "clamp_max"):
        bound = float(node.value(name.removeprefix("clamp_")))
        return (bound, None) if name == "clamp_min" else (None, bound)
    names = ("min_val", "max_val") if node.overload.startswith("hardtanh") else ("min", "max")
    low, high = (None if v is None or math.isinf(v) else float(v) for v in (node.value(n) for n in names))
    return low, high


_BOUNDED = shares_qparams(new_values=NewValues.ANY, finer=(2.0, 2.0))
"""Narrow bounds leave few values of the operand's qparams, and may not be representable themselves."""


def _clamped(given: Given, of: IntervalOf) -> Interval:
    x = of(given["self"])
    for ends, nearer in ((("min", "min_val"), max), (("max", "max_val"), min)):
        end = next((given[name] for name in ends if isinstance(given.get(name), (int, float))), None)
        x = x if end is None else (float(nearer(x[0], end)), float(nearer(x[1], end)))
    return x


_ENDS = {"tail": "the solver reads the ends of clamps themselves"}


def _clamps(*names: str, facts: Facts) -> Callable[[Marked], Marked]:
    """Mark a method as the importer of clamps, in place and not."""
    return from_aten(
        *(f"{name}{place}.default" for name in names for place in ("", "_")),
        # One with a name in LiteRT may rescale; any other is a minimum and a maximum with the same qparams.
        quantization=lambda node: own_qparams() if Activation.of_bounds(*clamp_bounds(node)) else _BOUNDED,
        is_activation=True,
        facts=facts,
    )


@operator("relu")
class Relu(Elementwise):
    """A clamp with one of LiteRT's four pairs of bounds, which may change scale and zero point.

    x int8 [any]  ->  y int8 [same], own qparams.
    """

    kind: Activation = Activation.RELU

    quantization = own_qparams()

    def reference(self, y: TensorType, x: Value) -> Array:
        scaled = requantize(x.centered, float32_quotient(y.scale, x.scale)) + y.zero_point
        return saturate(scaled, *self.kind.limits(y), y.dtype.value)

    @_clamps("relu", facts=Facts(range=POSITIVE, degree=1.0, adds=True, by_channel=True))
    @_clamps("relu6", facts=Facts(range=(0.0, 6.0), unknown=_ENDS))
    @_clamps("hardtanh", "clamp", "clamp_min", "clamp_max", facts=Facts(range=_clamped, adds=True, unknown=_ENDS))
    @classmethod
    def build(cls, node: AtenNode) -> Tensor:
        low, high = clamp_bounds(node)
        kind = Activation.of_bounds(low, high)
        x = node.tensor("x")
        if kind is Activation.NONE:
            return x
        wide = x.type.dtype is DType.INT16
        if kind is not None and not (wide and kind in (Activation.RELU_N1_TO_1, Activation.RELU_0_TO_1)):
            return node.emit(cls(kind), x, qparams=node.output)
        if x.type.qparams != node.output:  # for int16, LiteRT lacks two of its names; they saturate either way
            # A local import, hidden from the support tables: it changes another operator's result.
            from micronpu.ops.quantization import Requantize

            x = node.emit(Requantize(x.type.dtype), x, qparams=node.output)
        clamp = Clamp(low, high)
        return x if clamp.integer_limits(x.type) == x.type.dtype.limits else node.emit(clamp, x)

    def to_litert(self, emit: LiteRtEmitter) -> None:
        emit.add(self.kind.name)

    def to_tosa(self, emit: TosaEmitter) -> TosaTensor:
        x, y = emit.input_type(0), emit.output_type
        if x.qparams == y.qparams:
            return emit.clamp(emit.input(0), *self.kind.limits(y))
        factor = float32_quotient(y.scale, x.scale)
        return emit.requantize(emit.input(0), [factor], self.kind.limits(y), x.zero_point)


@operator("clamp")
class Clamp(Elementwise):
    """A clamp with any bounds; x and y share scale and zero point.

    x int8 [any]  ->  y int8 [same], qparams of x.
    """

    low: float | None = None
    high: float | None = None

    quantization = _BOUNDED

    def infer(self, x: TensorType) -> TensorType:
        return x

    def integer_limits(self, x: TensorType) -> tuple[int, int]:
        """The bounds in the qparams of x; a bound outside of the range has no effect."""
        low, high = x.dtype.limits

        def quantize(bound: float) -> int:
            # Python's round rounds half to even, like torch's quantization.
            return min(max(round(bound / x.scale) + x.zero_point, low), high)

        return (low if self.low is None else quantize(self.low), high if self.high is None else quantize(self.high))

    def reference(self, y: TensorType, x: Value) -> Array:
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

    def to_tosa(self, emit: TosaEmitter) -> TosaTensor:
        return emit.clamp(emit.input(0), *self.integer_limits(emit.input_type(0)))
