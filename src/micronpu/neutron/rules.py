"""What a Neutron can do: one function per limit, whose doc-string is the sentence that users read.

Source: the published support table of the eIQ Neutron converter and the limits that its newer versions state; see
`docs/`.  The flavor "latest" is the rule set of SDK 3.1.2 and newer.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from micronpu.ir.graph import Node
from micronpu.ir.types import DType, TensorType
from micronpu.neutron.devices import NeutronTargetSpec
from micronpu.ops.base import Op
from micronpu.ops.concat import Concat
from micronpu.ops.convolution import Conv2d, DepthwiseConv2d
from micronpu.ops.elementwise import Add
from micronpu.ops.pooling import AvgPool2d, MaxPool2d
from micronpu.ops.softmax import Softmax
from micronpu.partition.verdict import Finding, Reason, Rule, found

MAX_STEP = 4096  # kernel, stride and dilation of convolutions and average pools
MAX_FILTER = 65535  # elements of one filter, its channels rounded up to the multipliers of a unit
MAX_SOFTMAX_CHANNELS, MAX_SOFTMAX_ROWS, MAX_SOFTMAX_SIZE = 2040, 4096, 524288
MAX_RANK = 7

RULES: list[Rule] = []


def limits(*operators: type[Op], flavors: tuple[str, ...] = ()) -> Callable[[Callable[..., Finding | None]], Any]:
    """Registers a rule ``check(op, target, *operand types)`` for operators, or for all of them."""

    def register(check: Callable[..., Finding | None]) -> Any:
        sentence = inspect.getdoc(check)
        assert sentence, "a rule's doc-string is what users read"
        RULES.append(Rule(check.__name__, sentence.split("\n")[0], check, tuple(o.name for o in operators), flavors))
        return check

    return register


def check_node(node: Node, target: NeutronTargetSpec) -> list[Reason]:
    """Every limit that an operator of the graph breaks, empty where Neutron can run it."""
    reasons = []
    for rule in RULES:
        if not rule.applies(node.op.name, target.converter_flavor):
            continue
        finding = rule.check(node.op, target, *node.input_types)
        if finding is not None:
            name = node.origin.nodes[0] if node.origin.nodes else node.output.name
            reasons.append(Reason(rule.name, rule.sentence, finding.detail, name, node.origin.source, finding.hint))
    return reasons


@limits()
def activations_are_int8(op: Op, target: NeutronTargetSpec, *operands: TensorType) -> Finding | None:
    """Activations are int8 with one scale and zero point per tensor."""
    x = operands[0]
    if x.dtype is not DType.INT8 or x.qparams is None or not x.qparams.is_per_tensor:
        return found(f"an operand of type {x}", "quantize with `NeutronQuantizer`")
    return None


@limits()
def rank_is_small(op: Op, target: NeutronTargetSpec, *operands: TensorType) -> Finding | None:
    """Tensors have at most 7 axes."""
    rank = max(t.rank for t in (*operands, op.infer(*operands)))
    return found(f"{rank} axes", "join axes with a reshape") if rank > MAX_RANK else None


@limits(Conv2d, DepthwiseConv2d)
def steps_are_small(op: Conv2d, target: NeutronTargetSpec, *operands: TensorType) -> Finding | None:
    """Kernel, stride and dilation of a convolution are each at most 4096."""
    largest = max(*op.kernel(operands[1]), *op.stride, *op.dilation)
    return found(f"{largest}") if largest > MAX_STEP else None


@limits(Conv2d, DepthwiseConv2d)
def filter_fits(op: Conv2d, target: NeutronTargetSpec, *operands: TensorType) -> Finding | None:
    """Kernel height x width x input channels, rounded up to the multipliers of a unit, is at most 65535."""
    height, width = op.kernel(operands[1])
    channels = -(-operands[0].channels // target.macs) * target.macs
    size = height * width * channels
    if size > MAX_FILTER:
        return found(f"{height} x {width} x {channels} = {size}", "use a smaller kernel or fewer input channels")
    return None


@limits(Conv2d)
def groups_are_one_or_depthwise(op: Conv2d, target: NeutronTargetSpec, *operands: TensorType) -> Finding | None:
    """A convolution has one group, or one group per channel."""
    groups = operands[0].channels // operands[1].shape[3]
    return found(f"{groups} groups", "split the convolution by hand") if groups > 1 else None


@limits(AvgPool2d)
def average_window_is_small(op: AvgPool2d, target: NeutronTargetSpec, x: TensorType) -> Finding | None:
    """Kernel and stride of an average pool are each at most 4096."""
    largest = max(*op.kernel, *op.stride)
    return found(f"{largest}") if largest > MAX_STEP else None


@limits(MaxPool2d)
def max_pool_stride_is_small(op: MaxPool2d, target: NeutronTargetSpec, x: TensorType) -> Finding | None:
    """The stride of a max pool is at most 4096."""
    return found(f"stride {max(op.stride)}") if max(op.stride) > MAX_STEP else None


@limits(Softmax)
def softmax_is_small(op: Softmax, target: NeutronTargetSpec, x: TensorType) -> Finding | None:
    """Softmax has at most 2040 channels, at most 4096 rows, and at most 524288 elements in all."""
    rows = x.size // x.channels
    if x.channels > MAX_SOFTMAX_CHANNELS or rows > MAX_SOFTMAX_ROWS or x.size > MAX_SOFTMAX_SIZE:
        return found(f"{x.channels} channels x {rows} rows = {x.size} elements", "leave softmax to the application")
    return None


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


def published_rules(flavor: str) -> list[Rule]:
    """The rules of a flavor, in the order in which they are checked."""
    return [rule for rule in RULES if not rule.flavors or flavor in rule.flavors]


__all__ = ["RULES", "check_node", "published_rules"]
