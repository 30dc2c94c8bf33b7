"""The published support table of the converters SDK 25.06 to 25.12, where it is narrower than the current limits.

Operators that are missing in the table are unsupported by these converters. Convolutions and windows have channels-last
tensors. Layout-independent operators have tensors in the program's order, where the channels of a 4-D tensor are axis 1
(it is [N, C, H, W]) and those of any other tensor the last axis.
"""

from __future__ import annotations

from micronpu.ir.types import TensorType
from micronpu.ops.activation import Prelu
from micronpu.ops.clamps import Clamp
from micronpu.ops.concat import Concat
from micronpu.ops.convolution import Conv2d, DepthwiseConv2d
from micronpu.ops.elementwise import Add, Mul
from micronpu.ops.linear import FullyConnected
from micronpu.ops.matmul import BatchMatmul
from micronpu.ops.movement import TO_CHANNELS_FIRST, TO_CHANNELS_LAST, Pad, Transpose
from micronpu.ops.pooling import AvgPool2d, MaxPool2d
from micronpu.ops.reduction import Mean
from micronpu.ops.resize import ResizeBilinear, ResizeNearest
from micronpu.ops.softmax import Softmax
from micronpu.report.verdict import Finding, found
from micronpu.targets.neutron.rules.registry import limits, supports_only
from micronpu.targets.neutron.target_spec import PUBLISHED_FLAVORS, NeutronTargetSpec

MAX_PRELU_ROWS = 4096
LANES = 8  # some operators require multiples of this many channels
_LAYOUTS = (TO_CHANNELS_LAST, TO_CHANNELS_FIRST, (0, 2, 1))
_PAD_HINT = "a number of channels that is a multiple of 8, or a newer converter_flavor"
_NEWER = "a newer converter_flavor"

# `requantize` changes the scale between two operators and is not an operator of the table.
supports_only(
    "abs",
    "add",
    "avg_pool2d",
    "batch_matmul",
    "clamp",
    "concat",
    "conv2d",
    "depthwise_conv2d",
    "fully_connected",
    "leaky_relu",
    "max_pool2d",
    "mean",
    "mul",
    "neg",
    "pad",
    "prelu",
    "relu",
    "requantize",
    "reshape",
    "resize_bilinear",
    "resize_nearest",
    "sigmoid",
    "slice",
    "softmax",
    "tanh",
    "transpose",
    flavors=PUBLISHED_FLAVORS,
)


def channels_of(x: TensorType) -> int:
    """Number of channels of a tensor in the program's order."""
    return x.shape[1] if x.rank == 4 else x.channels


def _uneven(channels: int) -> Finding | None:
    return found(f"{channels} channels", _PAD_HINT) if channels % LANES else None


@limits(Add, flavors=PUBLISHED_FLAVORS)
def addends_have_equal_shape(op: Add, target: NeutronTargetSpec, x: TensorType, z: TensorType) -> Finding | None:
    """Both addends have the same shape."""
    return found(f"{list(x.shape)} + {list(z.shape)}", "expand the smaller one first") if x.shape != z.shape else None


@limits(AvgPool2d, flavors=PUBLISHED_FLAVORS)
def average_skips_padding(op: AvgPool2d, target: NeutronTargetSpec, x: TensorType) -> Finding | None:
    """An average pool does not count its padding as zeros (count_include_pad=False)."""
    return found("count_include_pad=True with padding", "count_include_pad=False") if op.count_padding else None


@limits(FullyConnected, flavors=PUBLISHED_FLAVORS)
def matrix_product_is_2d(
    op: FullyConnected, target: NeutronTargetSpec, x: TensorType, *_: TensorType
) -> Finding | None:
    """The input of a matrix product with constant weights is 2-D."""
    return found(f"{x.rank} axes", "flatten the leading axes with a reshape") if x.rank != 2 else None


@limits(Concat, flavors=PUBLISHED_FLAVORS)
def concat_fills_lanes(op: Concat, target: NeutronTargetSpec, *operands: TensorType) -> Finding | None:
    """The channels of each input and of the result of a concatenation are multiples of 8."""
    uneven = [channels_of(t) for t in (*operands, op.infer(*operands)) if channels_of(t) % LANES]
    return _uneven(uneven[0]) if uneven else None


@limits(Clamp, flavors=PUBLISHED_FLAVORS)
def clamp_bounds_are_listed(op: Clamp, target: NeutronTargetSpec, x: TensorType) -> Finding | None:
    """The bounds of a clamp are (-1, 1), (0, 1), (0, 6) or (0, infinity)."""
    return found(f"({op.low}, {op.high})", _NEWER)


@limits(Pad, flavors=PUBLISHED_FLAVORS)
def pad_is_spatial(op: Pad, target: NeutronTargetSpec, x: TensorType) -> Finding | None:
    """Padding is added to height and width only."""
    # Axes with height or width: the last of [N, C, L], the last two of [N, C, H, W], none of other ranks.
    padded = [i for i in range(x.rank) if op.before[i] or op.after[i]]
    wrong = [i for i in padded if i < 2 or x.rank not in (3, 4)]
    return found(f"padding of axis {wrong[0]} of {list(x.shape)}", _NEWER) if wrong else None


@limits(Conv2d, DepthwiseConv2d, flavors=PUBLISHED_FLAVORS)
def convolution_is_dense(op: Conv2d, target: NeutronTargetSpec, *operands: TensorType) -> Finding | None:
    """A convolution has dilation 1."""
    return found(f"dilation {list(op.dilation)}", _NEWER) if max(op.dilation) > 1 else None


@limits(MaxPool2d, flavors=PUBLISHED_FLAVORS)
def max_pool_fills_lanes(op: MaxPool2d, target: NeutronTargetSpec, x: TensorType) -> Finding | None:
    """The channels of a max pool are a multiple of 8."""
    return _uneven(x.channels)


@limits(MaxPool2d, flavors=PUBLISHED_FLAVORS)
def max_pool_batch_is_one(op: MaxPool2d, target: NeutronTargetSpec, x: TensorType) -> Finding | None:
    """A max pool has batch size 1."""
    return found(f"batch size {x.shape[0]}", "a batch size of 1") if x.shape[0] != 1 else None


@limits(MaxPool2d, flavors=PUBLISHED_FLAVORS)
def max_pool_stride_is_listed(op: MaxPool2d, target: NeutronTargetSpec, x: TensorType) -> Finding | None:
    """The vertical stride of a max pool is 1 or 2."""
    return found(f"stride {op.stride[0]}", _NEWER) if op.stride[0] not in (1, 2) else None


@limits(Mean, flavors=PUBLISHED_FLAVORS)
def mean_is_spatial(op: Mean, target: NeutronTargetSpec, x: TensorType) -> Finding | None:
    """A mean is taken over the last two axes of a 4-D tensor."""
    if x.rank != 4 or op.axes != (2, 3):
        return found(f"axes {list(op.axes)} of {x.rank}", _NEWER)
    return None


@limits(Transpose, flavors=PUBLISHED_FLAVORS)
def transposition_is_listed(op: Transpose, target: NeutronTargetSpec, x: TensorType) -> Finding | None:
    """A transposition moves the channels of a 3-D or 4-D tensor to the end or back, or axes of size 1 only."""
    # The table refers to a source file for its list; any such list must contain these.
    large = [axis for axis in op.permutation if x.shape[axis] != 1]
    if op.permutation in _LAYOUTS or large == sorted(large):
        return None
    return found(f"{list(op.permutation)} of {list(x.shape)}", _NEWER)


@limits(Softmax, flavors=PUBLISHED_FLAVORS)
def softmax_fills_lanes(op: Softmax, target: NeutronTargetSpec, x: TensorType) -> Finding | None:
    """The channels of a softmax are a multiple of 8."""
    return _uneven(x.channels)


@limits(Softmax, flavors=PUBLISHED_FLAVORS)
def softmax_has_rows(op: Softmax, target: NeutronTargetSpec, x: TensorType) -> Finding | None:
    """The input of a softmax has more than one axis."""
    return found(f"{x.rank} axis", "a leading axis of size 1") if x.rank < 2 else None


@limits(Mul, flavors=PUBLISHED_FLAVORS)
def product_fills_lanes(op: Mul, target: NeutronTargetSpec, x: TensorType, z: TensorType) -> Finding | None:
    """The number of elements of a product is a multiple of 8."""
    size = op.infer(x, z).size
    return found(f"{size} elements", "a padded tensor, or a newer converter_flavor") if size % LANES else None


@limits(BatchMatmul, flavors=PUBLISHED_FLAVORS)
def matrices_fill_lanes(op: BatchMatmul, target: NeutronTargetSpec, x: TensorType, z: TensorType) -> Finding | None:
    """Rows and columns of both matrices of a batch product are multiples of 8."""
    uneven = [n for n in (*x.shape[1:], *z.shape[1:]) if n % LANES]
    return found(f"{uneven[0]} in {list(x.shape)} x {list(z.shape)}", _PAD_HINT) if uneven else None


@limits(Prelu, flavors=PUBLISHED_FLAVORS)
def prelu_is_an_image(op: Prelu, target: NeutronTargetSpec, x: TensorType, slope: TensorType) -> Finding | None:
    """The input of a prelu is 4-D, with a multiple of 8 channels and at most 4096 elements of each."""
    rows = x.size // x.channels
    if x.rank != 4 or x.channels % LANES or rows > MAX_PRELU_ROWS:
        return found(f"{x.rank} axes, {x.channels} channels with {rows} elements each", _NEWER)
    return None


@limits(ResizeBilinear, ResizeNearest, flavors=PUBLISHED_FLAVORS)
def resize_fills_lanes(op: ResizeNearest, target: NeutronTargetSpec, x: TensorType) -> Finding | None:
    """The channels of a resize are a multiple of 8."""
    return _uneven(x.channels)


@limits(ResizeBilinear, ResizeNearest, flavors=PUBLISHED_FLAVORS)
def resize_doubles(op: ResizeNearest, target: NeutronTargetSpec, x: TensorType) -> Finding | None:
    """Height and width are both resized by 2, or both by 4."""
    before, after = x.shape[1:3], op.size
    if not any(after == (factor * before[0], factor * before[1]) for factor in (2, 4)):
        return found(f"{list(before)} to {list(after)}", _NEWER)
    return None
