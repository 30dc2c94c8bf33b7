"""Partitions of random graphs, checked by contracting them and sorting what is left."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from micronpu.base.errors import InternalError
from micronpu.partition.partition import group

Dag = tuple[list[list[int]], list[bool]]


@st.composite
def dags(draw: st.DrawFn, largest: int = 24) -> Dag:
    """Predecessors of each vertex, and which vertices are supported."""
    size = draw(st.integers(0, largest))
    reads = [draw(st.lists(st.integers(0, v - 1), max_size=3, unique=True)) if v else [] for v in range(size)]
    return reads, draw(st.lists(st.booleans(), min_size=size, max_size=size))


def is_acyclic(reads: Sequence[Sequence[int]], partitions: Sequence[Sequence[int]]) -> bool:
    """Whether a graph stays sortable when each partition becomes one vertex."""
    home = {v: ("partition", i) for i, members in enumerate(partitions) for v in members}
    name = [home.get(v, ("vertex", v)) for v in range(len(reads))]
    sorter: TopologicalSorter[tuple[str, int]] = TopologicalSorter()
    for vertex, sources in enumerate(reads):
        sorter.add(name[vertex], *(name[s] for s in sources if name[s] != name[vertex]))
    try:
        sorter.prepare()
    except CycleError:
        return False
    return True


def divisions(vertices: Sequence[int]) -> Iterator[list[list[int]]]:
    """Every division of the vertices into sets."""
    if not vertices:
        yield []
        return
    first, *rest = vertices
    for division in divisions(rest):
        yield [[first], *division]
        for i, members in enumerate(division):
            yield [*division[:i], [first, *members], *division[i + 1 :]]


@given(dags())
@settings(max_examples=300, deadline=None)
def test_partitions_are_convex_complete_and_maximal(dag: Dag):
    reads, supported = dag
    partitions = group(reads, supported)
    assert sorted(v for p in partitions for v in p) == [v for v, s in enumerate(supported) if s]
    assert all(p == sorted(p) and p for p in partitions)
    assert is_acyclic(reads, partitions)
    for a, b in combinations(partitions, 2):
        rest = [p for p in partitions if p is not a and p is not b]
        assert not is_acyclic(reads, [*rest, a + b]), f"{a} and {b} could be one partition"


@given(dags(largest=9))
@settings(max_examples=200, deadline=None)
def test_no_division_has_fewer_partitions(dag: Dag):
    reads, supported = dag
    wanted = [v for v, s in enumerate(supported) if s]
    fewest = min(len(d) for d in divisions(wanted) if is_acyclic(reads, d))
    assert len(group(reads, supported)) == fewest


@given(dags())
@settings(max_examples=100, deadline=None)
def test_partitions_come_in_execution_order(dag: Dag):
    reads, supported = dag
    partitions = group(reads, supported)
    home = {v: i for i, members in enumerate(partitions) for v in members}
    latest: list[int] = []  # the last partition on any path to the vertex
    for vertex, sources in enumerate(reads):
        before = max((latest[s] for s in sources), default=-1)
        assert before <= home.get(vertex, before)
        latest.append(home.get(vertex, before))


@pytest.mark.parametrize(
    ("reads", "supported", "expected"),
    [
        ([], "", []),
        ([[]], ".", []),
        ([[]], "+", [[0]]),
        ([[], [0], [1]], "+++", [[0, 1, 2]]),
        ([[], [0], [1]], "+.+", [[0], [2]]),
        # A value leaves through the host and comes back beside a direct one.
        ([[], [0], [0, 1]], "+.+", [[0], [2]]),
        # Two that do not touch are one call, whatever stands between them in execution order.
        ([[], [], [], [0, 2]], "+.+.", [[0, 2]]),
        # a -> c and b -> d where c and d read the host's view of the other: {a, b} then {c, d}, not {a, c} and {b, d}.
        ([[], [], [0], [1], [0, 3], [1, 2]], "++..++", [[0, 1], [4, 5]]),
        # The host comes first and last only.
        ([[], [0], [1], [1], [2, 3], [4]], "..+++.", [[2, 3, 4]]),
    ],
)
def test_by_hand(reads: list[list[int]], supported: str, expected: list[list[int]]):
    assert group(reads, [s == "+" for s in supported]) == expected


def test_a_vertex_that_reads_a_later_one_is_refused():
    with pytest.raises(InternalError, match=r"Vertex 0 reads 1, which comes after it\."):
        group([[1], []], [True, True])


@pytest.mark.parametrize("every", [1, 2, 3])
def test_long_chains_are_fast(every: int):
    """A chain of 20 000 vertices, all supported or with the host between."""
    size = 20_000
    supported = [every == 1 or v % every != 0 for v in range(size)]
    start = time.process_time()
    partitions = group([[v - 1] if v else [] for v in range(size)], supported)
    seconds = time.process_time() - start
    assert len(partitions) == (1 if every == 1 else len(range(1, size, every)))
    assert seconds < 1.0
