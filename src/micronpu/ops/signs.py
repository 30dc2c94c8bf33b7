"""What can be said of the sign of a value of the float program without running it."""

from __future__ import annotations

from typing import Any

from micronpu.ir.way import Writer

_FARTHEST = 16  # operators that are looked through

_NEVER_NEGATIVE = {
    *("relu", "relu6", "sigmoid", "hardsigmoid", "exp", "abs", "softmax", "_softmax", "sqrt", "rsqrt", "square"),
    *("softplus", "linalg_vector_norm", "var", "std"),
}
# Operators that keep the sign of their first operand, and of the others where there are any.
_KEEP_SIGN = {
    *("view", "reshape", "flatten", "permute", "transpose", "unsqueeze", "squeeze", "expand", "expand_as", "clone"),
    *("contiguous", "detach", "alias", "dropout", "slice", "select", "mean", "sum", "amax", "amin", "avg_pool2d"),
    *("adaptive_avg_pool2d", "max_pool2d", "upsample_nearest2d", "repeat", "t", "avg_pool1d", "avg_pool3d"),
}
_KEEP_SIGN_OF_BOTH = {"add", "mul", "div", "minimum", "maximum"}


def never_negative(write: Writer, operand: Any, depth: int = _FARTHEST) -> bool:
    """Whether every element is zero or positive, whatever the inputs; False where that cannot be seen."""
    if isinstance(operand, (int, float)):
        return operand >= 0
    constant = write.stored(operand)
    if constant is not None:
        return bool((constant >= 0).all())
    call = write.call(operand) if depth else None
    if call is None:
        return False
    packet = call.overload.split(".")[0]
    name = packet.rstrip("_") or packet
    if name in _NEVER_NEGATIVE or f"_{name}" in _NEVER_NEGATIVE:
        return True
    given = call.given
    low = given.get("min", given.get("min_val"))
    if name in ("clamp", "clamp_min", "hardtanh"):
        return isinstance(low, (int, float)) and low >= 0
    x, z = given.get("self"), given.get("other")
    if name == "pow":
        exponent = given.get("exponent")
        return isinstance(exponent, (int, float)) and exponent % 2 == 0
    if name == "mul" and x is z:
        return True
    if name in ("pad", "constant_pad_nd"):
        constant_mode = given.get("mode", "constant") == "constant"
        return (not constant_mode or (given.get("value") or 0) >= 0) and never_negative(write, x, depth - 1)
    if name in _KEEP_SIGN:
        return never_negative(write, x if x is not None else given.get("input"), depth - 1)
    if name in _KEEP_SIGN_OF_BOTH:
        return never_negative(write, x, depth - 1) and never_negative(write, z, depth - 1)
    return False
