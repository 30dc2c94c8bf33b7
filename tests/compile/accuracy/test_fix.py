"""Cures are kept where they help on rows that chose nothing, and priced by what is compiled."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import micronpu
from micronpu.accuracy.fix import perturbed
from micronpu.base.errors import MicroNpuError
from micronpu.cli.main import app
from micronpu.quantize.settings_file import merged, read_quantization, to_toml
from micronpu.report.diagnosis import Gain
from micronpu.targets.ethosu.device import EthosUDevice

TARGET = "ethos-u55-128"


class Net(nn.Module):
    """Channels of very different ranges, which one scale for all weights serves badly."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.fc = nn.Conv2d(2, 8, 3), nn.Conv2d(8, 8, 3), nn.Linear(8, 4)
        uneven = 10.0 ** torch.linspace(-1.0, 1.0, 8)
        with torch.no_grad():
            self.first.weight *= uneven[:, None, None, None]
            self.first.bias *= uneven
            self.second.weight /= uneven[:, None, None]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.fc(torch.relu(self.second(torch.relu(self.first(x)))).mean((2, 3)))
        return y


def images(count: int, seed: int) -> list[torch.Tensor]:
    noise = torch.randn(count, 2, 16, 16, generator=torch.Generator().manual_seed(seed))
    return list((4 * nn.functional.avg_pool2d(noise, 7, 1)).split(1))


DATA = images(60, 1)


@pytest.fixture(scope="module")
def fixes():
    return micronpu.fix(
        Net().eval(),
        DATA,
        target=TARGET,
        calibration=images(30, 2),
        quantization=micronpu.Quantization(per_channel=False),
        budget=600,
    )


@pytest.mark.slow
def test_what_helps_is_kept(fixes):
    assert (fixes.calibration_rows, fixes.choosing_rows, fixes.judging_rows) == (30, 30, 30)
    assert not fixes.untried
    tried = {attempt.name: attempt for attempt in fixes.attempts}
    assert {"one scale per channel", "ranges by results", "adaptive rounding", "int16 everywhere"} <= set(tried)
    assert tried["one scale per channel"].kept or tried["equalization"].kept
    for attempt in fixes.attempts:
        assert not attempt.kept or attempt.gain.low > 0
    default, *others = fixes.choices
    assert default.quantization == {"default": {"per_channel": False}} and default.gain is None
    assert others and all(choice.sqnr > default.sqnr for choice in others)
    widest = fixes.choices[-1]
    assert "int16" in widest.name and widest.sqnr > default.sqnr + 6 and widest.cycles > default.cycles
    free = [choice for choice in fixes.choices if choice.cycles <= 1.01 * default.cycles]
    assert fixes.best is max(free, key=lambda choice: choice.gain.value if choice.gain else 0.0)
    assert any(choice.best for choice in fixes.choices)
    for choice in fixes.choices:
        beaten = [
            o for o in fixes.choices if o.sqnr >= choice.sqnr and o.cycles <= choice.cycles and o.bytes <= choice.bytes
        ]
        assert choice.best == (beaten == [choice])


@pytest.mark.slow
def test_a_choice_is_what_compile_makes_of_it(fixes, tmp_path):
    """Cycles and bytes of the table are those of the program, and the file says what the dictionary says."""
    choice = fixes.best
    (tmp_path / "best.toml").write_text(to_toml(choice.quantization))
    assert read_quantization(tmp_path / "best.toml") == choice.quantization
    program = micronpu.compile(
        Net().eval(),
        DATA[0],
        TARGET,
        calibration=images(30, 2),
        verify=micronpu.Verification(held_out=0),
        quantization=tmp_path / "best.toml",
    )
    assert len(program.buffer) == choice.bytes
    assert sum(part.cycles for part in program.report.latency) == choice.cycles  # calls of the NPU included
    copies = 2  # until the errors of a sample are 8 numbers
    rows = [row for (row,) in perturbed([(x,) for x in DATA[1::2]], copies)]
    with torch.no_grad():
        wanted, found = (torch.cat([f(x) for x in rows]).double() for f in (Net().eval(), program.quantized))
    ratio = 10 * torch.log10(wanted.square().sum() / (wanted - found).square().sum())
    assert choice.sqnr == pytest.approx(float(ratio), abs=1e-3)
    reported = json.loads(fixes.to_json())
    assert reported["choices"][0]["bytes"] == fixes.choices[0].bytes and "fixes tried in" in str(fixes)


def test_settings_are_merged_table_by_table():
    one = {"equalize": True, "default": {"per_channel": False}, "nodes": {"a": {"activations": "int16"}}}
    more = {"default": {"activation_observer": "mse"}, "nodes": {"b": {"activations": "int16"}}}
    assert merged(one, more) == {
        "equalize": True,
        "default": {"per_channel": False, "activation_observer": "mse"},
        "nodes": {"a": {"activations": "int16"}, "b": {"activations": "int16"}},
    }
    assert one["default"] == {"per_channel": False}


def test_a_gain_is_more_than_chance_only_if_its_interval_says_so():
    assert Gain(1.0, 0.1, 1.9).helps and not Gain(1.0, -0.1, 2.1).helps


REFUSED = {
    "too few rows": ({"data": DATA[:8]}, "2 rows to choose by and 2 to judge by are too few"),
    "no data": ({"data": None}, "fix(model, data)"),
    "empty data": ({"data": []}, "The data of fix is empty."),
    "no budget": ({"budget": 0}, "`budget` is 0; it is a number of seconds."),
    "endless": ({"budget": float("inf")}, "`budget` is inf"),
    "another target": ({"target": "imxrt70"}, "imxrt70"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused(name):
    given, said = REFUSED[name]
    with pytest.raises(MicroNpuError) as caught:
        micronpu.fix(Net().eval(), **({"data": DATA, "target": TARGET} | given))
    assert said in str(caught.value), str(caught.value)


def test_a_small_budget_ends_it_and_the_command_writes_what_compile_takes(tmp_path):
    (tmp_path / "model.py").write_text(
        "import torch\nfrom torch import nn\n\ndef net():\n    torch.manual_seed(0)\n"
        "    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).eval(), (torch.zeros(1, 6),)\n"
        "def calibration():\n    torch.manual_seed(1)\n    return list(torch.randn(48, 6) @ torch.randn(6, 6))\n"
    )
    said = [f"{tmp_path}/model.py:net", "-t", "imxrt700-neutron"]
    small = CliRunner().invoke(app, ["fix", *said, "--budget", "0.001", "-o", str(tmp_path)])
    assert small.exit_code == 0, small.output
    assert "0 fixes tried" in small.output and "gain on the rows" not in small.output
    assert "The time limit was too short for: ranges by results and bias correction, " in " ".join(small.output.split())
    assert re.search(
        r"of which the first takes until (\d+) s. Try: --time-limit \d+, budget=", " ".join(small.output.split())
    )
    assert not list(tmp_path.glob("*.toml"))
    np.save(y := tmp_path / "y.npy", np.arange(48) % 3)
    small = CliRunner().invoke(app, ["fix", *said, "--budget", "0.001", "-o", str(tmp_path), "--labels", str(y)])
    assert small.exit_code == 0, small.output
    assert "top1: on the rows that judge, in float 0." in " ".join(small.output.split())
    done = CliRunner().invoke(app, ["fix", *said, "--quantization", "per_channel=false", "-o", str(tmp_path)])
    assert done.exit_code == 0, done.output
    files = sorted(tmp_path.glob("net.quantization-*.toml"))
    assert files and f"--target imxrt700-neutron --quantization {files[-1]}" in done.output
    run = f"# micronpu fix {tmp_path}/model.py:net -t imxrt700-neutron: "
    assert all(file.read_text().startswith(run) for file in files)
    earlier, own, other = (tmp_path / f"net.quantization-{name}.toml" for name in ("98", "mine", "99"))
    for file, text in ((earlier, run), (own, run), (other, run.replace("imxrt700-neutron", "mcxn947"))):
        file.write_text(text)
    rows = torch.randn(48, 6, generator=torch.Generator().manual_seed(2)) @ torch.ones(6, 6)
    np.save(x := tmp_path / "x.npy", rows.numpy())
    every = [*said, "--quantization", "per_channel=false", "-o", str(tmp_path), "--data", str(x)]
    for more, given in ((["--calibration", str(x)], f"--calibration {x} "), ([], f"--calibration {x} ")):
        again = CliRunner().invoke(app, ["fix", *every, *more])
        assert again.exit_code == 0, again.output
        assert again.output.count(given) == again.output.count("micronpu compile ") > 0, again.output
        assert (" --data " in again.output) == bool(more)
        assert not earlier.exists() and own.exists() and other.exists()
    assert "Replaced" in again.output
    files = sorted(tmp_path.glob("net.quantization-[0-8]*.toml"))
    made = CliRunner().invoke(
        app, ["compile", *said, "--no-verify", "--quantization", str(files[-1]), "-o", f"{tmp_path}/out.pte"]
    )
    assert made.exit_code == 0, made.output


def test_prices_are_of_proved_streams(monkeypatch):
    """An operator whose stream is wrong is left to the core by `compile`, so that its cycles there count."""

    def refused(self):
        raise AssertionError("The price is of a program whose streams are not proved.")

    monkeypatch.setattr(EthosUDevice, "unverified", refused)
    found = micronpu.fix(Net().eval(), DATA, TARGET, calibration=images(8, 2), budget=0.001)
    assert found.choices[0].cycles
    assert micronpu.advise(Net().eval(), DATA[0], TARGET, calibration=images(8, 2)).price.cycles


def test_perturbed_rows_stay_within_half_an_lsb():
    rows = [(torch.rand(1, 3) * 51 - 12.75, torch.tensor([[i]])) for i in range(20)]
    found = perturbed(rows, 4)
    assert len(found) == 80 and all(found[4 * i] is row for i, row in enumerate(rows))
    values = torch.cat([x for x, _ in rows])
    step = float(values.max() - values.min()) / 255
    moved = torch.stack([found[i][0] - rows[i // 4][0] for i in range(80) if i % 4])
    assert 0.4 * step < moved.abs().max() <= 0.5001 * step
    assert all(torch.equal(found[i][1], rows[i // 4][1]) for i in range(80))
    assert perturbed(rows, 1) == rows
