"""Which layers are chosen for a number of cycles."""

from __future__ import annotations

import itertools
import random

import pytest
import torch

from micronpu.transforms.sparsity.distill import difference
from micronpu.transforms.sparsity.options import least_harm


@pytest.mark.parametrize("seed", range(20))
def test_no_other_choice_gains_enough_for_less_harm(seed: int) -> None:
    made = random.Random(seed)
    gains = [made.randrange(1, 60) for _ in range(8)]
    harms = [made.random() for _ in gains]
    wanted = made.uniform(0.2, 0.9) * sum(gains)
    every = [c for n in range(9) for c in itertools.combinations(range(8), n)]
    best = min(sum(harms[i] for i in c) for c in every if sum(gains[i] for i in c) >= wanted)
    chosen = least_harm(gains, harms, wanted)
    assert sum(gains[i] for i in chosen) >= wanted
    assert sum(harms[i] for i in chosen) == pytest.approx(best)


def test_large_gains_are_counted_coarsely_and_never_too_high() -> None:
    gains, harms = [1_000_003, 1_000_007, 1_000_013, 2_999_999], [0.1, 0.1, 0.1, 0.4]
    assert least_harm(gains, harms, 2_990_000) == [0, 1, 2]
    assert least_harm(gains, harms, 3_500_000) == [0, 3]
    assert least_harm(gains, harms, 10**8) == [0, 1, 2, 3]
    assert least_harm(gains, harms, 0) == least_harm([], [], 0) == []


def test_what_an_autoencoder_gives_again_is_no_scores_of_classes() -> None:
    """Scores that are all higher say the same about the classes; a reconstruction that is higher is another."""
    y = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))
    assert difference([y + 1], [y], (torch.zeros(1, 9),)) < 1e-6
    assert difference([y + 1], [y], (torch.zeros(1, 8),)) > 0.5
