"""Errors per layer, against what each of them means."""

from __future__ import annotations

import json
import math
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import micronpu
from micronpu.accuracy.subject import Subject
from micronpu.base.errors import MicroNpuError
from micronpu.cli.main import app
from micronpu.neutron import NeutronQuantizer

TARGET = "imxrt700-neutron"


class Net(nn.Module):
    """Three layers; of the second one channel is off whose weights are a hundred times those of the others."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.fc = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        with torch.no_grad():
            self.second.weight[1:] *= 0.01
            self.second.bias[1:] *= 0.01
            self.second.bias[0] = -100
            self.fc.bias[:] = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.fc(torch.relu(self.second(torch.relu(self.first(x)))))
        return y


X = torch.randn(24, 6, generator=torch.Generator().manual_seed(1))
MODEL = Net().eval()


def rounded(x: torch.Tensor, quantize: torch.fx.Node) -> torch.Tensor:
    """On the grid of a quantize node."""
    step, zero, low, high = quantize.args[1:5]
    return (torch.clamp(torch.round(x / step) + zero, low, high) - zero) * step


class Steps(nn.Module):
    """A recurrent layer with more steps than are written out, whose states int8 holds badly."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.gru, self.fc = nn.GRU(3, 4, batch_first=True), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.fc(self.gru(x)[0][:, -1])
        return y


@pytest.mark.sweep
def test_the_steps_of_a_long_recurrent_layer_are_quantized():
    model, rows = Steps().eval(), torch.randn(8, 130, 3, generator=torch.Generator().manual_seed(1))
    got = micronpu.blame(model, rows, TARGET, quantization="int8")
    program = micronpu.compile(model, rows[:1], TARGET, calibration=rows, quantization="int8", verify=False)
    with torch.no_grad():
        exact = model(rows)
        found = torch.cat([program.quantized(row[None]) for row in rows])
    assert abs(got.sqnr - 10 * math.log10(exact.square().sum() / (found - exact).square().sum())) < 0.5
    shares = [layer.share for layer in got.layers if layer.share is not None]
    assert shares and sum(shares) < 0.9  # the rest is that of the steps


def test_each_error_is_what_it_says():
    rows = [(x[None],) for x in X]
    found = Subject(MODEL, X, None, (X[:1],), TARGET, None).measured(NeutronQuantizer(), rows, rows)
    layers = {layer.first.name: layer for layer in found.layers}
    assert list(layers) == ["x", "linear", "linear_1", "linear_2"]
    with torch.no_grad():
        exact = torch.relu(MODEL.first(X))
        weight = MODEL.first.weight
        scale = weight.abs().amax(1, keepdim=True) / 127
        quantized = torch.clamp(torch.round(weight / scale), -127, 127) * scale
        operand = rounded(X, layers["x"].quantize)
        own = torch.relu(operand @ quantized.T + MODEL.first.bias)
        weights = torch.relu(X @ quantized.T + MODEL.first.bias) - exact
        result = rounded(own, layers["linear"].quantize)
    layer = layers["linear"]
    assert layer.signal == pytest.approx(float(exact.square().sum()), rel=1e-5)
    assert layer.own == pytest.approx(float((result - exact).square().sum()), rel=0.01)
    assert layer.weights == pytest.approx(float(weights.square().sum()), rel=1e-3)
    assert layer.rounding == pytest.approx(float((result - own).square().sum()), rel=0.01)
    assert layer.inherited == 0.0 and layers["linear_1"].inherited > 0.0
    assert layers["x"].own == pytest.approx(float((operand - X).square().sum()), rel=0.01)
    # At the end there is only what was inherited and the own part, which is what the program's output has lost.
    with torch.no_grad():
        total = sum(float((found.converted(x[None]) - MODEL(x[None])).square().sum()) for x in X)
    assert found.noise == pytest.approx(total, rel=1e-4)
    assert layers["linear_2"].total == pytest.approx(found.noise, rel=1e-4)


def test_what_layers_add_is_what_the_output_loses():
    """Followed to the output, the errors of the layers sum up to that of the whole network, to first order."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 8)).eval()
    rows = [(x[None],) for x in torch.randn(200, 6, generator=torch.Generator().manual_seed(2))]
    found = Subject(model, X, None, (X[:1],), TARGET, None).measured(NeutronQuantizer(), rows, rows)
    assert sum(layer.moved for layer in found.layers) == pytest.approx(found.noise, rel=0.35)


def test_a_single_scale_for_weights_is_blamed():
    # Rows of weights a hundred times smaller than the first have a step or two of a common grid.
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # what torch warns of itself is not for the user's script
        got = micronpu.blame(MODEL, X, target=TARGET, quantization=micronpu.Quantization(per_channel=False))
    worst = got.layers[0]
    assert worst.node == "linear_1" and worst.share > 0.5 and worst.weights < worst.grid
    assert worst.advice.startswith("per_channel=True")
    assert worst.source.startswith(__file__) and worst.module == "second"
    assert worst.operator == "linear + relu" and worst.setting == "node"
    assert got.sqnr < micronpu.blame(MODEL, X, target=TARGET).sqnr - 10
    assert sum(layer.share for layer in got.layers) == pytest.approx(1.0)
    by_own = got.sorted("own")
    assert [layer.own for layer in by_own.layers] == sorted(layer.own for layer in got.layers)
    assert "linear_1  linear + relu" in str(got) and "that also calibrated" in got.summary


class Loud(nn.Module):
    """The first of five columns is a hundred times as large as the others, and hardly matters."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.mix, self.fc = nn.Linear(5, 16), nn.Linear(16, 4)
        with torch.no_grad():
            self.mix.weight[:, 0] *= 1e-4

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # Factors of the features would be given to an input that a single layer reads.
        y: torch.Tensor = self.fc(torch.relu(self.mix(x) + self.mix(x)))
        return y


def test_a_range_is_blamed_where_another_one_helps():
    """What is said of the input's range is so: with another one the output is nearer to float."""
    data = torch.randn(64, 5, generator=torch.Generator().manual_seed(2)) * torch.tensor([100.0, 1, 1, 1, 1])
    plain, fitted = (
        micronpu.blame(Loud().eval(), data, target=TARGET, calibration=data[:32], quantization={"fit_ranges": fit})
        for fit in (False, True)
    )
    before, after = ({layer.node: layer for layer in found.layers} for found in (plain, fitted))
    assert before["x"].share > 0.9 and before["x"].range_gain > 10
    assert before["x"].advice.startswith("fit_ranges=True")
    assert before["linear_2"].range_gain is None, "the range of a result is given"
    assert "fit_ranges" not in after["x"].advice and after["x"].range_gain < 1
    assert "minmax" not in after["x"].advice, "what is clipped is to be clipped"
    assert fitted.sqnr > plain.sqnr + 10


def test_what_only_moves_values_is_not_blamed():
    class Moves(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(2, 4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu_(self.conv(nn.functional.pad(x, (1, 1, 1, 1)))).flatten(1).clone()

    data = [torch.randn(1, 2, 4, 4, generator=torch.Generator().manual_seed(i)) for i in range(6)]
    got = micronpu.blame(Moves().eval(), data[:3], target="ethos-u55-128", calibration=data, quantization="int16")
    assert sorted(layer.operator for layer in got.layers) == ["conv2d + relu", "input"]
    assert {layer.dtype for layer in got.layers} == {"int16"} and got.sqnr > 40
    assert (got.rows, got.calibration_rows, got.calibrated_on_them) == (3, 6, False)


class Sorts(nn.Module):
    """No gradient comes through an index."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.argmax(x * 2.0, 1, keepdim=True).float()


def test_without_a_gradient_there_is_no_share():
    got = micronpu.blame(Sorts().eval(), X, target=TARGET)
    assert all(layer.share is None for layer in got.layers)


class Divides(nn.Module):
    """Small divisors are rounded to 0."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 1 / (x.abs() + 1e-3)


@pytest.mark.parametrize("target", ["imxrt700", "ethos-u55-128"])
def test_a_division_by_what_is_rounded_to_zero_is_blamed(target):
    data = torch.cat([X, torch.zeros(1, 6)])
    got = micronpu.blame(Divides().eval(), data, target=target)
    assert all(layer.share is not None and math.isfinite(layer.grid) for layer in got.layers if layer.operator != "abs")


REFUSED = {
    "no data": ({"data": None}, "There is no data to compare"),
    "empty data": ({"data": []}, "The data of blame is empty."),
    "other shapes": ({"data": [X[:1], X[:1, :3]]}, "Blame item 1, input 0 has shape [1, 3], the model takes [1, 6]"),
    "an order that there is not": ({"sort": "name"}, "cannot be sorted by 'name'. Try: one of output, own, total."),
    "int16 on Neutron": ({"quantization": "int16"}, "does not compute with int16"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused(name):
    given, said = REFUSED[name]
    with pytest.raises(MicroNpuError) as caught:
        micronpu.blame(MODEL, **({"data": X, "target": TARGET} | given))
    assert said in str(caught.value), str(caught.value)


def test_a_quantized_model_is_refused():
    program = micronpu.compile(MODEL, X[:1], TARGET, calibration=X[:4])
    with pytest.raises(MicroNpuError, match="is quantized already"):
        micronpu.blame(program.quantized, X, target=TARGET)


def test_the_command(tmp_path):
    (tmp_path / "model.py").write_text(
        "import torch\nfrom torch import nn\n\ndef net():\n    torch.manual_seed(0)\n"
        "    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).eval(), (torch.zeros(1, 6),)\n"
    )
    np.save(tmp_path / "x.npy", X.numpy())
    said = [f"{tmp_path}/model.py:net", "--data", f"{tmp_path}/x.npy", "-t", TARGET]
    done = CliRunner().invoke(app, ["blame", *said, "--report-json", f"{tmp_path}/out.json"])
    assert done.exit_code == 0, done.output
    assert "linear  linear + relu" in done.output and "on 24 rows that also calibrated" in done.output
    reported = json.loads((tmp_path / "out.json").read_text())
    assert reported["format"] == "micronpu blame" and len(reported["layers"]) == 3 and math.isfinite(reported["sqnr"])
    assert CliRunner().invoke(app, ["blame", said[0]]).exit_code == 1


def test_labels_give_a_metric_beside_the_decibels():
    """Of the float and of the quantized model, on the rows that are measured, as the command's --labels."""
    with torch.no_grad():
        exact = MODEL(X)
    given = micronpu.Verification(data=X, labels=exact.argmax(1).numpy(), metric="top1")
    found = micronpu.blame(MODEL, given, TARGET)
    assert found.metric is not None and found.metric.labelled
    assert (found.metric.name, found.metric.float_model) == ("top1", 1.0)
    assert found.summary.startswith(f"top1 {found.metric.quantized:.4g}") and "dB at the output" in found.summary
    wrong = micronpu.Verification(data=X, labels=(exact.argmax(1).numpy() + 1) % 3, metric="top1")
    assert micronpu.blame(MODEL, wrong, TARGET).metric.float_model == 0.0
    with pytest.raises(MicroNpuError, match="23 labels and 24"):
        micronpu.blame(MODEL, micronpu.Verification(data=X, labels=np.zeros(23, int), metric="top1"), TARGET)
