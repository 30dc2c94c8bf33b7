"""Unary functions as tables, for chips that look results up: of 256 int8 results, or of 513 int16 ones.

A function is written down once: by the ATen overloads that compute it, with its definition over real numbers.  The
importer evaluates it at the 256 numbers of the operand's grid, so that the NPU computes it in one step, whatever it is.
Of an int16 operand it is evaluated at every 128th, and straight lines stand for it between; functions with steps, for
which that would be wrong, are built of other operators (`micronpu.ops.steps`).
Functions with an operator of their own (sigmoid, exp, ..) are not here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from micronpu.errors import InternalError
from micronpu.ir.arithmetic import wide_lookup, wide_lookup_table
from micronpu.ir.op import AtenImport, Quantization, Value, add_import, fixed_qparams, operator, own_qparams
from micronpu.ir.types import DType, QParams, TensorType
from micronpu.ops.activation import Elementwise, sigmoid
from micronpu.ops.elementwise import Sub, emit_binary
from micronpu.ops.steps import refusal, rounded, staircase

if TYPE_CHECKING:
    from micronpu.emit.litert import LiteRtEmitter
    from micronpu.emit.tosa import TosaEmitter, TosaTensor
    from micronpu.ir.aten import AtenArguments, AtenNode
    from micronpu.ir.graph import Tensor

Reals = npt.NDArray[Any]
RealFunction = Callable[[Reals], Reals]

ENTRIES = {DType.INT8: 256, DType.INT16: 513}


def table_entries(function: RealFunction, x: TensorType, y: QParams) -> tuple[int, ...]:
    """The int8 results of a real function for the inputs -128 to 127.

    All is float32, rounded to nearest, ties to even, as PyTorch dequantizes and quantizes.  Infinite results saturate;
    where the function has no value the result is zero.
    """
    low, high = DType.INT8.limits
    reals = (np.arange(low, high + 1) - x.zero_point).astype(np.float32) * np.float32(x.scale)
    with np.errstate(all="ignore"):
        results = np.asarray(function(reals), np.float32) * np.float32(1.0 / y.scale[0])
    finite = np.nan_to_num(results.astype(np.float64), nan=0.0, posinf=2.0**31, neginf=-(2.0**31))
    return tuple(int(v) for v in np.clip(np.rint(finite) + y.zero_point[0], low, high))


def wide_table_entries(function: RealFunction, x: TensorType, y: QParams) -> tuple[int, ...]:
    """The int16 results of a real function for the inputs -32768, -32640, .. 32640 and 32767.

    Where it jumps, as 1/x does at zero, it does so in several entries: TOSA has no line that is steeper than int16.
    """
    largest = 2.0 * y.scale[0] * 2**15

    def finite(reals: Reals) -> Reals:
        with np.errstate(all="ignore"):
            results = np.asarray(function(reals), np.float64)
        return np.nan_to_num(results, nan=0.0, posinf=largest, neginf=-largest).clip(-largest, largest)

    entries = [int(v) for v in wide_lookup_table(finite, x.scale, 0, y.scale[0], 0)]
    steepest = DType.INT16.limits[1]
    for i in range(1, len(entries)):
        entries[i] = min(max(entries[i], entries[i - 1] - steepest), entries[i - 1] + steepest)
    return tuple(entries)


@operator("table")
class LookupTable(Elementwise):
    """Any function of one element.

    x int8 [any]  ->  y int8 [same], qparams of its own:    y[i] = entries[x[i] + 128].
    x int16 [any]  ->  y int16 [same], qparams of its own:  straight lines between 513 entries, every 128th result.
    """

    entries: tuple[int, ...]

    quantization = own_qparams()

    def infer(self, *operands: TensorType) -> TensorType:
        (x,) = operands
        if len(self.entries) != ENTRIES.get(x.dtype):
            raise InternalError(f"A table of {len(self.entries)} entries does not fit {x.dtype.value}.")
        return x.with_qparams(None)

    @property
    def array(self) -> npt.NDArray[Any]:
        """The entries as int8 [256] or int16 [513]."""
        return np.array(self.entries, np.int8 if len(self.entries) == ENTRIES[DType.INT8] else np.int16)

    def every_result(self, x: DType) -> npt.NDArray[Any]:
        """The results for all elements of a type, from the lowest to the highest."""
        low, high = x.limits
        if x is DType.INT8:
            return self.array
        return wide_lookup(self.array, np.arange(low, high + 1)).astype(np.int16)

    def reference(self, y: TensorType, *operands: Value) -> npt.NDArray[Any]:
        (x,) = operands
        dtype = x.type.dtype
        return np.asarray(self.every_result(dtype)[x.data.astype(np.int64) - dtype.limits[0]])

    def to_tosa(self, emit: TosaEmitter) -> TosaTensor:
        return emit.table(emit.input(0), self.array)

    def to_litert(self, emit: LiteRtEmitter) -> None:
        """LiteRT has no table: the elements are made indices, and the results gathered."""
        x, y = emit.input_type(0), emit.output_type
        integers = TensorType(x.shape, DType.INT32)
        wide, indices = emit.intermediate(integers), emit.intermediate(integers)
        emit.add("CAST", options="CastOptions", outputs=[wide])
        emit.add("ADD", options="AddOptions", inputs=[wide, emit.int32([-x.dtype.limits[0]])], outputs=[indices])
        results = self.every_result(x.dtype)
        entries = emit.constant(results, y.with_shape(results.shape))
        emit.add("GATHER", options="GatherOptions", inputs=[entries, indices], version=2)


def look_up(node: AtenNode, x: Tensor, function: RealFunction, y: QParams) -> Tensor:
    """A function of every element of x."""
    entries = table_entries if x.type.dtype is DType.INT8 else wide_table_entries
    return node.emit(LookupTable(entries(function, x.type, y)), x, qparams=y)


# ---------------------------------------------------------------- the functions

Steps = Callable[["AtenNode", "Tensor", RealFunction], "Tensor"]


def _staircase(node: AtenNode, x: Tensor, function: RealFunction) -> Tensor:
    return staircase(node, x, function, node.output)


def _rounded(node: AtenNode, x: Tensor, function: RealFunction) -> Tensor:
    return rounded(node, x, node.output)


def _looked_up(node: AtenNode, x: Tensor, function: RealFunction) -> Tensor:
    return look_up(node, x, function, node.output)


def _refused(node: AtenNode, x: Tensor, function: RealFunction) -> Tensor:
    raise refusal(node, "has steps")


def unary(
    *overloads: str, quantization: Quantization | None = None, steps: Steps | None = None, **names: str
) -> Callable[[Callable[[AtenArguments], RealFunction]], Callable[[AtenArguments], RealFunction]]:
    """Registers a real function under ATen overloads; what is decorated returns it for the arguments of a call.

    Args:
        quantization: annotation rule; an observer of its own unless given.
        steps: makes the operators for an int16 operand, where the function has steps.
        names: operand name = schema argument name, where the operand is not ``self``.
    """

    def register(definition: Callable[[AtenArguments], RealFunction]) -> Callable[[AtenArguments], RealFunction]:
        def build(node: AtenNode) -> Tensor:
            x = node.tensor("x")
            if steps is not None and x.type.dtype is DType.INT16:
                return steps(node, x, definition(node))
            return look_up(node, x, definition(node), node.output)

        for overload in overloads:
            arguments = tuple(({"x": "self"} | names).items())
            add_import(AtenImport(overload, build, quantization or own_qparams(), arguments, is_table=True))
        return definition

    return register


def _places(name: str) -> tuple[str, str]:
    """The overloads of a function with nothing but its operand."""
    return f"{name}.default", f"{name}_.default"


_erf = np.vectorize(math.erf, otypes=[np.float64])


def _log(x: Reals) -> Reals:
    """Natural logarithm; minus infinity for what is not positive."""
    return np.where(x > 0, np.log(np.where(x > 0, x, 1.0)), -np.inf)


def _softplus(x: Reals) -> Reals:
    return np.asarray(np.logaddexp(0.0, x))


_PLAIN: dict[str, RealFunction] = {
    "silu": lambda x: x * sigmoid(x),
    "mish": lambda x: x * np.tanh(_softplus(x)),
    "hardsigmoid": lambda x: np.clip(x + 3, 0, 6) / 6,
    "sqrt": np.sqrt,
    "reciprocal": np.reciprocal,
    "square": np.square,
    "expm1": np.expm1,
    "exp2": np.exp2,
    "log1p": lambda x: _log(x + 1),
    "log2": lambda x: _log(x) / math.log(2.0),
    "log10": lambda x: _log(x) / math.log(10.0),
    "erf": _erf,
    "erfc": lambda x: 1.0 - _erf(x),
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.rint,
    "trunc": np.trunc,
    "frac": lambda x: x - np.trunc(x),
}


_STEPS: dict[str, Steps] = {
    "floor": _rounded,
    "ceil": _rounded,
    "round": _rounded,
    "trunc": _refused,
    "frac": _refused,
}


def _register_plain(name: str, function: RealFunction) -> None:
    unary(*_places(name), steps=_STEPS.get(name))(lambda node: function)


for _name, _function in _PLAIN.items():
    _register_plain(_name, _function)


@unary(*_places("sign"), *_places("sgn"), quantization=fixed_qparams(1.0, 0), steps=_staircase)
def _sign(node: AtenArguments) -> RealFunction:
    return np.sign


@unary("log_sigmoid.default")
def _log_sigmoid(node: AtenArguments) -> RealFunction:
    return lambda x: -_softplus(-x)


@unary(*_places("gelu"))
def _gelu(node: AtenArguments) -> RealFunction:
    if node.value("approximate") == "tanh":
        slope = math.sqrt(2.0 / math.pi)
        return lambda x: 0.5 * x * (1.0 + np.tanh(slope * (x + 0.044715 * x**3)))
    return lambda x: 0.5 * x * (1.0 + _erf(x / math.sqrt(2.0)))


@unary("softplus.default")
def _softplus_of(node: AtenArguments) -> RealFunction:
    beta, threshold = float(node.value("beta")), float(node.value("threshold"))
    return lambda x: np.where(x * beta > threshold, x, _softplus(x * beta) / beta)


@unary(*_places("elu"), *_places("celu"), *_places("selu"))
def _exponential_rectifier(node: AtenArguments) -> RealFunction:
    name = node.overload.split(".")[0].rstrip("_")
    if name == "selu":
        alpha, scale, inner = 1.6732632423543772, 1.0507009873554805, 1.0
    else:
        alpha = float(node.value("alpha"))
        scale = float(node.value("scale")) if name == "elu" else 1.0
        inner = float(node.value("input_scale")) if name == "elu" else 1.0 / alpha
    return lambda x: scale * np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0) * inner))


@unary("pow.Tensor_Scalar", "pow_.Scalar")
def _power(node: AtenArguments) -> RealFunction:
    exponent = float(node.value("exponent"))
    return lambda x: np.power(x, exponent)


@unary("pow.Scalar", x="exponent")
def _power_of_number(node: AtenArguments) -> RealFunction:
    base = float(node.value("self"))
    return lambda x: np.power(base, x)


@unary("threshold.default", "threshold_.default", steps=_refused)
def _threshold(node: AtenArguments) -> RealFunction:
    threshold, value = float(node.value("threshold")), float(node.value("value"))
    return lambda x: np.where(x > threshold, x, value)


def _shrunk(node: AtenNode, x: Tensor, function: RealFunction) -> Tensor:
    return (_refused if node.overload.startswith("hard") else _looked_up)(node, x, function)


@unary("hardshrink.default", "softshrink.default", steps=_shrunk)
def _shrink(node: AtenArguments) -> RealFunction:
    width = float(node.value("lambd"))
    if node.overload.startswith("hard"):
        return lambda x: np.where(np.abs(x) > width, x, 0.0)
    return lambda x: np.sign(x) * np.maximum(np.abs(x) - width, 0.0)


@unary("remainder.Scalar", "remainder_.Scalar", "fmod.Scalar", "fmod_.Scalar", steps=_refused)
def _remainder(node: AtenArguments) -> RealFunction:
    divisor = np.float32(node.value("other"))
    return (lambda x: np.mod(x, divisor)) if node.overload.startswith("r") else lambda x: np.fmod(x, divisor)


# ---------------------------------------------------------------- comparisons

_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "gt": np.greater,
    "ge": np.greater_equal,
    "lt": np.less,
    "le": np.less_equal,
    "eq": np.equal,
    "ne": np.not_equal,
}

MASK = fixed_qparams(1.0, 0)
"""A truth value as the number 0 or 1; the program makes a float of it (`micronpu.quantize.decisions`)."""

_FINER = 4
"""Steps of a difference per step of the finer operand.  It may saturate, since nobody asks how large it is."""


def _compare_number(node: AtenArguments) -> RealFunction:
    compare, number = _COMPARISONS[node.overload.split(".")[0]], np.float32(node.value("other"))
    return lambda x: compare(x, number)


def _compare_tensors(node: AtenNode) -> Tensor:
    """x > z -> table(x - z), where the difference is kept finer than the grids of both."""
    x, z = node.tensor("x"), node.tensor("z")
    scale = x.type.scale if x.type.qparams == z.type.qparams else min(x.type.scale, z.type.scale) / _FINER
    difference = emit_binary(node, Sub(), x, z, QParams.per_tensor(scale, 0))
    compare = _COMPARISONS[node.overload.split(".")[0]]
    decide = _staircase if x.type.dtype is DType.INT16 else _looked_up
    return decide(node, difference, lambda d: compare(d, 0.0))


_PAIR = Quantization(("x", "z"), MASK.output, MASK.fixed)
unary(*(f"{_name}.Scalar" for _name in _COMPARISONS), quantization=MASK, steps=_staircase)(_compare_number)
for _name in _COMPARISONS:
    _names = (("x", "self"), ("z", "other"))
    add_import(AtenImport(f"{_name}.Tensor", _compare_tensors, _PAIR, _names, is_table=True))
