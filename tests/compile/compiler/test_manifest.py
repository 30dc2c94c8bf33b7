"""What a program was made of: manifests, programs made again, and two that are told apart by cause."""

from __future__ import annotations

import hashlib
import json
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import micronpu
from micronpu.base.errors import FileError, OptionError
from micronpu.cli.main import app
from micronpu.compiler.basis import CompileRequest
from micronpu.report.manifest import Basis, Manifest, causes

MODEL = """
import torch

def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU()).eval(), (torch.ones(1, 8),)

def calibration():
    return [torch.full((1, 8), float(i)) for i in range(4)]
"""
NEEDED = ("target", "options", "quantization", "transforms", "verify")


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 4), nn.ReLU()).eval()


def rows(count: int = 4) -> list[torch.Tensor]:
    return [torch.full((1, 8), float(i)) for i in range(count)]


def compiled(net: nn.Module | None = None, data=None, target: str = "cortex-m55", **more) -> micronpu.CompiledProgram:
    return micronpu.compile(net or model(), (torch.ones(1, 8),), target, calibration=data or rows(), **more)


@pytest.fixture(scope="module")
def program() -> micronpu.CompiledProgram:
    return compiled()


def test_the_report_has_the_digest_of_all_that_bytes_rest_on(program: micronpu.CompiledProgram) -> None:
    names = [f.name for f in fields(Basis)]
    assert names == ["model", "data", "options", "tools", "machine"]
    again = compiled()
    assert again.basis == program.basis and again.report.hashes == program.report.hashes
    assert set(names) < set(program.report.hashes)
    assert Basis.of_hashes(program.report.hashes) is not None and Basis.of_hashes({"program": "ab"}) is None


def test_every_cause_is_found_and_named(program: micronpu.CompiledProgram) -> None:
    other = model()
    with torch.no_grad():
        other[0].bias[0] += 1
    (weights,) = causes(program.basis, compiled(other).basis)
    assert str(weights) == "Model: 0.bias (changed)."
    data = rows()
    data[2] = data[2] + 1
    (changed,) = causes(program.basis, compiled(data=[*data, data[0]]).basis)
    assert str(changed) == "Data: row 2 (changed), row 4 (new)."
    (options,) = causes(program.basis, compiled(quantization=micronpu.Quantization(io="int8")).basis)
    assert str(options) == 'Options: quantization.io null -> "int8".'
    tools = replace(program.basis, tools={**program.basis.tools, "torch": "2.99"})
    (versions,) = causes(program.basis, tools)
    assert str(versions) == f"Tools: torch {program.basis.tools['torch']} -> 2.99."
    coarse = Basis.of_hashes(tools.hashes())
    assert coarse is not None
    assert [str(c) for c in causes(program.basis, coarse)] == [
        "Tools: another one, and a manifest of each would say where."
    ]


def test_batches_of_calibration_are_the_rows_that_they_hold(program: micronpu.CompiledProgram) -> None:
    joined = compiled(data=[torch.cat(rows())])
    assert joined.basis == program.basis and joined.buffer == program.buffer


def test_settings_travel_by_what_they_say_and_not_by_their_file(tmp_path: Path) -> None:
    file = tmp_path / "q.toml"
    file.write_text("[default]\nactivation_observer = 'minmax'\n")
    made = compiled(quantization=file)
    again = CompileRequest.read(made.basis.options)
    assert again.quantization.settings == {"default": {"activation_observer": "minmax"}}
    assert again.values_by_name() == made.basis.options and str(tmp_path) not in json.dumps(made.basis.options)


def test_what_a_file_cannot_hold_is_reported_and_refused(program: micronpu.CompiledProgram) -> None:
    passes = micronpu.Pipeline().without("merge_reshapes")
    reported = replace(CompileRequest("cortex-m55"), transforms=micronpu.Transforms(passes=passes)).values_by_name()
    plain = replace(
        CompileRequest("cortex-m55"), transforms=micronpu.Transforms(passes=micronpu.Pipeline())
    ).values_by_name()
    assert reported != plain
    with pytest.raises(OptionError, match=r"transforms\.passes = micronpu\..*Pipeline, which a manifest cannot hold"):
        CompileRequest.read(reported)
    flags = replace(CompileRequest("imxrt700"), options=micronpu.NeutronOptions("imxrt700", extra_flags=("--verbose",)))
    with pytest.raises(OptionError, match="hands --verbose to another tool's command"):
        CompileRequest.read(flags.values_by_name())
    for damaged in ({"target": "{"}, {"target": '"cortex-m55"', "options.nothing": "1"}, {"nothing": "1"}):
        with pytest.raises(OptionError):
            CompileRequest.read(damaged)


def test_methods_have_one_manifest(tmp_path: Path) -> None:
    net = model()
    example = (torch.ones(1, 8),)
    made = micronpu.compile(
        {"one": (net, example), "two": (net, example)}, "cortex-m55", calibration={"one": rows(), "two": rows(3)}
    )
    made.save(tmp_path / "m.pte", manifest=True)
    basis = Manifest.load(tmp_path / "m.manifest.json").basis
    assert {"one: 0.weight", "two: 0.weight"} < set(basis.model)
    assert {"one: row 3", "two: row 2"} < set(basis.data) and "two: row 3" not in basis.data


def test_saved_beside_the_program(program: micronpu.CompiledProgram, tmp_path: Path) -> None:
    program.save(tmp_path / "net.pte", manifest=True)
    manifest = Manifest.load(tmp_path / "net.manifest.json")
    assert manifest.hashes == {"net.pte": hashlib.sha256(program.buffer).hexdigest()}
    assert manifest.basis == program.basis and manifest == program.manifest("net.pte")
    manifest.check_program(tmp_path / "net.pte")
    (tmp_path / "net.pte").write_bytes(b"other")
    with pytest.raises(FileError, match="its bytes are others"):
        manifest.check_program(tmp_path / "net.pte")
    with pytest.raises(OptionError, match="LiteRT model"):
        program.save(tmp_path / "net.tflite", manifest=True)
    for text in ("{", "{}", '{"format": "micronpu manifest", "version": 9}', manifest.to_json().replace("basis", "b")):
        (tmp_path / "bad.manifest.json").write_text(text)
        with pytest.raises(FileError, match="manifest"):
            Manifest.load(tmp_path / "bad.manifest.json")


def _run(*arguments: str | Path) -> tuple[int, str]:
    done = CliRunner().invoke(app, [*map(str, arguments)])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, " ".join(done.output.split())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With a network, data, a program and its manifest."""
    (tmp_path / "net.py").write_text(MODEL)
    np.save(tmp_path / "data.npy", np.stack([r[0].numpy() for r in rows()]))
    monkeypatch.chdir(tmp_path)
    arguments = ("compile", "net.py:network", "--calibration", "data.npy", "-t", "cortex-m55", "--io", "int8")
    assert _run(*arguments, "-o", "net.pte", "--manifest", "--quiet") == (0, "")
    return tmp_path


def test_the_same_bytes_again(folder: Path) -> None:
    code, said = _run("reproduce", "net.manifest.json")
    assert code == 1 and "names the Python file net.py, which would be run" in said
    assert "Try: micronpu reproduce net.manifest.json net.py:network" in said
    assert _run("reproduce", "net.manifest.json", "net.py:network", "-o", "again.pte", "--quiet") == (0, "")
    assert (folder / "again.pte").read_bytes() == (folder / "net.pte").read_bytes()
    assert str(folder) not in (folder / "net.manifest.json").read_text()


def test_what_differs_is_said(folder: Path) -> None:
    (folder / "net.py").write_text(MODEL.replace("manual_seed(0)", "manual_seed(1)"))
    text = (folder / "net.manifest.json").read_text()
    (folder / "net.manifest.json").write_text(text.replace('"micronpu": "', '"micronpu": "9.'))
    code, said = _run("reproduce", "net.manifest.json", "net.py:network", "-o", "other.pte")
    assert code == 1 and "Other bytes than net.pte" in said
    assert "Model: 0.weight (changed), 0.bias (changed)." in said and "Tools: micronpu 9." in said
    (folder / "data.npy").unlink()
    code, said = _run("reproduce", "net.manifest.json", "net.py:network")
    assert (code, said) == (
        1,
        "Error: There is no file data.npy. Try: check the path; a .npy or .npz file is expected.",
    )


def test_two_programs_are_distinguished(folder: Path) -> None:
    more = np.ones((3, 8), np.float32)
    more[0, 0] = 2
    np.save(folder / "more.npy", more)
    arguments = ("compile", "net.py:network", "--calibration", "more.npy", "-t", "cortex-m55", "--io", "int8")
    assert _run(*arguments, "-o", "more.pte", "--manifest", "--report-json", "more.json", "--quiet") == (0, "")
    code, said = _run("diff", "--why", "net.pte", "more.pte")
    assert code == 1 and "Data: row 0 (changed), row 2 (changed), row 3 (gone)." in said
    found = CliRunner().invoke(app, ["diff", "--why", "--json", "net.manifest.json", "more.manifest.json"])
    assert [cause["name"] for cause in json.loads(found.stdout)["causes"]] == ["data"]
    assert _run("diff", "--why", "more.json", "more.json")[0] == 0
    arguments = ("compile", "net.py:network", "--calibration", "more.npy", "-t", "cortex-m55")
    assert _run(*arguments, "-o", "floats.pte", "--manifest", "--quiet") == (0, "")
    code, said = _run("diff", "--why", "floats.pte", "more.pte")
    assert code == 1 and 'Options: quantization.io null -> "int8".' in said
    code, said = _run("diff", "floats.pte", "more.pte")
    assert code == 1 and "different inputs or outputs" in said and "or --why with the manifests" in said
    (folder / "net.manifest.json").unlink()
    code, said = _run("diff", "--why", "net.pte", "more.pte")
    assert code == 1 and "There is no net.manifest.json beside net.pte" in said


def test_nothing_of_a_strangers_manifest_is_run(folder: Path) -> None:
    (folder / "evil.py").write_text("open('ran', 'w').close()")
    reported = json.loads((folder / "net.manifest.json").read_text())
    for sources in ({"model": "evil.py:f"}, {"libraries": ["evil.py"]}, {"calibration": "evil.py:f"}):
        reported["sources"] = {"model": "net.py:network"} | sources
        (folder / "bad.manifest.json").write_text(json.dumps(reported))
        code, said = _run("reproduce", "bad.manifest.json", *([] if "model" in sources else ["net.py:network"]))
        assert code == 1 and "names the Python file evil.py, which would be run" in said
    assert not (folder / "ran").exists()
