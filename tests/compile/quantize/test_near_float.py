"""Idioms whose grids were once so far from their values that the whole program was far from its float model."""

from __future__ import annotations

import math

import pytest
import torch
from tests.compile.nearness import FAMILIES, decibels
from tests.compile.small import Small, Tensors

# --- masks in front of a softmax, along whatever axis -------------------------------------------------------------

_EDGES = (torch.rand(1, 12, 12, generator=torch.Generator().manual_seed(5)) < 0.4) | torch.eye(12).bool()


def _masked(axis: int) -> Small:
    """What graph attention does: each node weighs its neighbours."""

    def forward(_, x, edges):
        shown = edges > 0.5
        heads = x[..., None].expand(1, 12, 12, 4).masked_fill(~shown[..., None], -math.inf)
        return (
            torch.softmax(x.masked_fill(~shown, -math.inf), axis),
            torch.softmax(torch.where(shown, x, torch.full_like(x, -9e15)), axis),
            torch.softmax(x.masked_fill(~shown, -150.0), axis),
            torch.softmax(x.masked_fill(~_EDGES, -1e4), axis),
            torch.softmax(x + torch.where(_EDGES, 0.0, -1e9), axis),
            torch.softmax(heads, axis),
        )

    return Small(forward)


def _scores(random: torch.Generator) -> Tensors:
    edges = (torch.rand(1, 12, 12, generator=random) < 0.4) | torch.eye(12).bool()
    return torch.randn(1, 12, 12, generator=random), edges.float()


@pytest.mark.parametrize("target", FAMILIES)
@pytest.mark.parametrize("axis", [1, 2])
def test_what_a_mask_hides_takes_no_steps_from_the_scores_that_count(axis, target):
    assert min(decibels(_masked(axis), _scores, target)) >= 30.0
