"""Rewrites of what Vela takes and had better not see: large strides, and slices of high rank.  All are exact."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from micronpu.ir.graph import Node, Tensor
from micronpu.ir.window import NO_PADDING
from micronpu.ops.convolution import Conv2d
from micronpu.ops.movement import Reshape, Transpose
from micronpu.ops.slicing import Slice
from micronpu.passes.rewrite import Chain, Rewrite, block

LARGEST_STRIDE = 3
"""What the hardware steps by itself, in each direction."""


class StridesIntoChannels(Rewrite):
    """A convolution with a large stride reads a block of pixels as the channels of one.

    x [N, H, W, C] -> conv2d{16x16, stride (16, 16)} -> y
    x -> reshape [N * H / 16, 16, W / 16, 16 * C] -> transpose(0, 2, 1, 3) -> reshape [N, H / 16, W / 16, 256 * C]
      -> conv2d{1x1} -> y

    Exact: the same products, and zeros where the kernel is no multiple of the stride.  On U55, 38.9 million cycles
    become 0.6 for the patches of a vision transformer (224x224, 192 channels), and 9.6 million 0.6 for 4x4 of ConvNeXt.
    """

    name = "strides_into_channels"

    def apply(self, node: Node) -> list[Node] | None:
        op = node.op
        if not isinstance(op, Conv2d) or max(op.stride) <= LARGEST_STRIDE or op.dilation != (1, 1):
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


DENSE_RANK = 4
"""Axes of a tensor that Vela cuts without trouble."""


class FlattenSlices(Rewrite):
    """A slice of a tensor of rank 5 or 6 as slices of rank 3, one per axis that is cut.

        x [1, 6, 8, 8, 4] -> slice(1:5 of axis 1) -> y
        x -> reshape [1, 6, 256] -> slice(1:5 of axis 1) -> reshape [1, 4, 8, 8, 4] -> y

    Vela 5.2 ends the process on some programs with slices of higher rank for U55 and U65, reshaped and joined again.
    """

    name = "flatten_slices"

    def apply(self, node: Node) -> list[Node] | None:
        op = node.op
        if not isinstance(op, Slice) or node.inputs[0].type.rank <= DENSE_RANK:
            return None
        x, chain = node.inputs[0], Chain(self.name, node)
        for axis, (begin, size) in enumerate(zip(op.begin, op.size, strict=True)):
            if size == x.shape[axis]:
                continue
            flat = block(x.shape, axis)
            cut = (*x.shape[:axis], size, *x.shape[axis + 1 :])
            x = chain.add(Slice((0, begin, 0), (flat[0], size, flat[2])), chain.add(Reshape(flat), x))
            x = chain.add(Reshape(cut), x)
        return chain.result(x, node.output)


TO_SPARE: tuple[Rewrite, ...] = (
    FlattenSlices(),
    StridesIntoChannels(),
)
"""Of what Vela takes, and has trouble with."""
