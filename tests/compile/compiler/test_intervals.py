"""The interval of the report contains the figure on other data, also for few calibration samples."""

from __future__ import annotations

import pytest
from benchmarks.intervals import KINDS, outcome


@pytest.mark.parametrize("kind", KINDS)
def test_the_interval_of_a_small_network_contains_other_data(kind: str) -> None:
    one = outcome(kind, 0, 24)
    assert one.is_inside and one.reported - one.other < 1.5


@pytest.mark.slow
@pytest.mark.parametrize("rows", [24, 48])
@pytest.mark.parametrize("kind", KINDS)
def test_intervals_of_small_networks_contain_other_data(kind: str, rows: int) -> None:
    every = [outcome(kind, seed, rows) for seed in range(12)]
    assert sum(one.is_inside for one in every) >= 11
