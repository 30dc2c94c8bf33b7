"""Which weights are two in four."""

from __future__ import annotations

import numpy as np
import pytest

from micronpu.ir.pattern import is_made_two_in_four, is_two_in_four


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ([1, 0, 0, 2], True),
        ([0, 1, 2, 0, 3, 4, 0, 0], True),
        ([1, 1, 1, 0], False),
        ([1, 0, 1, 0, 0, 1, 1, 1], False),
        ([1, 0, 1, 0, 1, 1], True),  # the last group has two channels, and two that are not there
        ([1, 0, 1, 0, 1, 1, 1], False),
        ([0, 0, 1, 1, 1, 1, 0, 0], True),  # groups begin at multiples of four
        ([0, 1, 1, 1, 1, 0, 0, 0], False),
    ],
)
def test_groups_of_four_neighbours_along_the_last_axis(row: list[int], expected: bool) -> None:
    weights = np.array(row, np.int8)
    assert is_two_in_four(weights[None]) is expected
    picture = np.zeros((3, 2, 2, len(row)), np.int8)
    picture[1, 0, 1] = weights
    assert is_made_two_in_four(picture) is expected


def test_what_has_the_pattern_by_nature_was_not_made_so() -> None:
    for weights in (np.ones((4, 2), np.int8), np.zeros((4, 8), np.int8), np.array([1, 0], np.int8)):
        assert not is_made_two_in_four(weights)
    assert is_two_in_four(np.ones((4, 2), np.int8))
