"""Passes that get rid of transposes.

Import puts a transpose before and behind every operator that works channels-last.  Here they move down through
operators that do not care, meet, and vanish.  What is left settles: those that lead to channels last go up again, to
where they may serve several, those that lead back go down.  What stands at the border in the end is the price of the
program's own layout.
"""

from __future__ import annotations

from micronpu.ir.graph import Graph, Node, Tensor
from micronpu.ir.op import Op, Permutation
from micronpu.ir.types import DType
from micronpu.ops.linear import FullyConnected
from micronpu.ops.movement import Reshape, Transpose, compose, inverse
from micronpu.passes.base import Pass, Walk

_ONLY_SHIFTED = DType.UINT8
"""Bytes at the border, which become int8 before anything else reads them: NPUs move numbers with a sign."""
_FURTHEST = 64
"""Readers that are looked at in search of the transpose that a moved one would meet."""


class MergeTransposes(Pass):
    """One transpose for two in a row, and one for several equal ones of the same tensor.

    x -> transpose(p) -> transpose(q) -> y        x -> transpose(p then q) -> y
    """

    name = "merge_transposes"

    def run(self, graph: Graph) -> bool:
        seen: dict[tuple[Tensor, Permutation], Tensor] = {}
        walk = Walk(graph)
        for node in walk:
            if not isinstance(node.op, Transpose):
                continue
            first = walk.producer.get(node.inputs[0])
            if first is not None and isinstance(first.op, Transpose):
                node.op = Transpose(compose(first.op.permutation, node.op.permutation))
                node.inputs = [first.inputs[0]]
                node.origin = node.origin.joined(first.origin).through(self.name)
                walk.changed = True
            same = seen.setdefault((node.inputs[0], node.op.permutation), node.output)
            if same is not node.output:
                walk.replace(node.output, same)
        return walk.changed


class SinkTransposes(Pass):
    """Moves transposes down through operators that work in any order of axes.

    x -> transpose -> relu -> y                       x -> relu -> transpose -> y
    a -> transpose -> add <- transpose <- b           a -> add <- b, then transpose
    a -> transpose -> add <- b (which is also         a -> add <- transpose' <- b, then transpose
         read through the inverse transpose')
    """

    name = "sink_transposes"

    def run(self, graph: Graph) -> bool:
        existing = {(n.inputs[0], n.op.permutation) for n in graph.nodes if isinstance(n.op, Transpose)}
        walk = Walk(graph)
        for node in walk:
            if isinstance(node.op, Transpose):
                continue
            for permutation, alone in _permutations(node, walk).items():
                moves = self.moves(permutation) and node.output.type.dtype is not _ONLY_SHIFTED
                moved = node.op.permuted(permutation, node.output.type) if moves else None
                # A transpose that others read stays where it is, so that one more had better vanish or move little.
                if moved is None or not (alone or meets(node.output, inverse(permutation), walk) or _shrinks(node)):
                    continue
                if self._sink(node, permutation, moved, existing, walk):
                    break
        return walk.changed

    def moves(self, permutation: Permutation) -> bool:
        """Whether transposes by ``permutation`` are moved."""
        return True

    def _sink(
        self,
        node: Node,
        permutation: Permutation,
        moved: tuple[Op, Permutation],
        existing: set[tuple[Tensor, Permutation]],
        walk: Walk,
    ) -> bool:
        """Puts the moved operator and the transpose behind it in the node's place, if all operands can do without."""
        back = inverse(permutation)
        sources: list[Tensor | None] = []  # None for an operand that needs the inverse transpose
        for tensor in node.inputs:
            first = walk.producer.get(tensor)
            if tensor.data is not None:
                sources.append(_transposed_constant(tensor, back))
            elif first is not None and first.op == Transpose(permutation):
                sources.append(first.inputs[0])
            elif tensor.type.size == 1:
                sources.append(tensor)
            elif _leads_back(permutation) and (tensor, back) in existing:
                # Only one of the two directions, or the operator would be turned back and forth for ever.
                sources.append(None)
            else:
                return False
        operands = [
            source if source is not None else walk.insert(self.make(Transpose(back), [tensor], node.origin))
            for tensor, source in zip(node.inputs, sources, strict=True)
        ]
        op, behind = moved
        inner = walk.insert(self.make(op, operands, node.origin, node.output.type.qparams))
        node.op, node.inputs, node.origin = Transpose(behind), [inner], node.origin.through(self.name)
        return True


def _shrinks(node: Node) -> bool:
    """Whether the result is so much smaller than what it is made of that a transpose of it costs next to nothing."""
    return node.output.type.size * 8 <= max(t.type.size for t in node.inputs)


def _permutations(node: Node, walk: Walk) -> dict[Permutation, bool]:
    """Permutations by which operands are transposed that could move behind the operator; whether it alone reads one.

    With several operands, one of lower rank than the result is broadcast, and its axes are not those of the result.
    """
    found: dict[Permutation, bool] = {}
    for tensor in node.inputs:
        first = walk.producer.get(tensor)
        if first is not None and isinstance(first.op, Transpose):
            permutation = first.op.permutation
            if len(node.inputs) == 1 or len(permutation) == node.output.type.rank:
                alone = tensor not in walk.outputs and all(user is node for user in walk.users[tensor])
                found[permutation] = found.get(permutation, False) or alone
    return found


def _transposed_constant(tensor: Tensor, permutation: Permutation) -> Tensor:
    """A constant operand with its axes reordered; missing leading axes count as 1."""
    assert tensor.data is not None
    data = tensor.data.reshape((1,) * (len(permutation) - tensor.data.ndim) + tensor.data.shape).transpose(permutation)
    return Tensor(tensor.name, tensor.type.with_shape(data.shape), data.copy())


def _leads_back(permutation: Permutation) -> bool:
    """Whether a transpose leads from channels last to channels first.

    Generalised to an order of all pairs of permutations: [0, 3, 1, 2] is greater than its inverse, [0, 2, 3, 1].
    """
    return permutation > inverse(permutation)


def meets(tensor: Tensor, wanted: Permutation, walk: Walk) -> bool:
    """Whether a transpose by ``wanted`` reads the tensor, directly or behind operators that transposes pass through."""
    seen, queue = {tensor}, [tensor]
    while queue and len(seen) < _FURTHEST:
        for reader in walk.users.get(queue.pop(), []):
            if isinstance(reader.op, Transpose):
                if reader.op.permutation == wanted:
                    return True
                continue
            result = reader.output
            if result.type.rank != len(wanted):
                continue  # a broadcast result has axes that the transpose does not know
            moved = reader.op.permuted(inverse(wanted), result.type)
            if moved is not None and moved[1] == inverse(wanted) and result not in seen:
                seen.add(result)
                queue.append(result)
    return False


class GatherTransposes(SinkTransposes):
    """Moves transposes that lead back to channels first down, once those that lead to channels last are lifted.

    x -> transpose -> relu -> conv2d -> transpose' -> add <- x
    x -> transpose -> relu -> conv2d -> add <- transpose, then transpose'
    """

    name = "gather_transposes"

    def moves(self, permutation: Permutation) -> bool:
        return _leads_back(permutation)


class LiftTransposes(Pass):
    """Moves transposes that lead to channels last up through operators that work in any order of axes.

    There they may serve others, or stand at the border of the program, where the runtime can do their work.  None goes
    where it would have more to move, unless it exists there already.

    x -> relu -> transpose -> conv2d        x -> transpose -> relu -> conv2d
    x -> transpose -> conv2d                               -> conv2d
    """

    name = "lift_transposes"

    def run(self, graph: Graph) -> bool:
        existing = {(n.inputs[0], n.op.permutation) for n in graph.nodes if isinstance(n.op, Transpose)}
        walk = Walk(graph)
        for node in walk:
            if not isinstance(node.op, Transpose) or not _leads_back(inverse(node.op.permutation)):
                continue
            permutation = node.op.permutation
            passed: list[tuple[Node, Op]] = []
            x = top = node.inputs[0]
            height = 0  # how many of them it pays to pass
            while (found := self._through(x, permutation, walk)) is not None:
                passed.append(found)
                x = found[0].inputs[0]
                if (x, permutation) in existing or x.type.size <= top.type.size:
                    height = len(passed)
            del passed[height:]
            if not passed:
                continue
            y = walk.insert(self.make(Transpose(permutation), [passed[-1][0].inputs[0]], node.origin))
            for first, op in reversed(passed):
                constants = [_transposed_constant(t, permutation) for t in first.inputs[1:]]
                y = walk.insert(self.make(op, [y, *constants], first.origin, first.output.type.qparams))
            walk.replace(node.output, y)
        return walk.changed

    @staticmethod
    def _through(x: Tensor, permutation: Permutation, walk: Walk) -> tuple[Node, Op] | None:
        """The operator that computes x for one reader alone, and what it is in front of which the transpose stands."""
        first, back = walk.producer.get(x), inverse(permutation)
        if first is None or not walk.read_once(x) or first.inputs[0].is_constant:
            return None
        if first.inputs[0].type.dtype is _ONLY_SHIFTED:
            return None
        if not all(t.is_constant for t in first.inputs[1:]) or first.inputs[0].type.rank != x.type.rank:
            return None
        moved = first.op.permuted(back, x.type)
        return (first, moved[0]) if moved is not None and moved[1] == back else None


class TransposeToReshape(Pass):
    """A transpose that only moves axes of size 1 leaves the elements where they are.

    x [1,1,1,64] -> transpose(0,3,1,2) -> y [1,64,1,1]        x -> reshape(1,64,1,1) -> y
    """

    name = "transpose_to_reshape"

    def run(self, graph: Graph) -> bool:
        walk = Walk(graph)
        for node in walk:
            if isinstance(node.op, Transpose):
                shape = node.inputs[0].shape
                real = [axis for axis in node.op.permutation if shape[axis] != 1]
                if real == sorted(real):
                    node.op = Reshape(node.output.shape)
                    node.origin = node.origin.through(self.name)
                    walk.changed = True
        return walk.changed


class FoldTransposeIntoLinear(Pass):
    """Reorders weights instead of activations where a tensor is flattened for linear layers.

    x [N,H,W,C] -> transpose(0,3,1,2) -> reshape(N, C*H*W) -> fully_connected(w)
    x [N,H,W,C] -> reshape(N, H*W*C) -> fully_connected(w with its columns reordered)
    """

    name = "fold_transpose_into_linear"

    def run(self, graph: Graph) -> bool:
        walk = Walk(graph)
        for reshape in walk:
            transpose = walk.producer.get(reshape.inputs[0])
            if not isinstance(reshape.op, Reshape) or transpose is None or not isinstance(transpose.op, Transpose):
                continue
            before, order = transpose.output.shape, inverse(transpose.op.permutation)
            readers = walk.users.get(reshape.output, [])
            if (
                order[0] != 0
                or reshape.output.shape != (before[0], reshape.output.type.size // before[0])
                or reshape.output in walk.outputs
                or not all(isinstance(n.op, FullyConnected) and n.inputs[1].is_constant for n in readers)
            ):
                continue
            for node in readers:
                node.inputs[1] = _columns_reordered(node.inputs[1], before[1:], order)
                node.origin = node.origin.through(self.name)
            reshape.inputs = [transpose.inputs[0]]
            walk.changed = True
        return walk.changed


def _columns_reordered(weight: Tensor, sizes: tuple[int, ...], order: Permutation) -> Tensor:
    """Weights [O, product of sizes] for an input whose axes, the first included, are reordered."""
    assert weight.data is not None
    moved = weight.data.reshape(weight.shape[0], *sizes).transpose(order)
    return Tensor(weight.name, weight.type, moved.reshape(weight.shape))
