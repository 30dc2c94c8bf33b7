"""What was once computed wrongly, or not at all, without a word."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import micronpu

FAMILIES = ("imxrt700", "corstone300")


class Net(nn.Module):
    """A function of tensors with the modules that it calls."""

    def __init__(self, function: Callable[..., Any], **modules: nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, module in modules.items():
            self.add_module(name, module)
        self.eval()

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(self, *inputs)


# --- integer borders ----------------------------------------------------------------------------------------------

BORDERS = {
    "softmax": (nn.Softmax(-1), "int8", 1 / 256, -128),
    "sigmoid": (nn.Sigmoid(), "int8", 1 / 256, -128),
    "tanh": (nn.Tanh(), "int8", 1 / 128, 0),
    "moved": (Net(lambda m, x: torch.softmax(x, -1).reshape(2, 5).transpose(0, 1)), "int8", 1 / 256, -128),
    "pooled": (Net(lambda m, x: F.max_pool1d(torch.sigmoid(x)[None], 2)), "int8", 1 / 256, -128),
}


@pytest.mark.parametrize("target", FAMILIES)
@pytest.mark.parametrize("name", BORDERS)
def test_integer_outputs_take_the_grid_that_an_operator_dictates(name, target):
    """Calibration sees weak answers only; the program must be able to give strong ones, and does so in one rounding."""
    model, io, scale, zero_point = BORDERS[name]
    weak = [torch.linspace(-0.4, 0.4, 10).roll(i)[None] for i in range(4)]
    program = micronpu.compile(model.eval(), weak[0], target, calibration=[*weak, torch.eye(10)[:1] * 6], io=io)
    (border,) = program.borders.outputs
    assert (border.scale, border.zero_point) == (scale, zero_point)
    strong = torch.zeros(1, 10)
    strong[0, 3] = 6.0
    got = program.borders.dequantize((program.run(*program.borders.quantize((strong,))),))[0]
    assert float((got - model(strong)).abs().max()) <= 1.5 * scale


# --- in place -----------------------------------------------------------------------------------------------------


def _add_in_place(m: nn.Module, x: Tensor) -> Tensor:
    x += 1.0
    return F.relu(x)


def _write_row(m: nn.Module, x: Tensor) -> Tensor:
    x[:, 0] = 0.5
    return x * 2


IN_PLACE: dict[str, nn.Module] = {
    "first relu": nn.Sequential(nn.ReLU(inplace=True), nn.Conv2d(3, 4, 3)),
    "only": Net(lambda m, x: F.hardtanh(x, inplace=True)),
    "twice": Net(lambda m, x: F.relu(F.hardtanh(x, inplace=True), inplace=True)),
    "both returned": Net(lambda m, x: (x.relu_(), x)),
    "add": Net(_add_in_place),
    "row": Net(_write_row),
}


@pytest.mark.parametrize("target", FAMILIES)
@pytest.mark.parametrize("name", IN_PLACE)
def test_writes_into_the_input(name, target):
    model, x = IN_PLACE[name].eval(), torch.randn(1, 3, 6, 6, generator=torch.Generator().manual_seed(0))
    kept = x.clone()
    program = micronpu.compile(model, x, target, calibration=[x])
    assert program.report.delegated
    got = program.run(x)
    assert torch.equal(x, kept)  # neither the calibration data nor what the program runs on is changed
    with torch.no_grad():
        wanted = model(x.clone())
    for g, w in zip(*((v if isinstance(v, tuple) else (v,)) for v in (got, wanted)), strict=True):
        assert float((g - w).abs().max()) <= 0.05
