"""`quantization="auto"`: what is far from float in int8 gets more precision where it matters, and nothing else does."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn

import micronpu
from micronpu.base.errors import OptionError


def rows(*shape: int, count: int = 24) -> list[torch.Tensor]:
    return [torch.randn(shape, generator=torch.Generator().manual_seed(i)) for i in range(count)]


class LogPower(nn.Module):
    """A spectrum, its power and logarithm, and layers behind them that int8 is enough for."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.spectrum, self.first, self.second = nn.Linear(64, 48), nn.Linear(48, 32), nn.Linear(32, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        power = self.spectrum(x).square()
        y: torch.Tensor = self.second(torch.relu(self.first(torch.log(power + 1e-3))))
        return y


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.fc = nn.Conv2d(3, 8, 3), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.fc(torch.relu(self.conv(x)).mean((2, 3)))
        return y


def compiled(model: nn.Module, data: list[torch.Tensor], target: str, **options: Any) -> micronpu.CompiledProgram:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", micronpu.AccuracyWarning)
        return micronpu.compile(model.eval(), data[0], target, calibration=data, **options)


@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u85-256"])
def test_a_logarithm_of_a_power_is_computed_in_int16_and_the_rest_in_int8(target):
    data = rows(1, 64)
    int8, auto = compiled(LogPower(), data, target), compiled(LogPower(), data, target, quantization="auto")
    assert int8.report.accuracy.sqnr < 20 < 28 < auto.report.accuracy.sqnr
    assert auto.report.partitions == 1 and auto.report.delegated == auto.report.operators
    types = {o.dtype for o in auto.report.operations}
    assert types == {"int8", "int16"}
    (note,) = (n for n in auto.report.notes if n.startswith('quantization="auto" has '))
    assert "`log`" in note and " in int16 and all else in int8: " in note and "`linear_2`" not in note
    assert not [w for w in auto.report.warnings if w.rule in ("far-from-float", "int8-power")]


def test_without_int16_it_is_float_on_the_core():
    auto = compiled(LogPower(), rows(1, 64), "imxrt700", quantization="auto")
    assert auto.report.accuracy.sqnr > 20
    in_float = {v.node for v in auto.report.in_float}
    assert "log" in in_float and not any(node.startswith("linear") for node in in_float)
    assert any(" in float on the core and all else in int8: " in note for note in auto.report.notes)


@pytest.mark.parametrize("target", ["ethos-u55-128", "imxrt700", "cortex-m55"])
def test_what_is_near_in_int8_stays_byte_for_byte(target):
    data = rows(1, 3, 8, 8)
    assert compiled(Plain(), data, target).buffer == compiled(Plain(), data, target, quantization="auto").buffer


def test_what_a_user_sets_for_a_part_is_kept():
    how = micronpu.Quantization(activations="auto", settings={"nodes": {"log": {"activations": "int8"}}})
    auto = compiled(LogPower(), rows(1, 64), "ethos-u55-128", quantization=how)
    logs = [o for o in auto.report.operations if "log" in o.origin.nodes]
    assert logs and {o.dtype for o in logs} == {"int8"}


def test_it_is_chosen_by_calibration_data_and_by_no_quantizer_of_the_user():
    data = rows(1, 3, 8, 8)
    with pytest.raises(OptionError, match=r"is chosen by `micronpu\.compile` with calibration data"):
        micronpu.compile(Plain().eval(), data[0], "imxrt700", train=lambda m: None, quantization="auto")
    with pytest.raises(OptionError, match=r"is chosen by `micronpu\.compile` with calibration data"):
        micronpu.blame(Plain().eval(), data, target="imxrt700", quantization="auto")
    from micronpu.neutron import NeutronQuantizer

    with pytest.raises(OptionError, match="`quantizer` is given together with"):
        micronpu.Quantization(activations="auto", quantizer=NeutronQuantizer())
    with pytest.raises(OptionError, match="`activations` is 'automatic'"):
        micronpu.Quantization(activations="automatic")
