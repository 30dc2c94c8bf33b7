"""Joins what a target can run into as few partitions as possible without making the program cyclic.

A partition runs as one call, so no value may leave it, pass through something else and come back:

    a ── b ── c          {a, c} would wait for b, which waits for {a, c}
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass
class _Group:
    members: list[int] = field(default_factory=list)
    upstream: int = 0  # bit g: group g must run before
    outside: set[int] = field(default_factory=set)  # predecessors of members that are not members


def group(predecessors: Sequence[Sequence[int]], supported: Sequence[bool]) -> list[list[int]]:
    """Partitions of the supported vertices.

    Args:
        predecessors: for every vertex, in execution order, the vertices that it reads.
        supported: which vertices may be in a partition.

    Returns:
        Partitions in execution order, each a sorted list of vertices.  Contracting any of them keeps the graph
        acyclic.
    """
    groups: list[_Group] = []
    owner: list[int | None] = []
    upstream: list[int] = []  # for a vertex outside of groups: groups that run before it

    def before(vertex: int) -> int:
        """Groups that must have run when ``vertex`` has run."""
        number = owner[vertex]
        return upstream[vertex] if number is None else groups[number].upstream | 1 << number

    def refresh(number: int) -> None:
        """Spreads what runs before group ``number`` to everything behind it."""
        bit, more = 1 << number, groups[number].upstream
        for other in groups:
            if other.upstream & bit:
                other.upstream |= more
        for vertex, bits in enumerate(upstream):
            if bits & bit:
                upstream[vertex] = bits | more

    for vertex, sources in enumerate(predecessors):
        owner.append(None)
        upstream.append(0)
        bits = 0
        for source in sources:
            bits |= before(source)
        if not supported[vertex]:
            upstream[vertex] = bits
            continue
        chosen = _choose(vertex, sources, groups, owner, before)
        if chosen is None:
            chosen = len(groups)
            groups.append(_Group())
        owner[vertex] = chosen
        into = groups[chosen]
        into.members.append(vertex)
        into.outside.update(s for s in sources if owner[s] != chosen)
        added = bits & ~(1 << chosen) & ~into.upstream
        if added:
            into.upstream |= added
            refresh(chosen)
        for source in sources:  # other groups that the vertex reads may now be one with its own
            other = owner[source]
            if other is not None and other != chosen and _can_merge(groups, owner, before, chosen, other):
                _merge(groups, owner, upstream, chosen, other)
                refresh(chosen)
    _merge_rest(groups, owner, upstream, before, refresh)
    return sorted(sorted(g.members) for g in groups if g.members)


def _choose(vertex, sources, groups, owner, before) -> int | None:  # type: ignore[no-untyped-def]
    """A group among the vertex's sources that it can join: no path from the group to it leaves the group."""
    candidates = list(dict.fromkeys(owner[s] for s in reversed(sources) if owner[s] is not None))
    for number in candidates:
        if all(owner[s] == number or not before(s) >> number & 1 for s in sources):
            return int(number)
    return None


def _can_merge(groups, owner, before, a: int, b: int) -> bool:  # type: ignore[no-untyped-def]
    """Whether no path between the two groups, in either direction, leads through anything else."""
    for first, second in ((a, b), (b, a)):
        for source in groups[second].outside:
            if owner[source] not in (a, b) and before(source) >> first & 1:
                return False
    return True


def _merge(groups, owner, upstream, into: int, other: int) -> None:  # type: ignore[no-untyped-def]
    target, gone = groups[into], groups[other]
    for vertex in gone.members:
        owner[vertex] = into
    target.members += gone.members
    target.outside = {v for v in target.outside | gone.outside if owner[v] != into}
    old, new = 1 << other, 1 << into
    target.upstream = (target.upstream | gone.upstream) & ~old & ~new
    gone.members, gone.outside, gone.upstream = [], set(), 0
    for g in groups:
        if g.upstream & old:
            g.upstream = g.upstream & ~old | new
    for vertex, bits in enumerate(upstream):
        if bits & old:
            upstream[vertex] = bits & ~old | new


def _merge_rest(groups, owner, upstream, before, refresh) -> None:  # type: ignore[no-untyped-def]
    """Joins groups that do not touch, too: one call instead of two."""
    for a in range(len(groups)):
        for b in range(a + 1, len(groups)):
            if groups[a].members and groups[b].members and _can_merge(groups, owner, before, a, b):
                _merge(groups, owner, upstream, a, b)
                refresh(a)
