"""What is said of accuracy without running a program, and that networks without any such trait are left in peace."""

from __future__ import annotations

import functools
import inspect
import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import micronpu
from micronpu.report.warnings import ReportWarning

TARGETS = ("imxrt700", "ethos-u55-128")


def rows(*shape: int, count: int = 24) -> list[torch.Tensor]:
    return [torch.randn(shape, generator=torch.Generator().manual_seed(i)) for i in range(count)]


class Spectrum(nn.Module):
    """A function of a power, and a layer behind it."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.function, self.fc = nn.Linear(64, 32), function, nn.Linear(32, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        power = self.first(x).square().unflatten(1, (2, 16)).transpose(1, 2).flatten(1) + 1e-6  # no table of both
        return self.fc(self.function(power))


class Head(nn.Module):
    """Boxes from 0 to 640 and scores from 0 to 1."""

    def __init__(self, joined: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.joined = nn.Conv2d(3, 8, 3), joined

    def forward(self, x: torch.Tensor) -> Any:
        y = torch.sigmoid(self.conv(x))
        boxes, scores = y[:, :4] * 640, y[:, 4:]
        return torch.cat([boxes, scores], 1).flatten(2).transpose(1, 2) if self.joined else (boxes, scores)


def said(model: nn.Module, data: list[torch.Tensor], target: str, **options: Any) -> list[ReportWarning]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", micronpu.AccuracyWarning)
        report = micronpu.compile(model.eval(), data[0], target, calibration=data, verify=False, **options).report
    assert report.accuracy is None
    return list(report.warnings)


@pytest.mark.sweep
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("function", [torch.log, torch.rsqrt, torch.reciprocal, torch.sqrt])
def test_a_function_of_an_int8_power(function, target):
    (warning,) = said(Spectrum(function), rows(1, 64), target)
    assert (warning.level, warning.rule) == ("note", "int8-power")
    line = inspect.getsourcelines(Spectrum.forward)[1] + 2
    assert warning.source == f"{__file__}:{line}"
    assert warning.hint.startswith('quantization="auto", or ')
    checked = micronpu.check(Spectrum(function).eval(), rows(1, 64)[0], target).report
    assert [w.rule for w in checked.warnings] == ["int8-power"]


@pytest.mark.parametrize("function", [torch.log1p, torch.sigmoid, torch.exp, functools.partial(torch.clamp, min=0.5)])
def test_functions_that_int8_has_steps_for(function):
    assert said(Spectrum(function), rows(1, 64), TARGETS[0]) == []


class Length(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sqrt((x * x).sum(1))


def test_a_program_that_is_near_has_no_such_note():
    """The root has a first step of 6 % of its range, which costs nothing where no length is small."""
    data = [0.5 + 0.5 * torch.rand(1, 4, 6, generator=torch.Generator().manual_seed(i)) for i in range(24)]
    options = {"target": "ethos-u55-128", "calibration": data}
    at_sight = micronpu.compile(Length().eval(), data[0], verify=False, **options).report
    assert [(w.rule, w.operator) for w in at_sight.warnings] == [("int8-power", "sqrt")]
    seen = micronpu.compile(Length().eval(), data[0], **options).report
    assert seen.accuracy.sqnr >= 30.0 and seen.warnings == ()


@pytest.mark.parametrize("target", TARGETS)
def test_a_division_is_called_one(target):
    class Ratio(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x[:, :4] / (x[:, 4:].square() + 1e-3)

    (warning,) = said(Ratio(), rows(4, 8), target)
    assert warning.rule == "int8-power" and warning.what.startswith(f"The division at {__file__}")
    assert "clamp(min=...)" in warning.hint and "magnitudes" not in warning.hint


def test_the_cure_takes_the_note_away():
    names = ("linear", "square", "pow_1", "add", "log")
    model = Spectrum(torch.log).eval()
    known = {n.name for n in torch.export.export(model, (rows(1, 64)[0],)).graph.nodes}
    wide = {"nodes": {name: {"activations": "int16"} for name in names if name in known}}
    assert said(model, rows(1, 64), "ethos-u55-128", quantization=wide) == []


@pytest.mark.sweep
@pytest.mark.parametrize("target", TARGETS)
def test_an_output_that_joins_unequal_parts(target):
    data = rows(1, 3, 12, 12)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", micronpu.AccuracyWarning)
        report = micronpu.compile(Head(True).eval(), data[0], target, calibration=data).report
    (warning,) = report.warnings
    assert (warning.rule, warning.output, warning.sqnr) == ("unequal-parts", 0, report.accuracy.sqnr)
    (foreseen,) = micronpu.check(Head(True).eval(), data[0], target).report.warnings
    assert foreseen.rule == "unequal-parts" and "beside" in foreseen.what
    assert micronpu.compile(Head(False).eval(), data[0], target, calibration=data).report.warnings == ()


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(40))
def test_few_scores_are_not_called_unequal(seed):
    """A score of one example may be small by chance; an array of zeros only shows the shape."""
    torch.manual_seed(seed)
    classifier = nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 4)).eval()
    for example in (torch.randn(1, 12), torch.zeros(1, 12)):
        assert micronpu.check(classifier, example, TARGETS[seed % len(TARGETS)]).report.warnings == ()


class Gate(nn.Module):
    """Halves of one layer, of which the second may be far smaller; as they are, or behind a sigmoid."""

    def __init__(self, factor: float, *, fixed: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fc, self.fixed = nn.Linear(16, 16), fixed
        with torch.no_grad():
            self.fc.weight[8:] *= factor
            self.fc.bias[8:] *= factor

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = self.fc(x)
        return (torch.sigmoid(x) if self.fixed else x).chunk(2, -1)


@pytest.mark.parametrize("target", TARGETS)
def test_an_output_that_is_a_small_part(target):
    data = rows(4, 16)

    def parts(model: nn.Module) -> list[ReportWarning]:
        found = micronpu.check(model.eval(), data[0], target, calibration=data).report.warnings
        return [warning for warning in found if warning.rule == "small-part"]

    (warning,) = parts(Gate(0.1))
    assert (warning.output, warning.operator, warning.level) == (1, "slice", "note")
    assert "is a part of a larger value" in warning.what and "test_static_accuracy.py" in warning.source
    assert parts(Gate(1.0)) == []
    assert parts(Gate(0.1, fixed=True)) == []  # its grid does not come from the other half


def test_features_of_unlike_size_and_a_single_row():
    unlike = [x * torch.logspace(0, 5, 8) for x in rows(1, 8)]
    (warning,) = said(nn.Sequential(nn.Linear(8, 4)), unlike, TARGETS[0])
    assert (warning.rule, warning.operator) == ("unlike-features", "input") and "Feature 0 of the input" in warning.what
    (warning,) = said(nn.Sequential(nn.Linear(8, 4)), rows(1, 8, count=1), TARGETS[0])
    assert warning.rule == "one-row"
    assert said(nn.Sequential(nn.Linear(8, 4)), rows(1, 8), TARGETS[0]) == []
    assert micronpu.check(nn.Sequential(nn.Linear(8, 4)).eval(), rows(1, 8)[0], TARGETS[0]).report.warnings == ()
    (note,) = said(nn.Sequential(nn.Linear(8, 4)), [x * (torch.arange(8) != 2) for x in rows(1, 8)], TARGETS[0])
    assert note.rule == "uninformative-data" and note.what.startswith(
        "Feature 2 of the input `input_1` (axis 1) is 0 in all"
    )
    time = [x * torch.logspace(0, -math.log10(3e4), 1000) for x in rows(1, 1000)]  # samples, not features
    assert said(nn.Sequential(nn.Linear(1000, 4)), time, TARGETS[0]) == []


def test_norms_of_rows_of_like_size_have_no_note():
    data = rows(1, 5, 16)
    model = nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16), nn.Linear(16, 16), nn.RMSNorm(16))
    assert said(model, data, TARGETS[1]) == []
