"""The exported program beside the module, called as the user calls it."""

from __future__ import annotations

import random
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import micronpu
from micronpu.report.warnings import UNLIKE_MODULE


class TwoInputs(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a * 2 + torch.relu(b)


class Drawn(nn.Module):
    """Python draws a number in each call."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(x)
        return y * random.random() + 1


class Clock(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x + time.perf_counter() * 1e3 % 7)


class Decides(nn.Module):
    """Python decides between two operators."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = [0]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        return torch.relu(y) if not torch.compiler.is_exporting() else torch.tanh(y)


class Counter(nn.Module):
    """A state, which both count from its first value."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(1, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total += x
        return torch.tanh(self.total)


class Threshold(nn.Module):
    """Roundings decide which elements are far apart."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.where((x * 3 / 3 - x).abs() > 0, 1.0, 0.0) + torch.floor(x * 100 / 100 - x + 1)


class Dropped(nn.Module):
    """torch draws, as the program does."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x) + torch.nn.functional.dropout(x, 0.5, training=False)


def rows(*shapes: tuple[int, ...], seed: int = 0) -> list[tuple[torch.Tensor, ...]]:
    drawn = torch.Generator().manual_seed(seed)
    return [tuple(torch.randn(shape, generator=drawn) for shape in shapes) for _ in range(16)]


def compiled(model: nn.Module, data: list[tuple[torch.Tensor, ...]], example: Any = None) -> micronpu.CompiledProgram:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", micronpu.AccuracyWarning)
        return micronpu.compile(model.eval(), example or data[0], "cortex-m55", calibration=data)


def found(program: micronpu.CompiledProgram) -> list[micronpu.ReportWarning]:
    return [warning for warning in program.report.warnings if warning.rule == UNLIKE_MODULE]


def test_inputs_that_share_memory_are_two_inputs() -> None:
    data = rows((2, 5), (2, 5))
    x = data[0][0]
    program = compiled(TwoInputs(), data, (x, x))
    a, b = data[1]
    assert torch.allclose(program.run(a, b), TwoInputs()(a, b), atol=0.1)
    assert not found(program)
    whole = torch.randn(4, 5)
    assert compiled(TwoInputs(), data, (whole[:2], whole[1:3])).buffer == program.buffer


@pytest.mark.parametrize(
    ("model", "operator", "differs"), [(Drawn(), "mul", True), (Clock(), "add", True), (Decides(), "tanh", False)]
)
def test_a_program_of_one_call_is_named(model: nn.Module, operator: str, differs: bool) -> None:
    random.seed(0)  # two numbers that are drawn may be nearly equal
    (warning,) = found(compiled(model, rows((1, 4))))
    assert warning.level == "warning" and warning.operator == operator
    assert Path(__file__).name in warning.source and Path(__file__).name in warning.what
    assert ("from call to call" in warning.what) is differs


@pytest.mark.parametrize("model", [Counter(), Threshold(), Dropped(), nn.GRU(4, 3)], ids=lambda m: type(m).__name__)
def test_what_rounds_or_counts_is_the_same(model: nn.Module) -> None:
    data = rows((1, 4))
    before = [value.clone() for value in model.buffers()]
    program = compiled(model, [[row] for row in data] if before else data, data[0])  # type: ignore[arg-type]
    assert not found(program)
    assert all(torch.equal(x, y) for x, y in zip(before, model.buffers(), strict=True))


def test_a_wrong_rewrite_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from micronpu.frontend import exported

    own = exported.check_results

    def wrong(module: Any) -> None:
        own(module)
        for node in module.graph.nodes:
            if node.target is torch.ops.aten.relu.default:
                node.target = torch.ops.aten.neg.default
        module.recompile()

    monkeypatch.setattr(exported, "check_results", wrong)
    (warning,) = found(compiled(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)), rows((1, 4))))
    assert warning.operator == "neg"


def test_the_module_is_called_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[bool] = []

    class Counted(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            calls.append(torch.compiler.is_exporting())
            return torch.relu(x)

    compiled(Counted(), rows((1, 4)))
    assert calls.count(False) == 1


def test_random_numbers_of_the_user_stay() -> None:
    torch.manual_seed(3)
    wanted = torch.rand(3)
    torch.manual_seed(3)
    compiled(nn.Linear(4, 2), rows((1, 4)))
    torch.manual_seed(3)
    assert torch.equal(torch.rand(3), wanted)
