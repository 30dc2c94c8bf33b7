"""Functions of one element without a separate operator: each defined once, with all its lowerings.

A function is defined over real numbers, which becomes a table on chips with lookup tables, and, if it can be composed
of operators that every chip has, as a decomposition for the others. Decompositions are exact up to float rounding,
except that of `gelu`, whose error is stated there.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any

import numpy as np

from micronpu.ir.aten import AtenArguments, AtenNode
from micronpu.ir.facts import ANY, POSITIVE, SIGNS, TRUTHS, Amplifier, Facts, Form, Given, Interval, IntervalOf
from micronpu.ir.graph import Tensor
from micronpu.ir.lowering import Float, Writer, decomposes, states
from micronpu.ir.op import fixed_qparams
from micronpu.ir.types import DType
from micronpu.ops.activation import sigmoid
from micronpu.ops.bounds import divided, jumps_at, never_negative, sign_of_operand, squared, with_zeros
from micronpu.ops.comparisons import STEEPNESS
from micronpu.ops.elementwise import INVERSE, inverse, power, scaled
from micronpu.ops.tables.table import (
    RealFunction,
    Reals,
    Steps,
    in_lines,
    in_steps,
    in_whole_numbers,
    places,
    refused,
    unary,
)

GELU_SLOPE = 1.702
"""x * sigmoid(1.702 x) differs from x * Phi(x) by at most 0.0204 (Hendrycks and Gimpel, 2016)."""

SELU = (1.6732632423543772, 1.0507009873554805)
"""Slope below zero and scale of `selu` (Klambauer et al., 2017)."""

_erf = np.vectorize(math.erf, otypes=[np.float64])


def _log(x: Reals) -> Reals:
    """Natural logarithm; minus infinity for non-positive numbers."""
    return np.where(x > 0, np.log(np.where(x > 0, x, 1.0)), -np.inf)


def _softplus(x: Reals) -> Reals:
    return np.asarray(np.logaddexp(0.0, x))


# ---------------------------------------------------------------- tables only


def _table(name: str, function: RealFunction, *, steps: Steps | None = None, **facts: Any) -> None:
    unary(*places(name), steps=steps, facts=Facts(**facts))(lambda node: function)


_ERROR = NormalDist(0.0, math.sqrt(0.5))
_LOG2, _LOG10 = Amplifier(math.log2, lambda y: 2.0**y), Amplifier(math.log10, lambda y: 10.0**y)
_ANGLES = (-math.pi / 2, math.pi / 2)
_POLES = {"jumps": "a jump between infinities has no numbers on its sides"}
_WHOLE = {"jumps": "at whole numbers, where scales that avoid them cost 0.7 dB"}

_table("exp2", np.exp2, range=POSITIVE)
_table("log2", lambda x: _log(x) / math.log(2.0), singular=True, amplifier=_LOG2)
_table("log10", lambda x: _log(x) / math.log(10.0), singular=True, amplifier=_LOG10)
_table("erf", _erf, range=SIGNS, tail=lambda y: _ERROR.inv_cdf(1.0 - y / 2.0))
_table("erfc", lambda x: 1.0 - _erf(x), range=(0.0, 2.0), tail=lambda y: _ERROR.inv_cdf(1.0 - y / 2.0))
_table("sin", np.sin, range=SIGNS)
_table("cos", np.cos, range=SIGNS)
_table("sinc", np.sinc, range=(-0.22, 1.0), unknown={"tail": "it has waves far beyond"})  # its lowest value is -0.2172
_table("tan", np.tan, unknown=_POLES)
_table("asin", np.arcsin, range=_ANGLES, is_bounded=True)
_table("acos", np.arccos, range=(0.0, math.pi), is_bounded=True)
_table("atan", np.arctan, range=_ANGLES, tail=lambda y: 1.0 / math.tan(y))
_table("sinh", np.sinh)
_table("cosh", np.cosh, range=(1.0, math.inf))
_table("asinh", np.arcsinh)
_table("acosh", np.arccosh, range=POSITIVE)
_table("atanh", np.arctanh, is_bounded=True)
_table("floor", np.floor, steps=in_whole_numbers, whole=True, unknown=_WHOLE)
_table("ceil", np.ceil, steps=in_whole_numbers, whole=True, unknown=_WHOLE)
_table("round", np.rint, steps=in_whole_numbers, whole=True, jumps=frozenset({(0.5, 1.0)}))
_table("trunc", np.trunc, steps=refused, whole=True, unknown=_WHOLE)
_table("frac", lambda x: x - np.trunc(x), steps=refused, range=SIGNS, unknown=_WHOLE)


_DECIMALS = Facts(elementwise=True, unknown={"jumps": "it depends on the decimals"})


@decomposes("round.decimals", "round_.decimals", facts=_DECIMALS)
def _round_to_decimals(write: Writer) -> Float:
    """round(x, decimals=2) -> round(100 x) / 100"""
    x, shift = write.given["self"], 10.0 ** int(write.given["decimals"])
    return scaled(write, write("round.default", scaled(write, x, shift)), 1.0 / shift)


_SIGN_RULE = fixed_qparams(1.0, 0, limits=(-1.0, 1.0))
_SIGN = Facts(range=SIGNS, whole=True, degree=0.0, jumps=frozenset({(0.0, 0.0)}))


@unary(*places("sign"), *places("sgn"), quantization=_SIGN_RULE, steps=in_steps, facts=_SIGN)
def _sign(node: AtenArguments) -> RealFunction:
    return np.sign


@decomposes(*places("sign"), *places("sgn"))
def _sign_decomposed(write: Writer) -> Float:
    """sign(x) -> clamp(steep * x, -1, 1): numbers nearer to 0 than 1 / steep give values in between, see `STEEPNESS`"""
    steep = write("mul.Tensor", write.given["self"], write.constant(STEEPNESS))
    return write("clamp.default", steep, -1.0, 1.0)


@unary("pow.Scalar", x="exponent", facts=Facts(range=lambda given, of: POSITIVE if given["self"] > 0 else ANY))
def _power_of_number(node: AtenArguments) -> RealFunction:
    base = float(node.value("self"))
    return lambda x: np.power(base, x)


_AT_THRESHOLD = Facts(jumps=lambda given: jumps_at(given["threshold"]))


@unary("threshold.default", "threshold_.default", steps=refused, facts=_AT_THRESHOLD)
def _threshold(node: AtenArguments) -> RealFunction:
    threshold, value = float(node.value("threshold")), float(node.value("value"))
    return lambda x: np.where(x > threshold, x, value)


def _shrunk(node: AtenNode, x: Tensor, function: RealFunction) -> Tensor:
    return (refused if node.overload.startswith("hard") else in_lines)(node, x, function)


_HARD = Facts(range=with_zeros, jumps=lambda given: jumps_at(given["lambd"], -given["lambd"]))


@unary("softshrink.default", steps=_shrunk, facts=Facts(range=sign_of_operand))
@unary("hardshrink.default", steps=_shrunk, facts=_HARD)
def _shrink(node: AtenArguments) -> RealFunction:
    width = float(node.value("lambd"))
    if node.overload.startswith("hard"):
        return lambda x: np.where(np.abs(x) > width, x, 0.0)
    return lambda x: np.sign(x) * np.maximum(np.abs(x) - width, 0.0)


_REMAINDER = Facts(unknown=dict.fromkeys(("jumps", "range"), "it depends on the divisor"))


@unary("remainder.Scalar", "remainder_.Scalar", "fmod.Scalar", "fmod_.Scalar", steps=refused, facts=_REMAINDER)
def _remainder(node: AtenArguments) -> RealFunction:
    divisor = np.float32(node.value("other"))
    return (lambda x: np.mod(x, divisor)) if node.overload.startswith("r") else lambda x: np.fmod(x, divisor)


states("remainder.Tensor", facts=Facts(unknown={"affine_in": "between jumps alone"}))


@decomposes("remainder.Scalar", "remainder.Tensor", decides=True)
def _remainder_by_division(write: Writer) -> Float:
    """remainder(x, z) -> x - floor(x / z) * z, of two tensors, and of integers

    ExecuTorch's kernel returns -7 for -7 % 8 of integers, like C.
    """
    x, z, dtype = write.given["self"], write.given["other"], write.dtype()
    if dtype is DType.FLOAT32:
        if isinstance(z, (int, float)) or not write.capabilities.computes("floor.default"):
            return None
    elif dtype in (None, DType.BOOL, DType.UINT8) or write.dtype(x) is not dtype:
        return None
    elif isinstance(z, (int, float)):
        z = write.constant(np.array(z, dtype.numpy))
    return write("sub.Tensor", x, write("mul.Tensor", write("floor_divide.default", x, z), z))


# ---------------------------------------------------------------- powers and logarithms

_table(
    "reciprocal",
    np.reciprocal,
    form=Form.RECIPROCAL,
    power=-1.0,
    range=lambda given, of: divided((1.0, 1.0), of(given["self"])),
    amplifier=INVERSE,
    unknown={**_POLES, "tail": "its range is that of the smallest operands"},
)


@decomposes(*places("reciprocal"))
def _reciprocal(write: Writer) -> Float:
    """1 / x -> r = exp(-log(x)) if x is never negative; otherwise x * r * r with r = exp(-log(abs(x)))."""
    return inverse(write, write.given["self"])


_OF_ROOT = Amplifier(math.sqrt, lambda y: max(y, 0.0) ** 2)
_table("sqrt", np.sqrt, form=Form.ROOT, power=0.5, range=POSITIVE, amplifier=_OF_ROOT)


@decomposes(*places("sqrt"))
def _root(write: Writer) -> Float:
    """sqrt(x) -> exp(log(x) / 2)"""
    return power(write, write.given["self"], 0.5)


_table("square", np.square, power=2.0, range=POSITIVE)


@decomposes(*places("square"))
def _square(write: Writer) -> Float:
    """square(x) -> x * x"""
    return write("mul.Tensor", write.given["self"], write.given["self"])


_POWERS = ("pow.Tensor_Scalar", "pow_.Scalar")


def _powered(given: Given, of: IntervalOf) -> Interval:
    x, exponent = of(given["self"]), given["exponent"]
    if exponent == 2:
        return squared(x)
    return POSITIVE if exponent % 2 == 0 or x[0] >= 0 else ANY


@unary(*_POWERS, facts=Facts(power=lambda given: float(given["exponent"]), range=_powered, unknown=_POLES))
def _power(node: AtenArguments) -> RealFunction:
    exponent = float(node.value("exponent"))
    return lambda x: np.power(x, exponent)


@decomposes(*_POWERS)
def _power_decomposed(write: Writer) -> Float:
    """Integer powers up to 4 by multiplication, 1/2 and -1/2 by roots, others by exp and log for x >= 0."""
    x, exponent = write.given["self"], float(write.given["exponent"])
    if exponent == 1:
        return x
    if exponent in (2, 3, 4):
        square = write("mul.Tensor", x, x)
        return square if exponent == 2 else write("mul.Tensor", square, x if exponent == 3 else square)
    if exponent == -0.5:
        return write("rsqrt.default", x)
    if exponent == -2:
        return power(write, write("abs.default", x), -2.0)
    return power(write, x, exponent) if exponent == 0.5 or never_negative(write, x) else None


_table("expm1", np.expm1, range=(-1.0, math.inf))


@decomposes(*places("expm1"))
def _exp_minus_one(write: Writer) -> Float:
    """expm1(x) -> exp(x) - 1"""
    return write("sub.Tensor", write("exp.default", write.given["self"]), write.constant(1.0))


_LOG1P = Amplifier(math.log1p, math.expm1)
_table("log1p", lambda x: _log(x + 1), form=Form.LOGARITHM_OF_MORE, amplifier=_LOG1P)


@decomposes(*places("log1p"))
def _log_of_one_plus(write: Writer) -> Float:
    """log1p(x) -> log(x + 1)"""
    return write("log.default", write("add.Tensor", write.given["self"], write.constant(1.0)))


def _logits(given: Given, of: IntervalOf) -> Interval:
    end = math.inf if not given["eps"] else math.log(1.0 / float(given["eps"]) - 1.0)
    return -end, end


@unary(*places("logit"), facts=Facts(is_bounded=True, singular=True, range=_logits))
def _logit(node: AtenArguments) -> RealFunction:
    low, high = _inside(node)
    return lambda x: _log(np.clip(x, low, high)) - _log(1.0 - np.clip(x, low, high))


@decomposes(*places("logit"))
def _logit_decomposed(write: Writer) -> Float:
    """logit(x) -> log(x) - log(1 - x), for x clamped as requested"""
    x, bounds = write.given["self"], _inside(write)
    if bounds != (None, None):
        x = write("clamp.default", x, *bounds)
    rest = write("sub.Tensor", write.constant(1.0), x)
    return write("sub.Tensor", write("log.default", x), write("log.default", rest))


def _inside(node: AtenArguments) -> tuple[float | None, float | None]:
    """Bounds to which the operand of a `logit` is clamped."""
    eps = node.value("eps")
    return (None, None) if eps is None else (float(eps), 1.0 - float(eps))


# ---------------------------------------------------------------- sigmoid and what is made of it

_table("silu", lambda x: x * sigmoid(x), range=(-0.28, math.inf))  # its lowest value is -0.2785


@decomposes(*places("silu"))
def _silu(write: Writer) -> Float:
    """silu(x) -> x * sigmoid(x)"""
    return write("mul.Tensor", write.given["self"], write("sigmoid.default", write.given["self"]))


@unary(*places("gelu"), facts=Facts(range=(-0.18, math.inf)))  # its lowest value is -0.1700
def _gelu(node: AtenArguments) -> RealFunction:
    if node.value("approximate") == "tanh":
        slope = math.sqrt(2.0 / math.pi)
        return lambda x: 0.5 * x * (1.0 + np.tanh(slope * (x + 0.044715 * x**3)))
    return lambda x: 0.5 * x * (1.0 + _erf(x / math.sqrt(2.0)))


@decomposes(*places("gelu"))
def _gelu_decomposed(write: Writer) -> Float:
    """gelu(x) -> x * sigmoid(1.702 x), for either form; off by at most 0.0204."""
    x = write.given["self"]
    return write("mul.Tensor", x, write("sigmoid.default", scaled(write, x, GELU_SLOPE)))


_table("hardsigmoid", lambda x: np.clip(x + 3, 0, 6) / 6, range=TRUTHS, tail=lambda y: 3.0 - 6.0 * y)


@decomposes(*places("hardsigmoid"))
def _hard_sigmoid(write: Writer) -> Float:
    """clamp(x / 6 + 1/2, 0, 1) -> relu6(x + 3) / 6: the clamp is fused into the addition."""
    shifted = write("add.Tensor", write.given["self"], write.constant(3.0))
    return scaled(write, write("hardtanh.default", shifted, 0.0, 6.0), 1.0 / 6.0)


@decomposes("glu.default")
def _gated_linear(write: Writer) -> Float:
    """glu(x) -> first half * sigmoid(second half)"""
    x, axis = write.given["self"], write.given["dim"]
    size = write.shape(x)[axis]
    value, gate = (write("slice.Tensor", x, axis, a, b) for a, b in ((0, size // 2), (size // 2, size)))
    return write("mul.Tensor", value, write("sigmoid.default", gate))


# ---------------------------------------------------------------- rectifiers

_EXPONENTIAL = (*places("elu"), *places("celu"), *places("selu"))


@decomposes(*places("log2"), *places("log10"))
def _log_of_base(write: Writer) -> Float:
    """log2(x), log10(x) -> log(x) / log(2), log(x) / log(10)"""
    base = 2.0 if write.overload.startswith("log2") else 10.0
    return write("mul.Tensor", write("log.default", write.given["self"]), write.constant(1.0 / math.log(base)))


@decomposes(*places("exp2"), "pow.Scalar")
def _exp_of_base(write: Writer) -> Float:
    """exp2(x), a ** x -> exp(x * log(2)), exp(x * log(a)), for a positive a"""
    base, power = (
        (write.given["self"], write.given["exponent"]) if "exponent" in write.given else (2, write.given["self"])
    )
    if not isinstance(base, (int, float)) or base <= 0 or base == 1:
        return None
    return write("exp.default", write("mul.Tensor", power, write.constant(math.log(base))))


@decomposes("rrelu.default", "rrelu_.default", facts=Facts(elementwise=True, range=sign_of_operand, degree=1.0))
def _random_rectifier(write: Writer) -> Float:
    """rrelu(x) -> leaky_relu(x), with the mean slope, as in evaluation mode"""
    given = write.given
    if given["training"]:
        return None
    return write("leaky_relu.default", given["self"], (float(given["lower"]) + float(given["upper"])) / 2)


@decomposes("threshold.default", "threshold_.default")
def _threshold_decomposed(write: Writer) -> Float:
    """threshold(x) -> where(x > threshold, x, value)"""
    given = write.given
    chosen = write("gt.Scalar", given["self"], float(given["threshold"]))
    return write("where.self", chosen, given["self"], write.constant(float(given["value"])))


@decomposes("hardshrink.default")
def _hard_shrink(write: Writer) -> Float:
    """hardshrink(x) -> where(abs(x) > lambd, x, 0)"""
    x = write.given["self"]
    chosen = write("gt.Scalar", write("abs.default", x), float(write.given["lambd"]))
    return write("where.self", chosen, x, write.constant(0.0))


@decomposes("softshrink.default")
def _soft_shrink(write: Writer) -> Float:
    """softshrink(x) -> relu(x - lambd) - relu(-x - lambd)"""
    x, edge = write.given["self"], write.constant(float(write.given["lambd"]))
    above = write("relu.default", write("sub.Tensor", x, edge))
    return write("sub.Tensor", above, write("relu.default", write("sub.Tensor", write("neg.default", x), edge)))


def _bend(node: AtenArguments) -> tuple[float, float, float]:
    """Parameters alpha, scale and inner of ``scale * (x if x > 0 else alpha * expm1(x * inner))``."""
    name = node.overload.split(".")[0].rstrip("_")
    if name == "selu":
        return (*SELU, 1.0)
    alpha = float(node.value("alpha"))
    if name == "celu":
        return alpha, 1.0, 1.0 / alpha
    return alpha, float(node.value("scale")), float(node.value("input_scale"))


def _lowest(given: Given, of: IntervalOf) -> Interval:
    alpha, scale = SELU if "alpha" not in given else (float(given["alpha"]), float(given.get("scale", 1.0)))
    return (0.0 if of(given["self"])[0] >= 0 else -abs(alpha * scale), math.inf)


@unary(*_EXPONENTIAL, facts=Facts(range=_lowest))
def _exponential_rectifier(node: AtenArguments) -> RealFunction:
    alpha, scale, inner = _bend(node)
    return lambda x: scale * np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0) * inner))


@decomposes(*_EXPONENTIAL)
def _exponential_rectifier_decomposed(write: Writer) -> Float:
    """elu(x) -> relu(x) + alpha * (exp(min(x, 0)) - 1), scaled if the variant is"""
    alpha, scale, inner = _bend(write)
    x = write.given["self"]
    # exp(-16) is 1.1e-7; a clamp with two bounds has its own qparams, so that exp does not read the range of x.
    below = write("exp.default", scaled(write, write("clamp.default", x, -16.0 / inner, 0.0), inner))
    below = write("sub.Tensor", scaled(write, below, alpha * scale), write.constant(alpha * scale))
    return write("add.Tensor", scaled(write, write("relu.default", x), scale), below)


def _minus_log_sigmoid(write: Writer, x: Float) -> Float:
    """log(sigmoid(|x|)), in [-log 2, 0]: relu(x) - softplus(x)."""
    return write("log.default", write("sigmoid.default", write("abs.default", x)))


def _soft_rectifier(write: Writer, x: Float) -> Float:
    return write("sub.Tensor", write("relu.default", x), _minus_log_sigmoid(write, x))


@unary("softplus.default", facts=Facts(range=POSITIVE))
def _softplus_of(node: AtenArguments) -> RealFunction:
    beta, threshold = float(node.value("beta")), float(node.value("threshold"))
    return lambda x: np.where(x * beta > threshold, x, _softplus(x * beta) / beta)


@decomposes("softplus.default")
def _softplus_decomposed(write: Writer) -> Float:
    """softplus(x) -> relu(x) - log(sigmoid(|x|))"""
    beta = float(write.given["beta"])
    return scaled(write, _soft_rectifier(write, scaled(write, write.given["self"], beta)), 1.0 / beta)


_table("mish", lambda x: x * np.tanh(_softplus(x)), range=(-0.31, math.inf))  # its lowest value is -0.3089


@decomposes(*places("mish"))
def _mish(write: Writer) -> Float:
    """mish(x) -> x * tanh(softplus(x)); tanh saturates above 6, so clamping softplus keeps its scale small"""
    x = write.given["self"]
    soft = write("hardtanh.default", _soft_rectifier(write, x), 0.0, 6.0)
    return write("mul.Tensor", x, write("tanh.default", soft))


@unary("log_sigmoid.default", facts=Facts(range=(-math.inf, 0.0)))
def _log_sigmoid(node: AtenArguments) -> RealFunction:
    return lambda x: -_softplus(-x)


@decomposes("log_sigmoid.default")
def _log_sigmoid_decomposed(write: Writer) -> Float:
    """log_sigmoid(x) -> min(x, 0) + log(sigmoid(|x|))"""
    x = write.given["self"]
    return write("add.Tensor", write("clamp.default", x, None, 0.0), _minus_log_sigmoid(write, x))
