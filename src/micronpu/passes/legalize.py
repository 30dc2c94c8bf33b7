"""Passes to forms that LiteRT can express."""

from __future__ import annotations

import math
from dataclasses import replace

from micronpu.base.errors import InternalError
from micronpu.ir.graph import Graph, Node, Origin, Tensor
from micronpu.ir.op import Op
from micronpu.ir.window import Padding2d, litert_padding
from micronpu.ops.convolution import Conv2d, DepthwiseConv2d
from micronpu.ops.movement import Pad, Reshape
from micronpu.ops.pooling import AvgPool2d, MaxPool2d
from micronpu.passes.base import Pass, Walk


class SplitPads(Pass):
    """Makes a padding that LiteRT cannot express a separate operator; equal paddings share one.

    x -> conv2d{padding=(5,5,1,1)} -> y                  x -> pad(h 5/5, w 1/1) -> conv2d -> y
    x -> max_pool2d{padding=(1,1,1,1)} -> y              x -> pad(-inf) -> max_pool2d -> y
    x -> avg_pool2d{padding, count_padding} -> y         x -> pad -> avg_pool2d -> y
    """

    name = "split_pads"

    def run(self, graph: Graph) -> bool:
        made: dict[tuple[Tensor, Op], Tensor] = {}
        walk = Walk(graph)
        for node in walk:
            split = self._split(node)
            if split is None:
                continue
            pad, node.op = split
            x = node.inputs[0]
            if (x, pad) not in made:
                made[x, pad] = walk.insert(self.make(pad, [x], node.origin))
            node.inputs = [made[x, pad], *node.inputs[1:]]
            node.origin = node.origin.through(self.name)
        return walk.changed

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
        return pad, replace(op, padding=Padding2d.none())


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
