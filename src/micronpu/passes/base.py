"""Base class of passes, and the traversal that they use."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator
from typing import Any, ClassVar

from micronpu.ir.graph import Graph, Node, Origin, Tensor
from micronpu.ir.op import Op
from micronpu.ir.types import QParams


class Pass(ABC):
    """A rewrite of a graph; its docstring shows the graph before and after.

    Every pass is exact: the graph computes the same integers before and after.
    """

    name: ClassVar[str]

    @abstractmethod
    def run(self, graph: Graph) -> bool:
        """Rewrite in place, in one traversal. Return True if anything changed; dead nodes may remain."""

    def make(self, op: Op, inputs: list[Tensor], origin: Origin, qparams: QParams | None = None) -> Node:
        """Return a node with a result of the inferred type, marked as made by this pass."""
        return Node.of(op, inputs, origin.through(self.name), qparams)


class NodePass(Pass):
    """A pass that visits every node once, in execution order."""

    def run(self, graph: Graph) -> bool:
        walk = Walk(graph)
        for node in walk:
            self.visit(node, walk)
        return walk.changed

    @abstractmethod
    def visit(self, node: Node, walk: Walk) -> None:
        """Rewrite a node, or leave it."""


class MergePairs(NodePass):
    """Replaces two consecutive operators of a kind by one; the first one stays if it has other readers."""

    kind: ClassVar[type[Op]]

    @abstractmethod
    def merged(self, first: Any, second: Any) -> Op | None:
        """Return the replacement of the second operator, which reads the first one's input; None to keep both."""

    def visit(self, node: Node, walk: Walk) -> None:
        first = walk.producer.get(node.inputs[0])
        if not isinstance(node.op, self.kind) or first is None or not isinstance(first.op, self.kind):
            return
        if (op := self.merged(first.op, node.op)) is not None:
            node.op, node.inputs = op, [first.inputs[0]]
            node.origin = node.origin.joined(first.origin).through(self.name)
            walk.changed = True


class Walk:
    """Iterates over the nodes of a graph in execution order while a pass changes them.

    A visited node reads the results of earlier replacements, so a rewrite reaches all later nodes in the same
    traversal, which takes time linear in the size of the graph.

        walk = Walk(graph)
        for node in walk:
            if ...:
                walk.replace(node.output, node.inputs[0])
        return walk.changed

    Attributes:
        producer: the node that computes a tensor, for tensors computed before the visited node.
            users: the nodes that read a tensor, before the traversal.
            outputs: the graph's outputs, before the traversal.
            changed: True if anything was inserted or replaced; a pass that modifies a node sets it too.
            made: tensors that a pass remembers during the traversal, by any key.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.producer: dict[Tensor, Node] = {}
        self.users = graph.users()
        self.outputs = set(graph.outputs)
        self.changed = False
        self.made: dict[Hashable, Tensor] = {}
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
        """True if a tensor is read by one operand of one node only, and is not an output of the graph."""
        return len(self.users.get(tensor, [])) == 1 and tensor not in self.outputs

    def insert(self, node: Node) -> Tensor:
        """Insert a node before the visited one; return its result."""
        self._append(node)
        self.changed = True
        return node.output

    def replace(self, old: Tensor, new: Tensor) -> None:
        """Replace ``old`` by ``new``, which is already computed, in all later readers and the graph's outputs."""
        self._instead[old] = self._instead.get(new, new)
        self.changed = True

    def _append(self, node: Node) -> None:
        self._nodes.append(node)
        for output in node.outputs:
            self.producer[output] = node
