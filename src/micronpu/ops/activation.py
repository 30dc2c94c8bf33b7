"""Activation functions: rectifiers with a slope, hard swish, sigmoid and tanh."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from micronpu.base.arrays import Array
from micronpu.base.errors import InternalError, UnsupportedError
from micronpu.ir.arithmetic import (
    float32_quotient,
    lookup_table,
    quantize_multiplier,
    requantize,
    rounding_right_shift,
    saturate,
    wide_lookup,
    wide_lookup_table,
)
from micronpu.ir.aten import AtenNode
from micronpu.ir.facts import SIGNS, TRUTHS, Facts, Form
from micronpu.ir.graph import Tensor
from micronpu.ir.lowering import Float, Writer
from micronpu.ir.op import Op, Permutation, Permuted, Steps, Value, fixed_qparams, own_qparams
from micronpu.ir.registry import from_aten, operator
from micronpu.ir.types import DType, QParams, TensorType
from micronpu.ops.bounds import sign_of_operand
from micronpu.ops.clamps import Clamp, Relu
from micronpu.ops.constants import constant_like
from micronpu.ops.elementwise import Add, Elementwise, Maximum, Mul, emit_binary, tabulated
from micronpu.ops.movement import inverse, transposed
from micronpu.ops.quantization import Requantize

if TYPE_CHECKING:
    from micronpu.emit.litert import LiteRtEmitter
    from micronpu.emit.tosa import TosaEmitter, TosaTensor


PRELU = "prelu.default"
RECTIFIERS = tuple(
    f"{name}.default" for name in ("silu", "hardswish", "gelu", "elu", "selu", "mish", "softplus", "leaky_relu")
)
"""Overloads near ReLU: a large x changes little, a negative one becomes small."""


def rectified(write: Writer) -> Float:
    """another rectifier -> relu(x)"""
    return write("relu.default", write.given["self"])


_LEAKY = Facts(degree=1.0, by_channel=True, range=sign_of_operand)


@operator("leaky_relu")
class LeakyRelu(Elementwise):
    """x if it is positive, ``slope`` times x otherwise.

    x int8 [any]  ->  y int8 [same], own qparams. ``slope`` is not negative.
    """

    slope: float = 0.01

    quantization = own_qparams()
    imprecise = "LiteRT rounds twice, to half an LSB first; float models get `Prelu` instead"

    def reference(self, y: TensorType, x: Value) -> Array:
        above = requantize(x.centered, float32_quotient(y.scale, x.scale))
        below = requantize(x.centered, float32_quotient(y.scale, x.scale, self.slope))
        return saturate(np.where(x.centered >= 0, above, below) + y.zero_point, *y.dtype.limits, y.dtype.value)

    @from_aten("leaky_relu.default", "leaky_relu_.default", facts=_LEAKY)
    @classmethod
    def build(cls, node: AtenNode) -> Tensor:
        return rectify(node, node.tensor("x"), np.array([float(node.value("negative_slope"))]))

    def to_tosa(self, emit: TosaEmitter) -> TosaTensor:
        x, y = emit.input_type(0), emit.output_type
        if x.dtype is not DType.INT16:
            return tabulated(self, emit)
        factor = float32_quotient(y.scale, x.scale)
        slope = float32_quotient(y.scale, x.scale, self.slope)
        number = emit.centered(0)
        above, below = emit.scaled(number, factor), emit.scaled(number, slope)
        # The steeper one of two lines through zero is above for positive numbers and below for negative ones.
        word = "MAXIMUM" if slope <= factor else "MINIMUM"
        return emit.result(emit.elementwise(word, above, below, "INT32", emit.IGNORE_NAN))

    def to_litert(self, emit: LiteRtEmitter) -> None:
        emit.add("LEAKY_RELU", options="LeakyReluOptions", fields={"alpha": self.slope}, version=2)


def _wide_rectifier(node: AtenNode, x: Tensor, slope: Array) -> Tensor:
    """A leaky ReLU of int16 numbers, with slopes that broadcast: LiteRT has PRELU for int8 only.

    x -> requantize ┬ maximum -> y        relu(x) + slope * min(x, 0) if a slope is above 1
      -> mul(slope) ┘
    """
    large = bool((slope > 1).any())
    y = node.emit(Relu() if large else Requantize(DType.INT16), x, qparams=node.output)
    below = node.emit(Clamp(high=0.0), x) if large else x
    product = emit_binary(node, Mul(), below, constant_like(node, slope, x.type), node.output)
    return node.emit(Add() if large else Maximum(), y, product, qparams=node.output)


def rectify(node: AtenNode, x: Tensor, slope: Array, integers: Tensor | None = None) -> Tensor:
    """A leaky ReLU with one slope, or one slope per index of axis 1.

    Args:
        integers: the slopes of a program that was quantized elsewhere, whose arithmetic must not change.
    """
    rank, is_wide = len(x.shape), x.type.dtype is DType.INT16
    if integers is None and (slope == slope.flat[0]).all():
        # Both round twice: a leaky ReLU often to half an LSB first, a PReLU, which has products, to a small part of it.
        if slope.flat[0] >= 0 and (is_wide or node.keeps_integers):
            return node.emit(LeakyRelu(float(np.float32(slope.flat[0]))), x, qparams=node.output)
        slope = slope.reshape(-1)[:1]
    if is_wide:
        return _wide_rectifier(node, x, slope if slope.size == 1 else slope.reshape(-1, *(1,) * (rank - 2)))
    if slope.size == 1 or rank <= 2:
        return node.emit(Prelu(), x, integers or constant_like(node, slope, x.type), qparams=node.output)
    # The slopes belong to the channels, which are the NPU's last axis.
    order = (0, *range(2, rank), 1)
    slopes = integers or constant_like(node, slope, x.type)
    y = node.emit(Prelu(), transposed(node, x, order), slopes, qparams=node.output)
    return transposed(node, y, inverse(order))


@operator("prelu")
class Prelu(Op):
    """x if it is positive, x times a constant slope otherwise, with one slope or one per channel.

    x int8 [..., C], slope int8 [1] or [C]  ->  y int8 [..., C], own qparams.
    """

    quantization = own_qparams()
    imprecise = "LiteRT has int8 slopes of one scale for all channels, which are not the nearest to small slopes"

    def infer(self, x: TensorType, slope: TensorType) -> TensorType:
        if slope.shape not in ((1,), (x.channels,)):
            raise InternalError(f"Slopes {list(slope.shape)} do not fit the channels of {list(x.shape)}.")
        return x.with_qparams(None)

    def permuted(self, permutation: Permutation, y: TensorType, *operands: TensorType) -> Permuted:
        return (self, permutation) if operands[1].size == 1 else None

    def reordered(self, operand: Array, permutation: Permutation) -> Array:
        return operand  # one slope has no axes

    def macs(self, y: TensorType, *operands: TensorType) -> int:
        return y.size

    def reference(self, y: TensorType, x: Value, slope: Value) -> Array:
        above, below = self._lines(y, x, slope)
        return np.where(x.centered >= 0, above, below)

    @staticmethod
    def _lines(y: TensorType, x: Value, slope: Value) -> list[Array]:
        above = requantize(x.centered, float32_quotient(y.scale, x.scale))
        below = requantize(x.centered * slope.centered, float32_quotient(y.scale, x.scale, slope.scale))
        return [saturate(line + y.zero_point, *y.dtype.limits, y.dtype.value) for line in (above, below)]

    @from_aten(PRELU, "_prelu_kernel.default", slope="weight")
    @classmethod
    def build(cls, node: AtenNode) -> Tensor:
        slope = node.float_constant("slope").astype(np.float64).reshape(-1)
        return rectify(node, node.tensor("x"), slope, node.tensor("slope") if node.is_quantized("slope") else None)

    def to_litert(self, emit: LiteRtEmitter) -> None:
        emit.add("PRELU")

    def to_tosa(self, emit: TosaEmitter) -> TosaTensor:
        x, slope, y = emit.input_type(0), emit.input_type(1), emit.output_type
        if slope.size == 1:
            return tabulated(self, emit)
        (low, high), (least, most) = x.dtype.limits, y.dtype.limits
        every, slopes = Value(np.arange(low, high + 1)[:, None], x), Value(emit.constant_input(1), slope)
        results, lines = self.reference(y, every, slopes), self._lines(y, every, slopes)
        both = (("MAXIMUM", np.maximum(*lines)), ("MINIMUM", np.minimum(*lines)))
        word = next((word for word, chosen in both if np.array_equal(chosen, results)), "")
        factor, product = float32_quotient(y.scale, x.scale), float32_quotient(y.scale, x.scale, slope.scale)
        if word:  # the larger one of two lines for slopes up to 1
            # Vela computes a rescale as a pool, in three times the cycles, and an operand that has two readers.
            same = emit.multiply(emit.centered(0), emit.wide(emit.number(1), 0))
            above = emit.requantize(same, [factor], (least, most))
            below = emit.requantize(emit.multiply(emit.centered(0), emit.centered(1)), [product], (least, most))
        else:  # one of the two parts is zero everywhere, so their sum is exact
            above = emit.requantize(emit.input(0), [factor], (y.zero_point, most), x.zero_point)
            negative = emit.image(emit.clamp(emit.input(0), low, x.zero_point))
            weight, zeros = emit.constant(slopes.data.reshape(1, 1, -1, 1)), (x.zero_point, slope.zero_point)
            products = emit.plain_convolution(negative, weight, negative.shape, zeros, "DEPTHWISE_CONV2D")
            below = emit.reshape(emit.requantize(products, [product], (least, most)), y.shape)
        more = (emit.IGNORE_NAN,) if word else ()
        above, below = emit.wide(above, y.zero_point), emit.wide(below, y.zero_point)
        return emit.result(emit.elementwise(word or "ADD", above, below, "INT32", *more))


def _high_multiply_int16(a: Array, b: int) -> Array:
    """High 16 bits of ``2 * a * b`` for int16 numbers, rounded to nearest; ``b`` is not negative."""
    product = a * b
    total = product + np.where(product >= 0, 1 << 14, 1 - (1 << 14))
    return np.where(total >= 0, total >> 15, -((-total) >> 15))


def _int16_multiplier(value: np.float32) -> tuple[int, int]:
    """Q15 multiplier and shift of a real number."""
    multiplier, shift = quantize_multiplier(float(value))
    return min((multiplier + (1 << 15)) >> 16, 2**15 - 1), shift


def _shift_left_int16(a: Array, bits: int) -> Array:
    return np.clip(a << bits, -(2**15), 2**15 - 1)


@operator("hard_swish")
class HardSwish(Elementwise):
    """x * relu6(x + 3) / 6, in 16-bit fixed point.

    x int8 [any]  ->  y int8 [same], own qparams; the scale of x is less than 128 times that of y.
    """

    quantization = own_qparams()

    @staticmethod
    def multipliers(x_scale: float, y_scale: float) -> tuple[tuple[int, int], tuple[int, int]]:
        """Multipliers of the result, and of the factor between 0 and 1 that x is multiplied by."""
        fine = np.float32(1.0 / 128.0) * np.float32(x_scale)
        unit = np.float32(3.0) / np.float32(32768.0)
        return _int16_multiplier(fine / np.float32(y_scale)), _int16_multiplier(fine / unit)

    def reference(self, y: TensorType, x: Value) -> Array:
        (output, output_shift), (unit, unit_shift) = self.multipliers(x.scale, y.scale)
        fine = x.centered << 7
        scaled = _high_multiply_int16(fine, output)
        # The last doubling follows the multiplication, so that saturation happens there and not before.
        factor = _high_multiply_int16(_shift_left_int16(fine, max(unit_shift - 1, 0)), unit)
        if unit_shift > 0:
            factor = _shift_left_int16(factor, 1)
        factor = (rounding_right_shift(factor, max(-unit_shift, 0)) + (1 << 15)) >> 1
        product = factor * scaled
        truncated = np.where(product >= 0, product >> 15, -((-product) >> 15))
        result = rounding_right_shift(truncated, -output_shift) + y.zero_point
        return saturate(result, *y.dtype.limits, y.dtype.value)

    @from_aten("hardswish.default", "hardswish_.default", facts=Facts(range=(-0.375, math.inf)))
    @classmethod
    def build(cls, node: AtenNode) -> Tensor:
        x = node.tensor("x")
        if x.type.dtype is DType.INT16:  # LiteRT has HARD_SWISH for int8 only
            from micronpu.ops.tables.table import look_up

            return look_up(node, x, lambda v: v * np.clip(v + 3.0, 0.0, 6.0) / 6.0, node.output)
        if cls.multipliers(x.type.scale, node.output.scale[0])[0][1] > 0:
            raise UnsupportedError(
                f"`hardswish` has a result with a scale of {node.output.scale[0]:g}, more than 128 times finer than "
                f"its operand's {x.type.scale:g}.",
                hint="calibrate with data for which the result is not close to zero everywhere",
            )
        return node.emit(cls(), x, qparams=node.output)

    def to_litert(self, emit: LiteRtEmitter) -> None:
        emit.add("HARD_SWISH", options="HardSwishOptions")


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)) in float64 without overflow."""
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1.0 / (1.0 + e), e / (1.0 + e))


class Table(Elementwise):
    """Base of unary functions that LiteRT evaluates through a table.

    The table contains all 256 results for int8, and every 128th for int16, with linear interpolation.
    """

    @staticmethod
    def function(x: Array) -> Array:
        raise UnsupportedError("A table operator defines its function.")

    def table(self, x: TensorType, y: TensorType) -> Array:
        """Results for the inputs -128 to 127."""
        return lookup_table(self.function, x.scale, x.zero_point, y.scale, y.zero_point)

    def wide_table(self, x: TensorType, y: TensorType) -> Array:
        """Results for the inputs -32768, -32640, .. 32640, and for 32767, which also represents 32768."""
        return wide_lookup_table(self.function, x.scale, x.zero_point, y.scale, y.zero_point)

    def reference(self, y: TensorType, x: Value) -> Array:
        if x.type.dtype is DType.INT16:
            return wide_lookup(self.wide_table(x.type, y), x.data).astype(np.int16)
        return np.asarray(self.table(x.type, y)[x.data.astype(np.int64) + 128])


def sampled(op: Op, x: TensorType, y: TensorType) -> Array:
    """Every 128th result of an operator on int16 numbers, as entries of a table with linear interpolation."""
    numbers = np.append(np.arange(-(2**15), 2**15, 128), 2**15 - 1).astype(np.int16)
    return op.reference(y.with_shape(numbers.shape), Value(numbers, x.with_shape(numbers.shape)))


class _Saturating(Table):
    """Base of functions that are flat away from zero, and whose results LiteRT dictates the qparams of."""

    tosa_steps = Steps(int16=14)
    litert: ClassVar[str]
    coarsest: ClassVar[float]
    """Largest scale of an int16 operand whose table has enough entries for the range where the function is not flat."""

    def wide_table(self, x: TensorType, y: TensorType) -> Array:
        return sampled(self, x, y)

    def infer(self, x: TensorType) -> TensorType:
        return x.with_qparams(self.quantization.fixed_for(x.dtype))

    @classmethod
    def build(cls, node: AtenNode) -> Tensor:
        return node.emit(cls(), node.tensor("x"))

    def to_litert(self, emit: LiteRtEmitter) -> None:
        emit.add(self.litert)

    def to_tosa(self, emit: TosaEmitter) -> TosaTensor:
        """An int16 operand with a larger scale than `coarsest` is requantized first, and saturates.

        An int16 result differs by up to 14 LSB: LiteRT interpolates between other entries.
        """
        x = emit.input_type(0)
        if x.dtype is not DType.INT16 or x.scale <= self.coarsest:
            return tabulated(self, emit)
        fine = x.with_qparams(QParams.per_tensor(self.coarsest, 0))
        multiplier, shift = quantize_multiplier(min(x.scale / self.coarsest, 2.0**16))
        operand = emit.rescale(emit.input(0), "INT16", [multiplier], [31 - shift])
        return emit.table(operand, sampled(self, fine, emit.output_type))


def wide_sigmoid(x: Array, scale: float, bits: int, exact_shifts: tuple[int, ...]) -> tuple[Array, Array]:
    """Sigmoid of the magnitude of int16 x, and a mask of non-negative x.

    Linear interpolation between 256 values, 24 per unit.

    Args:
        bits: fractional bits between two of them; the result is in units of 2**-(16 + bits).
        exact_shifts: for a scale of 2**(shift - 12), position and x are integer multiples of each other.

    Source: LiteRT ``reference/integer_ops/logistic.h`` and ``tanh.h`` (Apache-2.0), described here by their results.
    """
    here, middle, behind = (sigmoid((np.arange(256) + part) / 24) for part in (0.0, 0.5, 1.0))
    # Same as in `wide_lookup_table`: shift each value by half of the interpolation error at the midpoint of its
    # interval.
    table = np.rint(65536.0 * (here - ((here + behind) / 2 - middle) / 2)).astype(np.int64)
    table[-1] = 65535
    fraction, exponent = math.frexp(scale)
    shift = exponent - 1 + 12
    if fraction == 0.5 and shift in exact_shifts:
        multiplier, shift = 3 << shift, 0
    else:
        real, shift = scale * 4096.0 * 3.0, 0
        while real <= 32767.0 / 2.0 and shift <= 30:
            real, shift = real * 2.0, shift + 1
        multiplier = int(real)
    position = (x.astype(np.int64) * multiplier + ((1 << shift) >> 1)) >> shift
    magnitude = np.abs(position)
    index = magnitude >> bits
    low, high = table[np.minimum(index, 254)], table[np.minimum(index, 254) + 1]
    lines = (low << bits) + (magnitude & ((1 << bits) - 1)) * (high - low)
    largest = (0x7FFF << 10) if bits == 9 else (0xFFFF << 8)
    return np.where(index >= 255, largest, lines), position >= 0


_SIGMOID = Facts(form=Form.SIGMOID, range=TRUTHS, tail=lambda y: math.log(1 / y - 1))


@operator("sigmoid")
@from_aten("sigmoid.default", "sigmoid_.default", facts=_SIGMOID)
class Sigmoid(_Saturating):
    """1 / (1 + exp(-x)).

    x int8 [any]  ->  y int8 [same], scale 1/256, zero point -128, as LiteRT demands; int16 has scale 2**-15.
    """

    quantization = fixed_qparams(1 / 256, -128, int16_scale=2.0**-15)
    litert, coarsest = "LOGISTIC", 2.0**-11

    @staticmethod
    def function(x: Array) -> Array:
        return sigmoid(x)

    def reference(self, y: TensorType, x: Value) -> Array:
        if x.type.dtype is not DType.INT16:
            return super().reference(y, x)
        value, positive = wide_sigmoid(x.data, x.scale, 9, (0,))
        # Rounded to 15 fractional bits; the sigmoid of a negative number is 1 minus that of its magnitude.
        return np.asarray((np.where(positive, value, (1 << 25) - 1 - value) + (1 << 9) >> 10).astype(np.int16))


@operator("tanh")
@from_aten("tanh.default", "tanh_.default", facts=Facts(range=SIGNS, tail=lambda y: math.atanh(1 - y)))
class Tanh(_Saturating):
    """Hyperbolic tangent.

    x int8 [any]  ->  y int8 [same], scale 1/128, zero point 0, as LiteRT demands; int16 has scale 2**-15.
    """

    quantization = fixed_qparams(1 / 128, 0, int16_scale=2.0**-15)
    litert, coarsest = "TANH", 2.0**-12

    @staticmethod
    def function(x: Array) -> Array:
        return np.asarray(np.tanh(x))

    def reference(self, y: TensorType, x: Value) -> Array:
        if x.type.dtype is not DType.INT16:
            return super().reference(y, x)
        # tanh(x) = 2 * sigmoid(2 * x) - 1: uses twice the fractional bits of x and of the result.
        value, positive = wide_sigmoid(x.data, x.scale, 8, (0, 1))
        middle = 1 << 23
        result = np.where(positive, value - middle, middle - 1 - value) + (1 << 7) >> 8
        return np.asarray(result.astype(np.int16))
