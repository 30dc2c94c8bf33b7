"""Operators that a Cortex-M core computes in int8: one function per limit, whose docstring is shown to users.

An operator is supported if `micronpu.targets.cortexm.legalize` and `micronpu.targets.cortexm.emit` can express it with
kernels of CMSIS-NN, or with kernels of ExecuTorch that only move or compare integers. Others run in float.
"""

from __future__ import annotations

from collections.abc import Collection

from micronpu.ir.graph import Node
from micronpu.ir.lowering import Capabilities
from micronpu.ir.types import DType, TensorType
from micronpu.ops.softmax import Softmax
from micronpu.report.verdict import Finding, Reason, found
from micronpu.targets.cortexm.legalize import choose_kernels
from micronpu.targets.rules import Rules

CAPABILITIES = Capabilities(tables=True, index_types=(DType.INT32,), positions=True, zero_points=True)
RULES = Rules()

SOFTMAX_ELEMENTS = 512
"""Number of equal elements in a row at which the sum of exponentials reaches 2**28 in Q12."""


@RULES.limit()
def core_activations_are_int8(node: Node, disabled: Collection[str]) -> Finding | None:
    """Activations on the core are int8 with one scale and zero point per tensor."""

    def is_int8(type: TensorType) -> bool:
        return type.dtype is DType.INT8 and type.qparams is not None and type.qparams.is_per_tensor

    operands = zip(node.op.operand_names, node.inputs, strict=False)
    first = next(t for name, t in operands if name != "indices")  # which are int32
    wrong = next((t for t in (first.type, node.output.type) if not is_int8(t)), None)
    return None if wrong is None else found(f"a tensor of type {wrong}", "quantize activations to int8")


@RULES.limit()
def core_has_kernel(node: Node, disabled: Collection[str]) -> Finding | None:
    """The core has an int8 kernel for the operator."""
    if choose_kernels(node, disabled) is not None:
        return None
    return found(f"`{node.op.name}`", "express it by operators that the core has")


@RULES.limit(Softmax)
def core_softmax_sum_fits(node: Node, disabled: Collection[str]) -> Finding | None:
    """Softmax on the core is over fewer than 512 elements; the sum of more overflows CMSIS-NN's fixed point."""
    channels = node.output.type.channels
    return found(f"{channels} elements", "leave softmax to the application") if channels >= SOFTMAX_ELEMENTS else None


def check_node(node: Node, disabled: Collection[str] = ()) -> list[Reason]:
    """Return every limit that an operator violates; empty if the core computes it in int8.

    Args:
        disabled: names of rewrites to skip.
    """
    return RULES.violated(node, node, disabled)
