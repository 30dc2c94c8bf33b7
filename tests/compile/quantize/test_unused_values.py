"""Values that cannot reach a result take no part of a range."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import micronpu
from micronpu.frontend.run import Run
from micronpu.quantize import far_values


class Net(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.function = nn.Conv2d(4, 6, 3), function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(self.conv(x))


def accuracy(function: Callable[[torch.Tensor], torch.Tensor], target: str) -> Any:
    rows = [torch.randn(1, 4, 12, 12, generator=torch.Generator().manual_seed(i)) for i in range(20)]
    report = micronpu.compile(Net(function).eval(), rows[0], target, calibration=rows).report
    assert report.delegated == report.operators
    return report.accuracy.sqnr


def pooled(value: float, kernel: int = 3) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: F.max_pool2d(F.pad(x, (0, 1, 0, 1), value=value), kernel, 2)


@pytest.mark.sweep
@pytest.mark.parametrize("target", ["ethos-u55-128", "imxrt700"])
@pytest.mark.parametrize("value", [-30.0, -1e9, -math.inf])
def test_pads_of_a_max_pool(value: float, target: str) -> None:
    assert accuracy(pooled(value), target) > 36


def test_pads_when_ranges_are_fitted() -> None:
    rows = [torch.randn(1, 4, 12, 12, generator=torch.Generator().manual_seed(i)) for i in range(20)]
    settings = {"fit_ranges": True}
    program = micronpu.compile(
        Net(lambda x: pooled(-1e4)(x) * 2).eval(), rows[0], "ethos-u55-128", calibration=rows, quantization=settings
    )
    assert program.report.accuracy.sqnr > 36


def test_pads_of_methods_that_share_a_range() -> None:
    model = Net(pooled(-1e9)).eval()
    data = {
        name: [torch.randn(1, 4, size, 12, generator=torch.Generator().manual_seed(i)) for i in range(20)]
        for name, size in (("low", 8), ("high", 12))
    }
    methods = {name: (model, rows[0]) for name, rows in data.items()}
    program = micronpu.compile(methods, "ethos-u55-128", calibration=data)
    for name in methods:
        assert program.methods[name].report.accuracy.sqnr > 36


def test_values_without_gaps_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(far_values, "Run", lambda *_: pytest.fail("calibration data run again"))
    assert accuracy(torch.relu, "ethos-u55-128") > 30


def test_samples_run_once_for_all_ranges_with_far_values(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = list[float]()

    class Counted(Run):
        def run(self, *inputs: Any, behind: Any = None) -> Any:
            runs.append(float(inputs[0].sum()))
            return super().run(*inputs, behind=behind)

    def hidden(x: torch.Tensor) -> torch.Tensor:
        for value in (-1e3, -2e3, -3e3):
            x = torch.maximum(torch.where(x > 0, x, value), x * 0.5)
        return x

    monkeypatch.setattr(far_values, "Run", Counted)
    assert accuracy(hidden, "ethos-u55-128") > 33
    assert 2 * len(set(runs)) < len(runs) < 3 * len(set(runs))


class Weighted(nn.Module):
    def forward(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        y = torch.cat([x, torch.full((1, 4), -100.0)], 1)
        return y.amax(1, keepdim=True) + y.amin(1, keepdim=True) * weight


def test_far_values_that_the_first_sample_does_not_read_count() -> None:
    rows = [(torch.rand(1, 4), torch.tensor([[float(i > 2)]])) for i in range(16)]
    program = micronpu.compile(Weighted().eval(), rows[0], "ethos-u55-128", calibration=rows)
    assert float((program.run(*rows[9]) - Weighted()(*rows[9])).abs().max()) < 1


def test_infinite_bounds() -> None:
    assert (
        accuracy(lambda x: torch.minimum(torch.maximum(x, torch.tensor(-math.inf)), torch.tensor(1e9)) * 2, "imxrt700")
        > 33
    )


def test_pads_of_a_minimum_behind_a_move() -> None:
    assert accuracy(lambda x: F.pad(x, (1, 1), value=1e9).transpose(2, 3).amin(2), "ethos-u55-128") > 36


@pytest.mark.sweep
@pytest.mark.parametrize("target", ["ethos-u55-128", "imxrt700"])
@pytest.mark.parametrize("value", [-100.0, -1e9])
def test_constants_that_a_maximum_reads(value: float, target: str) -> None:
    assert accuracy(lambda x: torch.cat([x, torch.full((1, 6, 2, 10), value)], 2).amax(2), target) > 36
    assert accuracy(lambda x: torch.where(x > -0.5, x, value).amax(3), target) > 34


@pytest.mark.filterwarnings("ignore::micronpu.AccuracyWarning")
def test_constants_that_a_result_reads_count() -> None:
    model = Net(lambda x: torch.cat([x, torch.full((1, 6, 2, 10), -100.0)], 2).clamp(min=-50.0))
    x = torch.randn(1, 4, 12, 12)
    program = micronpu.compile(model.eval(), x, "ethos-u55-128", calibration=[x])
    with torch.no_grad():
        assert float((program.run(x) - model(x)).abs().max()) < 0.3


@pytest.mark.filterwarnings("ignore::micronpu.AccuracyWarning")
def test_pads_that_are_results_count() -> None:
    windows_of_pads_alone = pooled(-30.0, kernel=1)
    read_by_others = Net(
        lambda x: (y := F.pad(x, (1, 1), value=-30.0)).mean(3, keepdim=True) + F.max_pool2d(y, 3, 1, 1)
    )
    x = torch.randn(1, 4, 9, 9)
    for model in (Net(windows_of_pads_alone), read_by_others):
        program = micronpu.compile(model.eval(), x, "ethos-u55-128", calibration=[x])
        assert float((program.run(x) - model(x)).abs().max()) < 0.5


@pytest.mark.parametrize("activation", [nn.ELU(), nn.CELU(2.0), nn.SELU()])
def test_exponential_rectifiers_of_large_values(activation: nn.Module) -> None:
    torch.manual_seed(0)
    rows = [torch.randn(1, 10) * 60 for _ in range(20)]
    model = nn.Sequential(nn.Linear(10, 16), activation).eval()
    report = micronpu.compile(model, rows[0], "imxrt700", calibration=rows).report
    assert report.delegated == report.operators and report.partitions == 1 and report.accuracy.sqnr > 30


@pytest.mark.sweep
@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.max_pool2d(x, 2, return_indices=True),
        lambda x: [F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2)],
        lambda x: F.max_pool1d(x.flatten(2), 4, return_indices=True),
        lambda x: x.max(1),
        lambda x: x.min(2),
        lambda x: x.topk(3, 1),
        lambda x: x.aminmax(dim=1),
    ],
    ids=["pool2d", "unpool2d", "pool1d", "max", "min", "topk", "aminmax"],
)
def test_what_an_operator_with_several_results_selects_from_is_observed(function: Callable[..., Any]) -> None:
    """No observer sees a tuple, so that nothing was seen of what only such an operator reads: 6.3 dB with indices."""
    rows = [torch.randn(1, 4, 12, 12, generator=torch.Generator().manual_seed(i)) for i in range(20)]
    model = Net(lambda x: (*function(x),)).eval()
    program = micronpu.compile(model, rows[0], "ethos-u55-128", calibration=rows, quantization="int8")
    found, wanted = (f(rows[0])[0].detach().sort().values for f in (program.run, model))  # equal values change places
    assert float((found - wanted).square().mean().sqrt()) < 0.02 * float(wanted.abs().max())
