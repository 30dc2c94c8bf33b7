"""Values in units in which they are small: amperes, strains, seconds.  Their grids have as many steps as others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.compile.nearness import BACKENDS, decibels
from tests.compile.small import Small, Tensors, linear
from torch import nn

import micronpu

UNITS = [1e-3, 1e-4, 1e-5]


def _inputs(unit: float) -> Callable[[torch.Generator], Tensors]:
    return lambda random: (torch.randn(4, 8, generator=random) * unit, torch.randn(4, 8, generator=random))


def _network(unit: float) -> Small:
    """Whose inputs, values between and one of its results are as small as the unit, while a bias is not."""

    def forward(m: Small, x: torch.Tensor, y: torch.Tensor) -> Tensors:
        hidden = torch.relu(m.first(x / unit))
        return m.second(hidden) * unit, m.second(hidden), x * y, torch.relu(x - 0.2 * unit), m.second(x), x.mean(1)

    return Small(forward, first=linear(8, 8), second=linear(8, 8))


@pytest.mark.sweep
@pytest.mark.parametrize("target", BACKENDS)
def test_a_unit_makes_no_difference(target: str):
    wanted = decibels(_network(1.0), _inputs(1.0), target)
    for unit in UNITS:
        found = decibels(_network(unit), _inputs(unit), target)
        # `second(x)` is its bias where x is next to nothing beside it
        assert all(f >= w - 1.5 for f, w in zip(found, wanted, strict=True)), (unit, found, wanted)
    smallest = decibels(_network(1e-6), _inputs(1e-6), target)
    assert min(smallest) >= 24.0, smallest


def test_a_sixteenth_of_a_million_is_where_it_ends():
    """And where that is what the results are made of, the report says it."""
    model, data = _network(1e-8), [_inputs(1e-8)(torch.Generator().manual_seed(i)) for i in range(24)]
    report = micronpu.compile(model, data[0], "imxrt700", calibration=data).report
    small = [w for w in report.warnings if w.rule == "fresh-weights"]
    assert {w.output for w in small} >= {0, 2, 3} and all("larger units" in w.hint for w in small)


class Dead(nn.Module):
    """A layer whose results are zero for all rows that calibrate, and not for others."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.dead, self.layer, self.out = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 4)
        with torch.no_grad():
            self.dead.weight.fill_(1.0)
            self.dead.bias.fill_(0.0)

    def forward(self, x: torch.Tensor) -> Any:
        y = torch.relu(self.dead(x))
        return y, self.out(y + self.layer(x))


@pytest.mark.parametrize("target", BACKENDS)
def test_what_was_zero_throughout_computes_as_the_quantized_model_does(target: str):
    data = [-torch.rand(2, 8, generator=torch.Generator().manual_seed(i)) for i in range(24)]
    program = micronpu.compile(Dead().eval(), data[0], target, calibration=data)
    for x in (data[0], -data[1], 100 * data[2], -100 * data[3]):
        for found, wanted in zip(program.run(x), program.quantized(x), strict=True):
            step = float(wanted.abs().max()) / 64 + 2**-16
            assert float((found - wanted).abs().max()) <= 2 * step
