"""Passes that remove what does nothing."""

from __future__ import annotations

from micronpu.ir.graph import Graph
from micronpu.ops.concat import Concat
from micronpu.ops.fused import Padding2d
from micronpu.ops.movement import Pad, Reshape, Transpose
from micronpu.ops.pooling import AvgPool2d, MaxPool2d
from micronpu.ops.quantization import Requantize
from micronpu.passes.base import Pass


class RemoveNoOps(Pass):
    """Removes operators that return their operand.

    x -> reshape(same shape) -> y        y = x
    x -> requantize(same grid) -> y
    x -> pad(nothing), pool 1x1, concat of one, identity transpose -> y
    """

    name = "remove_no_ops"

    def run(self, graph: Graph) -> bool:
        changed = False
        for node in graph.nodes:
            x, y = node.inputs[0], node.output
            if self._does_nothing(node.op, len(node.inputs)) and x.type == y.type and not _connects(graph, x, y):
                graph.replace_uses(y, x)
                changed = True
        return changed

    @staticmethod
    def _does_nothing(op: object, operands: int) -> bool:
        """Whether the operator returns its operand wherever operand and result have the same type."""
        match op:
            case Reshape() | Requantize():
                return True
            case Transpose(permutation=p):
                return p == tuple(range(len(p)))
            case Pad(before=before, after=after):
                return not any((*before, *after))
            case AvgPool2d() | MaxPool2d():
                return op.kernel == (1, 1) and op.stride == (1, 1) and op.padding == Padding2d.none()
            case Concat():
                return operands == 1
        return False


def _connects(graph: Graph, x: object, y: object) -> bool:
    """Whether removing the node between would make an output of the graph one of its inputs, which emission allows
    only as a copy."""
    return y in graph.outputs and (x in graph.inputs or x in graph.outputs)


class MergeReshapes(Pass):
    """One reshape for two in a row.

    x -> reshape(a) -> reshape(b) -> y        x -> reshape(b) -> y
    """

    name = "merge_reshapes"

    def run(self, graph: Graph) -> bool:
        producer = graph.producers()
        changed = False
        for node in graph.nodes:
            first = producer.get(node.inputs[0])
            if isinstance(node.op, Reshape) and first is not None and isinstance(first.op, Reshape):
                node.inputs = [first.inputs[0]]
                node.origin = node.origin.joined(first.origin).through(self.name)
                changed = True
        return changed
