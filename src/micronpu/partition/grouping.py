"""Grouping of supported operators into as few partitions as possible without making the program cyclic.

A partition runs as one call, so no value may leave it, pass through another operator and return:

    a ── host ── c          {a, c} would wait for host, which waits for {a, c}

Along any path, every return from the host therefore needs a new partition.  Counting these returns gives each vertex
its partition at once, and no division has fewer partitions: the path with the most returns needs that many.

    a ── b ── host ── c ── d        partition 1: a b e    partition 2: c d f
         └──── e ──────────f (reads c, e)
"""

from __future__ import annotations

from collections.abc import Sequence

from micronpu.base.errors import InternalError


def group(predecessors: Sequence[Sequence[int]], supported: Sequence[bool]) -> list[list[int]]:
    """Return partitions of the supported vertices, in time and space linear in the size of the graph.

    Args:
        predecessors: for every vertex, in execution order, the vertices that it reads.
        supported: for every vertex whether it may be in a partition.

    Returns:
        Partitions in execution order, each a sorted list of vertices; every supported vertex is in exactly one. Merging
        each into one vertex keeps the graph acyclic, and no division has fewer partitions.

    Raises:
        InternalError: a vertex reads itself or a later one.
    """
    # level[v] is the number of partitions that run before or with v on the longest path to it.  Each level is a
    # partition:
    # values flow from lower levels to equal or higher ones, and a value that returns from the core is at a higher
    # level.
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
