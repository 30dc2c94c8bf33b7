"""Grouping of nodes into partitions, and orders of a program's nodes after partitions are cut out.

The arguments of a delegate call are in the order in which the nodes of the partition read them.  ExecuTorch sorts the
whole program again, breadth first, after each partition, so that the arguments of the second partition follow another
order than the program's.  `micronpu.compile` follows it, so that both entry points produce the same payload.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Hashable, Iterable, Sequence
from typing import Protocol

from torch.fx import Graph, Node

from micronpu.base.errors import InternalError
from micronpu.frontend.program import is_dequantize


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

    Raises:
        InternalError: a vertex reads itself or a later one.
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

    A dequantize with several readers counts as one per reader, as `NeutronPartitioner` duplicates it.

    Args:
        nodes: of the program, in execution order.
    """

    def __init__(self, nodes: Iterable[Node]) -> None:
        self._order: list[Hashable] = []
        self._sources: dict[Hashable, list[Hashable]] = {}
        self._results: dict[Hashable, Hashable] = {}  # replacements of the calls' outputs
        for node in nodes:
            for key in _parts(node):
                self._order.append(key)
                self._sources[key] = [(s, node) if is_dequantize(s) else s for s in node.all_input_nodes]

    def positions(self, members: Collection[Node]) -> dict[Node, int]:
        """Return the position of each node of a partition; for a dequantize, that of its first reader in it."""
        found: dict[Node, int] = {}
        for place, key in enumerate(self._order):
            node, reader = key if isinstance(key, tuple) else (key, None)
            if isinstance(node, Node) and node in members and (reader is None or reader in members):
                found.setdefault(node, place)
        return found

    def cut(self, members: Iterable[Node], inputs: Sequence[Node], outputs: Sequence[Node]) -> None:
        """Replace a partition by a call, and sort as ExecuTorch does.

        Args:
            members: all nodes of the partition.
            inputs, outputs: its inputs and outputs, in the order of the call.
        """
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


class PartitionCall(Protocol):
    """Inputs and outputs of a partition, which replace its nodes."""

    @property
    def inputs(self) -> tuple[Node, ...]: ...

    @property
    def outputs(self) -> tuple[Node, ...]: ...


def outlined_order(graph: Graph, calls: Sequence[PartitionCall]) -> list[Node]:
    """Return the nodes that the outputs of a program need, in the order of need; calls are represented by their
    outputs.

    Raises:
        InternalError: a call waits for its own result.
    """
    home = {output: call for call in calls for output in call.outputs}
    order: dict[Node, None] = dict.fromkeys(n for n in graph.nodes if n.op == "placeholder")
    (result,) = (n for n in graph.nodes if n.op == "output")
    stack: list[tuple[Node, bool]] = [(n, False) for n in reversed(result.all_input_nodes)]
    waiting: set[Node] = set()
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


def _parts(node: Node) -> list[Hashable]:
    """Return the node, or for a dequantize one entry per reader, later readers first."""
    if not is_dequantize(node):
        return [node]
    first, *rest = [(node, user) for user in node.users] or [(node, node)]
    return [first, *reversed(rest)]
