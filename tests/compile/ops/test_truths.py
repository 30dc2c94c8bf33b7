"""Truth values that the program is given, or finds out from integers: numbers for the NPU, exact in every call."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import micronpu
from micronpu.quantize.config import Activations

SHAPE = (1, 4, 8)


class Choices(nn.Module):
    """On grids that hold the results exactly."""

    def forward(self, x: torch.Tensor, z: torch.Tensor, mask: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        y = torch.maximum(x, z)
        rows = mask.unsqueeze(-1)
        band = mask[:, :, None] & torch.tril(torch.ones(4, 8)).bool() & ~(i == 3)
        return torch.stack(
            (
                torch.where(rows, y, z),
                y.masked_fill(~rows, 0.0),
                y * rows,
                y * mask.float().unsqueeze(-1),
                torch.where(rows & (x > z), y, -4.0),
                torch.where(mask.any(-1, keepdim=True).unsqueeze(1), y, x),
                y * band,
            )
        )


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("target", "activations"),
    [("imxrt700-neutron", "int8"), ("ethos-u55-128", "int8"), ("ethos-u85-256", "int16")],
)
def test_a_mask_that_calibration_has_not_seen(target: str, activations: Activations) -> None:
    generator = torch.Generator().manual_seed(0)
    x, z = (torch.randint(-12, 13, SHAPE, generator=generator).float() for _ in range(2))
    shown, i = torch.ones(1, 4, dtype=torch.bool), torch.arange(8)
    ends = [(torch.full(SHAPE, e), torch.full(SHAPE, -e), shown, i) for e in (-12.75, 12.75)]
    program = micronpu.compile(
        Choices().eval(), (x, z, shown, i), target, calibration=ends, quantization=activations, verify=False
    )
    left = [v.operator for v in program.report.host if v.reasons]
    assert program.report.partitions == 1 and not {"where.self", "mul.Tensor", "masked_fill.Scalar"} & {*left}, left
    step = 12.75 / (127.5 if activations == "int8" else 32767)
    for mask in (shown, torch.tensor([[True, False, False, True]]), torch.zeros(1, 4, dtype=torch.bool)):
        got, expected = program.run(x, z, mask, i), Choices()(x, z, mask, i)
        torch.testing.assert_close(got, expected, atol=step / 2 if activations == "int8" else 2 * step, rtol=0)


class Counts(nn.Module):
    """How many are above a number: as integers, as numbers of a product, and compared with a number."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        above = x > 0.3
        band = above & (x < 1.0)
        return above.sum(1), band.sum(), above[..., :5].sum((1, 2)).float() * 0.5, (above.sum(2) > 3).float()


@pytest.mark.sweep
@pytest.mark.parametrize("target", ["imxrt700", "ethos-u55-128", "cortex-m55"])
def test_a_count_is_a_whole_number(target: str) -> None:
    """On a grid of 0.031 seven are 6.98, of which the integer is 6."""
    generator = torch.Generator().manual_seed(0)
    data = [(torch.randn(SHAPE, generator=generator) * 3).round() / 3 + 0.1 for _ in range(24)]
    program = micronpu.compile(Counts().eval(), data[0], target, calibration=data)
    for x in data:
        for got, expected in zip(program.run(x), Counts()(x), strict=True):
            assert got.dtype == expected.dtype
            torch.testing.assert_close(got, expected, atol=0.02 if got.is_floating_point() else 0, rtol=0)


class Rounded(nn.Module):
    """Whole numbers of other kinds, as integers."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.round(3 * x).int(), torch.floor(7 * x).long(), torch.ceil(x).int() + 1, torch.trunc(4 * x) * 0.5


@pytest.mark.sweep
@pytest.mark.parametrize("target", ["imxrt700", "ethos-u55-128", "cortex-m55"])
def test_what_is_rounded_is_a_whole_number(target: str) -> None:
    generator = torch.Generator().manual_seed(0)
    data = [(torch.randint(-9, 10, SHAPE, generator=generator) * 21 + 9) / 84 for _ in range(24)]
    program = micronpu.compile(Rounded().eval(), data[0], target, calibration=data)
    for x in data:
        for got, expected in zip(program.run(x), Rounded()(x), strict=True):
            assert got.dtype == expected.dtype
            torch.testing.assert_close(got, expected, atol=0.02 if got.is_floating_point() else 0, rtol=0)
