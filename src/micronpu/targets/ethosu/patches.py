"""Convolutions with large strides, which Vela takes apart into one operation per few windows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from micronpu.ir.graph import Graph, Node, Tensor
from micronpu.ir.window import NO_PADDING
from micronpu.ops.convolution import Conv2d
from micronpu.ops.movement import Transpose
from micronpu.passes.base import Pass
from micronpu.passes.rewrite import Chain

_LARGEST_STRIDE = 3
"""What the hardware steps by itself, in each direction."""


class StridesIntoChannels(Pass):
    """A convolution with a large stride reads a block of pixels as the channels of one.

    x [N, H, W, C] -> conv2d{16x16, stride (16, 16)} -> y
    x -> reshape [N * H / 16, 16, W / 16, 16 * C] -> transpose(0, 2, 1, 3) -> reshape [N, H / 16, W / 16, 256 * C]
      -> conv2d{1x1} -> y

    Exact: the same products, and zeros where the kernel is no multiple of the stride.  On U55, 38.9 million cycles
    become 0.6 for the patches of a vision transformer (224x224, 192 channels), and 9.6 million 0.6 for 4x4 of ConvNeXt.
    """

    name = "strides_into_channels"

    def run(self, graph: Graph) -> bool:
        nodes: list[Node] = []
        for node in graph.nodes:
            nodes += self._without_stride(node) or [node]
        changed = len(nodes) > len(graph.nodes)
        graph.nodes = nodes
        return changed

    def _without_stride(self, node: Node) -> list[Node] | None:
        op = node.op
        if not isinstance(op, Conv2d) or max(op.stride) <= _LARGEST_STRIDE or op.dilation != (1, 1):
            return None
        x, weight, bias = node.inputs
        if weight.data is None or weight.shape[3] != x.shape[3]:
            return None  # groups would be mixed
        chain = Chain(self.name, node)
        down, across = op.stride
        kernel = [-(-size // step) for size, step in zip(weight.shape[1:3], op.stride, strict=True)]
        for axis, step, size, before in ((1, down, kernel[0], op.padding.top), (2, across, kernel[1], op.padding.left)):
            x = _filled(chain, x, axis, before, (node.output.shape[axis] - 1 + size) * step)
        n, height, width, depth = x.shape
        x = chain.reshape(x, n * height // down, down, width // across, across * depth)
        if down > 1:
            x = chain.add(Transpose((0, 2, 1, 3)), x)
        x = chain.reshape(x, n, height // down, width // across, down * across * depth)
        blocks = _in_blocks(weight, kernel, op.stride)
        y = chain.add(replace(op, stride=(1, 1), padding=NO_PADDING), x, blocks, bias, qparams=node.output.type.qparams)
        return chain.result(y, node.output)


def _filled(chain: Chain, x: Tensor, axis: int, before: int, size: int) -> Tensor:
    """x with zeros in front, and with zeros or less behind, so that an axis has a size."""
    after = size - before - x.shape[axis]
    if after < 0:
        x, after = chain.cut(x, axis, 0, x.shape[axis] + after), 0
    return chain.padded(x, axis, before, after) if before or after else x


def _in_blocks(weight: Tensor, kernel: list[int], stride: tuple[int, int]) -> Tensor:
    """Weights [O, KH, KW, C] as [O, KH / s, KW / t, s * t * C], with zeros where the kernel ends inside of a block."""
    outputs, rows, columns, depth = weight.shape
    (high, wide), (down, across) = kernel, stride
    assert weight.data is not None
    full = np.zeros((outputs, high * down, wide * across, depth), weight.data.dtype)
    full[:, :rows, :columns] = weight.data
    data = full.reshape(outputs, high, down, wide, across, depth).transpose(0, 1, 3, 2, 4, 5)
    shape = (outputs, high, wide, down * across * depth)
    return Tensor(weight.name, weight.type.with_shape(shape), np.ascontiguousarray(data.reshape(shape)))
