"""Limits of every operator."""

from __future__ import annotations

from micronpu.ir.lowering import Capabilities
from micronpu.ir.op import Op
from micronpu.ir.types import DType, TensorType
from micronpu.ops.activation import Sigmoid, Tanh
from micronpu.ops.clamps import Clamp, Relu
from micronpu.ops.movement import Pad, Reshape, Transpose
from micronpu.ops.padding import ReflectPad
from micronpu.ops.quantization import Requantize
from micronpu.ops.reduction import Mean
from micronpu.ops.slicing import Slice
from micronpu.report.verdict import Finding, found
from micronpu.targets.neutron.rules.registry import limits, supports
from micronpu.targets.neutron.target_spec import PUBLISHED_FLAVORS, NeutronTargetSpec

MAX_RANK = 7


def capabilities_of(target: NeutronTargetSpec) -> Capabilities:
    """Features of a chip; converters of the published flavors resize both axes equally.

    Every function is an operator, or decomposed into operators. Table lookups of matrix rows run on the core.
    """
    by_axis = target.converter_flavor not in PUBLISHED_FLAVORS
    return Capabilities(index_types=(DType.INT32,), positions=True, resizes_by_axis=by_axis)


supports(Clamp, Mean, Pad, ReflectPad, Relu, Requantize, Reshape, Sigmoid, Slice, Tanh, Transpose)


@limits()
def activations_are_int8(op: Op, target: NeutronTargetSpec, *operands: TensorType) -> Finding | None:
    """Activations are int8 with one scale and zero point per tensor."""
    x = operands[0]
    if x.dtype is not DType.INT8 or x.qparams is None or not x.qparams.is_per_tensor:
        return found(f"an operand of type {x}", "quantize with `NeutronQuantizer`")
    y = op.infer(*operands)
    if y.dtype is not DType.INT8:
        return found(f"a result of type {y.dtype.value}", "quantize with `NeutronQuantizer`")
    return None


@limits()
def rank_is_small(op: Op, target: NeutronTargetSpec, *operands: TensorType) -> Finding | None:
    """Tensors have at most 7 axes."""
    rank = max(t.rank for t in (*operands, op.infer(*operands)))
    return found(f"{rank} axes", "join axes with a reshape") if rank > MAX_RANK else None
