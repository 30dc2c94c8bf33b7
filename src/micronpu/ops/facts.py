"""Facts about ATen operators that decide the qparams of the values around them, the same on every device.

An operator is given by its overload and by its arguments under the names of the schema, as `Call` has them.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from micronpu.ops.comparisons import COMPARISONS
from micronpu.ops.movement import COPIES, RESHAPES, TRANSPOSES
from micronpu.ops.normalization import BATCH_NORMS
from micronpu.ops.truths import CASTS

Given = Mapping[str, Any]

COPY, WRITE = "copy.default", "copy_.default"
"""Overloads that return the second operand in the shape and type of the first, or write it into the first."""
EMBEDDING = "embedding.default"
MOVES = ("expand.default", "repeat.default", *RESHAPES, *TRANSPOSES, *COPIES)
"""Overloads that move or repeat elements."""
ROW_SUMS = ("mean.dim", "sum.dim_IntList")
"""Overloads that add up elements along axes, up to a factor."""
NUMBERED = tuple(f"{name}.Tensor" for plain in ("add", "sub", "mul") for name in (plain, f"{plain}_"))
"""Overloads whose operand ``other`` may be a number, for which a constant tensor can stand."""


class Form(enum.Enum):
    """Function of the operands of an operator, for rewrites of several operators."""

    SUM = "a + b"
    DIFFERENCE = "a - b"
    PRODUCT = "a * b"
    QUOTIENT = "a / b"
    NEGATIVE = "-a"
    EXPONENTIAL = "exp(a)"
    LOGARITHM = "log(a)"
    LOGARITHM_OF_MORE = "log(1 + a)"
    RECIPROCAL = "1 / a"
    ROOT = "sqrt(a)"
    SIGMOID = "1 / (1 + exp(-a))"
    ROW_SUM = "sum of a along axes"
    ROW_MEAN = "mean of a along axes"
    ROW_MAXIMUM = "largest of a along axes"
    MAXIMUM_AND_POSITION = "largest of a along an axis, and where it is"


_FORMS = {
    **{"add.Tensor": Form.SUM, "sub.Tensor": Form.DIFFERENCE, "mul.Tensor": Form.PRODUCT, "div.Tensor": Form.QUOTIENT},
    **{"neg.default": Form.NEGATIVE, "exp.default": Form.EXPONENTIAL, "log.default": Form.LOGARITHM},
    **{"log1p.default": Form.LOGARITHM_OF_MORE, "reciprocal.default": Form.RECIPROCAL, "sqrt.default": Form.ROOT},
    **{"sigmoid.default": Form.SIGMOID, "sum.dim_IntList": Form.ROW_SUM, "mean.dim": Form.ROW_MEAN},
    **{"amax.default": Form.ROW_MAXIMUM, "max.dim": Form.MAXIMUM_AND_POSITION},
}
_POWERS = {"square": 2.0, "sqrt": 0.5, "rsqrt": -0.5, "reciprocal": -1.0}
_LOGARITHMS = ("log", "log2", "log10")
_BOUNDED = ("acos", "asin", "atanh", "logit")
_LINEAR = {"mul", "div", "add", "sub", "rsub"}
_AFFINE = {"div": ("self",), **dict.fromkeys(("add", "sub", "mul"), ("self", "other"))}
_DEGREES = dict.fromkeys(("mean", "sum", "linalg_vector_norm", "std", "expand", "expand_as", "neg", "abs"), 1.0)
_ORDERED = {f"{name}.Scalar" for name in COMPARISONS if name not in ("eq", "ne")}
_WHOLE = ("round", "floor", "ceil", "trunc")
_HANDING_ON = {"expand.default", *RESHAPES, *COPIES, *CASTS}
_TAILS = {"sigmoid": lambda y: math.log(1 / y - 1), "tanh": lambda y: math.atanh(1 - y)}
"""Magnitude of the operand for which a function is y from its limits."""
_NOT_NEGATIVE = ("add", "mul", "cat", "maximum")
_FUNCTIONS = {
    *("celu", "clamp", "clamp_max", "clamp_min", "elu", "erf", "exp", "exp2", "expm1", "gelu", "hardsigmoid", "mish"),
    *("hardswish", "hardtanh", "leaky_relu", "log_sigmoid", "neg", "reciprocal", "relu", "relu6", "selu", "sigmoid"),
    *("silu", "softplus", "tanh"),
}


def _name(overload: str) -> str:
    return overload.split(".")[0].rstrip("_")


def form_of(overload: str) -> Form | None:
    """Return the function that an operator computes, with an ``alpha`` of 1 if it has one."""
    return _FORMS.get(overload)


def power_of(overload: str, given: Given) -> float | None:
    """Return the exponent c of a result that is ``self ** c``."""
    name = _name(overload)
    if overload == "pow.Tensor_Scalar":
        return float(given["exponent"])
    return 2.0 if name == "mul" and given["self"] is given["other"] else _POWERS.get(name)


def is_logarithm(overload: str) -> bool:
    """Return whether the result is a logarithm, which has a singularity at 0."""
    return _name(overload) in _LOGARITHMS


def is_singular(overload: str, given: Given) -> bool:
    """Return whether the result, or its gradient, has a singularity at 0."""
    power = power_of(overload, given)
    return is_logarithm(overload) or (power is not None and power < 1)


def is_bounded(overload: str) -> bool:
    """Return whether a function is defined on an interval only, at whose ends it is steep."""
    return _name(overload) in _BOUNDED


def degree_of(overload: str, given: Given) -> float | None:
    """Return the degree d of an operator of one value for which f(g * x) is ``g ** d * f(x)`` for g > 0."""
    name = _name(overload)
    power = power_of(overload, given)
    return power if power is not None else 2.0 if name == "var" else _DEGREES.get(name)


def line_of(overload: str, given: Given, number: Callable[[Any], float | None]) -> tuple[Any, float, float] | None:
    """Return (x, factor, addend) of a result that is ``factor * x + addend``.

    Args:
        number: the number that an operand is everywhere; None where it is none.
    """
    name = _name(overload)
    if name == "neg":
        return given["self"], -1.0, 0.0
    if name not in _LINEAR or "other" not in given or given.get("alpha", 1) != 1:
        return None
    x, other = given["self"], given["other"]
    numbers = number(x), number(other)
    if (numbers[0] is None) == (numbers[1] is None):
        return None
    is_first = numbers[0] is None
    x, c = (x, numbers[1]) if is_first else (other, numbers[0])
    assert c is not None
    if name == "mul":
        return (x, c, 0.0) if c else None
    if name == "div":
        return (x, 1.0 / c, 0.0) if c and is_first and "rounding_mode" not in given else None
    if name == "add":
        return x, 1.0, c
    is_minuend = is_first != (name == "rsub")
    return (x, 1.0, -c) if is_minuend else (x, -1.0, c)


def affine_in(overload: str) -> tuple[str, ...]:
    """Return the arguments in each of which the result is affine where all others are constants."""
    if overload in BATCH_NORMS:
        return ("input",)
    return _AFFINE.get(_name(overload), ()) if overload.endswith(".Tensor") else ()


def jumps_of(overload: str, given: Given) -> frozenset[tuple[float, float]]:
    """Return where a result jumps: (first, distance) of operands in a row without end; distance 0 for a single one."""
    name = _name(overload)
    if name == "round" and "decimals" not in given:
        return frozenset({(0.5, 1.0)})
    if name == "hardshrink":
        width = float(given["lambd"])
        return frozenset({(width, 0.0), (-width, 0.0)})
    at = given["other"] if overload in _ORDERED else given["threshold"] if name == "threshold" else None
    is_known = isinstance(at, (int, float)) and math.isfinite(at)
    return frozenset({(float(np.float32(at)), 0.0)}) if is_known else frozenset()


def is_sum(overload: str, given: Given) -> bool:
    """Return whether the result is ``self + other``."""
    return _name(overload) == "add" and "other" in given and bool(given.get("alpha", 1) == 1)


def addends_of(overload: str, given: Given) -> tuple[Any, ...]:
    """Return the operands that are added to others, up to a factor, in a result of their shape."""
    if overload == "add.Tensor":
        return given["self"], given["other"]
    return (given["self"],) if overload == "baddbmm.default" else ()


def magnitude_of(overload: str, given: Given) -> tuple[Any, Any] | None:
    """Return (a, b) of a result that is ``sqrt(a * a + b * b)``."""
    return (given["self"], given["other"]) if _name(overload) == "hypot" else None


def least_of(overload: str, given: Given) -> float | None:
    """Return the lower end of a clamp that has no upper end."""
    if overload not in ("clamp.default", "clamp_min.default"):
        return None
    least = given.get("min", 0.0)
    return float(least) if isinstance(least, (int, float)) and given.get("max") is None else None


def saturates_from(overload: str, margin: float) -> float | None:
    """Return the magnitude of operands from which a function is within ``margin`` of its limits at both ends.

    Args:
        margin: half an LSB of the result, so that all larger operands give the same integers.
    """
    tail = _TAILS.get(_name(overload))
    return None if tail is None else round(tail(margin), 6)  # so that all machines agree


def replaced_in(overload: str, given: Given) -> tuple[list[tuple[int, Any]], Any] | None:
    """Return the (axis, index) pairs at which rows of ``self`` are replaced, and the new rows; None if they are not."""
    if overload == "index_copy.default":
        return [(int(given["dim"]), given["index"])], given["source"]
    if overload != "index_put.default" or given["accumulate"]:
        return None
    return [(axis, index) for axis, index in enumerate(given["indices"]) if index is not None], given["values"]


def counts_from(overload: str, given: Given) -> Any:
    """Return the first number of a result that counts up; None of any other operator."""
    return given.get("start", 0) if _name(overload) == "arange" else None


def is_whole(overload: str) -> bool:
    """Return whether all results are whole numbers."""
    return _name(overload) in _WHOLE and overload.endswith(".default")


def is_function(overload: str) -> bool:
    """Return whether each result is a function of one element, and of numbers."""
    return _name(overload) in _FUNCTIONS and overload.endswith(".default")


def hands_on(overload: str) -> bool:
    """Return whether a result has the numbers of the first operand in their order, in another shape or type."""
    return overload in _HANDING_ON


def keeps_not_negative(overload: str, given: Given) -> bool:
    """Return whether no result is negative where no operand is."""
    return _name(overload) in _NOT_NEGATIVE and bool(given.get("alpha", 1) >= 0)


def indices_of(overload: str, given: Given) -> list[tuple[Any, Any, int]]:
    """Return (table, index, axis) of each index by which an operator reads or replaces rows."""
    name = _name(overload)
    if name in ("index", "index_put"):
        return [(given["self"], index, axis) for axis, index in enumerate(given["indices"])]
    if name in ("index_select", "index_copy", "scatter", "gather"):
        return [(given["self"], given["index"], int(given["dim"]))]
    return [(given["weight"], given["indices"], 0)] if name == "embedding" else []
