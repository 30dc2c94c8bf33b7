"""Policies, their decisions on units, and partitions, as values.

Also the order of axes of values between partitions, the grouping of nodes into partitions, and the order of a program's
nodes after partitions are cut out.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from micronpu.base.errors import InternalError
from micronpu.frontend.graphs import Graph as FxGraph
from micronpu.frontend.graphs import Node as FxNode
from micronpu.frontend.importer import GraphPiece, assemble
from micronpu.frontend.program import is_dequantize, origin_of, readers_of, static_shape
from micronpu.frontend.units import Unit
from micronpu.ir.graph import Graph, Node
from micronpu.ir.graph import Node as GraphNode
from micronpu.ir.op import Op, Permutation
from micronpu.ops.movement import TO_CHANNELS_FIRST, TO_CHANNELS_LAST, Transpose
from micronpu.passes.pipeline import DEFAULT, Pipeline
from micronpu.passes.rewrite import Choice
from micronpu.report.delegation import DelegationReport
from micronpu.report.shown import Shown
from micronpu.report.verdict import Reason

if TYPE_CHECKING:
    from rich.console import RenderableType


Decide = Callable[[Node], "Choice | list[Reason]"]


IMPORTED = "is_imported"
IMPORTED_SENTENCE = "The operator, in this form and quantized, is one that micronpu can express."
BOUNDARY = "border_fits"
COMPUTES = "computes"
COMPUTES_SENTENCE = "A partition computes something; moving values to the NPU and back would only cost time."


def reason_at(node: FxNode, rule: str, sentence: str, detail: str, hint: str = "") -> Reason:
    """Return a reason with the place of a node of the program."""
    return Reason(rule, sentence, detail, node.name, origin_of(node).source, hint)


@dataclass(frozen=True, kw_only=True, eq=False)
class Policy:
    """Decides which operators an NPU or a core accepts."""

    name: str  # of the target in reports
    decide: Decide  # returns the choice for an imported operator, or why there is none
    # Returns a reason why the user does not want a node there, or None.
    exclude: Callable[[FxNode], Reason | None] = lambda node: None
    # Brings the chosen graph of a partition to its final form with the passes of a pipeline; in place.
    finish: Callable[[Graph, Pipeline], Graph] = lambda graph, pipeline: pipeline.run(graph)
    allow_no_op_partitions: bool = False  # also make partitions that only move values, reshapes included
    allow_moves: bool = False  # also make partitions that only move values, if an operator moves them in memory
    allow_empty: bool = False  # also make partitions with nothing to run at all
    free: tuple[type[Op], ...] = ()  # operators that leave nothing to run, such as a reshape that moves no byte
    finishing: frozenset[str] = frozenset()  # names of the rewrites that `finish` applies to operators that need them
    notes: tuple[str, ...] = ()  # notes of the report besides the verdicts
    # Maximum number of inputs, and of outputs, of a partition, which is otherwise divided; None for any number.
    most_tensors: int | None = None
    pipeline: Pipeline = DEFAULT  # the user's, or the default

    def finished(self, graph: Graph) -> Graph:
        """Bring a graph whose operators are chosen to its final form, in place."""
        return self.finish(graph, self.pipeline)


@dataclass(eq=False)
class Decision:
    """The decision on a unit for an NPU or a core."""

    unit: Unit
    reasons: list[Reason] = field(default_factory=list)  # reasons why it is refused; empty if it is accepted
    macs: int = 0  # multiply-accumulate operations
    # Number of operations before the passes, except those that leave nothing to run or return an operand unchanged.
    operations: int = 0
    computes: bool = True  # True if one of them does more than move values
    moves: bool = False  # True if one of them moves values in memory
    choices: dict[GraphNode, Choice] = field(default_factory=dict)  # choice for each node of the imported unit

    @property
    def rewrites(self) -> tuple[str, ...]:
        """Names of the rewrites without which it would be refused."""
        return tuple(dict.fromkeys(name for choice in self.choices.values() for name in choice.rewrites))

    @property
    def moves_only(self) -> bool:
        return self.unit.moves_only or not self.computes


@dataclass(eq=False)
class Partition:
    """Content of one call: nodes, inputs and outputs, and the chosen graph."""

    nodes: tuple[FxNode, ...]  # every node that belongs to it, in execution order
    # Integer nodes read from outside, in the order of ExecuTorch's arguments: as they are first read.
    inputs: tuple[FxNode, ...]
    outputs: tuple[FxNode, ...]  # quantize nodes whose integers are read outside
    decisions: tuple[Decision, ...]  # decisions on its units, in the order of the program
    policy: Policy  # of the NPU or the core that computes it
    # Inputs and outputs of shape [N, C, H, W] that are passed as contiguous [N, H, W, C].
    images: frozenset[FxNode] = frozenset()
    plan: object = None  # options and result of the NPU's compiler, see `Device.plan`; None before it has run

    @functools.cached_property
    def chosen(self) -> Graph:
        """The imported graph with the chosen rewrites."""
        units = [d.unit for d in self.decisions]
        pieces = [u.imported for u in units if isinstance(u.imported, GraphPiece)]
        instead = {n: c.nodes for d in self.decisions for n, c in d.choices.items() if c.rewrites}
        return assemble(units[0].view, pieces, self.inputs, self.outputs, self.images, instead)

    @functools.cached_property
    def graph(self) -> Graph:
        """The chosen graph in its final form, which is compiled."""
        return self.policy.finished(self.chosen.clone())

    def finished_by(self) -> dict[str, tuple[str, ...]]:
        """Return names of the rewrites that the final form of the graph needed, by name of the program's node."""
        found: dict[str, dict[str, None]] = {}
        for node in self.graph.nodes if self.policy.finishing else ():
            names = [name for name in node.origin.passes if name in self.policy.finishing]
            for source in node.origin.nodes if names else ():
                found.setdefault(source, {}).update(dict.fromkeys(names))
        return {source: tuple(names) for source, names in found.items()}

    def hand_over(self, images: Collection[FxNode]) -> bool:
        """Make those inputs and outputs that are among ``images`` its images; return True if anything changed."""
        own = frozenset(n for n in (*self.inputs, *self.outputs) if n in images)
        if own == self.images:
            return False
        self.images, self.plan = own, None
        for name in ("chosen", "graph"):
            self.__dict__.pop(name, None)
        return True


@dataclass(frozen=True, repr=False)
class Partitioning(Shown):
    """All partitions of a program and the report on every operator.

    Attributes:
        partitions: of the NPU.
        core: of the core beside it, in int8.
    """

    partitions: tuple[Partition, ...]
    report: DelegationReport
    core: tuple[Partition, ...] = ()

    def __str__(self) -> str:
        return str(self.report)

    def __rich__(self) -> RenderableType:
        return self.report.__rich__()

    def _repr_html_(self) -> str:
        return self.report._repr_html_()


def agree_on_images(partitions: Sequence[Partition]) -> None:
    """Choose values between partitions that are passed as [N, H, W, C] because one of the partitions has them in this
    order.

        npu: conv2d -> transpose ─► core: transpose -> avg_pool2d        npu: conv2d ─► core: avg_pool2d

    If a partition receives an image and then only transposes it at its end, its own results are checked again.
    """
    images: set[FxNode] = set()
    computed = {n for p in partitions for n in p.outputs}
    inside = {n for p in partitions for n in p.nodes}

    def is_handed_over(node: FxNode) -> bool:
        shape = static_shape(node)
        readers_are_inside = inside.issuperset(readers_of(node))
        return node in computed and readers_are_inside and shape is not None and len(shape) == len(TO_CHANNELS_LAST)

    asked = list(partitions)
    while asked:
        images |= {n for p in asked for n in _held_as_images(p) if is_handed_over(n)}
        asked = [p for p in partitions if p.hand_over(images)]


def _held_as_images(partition: Partition) -> list[FxNode]:
    """Return inputs and outputs that the partition itself has as [N, H, W, C], or transposes to that order and back."""
    graph = partition.graph
    users, producer = graph.users(), graph.producers()
    found = [n for i, n in enumerate(partition.inputs) if i in graph.channels_last_inputs]
    found += [
        node
        for node, tensor in zip(partition.inputs, graph.inputs, strict=True)
        if tensor in users and all(_is(reader, TO_CHANNELS_LAST) for reader in users[tensor])
    ]
    for node, tensor in zip(partition.outputs, graph.outputs, strict=True):
        if tensor in producer and _is(producer[tensor], TO_CHANNELS_FIRST):
            found.append(node)
    return found


def _is(node: Node, permutation: Permutation) -> bool:
    return isinstance(node.op, Transpose) and node.op.permutation == permutation


# ---------------------------------------------------------------- grouping, and orders of the nodes


def group(predecessors: Sequence[Sequence[int]], supported: Sequence[bool]) -> list[list[int]]:
    """Return as few partitions of the supported vertices as possible, in time and space linear in the graph's size.

    A partition runs as one call, so no value may leave it, pass through another operator and return:

        a ── host ── c          {a, c} would wait for host, which waits for {a, c}

    Along any path, every return from the host therefore needs a new partition. Counting these returns gives each vertex
    its partition at once, and no division has fewer partitions: the path with the most returns needs that many.

        a ── b ── host ── c ── d        partition 1: a b e    partition 2: c d f
             └──── e ──────────f (reads c, e)

    Args:
        predecessors: for every vertex, in execution order, the vertices that it reads.
        supported: for every vertex whether it may be in a partition.

    Returns:
        Partitions in execution order, each a sorted list of vertices; every supported vertex is in exactly one. Merging
        each into one vertex keeps the graph acyclic, and no division has fewer partitions.
    """
    # level[v] is the number of partitions that run before or with v on the longest path to it. Each level is a
    # partition: values flow to equal or higher levels, and a value that returns from the core is at a higher one.
    level: list[int] = []
    partitions: list[list[int]] = []
    for vertex, sources in enumerate(predecessors):
        if any(source >= vertex for source in sources):
            raise InternalError(f"Vertex {vertex} reads {max(sources)}, which comes after it.")
        if not supported[vertex]:
            level.append(max((level[source] for source in sources), default=0))
            continue
        number = max((level[source] + (not supported[source]) for source in sources), default=1)
        level.append(max(number, 1))
        if level[vertex] > len(partitions):
            partitions.append([])
        partitions[level[vertex] - 1].append(vertex)
    return partitions


class ProgramOrder:
    """Nodes in ExecuTorch's order.

    The arguments of a delegate call are in the order in which the nodes of the partition read them.  ExecuTorch sorts
    the whole program again, breadth first, after each partition, so that the arguments of the second partition follow
    another order than the program's.  `micronpu.compile` follows it, so that both entry points give the same payload.

    A dequantize with several readers counts as one per reader, as `NeutronPartitioner` duplicates it.

    Args:
        nodes: of the program, in execution order.
    """

    def __init__(self, nodes: Iterable[FxNode]) -> None:
        self._order: list[Hashable] = []
        self._sources: dict[Hashable, list[Hashable]] = {}
        self._results: dict[Hashable, Hashable] = {}  # replacements of the calls' outputs
        for node in nodes:
            for key in _parts(node):
                self._order.append(key)
                self._sources[key] = [_part(source, node) for source in node.all_input_nodes]

    def positions(self, members: Collection[FxNode]) -> dict[FxNode, int]:
        """Return the position of each node of a partition; for a dequantize, that of its first reader in it."""
        found: dict[FxNode, int] = {}
        for place, key in enumerate(self._order):
            node, reader = key if isinstance(key, tuple) else (key, None)
            if isinstance(node, FxNode) and node in members and (reader is None or reader in members):
                found.setdefault(node, place)
        return found

    def cut(self, members: Iterable[FxNode], inputs: Sequence[FxNode], outputs: Sequence[FxNode]) -> None:
        """Replace a partition by a call, and sort as ExecuTorch does."""
        inside = set(members)
        results: dict[Hashable, Hashable] = {output: object() for output in outputs}
        if not results:
            return
        needed: set[Hashable] = set()  # of remaining nodes; several partitions may read one constant
        gone: set[Hashable] = set()
        for key in reversed(self._order):
            owner = key[1] if isinstance(key, tuple) else key
            if owner in inside and (key in results or key not in needed):
                gone.add(key)
            else:
                needed.update(self._sources[key])
        call = object()
        last = max(self._order.index(output) for output in outputs)
        behind = [call, *results.values()]
        self._order = [
            k
            for i, key in enumerate(self._order)
            for k in ([] if key in gone else [key]) + (behind if i == last else [])
        ]
        self._sources[call] = [self._results.get(i, i) for i in inputs]  # which may be results of another call
        self._results.update(results)
        self._sources.update({result: [call] for result in results.values()})
        for key in self._order:
            self._sources[key] = [results.get(s, s) for s in self._sources[key]]
        self._sort()

    def _sort(self) -> None:
        readers: dict[Hashable, list[Hashable]] = {key: [] for key in self._order}
        missing: dict[Hashable, int] = {}
        for key in self._order:
            sources = dict.fromkeys(self._sources[key])
            missing[key] = len(sources)
            for source in sources:
                readers[source].append(key)
        queue = deque(key for key in self._order if not missing[key])
        self._order = []
        while queue:
            key = queue.popleft()
            self._order.append(key)
            for reader in readers[key]:
                missing[reader] -= 1
                if not missing[reader]:
                    queue.append(reader)


def outlined_order(graph: FxGraph, calls: Sequence[Partition]) -> list[FxNode]:
    """Return the nodes that the outputs of a program need, in the order of need; outputs stand for calls."""
    home = {output: call for call in calls for output in call.outputs}
    order: dict[FxNode, None] = dict.fromkeys(graph.find_nodes(op="placeholder"))
    result = graph.output_node()
    stack: list[tuple[FxNode, bool]] = [(n, False) for n in reversed(result.all_input_nodes)]
    waiting: set[FxNode] = set()
    while stack:
        node, ready = stack.pop()
        if node in order:
            continue
        if ready:
            order[node] = None
            continue
        if node in waiting:
            raise InternalError(f"A partition waits for its own result `{node.name}`.")
        waiting.add(node)
        sources = home[node].inputs if node in home else node.all_input_nodes
        stack.append((node, True))
        stack.extend((n, False) for n in reversed(sources))
    return list(order)


def _parts(node: FxNode) -> list[Hashable]:
    """Return the node, or for a dequantize one entry per reader, later readers first."""
    first, *rest = dict.fromkeys(_part(node, reader) for reader in node.users or (node,))
    return [first, *reversed(rest)]


def _part(node: FxNode, reader: FxNode) -> Hashable:
    return (node, reader) if is_dequantize(node) else node
