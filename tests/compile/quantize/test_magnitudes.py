"""Magnitudes of pairs without squares: where they are found, how far they are off, and what int8 gains by them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import nn

import micronpu
from micronpu.frontend.exported import graph_module
from micronpu.frontend.program import overload_name
from micronpu.neutron import NeutronQuantizer
from micronpu.quantize.identities import has_magnitudes, project_magnitudes

Pair = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
MAGNITUDES: dict[str, Pair] = {
    "squares": lambda a, b: torch.sqrt(a * a + b**2),
    "powers": lambda a, b: (torch.pow(a, 2) + torch.square(b)) ** 0.5,
    "hypot": torch.hypot,
}


class Of(nn.Module):
    def __init__(self, function: Pair) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x[:, ::2], x[:, 1::2])


def exported(function: Pair, x: torch.Tensor) -> torch.fx.GraphModule:
    return graph_module(torch.export.export(Of(function), (x,)))


@pytest.mark.parametrize("function", MAGNITUDES.values(), ids=MAGNITUDES)
def test_the_error_is_four_percent_at_most_in_every_direction(function):
    angles = torch.linspace(0, 2 * math.pi, 721)
    x = 3 * torch.stack([angles.cos(), angles.sin()], 1).reshape(1, -1)
    module = exported(function, x)
    assert has_magnitudes(module)
    assert project_magnitudes(module, NeutronQuantizer().capabilities) == 1
    assert not has_magnitudes(module)
    error = module(x)[0] / 3 - 1
    half = (1 - math.cos(math.pi / 8)) / (1 + math.cos(math.pi / 8))
    assert float(error.max()) == pytest.approx(half, rel=1e-3) and float(error.min()) == pytest.approx(-half, rel=1e-3)
    names = {overload_name(node).split(".")[0] for node in module.graph.nodes}
    assert names.isdisjoint({"sqrt", "pow", "square", "hypot"})


@pytest.mark.parametrize(
    "function",
    [
        lambda a, b: torch.sqrt(a * b + b * b),
        lambda a, b: torch.sqrt(a * a + a * a),
        lambda a, b: torch.sqrt(torch.add(a * a, b * b, alpha=2)),
        lambda a, b: (a * a + b * b) ** 0.25,
    ],
    ids=["product", "one value", "weighted", "another power"],
)
def test_other_functions_stay(function):
    assert project_magnitudes(exported(function, torch.rand(1, 8)), NeutronQuantizer().capabilities) == 0


@pytest.mark.sweep
@pytest.mark.parametrize("target", ["imxrt700", "ethos-u55-128"])
def test_int8_is_nearer_to_float_where_magnitudes_differ(target):
    generator = torch.Generator().manual_seed(0)
    data = [
        (torch.randn(1, 64, generator=generator) * 10 ** (-2 * torch.rand(1, 64, generator=generator)),)
        for _ in range(8)
    ]
    model = nn.Sequential(Of(MAGNITUDES["squares"]), nn.Linear(32, 4))
    with torch.no_grad():
        model[1].weight.copy_(torch.randn(4, 32, generator=generator))
        model[1].bias.zero_()
    found = []
    for settings in ({}, {"projections": True}):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = micronpu.compile(model.eval(), data[0], target, calibration=data, quantization=settings)
        assert program.report.delegated == program.report.operators
        error = sum(float((program.run(*x)[0] - model(*x)).square().sum()) for x in data)
        found.append(10 * math.log10(sum(float(model(*x).square().sum()) for x in data) / error))
    squares, projections = found
    assert projections > 20 and projections > squares + 3
