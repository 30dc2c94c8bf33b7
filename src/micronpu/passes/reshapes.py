"""Move transposes down through reshapes and up before slices, and merge slices."""

from __future__ import annotations

from dataclasses import dataclass

from micronpu.ir.graph import Graph, Node, Tensor
from micronpu.ir.op import Permutation
from micronpu.ops.movement import Reshape, Transpose, inverse
from micronpu.ops.slicing import Slice
from micronpu.passes.base import MergePairs, Pass, Walk
from micronpu.passes.layout import meets

Shape = tuple[int, ...]


@dataclass(frozen=True)
class _Block:
    """A group of axes that a reshape maps to a group of axes with the same product of sizes.

    Attributes:
        before: axes of the operand larger than 1; none for leading axes of size 1 of the result.
        after: axes of the result; axes of size 1 belong to the group before them.
    """

    before: tuple[int, ...]
    after: tuple[int, ...]


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


class SinkThroughReshapes(Pass):
    """Moves transposes down through reshapes that split axes or merge adjacent ones.

    x [N,H,W,C] -> transpose(0,3,1,2) -> reshape(N,C,H*W) -> y
    x [N,H,W,C] -> reshape(N,H*W,C) -> transpose(0,2,1) -> y

    Axes that are merged in another order than in x need a transpose before the reshape too, which pays if the one
    behind the reshape meets its inverse:

    x [N,H,W,g,c] -> transpose(0,4,3,1,2) -> reshape(N,c*g,H,W) -> slice -> transpose(0,2,3,1) -> y
    x [N,H,W,g,c] -> transpose(0,1,2,4,3) -> reshape(N,H,W,c*g) -> slice -> y
    """

    name = "sink_through_reshapes"

    def run(self, graph: Graph) -> bool:
        walk = Walk(graph)
        for node in walk:
            first = walk.producer.get(node.inputs[0]) if isinstance(node.op, Reshape) else None
            if first is not None and isinstance(first.op, Transpose):
                self._sink(node, first, walk)
        return walk.changed

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
