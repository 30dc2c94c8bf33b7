"""Limits of a Neutron: one function per limit, whose docstring is shown to users.

Source: the published support table of the eIQ Neutron converter and the documented limits of its newer versions; see
`docs/`. The flavor "latest" is the rule set of SDK 3.1.2 and newer; the published flavors are narrower.
"""

from __future__ import annotations

from micronpu.base.docstrings import docstring
from micronpu.ir.graph import Node
from micronpu.ir.lowering import Capabilities
from micronpu.ir.op import Op
from micronpu.ir.types import DType, TensorType
from micronpu.ir.window import litert_padding
from micronpu.ops.activation import HardSwish, LeakyRelu, Prelu, Sigmoid, Tanh
from micronpu.ops.clamps import Clamp, Relu
from micronpu.ops.convolution import Conv2d, DepthwiseConv2d, TransposeConv2d
from micronpu.ops.elementwise import Add, Binary, Maximum, Minimum, Mul, Sub
from micronpu.ops.matmul import BatchMatmul, FullyConnected
from micronpu.ops.movement import TO_CHANNELS_FIRST, TO_CHANNELS_LAST, Pad, Reshape, Transpose
from micronpu.ops.pooling import MAX_PARTS, AvgPool2d, MaxPool2d, clipped_windows, runs
from micronpu.ops.quantization import Requantize
from micronpu.ops.reduction import Amax, Amin, Mean
from micronpu.ops.resize import ResizeBilinear, ResizeNearest
from micronpu.ops.slicing import Concat, Slice
from micronpu.ops.softmax import Softmax
from micronpu.ops.tiling import ReflectPad
from micronpu.ops.unary import Abs, Exp, Log, Neg, Rsqrt
from micronpu.report.verdict import Finding, Reason, found
from micronpu.targets.neutron.target_spec import PUBLISHED_FLAVORS, NeutronTargetSpec
from micronpu.targets.options import Rules, name_of

RULES = Rules()
SUPPORTED_RULE = "operator_exists"
SUPPORTED_SENTENCE = "The operator is one that Neutron has."


def _names(*operators: type[Op]) -> frozenset[str]:
    return frozenset(o.name for o in operators)


PUBLISHED = (
    _names(Abs, Add, AvgPool2d, BatchMatmul, Clamp, Concat, Conv2d, DepthwiseConv2d, FullyConnected, LeakyRelu)
    | _names(MaxPool2d, Mean, Mul, Neg, Pad, Prelu, Relu, Requantize, Reshape, ResizeBilinear, ResizeNearest)
    | _names(Sigmoid, Slice, Softmax, Tanh, Transpose)
)
"""Operators of the published table, and `requantize`, which changes the scale between two of them."""
SUPPORTED = PUBLISHED | _names(
    Amax, Amin, Exp, HardSwish, Log, Maximum, Minimum, ReflectPad, Rsqrt, Sub, TransposeConv2d
)
"""Operators that Neutron supports; all others are not delegated."""

MAX_RANK = 7
MAX_STEP = 4096  # kernel, stride and dilation of convolutions and average pools
MAX_FILTER = 65535  # elements of one filter, its channels rounded up to the multipliers of a unit
MAX_SOFTMAX_CHANNELS, MAX_SOFTMAX_ROWS, MAX_SOFTMAX_SIZE = 2040, 4096, 524288

MAX_TRANSPOSED_STRIDE = 2
RESIZE_FACTORS = (1, 2, 4, 8)

MAX_PRELU_ROWS = 4096
LANES = 8  # some operators require multiples of this many channels
_LAYOUTS = (TO_CHANNELS_LAST, TO_CHANNELS_FIRST, (0, 2, 1))
_PAD_HINT = "a number of channels that is a multiple of 8, or a newer converter_flavor"
_NEWER = "a newer converter_flavor"


def capabilities_of(target: NeutronTargetSpec) -> Capabilities:
    """Features of a chip; converters of the published flavors resize both axes equally.

    Every function is an operator, or decomposed into operators. Table lookups of matrix rows run on the core.
    """
    by_axis = target.converter_flavor not in PUBLISHED_FLAVORS
    return Capabilities(index_types=(DType.INT32,), positions=True, resizes_by_axis=by_axis)


def is_supported(operator: str, flavor: str) -> bool:
    """True if the converters of a flavor support an operator in some form."""
    return operator in (PUBLISHED if flavor in PUBLISHED_FLAVORS else SUPPORTED)


def check_node(node: Node, target: NeutronTargetSpec) -> list[Reason]:
    """Return every limit that an operator violates; empty if Neutron can run it."""
    flavor = target.converter_flavor
    if is_supported(node.op.name, flavor):
        return RULES.violated(node, node.op, target, *node.input_types, flavor=flavor)
    detail = f"`{node.op.name}`, which the converter of {flavor} has not"
    hint = 'converter_flavor="latest", if the converter is SDK 3.1.2 or newer'
    if node.op.name not in SUPPORTED:
        meaning = docstring(type(node.op)).split("\n")[0]
        detail = f"`{node.op.name}` ({meaning[:1].lower()}{meaning[1:].rstrip('.')}), which Neutron has not"
        hint = "compile the float model for this chip: operators of Neutron compute the function, where any do"
        hint = hint if node.op.name == "table" else ""
    return [Reason(SUPPORTED_RULE, SUPPORTED_SENTENCE, detail, name_of(node), node.origin.source, hint)]


@RULES.limit()
def activations_are_int8(op: Op, target: NeutronTargetSpec, *operands: TensorType) -> Finding | None:
    """Activations are int8 with one scale and zero point per tensor."""
    x = operands[0]
    if x.dtype is not DType.INT8 or x.qparams is None or not x.qparams.is_per_tensor:
        return found(f"an operand of type {x}", "quantize with `NeutronQuantizer`")
    y = op.infer(*operands)
    if y.dtype is not DType.INT8:
        return found(f"a result of type {y.dtype.value}", "quantize with `NeutronQuantizer`")
    return None


@RULES.limit()
def rank_is_small(op: Op, target: NeutronTargetSpec, *operands: TensorType) -> Finding | None:
    """Tensors have at most 7 axes."""
    rank = max(t.rank for t in (*operands, op.infer(*operands)))
    return found(f"{rank} axes", "join axes with a reshape") if rank > MAX_RANK else None


@RULES.limit(Add, Sub, Mul, Minimum, Maximum)
def broadcast_goes_one_way(op: Binary, target: NeutronTargetSpec, x: TensorType, z: TensorType) -> Finding | None:
    """One operand has as many elements as the result."""
    size = op.infer(x, z).size
    if max(x.size, z.size) != size:
        hint = "expand one operand to the shape of the result first"
        return found(f"{list(x.shape)} and {list(z.shape)} with {size} elements in the result", hint)
    return None


@RULES.limit(BatchMatmul)
def matrices_are_symmetric(op: BatchMatmul, target: NeutronTargetSpec, x: TensorType, z: TensorType) -> Finding | None:
    """Both operands of a product of matrices have zero point 0."""
    if x.zero_point or z.zero_point:
        return found(f"zero points {x.zero_point} and {z.zero_point}", "quantize with `NeutronQuantizer`")
    return None


@RULES.limit(Concat)
def parts_share_quantization(op: Concat, target: NeutronTargetSpec, *operands: TensorType) -> Finding | None:
    """All inputs of a concatenation have the same scale and zero point."""
    different = {t.qparams for t in operands}
    if len(different) > 1:
        return found(f"{len(different)} different ones", "quantize with `NeutronQuantizer`, which shares them")
    return None


# The published support table of the converters SDK 25.06 to 25.12, where it is narrower than the current limits.
# Convolutions and windows have channels-last tensors. Layout-independent operators have tensors in the program's order,
# where the channels of a 4-D tensor are axis 1 (it is [N, C, H, W]) and those of any other tensor the last axis.


def channels_of(x: TensorType) -> int:
    """Number of channels of a tensor in the program's order."""
    return x.shape[1] if x.rank == 4 else x.channels


def _uneven(channels: int) -> Finding | None:
    return found(f"{channels} channels", _PAD_HINT) if channels % LANES else None


@RULES.limit(Add, flavors=PUBLISHED_FLAVORS)
def addends_have_equal_shape(op: Add, target: NeutronTargetSpec, x: TensorType, z: TensorType) -> Finding | None:
    """Both addends have the same shape."""
    return found(f"{list(x.shape)} + {list(z.shape)}", "expand the smaller one first") if x.shape != z.shape else None


@RULES.limit(AvgPool2d, flavors=PUBLISHED_FLAVORS)
def average_skips_padding(op: AvgPool2d, target: NeutronTargetSpec, x: TensorType) -> Finding | None:
    """An average pool does not count its padding as zeros (count_include_pad=False)."""
    return found("count_include_pad=True with padding", "count_include_pad=False") if op.count_padding else None


@RULES.limit(FullyConnected, flavors=PUBLISHED_FLAVORS)
def matrix_product_is_2d(
    op: FullyConnected, target: NeutronTargetSpec, x: TensorType, *_: TensorType
) -> Finding | None:
    """The input of a matrix product with constant weights is 2-D."""
    return found(f"{x.rank} axes", "flatten the leading axes with a reshape") if x.rank != 2 else None


@RULES.limit(Concat, flavors=PUBLISHED_FLAVORS)
def concat_fills_lanes(op: Concat, target: NeutronTargetSpec, *operands: TensorType) -> Finding | None:
    """The channels of each input and of the result of a concatenation are multiples of 8."""
    uneven = [channels_of(t) for t in (*operands, op.infer(*operands)) if channels_of(t) % LANES]
    return _uneven(uneven[0]) if uneven else None


@RULES.limit(Clamp, flavors=PUBLISHED_FLAVORS)
def clamp_bounds_are_listed(op: Clamp, target: NeutronTargetSpec, x: TensorType) -> Finding | None:
    """The bounds of a clamp are (-1, 1), (0, 1), (0, 6) or (0, infinity)."""
    return found(f"({op.low}, {op.high})", _NEWER)


@RULES.limit(Pad, flavors=PUBLISHED_FLAVORS)
def pad_is_spatial(op: Pad, target: NeutronTargetSpec, x: TensorType) -> Finding | None:
    """Padding is added to height and width only."""
    # Axes with height or width: the last of [N, C, L], the last two of [N, C, H, W], none of other ranks.
    padded = [i for i in range(x.rank) if op.before[i] or op.after[i]]
    wrong = [i for i in padded if i < 2 or x.rank not in (3, 4)]
    return found(f"padding of axis {wrong[0]} of {list(x.shape)}", _NEWER) if wrong else None


@RULES.limit(Conv2d, DepthwiseConv2d, flavors=PUBLISHED_FLAVORS)
def convolution_is_dense(op: Conv2d, target: NeutronTargetSpec, *operands: TensorType) -> Finding | None:
    """A convolution has dilation 1."""
    return found(f"dilation {list(op.dilation)}", _NEWER) if max(op.dilation) > 1 else None


@RULES.limit(MaxPool2d, flavors=PUBLISHED_FLAVORS)
def max_pool_fills_lanes(op: MaxPool2d, target: NeutronTargetSpec, x: TensorType) -> Finding | None:
    """The channels of a max pool are a multiple of 8."""
    return _uneven(x.channels)


@RULES.limit(MaxPool2d, flavors=PUBLISHED_FLAVORS)
def max_pool_batch_is_one(op: MaxPool2d, target: NeutronTargetSpec, x: TensorType) -> Finding | None:
    """A max pool has batch size 1."""
    return found(f"batch size {x.shape[0]}", "a batch size of 1") if x.shape[0] != 1 else None


@RULES.limit(MaxPool2d, flavors=PUBLISHED_FLAVORS)
def max_pool_stride_is_listed(op: MaxPool2d, target: NeutronTargetSpec, x: TensorType) -> Finding | None:
    """The vertical stride of a max pool is 1 or 2."""
    return found(f"stride {op.stride[0]}", _NEWER) if op.stride[0] not in (1, 2) else None


@RULES.limit(Mean, flavors=PUBLISHED_FLAVORS)
def mean_is_spatial(op: Mean, target: NeutronTargetSpec, x: TensorType) -> Finding | None:
    """A mean is taken over the last two axes of a 4-D tensor."""
    if x.rank != 4 or op.axes != (2, 3):
        return found(f"axes {list(op.axes)} of {x.rank}", _NEWER)
    return None


@RULES.limit(Transpose, flavors=PUBLISHED_FLAVORS)
def transposition_is_listed(op: Transpose, target: NeutronTargetSpec, x: TensorType) -> Finding | None:
    """A transposition moves the channels of a 3-D or 4-D tensor to the end or back, or axes of size 1 only."""
    # The table refers to a source file for its list; any such list must contain these.
    large = [axis for axis in op.permutation if x.shape[axis] != 1]
    if op.permutation in _LAYOUTS or large == sorted(large):
        return None
    return found(f"{list(op.permutation)} of {list(x.shape)}", _NEWER)


@RULES.limit(Softmax, flavors=PUBLISHED_FLAVORS)
def softmax_fills_lanes(op: Softmax, target: NeutronTargetSpec, x: TensorType) -> Finding | None:
    """The channels of a softmax are a multiple of 8."""
    return _uneven(x.channels)


@RULES.limit(Softmax, flavors=PUBLISHED_FLAVORS)
def softmax_has_rows(op: Softmax, target: NeutronTargetSpec, x: TensorType) -> Finding | None:
    """The input of a softmax has more than one axis."""
    return found(f"{x.rank} axis", "a leading axis of size 1") if x.rank < 2 else None


@RULES.limit(Mul, flavors=PUBLISHED_FLAVORS)
def product_fills_lanes(op: Mul, target: NeutronTargetSpec, x: TensorType, z: TensorType) -> Finding | None:
    """The number of elements of a product is a multiple of 8."""
    size = op.infer(x, z).size
    return found(f"{size} elements", "a padded tensor, or a newer converter_flavor") if size % LANES else None


@RULES.limit(BatchMatmul, flavors=PUBLISHED_FLAVORS)
def matrices_fill_lanes(op: BatchMatmul, target: NeutronTargetSpec, x: TensorType, z: TensorType) -> Finding | None:
    """Rows and columns of both matrices of a batch product are multiples of 8."""
    uneven = [n for n in (*x.shape[1:], *z.shape[1:]) if n % LANES]
    return found(f"{uneven[0]} in {list(x.shape)} x {list(z.shape)}", _PAD_HINT) if uneven else None


@RULES.limit(Prelu, flavors=PUBLISHED_FLAVORS)
def prelu_is_an_image(op: Prelu, target: NeutronTargetSpec, x: TensorType, slope: TensorType) -> Finding | None:
    """The input of a prelu is 4-D, with a multiple of 8 channels and at most 4096 elements of each."""
    rows = x.size // x.channels
    if x.rank != 4 or x.channels % LANES or rows > MAX_PRELU_ROWS:
        return found(f"{x.rank} axes, {x.channels} channels with {rows} elements each", _NEWER)
    return None


@RULES.limit(ResizeBilinear, ResizeNearest, flavors=PUBLISHED_FLAVORS)
def resize_fills_lanes(op: ResizeNearest, target: NeutronTargetSpec, x: TensorType) -> Finding | None:
    """The channels of a resize are a multiple of 8."""
    return _uneven(x.channels)


@RULES.limit(ResizeBilinear, ResizeNearest, flavors=PUBLISHED_FLAVORS)
def resize_doubles(op: ResizeNearest, target: NeutronTargetSpec, x: TensorType) -> Finding | None:
    """Height and width are both resized by 2, or both by 4."""
    before, after = x.shape[1:3], op.size
    if not any(after == (factor * before[0], factor * before[1]) for factor in (2, 4)):
        return found(f"{list(before)} to {list(after)}", _NEWER)
    return None


# Windows and softmax.


@RULES.limit(Conv2d, DepthwiseConv2d)
def steps_are_small(op: Conv2d, target: NeutronTargetSpec, *operands: TensorType) -> Finding | None:
    """Kernel, stride and dilation of a convolution are each at most 4096."""
    largest = max(*op.kernel(operands[1]), *op.stride, *op.dilation)
    return found(f"{largest}") if largest > MAX_STEP else None


@RULES.limit(Conv2d, DepthwiseConv2d, TransposeConv2d)
def filter_fits(op: Conv2d, target: NeutronTargetSpec, *operands: TensorType) -> Finding | None:
    """Kernel height x width x input channels, rounded up to the multipliers of a unit, is at most 65535."""
    height, width = op.kernel(operands[1])
    channels = -(-operands[0].channels // target.macs) * target.macs
    size = height * width * channels
    if size > MAX_FILTER:
        return found(f"{height} x {width} x {channels} = {size}", "use a smaller kernel or fewer input channels")
    return None


@RULES.limit(Conv2d)
def groups_are_one_or_depthwise(op: Conv2d, target: NeutronTargetSpec, *operands: TensorType) -> Finding | None:
    """A convolution has one group, or one group per channel."""
    groups = operands[0].channels // operands[1].shape[3]
    return found(f"{groups} groups", "split the convolution by hand") if groups > 1 else None


@RULES.limit(DepthwiseConv2d)
def depthwise_keeps_channels(op: DepthwiseConv2d, target: NeutronTargetSpec, *operands: TensorType) -> Finding | None:
    """A depthwise convolution has as many results as input channels."""
    channels, results = operands[0].channels, operands[1].channels
    if channels == results:
        return None
    return found(
        f"{channels} channels to {results}", "the rewrites `split_multiplier` and `dense_depthwise`, on by default"
    )


@RULES.limit(TransposeConv2d)
def transposed_kernel_is_small(op: TransposeConv2d, target: NeutronTargetSpec, *operands: TensorType) -> Finding | None:
    """The kernel of a transposed convolution is at most 4096."""
    largest = max(op.kernel(operands[1]))
    return found(f"{largest}") if largest > MAX_STEP else None


@RULES.limit(TransposeConv2d)
def transposed_stride_is_small(op: TransposeConv2d, target: NeutronTargetSpec, *operands: TensorType) -> Finding | None:
    """The stride of a transposed convolution is at most 2, and no larger than the kernel."""
    kernel = op.kernel(operands[1])
    if any(s > MAX_TRANSPOSED_STRIDE or s > k for s, k in zip(op.stride, kernel, strict=True)):
        hint = "a resize and a convolution, or several transposed convolutions of stride 2"
        return found(f"stride {list(op.stride)} with kernel {list(kernel)}", hint)
    return None


@RULES.limit(TransposeConv2d)
def transposed_crop_is_small(op: TransposeConv2d, target: NeutronTargetSpec, *operands: TensorType) -> Finding | None:
    """The padding of a transposed convolution is smaller than the kernel."""
    kernel, crop = op.kernel(operands[1]), op.crop
    if any(max(side) >= k for side, k in zip((crop.rows, crop.columns), kernel, strict=True)):
        return found(f"padding {crop} with kernel {list(kernel)}", "less padding")
    return None


@RULES.limit(ResizeBilinear, ResizeNearest)
def resize_factor_is_a_power_of_two(op: ResizeNearest, target: NeutronTargetSpec, x: TensorType) -> Finding | None:
    """Height and width are resized by 1, 2, 4 or 8; with align_corners by (out - 1) / (in - 1), of sizes above 1."""
    less = int(op.align_corners)
    for before, after in zip(x.shape[1:3], op.size, strict=True):
        before, after = before - less, after - less
        if before < 1 or after % before or after // before not in RESIZE_FACTORS:
            corners = " with align_corners" if less else ""
            return found(f"{list(x.shape[1:3])} to {list(op.size)}{corners}", "a factor of 1, 2, 4 or 8")
    return None


@RULES.limit(AvgPool2d)
def average_window_is_small(op: AvgPool2d, target: NeutronTargetSpec, x: TensorType) -> Finding | None:
    """Kernel and stride of an average pool are each at most 4096."""
    largest = max(*op.kernel, *op.stride)
    return found(f"{largest}") if largest > MAX_STEP else None


@RULES.limit(AvgPool2d)
def average_padding_is_split(op: AvgPool2d, target: NeutronTargetSpec, x: TensorType) -> Finding | None:
    """An average pool that does not count its padding is SAME, or at most 64 pools have windows of equal size."""
    if op.count_padding or litert_padding(x.shape[1:3], op.kernel, op.stride, op.padding) is not None:
        return None
    sides = (op.padding.rows, op.padding.columns)
    parts = 1
    for size, kernel, stride, padding in zip(x.shape[1:3], op.kernel, op.stride, sides, strict=True):
        parts *= len(runs(clipped_windows(size, kernel, stride, padding)))
    return found(f"{parts} pools", "count_include_pad=True, or a smaller kernel") if parts > MAX_PARTS else None


@RULES.limit(MaxPool2d)
def max_pool_stride_is_small(op: MaxPool2d, target: NeutronTargetSpec, x: TensorType) -> Finding | None:
    """The stride of a max pool is at most 4096."""
    return found(f"stride {max(op.stride)}") if max(op.stride) > MAX_STEP else None


@RULES.limit(Softmax)
def softmax_is_small(op: Softmax, target: NeutronTargetSpec, x: TensorType) -> Finding | None:
    """Softmax has at most 2040 channels, at most 4096 rows, and at most 524288 elements in all."""
    rows = x.size // x.channels
    if x.channels > MAX_SOFTMAX_CHANNELS or rows > MAX_SOFTMAX_ROWS or x.size > MAX_SOFTMAX_SIZE:
        return found(f"{x.channels} channels x {rows} rows = {x.size} elements", "leave softmax to the application")
    return None
