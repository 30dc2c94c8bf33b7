"""Functions of one element other than clamps: magnitude, sign, logarithm and others."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from micronpu.base.arrays import Array
from micronpu.base.errors import UnsupportedError
from micronpu.ir.arithmetic import (
    doubling_high_multiply,
    float32_quotient,
    multiply_by_quantized_multiplier,
    quantize_multiplier,
    requantize,
    rounding_right_shift,
    saturate,
    saturating_left_shift,
    wide_lookup_table,
    wrap_int32,
)
from micronpu.ir.aten import AtenNode
from micronpu.ir.facts import POSITIVE, Amplifier, Facts, Form, Given, Interval, IntervalOf
from micronpu.ir.graph import Tensor
from micronpu.ir.op import Steps, Value, own_qparams
from micronpu.ir.registry import from_aten, operator
from micronpu.ir.types import DType, TensorType
from micronpu.ops.activation import Table
from micronpu.ops.elementwise import Elementwise, any_scale, check_addition, scaled_sum, tabulated
from micronpu.ops.tables.table import is_near, look_up

if TYPE_CHECKING:
    from micronpu.emit.litert import LiteRtEmitter, LiteRtTensor
    from micronpu.emit.tosa import TosaEmitter, TosaTensor

RealFunction = Callable[[Array], Array]

_LOG_OF_INT32_MAX = math.log(2.0**31)
_INVERSE_ROOT = Amplifier(lambda x: x**-0.5, lambda y: y**-2, divides=True)


@operator("abs")
class Abs(Elementwise):
    """Absolute value.

    x int8 [any]  ->  y int8 [same], own qparams.
    """

    quantization = own_qparams()

    def reference(self, y: TensorType, x: Value) -> Array:
        magnitude = np.abs(x.centered)
        if x.scale != y.scale:
            magnitude = requantize(magnitude, float32_quotient(y.scale, x.scale))
        return saturate(magnitude + y.zero_point, *y.dtype.limits, y.dtype.value)

    @from_aten("abs.default", "abs_.default", facts=Facts(range=POSITIVE, degree=1.0, adds=True))
    @classmethod
    def build(cls, node: AtenNode) -> Tensor:
        return node.emit(cls(), node.tensor("x"), qparams=node.output)

    def to_litert(self, emit: LiteRtEmitter) -> None:
        emit.add("ABS", options="AbsOptions", version=2)

    def to_tosa(self, emit: TosaEmitter) -> TosaTensor:
        x, y = emit.input_type(0), emit.output_type
        magnitude = emit.add("ABS", [emit.centered(0)], x.shape, "INT32")
        if x.scale == y.scale:
            return emit.result(magnitude)
        return emit.requantize(magnitude, [float32_quotient(y.scale, x.scale)], y.dtype.limits)


def _opposite(given: Given, of: IntervalOf) -> Interval:
    low, high = of(given["self"])
    return -high, -low


_NEGATIVE = Facts(form=Form.NEGATIVE, degree=1.0, range=_opposite)


@operator("neg")
class Neg(Elementwise):
    """The negated number: zero minus x, since Neutron subtracts but does not negate.

    x int8 [any]  ->  y int8 [same], own qparams.
    """

    quantization = own_qparams()
    tosa_steps = Steps(int16=1)

    def reference(self, y: TensorType, x: Value) -> Array:
        zero = Value(np.array(x.zero_point), x.type.with_shape(()))
        return scaled_sum(y, (zero, x), y.dtype.limits, np.subtract)

    @from_aten("neg.default", "neg_.default", "negative.default", facts=_NEGATIVE)
    @classmethod
    def build(cls, node: AtenNode) -> Tensor:
        x = node.tensor("x")
        check_addition(node, x, x)
        return node.emit(cls(), x, qparams=node.output)

    def to_litert(self, emit: LiteRtEmitter) -> None:
        x = emit.input_type(0)
        zero = emit.constant(x.zero_point, x.with_shape((1,) * x.rank))
        emit.add("SUB", options="SubOptions", fields=any_scale(emit), inputs=[zero, 0], version=2)

    def to_tosa(self, emit: TosaEmitter) -> TosaTensor:
        """An int16 result differs by at most 1 LSB, like that of `Sub`."""
        x, y = emit.input_type(0), emit.output_type
        if x.dtype is not DType.INT16:
            return tabulated(self, emit)
        opposite = emit.elementwise("SUB", emit.number(0, "INT32"), emit.centered(0), "INT32")
        return emit.requantize_once(opposite, [x.scale / y.scale], y.dtype.limits)


@operator("exp")
class Exp(Table):
    """e to the power of x.

    x int8 [any]  ->  y int8 [same], own qparams.
    """

    quantization = own_qparams()

    @staticmethod
    def function(x: Array) -> Array:
        with np.errstate(over="ignore"):  # `build` refuses scales that overflow
            return np.asarray(np.exp(x))

    @from_aten("exp.default", "exp_.default", facts=Facts(form=Form.EXPONENTIAL, range=POSITIVE))
    @classmethod
    def build(cls, node: AtenNode) -> Tensor:
        x, y = node.tensor("x"), node.output
        largest = (x.type.dtype.limits[1] - x.type.zero_point) * x.type.scale
        overflows = largest - math.log(y.scale[0]) >= _LOG_OF_INT32_MAX
        if x.type.dtype is DType.INT16:
            # Symmetric qparams for large negative numbers include large positive ones, whose results exceed the range.
            table = None if overflows else cls().wide_table(x.type, x.type.with_qparams(y))
            if table is None or not is_near(lambda q: cls.function(q * x.type.scale) / y.scale[0], table):
                return look_up(node, x, cls.function, y)
            return node.emit(cls(), x, qparams=y)
        if overflows:
            raise UnsupportedError(
                f"`exp` of numbers up to {largest:g} overflows int32 at the scale {y.scale[0]:g}.",
                hint="bound the argument with a clamp, or calibrate with data that reaches its whole range",
            )
        return node.emit(cls(), x, qparams=y)

    def to_litert(self, emit: LiteRtEmitter) -> None:
        emit.add("EXP", options="ExpOptions", version=2)


def _logarithm(x: Array) -> Array:
    """The natural logarithm; -inf for non-positive numbers."""
    return np.asarray(np.log(np.maximum(x, 0.0)))


@operator("log")
class Log(Table):
    """Natural logarithm; non-positive numbers give the lowest element.

    x int8 [any]  ->  y int8 [same], own qparams.
    """

    quantization = own_qparams()

    @staticmethod
    def function(x: Array) -> Array:
        return np.asarray(np.log(np.where(x > 0, x, 1.0)))

    def table(self, x: TensorType, y: TensorType) -> Array:
        lowest, _ = y.dtype.limits
        return np.where(np.arange(-128, 128) > x.zero_point, super().table(x, y), np.int8(lowest))

    def wide_table(self, x: TensorType, y: TensorType) -> Array:
        lowest = y.scale * y.dtype.limits[0]
        return wide_lookup_table(
            lambda v: np.where(v > 0, self.function(v), lowest), x.scale, x.zero_point, y.scale, y.zero_point
        )

    @from_aten(
        "log.default",
        "log_.default",
        facts=Facts(form=Form.LOGARITHM, singular=True, amplifier=Amplifier(math.log, math.exp)),
    )
    @classmethod
    def build(cls, node: AtenNode) -> Tensor:
        x, y = node.tensor("x"), node.output
        if x.type.dtype is DType.INT8:
            return node.emit(cls(), x, qparams=y)
        near = cls().wide_table(x.type, x.type.with_qparams(y))
        if is_near(lambda q: _logarithm(q * x.type.scale) / y.scale[0], near):
            return node.emit(cls(), x, qparams=y)
        return look_up(node, x, _logarithm, y)

    def to_litert(self, emit: LiteRtEmitter) -> None:
        emit.add("LOG", version=2)


# Fractional bits of the inverse root before it is rescaled to the result.
_RSQRT_SHIFT = 20
_ONE, _ONE_AND_A_HALF, _HALF_ROOT_OF_TWO = 1 << 28, 3 << 27, 1518500250
_NEWTON_STEPS = 5


@functools.cache  # every table of the function reads them
def _inverse_roots() -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Multipliers and shifts of `_inverse_root` for 1 to 255."""
    pairs = np.array([_inverse_root(value) for value in range(1, 256)], np.int64)
    return pairs[:, 0], pairs[:, 1]


def _inverse_root(value: int) -> tuple[int, int]:
    """1 / sqrt(value) for a positive integer up to 255, as Q31 multiplier and shift."""
    # Newton's iteration from 1, in fixed point with 3 integer bits, on the value normalized to [1/4, 1).
    if value == 1:
        return 2**31 - 1, 0
    pairs = (32 - value.bit_length() - 1) // 2 - 1
    half = rounding_right_shift(np.array(value << (2 * pairs) >> 1), 1)
    x: Any = np.int64(_ONE)
    for _ in range(_NEWTON_STEPS):
        cube = saturating_left_shift(doubling_high_multiply(doubling_high_multiply(x, x), x), 6)
        x = saturating_left_shift(doubling_high_multiply(x, _ONE_AND_A_HALF) - doubling_high_multiply(half, cube), 3)
    root = doubling_high_multiply(x, _HALF_ROOT_OF_TWO)
    right = 11 - pairs
    return (int(wrap_int32(root << -right)), 0) if right < 0 else (int(root), -right)


@operator("rsqrt")
class Rsqrt(Elementwise):
    """1 / sqrt(x); non-positive numbers give the highest element.

    x int8 [any]  ->  y int8 [same], own qparams.
    """

    quantization = own_qparams()

    def reference(self, y: TensorType, x: Value) -> Array:
        root_and_scale = np.float32(np.sqrt(np.float32(x.scale))) * np.float32(y.scale)
        multiplier, shift = quantize_multiplier(1.0 / float(root_and_scale))
        roots, shifts = _inverse_roots()
        scaled = multiply_by_quantized_multiplier(np.array(1), roots, shifts + _RSQRT_SHIFT)
        results = multiply_by_quantized_multiplier(scaled, multiplier, shift - _RSQRT_SHIFT) + y.zero_point
        table = np.concatenate([[y.dtype.limits[1]], results])
        return saturate(table[np.maximum(x.centered, 0)], *y.dtype.limits, y.dtype.value)

    @from_aten("rsqrt.default", "rsqrt_.default", facts=Facts(power=-0.5, range=POSITIVE, amplifier=_INVERSE_ROOT))
    @classmethod
    def build(cls, node: AtenNode) -> Tensor:
        x = node.tensor("x")
        if x.type.dtype is DType.INT8:
            return node.emit(cls(), x, qparams=node.output)
        return look_up(node, x, lambda v: 1.0 / np.sqrt(np.maximum(v, 0.0)), node.output)

    def to_tosa(self, emit: TosaEmitter) -> TosaTensor:
        return tabulated(self, emit)

    def to_litert(self, emit: LiteRtEmitter) -> None:
        x = emit.input_type(0)
        operand: int | LiteRtTensor = 0
        if x.zero_point > x.dtype.limits[0]:  # LiteRT fails for negative numbers
            operand = emit.intermediate(x)
            zero = emit.constant(x.zero_point, x.with_shape((1,) * x.rank))
            emit.add("MAXIMUM", options="MaximumMinimumOptions", inputs=[0, zero], outputs=[operand], version=2)
        emit.add("RSQRT", inputs=[operand], version=2)
