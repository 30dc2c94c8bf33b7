"""How a time is written: two or three figures, and no more than it is known to."""

import pytest

from micronpu.report.operations import Latency


@pytest.mark.parametrize(
    ("cycles", "shown"),
    [
        (150_000, "150 ms (75 to 300)"),
        (15_000, "15.0 ms (7.5 to 30.0)"),
        (1_500, "1.50 ms (0.75 to 3.00)"),
        (100, "0.10 ms (0.05 to 0.20)"),
        (10, "0.010 ms (0.005 to 0.020)"),
        (5, "0.0050 ms (0.0025 to 0.0100)"),
    ],
)
def test_two_or_three_figures(cycles: int, shown: str) -> None:
    text = str(Latency("Calls of the NPU", cycles, 1, 0.5, 2, "a model"))
    assert text == f"Calls of the NPU: about {shown}, {cycles:,} cycles at 1 MHz, by a model."
