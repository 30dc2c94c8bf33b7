"""Statistics of the float network that a search keeps: the same programs, from fewer runs."""

from __future__ import annotations

import copy
import functools
from typing import Any

import pytest
import torch
from tests.compile.quantize.test_calibration_cache import Masked, Small
from torch import nn
from torch.fx import GraphModule

from micronpu.base.errors import MicroNpuError
from micronpu.quantize import calibrate, far_values, weights
from micronpu.quantize.calibrate import calibrated, finished
from micronpu.quantize.calibration_cache import FloatStatistics
from micronpu.quantize.observing import HistogramObserver
from micronpu.quantize.quantization import Quantization
from micronpu.targets.registry import device_for

ROWS = [[("", (torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(i)),))] for i in range(6)]
CORRECTED = {"adaptive_rounding": True, "bias_correction": True}
HOW: list[tuple[Any, dict[str, Any]]] = [
    ("int8", {}),
    ("int8", CORRECTED),
    ("int8", {"fit_ranges": True}),
    ("int16", CORRECTED),
    ("int8", {**CORRECTED, "fit_ranges": True, "nodes": {"conv2d_1": {"activations": "int16"}}}),
]
"""Precisions in the order of a search; the last one has nothing that those before it had not."""


class Far(Small):
    """A constant far below other values, of which a maximum and a clamp are computed."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.second(torch.relu(self.first(x)))
        every = torch.cat([y, torch.full_like(y, -100.0)], 2)
        return self.last(every.amax((2, 3)) + every.clamp(min=-2.0).mean((2, 3))).softmax(-1)


class Power(Small):
    """The logarithm of a power, which int16 computes otherwise than int8."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.second((self.first(x).square() + 1e-3).log()).mean((2, 3)))


class Gates(Small):
    """Functions too steep for a table of int16, which int8 computes at once and int16 operator by operator."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        y = self.second(y * nn.functional.relu6(y * 16 + 3) * 0.25)
        return self.last((y * nn.functional.relu6(y * 16 + 3) * 0.25).mean((2, 3)))


class Averages(nn.Module):
    """Averages, whose observers pass values to those of their operands."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.avg_pool2d(nn.functional.avg_pool2d(torch.relu(x), 2), 2) * 3.0


class Offset(nn.Module):
    """A channel whose values are far beyond the others, and matter."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3)
        self.register_buffer("far", torch.tensor([0.0, 0, 0, 1e5]).reshape(1, 4, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.a(x)) + self.far
        return self.b(y) + y[..., 2:, 2:]


def made(model: nn.Module, how: tuple[Any, dict[str, Any]], statistics: FloatStatistics | None) -> str:
    """Text of a quantized program, with a sum of every tensor; or the message of what cannot be quantized so."""
    module = torch.export.export(model.eval(), ROWS[0][0][1]).module()
    assert isinstance(module, GraphModule)
    quantizer = Quantization(activations=how[0], settings=how[1]).quantizer_for(device_for("ethos-u55-128").quantizer)
    try:
        known = calibrated({"": module}, ROWS, {"": quantizer}, statistics=statistics)
        done = finished(copy.deepcopy(known), ROWS, {"": quantizer}, statistics=statistics)[""]
    except MicroNpuError as error:
        return str(error)
    return f"{done.graph}{[(name, float(t.double().sum())) for name, t in sorted(done.state_dict().items())]}"


@functools.cache
def alone(kind: type[nn.Module], number: int) -> str:
    return made(kind(), HOW[number], None)


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("kind", "numbers", "calibrations"),
    [
        (Small, (0, 2, 3, 4), 2),  # int16 from the extremes of int8; a value that only the mixed one has in both
        (Small, (4, 3, 0), 1),
        (Masked, (0, 1), 1),  # its maximum is observed, in which no value is far
        (Far, (0, 1), 2),  # far values are judged with the whole network
        (Averages, (3, 0, 2), 2),
    ],
)
def test_the_same_programs(
    kind: type[nn.Module], numbers: tuple[int, ...], calibrations: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one quantization learns serves any other, in any order."""
    wanted = [alone(kind, number) for number in numbers]
    assert len(set(wanted)) == len(wanted)
    runs: list[int] = []

    def counted(number: int, step: Any) -> Any:
        runs.append(1)
        return real(number, step)

    real = calibrate.run_call
    monkeypatch.setattr(calibrate, "run_call", counted)
    statistics, model = FloatStatistics(), kind()
    assert [made(model, HOW[number], statistics) for number in numbers] == wanted
    assert len(runs) == calibrations * len(ROWS)


def test_values_of_another_graph_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mixture has the functions of int8 and the operators of int16, and no value that neither has."""
    wide = {name: {"activations": "int16"} for name in ("mul", "add", "relu6", "mul_1", "mul_2")}
    runs, real = list[int](), calibrate.run_call
    monkeypatch.setattr(calibrate, "run_call", lambda *given: (runs.append(1), real(*given))[1])
    statistics, model, learnt = FloatStatistics(), Gates(), []
    for how in (HOW[0], ("int16", {}), ("int8", {"nodes": wide})):
        wanted = made(Gates(), how, None)
        runs.clear()
        assert made(model, how, statistics) == wanted
        learnt.append(len(runs))
    assert learnt == [len(ROWS), len(ROWS), 0]


def test_layers_of_another_graph_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """int16 has other rewrites than int8, and layers read the same values."""
    added, real = list[int](), weights.Statistics.add
    monkeypatch.setattr(weights.Statistics, "add", lambda self, x: (added.append(1), real(self, x))[1])
    statistics, model, learnt = FloatStatistics(), Power(), []
    for number in (1, 3):
        wanted = made(Power(), HOW[number], None)
        added.clear()
        assert made(model, HOW[number], statistics) == wanted
        learnt.append(len(added))
    assert learnt[1] < learnt[0]


def test_far_values_that_are_kept_are_judged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = {"calibrated": 0, "judged": 0}

    def counted(name: str, real: Any, *given: Any) -> Any:
        calls[name] += 1
        return real(*given)

    monkeypatch.setattr(calibrate, "run_call", functools.partial(counted, "calibrated", calibrate.run_call))
    monkeypatch.setattr(far_values, "Run", functools.partial(counted, "judged", far_values.Run))
    statistics, model, found = FloatStatistics(), Offset(), list[tuple[int, bool]]()
    for how in (HOW[0], ("int8", {"nodes": {"conv2d": {"activation_observer": "mse"}}})):
        calls.update(calibrated=0, judged=0)
        quantized = made(model, how, statistics)
        found.append((calls["calibrated"], calls["judged"] > 0))
        assert made(model, how, None) == quantized
    assert found == [(len(ROWS), True), (len(ROWS), False)]


def test_only_ranges_that_far_values_narrow_are_learnt_again(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[HistogramObserver] = []
    real = HistogramObserver.see
    monkeypatch.setattr(HistogramObserver, "see", lambda self, x: (seen.append(self), real(self, x))[1])
    statistics, model, learnt = FloatStatistics(), Far(), []
    for number in (0, 1):
        seen.clear()
        made(model, HOW[number], statistics)
        learnt.append(len(set(seen)))
    assert 0 < learnt[1] < learnt[0] / 2


def test_another_network_has_other_statistics() -> None:
    statistics = FloatStatistics()
    first, second = (made(Small(seed), HOW[1], statistics) for seed in (0, 1))
    assert first != second == made(Small(1), HOW[1], None)
