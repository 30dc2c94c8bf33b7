"""`micronpu.advise`: what it says is what a compilation of the changed network says."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import micronpu
from micronpu.base.errors import MicroNpuError
from micronpu.cli.main import app

TARGET = "corstone300"
X = torch.linspace(-1, 1, 8 * 3 * 16 * 16).reshape(8, 3, 16, 16)
DATA = [x[None] for x in X]


def net(act: type[nn.Module], stride: int = 1) -> nn.Module:
    torch.manual_seed(0)
    pool = [nn.MaxPool2d(2)] if stride == 1 else []
    return nn.Sequential(nn.Conv2d(3, 16, 3, padding=1, stride=stride), act(), *pool, nn.Conv2d(16, 16, 3)).eval()


@pytest.fixture(scope="module")
def advice() -> object:
    return micronpu.advise(net(nn.GELU), DATA[0], TARGET, calibration=DATA)


def test_the_figures_are_those_of_the_network_written_that_way(advice) -> None:
    by_name = {idea.name: idea for idea in advice.ideas}
    assert set(by_name) == {"ReLU for GELU", "stride 2 for a pool", "integer inputs and outputs"}
    for name, model in (("ReLU for GELU", net(nn.ReLU)), ("stride 2 for a pool", net(nn.GELU, 2))):
        report = micronpu.compile(model, DATA[0], TARGET, calibration=DATA, verify=False).report
        price = by_name[name].price
        assert price.cycles == sum(t.cycles for t in report.latency)
        assert price.sram_bytes == sum(r.bytes for r in report.memory.regions if r.kind == "sram")
        assert by_name[name].places == 1 and by_name[name].sources == (("1",) if "ReLU" in name else ("0",))
    both = micronpu.compile(net(nn.ReLU, 2), DATA[0], TARGET, calibration=DATA, verify=False).report
    assert advice.together.price.cycles == sum(t.cycles for t in both.latency)
    assert advice.together.ratio < min(idea.ratio for idea in advice.worth) < 1


def test_hotspots_are_the_operations_of_the_report(advice) -> None:
    report = micronpu.compile(net(nn.GELU), DATA[0], TARGET, calibration=DATA, verify=False).report
    total = sum(o.cost.cycles for o in report.operations if o.cost is not None)
    assert sum(spot.cycles for spot in advice.hotspots if spot.processor == "NPU") == total
    assert sum(spot.share for spot in advice.hotspots) == pytest.approx(1)
    convolutions = next(spot for spot in advice.hotspots if spot.name == "conv2d")
    assert convolutions.count == 2 and 0 < convolutions.use <= 1
    assert advice.hotspots[0].cycles == max(spot.cycles for spot in advice.hotspots)


def test_a_target_without_estimates_is_reported() -> None:
    advice = micronpu.advise(net(nn.GELU), DATA[0], "s32k5", calibration=DATA)
    assert advice.price.cycles is not None or (not advice.ideas and "no estimate of time" in advice.summary)


def test_a_quantized_model_is_one_of_floats_again(advice) -> None:
    program = micronpu.compile(
        net(nn.GELU), DATA[0], TARGET, calibration=DATA, quantization=micronpu.Quantization(io="int8"), verify=False
    )
    found = micronpu.advise(program.quantized, program.integer_io.quantize(DATA[:1]), TARGET)
    assert found.price.cycles == sum(t.cycles for t in program.report.latency)
    assert {idea.name for idea in found.worth} == {idea.name for idea in advice.worth if "border" not in idea.name}


def test_bad_input_is_a_sentence() -> None:
    with pytest.raises(MicroNpuError, match="alibration"):
        micronpu.advise(net(nn.ReLU), DATA[0], TARGET, calibration=[])

    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(1, 3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count.copy_(self.count * 0.5 + x)
            return self.count * 2

    with pytest.raises(MicroNpuError, match="keeps a state, `count`"):
        micronpu.advise(Counter().eval(), torch.zeros(1, 3), TARGET, calibration=[torch.zeros(1, 3)])


def test_the_command(tmp_path) -> None:
    (tmp_path / "model.py").write_text(
        "import torch\nfrom torch import nn\n\ndef net():\n    torch.manual_seed(0)\n"
        "    return Net().eval(), (torch.zeros(1, 3, 16, 16),)\n\nclass Net(nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.conv = nn.Conv2d(3, 16, 3)\n"
        "    def forward(self, x):\n        return nn.functional.silu(self.conv(x))\n"
    )
    np.save(tmp_path / "x.npy", X.numpy())
    said = ["advise", f"{tmp_path}/model.py:net", "--calibration", f"{tmp_path}/x.npy", "-t", TARGET]
    done = CliRunner().invoke(app, [*said, "--report-json", f"{tmp_path}/out.json"])
    assert done.exit_code == 0, done.output
    assert "ReLU for SiLU" in done.output and "model.py:13" in done.output
    reported = json.loads((tmp_path / "out.json").read_text())
    assert reported["format"] == "micronpu advice" and reported["ideas"][0]["name"] == "ReLU for SiLU"
    assert reported["hotspots"][0]["name"] == "conv2d"
