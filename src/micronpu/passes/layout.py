"""Passes that eliminate transposes.

Import adds a transpose before and after every channels-last operator. These passes move them down through
layout-independent operators until they meet and cancel. Of the remaining ones, transposes to channels last are moved up
again, where they may serve several readers, and transposes to channels first are moved down. Transposes that stay at
the inputs and outputs are the cost of the program's own layout.
"""

from __future__ import annotations

from dataclasses import dataclass

from micronpu.ir.graph import Graph, Node, Tensor
from micronpu.ir.op import Op, Permutation, Permuted
from micronpu.ir.types import DType
from micronpu.ops.matmul import FullyConnected
from micronpu.ops.movement import Reshape, Transpose, compose, inverse
from micronpu.ops.slicing import Slice
from micronpu.passes.base import MergePairs, NodePass, Pass, Walk

_ONLY_SHIFTED = DType.UINT8
"""uint8 inputs and outputs, which become int8 before anything else reads them: NPUs move signed numbers only."""
_FURTHEST = 64
"""Maximum number of readers to search for the inverse of a moved transpose."""


class MergeTransposes(NodePass):
    """Merges two consecutive transposes, and equal transposes of one tensor.

    x -> transpose(p) -> transpose(q) -> y        x -> transpose(p then q) -> y
    """

    name = "merge_transposes"

    def visit(self, node: Node, walk: Walk) -> None:
        if not isinstance(node.op, Transpose):
            return
        first = walk.producer.get(node.inputs[0])
        if first is not None and isinstance(first.op, Transpose):
            node.op = Transpose(compose(first.op.permutation, node.op.permutation))
            node.inputs = [first.inputs[0]]
            node.origin = node.origin.joined(first.origin).through(self.name)
            walk.changed = True
        same = walk.made.setdefault((node.inputs[0], node.op.permutation), node.output)
        if same is not node.output:
            walk.replace(node.output, same)


class SinkTransposes(Pass):
    """Moves transposes down through layout-independent operators.

    x -> transpose -> relu -> y                       x -> relu -> transpose -> y
    a -> transpose -> add <- transpose <- b           a -> add <- b, then transpose
    a -> transpose -> add <- b (which is also         a -> add <- transpose' <- b, then transpose
         read through the inverse transpose')
    """

    name = "sink_transposes"

    def run(self, graph: Graph) -> bool:
        existing = {(n.inputs[0], op.permutation) for n, op in graph.of(Transpose)}
        walk = Walk(graph)
        for node in walk:
            if isinstance(node.op, Transpose):
                continue
            for permutation, alone in _permutations(node, walk).items():
                moves = self.moves(permutation) and node.output.type.dtype is not _ONLY_SHIFTED
                moved = _permuted(node, permutation) if moves else None
                # A transpose with other readers stays, so an additional one must cancel or move little data.
                if moved is None or not (alone or meets(node.output, inverse(permutation), walk) or _shrinks(node)):
                    continue
                if self._sink(node, permutation, moved, existing, walk):
                    break
        return walk.changed

    def moves(self, permutation: Permutation) -> bool:
        return True

    def _sink(
        self,
        node: Node,
        permutation: Permutation,
        moved: tuple[Op, Permutation],
        existing: set[tuple[Tensor, Permutation]],
        walk: Walk,
    ) -> bool:
        """Replace a node by the moved operator and a transpose behind it, if no operand needs a new transpose."""
        back = inverse(permutation)
        sources: list[Tensor | None] = []  # an operand that needs the inverse transpose is None
        for tensor in node.inputs:
            first = walk.producer.get(tensor)
            if tensor.data is not None:
                sources.append(_transposed_constant(node.op, tensor, back))
            elif first is not None and first.op == Transpose(permutation):
                sources.append(first.inputs[0])
            elif tensor.type.size == 1:
                sources.append(tensor)
            elif _leads_back(permutation) and (tensor, back) in existing:
                # Only in one direction; otherwise the pass would alternate forever.
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


def _permuted(node: Node, permutation: Permutation) -> Permuted:
    return node.op.permuted(permutation, node.output.type, *(t.type for t in node.inputs))


def _shrinks(node: Node) -> bool:
    """True if the result is so much smaller than its operands that transposing it costs next to nothing."""
    return node.output.type.size * 8 <= max(t.type.size for t in node.inputs)


def _permutations(node: Node, walk: Walk) -> dict[Permutation, bool]:
    """Permutations of transposed operands that could move behind the operator; True if it is the only reader of one."""
    # One of several operands that has a lower rank than the result is broadcast, and has other axes than the result.
    found: dict[Permutation, bool] = {}
    for tensor in node.inputs:
        first = walk.producer.get(tensor)
        if first is not None and isinstance(first.op, Transpose):
            permutation = first.op.permutation
            if len(node.inputs) == 1 or len(permutation) == node.output.type.rank:
                alone = tensor not in walk.outputs and all(user is node for user in walk.users[tensor])
                found[permutation] = found.get(permutation, False) or alone
    return found


def _transposed_constant(op: Op, tensor: Tensor, permutation: Permutation) -> Tensor:
    assert tensor.data is not None
    data = op.reordered(tensor.data, permutation)
    return Tensor(tensor.name, tensor.type.with_shape(data.shape), data.copy())


def _leads_back(permutation: Permutation) -> bool:
    """True if a transpose converts channels last to channels first."""
    # Generalised to an order of all pairs of permutations: [0, 3, 1, 2] is greater than its inverse, [0, 2, 3, 1].
    return permutation > inverse(permutation)


def meets(tensor: Tensor, wanted: Permutation, walk: Walk) -> bool:
    """True if a transpose by ``wanted`` reads the tensor, directly or through operators that transposes can pass."""
    seen, queue = {tensor}, [tensor]
    while queue and len(seen) < _FURTHEST:
        for reader in walk.users.get(queue.pop(), []):
            if isinstance(reader.op, Transpose):
                if reader.op.permutation == wanted:
                    return True
                continue
            result = reader.output
            if result.type.rank != len(wanted):
                continue  # a broadcast result has axes that the transpose lacks
            moved = _permuted(reader, inverse(wanted))
            if moved is not None and moved[1] == inverse(wanted) and result not in seen:
                seen.add(result)
                queue.append(result)
    return False


class GatherTransposes(SinkTransposes):
    """Moves transposes to channels first down, after those to channels last have been lifted.

    x -> transpose -> relu -> conv2d -> transpose' -> add <- x
    x -> transpose -> relu -> conv2d -> add <- transpose, then transpose'
    """

    name = "gather_transposes"

    def moves(self, permutation: Permutation) -> bool:
        return _leads_back(permutation)


class LiftTransposes(Pass):
    """Moves transposes to channels last up through layout-independent operators.

    There they may serve several readers, or reach the program's inputs, where the runtime can do their work. None is
    moved to a larger tensor, unless the same transpose exists there already.

    x -> relu -> transpose -> conv2d        x -> transpose -> relu -> conv2d
    x -> transpose -> conv2d                               -> conv2d
    """

    name = "lift_transposes"

    def run(self, graph: Graph) -> bool:
        existing = {(n.inputs[0], op.permutation) for n, op in graph.of(Transpose)}
        walk = Walk(graph)
        for node in walk:
            if not isinstance(node.op, Transpose) or not _leads_back(inverse(node.op.permutation)):
                continue
            permutation = node.op.permutation
            passed: list[tuple[Node, Op]] = []
            x = top = node.inputs[0]
            height = 0  # number of operators that are worth passing
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
                constants = [_transposed_constant(op, t, permutation) for t in first.inputs[1:]]
                y = walk.insert(self.make(op, [y, *constants], first.origin, first.output.type.qparams))
            walk.replace(node.output, y)
        return walk.changed

    @staticmethod
    def _through(x: Tensor, permutation: Permutation, walk: Walk) -> tuple[Node, Op] | None:
        """Return the operator that computes x for a single reader, and its form after the transpose."""
        first, back = walk.producer.get(x), inverse(permutation)
        if first is None or not walk.read_once(x) or first.inputs[0].is_constant:
            return None
        if first.inputs[0].type.dtype is _ONLY_SHIFTED:
            return None
        if not all(t.is_constant for t in first.inputs[1:]) or first.inputs[0].type.rank != x.type.rank:
            return None
        moved = _permuted(first, back)
        return (first, moved[0]) if moved is not None and moved[1] == back else None


class TransposeToReshape(NodePass):
    """Replaces a transpose that only moves axes of size 1 by a reshape.

    x [1,1,1,64] -> transpose(0,3,1,2) -> y [1,64,1,1]        x -> reshape(1,64,1,1) -> y
    """

    name = "transpose_to_reshape"

    def visit(self, node: Node, walk: Walk) -> None:
        if isinstance(node.op, Transpose):
            shape = node.inputs[0].shape
            real = [axis for axis in node.op.permutation if shape[axis] != 1]
            if real == sorted(real):
                node.op = Reshape(node.output.shape)
                node.origin = node.origin.through(self.name)
                walk.changed = True


class FoldTransposeIntoLinear(NodePass):
    """Reorders weights instead of activations if a tensor is flattened for linear layers.

    x [N,H,W,C] -> transpose(0,3,1,2) -> reshape(N, C*H*W) -> fully_connected(w)
    x [N,H,W,C] -> reshape(N, H*W*C) -> fully_connected(w with its columns reordered)
    """

    name = "fold_transpose_into_linear"

    def visit(self, reshape: Node, walk: Walk) -> None:
        transpose = walk.producer.get(reshape.inputs[0])
        if not isinstance(reshape.op, Reshape) or transpose is None or not isinstance(transpose.op, Transpose):
            return
        before, order = transpose.output.shape, inverse(transpose.op.permutation)
        readers = walk.users.get(reshape.output, [])
        if (
            order[0] != 0
            or reshape.output.shape != (before[0], reshape.output.type.size // before[0])
            or reshape.output in walk.outputs
            or not all(isinstance(n.op, FullyConnected) and n.inputs[1].is_constant for n in readers)
        ):
            return
        for node in readers:
            node.inputs[1] = _columns_reordered(node.inputs[1], before[1:], order)
            node.origin = node.origin.through(self.name)
        reshape.inputs = [transpose.inputs[0]]
        walk.changed = True


def _columns_reordered(weight: Tensor, sizes: tuple[int, ...], order: Permutation) -> Tensor:
    """Reorder the columns of weights [O, product of sizes] for an input with permuted axes, the first included."""
    assert weight.data is not None
    moved = weight.data.reshape(weight.shape[0], *sizes).transpose(order)
    return Tensor(weight.name, weight.type, moved.reshape(weight.shape))


Shape = tuple[int, ...]


@dataclass(frozen=True)
class _Block:
    """A group of axes that a reshape maps to a group of axes with the same product of sizes."""

    before: tuple[int, ...]  # axes of the operand larger than 1; none for leading axes of size 1 of the result
    after: tuple[int, ...]  # axes of the result; axes of size 1 belong to the group before them


def blocks(old: Shape, new: Shape) -> list[_Block]:
    """Return the smallest groups of adjacent axes that a reshape maps to each other."""
    found: list[tuple[list[int], list[int]]] = []
    i, j = 0, 0
    leading: list[int] = []
    while i < len(old) or j < len(new):
        if i < len(old) and old[i] == 1:
            i += 1
            continue
        if new[j] == 1:
            (found[-1][1] if found else leading).append(j)
            j += 1
            continue
        before, after = [i], [j]
        left, right = old[i], new[j]
        i, j = i + 1, j + 1
        while left != right:
            if left < right:
                left, i = left * old[i], i + 1
                if old[i - 1] != 1:
                    before.append(i - 1)
            else:
                right, j = right * new[j], j + 1
                after.append(j - 1)
        found.append((before, after))
    if leading and found:
        found.insert(0, ([], leading))
    return [_Block(tuple(before), tuple(after)) for before, after in found]


class SinkThroughReshapes(NodePass):
    """Moves transposes down through reshapes that split axes or merge adjacent ones.

    x [N,H,W,C] -> transpose(0,3,1,2) -> reshape(N,C,H*W) -> y
    x [N,H,W,C] -> reshape(N,H*W,C) -> transpose(0,2,1) -> y

    Axes that are merged in another order than in x need a transpose before the reshape too, which pays if the one
    behind the reshape meets its inverse:

    x [N,H,W,g,c] -> transpose(0,4,3,1,2) -> reshape(N,c*g,H,W) -> slice -> transpose(0,2,3,1) -> y
    x [N,H,W,g,c] -> transpose(0,1,2,4,3) -> reshape(N,H,W,c*g) -> slice -> y
    """

    name = "sink_through_reshapes"

    def visit(self, node: Node, walk: Walk) -> None:
        first = walk.producer.get(node.inputs[0]) if isinstance(node.op, Reshape) else None
        if first is not None and isinstance(first.op, Transpose):
            self._sink(node, first, walk)

    def _sink(self, node: Node, first: Node, walk: Walk) -> None:
        assert isinstance(first.op, Transpose)
        permutation, x = first.op.permutation, first.inputs[0]
        found = blocks(first.output.shape, node.output.shape)
        if not found:
            return
        sources = [[permutation[axis] for axis in block.before] for block in found]
        order = sorted(range(len(found)), key=lambda number: min(sources[number], default=-1))
        inner = [axis for number in order for axis in sources[number]]
        after = [axis for number in order for axis in found[number].after]
        outer = inverse(tuple(after))
        if inner != sorted(inner):
            if outer == tuple(range(len(outer))) or not meets(node.output, inverse(outer), walk):
                return
            # Axes of size 1 belong to no group; they are first.
            units = [axis for axis in range(x.type.rank) if axis not in inner]
            x = walk.insert(self.make(Transpose((*units, *inner)), [x], first.origin))
        shape = tuple(node.output.shape[axis] for axis in after)
        reshaped = walk.insert(self.make(Reshape(shape), [x], node.origin))
        node.op, node.inputs, node.origin = Transpose(outer), [reshaped], node.origin.through(self.name)


class MergeSlices(MergePairs):
    """Replaces two consecutive slices by one; the first one stays if it has other readers.

    x -> slice -> slice -> y        x -> slice -> y
    """

    name = "merge_slices"

    kind = Slice

    def merged(self, first: Slice, second: Slice) -> Slice:
        return Slice(tuple(a + b for a, b in zip(first.begin, second.begin, strict=True)), second.size)


class HoistTransposes(Pass):
    """Replaces transposes behind slices that cover nearly all of a tensor by one transpose before the slices.

    x -> slice -> transpose -> y        x -> transpose -> slice -> y
    x -> slice -> transpose -> z                       -> slice -> z

    `SinkTransposes` creates the former if no transpose cancels; in the latter, the transpose may be at an input or
    output of the program, where it costs nothing.
    """

    name = "hoist_transposes"

    def run(self, graph: Graph) -> bool:
        hoisted: dict[Tensor, Tensor] = {}
        walk = Walk(graph)
        for node in walk:
            x = node.inputs[0]
            if not isinstance(node.op, Slice):
                continue
            readers = walk.users.get(x, [])
            permutation = self._common(readers, walk)
            if permutation is None or (sum(n.output.type.size for n in readers) < x.type.size and x not in hoisted):
                continue
            if x not in hoisted:
                hoisted[x] = walk.insert(self.make(Transpose(permutation), [x], node.origin))
            op = Slice(*(tuple(side[axis] for axis in permutation) for side in (node.op.begin, node.op.size)))
            part = walk.insert(self.make(op, [hoisted[x]], node.origin))
            for transpose in walk.users[node.output]:
                walk.replace(transpose.output, part)
        if walk.changed:
            graph.remove_dead()
        return walk.changed

    @staticmethod
    def _common(readers: list[Node], walk: Walk) -> Permutation | None:
        """Return the permutation by which every reader, all of them slices, is transposed."""
        behind = [user for reader in readers for user in walk.users.get(reader.output, [])]
        permutations = {n.op.permutation if isinstance(n.op, Transpose) else None for n in behind}
        if not all(isinstance(n.op, Slice) and walk.users.get(n.output) for n in readers) or len(permutations) != 1:
            return None
        return None if any(n.output in walk.outputs for n in (*readers, *behind)) else permutations.pop()
