"""Passes that get rid of transposes.

Import puts a transpose before and behind every operator that works channels-last.  Here they move down through
operators that do not care, meet, and vanish.  What is left at the border is the price of the program's own layout.
"""

from __future__ import annotations

import numpy as np

from micronpu.ir.graph import Graph, Node, Tensor
from micronpu.ir.types import TensorType
from micronpu.ops.linear import FullyConnected
from micronpu.ops.movement import Permutation, Reshape, Transpose, compose, inverse
from micronpu.passes.base import Pass


class MergeTransposes(Pass):
    """One transpose for two in a row, and one for several equal ones of the same tensor.

    x -> transpose(p) -> transpose(q) -> y        x -> transpose(p then q) -> y
    """

    name = "merge_transposes"

    def run(self, graph: Graph) -> bool:
        producer = graph.producers()
        seen: dict[tuple[Tensor, Permutation], Tensor] = {}
        changed = False
        for node in graph.nodes:
            if not isinstance(node.op, Transpose):
                continue
            first = producer.get(node.inputs[0])
            if first is not None and isinstance(first.op, Transpose):
                node.op = Transpose(compose(first.op.permutation, node.op.permutation))
                node.inputs = [first.inputs[0]]
                node.origin = node.origin.through(self.name)
                changed = True
            key = (node.inputs[0], node.op.permutation)
            if key in seen and node.output not in graph.outputs:
                changed |= any(node.output in n.inputs for n in graph.nodes)
                graph.replace_uses(node.output, seen[key])
            else:
                seen.setdefault(key, node.output)
        return changed


class SinkTransposes(Pass):
    """Moves transposes down through operators that work in any order of axes.

    x -> transpose -> relu -> y                       x -> relu -> transpose -> y
    a -> transpose -> add <- transpose <- b           a -> add <- b, then transpose
    a -> transpose -> add <- b (which is also         a -> add <- transpose' <- b, then transpose
         read through the inverse transpose')
    """

    name = "sink_transposes"

    def run(self, graph: Graph) -> bool:
        producer = graph.producers()
        transposes = {(n.inputs[0], n.op.permutation): n.output for n in graph.nodes if isinstance(n.op, Transpose)}
        nodes: list[Node] = []
        changed = False
        for node in graph.nodes:
            permutation = self._permutation(node, producer)
            moved = permutation and node.op.permuted(permutation, node.output.type)
            if not permutation or not moved:
                nodes.append(node)
                continue
            operands = [self._without(t, permutation, producer, transposes) for t in node.inputs]
            if any(t is None for t in operands):
                nodes.append(node)
                continue
            op, behind = moved
            inner = self.make(op, [t for t in operands if t is not None], node.origin, node.output.type.qparams)
            outer = Node(Transpose(behind), [inner.output], node.outputs, node.origin.through(self.name))
            nodes += [inner, outer]
            producer[inner.output], producer[outer.output] = inner, outer
            changed = True
        graph.nodes = nodes
        return changed

    @staticmethod
    def _permutation(node: Node, producer: dict[Tensor, Node]) -> Permutation | None:
        """The permutation of the first operand that comes from a transpose."""
        if isinstance(node.op, Transpose):
            return None
        for tensor in node.inputs:
            first = producer.get(tensor)
            if (
                first is not None
                and isinstance(first.op, Transpose)
                and len(first.op.permutation) == node.output.type.rank
            ):
                return first.op.permutation
            if first is not None and isinstance(first.op, Transpose) and len(node.inputs) == 1:
                return first.op.permutation
        return None

    def _without(
        self,
        tensor: Tensor,
        permutation: Permutation,
        producer: dict[Tensor, Node],
        transposes: dict[tuple[Tensor, Permutation], Tensor],
    ) -> Tensor | None:
        """The tensor whose transpose by ``permutation`` is ``tensor``, where it costs nothing to have; else None."""
        back = inverse(permutation)
        if tensor.data is not None:
            return _transposed_constant(tensor, back, len(permutation))
        first = producer.get(tensor)
        if first is not None and isinstance(first.op, Transpose) and first.op.permutation == permutation:
            return first.inputs[0]
        if tensor.type.size == 1:
            return tensor
        existing = transposes.get((tensor, back))
        # It must be computed by now: execution order is the order of the producer map's growth.
        return existing if existing is not None and self._computed(existing, producer) else None

    @staticmethod
    def _computed(tensor: Tensor, producer: dict[Tensor, Node]) -> bool:
        return tensor in producer


def _transposed_constant(tensor: Tensor, permutation: Permutation, rank: int) -> Tensor:
    """A constant operand with its axes reordered; missing leading axes count as 1."""
    assert tensor.data is not None
    data = tensor.data.reshape((1,) * (rank - tensor.data.ndim) + tensor.data.shape).transpose(permutation)
    type = TensorType(data.shape, tensor.type.dtype, tensor.type.qparams)
    return Tensor(tensor.name, type, np.ascontiguousarray(data))


class TransposeToReshape(Pass):
    """A transpose that only moves axes of size 1 leaves the elements where they are.

    x [1,1,1,64] -> transpose(0,3,1,2) -> y [1,64,1,1]        x -> reshape(1,64,1,1) -> y
    """

    name = "transpose_to_reshape"

    def run(self, graph: Graph) -> bool:
        changed = False
        for node in graph.nodes:
            if isinstance(node.op, Transpose):
                shape = node.inputs[0].shape
                real = [axis for axis in node.op.permutation if shape[axis] != 1]
                if real == sorted(real):
                    node.op = Reshape(node.output.shape)
                    node.origin = node.origin.through(self.name)
                    changed = True
        return changed


class FoldTransposeIntoLinear(Pass):
    """Reorders weights instead of activations where a tensor is flattened for a linear layer.

    x [N,H,W,C] -> transpose(0,3,1,2) -> reshape(N, C*H*W) -> fully_connected(w)
    x [N,H,W,C] -> reshape(N, H*W*C) -> fully_connected(w with its columns reordered)
    """

    name = "fold_transpose_into_linear"

    def run(self, graph: Graph) -> bool:
        producer, users = graph.producers(), graph.users()
        changed = False
        for node in graph.nodes:
            reshape = producer.get(node.inputs[0])
            if not isinstance(node.op, FullyConnected) or reshape is None or not isinstance(reshape.op, Reshape):
                continue
            transpose = producer.get(reshape.inputs[0])
            if transpose is None or not isinstance(transpose.op, Transpose):
                continue
            weight = node.inputs[1]
            p, rows = transpose.op.permutation, transpose.inputs[0].shape[0]
            flattens = p[0] == 0 and reshape.output.shape == (rows, weight.shape[1])
            if not flattens or weight.data is None or len(users[reshape.output]) > 1 or reshape.output in graph.outputs:
                continue
            outer = weight.shape[0]
            moved = weight.data.reshape(outer, *transpose.output.shape[1:]).transpose(inverse(p))
            data = np.ascontiguousarray(moved.reshape(weight.shape))
            node.inputs = [node.inputs[0], Tensor(weight.name, weight.type, data), *node.inputs[2:]]
            node.origin = node.origin.through(self.name)
            reshape.inputs = [transpose.inputs[0]]
            changed = True
        return changed
