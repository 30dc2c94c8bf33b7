"""Operators that the core computes in float have a price, and products there a warning."""

from __future__ import annotations

import warnings
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import micronpu
from micronpu.compiler.candidates import Tried
from micronpu.compiler.host import Compiled, float_cycles
from micronpu.compiler.precision import Search, allowed_by
from micronpu.partition import decisions
from micronpu.quantize.data import Trial
from micronpu.quantize.quantization import Quantization
from micronpu.report.delegation import DelegationReport
from micronpu.targets.registry import device_for
from micronpu.verify.sensitivity import Fidelity, PrecisionPrice

SETTINGS = {"nodes": {"conv2d_1": {"float": True}}}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.b(torch.relu(self.a(x)))
        return y


def report(target: str, settings: dict[str, object] | None = None) -> DelegationReport:
    data = [torch.randn(1, 3, 12, 12, generator=torch.Generator().manual_seed(i)) for i in range(4)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", micronpu.AccuracyWarning)
        how = Quantization(activations="int8", settings=settings)
        return micronpu.compile(Net().eval(), data[0], target, calibration=data, quantization=how, verify=False).report


@pytest.mark.parametrize("target", ["corstone300", "ethos-u55-128"])
def test_a_convolution_on_the_core_has_a_price_and_a_warning(target: str) -> None:
    int8, mixed = report(target), report(target, SETTINGS)
    (verdict,) = mixed.in_float
    assert verdict.macs == 8 * 8 * 9 * 8 * 8 and verdict.cycles > 5 * verdict.macs
    assert "settings" in verdict.reasons[0].detail
    before, after = (PrecisionPrice.of([r]) for r in (int8, mixed))
    assert after.cycles > 10 * before.cycles and after.in_float == 1
    assert after.operators[verdict.node] == verdict.cycles
    (warning,) = mixed.warnings
    assert warning.rule == "products-on-core" and f"{verdict.macs:,} MACs" in warning.what
    if target == "corstone300":
        assert (
            mixed.headline.milliseconds == pytest.approx(after.milliseconds) and "time of the host" not in mixed.missing
        )
    else:
        assert "time of the host" in mixed.missing


def test_what_a_search_leaves_to_the_core_has_a_reason_and_no_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decisions, "SEARCHED", SimpleNamespace(of=lambda node: True))
    mixed = report("corstone300", SETTINGS)
    (verdict,) = mixed.in_float
    assert not mixed.warnings and "search" in verdict.reasons[0].detail


def test_a_core_without_floats_is_slower() -> None:
    chip = device_for("corstone300").chip
    assert chip is not None
    assert float_cycles(0, 1000, replace(chip, core="cortex-m0plus")) > 4 * float_cycles(0, 1000, chip)


def test_more_operators_in_float_are_not_faster() -> None:
    device = device_for("corstone300")
    allowed = allowed_by(Quantization(activations="auto"), device, Compiled())
    assert allowed is not None
    prices = iter([PrecisionPrice(100.0, 1.0, {}), PrecisionPrice(60.0, 0.6, {}, in_float=1)])
    model = torch.fx.symbolic_trace(nn.Identity())
    search = Search({"": model}, [], {"": Trial((), exact=[])}, replace(allowed, price=lambda modules: next(prices)))
    tried = Tried("int8", {"": model}, {}, Fidelity((1.0,), ((0.1,),), 1))
    assert [search.priced(tried).cycles for _ in range(2)] == [100.0, 100.0]
