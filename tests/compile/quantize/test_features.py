"""Raw inputs of unlike features: what standardises them is computed in float, and nothing else is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import micronpu
from micronpu.frontend.program import is_dequantize, is_quantize

MEAN, DEVIATION = torch.tensor([1013.0, 21.0, 800.0, 0.2]), torch.tensor([2.0, 3.0, 250.0, 0.1])


class Weather(nn.Module):
    def __init__(self, form: str, mean: torch.Tensor = MEAN, deviation: torch.Tensor = DEVIATION) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.form, self.norm, self.mean, self.deviation = form, nn.BatchNorm1d(4), mean, deviation
        self.norm.running_mean.copy_(mean), self.norm.running_var.copy_(deviation**2)
        self.layers = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        forms = {"norm": lambda: self.norm(x), "formula": lambda: (x - self.mean) / self.deviation, "raw": lambda: x}
        result: torch.Tensor = self.layers(forms[self.form]())
        return result


def rows(count: int = 64, deviation: torch.Tensor = DEVIATION, mean: torch.Tensor = MEAN) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [mean + deviation * torch.randn(1, 4, generator=generator) for _ in range(count)]


def compiled(model: nn.Module, data: list[torch.Tensor], target: str, **options: Any) -> micronpu.CompiledProgram:
    return micronpu.compile(model.eval(), data[0], target, calibration=data, **options)


@pytest.mark.sweep
@pytest.mark.parametrize("target", ["imxrt700", "ethos-u55-128", "cortex-m55"])
@pytest.mark.parametrize("form", ["norm", "formula"])
def test_raw_sensors_are_standardised_in_float(form: str, target: str) -> None:
    report = compiled(Weather(form), rows(), target).report
    assert [v.operator for v in report.in_float] == {
        "norm": ["mul.Tensor", "add.Tensor"],
        "formula": ["sub.Tensor", "mul.Tensor"],
    }[form]
    assert report.accuracy.sqnr > 22 and report.warnings == ()  # weights of 8 bits allow 23.8


def test_a_batch_norm_of_the_core_set_of_aten_standardises() -> None:
    """It has three results, of which one is read."""
    program = torch.export.export(Weather("norm").eval(), (rows()[0],)).run_decompositions()
    assert "_native_batch_norm_legit_no_training" in str(program.graph)
    report = micronpu.compile(program, rows()[0], "imxrt700", calibration=rows()).report
    assert [v.operator for v in report.in_float] == ["mul.Tensor", "add.Tensor"] and report.accuracy.sqnr > 22


@pytest.mark.filterwarnings("ignore::micronpu.AccuracyWarning")
def test_raw_sensors_without_standardisation_are_noted() -> None:
    (note,) = (w for w in compiled(Weather("raw"), rows(), "imxrt700").report.warnings if w.rule == "unlike-features")
    assert "Feature 3 of the input `x` (axis 1) varies by 0.1" in note.what and "(x - mean) / deviation" in note.hint


def test_what_loses_little_is_quantized_first() -> None:
    images = [torch.rand(1, 3, 8, 8, generator=torch.Generator().manual_seed(i)) for i in range(8)]
    mean, deviation = (torch.tensor(v).reshape(3, 1, 1) for v in ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]))

    class Image(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.conv((x - mean) / deviation)
            return result

    report = micronpu.check(Image().eval(), images[0], "imxrt700", calibration=images).report
    assert report.delegated == report.operators


def test_a_program_of_integers_standardises_them() -> None:
    wanted = micronpu.Quantization(io="int8")
    module = compiled(Weather("formula"), rows(), "ethos-u55-128", quantization=wanted, verify=False).quantized
    (x,) = (node for node in module.graph.nodes if node.op == "placeholder")
    assert all(map(is_dequantize, x.users)) and not any(map(is_quantize, x.users))


def test_a_norm_is_not_folded_into_a_layer_that_it_makes_uneven() -> None:
    mean, deviation = torch.zeros(4), torch.tensor([1.0, 3.0, 100.0, 300.0])
    data = rows(deviation=deviation, mean=mean)
    norm, formula = (
        compiled(Weather(form, mean, deviation), data, "ethos-u55-128", quantization="int16").report
        for form in ("norm", "formula")
    )
    assert norm.accuracy.sqnr > formula.accuracy.sqnr - 1 and norm.delegated == norm.operators


def test_factors_of_unlike_size_stay_in_float_though_a_large_feature_hides_them() -> None:
    deviation, mean = torch.tensor([7.0, 7.0, 2.0, 0.002]), torch.tensor([0.0, 0.0, 0.0, 0.05])
    data = [row + torch.tensor([0.0, 0.0, 0.0, 0.05]) for row in rows(deviation=deviation, mean=mean)]
    report = compiled(Weather("formula", mean, deviation), data, "ethos-u55-128", quantization="int16").report
    assert [v.operator for v in report.in_float] == ["sub.Tensor", "mul.Tensor"]
