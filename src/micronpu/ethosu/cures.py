"""Which rewrite makes an operator fit for an Ethos-U that Vela refuses it for.  All are exact on the int8 grid."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace

import numpy as np

from micronpu.ethosu.rules import Judge
from micronpu.ir.graph import Graph, Node, Tensor
from micronpu.ir.types import QParams, TensorType
from micronpu.ops.concat import Concat
from micronpu.ops.convolution import Conv2d, DepthwiseConv2d
from micronpu.ops.fused import Padding2d
from micronpu.ops.movement import Reshape, Transpose
from micronpu.ops.pooling import MaxPool2d
from micronpu.ops.resize import ResizeNearest
from micronpu.ops.slicing import Slice
from micronpu.ops.transposed import TransposeConv2d
from micronpu.passes.base import Pass, Walk
from micronpu.passes.rewrite import Chain, Rewrite


class SplitTransposedConvolution(Rewrite):
    """A transposed convolution as one convolution that makes every phase of the result as channels of its own.

        x [N, H, W, C] -> transpose_conv2d(w [O, KH, KW, C], stride s) -> y
        x -> conv2d(w' [s * s * O, KH / s, KW / s, C], padding KH / s - 1) -> [N, H', W', s * s * O]
          -> reshape [N * H', W', s, s * O] -> transpose(0, 2, 1, 3) -> reshape [N, s * H', s * W', O] -> slice -> y

    Element ``s * i + r`` of the result is the sum of ``w[s * t + r] * x[i - t]``, whatever the stride: a convolution.
    Where s does not divide the kernel, its missing elements are zero.  Costs as many products as before, rounded up to
    whole phases, and a transpose.
    """

    name = "split_transposed_convolution"

    def apply(self, node: Node, lanes: int) -> list[Node] | None:
        op = node.op
        if not isinstance(op, TransposeConv2d) or node.inputs[1].data is None or node.inputs[2].data is None:
            return None
        (x, weight, bias), y = node.inputs, node.output
        (down, across), (outputs, high, wide, depth) = op.stride, weight.shape
        taps = (-(-high // down), -(-wide // across))
        filled = np.zeros((outputs, taps[0] * down, taps[1] * across, depth), np.int8)
        filled[:, :high, :wide] = weight.data
        # [O, T, s, U, s, C] to [s, s, O, T, U, C]; a convolution reads from the last element to the first.
        apart = filled.reshape(outputs, taps[0], down, taps[1], across, depth).transpose(2, 4, 0, 1, 3, 5)
        kernels = apart[:, :, :, ::-1, ::-1].reshape(down * across * outputs, *taps, depth)
        phases = down * across
        chain = Chain(self.name, node)
        sums = chain.add(
            Conv2d((1, 1), Padding2d.symmetric(taps[0] - 1, taps[1] - 1), (1, 1), op.activation),
            x,
            _constant("weight", np.ascontiguousarray(kernels), weight.type, phases),
            _constant("bias", np.tile(bias.data, phases), bias.type, phases),
            qparams=y.type.qparams,
        )
        count, rows, columns, _ = sums.shape
        apart_rows = chain.add(Reshape((count * rows, columns, down, across * outputs)), sums)
        moved = chain.add(Transpose((0, 2, 1, 3)), apart_rows)
        full = chain.add(Reshape((count, rows * down, columns * across, outputs)), moved)
        return chain.finish(Slice((0, op.crop.top, op.crop.left, 0), y.shape), full, y)


def _constant(name: str, data: np.ndarray[tuple[int, ...], np.dtype[np.generic]], type: TensorType, times: int) -> Tensor:
    """A constant whose outputs are those of another, several times over, with its scales."""
    qparams = type.qparams
    if qparams is not None and qparams.axis is not None:
        qparams = QParams(qparams.scale * times, qparams.zero_point * times, qparams.axis)
    return Tensor(name, TensorType(data.shape, type.dtype, qparams), data)


class CopyNearest(Rewrite):
    """Resizing to a multiple by the nearest element as copies of columns, then of rows.

        x [N, H, W, C] -> resize_nearest{3H, 3W} -> y
        x -> concat(x, x, x) along C -> reshape [N * H, 1, 3 * W, C] -> concat along the new axis -> reshape -> y
    """

    name = "copy_nearest"

    def apply(self, node: Node, lanes: int) -> list[Node] | None:
        op, x, y = node.op, node.inputs[0], node.output
        if not isinstance(op, ResizeNearest):
            return None
        count, rows, columns, channels = x.shape
        (down, down_rest), (across, across_rest) = divmod(op.size[0], rows), divmod(op.size[1], columns)
        if down_rest or across_rest or max(down, across) > _MOST_COPIES:
            return None
        for before, after, times in ((rows, op.size[0], down), (columns, op.size[1], across)):
            if not np.array_equal(op.sources(before, after), np.repeat(np.arange(before), times)):
                return None  # align_corners repeats the inner elements more often
        chain = Chain(self.name, node)
        wide = chain.add(Concat(3), *[x] * across) if across > 1 else x
        lines = chain.add(Reshape((count * rows, 1, columns * across, channels)), wide)
        copies = chain.add(Concat(1), *[lines] * down) if down > 1 else lines
        return chain.finish(Reshape(y.shape), copies, y)


class PickFromDepthwise(Rewrite):
    """A depthwise convolution with large strides as one with stride 1, of whose results the wanted ones are picked.

        x -> depthwise_conv2d{stride 4} -> y        x -> depthwise_conv2d{stride 1} -> max_pool2d{1x1, stride 4} -> y

    Costs as many products as there are elements in a block of the strides for each that was needed.
    """

    name = "pick_from_depthwise"

    def apply(self, node: Node, lanes: int) -> list[Node] | None:
        op, y = node.op, node.output
        if not isinstance(op, DepthwiseConv2d) or op.stride == (1, 1):
            return None
        chain = Chain(self.name, node)
        dense = chain.add(replace(op, stride=(1, 1)), *node.inputs, qparams=y.type.qparams)
        # Windows that no step reaches stand behind the last one that is wanted.
        size = [(n - 1) * s + 1 for n, s in zip(y.shape[1:3], op.stride, strict=True)]
        if dense.shape[1:3] != tuple(size):
            dense = chain.add(Slice((0, 0, 0, 0), (dense.shape[0], *size, dense.shape[3])), dense)
        return chain.finish(MaxPool2d((1, 1), op.stride), dense, y)


_MOST_COPIES = 16

_DENSE_RANK = 4


class FlattenSlices(Pass):
    """A slice of a tensor of rank 5 or 6 as slices of rank 3, one per axis that is cut.

        x [1, 6, 8, 8, 4] -> slice(1:5 of axis 1) -> y
        x -> reshape [1, 6, 256] -> slice(1:5 of axis 1) -> reshape [1, 4, 8, 8, 4] -> y

    Vela 5.2 ends the process on some programs with slices of higher rank for U55 and U65, reshaped and joined again.
    """

    name = "flatten_slices"

    def run(self, graph: Graph) -> bool:
        walk = Walk(graph)
        for node in walk:
            op, x = node.op, node.inputs[0] if node.inputs else None
            if not isinstance(op, Slice) or x is None or x.type.rank <= _DENSE_RANK:
                continue
            for axis, (begin, size) in enumerate(zip(op.begin, op.size, strict=True)):
                shape = x.shape
                if size == shape[axis]:
                    continue
                flat = (math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :]))
                cut = (*shape[:axis], size, *shape[axis + 1 :])
                steps = (Reshape(flat), Slice((0, begin, 0), (flat[0], size, flat[2])), Reshape(cut))
                for step in steps:
                    x = walk.insert(self.make(step, [x], node.origin))
            walk.replace(node.output, x)
        if walk.changed:
            graph.remove_dead()
        return walk.changed


CURES: tuple[Rewrite, ...] = (SplitTransposedConvolution(), CopyNearest(), PickFromDepthwise())


def cure(node: Node, judge: Judge, disabled: Collection[str] = ()) -> list[Node] | None:
    """What stands in an operator's stead after the first rewrite after which Vela takes all of it, or None."""
    for rewrite in CURES:
        nodes = None if rewrite.name in disabled else rewrite.apply(node, 1)
        if nodes and not any(judge(n) for n in nodes):
            return nodes
    return None


def cure_name(node: Node, judge: Judge, disabled: Collection[str] = ()) -> str | None:
    """Name of the rewrite that makes an operator fit, or None."""
    nodes = cure(node, judge, disabled)
    return nodes[0].origin.passes[-1] if nodes else None


def cure_graph(graph: Graph, judge: Judge, disabled: Collection[str] = ()) -> None:
    """Puts cures in the place of the operators that Vela refuses, in an imported graph."""
    nodes: list[Node] = []
    for node in graph.nodes:
        nodes += (cure(node, judge, disabled) if judge(node) else None) or [node]
    graph.nodes = nodes
