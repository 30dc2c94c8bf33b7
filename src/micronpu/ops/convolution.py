"""Convolutions and transposed convolutions with constant weights, 1-D ones as images of height 1.

Constant factors and addends behind them, and behind linear layers, become weights and biases.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from micronpu.base.arrays import Array
from micronpu.base.errors import InternalError, UnsupportedError
from micronpu.ir.arithmetic import multiply_by_quantized_multiplier, multiply_wide, per_channel_multipliers, saturate
from micronpu.ir.aten import AtenNode, spatial_pair
from micronpu.ir.graph import Tensor
from micronpu.ir.lowering import Float, Writer
from micronpu.ir.op import Rescaling, Value, weighted
from micronpu.ir.registry import from_aten, operator
from micronpu.ir.types import DType, QParams, TensorType
from micronpu.ir.window import NO_PADDING, Activation, Padding2d, Size2d, litert_padding, windows
from micronpu.ops.bounds import PRODUCT
from micronpu.ops.constants import fused_activation, int8_weights, quantized_weights, with_bias
from micronpu.ops.movement import Pad, from_image, to_image
from micronpu.ops.slicing import Concat, Slice, sliced
from micronpu.ops.tosa_windows import covering, fitted, requantized, spread, transposed

if TYPE_CHECKING:
    from micronpu.emit.litert import LiteRtEmitter
    from micronpu.emit.tosa import TosaEmitter, TosaTensor


CONVOLUTIONS_2D = ("conv2d.default", "conv2d.padding")
CONVOLUTIONS = ("conv1d.default", "conv1d.padding", *CONVOLUTIONS_2D)
BY_AXES = {1: CONVOLUTIONS[0], 2: CONVOLUTIONS[2]}
"""Overloads with numbers as padding, by the number of spatial axes."""
MOST_GROUPS = 8
"""Maximum number of convolutions that a grouped one is split into."""


def requantize_accumulators(
    accumulators: Array, x: TensorType, weight: TensorType, y: TensorType, activation: Activation
) -> Array:
    """Requantize accumulators [..., channels] to y, per tensor or per channel, and apply the fused clamp."""
    assert weight.qparams is not None
    multiplier, shift = per_channel_multipliers(x.scale, weight.qparams.scale, y.scale)
    multiply = multiply_wide if x.dtype is DType.INT16 else multiply_by_quantized_multiplier
    scaled = multiply(accumulators, multiplier, shift) + y.zero_point
    return saturate(scaled, *activation.limits(y), y.dtype.value)


def window_elements(
    x: Array,
    y: TensorType,
    kernel: Size2d,
    stride: Size2d,
    padding: Padding2d,
    dilation: Size2d = (1, 1),
    fill: int = 0,
) -> Iterator[tuple[int, int, Array]]:
    """Yield row and column of every position in a window over x [N, H, W, C], and the elements [N, OH, OW, C] there."""
    padded = np.pad(x, ((0, 0), padding.rows, padding.columns, (0, 0)), constant_values=fill)
    for i in range(kernel[0]):
        for j in range(kernel[1]):
            top, left = i * dilation[0], j * dilation[1]
            rows = slice(top, top + (y.shape[1] - 1) * stride[0] + 1, stride[0])
            columns = slice(left, left + (y.shape[2] - 1) * stride[1] + 1, stride[1])
            yield i, j, padded[:, rows, columns]


@dataclass(frozen=True)
class _Convolution(Rescaling):
    """Base of dense and depthwise convolution."""

    stride: Size2d = (1, 1)
    padding: Padding2d = NO_PADDING
    dilation: Size2d = (1, 1)
    activation: Activation = Activation.NONE

    quantization = weighted()

    def kernel(self, weight: TensorType) -> Size2d:
        return weight.shape[1], weight.shape[2]

    def window_shape(self, x: TensorType, weight: TensorType) -> tuple[int, int]:
        """Height and width of the result."""
        kernel = self.kernel(weight)
        return (
            windows(x.shape[1], kernel[0], self.stride[0], self.padding.rows, self.dilation[0]),
            windows(x.shape[2], kernel[1], self.stride[1], self.padding.columns, self.dilation[1]),
        )

    def taps(self, x: Value, weight: TensorType, y: TensorType) -> Iterator[tuple[int, int, Array]]:
        """Yield row, column and inputs [N, OH, OW, C] minus the zero point for every kernel position."""
        return window_elements(x.centered, y, self.kernel(weight), self.stride, self.padding, self.dilation)

    def litert_fields(self, emit: LiteRtEmitter) -> dict[str, object]:
        x, weight = emit.input_type(0), emit.input_type(1)
        padding = litert_padding(x.shape[1:3], self.kernel(weight), self.stride, self.padding, self.dilation)
        return {
            "padding": emit.padding(padding, self.padding),
            "strideH": self.stride[0],
            "strideW": self.stride[1],
            "dilationHFactor": self.dilation[0],
            "dilationWFactor": self.dilation[1],
            "fusedActivationFunction": emit.activation(self.activation),
        }

    def tosa_form(self, emit: TosaEmitter, name: str, weight: TosaTensor, axes: Size2d) -> TosaTensor:
        """The TOSA form of the convolution.

        Args:
            axes: indices of the kernel's height and width in ``weight``.
        """
        x, y, scales = emit.input_type(0), emit.output_type, emit.input_type(1).qparams
        assert scales is not None
        weight, dilation = spread(emit, weight, self.dilation, axes)
        if dilation == (1, 1):
            weight = covering(emit, emit.input(0), weight, axes, self.stride, self.padding)
        kernel = (weight.shape[axes[0]], weight.shape[axes[1]])
        w = fitted(emit, emit.input(0), kernel, self.stride, self.padding, dilation, fill=x.zero_point)
        sums = emit.convolution(name, w.x, weight, y.shape, w.padding, w.stride, dilation)
        return requantized(emit, sums, scales.scale, self.activation)


@operator("conv2d")
class Conv2d(_Convolution):
    """2-D convolution (cross-correlation, as usual in deep learning); groups follow from the weights' last axis.

    x [N, H, W, C] int8, weight [O, KH, KW, C/groups] int8 symmetric (one scale, or one per O), bias [O] int32 at
    scale ``s_x * s_weight``  ->  y [N, OH, OW, O] int8.  With x and y int16, the bias is int64.
    """

    def infer(self, x: TensorType, weight: TensorType, bias: TensorType) -> TensorType:
        return TensorType((x.shape[0], *self.window_shape(x, weight), weight.shape[0]), self.dtype or x.dtype)

    def macs(self, y: TensorType, x: TensorType, weight: TensorType, bias: TensorType) -> int:
        return y.size * weight.shape[1] * weight.shape[2] * weight.shape[3]

    def reference(self, y: TensorType, x: Value, weight: Value, bias: Value) -> Array:
        channels_out, _, _, depth = weight.type.shape
        groups = x.type.channels // depth
        per_group = channels_out // groups
        accumulators = np.broadcast_to(bias.data.astype(np.int64), y.shape).copy()
        for i, j, taps in self.taps(x, weight.type, y):
            for group in range(groups):
                rows = slice(group * per_group, (group + 1) * per_group)
                # |x| <= 2**15 and |w| <= 127: float64 holds these sums exactly, and its matrix product is fast.
                products = taps[..., group * depth : (group + 1) * depth].astype(np.float64) @ weight.data[
                    rows, i, j, :
                ].T.astype(np.float64)
                accumulators[..., rows] += products.astype(np.int64)
        return requantize_accumulators(accumulators, x.type, weight.type, y, self.activation)

    @from_aten(*CONVOLUTIONS, x="input", fuses=True, facts=PRODUCT)
    @classmethod
    def build(cls, node: AtenNode) -> Tensor:
        return build_convolution(node, 1 if node.overload.startswith("conv1d") else 2)

    def to_litert(self, emit: LiteRtEmitter) -> None:
        emit.add("CONV_2D", options="Conv2DOptions", fields=self.litert_fields(emit), version=3)

    def to_tosa(self, emit: TosaEmitter) -> TosaTensor:
        x, weight = emit.input_type(0), emit.input_type(1)
        if weight.shape[3] != x.channels:
            what = f"TOSA has no convolution in groups, as of {x.channels} channels with a kernel of {weight.shape[3]}."
            raise UnsupportedError(what, hint="one convolution per group, as the importer makes them")
        return self.tosa_form(emit, "CONV2D", emit.input(1), (1, 2))


@operator("depthwise_conv2d")
class DepthwiseConv2d(_Convolution):
    """2-D convolution of every channel separately, with ``multiplier`` results per channel.

    x [N, H, W, C] int8, weight [1, KH, KW, C * multiplier] int8 symmetric, bias [C * multiplier] int32
    ->  y [N, OH, OW, C * multiplier] int8.  With x and y int16, the bias is int64.
    """

    def infer(self, x: TensorType, weight: TensorType, bias: TensorType) -> TensorType:
        return TensorType((x.shape[0], *self.window_shape(x, weight), weight.shape[3]), self.dtype or x.dtype)

    def macs(self, y: TensorType, x: TensorType, weight: TensorType, bias: TensorType) -> int:
        return y.size * weight.shape[1] * weight.shape[2]

    def reference(self, y: TensorType, x: Value, weight: Value, bias: Value) -> Array:
        multiplier = weight.type.shape[3] // x.type.channels
        accumulators = np.broadcast_to(bias.data.astype(np.int64), y.shape).copy()
        for i, j, taps in self.taps(x, weight.type, y):
            accumulators += np.repeat(taps, multiplier, axis=3) * weight.data[0, i, j].astype(np.int64)
        return requantize_accumulators(accumulators, x.type, weight.type, y, self.activation)

    def to_litert(self, emit: LiteRtEmitter) -> None:
        multiplier = emit.input_type(1).shape[3] // emit.input_type(0).channels
        fields = self.litert_fields(emit) | {"depthMultiplier": multiplier}
        emit.add("DEPTHWISE_CONV_2D", options="DepthwiseConv2DOptions", fields=fields, version=3)

    def to_tosa(self, emit: TosaEmitter) -> TosaTensor:
        channels, (rows, columns) = emit.input_type(0).channels, self.kernel(emit.input_type(1))
        multiplier = emit.input_type(1).shape[3] // channels
        weight = emit.reshape(emit.input(1), (rows, columns, channels, multiplier))
        return self.tosa_form(emit, "DEPTHWISE_CONV2D", weight, (0, 1))


def build_convolution(node: AtenNode, spatial: int) -> Tensor:
    """A convolution of [N, C, L] or [N, C, H, W]: dense, depthwise, or in groups."""
    x = to_image(node, node.tensor("x"), spatial)
    weight, qparams, bias = quantized_weights(node, x.type)
    if spatial == 1:
        weight = weight[:, :, None]
    groups, channels = int(node.value("groups")), x.shape[3]
    size, kernel = (x.shape[1], x.shape[2]), (weight.shape[2], weight.shape[3])
    stride, dilation = (spatial_pair(node, name, spatial, 1) for name in ("stride", "dilation"))
    padding = _padding(node, spatial, size, kernel, stride, dilation)
    depthwise = groups == channels and groups > 1
    make: type[_Convolution] = DepthwiseConv2d if depthwise else Conv2d
    op = make(stride, padding, dilation, fused_activation(node))
    ordered = weight[:, 0].transpose(1, 2, 0)[None] if depthwise else weight.transpose(0, 2, 3, 1)
    if qparams.axis is not None:
        qparams = type(qparams).per_channel(qparams.scale, 3 if depthwise else 0)
    constant = node.constant(ordered, TensorType(ordered.shape, DType.INT8, qparams))

    def emit(part: Tensor, weights: Tensor, biases: Tensor) -> Tensor:
        return node.emit(op, part, weights, biases, qparams=node.output)

    return from_image(node, in_groups(node, emit, x, constant, bias, 1 if depthwise else groups))


def in_groups(
    node: AtenNode,
    emit: Callable[[Tensor, Tensor, Tensor], Tensor],
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    groups: int,
) -> Tensor:
    """A grouped convolution as convolutions of slices, concatenated.

    x [.., C] -> slice -> conv2d(w of its groups) ┐
              -> slice -> conv2d(w of its groups) ┴ concat -> y [.., O]

    With more than `MOST_GROUPS` groups, several share a convolution, in which the weights between groups are zero.
    Exact: a zero weight adds nothing, and all parts have the result's qparams.

    Args:
        emit: appends the convolution of a slice.
        weight: [O, KH, KW, C / groups], the outputs of each group adjacent.
        bias: [O].
    """
    if groups == 1:
        return emit(x, weight, bias)
    outputs, high, wide, depth = weight.shape
    per_group = outputs // groups
    together = -(-groups // MOST_GROUPS)
    parts = []
    for first in range(0, groups, together):
        count = min(together, groups - first)
        rows = slice(first * per_group, (first + count) * per_group)
        dense = np.zeros((count * per_group, high, wide, count * depth), np.int8)
        assert weight.data is not None and bias.data is not None
        for i in range(count):
            block = weight.data[(first + i) * per_group : (first + i + 1) * per_group]
            dense[i * per_group : (i + 1) * per_group, :, :, i * depth : (i + 1) * depth] = block
        part = sliced(node, x, 3, first * depth, (first + count) * depth)
        parts.append(
            emit(part, _channels(node, weight.type, dense, rows), _channels(node, bias.type, bias.data[rows], rows))
        )
    return node.emit(Concat(3), *parts) if len(parts) > 1 else parts[0]


def _channels(node: AtenNode, type: TensorType, data: Array, rows: slice) -> Tensor:
    """A slice of a constant's output channels."""
    qparams = type.qparams
    assert qparams is not None
    if qparams.axis is not None:
        qparams = QParams.per_channel(qparams.scale[rows], qparams.axis, qparams.zero_point[rows])
    return node.constant(data, TensorType(data.shape, type.dtype, qparams))


def _padding(node: AtenNode, spatial: int, size: Size2d, kernel: Size2d, stride: Size2d, dilation: Size2d) -> Padding2d:
    given = node.value("padding")
    if given == "valid":
        return NO_PADDING
    if given == "same":
        return Padding2d.same(size, kernel, stride, dilation)
    return Padding2d.symmetric(*spatial_pair(node, "padding", spatial, 0))


TRANSPOSED = ("conv_transpose1d.default", "conv_transpose2d.input")
WEIGHT_AXIS = 1
"""Axis of the output channels in PyTorch's weights."""


@operator("transpose_conv2d")
class TransposeConv2d(Rescaling):
    """The transpose of a convolution: every element of x adds a weighted copy of the kernel to y.

    x [N, H, W, C] int8, weight [O, KH, KW, C] int8 symmetric (one scale, or one per O), bias [O] int32 at scale
    ``s_x * s_weight``  ->  y [N, (H - 1) * stride + KH - crop, .., O] int8.

    ``crop`` is the number of elements removed from the full result on each side.
    """

    stride: Size2d = (1, 1)
    crop: Padding2d = NO_PADDING
    activation: Activation = Activation.NONE

    quantization = weighted()

    def kernel(self, weight: TensorType) -> Size2d:
        return weight.shape[1], weight.shape[2]

    def full_size(self, x: TensorType, weight: TensorType) -> Size2d:
        """Height and width before cropping."""
        rows, columns = (
            (n - 1) * s + k for n, s, k in zip(x.shape[1:3], self.stride, self.kernel(weight), strict=True)
        )
        return rows, columns

    def infer(self, x: TensorType, weight: TensorType, bias: TensorType) -> TensorType:
        rows, columns = self.full_size(x, weight)
        height, width = rows - sum(self.crop.rows), columns - sum(self.crop.columns)
        if height < 1 or width < 1:
            raise InternalError(f"{self} crops everything of {rows} x {columns} elements.")
        return TensorType((x.shape[0], height, width, weight.shape[0]), self.dtype or x.dtype)

    def macs(self, y: TensorType, x: TensorType, weight: TensorType, bias: TensorType) -> int:
        return x.size * weight.shape[0] * weight.shape[1] * weight.shape[2]

    def reference(self, y: TensorType, x: Value, weight: Value, bias: Value) -> Array:
        rows, columns = self.full_size(x.type, weight.type)
        full = np.zeros((x.type.shape[0], rows, columns, weight.type.shape[0]), np.int64)
        (high, wide), centered = x.type.shape[1:3], x.centered.astype(np.float64)
        for i in range(weight.type.shape[1]):
            for j in range(weight.type.shape[2]):
                # |x| <= 2**15 and |w| <= 127: float64 holds these sums exactly, and its matrix product is fast.
                products = centered @ weight.data[:, i, j, :].T.astype(np.float64)
                full[
                    :,
                    i : i + (high - 1) * self.stride[0] + 1 : self.stride[0],
                    j : j + (wide - 1) * self.stride[1] + 1 : self.stride[1],
                ] += products.astype(np.int64)
        c = self.crop
        accumulators = full[:, c.top : rows - c.bottom, c.left : columns - c.right] + bias.data.astype(np.int64)
        return requantize_accumulators(accumulators, x.type, weight.type, y, self.activation)

    @from_aten(*TRANSPOSED, quantization=weighted(WEIGHT_AXIS), x="input", fuses=True, facts=PRODUCT)
    @classmethod
    def build(cls, node: AtenNode) -> Tensor:
        return build_transposed(node, 1 if node.overload.startswith("conv_transpose1d") else 2)

    @from_aten(
        "convolution.default",
        quantization=lambda node: weighted(WEIGHT_AXIS if node.value("transposed") else 0),  # for both directions
        x="input",
        fuses=True,
        facts=PRODUCT,
    )
    @classmethod
    def build_either(cls, node: AtenNode) -> Tensor:
        spatial = len(node.shape) - 2
        if spatial not in (1, 2):
            raise UnsupportedError(f"A convolution over {spatial} axes is not imported; it has 1 or 2.")
        return (build_transposed if node.value("transposed") else build_convolution)(node, spatial)

    def litert_padding(self, x: TensorType, weight: TensorType) -> str | None:
        """ "VALID" or "SAME" if LiteRT can express the crop, else None."""
        if not self.crop:
            return "VALID"
        y = self.infer(x, weight, x)
        size = (y.shape[1], y.shape[2])
        fits = all(-(-m // s) == n for m, s, n in zip(size, self.stride, x.shape[1:3], strict=True))
        return "SAME" if fits and self.crop == Padding2d.same(size, self.kernel(weight), self.stride) else None

    def to_litert(self, emit: LiteRtEmitter) -> None:
        x, weight = emit.input_type(0), emit.input_type(1)
        shape = emit.int32(self.infer(x, weight, x).shape)
        fields = {
            "padding": emit.padding(self.litert_padding(x, weight), self.crop),
            "strideH": self.stride[0],
            "strideW": self.stride[1],
            "fusedActivationFunction": emit.activation(self.activation),
        }
        version = 3 if self.activation is Activation.NONE else 4
        emit.add(
            "TRANSPOSE_CONV", options="TransposeConvOptions", fields=fields, inputs=[shape, 1, 0, 2], version=version
        )

    def to_tosa(self, emit: TosaEmitter) -> TosaTensor:
        scales = emit.input_type(1).qparams
        assert scales is not None
        return transposed(emit, self.stride, self.crop, scales.scale, self.activation)


def build_transposed(node: AtenNode, spatial: int) -> Tensor:
    """A transposed convolution of [N, C, L] or [N, C, H, W], with or without groups."""
    x = to_image(node, node.tensor("x"), spatial)
    weight, qparams = int8_weights(node, WEIGHT_AXIS)
    if spatial == 1:
        weight = weight[:, :, None]
    groups, stride = int(node.value("groups")), spatial_pair(node, "stride", spatial, 1)
    dilation = spatial_pair(node, "dilation", spatial, 1)
    if dilation != (1, 1):  # the zeros between its elements are part of the kernel then
        spread = [(k - 1) * d + 1 for k, d in zip(weight.shape[2:], dilation, strict=True)]
        dense, weight = weight, np.zeros((*weight.shape[:2], *spread), weight.dtype)
        weight[:, :, :: dilation[0], :: dilation[1]] = dense
    padding = spatial_pair(node, "padding", spatial, 0)
    extra = spatial_pair(node, "output_padding", spatial, 0)
    # PyTorch has [C, O / groups, KH, KW]; here the outputs of every group are first: [O, KH, KW, C / groups].
    inputs, per_group, *kernel = weight.shape
    ordered = weight.reshape(groups, inputs // groups, per_group, *kernel).transpose(0, 2, 3, 4, 1)
    ordered = ordered.reshape(groups * per_group, *kernel, inputs // groups)
    if qparams.axis is not None:  # all groups share the scales
        qparams = QParams.per_channel(qparams.scale * groups, 0, qparams.zero_point * groups)
    ordered, qparams, bias = with_bias(node, x.type, ordered, qparams)
    # Elements that output_padding adds beyond the reach of every input equal the bias: zeros after x produce them.
    missing = [max(e - p, 0) for e, p in zip(extra, padding, strict=True)]
    behind = [-(-m // s) for m, s in zip(missing, stride, strict=True)]
    if any(behind):
        x = node.emit(Pad((0, 0, 0, 0), (0, behind[0], behind[1], 0)), x)
    crop = [(p, p - e + b * s) for p, e, b, s in zip(padding, extra, behind, stride, strict=True)]
    sides = Padding2d(*crop[0], *crop[1])

    def emit(part: Tensor, weights: Tensor, biases: Tensor) -> Tensor:
        op = TransposeConv2d(stride, sides, fused_activation(node))
        if op.litert_padding(part.type, weights.type) is not None:
            return node.emit(op, part, weights, biases, qparams=node.output)
        full = TransposeConv2d(stride, NO_PADDING, fused_activation(node))
        y = node.emit(full, part, weights, biases, qparams=node.output)
        wanted = op.infer(part.type, weights.type, biases.type).shape
        return node.emit(Slice((0, sides.top, sides.left, 0), wanted), y)

    constant = node.constant(ordered, TensorType(ordered.shape, DType.INT8, qparams))
    return from_image(node, in_groups(node, emit, x, constant, bias, groups))


_LAYERS = (*CONVOLUTIONS, "conv3d.default", *TRANSPOSED, "linear.default")
_SMALLEST = 127 * 2.0**-24
"""Smallest size of weights: their scale is at least 2^-24."""
Row = npt.NDArray[np.float64]


def into_layer(write: Writer, x: Float, scale: Row, shift: Row) -> bool:
    """Change the weights and the bias of a layer so that its result x becomes ``x * scale + shift``.

    Args:
        scale, shift: one number for all output channels, or one for each.

    Returns:
        Whether x is the result of a layer with stored weights that has no other reader.
    """
    layer = write.call(x)
    if layer is None or layer.readers != 1 or layer.overload not in _LAYERS:
        return False
    weight, bias = write.stored(layer.given["weight"]), write.stored(layer.given.get("bias"))
    weight = write.known(layer.given["weight"]) if weight is None else weight  # stored transposed
    if weight is None or (layer.given.get("bias") is not None and bias is None):
        return False
    # Weights of a transposed convolution are [C, O / groups, ..]; the groups are blocks of C.
    groups = layer.given["groups"] if layer.overload in TRANSPOSED else 1
    outputs = groups * weight.shape[1] if layer.overload in TRANSPOSED else weight.shape[0]
    if not {scale.size, shift.size} <= {1, outputs}:
        return False
    scale, shift = np.broadcast_to(scale, (outputs,)), np.broadcast_to(shift, (outputs,))
    matrix, ones = weight.astype(np.float64), [1] * (weight.ndim - 2)
    factors = scale[:, None]
    if layer.overload in TRANSPOSED:
        factors = np.repeat(scale.reshape(groups, -1), len(weight) // groups, axis=0)
    folded = matrix * factors.reshape(*factors.shape, *ones)
    total = shift if bias is None else shift + bias.astype(np.float64) * scale
    weights = {} if (scale == 1).all() else {"weight": folded.astype(np.float32)}  # others may share these
    write.change(x, **weights, bias=total.astype(np.float32))
    return True


def line_of_layer(write: Writer, x: Float, scale: object, shift: object) -> Float:
    """layer(x, w, b) * scale + shift -> layer(x, w', b'), for constants of one element or one for each channel"""
    layer = write.call(x)
    if layer is None or layer.overload not in _LAYERS:
        return None
    if any(write.is_trained(layer.given.get(name)) for name in ("weight", "bias")):
        return None
    weight, shape, rows = write.known(layer.given["weight"]), write.shape(x), []
    for values in map(np.asarray, (scale, shift)):
        axes = (1,) * (len(shape) - values.ndim) + values.shape
        # The channels are before the axes of the window, which a linear layer does not have.
        is_row = weight is not None and len(axes) == len(shape) and values.size in (1, axes[1 - weight.ndim])
        if not is_row or not np.isfinite(values).all():
            return None
        rows.append(values.reshape(-1).astype(np.float64))
    assert weight is not None
    is_small = np.abs(weight).max(initial=0.0) * np.abs(rows[0]).min() < _SMALLEST
    # Others may read the weights, of which these would be another copy in the program: for them a product is smaller.
    is_copy = len(write.readers(layer.given["weight"])) > 1 and (rows[0] != 1).any() and weight.size > prod(shape)
    return x if not is_small and not is_copy and into_layer(write, x, *rows) else None
