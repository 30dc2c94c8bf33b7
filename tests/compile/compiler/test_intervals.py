"""The interval of the report contains the figure on other data, also for few calibration samples."""

from __future__ import annotations

import pytest
from benchmarks.intervals import KINDS, outcome


@pytest.mark.sweep
@pytest.mark.parametrize("kind", ["residual", "attention"])
def test_the_interval_of_a_small_network_contains_other_data(kind: str) -> None:
    one = outcome(kind, 0, 24)
    assert one.is_inside and one.reported - one.other < 3.0


@pytest.mark.slow
def test_most_intervals_of_small_networks_contain_other_data() -> None:
    """A share that only grows: 63 of 120 where calibrated samples were judged by their own ranges."""
    for kind in KINDS:
        for rows in (24, 48):
            assert sum(outcome(kind, seed, rows).is_inside for seed in range(12)) >= 11, (kind, rows)
