"""What `micronpu.compile` takes about quantization: activations, integer borders, a quantizer of one's own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import micronpu
from micronpu.base.errors import MicroNpuError, OptionError
from micronpu.cli.main import app
from micronpu.ethosu import EthosUOptions, EthosUQuantizer
from micronpu.neutron import NeutronQuantizer, QuantizationConfig

TARGET = "ethos-u55-128"


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.classes = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classes(torch.relu(self.conv(x)).mean((2, 3)))


def data(seed: int = 0) -> torch.Tensor:
    return torch.randn(1, 3, 10, 10, generator=torch.Generator().manual_seed(seed))


CALIBRATION = [data(seed) for seed in range(8)]


def error_of(program: micronpu.CompiledProgram) -> float:
    model = Net().eval()
    with torch.no_grad():
        return max(float((program.run(data(s)) - model(data(s))).abs().max()) for s in range(20, 24))


def test_int16_activations_are_nearer_to_float():
    coarse, fine = (
        micronpu.compile(Net().eval(), data(), TARGET, calibration=CALIBRATION, quantization=activations)
        for activations in ("int8", "int16")
    )
    assert fine.report.share == 1.0
    assert error_of(fine) < error_of(coarse) / 2


def test_neutron_has_no_int16():
    with pytest.raises(OptionError, match="the device does not compute with int16"):
        micronpu.compile(Net().eval(), data(), "imxrt700-neutron", calibration=CALIBRATION, quantization="int16")


@pytest.mark.parametrize("target", [TARGET, "imxrt700-neutron", "imxrt700"])
def test_a_program_of_integers(target: str):
    floats = micronpu.compile(Net().eval(), data(), target, calibration=CALIBRATION)
    program = micronpu.compile(
        Net().eval(), data(), target, calibration=CALIBRATION, quantization=micronpu.Quantization(io="int8")
    )
    assert program.integer_io is not None
    (x,) = program.integer_io.quantize((data(9),))
    y = program.run(x)
    assert x.dtype is torch.int8 and y.dtype is torch.int8
    assert any("takes and gives integers" in note for note in program.report.notes)
    assert b"quantize_per_tensor" not in program.buffer
    (real,) = program.integer_io.dequantize((y,))
    assert torch.equal(real, floats.run(data(9)))
    with pytest.raises(MicroNpuError, match="float"):
        program.run(data(9))


def test_a_quantizer_of_ones_own():
    quantizer = EthosUQuantizer(EthosUOptions(TARGET)).set_module_name(
        "classes", QuantizationConfig(activations="int16")
    )
    program = micronpu.compile(Net().eval(), data(), TARGET, calibration=CALIBRATION, quantization=quantizer)
    assert program.report.share == 1.0
    nodes = [n for n in program.partitions[0].graph.nodes if n.op.name == "conv2d"]  # the linear layer is one, too
    assert [n.output.type.dtype.value for n in nodes] == ["int8", "int16"]


def test_a_quantizer_decides_alone():
    quantizer = NeutronQuantizer()
    with pytest.raises(OptionError, match="together with `per_channel`, `activations` or `io`"):
        micronpu.Quantization(io="int8", quantizer=quantizer)
    with pytest.raises(OptionError, match="`quantizer` is 'int8'"):
        micronpu.Quantization(quantizer="int8")
    with pytest.raises(OptionError, match="`quantizer` and `settings` are both given"):
        micronpu.Quantization(settings={"equalize": True}, quantizer=quantizer)
    with pytest.raises(OptionError, match="`quantization` is 8"):
        micronpu.compile(Net().eval(), data(), "imxrt700", calibration=CALIBRATION, quantization=8)
    with pytest.raises(OptionError, match="is_qat=False, but `train` is given"):
        micronpu.compile(Net().eval(), data(), "imxrt700", train=lambda m: None, quantization=quantizer)


NET = """
import torch
from torch import nn

def net():
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(256, 4))
    return net.eval(), (torch.randn(1, 3, 10, 10),)

def calibration():
    return [(torch.randn(1, 3, 10, 10),) for _ in range(3)]
"""


def test_on_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "own.py").write_text(NET)
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> tuple[int, str]:
        done = CliRunner().invoke(app, list(words))
        return done.exit_code, " ".join(done.output.split())

    code, text = run("compile", "own.py:net", "-t", "ethos-u85-256", "--quantization", "int16", "--io", "int16")
    assert code == 0, text
    assert "takes and gives integers" in text and "NPU: about " in text
    code, text = run("inspect", "net.pte")
    assert code == 0 and "Ethos-U85 with 256 MACs" in text and "int16" in text
    code, text = run("check", "own.py:net", "-t", TARGET, "--quantization", "int4")
    assert code == 1 and "Try: int8, int16, auto, accurate, or the path of a TOML file" in text
    code, text = run("check", "own.py:net", "-t", TARGET, "--quantization", "int8,equalise=1")
    assert code == 1 and "There is no 'equalise' in [default] of `quantization`. Try: one of per_channel, " in text
    code, text = run("check", "own.py:net", "-t", TARGET, "--via", "tosa")
    assert code == 0 and "4 of 4 on the NPU of ethos-u55-128" in text
