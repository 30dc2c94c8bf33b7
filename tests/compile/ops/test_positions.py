"""Positions of the largest and smallest elements: the integers of torch, ties included, wherever they are computed."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import micronpu

LARGE, SMALL = (1, 21, 9, 16), (1, 5, 8)


class Positions(nn.Module):
    """Of an image along every axis that the NPU is worth it for, and of few elements, which the core compares."""

    def forward(self, x: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            x.argmax(1),
            x.argmin(-1, keepdim=True),
            x.flatten(1).reshape(1, 12, 252).argmax(2),
            torch.argmin(z),
            z.argmax(-1),
            z[:, :1].argmin(1, keepdim=True),
            x.argmax(1).float() * 0.5,
        )


@pytest.mark.parametrize(
    ("target", "left"),
    [
        ("imxrt700-neutron", {"argmin.default": 1, "argmax.default": 1}),
        ("imxrt700", {"argmin.default": 2, "argmax.default": 4}),  # the core compares integers, for less
        ("cortex-m55", {}),
    ],
)
def test_the_first_of_equal_elements(target: str, left: dict[str, int]) -> None:
    generator = torch.Generator().manual_seed(0)
    # Integers, so that many elements are equal, and the grid of the input holds them exactly.
    x, z = (torch.randint(-6, 7, shape, generator=generator).float() for shape in (LARGE, SMALL))
    ends = torch.tensor([-12.75, 12.75])
    data = [(ends[0].expand(LARGE), ends[0].expand(SMALL)), (ends[1].expand(LARGE), ends[1].expand(SMALL))]
    program = micronpu.compile(Positions().eval(), (x, z), target, calibration=[*data, (x, z)])
    report = program.report
    found = program.run(x, z)
    for got, expected in zip(found, Positions()(x, z), strict=True):
        assert got.dtype == expected.dtype and got.shape == expected.shape
        close = torch.allclose(got, expected, atol=0.03) if got.is_floating_point() else torch.equal(got, expected)
        assert close
    stayed = [v.operator for v in report.host if v.reasons]
    assert {name: stayed.count(name) for name in set(stayed) if name.startswith("arg")} == left, report
    if report.has_npu:
        assert all("cycles of the NPU" in v.reasons[0].detail for v in report.host if v.operator in left), report


class Last(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x).argmax(-1)


def test_more_positions_than_int8_has_are_a_reason() -> None:
    x = torch.randn(2, 300)
    report = micronpu.check(Last().eval(), x, "imxrt700-neutron").report
    (verdict,) = [v for v in report.host if v.operator == "argmax.default"]
    assert "at most 256" in verdict.reasons[0].hint


def test_positions_among_int16_values_are_the_hosts() -> None:
    x = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0))
    program = micronpu.compile(Last().eval(), (x,), "ethos-u55-128", calibration=[(x,)], quantization="int16")
    (reason,) = {str(v.reasons[0]) for v in program.report.host if v.operator == "argmax.default"}
    assert "positions are found among int8 ones" in reason
    assert torch.equal(program.run(x), Last()(x))


class Both(nn.Module):
    """Scores and where they are, as the first of a ranking."""

    def forward(self, x: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, ...]:
        highest, where = x.max(1)
        lowest, there = z.min(-1, keepdim=True)
        best, place = z.topk(1, 1)
        least, at = x.topk(1, -1, largest=False)
        return highest * 2, where, lowest + z, there, best, place, least, at, z.max(0)[1]


@pytest.mark.parametrize("target", ["imxrt700", "ethos-u55-128"])
def test_values_and_positions_of_extrema(target: str) -> None:
    generator = torch.Generator().manual_seed(0)
    x, z = (torch.randint(-6, 7, shape, generator=generator).float() for shape in (LARGE, SMALL))
    ends = [tuple(torch.full(shape, end) for shape in (LARGE, SMALL)) for end in (-12.75, 12.75)]
    program = micronpu.compile(Both().eval(), (x, z), target, calibration=[*ends, (x, z)])
    results = program.run(x, z)
    for got, expected in zip(results, Both()(x, z), strict=True):
        assert got.dtype == expected.dtype and got.shape == expected.shape
        if got.is_floating_point():
            assert torch.allclose(got, expected, atol=0.21)
    # The first of equal ones, where torch's topk gives any.
    wanted = (x.argmax(1), z.argmin(-1, True), z.argmax(1, True), x.argmin(-1, True), z.argmax(0))
    for got, place in zip((*results[1:8:2], results[8]), wanted, strict=True):
        assert torch.equal(got, place)
    assert not any("max.dim" in v.operator or "topk" in v.operator for v in program.report.verdicts)


class Indices(nn.Module):
    def forward(self, x: torch.Tensor, at: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rows = (at.to(torch.int32) + 3) // 2 % 7
        return torch.relu(x + rows.float()), (at + 1).gather(1, at % 4)


def test_arithmetic_on_positions_says_what_it_is() -> None:
    x, at = torch.randn(1, 8), torch.arange(8)[None]
    program = micronpu.compile(Indices().eval(), (x, at), "imxrt700", calibration=[(x, at)] * 2)
    reasons = {v.operator: str(v.reasons[0]) for v in program.report.host if v.reasons}
    assert {"add.Tensor", "floor_divide.default", "gather.default"} <= set(reasons)
    for name in ("add.Tensor", "floor_divide.default", "gather.default"):
        assert "from integers, as positions and indices are" in reasons[name], reasons[name]
        assert "Try:" not in reasons[name]
