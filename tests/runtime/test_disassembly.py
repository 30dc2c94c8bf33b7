"""Command streams in readable form."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.deploy.programs import program
from tests.oracle.targets.ethosu.test_stream_proof import made
from typer.testing import CliRunner

from micronpu.cli.main import app
from micronpu.compiler.program import CompiledProgram
from micronpu.report.inside import difference
from micronpu.targets.ethosu.host.disassembly import disassemble


@pytest.mark.parametrize("target", ["ethos-u55-64", "ethos-u65-256", "ethos-u85-512"])
def test_operations_and_their_memory(target: str) -> None:
    found = disassemble(made(target)[0])
    assert found.accelerator == target and not found.stopped
    convolutions = [s for s in found.steps if s.name == "convolution"]
    assert convolutions and sum(s.work for s in convolutions) >= 6 * 6 * 8 * 9 * 16
    assert "ifm [8, 8, 16] at scratch+0x" in convolutions[0].reads[0]
    assert all(not c.name.startswith("unknown") for s in found.steps for c in s.commands)
    offsets = [c.offset for s in found.steps for c in s.commands] + [c.offset for c in found.rest]
    assert offsets == sorted(offsets) and offsets[0] == 0
    assert found.rest[-1].name == "NPU_OP_STOP"
    assert found.moved["scratch"] >= 8 * 8 * 16


def test_difference_names_what_changed() -> None:
    first, second = (disassemble(made("ethos-u55-64", scale=s)[0]) for s in (0.1, 0.11))
    assert difference(first, first) == []
    assert difference(first, second) == [], "the same operations"
    other = disassemble(made("ethos-u55-256")[0])
    assert any("NPU_SET_OFM_BLK" in line for line in difference(first, other, registers=True))


def saved(name: str, folder: Path) -> Path:
    made_program: CompiledProgram = program(name)
    return made_program.save(folder / f"{name}.pte")


def test_command_line(tmp_path: Path) -> None:
    path, other, none = (saved(name, tmp_path) for name in ("ethosu", "ethosu_int16", "neutron"))
    run = CliRunner().invoke
    shown = run(app, ["disassemble", str(path), "--registers"])
    assert shown.exit_code == 0 and "NPU_SET_IFM_REGION" in shown.output and "bytes moved: " in shown.output
    assert "; Conv2d small.py:" in shown.output, "operator and line of the model"
    memory = run(app, ["disassemble", str(path), "--memory"]).output
    assert "r read, w written" in memory and "Conv2d small.py:" in memory
    (stream,) = json.loads(run(app, ["disassemble", str(path), "--json"]).output)
    assert stream["memory"][0]["region"] == 1 and len(stream["memory"][0]["live"]) == len(stream["steps"])
    assert stream["steps"] and stream["accelerator"] == "ethos-u55-128"
    assert run(app, ["disassemble", str(path), "--diff", str(path)]).exit_code == 0
    assert run(app, ["disassemble", str(path), "--diff", str(other)]).exit_code == 1
    refused = run(app, ["disassemble", str(none)])
    assert refused.exit_code != 0 and "has no command stream to list" in refused.output
