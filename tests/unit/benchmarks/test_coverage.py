"""What the script for whole networks does to them before they are compiled."""

from __future__ import annotations

import torch
from benchmarks.coverage import settle


def test_batch_norms_get_the_statistics_of_an_input() -> None:
    torch.manual_seed(0)
    norm = torch.nn.BatchNorm2d(3)
    x = 5 * torch.randn(4, 3, 8, 8) + 2
    settle(norm, x)
    assert not norm.training
    with torch.no_grad():
        y = norm(x)
    assert abs(float(y.mean())) < 1e-5 and abs(float(y.std()) - 1) < 1e-2
    settle(torch.nn.BatchNorm1d(3), x[0, :, 0, :1].T)  # one row
