"""Partitions with more inputs or outputs than a payload can have."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import micronpu
from micronpu.container.payload import MOST_TENSORS
from micronpu.partition.partition import BOUNDARY

COUNT = MOST_TENSORS + 5


class Net(nn.Module):
    """Sums of pairs, all of one value, or one value of all."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.eval()

    def forward(self, x: Tensor, *more: Tensor) -> Tensor | tuple[Tensor, ...]:
        if self.kind == "outputs":
            return tuple(torch.relu(x + float(i % 7)) for i in range(COUNT))
        if self.kind == "join":
            return torch.relu(torch.cat([x, *more]))
        total = x
        for other in more:
            total = torch.relu(total - other)
        return total


@pytest.mark.slow  # half a thousand operators each
@pytest.mark.parametrize("kind", ["inputs", "outputs", "join"])
def test_it_is_divided_or_stays_on_the_host(kind):
    inputs = tuple(torch.randn(1, 8) for _ in range(1 if kind == "outputs" else COUNT))
    program = micronpu.compile(Net(kind), inputs, "imxrt700-neutron", calibration=[inputs])
    report = program.report
    if kind == "join":
        assert [r.rule for v in report.host for r in v.reasons if "cat" in v.operator] == [BOUNDARY]
    else:
        assert report.partitions == 2 and not report.host
    for part in program.partitions:
        assert max(len(part.graph.inputs), len(part.graph.outputs)) <= MOST_TENSORS
    assert report.agreement is not None and not report.agreement.reason
