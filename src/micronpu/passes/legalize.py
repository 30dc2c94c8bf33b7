"""Passes to the forms that LiteRT has words for."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from micronpu.ir.graph import Graph, Node
from micronpu.ops.convolution import Conv2d, DepthwiseConv2d
from micronpu.ops.fused import Padding2d, litert_padding
from micronpu.ops.movement import Pad
from micronpu.ops.pooling import AvgPool2d, MaxPool2d
from micronpu.passes.base import Pass


class SplitPads(Pass):
    """A padding that is neither VALID nor SAME becomes an operator of its own.

    x -> conv2d{padding=(5,5,1,1)} -> y        x -> pad(h 5/5, w 1/1) -> conv2d -> y
    """

    name = "split_pads"

    def run(self, graph: Graph) -> bool:
        nodes: list[Node] = []
        for node in graph.nodes:
            op: Any = node.op
            if isinstance(op, (Conv2d, DepthwiseConv2d)):
                needed = litert_padding(
                    node.inputs[0].shape[1:3], op.kernel(node.inputs[1].type), op.stride, op.padding, op.dilation
                )
                value = 0.0
            elif isinstance(op, (MaxPool2d, AvgPool2d)):
                needed = litert_padding(node.inputs[0].shape[1:3], op.kernel, op.stride, op.padding)
                value = -math.inf if isinstance(op, MaxPool2d) else 0.0
                if isinstance(op, AvgPool2d) and op.count_padding and op.padding:
                    needed = None  # LiteRT's average pool does not count padding
            else:
                needed, value = "VALID", 0.0
            if needed is None:
                p = op.padding
                pad = self.make(
                    Pad((0, p.top, p.left, 0), (0, p.bottom, p.right, 0), value), [node.inputs[0]], node.origin
                )
                nodes.append(pad)
                plain = replace(op, padding=Padding2d.none())
                node.op = replace(plain, count_padding=False) if isinstance(plain, AvgPool2d) else plain
                node.inputs = [pad.output, *node.inputs[1:]]
                node.origin = node.origin.through(self.name)
            nodes.append(node)
        changed = len(nodes) != len(graph.nodes)
        graph.nodes = nodes
        return changed
