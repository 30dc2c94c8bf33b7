"""Operators of one int8 operand as lookup tables of 256 results."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from micronpu.ir.graph import Node, Tensor
from micronpu.ir.op import Value
from micronpu.ir.types import DType
from micronpu.ops.activation import Prelu
from micronpu.ops.elementwise import Binary
from micronpu.ops.pointwise import Elementwise

SIZE = 256


def is_table(node: Node) -> bool:
    """True if each element of the result depends on one element of one int8 operand only."""
    return table_operand(node) is not None


def table_operand(node: Node) -> Tensor | None:
    """Return the operand that indexes the table, or None if the operator is not a table.

    This is the operand of a unary function, or of an operator that combines it with a constant of one element or with
    itself.
    """
    if node.output.type.dtype is not DType.INT8:
        return None
    if not isinstance(node.op, (Elementwise, Binary, Prelu)):
        return None
    varying = list(dict.fromkeys(t for t in node.inputs if not (t.is_constant and t.type.size == 1)))
    if len(varying) != 1 or varying[0].is_constant or varying[0].type.dtype is not DType.INT8:
        return None
    # A constant of one element and more axes would add axes to the result.
    return varying[0] if varying[0].shape == node.output.shape else None


def table_of(node: Node) -> npt.NDArray[np.int8]:
    """Results of the operator's reference for the operands -128 to 127."""
    operand = table_operand(node)
    assert operand is not None
    every = np.arange(-128, 128).astype(np.int8)

    def value(tensor: Tensor) -> Value:
        if tensor is operand:
            return Value(every, tensor.type.with_shape((SIZE,)))
        assert tensor.data is not None
        return Value(tensor.data.reshape(1), tensor.type.with_shape((1,)))

    result = node.op.reference(node.output.type.with_shape((SIZE,)), *(value(t) for t in node.inputs))
    return np.ascontiguousarray(result, np.int8)
