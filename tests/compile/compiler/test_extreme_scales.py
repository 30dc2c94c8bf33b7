"""Numbers for which LiteRT's kernels end the process: a reason, and the operator runs elsewhere."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import micronpu


class Net(nn.Module):
    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.relu(x) + 1e38,
        lambda x: torch.relu(x) - 1e38,
        lambda x: torch.neg(torch.abs(x * 1e38)),
    ],
    ids=["add", "sub", "neg"],
)
def test_scales_beyond_litert_are_refused_with_a_reason(function) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 4)
    program = micronpu.compile(
        Net(function).eval(), (x,), target="imxrt700-neutron", calibration=[torch.randn(2, 4) for _ in range(3)]
    )
    assert any("no float32 any more" in str(verdict) for verdict in program.report.host), program.report
    assert torch.isfinite(program.run(x)).all()
