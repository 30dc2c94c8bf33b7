"""Passes to forms that TOSA can express, and LiteRT cannot."""

from __future__ import annotations

from dataclasses import replace

from micronpu.ir.graph import Graph, Node
from micronpu.ir.window import Padding2d
from micronpu.ops.movement import Pad
from micronpu.ops.pooling import MaxPool2d
from micronpu.passes.base import Pass, Walk
from micronpu.passes.fusion import FoldPads


class FoldLowestPads(Pass):
    """Fuses padding with the lowest number into the max pool that follows; TOSA pads by less than the window on each
    side.

    x -> pad(-inf, h 1/1, w 1/1) -> max_pool2d{kernel=3} -> y        x -> max_pool2d{kernel=3, padding=1} -> y
    """

    name = "fold_lowest_pads"

    def run(self, graph: Graph) -> bool:
        walk = Walk(graph)
        for node in walk:
            before = walk.producer.get(node.inputs[0])
            if before is not None and isinstance(before.op, Pad):
                self._fold(node, before, before.op, walk)
        if walk.changed:
            graph.remove_dead()
        return walk.changed

    def _fold(self, node: Node, before: Node, pad: Pad, walk: Walk) -> None:
        x, op = before.inputs[0], node.op
        if not isinstance(op, MaxPool2d) or pad.integer(x.type) != x.type.dtype.limits[0]:
            return
        if any((pad.before[0], pad.after[0], pad.before[3], pad.after[3])):
            return
        sides = op.padding + Padding2d(pad.before[1], pad.after[1], pad.before[2], pad.after[2])
        if max(sides.rows) >= op.kernel[0] or max(sides.columns) >= op.kernel[1]:
            return
        node.op, node.inputs = replace(op, padding=sides), [x]
        node.origin = node.origin.joined(before.origin).through(self.name)
        walk.changed = True


LEGALIZE_TOSA: tuple[Pass, ...] = (FoldPads(), FoldLowestPads())
"""Run once before TOSA is written: fuses padding into the operators, which TOSA can express."""
