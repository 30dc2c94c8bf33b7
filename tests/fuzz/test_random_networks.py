"""A fixed few of the random networks; the rest is `make networks`."""

from __future__ import annotations

import pytest
from tests.fuzz.random_networks import Row, check, shrunk


@pytest.mark.parametrize("seed", [0, 3, 8, 14])
def test_network(seed: int) -> None:
    row = Row.of(seed)
    found = check(row)
    assert not found, shrunk(row, found)


def test_what_is_wrong_is_found_and_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check that cannot fail would be none."""

    def wrong(row: Row) -> str:
        return "WrongResultError: ..." if row.length >= 2 else ""

    monkeypatch.setattr("tests.fuzz.random_networks.check", wrong)
    assert shrunk(Row(0, "imxrt700", length=8), "WrongResultError: ...")[0].length == 2
