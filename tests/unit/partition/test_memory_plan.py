"""Placements of tensors in memory: never overlapping, near the bound, the same every time."""

from __future__ import annotations

import random
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from micronpu.partition.memory import Lifetime, Placement, _first_fit, _neighbours, alive_bytes, lower_bound, place

lifetimes = st.builds(
    lambda size, first, length: Lifetime(16 * size, first, first + length),
    st.integers(1, 64),
    st.integers(0, 30),
    st.integers(0, 12),
)


@settings(deadline=None, max_examples=150)
@given(st.lists(lifetimes, min_size=1, max_size=25))
def test_tensors_that_live_together_do_not_overlap(tensors: list[Lifetime]) -> None:
    placement = place(tensors)
    for (a, x), (b, y) in combinations(zip(tensors, placement.offsets, strict=True), 2):
        apart = a.last < b.first or b.last < a.first
        assert apart or x + a.size <= y or y + b.size <= x
    assert placement.size == max(o + t.size for o, t in zip(placement.offsets, tensors, strict=True))
    assert placement.size >= lower_bound(tensors)
    assert place(tensors) == placement


@settings(deadline=None)
@given(st.lists(lifetimes, max_size=25))
def test_live_bytes_are_those_of_each_tensor_that_lives(tensors: list[Lifetime]) -> None:
    steps = sorted({t.first for t in tensors})
    assert alive_bytes(tensors) == {s: sum(t.size for t in tensors if t.first <= s <= t.last) for s in steps}


def chain(sizes: list[int]) -> list[Lifetime]:
    """Each result is read by the next step alone."""
    return [Lifetime(size, step, step + 1) for step, size in enumerate(sizes)]


@pytest.mark.parametrize(
    "tensors",
    [
        chain([16, 160, 32, 320, 64, 160]),
        [*chain([64] * 8), Lifetime(32, 0, 8)],  # a skip over everything
        [Lifetime(32, 0, 2), Lifetime(16, 1, 3), Lifetime(32, 3, 5), Lifetime(16, 2, 6), Lifetime(48, 5, 6)],
        [Lifetime(16 * (1 + i % 5), i, i + 1 + i % 4) for i in range(60)],
    ],
    ids=["chain", "skip", "crossing", "long"],
)
def test_bound_is_reached(tensors: list[Lifetime]) -> None:
    assert place(tensors).size <= 1.02 * lower_bound(tensors)


def test_bound_counts_the_worst_step() -> None:
    assert lower_bound([Lifetime(16, 0, 1), Lifetime(32, 1, 2), Lifetime(64, 2, 3)]) == 96
    assert lower_bound([]) == 0


@settings(deadline=None, max_examples=300)
@given(st.lists(lifetimes, min_size=2, max_size=25), st.randoms(use_true_random=False))
def test_a_placement_after_one_move_is_that_of_all_tensors(tensors: list[Lifetime], dice: random.Random) -> None:
    count, neighbours = len(tensors), _neighbours(tensors)
    order = dice.sample(range(count), count)
    anywhere = Placement((0,) * count, sum(t.size for t in tensors) + 1, range(count))
    earlier = _first_fit(tensors, neighbours, order, anywhere, order)
    moved = dice.choice(order)
    after = [i for i in order if i != moved]
    after.insert(dice.randrange(count), moved)
    expected = _first_fit(tensors, neighbours, after, anywhere, after)
    found = _first_fit(tensors, neighbours, after, earlier, [moved])
    assert found == (earlier if expected.size > earlier.size else expected)
