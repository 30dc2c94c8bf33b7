"""Element-wise unary operators, and their tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from micronpu.base.errors import UnsupportedError
from micronpu.ir.op import Op, Permutation, Value
from micronpu.ir.types import DType, TensorType

if TYPE_CHECKING:
    from micronpu.emit.tosa import TosaEmitter, TosaTensor


class Elementwise(Op):
    """Base of element-wise unary operators, through which a transpose passes unchanged."""

    def infer(self, x: TensorType) -> TensorType:
        return x.with_qparams(None)

    def permuted(self, permutation: Permutation, y: TensorType) -> tuple[Op, Permutation] | None:
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
