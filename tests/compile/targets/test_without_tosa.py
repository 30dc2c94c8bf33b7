"""The base installation, without `micronpu[host]`: TOSA's serializer and reference model are not there."""

from __future__ import annotations

import importlib
import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.default_install import EXTRA
from torch import nn

import micronpu
from micronpu.base.errors import RuntimeUnavailableError
from micronpu.cli.doctor import examine
from micronpu.ethosu import EthosUOptions
from micronpu.host.litert_executor import Mode
from micronpu.host.tosa_executor import IDENTIFIER, TosaProgram
from micronpu.runtime import ArrayProgram
from micronpu.upstream.executorch import SOFTMAX_GRID

GOLDEN = Path(__file__).parents[2] / "golden"
X = torch.linspace(-1, 1, 2 * 7 * 9).reshape(1, 2, 7, 9)


@pytest.fixture(autouse=True)
def hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in EXTRA:
        monkeypatch.setitem(sys.modules, name, None)


def net() -> nn.Module:
    """[1, 2, 7, 9] -> [1, 6, 7, 9]"""
    torch.manual_seed(12)
    return nn.Sequential(nn.Conv2d(2, 6, 3, padding=1), nn.ReLU()).eval()


@pytest.mark.parametrize("target", ["imxrt700-neutron-cortexm", "ethos-u55-128"])
def test_networks_are_compiled_and_run(target: str) -> None:
    model = net()
    program = micronpu.compile(model, (X,), target, calibration=[(X,)])
    assert not program.report.left_over
    (found,) = program.run(X)
    with torch.no_grad():
        wanted = model(X)
    assert float((found - wanted).abs().max()) < 3 * float(wanted.abs().max()) / 127
    said = [note for note in program.report.notes if 'pip install "micronpu[host]"' in note]
    assert len(said) == (target == "ethos-u55-128")


def test_tosa_that_is_asked_for_names_the_extra() -> None:
    options = EthosUOptions("ethos-u55-128", via="tosa")
    with pytest.raises(RuntimeUnavailableError, match="serializer is not installed") as refused:
        micronpu.compile(net(), (X,), "ethos-u55-128", calibration=[(X,)], options=options)
    assert 'pip install "micronpu[host]"' in refused.value.hint


def test_a_graph_in_tosa_names_the_extra() -> None:
    """Its stream runs without; only the comparison with the graph takes the reference model."""
    path = GOLDEN / "ethosu-tosa.pte"
    with ArrayProgram(path) as program:
        arrays = [torch.zeros(x.shape, dtype=getattr(torch, x.dtype)).numpy() for x in program.inputs if x is not None]
        assert program.run_arrays(*arrays)
    with pytest.raises(RuntimeUnavailableError) as refused:
        TosaProgram(bytes(4) + IDENTIFIER, Mode.REFERENCE, 1, 1)
    assert 'pip install "micronpu[host]"' in str(refused.value)


def test_doctor_does_without(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    required = ["torch==2.13.0", 'tosa-tools==2026.8.*; extra == "host"', 'ray>=2.40; extra == "ray"']
    required += ['tosa-tools==2026.8.*; extra == "dev"', 'micronpu[host]; extra == "dev"']
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: required)
    found = {f.name: f for f in examine() if not f.good}
    assert found["torch"].needed and not found["tosa-tools"].needed
    assert "micronpu[host]" in found["tosa-tools"].remedy
    assert "ray" not in found


def test_a_process_of_its_own_compiles_for_each_family() -> None:
    """This one has imported what is hidden; `.ci/run` does the same for every kind of target where nothing is."""
    targets = ["imxrt700-neutron-cortexm", "ethos-u55-128", "alif-e8-u85-ethosu-cortexm", "cortex-m33"]
    command = [sys.executable, "-m", "tests.default_install", "--hide-extras", *targets]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=Path(__file__).parents[3])
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(targets)} of {len(targets)} kinds of targets" in done.stdout


def test_operators_of_the_core_are_those_of_executorch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The two numbers that stand in for a module of ExecuTorch's are that module's, which stays importable."""
    for name in EXTRA:
        monkeypatch.delitem(sys.modules, name)
    configs = importlib.import_module("executorch.backends.cortex_m.quantizer.quantization_configs")
    assert {name: getattr(configs, name) for name in SOFTMAX_GRID} == SOFTMAX_GRID
