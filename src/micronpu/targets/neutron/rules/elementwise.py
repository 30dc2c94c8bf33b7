"""Limits of arithmetic on one or several tensors."""

from __future__ import annotations

from micronpu.ir.types import TensorType
from micronpu.ops.activation import HardSwish, LeakyRelu, Prelu
from micronpu.ops.concat import Concat
from micronpu.ops.elementwise import Add, Binary, Maximum, Minimum, Mul, Sub
from micronpu.ops.linear import FullyConnected
from micronpu.ops.matmul import BatchMatmul
from micronpu.ops.reduction import Amax, Amin
from micronpu.ops.unary import Abs, Exp, Log, Neg, Rsqrt
from micronpu.report.verdict import Finding, found
from micronpu.targets.neutron.rules.registry import limits, supports
from micronpu.targets.neutron.target_spec import NeutronTargetSpec

supports(Add, Concat, FullyConnected, Maximum, Minimum, Mul, Sub)
supports(Abs, Exp, HardSwish, LeakyRelu, Log, Neg, Prelu, Rsqrt)
supports(Amax, Amin, BatchMatmul)


@limits(Add, Sub, Mul, Minimum, Maximum)
def broadcast_goes_one_way(op: Binary, target: NeutronTargetSpec, x: TensorType, z: TensorType) -> Finding | None:
    """One operand has as many elements as the result."""
    size = op.infer(x, z).size
    if max(x.size, z.size) != size:
        hint = "expand one operand to the shape of the result first"
        return found(f"{list(x.shape)} and {list(z.shape)} with {size} elements in the result", hint)
    return None


@limits(BatchMatmul)
def matrices_are_symmetric(op: BatchMatmul, target: NeutronTargetSpec, x: TensorType, z: TensorType) -> Finding | None:
    """Both operands of a product of matrices have zero point 0."""
    if x.zero_point or z.zero_point:
        return found(f"zero points {x.zero_point} and {z.zero_point}", "quantize with `NeutronQuantizer`")
    return None


@limits(Concat)
def parts_share_quantization(op: Concat, target: NeutronTargetSpec, *operands: TensorType) -> Finding | None:
    """All inputs of a concatenation have the same scale and zero point."""
    different = {t.qparams for t in operands}
    if len(different) > 1:
        return found(f"{len(different)} different ones", "quantize with `NeutronQuantizer`, which shares them")
    return None
