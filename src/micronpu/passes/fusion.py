"""Passes that let one operator do the work of two."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from micronpu.ir.graph import Graph, Node, Tensor
from micronpu.ops.activation import Relu
from micronpu.ops.base import Op
from micronpu.ops.convolution import Conv2d, DepthwiseConv2d
from micronpu.ops.elementwise import Add
from micronpu.ops.fused import Activation, Padding2d
from micronpu.ops.linear import FullyConnected
from micronpu.ops.movement import Pad, Permutation, Transpose
from micronpu.ops.pooling import AvgPool2d
from micronpu.passes.base import Pass


class FuseActivations(Pass):
    """A clamp on the grid of its operand goes into the operator before.

    x -> conv2d -> relu (same scale and zero point) -> y        x -> conv2d{activation=relu} -> y
    """

    name = "fuse_activations"

    def run(self, graph: Graph) -> bool:
        producer, users = graph.producers(), graph.users()
        changed = False
        for node in graph.nodes:
            first = producer.get(node.inputs[0])
            if not isinstance(node.op, Relu) or first is None or not node.op.kind.can_fuse:
                continue
            op: Any = first.op
            if (
                isinstance(op, (Conv2d, DepthwiseConv2d, FullyConnected, Add))
                and op.activation is Activation.NONE
                and node.inputs[0].type == node.output.type
                and len(users[first.output]) == 1
                and first.output not in graph.outputs
            ):
                first.op = replace(op, activation=node.op.kind)
                first.origin = first.origin.joined(node.origin).through(self.name)
                graph.replace_uses(node.output, first.output)
                changed = True
        return changed


class FoldPads(Pass):
    """Padding with zeros goes into the window operator that follows, where that one counts padding as zeros too.

    x -> pad(h 0/1, w 0/1) -> conv2d{stride=2} -> y        x -> conv2d{stride=2, padding=(0,1,0,1)} -> y
    x -> pad -> transpose -> conv2d -> y                   x -> transpose -> conv2d{padding} -> y
    """

    name = "fold_pads"

    def run(self, graph: Graph) -> bool:
        producer = graph.producers()
        nodes: list[Node] = []
        changed = False
        for node in graph.nodes:
            operand, transpose = node.inputs[0], producer.get(node.inputs[0])
            if transpose is not None and isinstance(transpose.op, Transpose):
                operand = transpose.inputs[0]
            pad = producer.get(operand)
            if pad is not None and isinstance(pad.op, Pad):
                order = transpose.op.permutation if transpose is not None and operand is not node.inputs[0] else None  # type: ignore[union-attr]
                op = self._with_padding(node.op, pad.op, pad.inputs[0], order)
                if op is not None:
                    x = pad.inputs[0]
                    if order is not None:
                        nodes.append(self.make(Transpose(order), [x], node.origin))
                        x = nodes[-1].output
                    node.op, node.inputs = op, [x, *node.inputs[1:]]
                    node.origin = node.origin.joined(pad.origin).through(self.name)
                    changed = True
            nodes.append(node)
        graph.nodes = nodes
        return changed

    @staticmethod
    def _with_padding(op: Any, pad: Pad, x: Tensor, order: Permutation | None) -> Op | None:
        """The window operator with the padding in it, or None where it cannot take it."""
        counts_zeros = isinstance(op, (Conv2d, DepthwiseConv2d)) or (
            isinstance(op, AvgPool2d) and (op.count_padding or not op.padding)
        )
        if not counts_zeros or pad.integer(x.type) != x.type.zero_point:
            return None
        before, after = ([side[i] for i in order or range(4)] for side in (pad.before, pad.after))
        if any((before[0], after[0], before[3], after[3])):
            return None
        op = replace(op, padding=op.padding + Padding2d(before[1], after[1], before[2], after[2]))
        return replace(op, count_padding=True) if isinstance(op, AvgPool2d) else op
