"""Limits of windows and of softmax."""

from __future__ import annotations

from micronpu.ir.types import TensorType
from micronpu.neutron.devices import NeutronTargetSpec
from micronpu.neutron.rules.registry import limits, supports
from micronpu.ops.convolution import Conv2d, DepthwiseConv2d
from micronpu.ops.pooling import AvgPool2d, MaxPool2d
from micronpu.ops.softmax import Softmax
from micronpu.partition.verdict import Finding, found

MAX_STEP = 4096  # kernel, stride and dilation of convolutions and average pools
MAX_FILTER = 65535  # elements of one filter, its channels rounded up to the multipliers of a unit
MAX_SOFTMAX_CHANNELS, MAX_SOFTMAX_ROWS, MAX_SOFTMAX_SIZE = 2040, 4096, 524288

supports(AvgPool2d, Conv2d, DepthwiseConv2d, MaxPool2d, Softmax)


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
