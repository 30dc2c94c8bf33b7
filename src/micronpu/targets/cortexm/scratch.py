"""Scratch memory of CMSIS-NN's kernels in bytes; it depends on the core's instruction set."""

from __future__ import annotations

from typing import Any

from micronpu.chips.core import Core
from micronpu.ir.graph import Node
from micronpu.ir.window import Padding2d, Size2d
from micronpu.ops.convolution import Conv2d, DepthwiseConv2d
from micronpu.upstream.executorch import cmsis_nn

_FEW_CHANNELS = 16
"""Maximum input channels of a transposed convolution; above it CMSIS-NN convolves with the reversed kernel."""
_SUM_BYTES = 4


def _bytes(query: str, core: Core, *arguments: Any, **geometry: Any) -> int:
    """Query CMSIS-NN for a size."""
    library = cmsis_nn()
    backend = getattr(library.Backend, core.instructions.value)
    return int(getattr(library, f"{query}_buffer_size")(backend, library.DataType.A8W8, *arguments, **geometry))


def _image(node: Node, filter: list[int], padding: Padding2d, stride: Size2d, dilation: Size2d) -> dict[str, Any]:
    """Arguments of CMSIS-NN's queries for all convolutions."""
    return {
        "input_nhwc": list(node.inputs[0].shape),
        "filter_nhwc": filter,
        "output_nhwc": list(node.output.shape),
        "padding_hw": [padding.top, padding.left],
        "stride_hw": list(stride),
        "dilation_hw": list(dilation),
        "input_offset": -node.inputs[0].type.zero_point,
        "output_offset": node.output.type.zero_point,
    }


def convolution_bytes(node: Node, core: Core) -> int:
    """Scratch bytes of a `conv2d` or `depthwise_conv2d`."""
    op = node.op
    assert isinstance(op, (Conv2d, DepthwiseConv2d))
    weight = node.inputs[1].shape
    if isinstance(op, Conv2d):
        return _bytes("convolve_wrapper", core, **_image(node, list(weight), op.padding, op.stride, op.dilation))
    image = _image(node, [weight[3], weight[1], weight[2], 1], op.padding, op.stride, op.dilation)
    return _bytes("depthwise_conv_wrapper", core, ch_mult=weight[3] // node.inputs[0].type.channels, **image)


def transposed_convolution_bytes(node: Node, core: Core) -> tuple[int, int]:
    """Bytes of the two scratch tensors of a `transpose_conv2d`."""
    op: Any = node.op
    image = _image(node, list(node.inputs[1].shape), op.crop, op.stride, (1, 1))
    first = _bytes("transpose_conv", core, **image)
    (_, rows, columns, channels), (high, wide) = node.inputs[1].shape, op.stride
    if channels <= _FEW_CHANNELS or max(op.stride) > 2:
        # At least as many rows of sums as the kernel has; the library of ExecuTorch 1.5 swaps the strides.
        sums = max(rows, high) * ((node.inputs[0].shape[2] - 1) * wide + max(columns, wide)) * node.output.shape[3]
        first = max(first, _SUM_BYTES * sums)
    del image["output_nhwc"]
    return first, _bytes("transpose_conv_reverse_conv", core, **image)


def average_pool_bytes(node: Node, core: Core) -> int:
    """Scratch bytes of an `avg_pool2d`."""
    width, channels = node.output.shape[2:]
    return _bytes("avgpool", core, dim_dst_width=width, ch_src=channels)


def batch_matmul_bytes(inner: int, columns: int, core: Core) -> int:
    """Scratch bytes of the product of [M, ``inner``] and [``inner``, ``columns``]."""
    return _bytes("fully_connected", core, filter_nhwc=[inner, -1, -1, columns])
