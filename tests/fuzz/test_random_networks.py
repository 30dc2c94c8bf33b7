"""A fixed few of the random networks; the rest is `make networks`."""

from __future__ import annotations

import pytest
from tests.fuzz.random_networks import Row, Seen, check, shrunk

KEPT = (
    Row(159, "ethos-u85-1024", length=3),  # Vela's stream of a convolution in groups from TOSA is wrong
    Row(170, "ethos-u85-1024", length=3),  # the same for a transposed one
    Row(596, "cortex-m55", length=5),  # the host asked for more scratch memory than a core with Helium needs
    Row(569, "ethos-u85-512", via="tosa", length=3),  # a softmax whose TOSA form rounds one element otherwise
    Row(384, "ethos-u55-128", via="tosa"),  # a stream that is wrong for weights other than zero
    Row(5136, "mcxn94x"),  # ExecuTorch's entry: a result of one channel, its axes in no order that a payload can name
    Row(1950, "cortex-m33", length=3),  # where() of almost equal values, of which calibration had seen the one only
    Row(5344, "imxrt700-neutron"),  # the position of the larger of two values that one step makes equal
    Row(5390, "ethos-u85-512", length=7),  # the same behind TOSA
)
"""Networks that once failed, shrunk."""


@pytest.mark.sweep
@pytest.mark.parametrize("row", [*map(Row.of, (0, 3, 8, 14)), *KEPT], ids=lambda row: f"{row.seed}-{row.target}")
def test_network(row: Row) -> None:
    found = check(row).wrong
    assert not found, shrunk(row, found)


def test_what_is_wrong_is_found_and_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check that cannot fail would be none."""

    def wrong(row: Row) -> Seen:
        return Seen("WrongResultError: ..." if row.length >= 2 else "")

    monkeypatch.setattr("tests.fuzz.random_networks.check", wrong)
    assert shrunk(Row(0, "imxrt700", length=8), "WrongResultError: ...")[0].length == 2
