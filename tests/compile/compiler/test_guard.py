"""A program far from the float model is never handed out in silence: what is said of it, where, and the cause."""

from __future__ import annotations

import io
import json
import math
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import nn
from typer.testing import CliRunner

import micronpu
from micronpu.base.errors import BudgetError, InternalError, OptionError
from micronpu.cli.main import app
from micronpu.ethosu import EthosUOptions, EthosUQuantizer
from micronpu.quantize.running import DequantizedReference, noise
from micronpu.report.delegation import DelegationReport
from micronpu.verify import guard, thresholds

TARGETS = ("imxrt700", "ethos-u55-128", "cortex-m55")


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def rows(*shape: int, count: int = 24) -> list[torch.Tensor]:
    return [torch.randn(shape, generator=generator(i)) for i in range(count)]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.fc = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.first(x))
        x = torch.relu(self.second(x))  # the one whose range the tests spoil
        y: torch.Tensor = self.fc(x.mean((2, 3)))
        return y


LINE = next(i for i, line in enumerate(Path(__file__).read_text().splitlines(), 1) if "the tests spoil" in line)


def spoiled(target: str = TARGETS[0], percentile: float = 60.0, **options: Any) -> micronpu.CompiledProgram:
    """With one operator of which the grid ends far below its largest values."""
    bad = {"activation_observer": "percentile", "percentile": percentile}
    settings = {"nodes": {"conv2d_1": bad, "relu_1": bad}}
    data = rows(1, 3, 8, 8)
    return micronpu.compile(Net().eval(), data[0], target, calibration=data, quantization=settings, **options)


def compiled(model: nn.Module, data: list[Any], target: str = TARGETS[0], **options: Any) -> micronpu.CompiledProgram:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", micronpu.AccuracyWarning)
        return micronpu.compile(model.eval(), data[0], target, calibration=data, **options)


def apart() -> EthosUQuantizer:
    """A quantizer of int8 that computes no chain of operators as one table, in which no error is left to find."""
    quantizer = EthosUQuantizer(EthosUOptions("ethos-u55-128"))
    quantizer.disabled_rewrites = frozenset({"functions_to_tables"})
    return quantizer


@pytest.mark.parametrize("target", TARGETS)
def test_what_is_near_has_no_warning(target):
    assert compiled(Net(), rows(1, 3, 8, 8), target, verify=micronpu.Verification(strict=True)).report.warnings == ()


@pytest.mark.parametrize("target", TARGETS)
def test_the_operator_that_costs_most_is_named_with_its_line(target):
    with pytest.warns(micronpu.AccuracyWarning, match=r"Output 0 is .* dB .*against float") as caught:
        report = spoiled(target).report
    assert [w.filename for w in caught if w.category is micronpu.AccuracyWarning] == [__file__]
    (warning,) = report.warnings
    assert (warning.level, warning.rule, warning.output) == ("warning", "far-from-float", 0)
    assert warning.operator in ("conv2d", "relu") and warning.node in ("conv2d_1", "relu_1")
    assert warning.source == f"{__file__}:{LINE}"
    assert warning.sqnr == report.accuracy.sqnr < thresholds.FAR
    assert "its int8 range from" in warning.what and "calibration samples with such values" in warning.hint


def test_the_operator_of_a_large_network_is_found_among_worse_ones_that_do_not_count(monkeypatch):
    """The powers have the largest errors of their own, and hardly any part in the result."""

    class Offset(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            z = x
            for _ in range(6):
                z = z * x
            return (x.sin() + 90.0).neg() + 90.0 + 1e-6 * z

    monkeypatch.setattr(thresholds, "BLAME_WORK", 0)
    (warning,) = compiled(Offset(), rows(1, 64), "corstone300", quantization=apart()).report.warnings
    assert warning.operator in ("add", "neg") and re.search("own result is at [56]", warning.what)


@pytest.mark.parametrize("target", TARGETS[:2])
def test_a_range_that_a_comparison_cuts_is_no_cause(target):
    class Signs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.conv = nn.Conv2d(8, 8, 3, bias=False)
            self.conv.weight.data.sign_()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            signs = torch.where(x >= 0, 1.0, -1.0)
            return torch.where(self.conv(signs) >= 0.5, 1.0, -1.0)

    (warning,) = compiled(Signs(), rows(1, 8, 12, 12), target).report.warnings
    assert warning.operator == "input" and "calibration rows" not in warning.hint and "grid" not in warning.what


def test_it_is_in_every_form_of_the_report(tmp_path):
    with pytest.warns(micronpu.AccuracyWarning):
        report = spoiled().report
    (warning,) = report.warnings
    assert DelegationReport.from_json(report.to_json()).warnings == report.warnings
    assert json.loads(report.to_json())["warnings"][0]["node"] == warning.node
    assert warning.what.split()[-1] in str(report) and "─ Warning ─" in str(report)
    stream = io.StringIO()
    Console(file=stream, force_terminal=True, color_system="standard", width=100).print(report)
    assert "\x1b[1;31m" in stream.getvalue() and "Warning" in stream.getvalue()
    report.to_html(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert '<section class="severe" role="alert">' in page and page.index('role="alert"') > page.index('class="tiles"')


def test_between_the_thresholds_it_is_a_note(monkeypatch):
    monkeypatch.setattr(thresholds, "FAR", -10.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error", micronpu.AccuracyWarning)
        report = spoiled(verify=micronpu.Verification(strict=True)).report
    (warning,) = report.warnings
    assert warning.level == "note" and f"1. {warning}" in " ".join(str(report).split())
    stream = io.StringIO()
    Console(file=stream, force_terminal=True, color_system="standard", width=100).print(report)
    said = " ".join(stream.getvalue().split())
    assert "\x1b[1;33mWhat to do next:" in said
    assert said.index(warning.what[:20]) < said.index("`micronpu advise`"), "accuracy comes before speed"


def test_strict_makes_an_error_of_it_and_needs_verification():
    with pytest.raises(BudgetError, match=rf"Output 0 is .*relu_1.*:{LINE}|Output 0 is .*conv2d_1.*:{LINE}"):
        spoiled(verify=micronpu.Verification(strict=True))
    with pytest.raises(OptionError, match=r"strict=True makes errors of warnings, and with run=False"):
        micronpu.Verification(strict=True, run=False)
    with pytest.raises(OptionError, match="`strict` is"):
        micronpu.Verification(strict="yes")


def test_fresh_weights_are_said_as_such():
    net = Net()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(1e-7)
    (warning,) = compiled(net, rows(1, 3, 8, 8)).report.warnings
    assert (warning.level, warning.rule) == ("note", "fresh-weights") and "the weights look untrained" in warning.what


def test_a_row_that_is_not_finite_is_named_with_the_first_operator():
    class Logarithm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(8, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc(torch.log(x)) + 1.0

    data = [x.abs() + 0.5 for x in rows(1, 8)]
    data[12][0, 3] = -1.0  # one of the rows that are kept back: 4, 12 and 20
    (warning,) = (w for w in compiled(Logarithm(), data).report.warnings if w.rule == "not-finite")
    assert warning.level == "warning" and "holds NaN for calibration sample 12; first computes it `log`" in warning.what
    assert warning.operator == "log" and warning.source.startswith(f"{__file__}:")


def test_other_answers_count_where_the_output_is_integers():
    class Answers(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x).argmax(-1)

    data = rows(1, 3, 8, 8)
    assert compiled(Answers(), data).report.accuracy.integers is not None
    bad = {"default": {"activation_observer": "percentile", "percentile": 50.5}}
    report = compiled(Answers(), data, quantization=bad).report
    share = report.accuracy.integers
    assert report.accuracy.agreement == share
    if share <= 1 - thresholds.FEW_CHANGED:
        (warning,) = report.warnings
        assert warning.rule == "other-answers" and warning.agreement == share


def test_other_answers_count_at_any_noise():
    class Uniform(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.softmax(super().forward(x) * 0.01, -1)

    report = compiled(Uniform(), rows(1, 3, 8, 8)).report
    (warning,) = report.warnings
    assert report.accuracy.sqnr > thresholds.EXPLAINED and report.accuracy.agreement < 0.5
    assert warning.rule == "other-answers" and "before a softmax" in warning.hint


def test_a_budget_on_the_answers():
    program = compiled(Net(), rows(1, 3, 8, 8))
    share = program.report.accuracy.agreement
    assert share is not None
    (result,) = micronpu.Budgets(min_agreement=0.01).results(program.report)
    assert result.met and result.value == share
    if share < 1:
        assert not micronpu.Budgets(min_agreement=1.0).results(program.report)[0].met
    with pytest.raises(OptionError, match=r"min_agreement is 1\.5; it is a share"):
        micronpu.Budgets(min_agreement=1.5)
    no_scores = compiled(nn.Sequential(nn.Conv2d(3, 4, 3)), rows(1, 3, 8, 8)).report
    with pytest.raises(OptionError, match="min_agreement has no figure to compare with"):
        micronpu.Budgets(min_agreement=0.9).results(no_scores)


# ---------------------------------------------------------------- the command

MODEL = """
import torch
from torch import nn

def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4)).eval(), torch.zeros(1, 3, 8, 8)

def calibration():
    return [torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(i)) for i in range(16)]
"""


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments))


def test_the_command_says_it_and_strict_writes_nothing(tmp_path):
    (tmp_path / "model.py").write_text(MODEL)
    out, page, reported = (tmp_path / name for name in ("net.pte", "net.html", "net.json"))
    base = ["compile", f"{tmp_path}/model.py:net", "-t", "imxrt700", "-o", str(out)]
    bad = ["--quantization", "activation_observer=percentile,percentile=55,input_observer=percentile"]
    done = run(*base, *bad)
    assert done.exit_code == 0 and out.exists() and "Output 0 is " in done.output and "Warning" in done.output
    assert "AccuracyWarning" not in done.output
    out.unlink()
    done = run(*base, *bad, "--strict", "--report-html", str(page), "--report-json", str(reported))
    assert done.exit_code == 3 and not out.exists() and 'role="alert"' in page.read_text()
    assert json.loads(reported.read_text())["warnings"][0]["level"] == "warning"
    done = run(*base, *bad, "--quiet")
    assert done.exit_code == 0 and "Warning: Output 0 is " in done.output
    assert run(*base, "--strict").exit_code == 0
    done = run(*base, "--strict", "--no-verify")
    assert done.exit_code == 1 and "--strict makes errors of warnings, and with --no-verify" in done.output
    assert run(*base, "--budget", "top1=0.01").exit_code == 0


# ---------------------------------------------------------------- a quantized module in float


class Gru(nn.Module):
    def __init__(self, steps: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.gru, self.fc, self.steps = nn.GRU(6, 8, batch_first=True), nn.Linear(8, 3), steps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.fc(self.gru(x)[0][:, -1])
        return y


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.qkv = nn.LayerNorm(16), nn.Linear(16, 48)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        return x + torch.softmax(q @ k.transpose(-1, -2) / 4, -1) @ v


class Running(nn.Module):
    """With a state."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fc = nn.Linear(6, 6)
        self.register_buffer("h", torch.zeros(1, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(self.fc(x) + 0.5 * self.h)
        self.h.copy_(h)
        return h


@pytest.mark.sweep
@pytest.mark.parametrize("io_type", [None, "int8"])
@pytest.mark.parametrize(
    ("model", "data"),
    [
        (Net(), rows(1, 3, 8, 8, count=4)),
        (Gru(3), rows(1, 3, 6, count=4)),
        (Gru(200), rows(1, 200, 6, count=2)),
        (Attention(), rows(1, 5, 16, count=4)),
    ],
    ids=["conv", "gru", "gru in a loop", "attention"],
)
def test_a_quantized_module_without_rounding_gives_what_the_float_model_gives(model, data, io_type):
    with torch.no_grad():  # weights that rounding leaves as they are: a quantized module has no others
        for weight in (p for p in model.parameters() if p.dim() > 1):
            step = weight.abs().amax(tuple(range(1, weight.dim())), keepdim=True) / 127
            weight.copy_((weight / step).round() * step)
    program = compiled(model, data, "ethos-u55-128", quantization=micronpu.Quantization(io=io_type))
    module = DequantizedReference(program.quantized)
    with torch.no_grad():
        exact = module.exact((data[0],))
        (found,), wanted = module.outputs(exact), model(data[0])
        ((signal, error),) = noise([found], [wanted])
        assert error < 1e-6 * signal  # 60 dB: biases that are added apart have grids, too
        layers = list(module.own(exact))
        assert len(layers) == len(module.layers) > 2
        # A layer that is left as it is changes nothing; one that is moved moves the output.
        layer, value, _ = layers[0]
        assert torch.equal(module.alone(exact, {layer.quantize: value})[0], found)
        ((signal, error),) = noise(module.alone(exact, {layer.quantize: value + 0.1}), [found])
        assert signal > 0 and math.isfinite(error) and error > 0


class Loud(nn.Module):
    """A state that only loud calls move, and an operator of its past."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 6)
        self.register_buffer("h", torch.zeros(1, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = 0.5 * self.h + torch.relu(self.first(x))
        self.h.copy_(h)
        y: torch.Tensor = self.last(h)
        return y


def test_the_operator_of_a_model_with_a_state_is_found_behind_a_quiet_beginning():
    loud = [0.0, 0.0, 1.0, 1.0, 2.0, 1.0, 3.0, 1.0]
    data = [[a * torch.randn(1, 6, generator=generator(10 * s + i)) for i, a in enumerate(loud)] for s in range(4)]
    bad = {"nodes": {"linear": (low := {"activation_observer": "percentile", "percentile": 60.0}), "relu": low}}
    with pytest.warns(micronpu.AccuracyWarning):
        report = micronpu.compile(Loud().eval(), data[0][0], TARGETS[0], calibration=data, quantization=bad).report
    (warning,) = (w for w in report.warnings if w.rule == "far-from-float")
    assert warning.node in ("linear", "relu") and "its int8 range from" in warning.what
    assert "recordings" in warning.what


class Padded(nn.Module):
    """A constant of no consequence beyond every grid, and then an operator that costs most."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.nn.functional.pad(x, (0, 4), value=-1e4)
        y = torch.relu(hidden[..., :36]) * 3.0
        return torch.softmax(torch.sin(y), -1)


@pytest.mark.parametrize("target", TARGETS)
def test_an_operator_that_only_saturates_is_not_blamed(target):
    settings = {"nodes": {"mul": {"activation_observer": "percentile", "percentile": 60.0}}}
    report = compiled(Padded(), rows(1, 4, 40), target, quantization=settings).report
    for warning in report.warnings:
        assert warning.operator != "pad", warning


# ---------------------------------------------------------------- what int8 need not cost


class Softmax(nn.Module):
    """Shares of many that are alike: on the grid of a softmax, 256 steps from 0 to 1, they have a few."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(0.3 * x, -1)


@pytest.mark.parametrize("target", TARGETS)
def test_what_is_farther_from_float_than_int8_asks_for_is_said(target):
    data = rows(1, 4, 40)
    (note,) = compiled(Softmax(), data, target).report.warnings
    assert (note.level, note.rule, note.output, note.operator) == ("note", "avoidable-noise", 0, "softmax")
    assert thresholds.NEAR < note.sqnr < 30
    possible = float(re.search(r"would be ([\d.]+) dB", note.what)[1])
    assert possible > note.sqnr + thresholds.AVOIDABLE
    assert possible == pytest.approx(with_own_qparams(Softmax(), data), abs=3)
    assert "its own result is at" in note.what and "Try: " in str(note)


def test_samples_that_also_calibrated_count_once():
    (note,) = compiled(Softmax(), rows(1, 4, 40)[:8]).report.warnings
    assert note.rule == "avoidable-noise" and "on 8 calibration samples" in note.what


@pytest.mark.sweep
@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU])
def test_a_recurrent_layer_is_rounded_in_each_step(layer, monkeypatch):
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layer = layer(6, 12, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.layer(x)[0]
            return y

    monkeypatch.setattr(thresholds, "EXPLAINED", 1000.0)
    assert not compiled(Recurrent(), rows(1, 5, 6)).report.warnings


def with_own_qparams(model: nn.Module, data: list[torch.Tensor]) -> float:
    """dB of the results, rounded to 256 steps from 0 to the largest."""
    exact = torch.cat([model(x) for x in data])
    step = float(exact.max()) / 255
    ((signal, error),) = noise([torch.round(exact / step) * step], [exact])
    return 10 * math.log10(signal / error)


def test_what_is_as_near_as_int8_comes_has_no_such_note():
    """However far from float: where the rounding of results alone makes the noise, nothing could be better."""

    class Double(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    data = [0.2 * x for x in rows(1, 4, 40)]
    data[5][0, 0, 0] = 10.0
    report = compiled(Double(), data).report
    assert thresholds.NEAR < report.accuracy.sqnr < 30
    assert report.warnings == ()


def test_networks_that_are_large_or_near_are_not_looked_at(monkeypatch):
    def looked(*_: Any) -> None:
        raise AssertionError("looked at")

    monkeypatch.setattr(guard, "beside_own_qparams", looked)
    assert compiled(Net(), rows(1, 3, 8, 8)).report.accuracy.sqnr > 33
    with pytest.raises(InternalError, match="looked at"):
        compiled(Softmax(), rows(1, 4, 40))
    monkeypatch.setattr(thresholds, "BLAME_WORK", 3)
    assert compiled(Softmax(), rows(1, 4, 40)).report.warnings == ()


def test_a_model_that_answers_every_sample_alike_is_noted():
    model = nn.Sequential(nn.Linear(8, 4), nn.Softmax(1)).eval()
    with torch.no_grad():
        model[0].weight.zero_()
        model[0].bias.copy_(torch.tensor([200.0, 0.0, 0.0, 0.0]))
    data = [torch.randn(1, 8, generator=torch.Generator().manual_seed(i)) for i in range(48)]
    report = micronpu.compile(model, data[0], "ethos-u55-128", calibration=data).report
    (note,) = (w for w in report.warnings if w.rule == "uninformative-data")
    assert not note.is_severe and "is the same for all 16 samples" in note.what


def test_settings_that_a_program_has_are_not_proposed():
    from micronpu.verify.guard import _weight_tries

    data = [torch.randn(1, 8, generator=torch.Generator().manual_seed(i)) for i in range(16)]
    for per_channel in (True, False):
        quantization = {"default": {"per_channel": per_channel}}
        program = micronpu.compile(
            nn.Linear(8, 4).eval(), data[0], "ethos-u55-128", calibration=data, quantization=quantization
        )
        tries = _weight_tries(program.quantized)
        assert ("per_channel=True" in tries) != per_channel and "weight_bits" not in tries


def test_a_cause_before_the_model_comes_first_with_what_the_rest_reaches():
    class Spectrum(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.first, self.fc = nn.Linear(64, 32), nn.Linear(32, 8)

        def forward(self, x):
            return self.fc(torch.log((self.first(x) ** 2) ** 2 + 1e-9))

    data = [torch.randn(1, 64, generator=torch.Generator().manual_seed(i)) for i in range(24)]
    with pytest.warns(micronpu.AccuracyWarning):
        report = micronpu.compile(
            Spectrum().eval(), data[0], "ethos-u55-128", calibration=data, quantization=apart()
        ).report
    assert report.warnings[0].rule == "int8-power"
    rest = float(report.warnings[0].what.rsplit("the output is ", 1)[1].split(" dB")[0])
    assert rest > report.accuracy.sqnr + 10
