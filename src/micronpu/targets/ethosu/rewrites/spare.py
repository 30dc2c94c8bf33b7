"""Rewrites of forms that Vela accepts but handles badly: large strides, and tensors of high rank. All are exact."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from micronpu.ir.graph import Node, Tensor
from micronpu.ir.window import NO_PADDING
from micronpu.ops.convolution import Conv2d
from micronpu.ops.movement import Reshape, Transpose
from micronpu.ops.slicing import Slice
from micronpu.passes.rewrite import Chain, Rewrite, RewriteOf, block

LARGEST_STRIDE = 3
"""Largest stride that the hardware supports, in each direction."""


class StridesIntoChannels(RewriteOf[Conv2d]):
    """Combines the pixels of one stride of a convolution with a large stride into channels.

    x [N, H, W, C] -> conv2d{16x16, stride (16, 16)} -> y
    x -> reshape [N * H / 16, 16, W / 16, 16 * C] -> transpose(0, 2, 1, 3) -> reshape [N, H / 16, W / 16, 256 * C]
      -> conv2d{1x1} -> y

    Exact: the same products, and zeros if the kernel is not a multiple of the stride. On U55, 38.9 million cycles
        become 0.6 for the patches of a vision transformer (224x224, 192 channels), 9.6 million 0.6 for ConvNeXt (4x4).
    """

    name = "strides_into_channels"

    def replaced(self, node: Node, op: Conv2d, chain: Chain) -> list[Node] | None:
        if max(op.stride) <= LARGEST_STRIDE or op.dilation != (1, 1):
            return None
        x, weight, bias = node.inputs
        if weight.data is None or weight.shape[3] != x.shape[3]:
            return None  # groups would be mixed
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
    """x with zeros added before and zeros added or elements removed after, to the given size of an axis."""
    after = size - before - x.shape[axis]
    if after < 0:
        x, after = chain.cut(x, axis, 0, x.shape[axis] + after), 0
    return chain.padded(x, axis, before, after) if before or after else x


def _in_blocks(weight: Tensor, kernel: list[int], stride: tuple[int, int]) -> Tensor:
    """Weights [O, KH, KW, C] as [O, KH / s, KW / t, s * t * C], with zeros if the kernel ends inside of a block."""
    outputs, rows, columns, depth = weight.shape
    (high, wide), (down, across) = kernel, stride
    assert weight.data is not None
    full = np.zeros((outputs, high * down, wide * across, depth), weight.data.dtype)
    full[:, :rows, :columns] = weight.data
    data = full.reshape(outputs, high, down, wide, across, depth).transpose(0, 1, 3, 2, 4, 5)
    shape = (outputs, high, wide, down * across * depth)
    return Tensor(weight.name, weight.type.with_shape(shape), np.ascontiguousarray(data.reshape(shape)))


DENSE_RANK = 4
"""Maximum rank of a tensor that Vela slices reliably."""
_MOST_MOVED = 65536
"""Maximum elements of a transpose of more than four axes, and rows of one of four, that Vela accepts."""


class FlattenSlices(RewriteOf[Slice]):
    """A slice of a tensor of rank 5 or 6 as slices of rank 3, one per sliced axis.

        x [1, 6, 8, 8, 4] -> slice(1:5 of axis 1) -> y
        x -> reshape [1, 6, 256] -> slice(1:5 of axis 1) -> reshape [1, 4, 8, 8, 4] -> y

    Vela 5.2 crashes for some programs on U55 and U65 with slices of higher rank that are reshaped and concatenated.
    """

    name = "flatten_slices"

    def replaced(self, node: Node, op: Slice, chain: Chain) -> list[Node] | None:
        if node.inputs[0].type.rank <= DENSE_RANK:
            return None
        x = node.inputs[0]
        for axis, (begin, size) in enumerate(zip(op.begin, op.size, strict=True)):
            if size == x.shape[axis]:
                continue
            flat = block(x.shape, axis)
            cut = (*x.shape[:axis], size, *x.shape[axis + 1 :])
            x = chain.add(Slice((0, begin, 0), (flat[0], size, flat[2])), chain.add(Reshape(flat), x))
            x = chain.add(Reshape(cut), x)
        return chain.result(x, node.output)


class FlattenTransposes(RewriteOf[Transpose]):
    """A transpose of minimum rank, or a large one as several swaps of the first two of three axes.

    x [1, 196, 3, 12, 32] -> transpose(2, 0, 3, 1, 4)    x -> reshape [196, 36, 32] -> transpose(1, 0, 2) -> reshape
    x [2, 300, 300, 16] -> transpose(0, 2, 1, 3)         x -> swap [600, 300, 16] -> swap [300, 2, 4800] -> reshape

    Vela 5.2 accepts transposes of three axes of any size, those of more axes only up to a number of elements.
    """

    name = "flatten_transposes"

    def replaced(self, node: Node, op: Transpose, chain: Chain) -> list[Node] | None:
        if has_plain_axes(node):
            return None
        sizes, order = merged(node.inputs[0].shape, op.permutation)
        x = chain.reshape(node.inputs[0], *sizes)
        if order == tuple(sorted(order)):
            return chain.result(x, node.output)
        if _is_taken(sizes):
            return chain.result(chain.add(Transpose(order), x), node.output)
        axes = tuple(range(len(sizes)))
        for first, second in _swaps(order):
            shape = [math.prod(sizes[a] for a in part) for part in (axes[:first], axes[first:second], axes[second:])]
            x = chain.add(Transpose((1, 0, 2)), chain.reshape(x, *shape))
            axes = axes[first:second] + axes[:first] + axes[second:]
        return chain.result(x, node.output)


def has_plain_axes(node: Node) -> bool:
    """True if Vela supports the axes of a transpose."""
    assert isinstance(node.op, Transpose)
    x = node.inputs[0].type
    sizes, _ = merged(x.shape, node.op.permutation)
    return (x.rank <= DENSE_RANK or x.rank == len(sizes)) and _is_taken(sizes)


def merged(shape: tuple[int, ...], permutation: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Sizes and permutation of the same transpose, without axes of size 1, and with jointly moved axes merged."""
    runs: list[list[int]] = []
    for axis in (a for a in permutation if shape[a] != 1):
        if runs and all(shape[a] == 1 for a in range(runs[-1][-1] + 1, axis)) and runs[-1][-1] < axis:
            runs[-1].append(axis)
        else:
            runs.append([axis])
    before = sorted(runs)
    return tuple(math.prod(shape[a] for a in r) for r in before), tuple(before.index(r) for r in runs)


def _is_taken(sizes: tuple[int, ...]) -> bool:
    """True if Vela accepts transposes of these sizes in any order for every Ethos-U."""
    if len(sizes) <= 3:
        return True
    return math.prod(sizes[:-1] if len(sizes) == DENSE_RANK else sizes) <= _MOST_MOVED


def _swaps(order: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """The fewest swaps of the first two of three parts that give the order: positions where these two end."""
    start = tuple(range(len(order)))
    known: dict[tuple[int, ...], tuple[tuple[int, int], ...]] = {start: ()}
    waiting = [start]
    for axes in waiting:
        if axes == order:
            break
        for second in range(2, len(axes) + 1):
            for first in range(1, second):
                after = axes[first:second] + axes[:first] + axes[second:]
                if after not in known:
                    known[after] = (*known[axes], (first, second))
                    waiting.append(after)
    yield from known[order]


TO_SPARE: tuple[Rewrite, ...] = (FlattenSlices(), FlattenTransposes(), StridesIntoChannels())
"""Applied to operators that Vela accepts but handles badly."""
