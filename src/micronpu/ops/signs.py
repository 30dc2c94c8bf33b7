"""Static bounds of the values of the float program."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from micronpu.ir.lowering import Writer

_FARTHEST = 16  # maximum depth of the analysis

Interval = tuple[float, float]
_ANY: Interval = (-math.inf, math.inf)
_POSITIVE: Interval = (0.0, math.inf)

_RESULTS: Mapping[str, Interval] = {
    **dict.fromkeys(("relu", "exp", "abs", "sqrt", "rsqrt", "square", "softplus", "linalg_vector_norm"), _POSITIVE),
    **dict.fromkeys(("var", "std"), _POSITIVE),
    **dict.fromkeys(("sigmoid", "hardsigmoid", "softmax", "_softmax"), (0.0, 1.0)),
    **dict.fromkeys(("tanh", "sin", "cos", "sign", "softsign", "erf", "cosine_similarity"), (-1.0, 1.0)),
    **dict.fromkeys(("log_softmax", "_log_softmax", "log_sigmoid"), (-math.inf, 0.0)),
    "relu6": (0.0, 6.0),
    "hardswish": (-0.375, math.inf),
    # The lowest values of these are -0.2785, -0.1700 and -0.3089.
    "silu": (-0.28, math.inf),
    "gelu": (-0.18, math.inf),
    "mish": (-0.31, math.inf),
}
"""Bounds of the results of an operator for any operands."""

_KEEP = {
    *("view", "reshape", "flatten", "permute", "transpose", "unsqueeze", "squeeze", "expand", "expand_as", "clone"),
    *("contiguous", "detach", "alias", "dropout", "slice", "select", "mean", "amax", "amin", "max_pool2d"),
    *("adaptive_avg_pool1d", "adaptive_avg_pool2d", "upsample_nearest2d", "upsample_bilinear2d", "repeat", "t", "flip"),
    *("roll", "gather", "index_select", "repeat_interleave", "max_pool1d"),
}
"""Operators whose results are among their operands, or means of them."""

_WITH_ZEROS = {"avg_pool1d", "avg_pool2d", "avg_pool3d"}
"""Means of elements and of zeros from padding."""

_PRODUCTS = {"matmul", "bmm", "mm", "linear", "conv1d", "conv2d"}


def never_negative(write: Writer, operand: Any) -> bool:
    """True if every element is non-negative for any inputs; False if unknown."""
    return _Bounds(write).of(operand)[0] >= 0


class _Bounds:
    """Bounds of the values of a program, cached."""

    def __init__(self, write: Writer) -> None:
        self._write = write
        self._known: dict[Any, Interval] = {}

    def of(self, operand: Any, depth: int = _FARTHEST) -> Interval:
        """Lower and upper bound of an operand."""
        if isinstance(operand, (int, float)):
            return (float(operand), float(operand))
        constant = self._write.stored(operand)
        if constant is not None:
            return (float(constant.min()), float(constant.max())) if constant.size else _ANY
        if not depth:
            return _ANY
        if operand not in self._known:
            self._known[operand] = _ANY  # unknown for loops
            self._known[operand] = self._result(operand, lambda x: self.of(x, depth - 1))
        return self._known[operand]

    def _result(self, operand: Any, of: Callable[[Any], Interval]) -> Interval:
        call = self._write.call(operand)
        if call is None:
            return _ANY
        packet, given = call.overload.split(".")[0], call.given
        name = packet.rstrip("_") or packet
        x = given["self"] if given.get("self") is not None else given.get("input")
        if name in _RESULTS:
            return _RESULTS[name]
        if name in _KEEP:
            return of(x)
        if name in _WITH_ZEROS:
            return _joined(of(x), (0.0, 0.0))
        if name in ("sum", "cumsum"):
            return _only_signs(of(x))
        if name in ("cat", "stack"):
            return _joined(*map(of, given["tensors"]))
        if name in _PRODUCTS:
            return _sum_of_products(given, of)
        if name in _OF_TWO:
            return _OF_TWO[name](of(x), of(given.get("other")), given)
        return _OF_ONE[name](of(x), given) if name in _OF_ONE else _ANY


def _joined(*all_of: Interval) -> Interval:
    return min(low for low, _ in all_of), max(high for _, high in all_of)


def _only_signs(x: Interval) -> Interval:
    return (0.0 if x[0] >= 0 else -math.inf, 0.0 if x[1] <= 0 else math.inf)


def _sum_of_products(given: Mapping[str, Any], of: Callable[[Any], Interval]) -> Interval:
    operands = [value for name, value in given.items() if name in ("self", "input", "mat2", "other", "weight", "bias")]
    return _POSITIVE if all(of(value)[0] >= 0 for value in operands if value is not None) else _ANY


def _added(x: Interval, z: Interval, factor: Any) -> Interval:
    ends = sorted(_times(end, float(factor)) for end in z)
    low, high = x[0] + ends[0], x[1] + ends[1]
    return (-math.inf if math.isnan(low) else low, math.inf if math.isnan(high) else high)


def _times(a: float, b: float) -> float:
    return 0.0 if a == 0 or b == 0 else a * b


def _multiplied(x: Interval, z: Interval) -> Interval:
    ends = [_times(a, b) for a in x for b in z]
    return min(ends), max(ends)


def _divided(x: Interval, z: Interval) -> Interval:
    """Bounds of quotients: only the sign, if the divisor has a fixed sign."""
    if z[0] < 0:
        return _ANY
    return _only_signs(x)


def _clamped(x: Interval, given: Mapping[str, Any]) -> Interval:
    low, high = (given.get(end, given.get(f"{end}_val")) for end in ("min", "max"))
    low = low if isinstance(low, (int, float)) else None
    high = high if isinstance(high, (int, float)) else None
    first, last = x
    if low is not None:
        first, last = max(first, low), max(last, low)
    if high is not None:
        first, last = min(first, high), min(last, high)
    return float(first), float(last)


def _powered(x: Interval, given: Mapping[str, Any]) -> Interval:
    exponent = given.get("exponent")
    if not isinstance(exponent, (int, float)):
        return _ANY
    if exponent == 2:
        return _squared(x)
    return _POSITIVE if exponent % 2 == 0 or x[0] >= 0 else _ANY


def _squared(x: Interval) -> Interval:
    return 0.0, max(_times(x[0], x[0]), _times(x[1], x[1]))


def _padded(x: Interval, given: Mapping[str, Any]) -> Interval:
    value = float(given.get("value") or 0)
    return _joined(x, (value, value)) if given.get("mode", "constant") == "constant" else x


def _elu(x: Interval, given: Mapping[str, Any]) -> Interval:
    alpha, scale = (float(given.get(name, 1)) for name in ("alpha", "scale"))
    return (0.0 if x[0] >= 0 else -abs(alpha * scale), math.inf)


_OF_ONE: Mapping[str, Callable[[Interval, Mapping[str, Any]], Interval]] = {
    **dict.fromkeys(("clamp", "clamp_min", "clamp_max", "hardtanh"), _clamped),
    **dict.fromkeys(("pad", "constant_pad_nd"), _padded),
    **dict.fromkeys(("elu", "celu"), _elu),
    "pow": _powered,
    "neg": lambda x, _: (-x[1], -x[0]),
    "reciprocal": lambda x, _: _divided((1.0, 1.0), x),
    "selu": lambda x, _: (0.0 if x[0] >= 0 else -1.7582, math.inf),
}

_OF_TWO: Mapping[str, Callable[[Interval, Interval, Mapping[str, Any]], Interval]] = {
    "add": lambda x, z, given: _added(x, z, given.get("alpha", 1)),
    "sub": lambda x, z, given: _added(x, z, -given.get("alpha", 1)),
    "rsub": lambda x, z, given: _added(z, x, -given.get("alpha", 1)),
    "mul": lambda x, z, given: _squared(x) if given["self"] is given["other"] else _multiplied(x, z),
    "div": lambda x, z, _: _divided(x, z),
    "minimum": lambda x, z, _: (min(x[0], z[0]), min(x[1], z[1])),
    "maximum": lambda x, z, _: (max(x[0], z[0]), max(x[1], z[1])),
    "where": lambda x, z, _: _joined(x, z),
}
