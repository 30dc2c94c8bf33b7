"""Passes to forms that LiteRT or TOSA can express."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from micronpu.base.errors import InternalError
from micronpu.ir.graph import Graph, Node, Origin, Tensor
from micronpu.ir.op import Op, Permutation
from micronpu.ir.window import NO_PADDING, Padding2d, litert_padding
from micronpu.ops.convolution import Conv2d, DepthwiseConv2d
from micronpu.ops.movement import Pad, Reshape
from micronpu.ops.pooling import AvgPool2d, MaxPool2d, by_parts, clipped_windows, pools
from micronpu.passes.base import MergePairs, NodePass, Pass, Walk
from micronpu.passes.fusion import FoldPads


class SplitPads(NodePass):
    """Makes a padding that LiteRT cannot express a separate operator; equal paddings share one.

    x -> conv2d{padding=(5,5,1,1)} -> y                  x -> pad(h 5/5, w 1/1) -> conv2d -> y
    x -> max_pool2d{padding=(1,1,1,1)} -> y              x -> pad(-inf) -> max_pool2d -> y
    x -> avg_pool2d{padding, count_padding} -> y         x -> pad -> avg_pool2d -> y
    """

    name = "split_pads"

    def visit(self, node: Node, walk: Walk) -> None:
        split = self._split(node)
        if split is None:
            return
        pad, node.op = split
        x = node.inputs[0]
        if (x, pad) not in walk.made:
            walk.made[x, pad] = walk.insert(self.make(pad, [x], node.origin))
        node.inputs = [walk.made[x, pad], *node.inputs[1:]]
        node.origin = node.origin.through(self.name)

    @staticmethod
    def _split(node: Node) -> tuple[Pad, Op] | None:
        """Return the padding and the operator without it, or None if nothing has to change."""
        op, size = node.op, node.inputs[0].shape[1:3]
        if isinstance(op, (Conv2d, DepthwiseConv2d)):
            word = litert_padding(size, op.kernel(node.inputs[1].type), op.stride, op.padding, op.dilation)
        elif isinstance(op, (MaxPool2d, AvgPool2d)):
            word = litert_padding(size, op.kernel, op.stride, op.padding)
            if isinstance(op, AvgPool2d) and op.padding:
                if word is None and not op.count_padding:
                    raise InternalError(f"`{node}` leaves out a padding that LiteRT cannot express.")
                word = None if op.count_padding else word  # LiteRT's average pool does not count padding
        else:
            return None
        if word is not None:
            return None
        p, value = op.padding, -math.inf if isinstance(op, MaxPool2d) else 0.0
        pad = Pad((0, p.top, p.left, 0), (0, p.bottom, p.right, 0), value)
        return pad, replace(op, padding=NO_PADDING)


class CopyOutputs(Pass):
    """Makes every output of the graph the result of an operator, and all outputs different tensors.

    A delegate call writes each output into a separate buffer.

    graph(x) { return x }                  y = reshape(x); return y
    graph(x) { y = ...; return y, y }      y = ...; z = reshape(y); return y, z
    """

    name = "copy_outputs"

    def run(self, graph: Graph) -> bool:
        producer = graph.producers()
        taken: set[Tensor] = set()
        changed = False
        for index, tensor in enumerate(graph.outputs):
            if tensor in taken or tensor not in producer:
                origin = producer[tensor].origin if tensor in producer else Origin()
                copy = self.make(Reshape(tensor.shape), [tensor], origin)
                graph.nodes.append(copy)
                graph.outputs[index] = tensor = copy.output
                changed = True
            taken.add(tensor)
        return changed


class MergePicks(MergePairs):
    """Replaces two consecutive pools with windows of one element by one.

    x -> max_pool2d{1x1, stride (2,1)} -> max_pool2d{1x1, stride (1,2)} -> y        x -> max_pool2d{1x1, stride 2} -> y
    """

    name = "merge_picks"

    kind = MaxPool2d

    def merged(self, first: MaxPool2d, second: MaxPool2d) -> MaxPool2d | None:
        if any(op.kernel != (1, 1) or op.padding for op in (first, second)):
            return None
        return MaxPool2d((1, 1), (first.stride[0] * second.stride[0], first.stride[1] * second.stride[1]))


class SplitAveragePools(Pass):
    """Splits an average pool that excludes padding other than LiteRT's SAME into pools of its border and interior.

    x -> avg_pool2d{3x3, stride 2, padding 1} -> y        x -> slice -> avg_pool2d{2x2} ─┐
                                                          x -> slice -> avg_pool2d{2x3} ─┤ concat -> y
                                                          ..                             ─┘
    """

    name = "split_average_pools"

    def run(self, graph: Graph) -> bool:
        walk = Walk(graph)
        for node in walk:
            op = node.op
            if not isinstance(op, AvgPool2d) or op.count_padding:
                continue
            x = node.inputs[0]
            if litert_padding(x.shape[1:3], op.kernel, op.stride, op.padding) is not None:
                continue
            sides = (op.padding.rows, op.padding.columns)
            rows, columns = (
                clipped_windows(n, k, s, p)
                for n, k, s, p in zip(x.shape[1:3], op.kernel, op.stride, sides, strict=True)
            )
            origin = node.origin

            def emit(part: Op, *inputs: Tensor, origin: Any = origin) -> Tensor:
                return walk.insert(self.make(part, list(inputs), origin))

            walk.replace(node.output, by_parts(emit, x, rows, columns, pools(emit, AvgPool2d)))
        if walk.changed:
            graph.remove_dead()
        return walk.changed


class FoldLowestPads(FoldPads):
    """Fuses padding with the lowest number into the max pool that follows; TOSA pads by less than the window on each
    side.

    x -> pad(-inf, h 1/1, w 1/1) -> max_pool2d{kernel=3} -> y        x -> max_pool2d{kernel=3, padding=1} -> y
    """

    name = "fold_lowest_pads"

    @staticmethod
    def _with_padding(op: Op, pad: Pad, x: Tensor, order: Permutation | None) -> Op | None:
        if order is not None or not isinstance(op, MaxPool2d) or pad.integer(x.type) != x.type.dtype.limits[0]:
            return None
        if any((pad.before[0], pad.after[0], pad.before[3], pad.after[3])):
            return None
        sides = op.padding + Padding2d(pad.before[1], pad.after[1], pad.before[2], pad.after[2])
        fits = max(sides.rows) < op.kernel[0] and max(sides.columns) < op.kernel[1]
        return replace(op, padding=sides) if fits else None


LEGALIZE_TOSA: tuple[Pass, ...] = (FoldPads(), FoldLowestPads())
"""Run once before TOSA is written: fuses padding into the operators, which TOSA can express."""
