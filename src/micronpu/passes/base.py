"""What a pass is, and the one walk over a graph that passes are made of."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar

from micronpu.ir.graph import Graph, Node, Origin, Tensor
from micronpu.ir.op import Op
from micronpu.ir.types import QParams


class Pass(ABC):
    """A rewrite; its doc-string shows the graph before and after.

    Every pass is exact: the graph computes the same integers before and after.
    """

    name: ClassVar[str]

    @abstractmethod
    def run(self, graph: Graph) -> bool:
        """Rewrites in place, in one walk.  Returns whether anything changed; dead nodes may be left."""

    def make(self, op: Op, inputs: list[Tensor], origin: Origin, qparams: QParams | None = None) -> Node:
        """A node with a result of the inferred type, marked as made by this pass."""
        type = op.infer(*(t.type for t in inputs))
        if type.qparams is None:
            type = type.with_qparams(qparams)
        return Node(op, inputs, [Tensor(op.name, type)], origin.through(self.name))


class MergePairs(Pass):
    """One operator for two of a kind in a row; the first one stays for those who read it otherwise."""

    kind: ClassVar[type[Op]]

    @abstractmethod
    def merged(self, first: Any, second: Any) -> Op:
        """What stands in the place of the second operator, and reads what the first one reads."""

    def run(self, graph: Graph) -> bool:
        walk = Walk(graph)
        for node in walk:
            first = walk.producer.get(node.inputs[0])
            if isinstance(node.op, self.kind) and first is not None and isinstance(first.op, self.kind):
                node.op, node.inputs = self.merged(first.op, node.op), [first.inputs[0]]
                node.origin = node.origin.joined(first.origin).through(self.name)
                walk.changed = True
        return walk.changed


class Walk:
    """Goes through the nodes of a graph in execution order while a pass changes them.

    A node that is visited reads what earlier replacements left, so that a rewrite reaches everything behind it in the
    same walk and a walk costs time linear in the size of the graph.

        walk = Walk(graph)
        for node in walk:
            if ...:
                walk.replace(node.output, node.inputs[0])
        return walk.changed

    Attributes:
        producer: the node that computes a tensor, for tensors that are computed before the visited node.
        users: the nodes that read a tensor, as the graph was before the walk.
        outputs: what the graph returned before the walk.
        changed: whether anything was inserted or replaced; a pass that changes a node itself sets it, too.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.producer: dict[Tensor, Node] = {}
        self.users = graph.users()
        self.outputs = set(graph.outputs)
        self.changed = False
        self._nodes: list[Node] = []
        self._instead: dict[Tensor, Tensor] = {}

    def __iter__(self) -> Iterator[Node]:
        for node in self.graph.nodes:
            if any(t in self._instead for t in node.inputs):
                node.inputs = [self._instead.get(t, t) for t in node.inputs]
            yield node
            self._append(node)
        self.graph.nodes = self._nodes
        self.graph.outputs = [self._instead.get(t, t) for t in self.graph.outputs]

    def read_once(self, tensor: Tensor) -> bool:
        """Whether one operand of one node is all that reads a tensor; what the graph returns is read by others."""
        return len(self.users.get(tensor, [])) == 1 and tensor not in self.outputs

    def insert(self, node: Node) -> Tensor:
        """Puts a node in front of the visited one; returns its result."""
        self._append(node)
        self.changed = True
        return node.output

    def replace(self, old: Tensor, new: Tensor) -> None:
        """Makes every later reader of ``old``, the graph's outputs included, read ``new``, which exists by now."""
        self._instead[old] = self._instead.get(new, new)
        self.changed = True

    def _append(self, node: Node) -> None:
        self._nodes.append(node)
        for output in node.outputs:
            self.producer[output] = node
