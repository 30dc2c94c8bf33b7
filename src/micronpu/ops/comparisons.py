"""Comparisons, which chips with tables compute, and choices by their result."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from micronpu.ir.op import AtenImport, Quantization, fixed_qparams
from micronpu.ir.types import DType, QParams
from micronpu.ir.way import add_way, composed_by
from micronpu.ops.elementwise import Sub, emit_binary
from micronpu.ops.table import RealFunction, in_lines, in_steps, unary

if TYPE_CHECKING:
    from micronpu.ir.aten import AtenArguments, AtenNode
    from micronpu.ir.graph import Tensor

COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "gt": np.greater,
    "ge": np.greater_equal,
    "lt": np.less,
    "le": np.less_equal,
    "eq": np.equal,
    "ne": np.not_equal,
}

OPPOSITES = {"gt": "le", "ge": "lt", "lt": "ge", "le": "gt", "eq": "ne", "ne": "eq"}

CHOICES = ("where.self", "where.ScalarSelf", "where.ScalarOther", "where.Scalar")
FILLS = ("masked_fill.Scalar", "masked_fill.Tensor", "masked_fill_.Scalar", "masked_fill_.Tensor")

LOGIC = {
    **dict.fromkeys(("__and__.Tensor", "bitwise_and.Tensor", "logical_and.default"), "and"),
    **dict.fromkeys(("__or__.Tensor", "bitwise_or.Tensor", "logical_or.default"), "or"),
    **dict.fromkeys(("__xor__.Tensor", "bitwise_xor.Tensor", "logical_xor.default"), "xor"),
    **dict.fromkeys(("bitwise_not.default", "logical_not.default"), "not"),
    **{f"{name}.{form}": name for name in ("any", "all") for form in ("default", "dim", "dims")},
}
"""Operators of truth values, and what they say of them."""

composed_by(
    "decisions_to_numbers",
    "a and b -> a * b, a or b -> maximum(a, b), not a -> 1 - a, any(a) -> amax(a), all(a) -> amin(a), of 0 and 1",
    *LOGIC,
    into=("mul.Tensor", "maximum.default", "amax.default"),
)
composed_by(
    "decisions_to_numbers",
    "where(x > z, a, b) -> (x > z) * a + (x <= z) * b, for a comparison of floats and finite a and b",
    *CHOICES,
    *(name for name in FILLS if name.endswith("Tensor")),
    into=("gt.Tensor", "mul.Tensor", "add.Tensor"),
)

STEEPNESS = 4096.0
"""Where no table tells which of two numbers is larger, the difference is made this steep and cut at 0 and 1."""

MASK = fixed_qparams(1.0, 0)
"""A truth value as the number 0 or 1; the program makes a float of it (`micronpu.quantize.decisions`)."""

_FINER = 4
"""Steps of a difference per step of the finer operand.  It may saturate, since nobody asks how large it is."""


def _compare_number(node: AtenArguments) -> RealFunction:
    compare, number = COMPARISONS[node.overload.split(".")[0]], np.float32(node.value("other"))
    return lambda x: compare(x, number)


def _compare_tensors(node: AtenNode) -> Tensor:
    """x > z -> table(x - z), where the difference is kept finer than the grids of both."""
    x, z = node.tensor("x"), node.tensor("z")
    scale = x.type.scale if x.type.qparams == z.type.qparams else min(x.type.scale, z.type.scale) / _FINER
    difference = emit_binary(node, Sub(), x, z, QParams.per_tensor(scale, 0))
    compare = COMPARISONS[node.overload.split(".")[0]]
    decide = in_steps if x.type.dtype is DType.INT16 else in_lines
    return decide(node, difference, lambda d: compare(d, 0.0))


_PAIR = Quantization(("x", "z"), MASK.output, MASK.fixed)
unary(*(f"{_name}.Scalar" for _name in COMPARISONS), quantization=MASK, steps=in_steps)(_compare_number)
for _name in COMPARISONS:
    _names = (("x", "self"), ("z", "other"))
    add_way(AtenImport(f"{_name}.Tensor", _compare_tensors, _PAIR, _names, is_table=True))
