"""Pools that LiteRT cannot express, and pools that only select elements."""

from __future__ import annotations

from typing import Any

from micronpu.ir.graph import Graph, Tensor
from micronpu.ir.op import Op
from micronpu.ir.window import litert_padding
from micronpu.ops.pooling import AvgPool2d, MaxPool2d, by_parts, clipped_windows, pools
from micronpu.passes.base import Pass, Walk


class MergePicks(Pass):
    """Replaces two consecutive pools with windows of one element by one.

    x -> max_pool2d{1x1, stride (2,1)} -> max_pool2d{1x1, stride (1,2)} -> y        x -> max_pool2d{1x1, stride 2} -> y
    """

    name = "merge_picks"

    def run(self, graph: Graph) -> bool:
        walk = Walk(graph)
        for node in walk:
            first, op = walk.producer.get(node.inputs[0]), node.op
            if first is None or not _picks(op) or not _picks(first.op):
                continue
            assert isinstance(op, MaxPool2d) and isinstance(first.op, MaxPool2d)
            stride = (first.op.stride[0] * op.stride[0], first.op.stride[1] * op.stride[1])
            node.op, node.inputs = MaxPool2d((1, 1), stride), [first.inputs[0]]
            node.origin = node.origin.joined(first.origin).through(self.name)
            walk.changed = True
        return walk.changed


def _picks(op: Op) -> bool:
    return isinstance(op, MaxPool2d) and op.kernel == (1, 1) and not op.padding


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
