"""Elements that are picked and replaced at positions known at run time only: torch's values, whoever moves them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import micronpu

SHAPE = (1, 5, 8, 6)


class Moves(nn.Module):
    """Every form, behind an operator that computes on a grid which holds the results exactly."""

    def forward(self, x: torch.Tensor, z: torch.Tensor, i: torch.Tensor, j: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y, new = torch.maximum(x, z), torch.maximum(x[:, :, :3], -z[:, :, :3])
        overwritten = y.clone()
        overwritten[:, :, i[:1] - 8] = 7.0
        return (
            y.index_select(1, j),
            y.index_select(3, j.long()),
            y[:, :, i - 8],  # from the end
            y[:, j[:, None], i],  # of two axes
            y[:, torch.arange(2), i[:1]],
            y[0, 0].gather(0, i[:, None].expand(3, 6)),
            y.gather(2, i.reshape(1, 1, 3, 1) % torch.tensor([2, -3, 4, 5, 6, 8]).abs()),
            torch.take_along_dim(y[0, 0], i[:, None].expand(3, 6), 0),
            y.index_copy(2, i, new),
            (i - 5) % 4,  # where ExecuTorch's kernel has the sign of the dividend
            torch.remainder(i - 5, -j[:1] - 2),
            overwritten,
            y.flatten(0, 1).index_put([j], torch.minimum(x[0, :2], z[0, :2])),
        )


@pytest.mark.sweep
@pytest.mark.parametrize(("target", "looks_up"), [("ethos-u85-256", True), ("ethos-u55-128", False)])
def test_values_are_those_of_torch(target: str, looks_up: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    x, z = (torch.randint(-12, 13, SHAPE, generator=generator).float() for _ in range(2))
    inputs = (x, z, torch.tensor([6, 1, 3]), torch.tensor([4, 0], dtype=torch.int32))
    ends = [(torch.full(SHAPE, e), torch.full(SHAPE, e), *inputs[2:]) for e in (-12.75, 12.75)]
    program = micronpu.compile(Moves().eval(), inputs, target, calibration=[*ends, inputs])
    for number, (got, expected) in enumerate(zip(program.run(*inputs), Moves()(*inputs), strict=True)):
        torch.testing.assert_close(got, expected, atol=1e-5, rtol=0, msg=lambda m, n=number: f"result {n}: {m}")
    left = [v.operator for v in program.report.host if "run time only" in str(v.reasons[:1])]
    assert program.report.partitions == 1 and bool(left) != looks_up, program.report
