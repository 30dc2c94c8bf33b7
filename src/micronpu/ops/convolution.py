"""Convolutions with constant weights, 1-D ones as images of height 1."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from micronpu.base.errors import UnsupportedError
from micronpu.ir.arithmetic import multiply_by_quantized_multiplier, multiply_wide, per_channel_multipliers, saturate
from micronpu.ir.aten import AtenNode, spatial_pair
from micronpu.ir.graph import Tensor
from micronpu.ir.op import Rescaling, Value, weighted
from micronpu.ir.registry import from_aten, operator
from micronpu.ir.types import DType, QParams, TensorType
from micronpu.ir.window import NO_PADDING, Activation, Padding2d, Size2d, litert_padding, windows
from micronpu.ops.concat import Concat
from micronpu.ops.constants import fused_activation, quantized_weights
from micronpu.ops.movement import from_image, to_image
from micronpu.ops.slicing import sliced
from micronpu.ops.tosa_windows import covering, fitted, requantized, spread

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
    accumulators: npt.NDArray[Any], x: TensorType, weight: TensorType, y: TensorType, activation: Activation
) -> npt.NDArray[Any]:
    """Requantize accumulators [..., channels] to y, per tensor or per channel, and apply the fused clamp."""
    assert weight.qparams is not None
    multiplier, shift = per_channel_multipliers(x.scale, weight.qparams.scale, y.scale)
    multiply = multiply_wide if x.dtype is DType.INT16 else multiply_by_quantized_multiplier
    scaled = multiply(accumulators, multiplier, shift) + y.zero_point
    return saturate(scaled, *activation.limits(y), y.dtype.value)


def window_elements(
    x: npt.NDArray[Any],
    y: TensorType,
    kernel: Size2d,
    stride: Size2d,
    padding: Padding2d,
    dilation: Size2d = (1, 1),
    fill: int = 0,
) -> Iterator[tuple[int, int, npt.NDArray[Any]]]:
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

    def taps(self, x: Value, weight: TensorType, y: TensorType) -> Iterator[tuple[int, int, npt.NDArray[Any]]]:
        """Yield row, column and inputs [N, OH, OW, C] minus the zero point for every kernel position."""
        return window_elements(x.centered, y, self.kernel(weight), self.stride, self.padding, self.dilation)

    def litert_fields(self, emit: LiteRtEmitter) -> dict[str, Any]:
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

    def reference(self, y: TensorType, x: Value, weight: Value, bias: Value) -> npt.NDArray[Any]:
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

    @from_aten(*CONVOLUTIONS, x="input", fuses=True)
    @classmethod
    def build(cls, node: AtenNode) -> Tensor:
        return build_convolution(node, 1 if node.overload.startswith("conv1d") else 2)

    def to_litert(self, emit: LiteRtEmitter) -> None:
        emit.add("CONV_2D", options="Conv2DOptions", fields=self.litert_fields(emit), version=3)

    def to_tosa(self, emit: TosaEmitter) -> TosaTensor:
        x, weight = emit.input_type(0), emit.input_type(1)
        if weight.shape[3] != x.channels:
            raise UnsupportedError(
                f"TOSA has no convolution in groups, as of {x.channels} channels with a kernel of {weight.shape[3]}.",
                hint="one convolution per group, as the importer makes them",
            )
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

    def reference(self, y: TensorType, x: Value, weight: Value, bias: Value) -> npt.NDArray[Any]:
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


def _channels(node: AtenNode, type: TensorType, data: npt.NDArray[Any], rows: slice) -> Tensor:
    """A slice of a constant's output channels."""
    qparams = type.qparams
    assert qparams is not None
    if qparams.axis is not None:
        qparams = QParams.per_channel(qparams.scale[rows], qparams.axis, qparams.zero_point[rows])
    return node.constant(data, TensorType(data.shape, type.dtype, qparams))


def _padding(node: AtenNode, spatial: int, size: Size2d, kernel: Size2d, stride: Size2d, dilation: Size2d) -> Padding2d:
    given = node.value("padding")
    if given == "valid":
        return Padding2d.none()
    if given == "same":
        return Padding2d.same(size, kernel, stride, dilation)
    return Padding2d.symmetric(*spatial_pair(node, "padding", spatial, 0))
