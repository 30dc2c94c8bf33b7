"""Rewrites for several backends."""

from __future__ import annotations

import math

from micronpu.ir.graph import Node
from micronpu.ops.concat import Concat
from micronpu.ops.padding import ReflectPad
from micronpu.passes.rewrite import Chain, Rewrite


class ReflectBySlices(Rewrite):
    """A mirrored border as slices of single rows, joined.  Exact.

    x[1,8,5,8] -> reflect_pad(h 2/1) -> y        x -> slice 2, slice 1, x, slice 3 -> concat -> y

    Args:
        most: rows of the border; wider ones stay.
    """

    name = "reflect_by_slices"

    def __init__(self, most: float = math.inf) -> None:
        self._most = most

    def apply(self, node: Node) -> list[Node] | None:
        op, x = node.op, node.inputs[0]
        if not isinstance(op, ReflectPad) or sum(op.before) + sum(op.after) > self._most:
            return None
        chain = Chain(self.name, node)
        for axis, (before, after) in enumerate(zip(op.before, op.after, strict=True)):
            size = x.shape[axis]
            left = [chain.cut(x, axis, i, 1) for i in range(before, 0, -1)]
            right = [chain.cut(x, axis, size - 2 - i, 1) for i in range(after)]
            if left or right:
                x = chain.add(Concat(axis), *left, x, *right)
        return chain.result(x, node.output)
