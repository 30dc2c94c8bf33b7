"""Constant factors and addends behind a layer become its weights and bias, and nothing else does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.compile.nearness import sqnr_of
from torch import Tensor, nn

import micronpu

Function = Callable[[Tensor, Tensor], Tensor]


class Behind(nn.Module):
    def __init__(self, layer: nn.Module, function: Function) -> None:
        super().__init__()
        self.layer, self.function = layer, function
        self.gain = nn.Parameter(torch.linspace(0.3, 2.0, 6).reshape(6, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.layer(x), self.gain)


def compiled(layer: nn.Module, function: Function) -> tuple[micronpu.CompiledProgram, Behind, Tensor]:
    torch.manual_seed(0)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.3)
    data = [torch.randn(1, 3, 8, 8) for _ in range(8)]
    model = Behind(layer, function).eval()
    return micronpu.compile(model, data[0], "corstone300", calibration=data), model, data[0]


FOLDED: dict[str, tuple[nn.Module, Function]] = {
    "a number each": (nn.Conv2d(3, 6, 3), lambda y, g: torch.relu(y * 1.7 + 0.3)),
    "one for each channel": (nn.Conv2d(3, 6, 3, bias=False), lambda y, g: g * y),
    "minuend": (nn.Conv2d(3, 6, 3, groups=3), lambda y, g: 2 - g * y),
    "quotient": (nn.Conv2d(3, 6, 3), lambda y, g: torch.sub(y / 3, g, alpha=2)),
    "transposed": (nn.ConvTranspose2d(3, 6, 2, groups=3), lambda y, g: y * g + g),
    "last axis of a linear layer": (nn.Linear(8, 6), lambda y, g: y * g.view(-1) + 0.5),
}
KEPT: dict[str, tuple[nn.Module, Function]] = {
    "another reader": (nn.Conv2d(3, 6, 3), lambda y, g: y * g + y),
    "more channels": (nn.Conv2d(3, 1, 3), lambda y, g: y * g),
    "another axis": (nn.Linear(8, 6), lambda y, g: y[:, :, :6] * g.view(6, 1)),
    "zero": (nn.Conv2d(3, 6, 3), lambda y, g: y * 0 + 1),
}


@pytest.mark.sweep
@pytest.mark.parametrize("case", FOLDED)
def test_constants_go_into_the_layer(case: str) -> None:
    program, model, x = compiled(*FOLDED[case])
    operators = [verdict.operator.split(".")[0] for verdict in program.report.verdicts]
    assert [o for o in operators if o != "relu"] == [operators[0]]
    assert sqnr_of(model(x), torch.as_tensor(program.run(x))) > 35


@pytest.mark.parametrize("case", KEPT)
def test_other_constants_stay(case: str) -> None:
    program, model, x = compiled(*KEPT[case])
    assert "mul.Tensor" in [verdict.operator for verdict in program.report.verdicts]
    assert sqnr_of(model(x), torch.as_tensor(program.run(x))) > 30


def test_layers_that_share_weights_are_scaled_alone() -> None:
    shared = nn.Conv2d(3, 3, 3, padding=1)
    program, model, x = compiled(shared, lambda y, g: shared(torch.relu(y * 3)) - y.mean())
    assert sqnr_of(model(x), torch.as_tensor(program.run(x))) > 30


def test_an_addend_behind_a_product_with_a_constant_matrix_is_its_bias() -> None:
    class Product(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.matrix, self.addend = nn.Parameter(torch.randn(8, 6) * 0.3), nn.Parameter(torch.randn(6))

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.matrix + self.addend

    data = [torch.randn(1, 5, 8) for _ in range(8)]
    report = micronpu.compile(Product().eval(), data[0], "corstone300", calibration=data).report
    assert [verdict.operator for verdict in report.verdicts] == ["linear.default"]


class Twice(nn.Module):
    """One layer that is called twice, with constants behind each call."""

    def __init__(self, size: int, function: Function) -> None:
        super().__init__()
        torch.manual_seed(size)
        self.layer, self.function = nn.Linear(size, size), function
        self.first, self.second = nn.Parameter(torch.rand(size) + 0.5), nn.Parameter(torch.rand(size) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.layer(torch.relu(self.function(self.layer(x), self.first))), self.second)


@pytest.mark.parametrize("function, operators", [(lambda y, g: y + g, 0), (lambda y, g: y * g, 2)])
def test_calls_of_one_layer_share_its_weights(function: Function, operators: int) -> None:
    """An addend changes biases alone; a copy of the weights would cost more than to multiply 64 results."""
    data = [torch.randn(1, 64) for _ in range(8)]
    model = Twice(64, function).eval()
    program = micronpu.compile(model, data[0], "corstone300", calibration=data, quantization="int8")
    assert [tuple(b.shape) for b in program.quantized.buffers()].count((64, 64)) == 1
    found = [verdict.operator.split(".")[0] for verdict in program.report.verdicts]
    assert sum(o in ("mul", "add") for o in found) == operators
    assert sqnr_of(model(data[0]), torch.as_tensor(program.run(data[0]))) > 30


def test_a_small_layer_called_twice_takes_its_factors() -> None:
    """A product of 16 rows of 4 results would cost more than a second copy of 16 weights."""
    data = [torch.randn(16, 4) for _ in range(8)]
    model = Twice(4, lambda y, g: y * g).eval()
    program = micronpu.compile(model, data[0], "corstone300", calibration=data, quantization="int8")
    assert "mul" not in [verdict.operator.split(".")[0] for verdict in program.report.verdicts]
    assert sqnr_of(model(data[0]), torch.as_tensor(program.run(data[0]))) > 30
