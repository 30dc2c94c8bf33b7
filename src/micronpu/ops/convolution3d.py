"""A convolution over depth, height and width as one over height and width."""

from __future__ import annotations

from micronpu.base.errors import UnsupportedError
from micronpu.ir.aten import AtenNode, sizes_of
from micronpu.ir.graph import Tensor
from micronpu.ir.op import weighted
from micronpu.ir.registry import imports
from micronpu.ir.types import DType, QParams, TensorType
from micronpu.ir.window import Padding2d
from micronpu.ops.concat import Concat
from micronpu.ops.constants import fused_activation, quantized_weights
from micronpu.ops.convolution import Conv2d
from micronpu.ops.movement import Pad, inverse, reshaped, transposed
from micronpu.ops.striding import strided

CONVOLUTIONS_3D = ("conv3d.default", "conv3d.padding")
_CHANNELS_LAST = (0, 2, 3, 4, 1)


@imports("conv3d.default", x="input", quantization=weighted(), moves_only=False, fuses=True)
def build_conv3d(node: AtenNode) -> Tensor:
    """Convert the depth slices of a window to channels of one image, and the depth to the batch.

    x [N, D, H, W, C] -> pad D -> slice D at each position of the window -> reshape [N * OD, H, W, C] each ┐
                                                                            concat [N * OD, H, W, KD * C] ┘
      -> conv2d(w [O, KH, KW, KD * C]) -> reshape [N, OD, OH, OW, O]

    Exact: the sums have the same products.
    """
    if int(node.value("groups")) != 1:
        raise UnsupportedError(f"`conv3d` with {node.value('groups')} groups is not imported.", hint="groups=1")
    x = node.tensor("x")
    if len(x.shape) not in (4, 5):
        raise UnsupportedError(f"`conv3d` of a tensor of rank {len(x.shape)} is not imported.")
    x = reshaped(node, x, (1,) * (5 - len(x.shape)) + x.shape)
    weight, qparams, bias = quantized_weights(node, x.type)
    stride, padding, dilation = (sizes_of(node, name, 3) for name in ("stride", "padding", "dilation"))
    image = transposed(node, x, _CHANNELS_LAST)
    count, depth, height, width, channels = image.shape
    # Rank 4, because Vela 5.2 crashes on slices of a padded tensor of rank 5.
    rows = reshaped(node, image, (count, depth, height * width, channels))
    if padding[0]:
        sides = (0, padding[0], 0, 0)
        rows = node.emit(Pad(sides, sides), rows)
    depth = rows.shape[1]
    outputs, _, taps, high, wide = weight.shape
    reach = depth - dilation[0] * (taps - 1)
    parts = []
    for i in range(taps):
        tap = strided(node, rows, 1, i * dilation[0], i * dilation[0] + reach, stride[0])
        parts.append(reshaped(node, tap, (count * tap.shape[1], height, width, channels)))
    slices = node.emit(Concat(3), *parts) if len(parts) > 1 else parts[0]
    ordered = weight.transpose(0, 3, 4, 2, 1).reshape(outputs, high, wide, taps * channels)
    if qparams.axis is not None:
        qparams = QParams.per_channel(qparams.scale, 0)
    constant = node.constant(ordered, TensorType(ordered.shape, DType.INT8, qparams))
    op = Conv2d(
        (stride[1], stride[2]), Padding2d.symmetric(*padding[1:]), (dilation[1], dilation[2]), fused_activation(node)
    )
    y = node.emit(op, slices, constant, bias, qparams=node.output)
    y = reshaped(node, y, (count, y.shape[0] // count, *y.shape[1:]))
    return reshaped(node, transposed(node, y, inverse(_CHANNELS_LAST)), node.shape)
