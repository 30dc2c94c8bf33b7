"""Passes that remove what does nothing."""

from __future__ import annotations

from micronpu.ir.graph import Graph, Node
from micronpu.ir.window import Padding2d
from micronpu.ops.activation import Clamp, Relu
from micronpu.ops.concat import Concat
from micronpu.ops.movement import Pad, Reshape, Transpose
from micronpu.ops.pooling import AvgPool2d, MaxPool2d
from micronpu.ops.quantization import Requantize
from micronpu.passes.base import Pass, Walk


class RemoveNoOps(Pass):
    """Removes operators that return their operand.

    x -> reshape(same shape) -> y        y = x
    x -> requantize(same grid) -> y
    x -> relu, all of whose grid is positive -> y
    x -> pad(nothing), pool 1x1, concat of one, identity transpose -> y
    """

    name = "remove_no_ops"

    def run(self, graph: Graph) -> bool:
        walk = Walk(graph)
        for node in walk:
            if node.inputs[0].type == node.output.type and self._does_nothing(node):
                walk.replace(node.output, node.inputs[0])
        return walk.changed

    @staticmethod
    def _does_nothing(node: Node) -> bool:
        """Whether the operator, whose operand and result have the same type, returns its operand."""
        match node.op:
            case Reshape() | Requantize():
                return True
            case Transpose(permutation=p):
                return p == tuple(range(len(p)))
            case Pad(before=before, after=after):
                return not any((*before, *after))
            case AvgPool2d() | MaxPool2d() as pool:
                return pool.kernel == (1, 1) and pool.stride == (1, 1) and pool.padding == Padding2d.none()
            case Concat():
                return len(node.inputs) == 1
            case Relu(kind=kind):
                return kind.limits(node.output.type) == node.output.type.dtype.limits
            case Clamp() as clamp:
                return clamp.integer_limits(node.output.type) == node.output.type.dtype.limits
        return False


class MergeReshapes(Pass):
    """One reshape for two in a row; the first one stays for those who read it otherwise.

    x -> reshape(a) -> reshape(b) -> y        x -> reshape(b) -> y
    """

    name = "merge_reshapes"

    def run(self, graph: Graph) -> bool:
        walk = Walk(graph)
        for node in walk:
            first = walk.producer.get(node.inputs[0])
            if isinstance(node.op, Reshape) and first is not None and isinstance(first.op, Reshape):
                node.inputs = [first.inputs[0]]
                node.origin = node.origin.joined(first.origin).through(self.name)
                walk.changed = True
        return walk.changed
