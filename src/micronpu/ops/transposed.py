"""Transposed convolutions with constant weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from micronpu.base.errors import InternalError, UnsupportedError
from micronpu.ir.aten import AtenArguments, AtenNode, spatial_pair
from micronpu.ir.graph import Tensor
from micronpu.ir.op import QuantizationRule, Rescaling, Value, weighted
from micronpu.ir.registry import from_aten, operator
from micronpu.ir.types import DType, QParams, TensorType
from micronpu.ir.window import NO_PADDING, Activation, Padding2d, Size2d
from micronpu.ops.constants import fused_activation, with_bias
from micronpu.ops.convolution import build_convolution, in_groups, requantize_accumulators
from micronpu.ops.movement import Pad, from_image, to_image
from micronpu.ops.slicing import Slice
from micronpu.ops.tosa_windows import transposed

if TYPE_CHECKING:
    from micronpu.emit.litert import LiteRtEmitter
    from micronpu.emit.tosa import TosaEmitter, TosaTensor

TRANSPOSED = ("conv_transpose1d.default", "conv_transpose2d.input")
WEIGHT_AXIS = 1
"""Axis of the output channels in PyTorch's weights."""


def _either(node: AtenArguments) -> QuantizationRule:
    """``convolution`` is one operator for both directions."""
    return weighted(WEIGHT_AXIS if node.value("transposed") else 0)


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

    def reference(self, y: TensorType, x: Value, weight: Value, bias: Value) -> npt.NDArray[Any]:
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

    @from_aten(*TRANSPOSED, quantization=weighted(WEIGHT_AXIS), x="input", fuses=True)
    @classmethod
    def build(cls, node: AtenNode) -> Tensor:
        return build_transposed(node, 1 if node.overload.startswith("conv_transpose1d") else 2)

    @from_aten("convolution.default", quantization=_either, x="input", fuses=True)
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
    weight, qparams = node.weight("weight")
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
    if qparams.axis not in (None, WEIGHT_AXIS):
        raise UnsupportedError(
            f"The weights of `{node.overload}` have a scale per index of axis {qparams.axis}, not per output channel.",
            hint=f"quantize them along axis {WEIGHT_AXIS}",
        )
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
