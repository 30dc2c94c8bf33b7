"""How often Python's collector looks for garbage while something is compiled."""

import gc
from collections.abc import Iterator

import pytest

from micronpu.base.garbage import FEW_COLLECTIONS, few_collections


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


def test_thresholds_come_back_when_the_last_has_ended() -> None:
    gc.set_threshold(700, 10, 10)
    outer, inner = few_collections(), few_collections()
    outer.__enter__()
    inner.__enter__()
    outer.__exit__(None, None, None)  # as two threads may end
    assert gc.get_threshold() == FEW_COLLECTIONS
    inner.__exit__(None, None, None)
    assert gc.get_threshold() == (700, 10, 10)


def test_thresholds_come_back_after_an_error() -> None:
    gc.set_threshold(700, 10, 10)
    with pytest.raises(ValueError, match="why"), few_collections():
        raise ValueError("why")
    assert gc.get_threshold() == (700, 10, 10)


@pytest.mark.parametrize("own", [(0, 10, 10), (500_000, 10, 10)], ids=["off", "rarer"])
def test_a_user_who_wants_less_has_less(own: tuple[int, int, int]) -> None:
    gc.set_threshold(*own)
    with few_collections():
        assert gc.get_threshold() == own
    assert gc.get_threshold() == own


def test_what_the_user_sets_meanwhile_stays() -> None:
    with few_collections():
        gc.set_threshold(900, 5, 5)
    assert gc.get_threshold() == (900, 5, 5)
