"""`check` says what the host could not run, as `compile` does: a sentence, before anything is compiled."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import micronpu
from micronpu.cli.main import app

SPECTRUM = """
import torch
class Net(torch.nn.Module):
    def forward(self, x):
        z = torch.stft(x, 64, 32, window=torch.ones(64), return_complex=True)
        return torch.relu(z.real**2 + z.imag**2)
def net():
    return Net().eval(), (torch.randn(1, 256),)
"""


class Inverse(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.erfinv(torch.relu(x))


class Rounded(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.round(torch.relu(x))


@pytest.mark.parametrize("target", ["ethos-u55-128", "imxrt700-neutron"])
def test_what_has_no_kernel_is_what_compile_refuses(target: str) -> None:
    x = torch.randn(1, 20)
    (warning,) = [w for w in micronpu.check(Inverse().eval(), (x,), target).report.warnings if w.rule == "no-kernel"]
    assert warning.is_severe and warning.node == "erfinv" and "aten::erfinv.out" in warning.what
    with pytest.raises(micronpu.MicroNpuError, match=r"aten::erfinv\.out"):
        micronpu.compile(Inverse().eval(), (x,), target, calibration=[x] * 4)


def test_what_the_host_can_run_is_no_warning() -> None:
    report = micronpu.check(Rounded().eval(), (torch.randn(1, 20),), "ethos-u55-128").report
    assert all(w.rule != "no-kernel" for w in report.warnings)


def test_a_spectrum_inside_of_the_model_ends_with_exit_code_3(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(SPECTRUM)
    done = CliRunner().invoke(app, ["check", f"{tmp_path}/net.py:net", "-t", "ethos-u55-128"])
    assert done.exit_code == 3
    assert "aten::_fft_r2c.out" in done.output and "micronpu.audio.LogMel" in done.output
