"""Limits of windows and of softmax."""

from __future__ import annotations

from micronpu.ir.types import TensorType
from micronpu.ir.window import litert_padding
from micronpu.ops.convolution import Conv2d, DepthwiseConv2d
from micronpu.ops.parts import MAX_PARTS, clipped_windows, runs
from micronpu.ops.pooling import AvgPool2d, MaxPool2d
from micronpu.ops.resize import ResizeBilinear, ResizeNearest
from micronpu.ops.softmax import Softmax
from micronpu.ops.transposed import TransposeConv2d
from micronpu.report.verdict import Finding, found
from micronpu.targets.neutron.rules.registry import limits, supports
from micronpu.targets.neutron.target_spec import NeutronTargetSpec

MAX_STEP = 4096  # kernel, stride and dilation of convolutions and average pools
MAX_FILTER = 65535  # elements of one filter, its channels rounded up to the multipliers of a unit
MAX_SOFTMAX_CHANNELS, MAX_SOFTMAX_ROWS, MAX_SOFTMAX_SIZE = 2040, 4096, 524288

MAX_TRANSPOSED_STRIDE = 2
RESIZE_FACTORS = (1, 2, 4, 8)

supports(AvgPool2d, Conv2d, DepthwiseConv2d, MaxPool2d, ResizeBilinear, ResizeNearest, Softmax, TransposeConv2d)


@limits(Conv2d, DepthwiseConv2d)
def steps_are_small(op: Conv2d, target: NeutronTargetSpec, *operands: TensorType) -> Finding | None:
    """Kernel, stride and dilation of a convolution are each at most 4096."""
    largest = max(*op.kernel(operands[1]), *op.stride, *op.dilation)
    return found(f"{largest}") if largest > MAX_STEP else None


@limits(Conv2d, DepthwiseConv2d, TransposeConv2d)
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


@limits(DepthwiseConv2d)
def depthwise_keeps_channels(op: DepthwiseConv2d, target: NeutronTargetSpec, *operands: TensorType) -> Finding | None:
    """A depthwise convolution has as many results as input channels."""
    channels, results = operands[0].channels, operands[1].channels
    if channels == results:
        return None
    return found(
        f"{channels} channels to {results}", "the rewrites `split_multiplier` and `dense_depthwise`, on by default"
    )


@limits(TransposeConv2d)
def transposed_kernel_is_small(op: TransposeConv2d, target: NeutronTargetSpec, *operands: TensorType) -> Finding | None:
    """The kernel of a transposed convolution is at most 4096."""
    largest = max(op.kernel(operands[1]))
    return found(f"{largest}") if largest > MAX_STEP else None


@limits(TransposeConv2d)
def transposed_stride_is_small(op: TransposeConv2d, target: NeutronTargetSpec, *operands: TensorType) -> Finding | None:
    """The stride of a transposed convolution is at most 2, and no larger than the kernel."""
    kernel = op.kernel(operands[1])
    if any(s > MAX_TRANSPOSED_STRIDE or s > k for s, k in zip(op.stride, kernel, strict=True)):
        hint = "a resize and a convolution, or several transposed convolutions of stride 2"
        return found(f"stride {list(op.stride)} with kernel {list(kernel)}", hint)
    return None


@limits(TransposeConv2d)
def transposed_crop_is_small(op: TransposeConv2d, target: NeutronTargetSpec, *operands: TensorType) -> Finding | None:
    """The padding of a transposed convolution is smaller than the kernel."""
    kernel, crop = op.kernel(operands[1]), op.crop
    if any(max(side) >= k for side, k in zip((crop.rows, crop.columns), kernel, strict=True)):
        return found(f"padding {crop} with kernel {list(kernel)}", "less padding")
    return None


@limits(ResizeBilinear, ResizeNearest)
def resize_factor_is_a_power_of_two(op: ResizeNearest, target: NeutronTargetSpec, x: TensorType) -> Finding | None:
    """Height and width are resized by 1, 2, 4 or 8; with align_corners by (out - 1) / (in - 1), of sizes above 1."""
    less = int(op.align_corners)
    for before, after in zip(x.shape[1:3], op.size, strict=True):
        before, after = before - less, after - less
        if before < 1 or after % before or after // before not in RESIZE_FACTORS:
            corners = " with align_corners" if less else ""
            return found(f"{list(x.shape[1:3])} to {list(op.size)}{corners}", "a factor of 1, 2, 4 or 8")
    return None


@limits(AvgPool2d)
def average_window_is_small(op: AvgPool2d, target: NeutronTargetSpec, x: TensorType) -> Finding | None:
    """Kernel and stride of an average pool are each at most 4096."""
    largest = max(*op.kernel, *op.stride)
    return found(f"{largest}") if largest > MAX_STEP else None


@limits(AvgPool2d)
def average_padding_is_split(op: AvgPool2d, target: NeutronTargetSpec, x: TensorType) -> Finding | None:
    """An average pool that does not count its padding is SAME, or at most 64 pools have windows of equal size."""
    if op.count_padding or litert_padding(x.shape[1:3], op.kernel, op.stride, op.padding) is not None:
        return None
    sides = (op.padding.rows, op.padding.columns)
    parts = 1
    for size, kernel, stride, padding in zip(x.shape[1:3], op.kernel, op.stride, sides, strict=True):
        parts *= len(runs(clipped_windows(size, kernel, stride, padding)))
    return found(f"{parts} pools", "count_include_pad=True, or a smaller kernel") if parts > MAX_PARTS else None


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
