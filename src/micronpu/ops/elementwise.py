"""Arithmetic on two activations, with NumPy's broadcasting; element-wise unary operators, and their tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from micronpu.base.arrays import Array
from micronpu.base.errors import InternalError, UnsupportedError
from micronpu.ir.arithmetic import (
    float32_quotient,
    multiply_by_quantized_multiplier,
    quantize_multiplier,
    requantize,
    saturate,
)
from micronpu.ir.aten import AtenNode
from micronpu.ir.facts import Amplifier, Facts, Form, Given, Interval, IntervalOf
from micronpu.ir.graph import Tensor
from micronpu.ir.lowering import Float, Writer, decomposes, states
from micronpu.ir.op import Op, Permutation, Permuted, QuantizationRule, Steps, Value, own_qparams, shares_qparams
from micronpu.ir.registry import from_aten, operator
from micronpu.ir.types import DType, QParams, TensorType
from micronpu.ir.window import Activation
from micronpu.ops.bounds import at_ends, divided, never_negative, squared
from micronpu.ops.constants import constant_like, fused_activation
from micronpu.ops.convolution import line_of_layer
from micronpu.ops.movement import Reshape

if TYPE_CHECKING:
    from micronpu.emit.litert import LiteRtEmitter
    from micronpu.emit.tosa import TosaEmitter, TosaTensor


# Left shift in bits of both addends before their scales are made equal.
_ADD_SHIFT = {DType.INT8: 20, DType.INT16: 15}

# Maximum rank for broadcasting in all of LiteRT's kernels (`sub.h`, kMaxBroadcastDim).
MAX_BROADCAST_RANK = 6


def _sum_of(form: Form, x: float, z: float) -> Facts:
    """Facts of the sum of two operands with factors; the alpha of the second is one of the subtracted."""

    def bounds(given: Given, of: IntervalOf) -> Interval:
        alpha = given.get("alpha", 1)
        first, second = (alpha, 1) if form is Form.REVERSED_DIFFERENCE else (1, alpha)
        return at_ends(lambda a, b: x * first * a + z * second * b, given, of)

    return Facts(form=form, affine_in=("self", "other"), range=bounds, adds=form is Form.SUM)


def _is_square(given: Given) -> bool:
    return given["self"] is given["other"]


INVERSE = Amplifier(lambda x: 1 / x, lambda y: 1 / y, divides=True)
_AS_PRODUCT = QuantizationRule(activations=())
_OF_TWO = {"degree": "both operands may vary"}
_PRODUCT = Facts(
    form=Form.PRODUCT,
    affine_in=("self", "other"),
    range=lambda given, of: squared(of(given["self"])) if _is_square(given) else at_ends(float.__mul__, given, of),
    power=lambda given: 2.0 if _is_square(given) else None,
    unknown=_OF_TWO,
)
_QUOTIENT = Facts(
    form=Form.QUOTIENT,
    affine_in=("self",),
    range=lambda given, of: divided(of(given["self"]), of(given["other"])),
    amplifier=INVERSE,
    unknown=_OF_TWO,
)


class Binary(Op):
    """Base of operators that combine the elements of two tensors; a transpose of both passes through unchanged."""

    verb: ClassVar[str] = "combined"

    def infer(self, x: TensorType, z: TensorType) -> TensorType:
        try:
            shape = np.broadcast_shapes(x.shape, z.shape)
        except ValueError as error:
            raise InternalError(f"Shapes {list(x.shape)} and {list(z.shape)} cannot be {self.verb}.") from error
        return TensorType(tuple(shape), x.dtype)

    def permuted(self, permutation: Permutation, y: TensorType, *operands: TensorType) -> Permuted:
        return self, permutation


def collapsed_shapes(x: tuple[int, ...], z: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Reduce the rank of both shapes as far as broadcasting allows: adjacent axes that broadcast alike are merged.

    [2,3,4,5] and [1,1,4,5] become [6,20] and [1,20].
    """
    rank = max(len(x), len(z))
    x, z = ((1,) * (rank - len(s)) + s for s in (x, z))
    left: list[int] = []
    right: list[int] = []
    before: tuple[bool, bool] | None = None
    for a, b in zip(x, z, strict=True):
        if a == b == 1:
            continue
        kind = (a == 1, b == 1)
        if kind == before:
            left[-1] *= a
            right[-1] *= b
        else:
            left.append(a)
            right.append(b)
        before = kind
    return tuple(left) or (1,), tuple(right) or (1,)


def emit_binary(node: AtenNode, op: Op, x: Tensor, z: Tensor, qparams: QParams | None) -> Tensor:
    """Append a binary operator, with reshapes if its operands exceed the rank for LiteRT's broadcasting."""
    if x.shape == z.shape or max(len(x.shape), len(z.shape)) <= MAX_BROADCAST_RANK:
        return node.emit(op, x, z, qparams=qparams)
    shape = tuple(np.broadcast_shapes(x.shape, z.shape))
    short = collapsed_shapes(x.shape, z.shape)
    if len(short[0]) > MAX_BROADCAST_RANK:
        raise UnsupportedError(
            f"`{node.overload}` broadcasts between {list(x.shape)} and {list(z.shape)}, which no reshape brings to "
            f"{MAX_BROADCAST_RANK} axes.",
            hint="expand one operand to the shape of the result first",
        )
    a, b = (t if t.shape == s else node.emit(Reshape(s), t) for t, s in zip((x, z), short, strict=True))
    return node.emit(Reshape(shape), node.emit(op, a, b, qparams=qparams))


_LARGEST_FLOAT = float(np.finfo(np.float32).max)


def check_addition(node: AtenNode, x: Tensor, z: Tensor) -> None:
    """Refuse additions that LiteRT cannot compute: a sum may grow by at most the left shift, applied in float32."""
    # Beyond either limit its kernel ends the process.
    shift = _ADD_SHIFT[x.type.dtype]
    largest = max(2.0 * max(x.type.scale, z.type.scale), (1 << shift) * node.output.scale[0])
    if largest > _LARGEST_FLOAT:
        raise UnsupportedError(
            f"The operands and the result of `{node.overload}` have scales of {x.type.scale:g}, {z.type.scale:g} and "
            f"{node.output.scale[0]:g}; 2**{shift} times the last, or twice one of the others, is no float32 any more.",
            hint="values that an NPU can tell apart, such as a mask of -100 where there is one of -1e38",
        )
    if 2.0 * max(x.type.scale, z.type.scale) >= (1 << shift) * node.output.scale[0]:
        raise UnsupportedError(
            f"The result of `{node.overload}` has a scale of {node.output.scale[0]:g}, more than 2**{shift - 1} "
            f"times finer than its operands' {max(x.type.scale, z.type.scale):g}.",
            hint="calibrate with data for which the result is not close to zero everywhere",
        )


def scaled_sum(
    y: TensorType, operands: tuple[Value, ...], limits: tuple[int, int], combine: Callable[[Any, Any], Any]
) -> Array:
    """Rescale both operands to twice the larger scale with extra bits, combine them, and rescale to y."""
    x, z = operands
    shift = _ADD_SHIFT[y.dtype]
    largest = 2.0 * max(x.scale, z.scale)
    left, right = (
        multiply_by_quantized_multiplier(v.centered << shift, *quantize_multiplier(v.scale / largest)) for v in (x, z)
    )
    back = quantize_multiplier(largest / ((1 << shift) * y.scale))
    result = multiply_by_quantized_multiplier(combine(left, right), *back) + y.zero_point
    return saturate(result, *limits, y.dtype.value)


def any_scale(emit: LiteRtEmitter) -> dict[str, bool]:
    """Disable LiteRT's special addition of int16 tensors with scales that are powers of two."""
    return {"potScaleInt16": False} if emit.input_type(0).dtype is DType.INT16 else {}


class Sum(Binary):
    """Base of addition and subtraction."""

    activation: Activation

    quantization = own_qparams("x", "z")
    tosa_steps = Steps(int8=1, int16=1)
    litert: ClassVar[str]
    litert_options: ClassVar[str]
    combine: ClassVar[np.ufunc]

    def reference(self, y: TensorType, x: Value, z: Value) -> Array:
        return scaled_sum(y, (x, z), self.activation.limits(y), self.combine)

    @classmethod
    def build(cls, node: AtenNode) -> Tensor:
        """Append the operator for an overload with the argument `alpha`."""
        if node.value("alpha") != 1:
            raise UnsupportedError(
                f"`{node.overload}` scales its second operand by alpha = {node.value('alpha')}.",
                hint="quantize with the quantizer of the target, which makes a multiplication of it",
            )
        x, z = node.tensor("x"), node.tensor("z")
        check_addition(node, x, z)
        return emit_binary(node, cls(fused_activation(node)), x, z, node.output)  # type: ignore[call-arg]

    def to_litert(self, emit: LiteRtEmitter) -> None:
        fields = {"fusedActivationFunction": emit.activation(self.activation)} | any_scale(emit)
        emit.add(self.litert, options=self.litert_options, fields=fields, version=2)

    def to_tosa(self, emit: TosaEmitter) -> TosaTensor:
        """Like `scaled_sum`, but each operand is rescaled to the common scale with one rounding instead of two.

        Operands of equal scales are not rescaled. The result differs by at most 1 LSB, if it is closer to a tie than
        about 2**-18 LSB.
        """
        x, z, y = emit.input_type(0), emit.input_type(1), emit.output_type
        bits, limits = _ADD_SHIFT[y.dtype], self.activation.limits(y)
        if x.scale == z.scale:
            sums = emit.elementwise(self.litert, emit.centered(0), emit.centered(1), "INT32")
            return emit.requantize_once(sums, [x.scale / y.scale], limits)
        largest = 2.0 * max(x.scale, z.scale)
        addends = []
        for index, operand in enumerate((x, z)):
            multiplier, shift = quantize_multiplier(operand.scale / largest)
            # Stated explicitly, because Vela would make U55 and U65 round twice, which TOSA does only for shifts above
            # 31.
            once, zeros = "SINGLE_ROUND", (operand.zero_point, 0)
            addends.append(
                emit.rescale(emit.input(index), "INT32", [multiplier], [31 - bits - shift], zeros=zeros, rounding=once)
            )
        sums = emit.elementwise(self.litert, addends[0], addends[1], "INT32")
        return emit.requantize(sums, [largest / ((1 << bits) * y.scale)], limits)


@operator("add")
@from_aten("add.Tensor", "add_.Tensor", z="other", fuses=True, facts=_sum_of(Form.SUM, 1, 1))
class Add(Sum):
    """Sum of two tensors, with NumPy's broadcasting.

    x int8, z int8  ->  y int8 [broadcast shape], own qparams.
    """

    activation: Activation = Activation.NONE

    verb = "added"
    litert, litert_options, combine = "ADD", "AddOptions", np.add


@operator("sub")
@from_aten("sub.Tensor", "sub_.Tensor", "subtract.Tensor", z="other", fuses=True, facts=_sum_of(Form.DIFFERENCE, 1, -1))
@from_aten("rsub.Tensor", x="other", z="self", fuses=True, facts=_sum_of(Form.REVERSED_DIFFERENCE, -1, 1))
class Sub(Sum):
    """Difference x - z, with NumPy's broadcasting.

    x int8, z int8  ->  y int8 [broadcast shape], own qparams.
    """

    activation: Activation = Activation.NONE

    verb = "subtracted"
    litert, litert_options, combine = "SUB", "SubOptions", np.subtract


@operator("mul")
class Mul(Binary):
    """Product of two tensors, with NumPy's broadcasting.

    x int8, z int8  ->  y int8 [broadcast shape], own qparams.
    """

    activation: Activation = Activation.NONE

    verb = "multiplied"
    quantization = own_qparams("x", "z")

    def macs(self, y: TensorType, *operands: TensorType) -> int:
        return y.size

    def reference(self, y: TensorType, x: Value, z: Value) -> Array:
        scaled = requantize(x.centered * z.centered, float32_quotient(y.scale, x.scale, z.scale)) + y.zero_point
        return saturate(scaled, *self.activation.limits(y), y.dtype.value)

    @from_aten("mul.Tensor", "mul_.Tensor", "multiply.Tensor", z="other", fuses=True, facts=_PRODUCT)
    @classmethod
    def build(cls, node: AtenNode) -> Tensor:
        return emit_binary(node, cls(fused_activation(node)), node.tensor("x"), node.tensor("z"), node.output)

    # Only a division by a constant can be expressed; the quantizer converts it to `mul`, so nothing is annotated here,
    # and quantized programs are imported.
    @from_aten("div.Tensor", "div_.Tensor", z="other", fuses=True, quantization=_AS_PRODUCT, facts=_QUOTIENT)
    @classmethod
    def build_division(cls, node: AtenNode) -> Tensor:
        if not node.is_constant("z"):
            what = "`div` divides by a tensor that is computed at run time."
            raise UnsupportedError(what, hint="multiply with the reciprocal, or divide on the host")
        divisor = node.float_constant("z").astype(np.float64)
        if not divisor.all():
            raise UnsupportedError("`div` divides by a constant that holds zeros.")
        x = node.tensor("x")
        return emit_binary(
            node, cls(fused_activation(node)), x, constant_like(node, 1.0 / divisor, x.type), node.output
        )

    def to_litert(self, emit: LiteRtEmitter) -> None:
        emit.add(
            "MUL", options="MulOptions", fields={"fusedActivationFunction": emit.activation(self.activation)}, version=2
        )

    def to_tosa(self, emit: TosaEmitter) -> TosaTensor:
        x, z, y = emit.input_type(0), emit.input_type(1), emit.output_type
        products = emit.multiply(emit.centered(0), emit.centered(1))
        return emit.requantize(products, [float32_quotient(y.scale, x.scale, z.scale)], self.activation.limits(y))


class Selection(Binary):
    """Base of minimum and maximum, which compare integers: all operands and the result share qparams."""

    verb = "compared"
    quantization = QuantizationRule(("x", "z"), shares_qparams().output)
    litert: ClassVar[str]
    select: ClassVar[np.ufunc]

    def infer(self, x: TensorType, z: TensorType) -> TensorType:
        if x.qparams != z.qparams:
            raise InternalError(f"{self.name} compares {x} with {z}, whose integers differ in meaning.")
        return super().infer(x, z).with_qparams(x.qparams)

    def reference(self, y: TensorType, x: Value, z: Value) -> Array:
        return np.asarray(self.select(x.data, z.data))

    @classmethod
    def build(cls, node: AtenNode) -> Tensor:
        """Append the operator for an overload of two tensors."""
        x, z = node.tensor("x"), node.tensor("z")
        if x.type.qparams != z.type.qparams:
            raise UnsupportedError(
                f"The operands of `{node.overload}` have different qparams, {x.type.qparams} and {z.type.qparams}.",
                hint="quantize with the quantizer of the target, which lets them share qparams",
            )
        return emit_binary(node, cls(), x, z, None)

    def to_litert(self, emit: LiteRtEmitter) -> None:
        emit.add(self.litert, options="MaximumMinimumOptions", version=2)

    def to_tosa(self, emit: TosaEmitter) -> TosaTensor:
        chosen = emit.elementwise(self.litert, emit.centered(0), emit.centered(1), "INT32", emit.IGNORE_NAN)
        return emit.result(chosen)


_MINIMA, MAXIMA = ("minimum.default", "min.other"), ("maximum.default", "max.other")
EXTREMA = (*_MINIMA, *MAXIMA)
"""Overloads with one of two operands as each result, which may saturate where they are not chosen."""


@operator("minimum")
@from_aten(*_MINIMA, z="other", facts=Facts(range=lambda given, of: at_ends(min, given, of)))
class Minimum(Selection):
    """The smaller of two elements, with NumPy's broadcasting.

    x int8, z int8 with the same qparams  ->  y int8 [broadcast shape], qparams of x.
    """

    litert, select = "MINIMUM", np.minimum


@operator("maximum")
@from_aten(*MAXIMA, z="other", facts=Facts(range=lambda given, of: at_ends(max, given, of)))
class Maximum(Selection):
    """The larger of two elements, with NumPy's broadcasting.

    x int8, z int8 with the same qparams  ->  y int8 [broadcast shape], qparams of x.
    """

    litert, select = "MAXIMUM", np.maximum


# ---------------------------------------------------------------- decompositions

SMALLEST = 2.0**-16
"""Smallest operand of a logarithm; no activation has a smaller scale."""


def scaled(write: Writer, x: Float, factor: float) -> Float:
    """``x * factor``."""
    if factor == 1:
        return x
    return x * factor if isinstance(x, (int, float)) else write("mul.Tensor", x, write.constant(factor))


def power(write: Writer, x: Float, exponent: float) -> Float:
    """x to a power, for x >= 0: exp(exponent * log(x)), whose relative error is independent of magnitude."""
    if write.capabilities.computes("pow.Tensor_Scalar"):
        return write("pow.Tensor_Scalar", x, exponent)
    # Infinite results stay infinite, so that calibration reports them; a root of zero is finite.
    logarithm = write("log.default", write("clamp.default", x, SMALLEST) if exponent > 0 else x)
    return write("exp.default", scaled(write, logarithm, exponent))


def inverse(write: Writer, x: Float) -> Float:
    """1 / x: a table if there is one; r = exp(-log(x)) for x >= 0, otherwise x * r * r with r = exp(-log(abs(x)))."""
    # x * r is one or minus one, so the result has the precision of r, with similar qparams. exp(-log(x * x)) would have
    # the square of the magnitude of 1 / x, too large a range for one scale.
    if write.capabilities.computes("reciprocal.default"):
        return write("reciprocal.default", x)
    if never_negative(write, x):
        return power(write, x, -1.0)
    magnitude = power(write, write("abs.default", x), -1.0)
    return write("mul.Tensor", write("mul.Tensor", x, magnitude), magnitude)


@decomposes("add.Tensor", "add_.Tensor", "sub.Tensor", "sub_.Tensor", "add.Scalar", "sub.Scalar")
def _sum(write: Writer) -> Float:
    """x + alpha z -> x + (alpha z); integers become floats; a constant added to a layer goes into its bias."""
    is_sum = write.overload.startswith("add")
    x, z, alpha = write.given["self"], write.given["other"], write.given["alpha"]
    sign, (first, second) = alpha if is_sum else -alpha, (write.known(x), write.known(z))
    if second is not None and (folded := line_of_layer(write, x, 1.0, sign * second)) is not None:
        return folded
    if first is not None and (folded := line_of_layer(write, z, sign, first)) is not None:
        return folded
    if alpha == 1 and not write.overload.endswith("Scalar") and not _is_integer(write, z):
        return None
    return write("add.Tensor" if is_sum else "sub.Tensor", x, scaled(write, _as_float(write, z), alpha))


def _is_integer(write: Writer, z: Float) -> bool:
    value = write.stored(z)
    return value is not None and value.dtype.kind != "f"


def _as_float(write: Writer, z: Float) -> Float:
    """Convert an integer constant to float32, so that it can be quantized."""
    value = write.stored(z)
    return z if value is None or value.dtype.kind == "f" else write.constant(value.astype(np.float32))


def is_row(bias: Array | None) -> bool:
    """True if a known value can be a bias: all its elements are along the last axis."""
    return bias is not None and (bias.ndim <= 1 or bias.shape[-1] == bias.size)


@decomposes("rsub.Scalar", "rsub.Tensor")
def _reversed_difference(write: Writer) -> Float:
    """rsub(x, z) -> z - x"""
    z = write.given["other"]
    minuend = write.constant(z) if isinstance(z, (int, float)) else z
    return write("sub.Tensor", minuend, scaled(write, write.given["self"], write.given["alpha"]))


@decomposes("mul.Scalar", "mul.Tensor", "mul_.Tensor")
def _product(write: Writer) -> Float:
    """Integer factors become floats; a factor of 1 vanishes; a constant one goes into the layer before it."""
    x, z = write.given["self"], write.given["other"]
    if isinstance(z, (int, float)) and z == 1:
        return x
    for layer, factor in ((x, write.known(z)), (z, write.known(x))):
        if factor is not None and (folded := line_of_layer(write, layer, factor, 0.0)) is not None:
            return folded
    if write.overload != "mul.Scalar" and not _is_integer(write, z):
        return None
    return write("mul.Tensor", x, _as_float(write, z))


_DIVISIONS = (
    *(f"{name}.{form}" for name in ("div", "div_") for form in ("Tensor", "Scalar", "Tensor_mode", "Scalar_mode")),
    *("true_divide.Tensor", "floor_divide.default", "floor_divide.Scalar"),
)


_ROUNDINGS = {"floor": "floor.default", "trunc": "trunc.default"}


_WITH_MODE = dict.fromkeys(("form", "affine_in", "elementwise", "degree", "whole"), "it depends on the rounding")
states("div.Tensor_mode", "div.Scalar_mode", facts=Facts(unknown=_WITH_MODE))
states("true_divide.Tensor", facts=_QUOTIENT)
states("floor_divide.default", facts=Facts(whole=True))
states("floor_divide.Scalar", facts=Facts(elementwise=True, whole=True, unknown={"jumps": "it is a rounded quotient"}))


@decomposes(*_DIVISIONS)
def _quotient(write: Writer) -> Float:
    """x / 3 -> x * (1/3);  x / z -> x * reciprocal(z); a rounded quotient if the chip has a table for rounding."""
    x, z = write.given["self"], write.given["other"]
    mode = "floor" if write.overload.startswith("floor") else write.given.get("rounding_mode")
    rounding = _ROUNDINGS.get(mode or "")
    if mode is not None and (rounding is None or not write.capabilities.computes(rounding)):
        return None
    divisor = write.known(z)
    if divisor is None:
        quotient = write("mul.Tensor", x, inverse(write, z))
    elif divisor.all():
        quotient = write("mul.Tensor", x, write.constant((1.0 / divisor).astype(np.float32)))
    else:
        return None
    return quotient if rounding is None else write(rounding, quotient)


class Elementwise(Op):
    """Base of element-wise unary operators, through which a transpose passes unchanged."""

    is_elementwise = True

    def infer(self, x: TensorType) -> TensorType:
        return x.with_qparams(None)

    def permuted(self, permutation: Permutation, y: TensorType, *operands: TensorType) -> Permuted:
        return self, permutation

    def to_tosa(self, emit: TosaEmitter) -> TosaTensor:
        return tabulated(self, emit)


def tabulated(op: Op, emit: TosaEmitter) -> TosaTensor:
    """The lookup table of an operator of one int8 activation, and of constants.

    For int16, a table with linear interpolation, if the operator has one.
    """
    x, y = emit.input_type(0), emit.output_type
    low, high = DType.INT8.limits
    wide_table = getattr(op, "wide_table", None)
    if x.dtype is DType.INT16 and wide_table is not None:
        return emit.table(emit.input(0), wide_table(x, y))
    if x.dtype is not DType.INT8:
        raise UnsupportedError(f"`{op.name}` of {x.dtype.value} has no TOSA form.", hint="quantize it to int8")
    count = high - low + 1
    every = Value(np.arange(low, high + 1, dtype=np.int8), x.with_shape((count,)))
    others = [Value(emit.constant_input(i), emit.input_type(i)) for i in range(1, len(emit.operands))]
    return emit.table(emit.input(0), op.reference(y.with_shape((count,)), every, *others))
