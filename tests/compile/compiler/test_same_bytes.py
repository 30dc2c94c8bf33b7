"""The bytes of a program do not depend on the machine: `tests.same_bytes` in small."""

from __future__ import annotations

import pytest
from tests import same_bytes

FEW = ("separable-neutron-io", "gru", "adaptive", "equalized-mse")


@pytest.mark.slow  # `.ci/run` compares all kinds in this way
def test_old_instructions_give_the_same_bytes() -> None:
    """Kernels for processors of fifteen years ago, another seed of hashes, other batches: all at once."""
    base = same_bytes.under(FEW, "base")
    assert same_bytes.under(FEW, "sse41", "hash", "batches") == base
    assert all(len(digest) == 64 for digest in base.values()), base


@pytest.mark.slow
@pytest.mark.parametrize("setting", list(same_bytes.SETTINGS)[1:])
def test_every_setting_gives_the_same_bytes(setting: str) -> None:
    kinds = list(same_bytes.KINDS)
    assert same_bytes.under(kinds, setting) == same_bytes.under(kinds, "base")


def test_random_numbers_of_the_check_are_the_same_everywhere() -> None:
    """They come from integers: torch draws others from its normal distribution with other instructions."""
    assert same_bytes.numbers(3, seed=1).tolist() == [-0.0537109375, 0.023681640625, 0.510498046875]
