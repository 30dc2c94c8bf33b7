"""Limits of arithmetic on several tensors."""

from __future__ import annotations

from micronpu.ir.types import TensorType
from micronpu.neutron.devices import NeutronTargetSpec
from micronpu.neutron.rules.registry import limits, supports
from micronpu.ops.concat import Concat
from micronpu.ops.elementwise import Add
from micronpu.ops.linear import FullyConnected
from micronpu.partition.verdict import Finding, found

supports(Add, Concat, FullyConnected)


@limits(Add)
def broadcast_goes_one_way(op: Add, target: NeutronTargetSpec, x: TensorType, z: TensorType) -> Finding | None:
    """One addend has as many elements as the sum."""
    size = op.infer(x, z).size
    if max(x.size, z.size) != size:
        hint = "expand one operand to the shape of the result first"
        return found(f"{list(x.shape)} + {list(z.shape)} with {size} elements", hint)
    return None


@limits(Concat)
def parts_share_quantization(op: Concat, target: NeutronTargetSpec, *operands: TensorType) -> Finding | None:
    """All inputs of a concatenation have the same scale and zero point."""
    different = {t.qparams for t in operands}
    if len(different) > 1:
        return found(f"{len(different)} different ones", "quantize with `NeutronQuantizer`, which shares them")
    return None
