"""`micronpu compare` and `micronpu diff` on programs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.deploy.programs import program
from typer.testing import CliRunner

from micronpu.chips import shipped_chips
from micronpu.cli.main import app
from micronpu.targets.registry import find_target

MODEL = """
import torch
from torch import nn

def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()).eval(), (torch.randn(1, 3, 8, 8),)

def calibration():
    return [(torch.randn(1, 3, 8, 8),) for _ in range(4)]
"""


@pytest.mark.sweep
def test_rows_are_kept_and_a_failure_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "net.py").write_text(MODEL)
    folder = tmp_path / "rows"
    command = ["compare", f"{tmp_path / 'net.py'}:net", "-t", "cortex-m33", "-t", "ethos-u55-128", "--json"]
    command += ["--quantization", "int8", "--quantization", "int16", "--folder", str(folder), "--jobs", "1"]
    first = CliRunner().invoke(app, command)
    assert first.exit_code == 0, first.output
    rows = {(c["target"], c["activations"]): c for c in json.loads(first.output)["candidates"]}
    assert list(rows) == [(t, a) for t in ("cortex-m33", "ethos-u55-128") for a in ("int8", "int16")]
    assert rows["cortex-m33", "int16"]["failed"] and "int16" in rows["cortex-m33", "int16"]["blocks"]
    assert not rows["ethos-u55-128", "int16"]["failed"] and rows["ethos-u55-128", "int8"]["share"] == 1

    stored = json.loads((folder / "comparison.json").read_text())
    stored["candidates"] = [c for c in stored["candidates"] if c["activations"] == "int8" or c["failed"]]
    (folder / "comparison.json").write_text(json.dumps(stored))
    seen = []

    def run(task, jobs, count, seconds):  # type: ignore[no-untyped-def]
        seen.extend(jobs)
        return iter(())

    monkeypatch.setattr("micronpu.cli.workers.in_processes", run)
    CliRunner().invoke(app, command)
    assert seen == [("cortex-m33", "int16"), ("ethos-u55-128", "int16")], "what failed is tried again"
    (tmp_path / "net.py").write_text(MODEL.replace("8, 3)", "4, 3)"))
    seen.clear()
    CliRunner().invoke(app, command)
    assert len(seen) == 4, "another model"
    (folder / "comparison.json").write_text("{}")
    refused = CliRunner().invoke(app, command)
    assert refused.exit_code == 1 and "holds no rows of a comparison" in " ".join(refused.output.split())


def test_targets_are_separated_by_commas_and_without_any_one_of_every_chip(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(
        "micronpu.cli.workers.in_processes", lambda task, jobs, count, seconds: asked.extend(t for t, _ in jobs) or ()
    )
    (tmp_path / "net.py").write_text(MODEL)
    command = ["compare", f"{tmp_path / 'net.py'}:net"]
    CliRunner().invoke(app, [*command, "-t", "cortex-m33,ethos-u55-128", "-t", "cortex-m4"])
    assert asked == ["cortex-m33", "ethos-u55-128", "cortex-m4"]
    asked.clear()
    CliRunner().invoke(app, command)
    assert sorted(find_target(name).chip.name for name in asked) == list(shipped_chips())


def test_programs_of_one_model_differ_by_their_bytes(tmp_path: Path) -> None:
    one, two, other = (program(kind).save(tmp_path / f"{kind}.pte") for kind in ("neutron", "ethosu", "two"))
    run = CliRunner().invoke
    assert run(app, ["diff", str(one), str(one)]).exit_code == 0
    shown = run(app, ["diff", str(one), str(two)])
    assert shown.exit_code == 1 and "payloads with other bytes" in shown.output
    refused = run(app, ["diff", str(one), str(other)])
    assert refused.exit_code == 1 and "have different inputs or outputs" in " ".join(refused.output.split())
    (tmp_path / "a.json").write_text(program("neutron").report.to_json())
    refused = run(app, ["diff", str(one), str(tmp_path / "a.json")])
    assert "are a program and a report" in " ".join(refused.output.split())


SLOW = (
    MODEL
    + """

class Sleeper(nn.Module):
    def forward(self, x):
        import time
        time.sleep(600)
        return x

def slow(): return Sleeper().eval(), (torch.zeros(1, 3, 8, 8),)

def broken():
    import os, sys
    print("out of luck", flush=True)
    os.abort()
"""
)


def test_a_row_that_takes_too_long_says_so(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(SLOW)
    command = ["compare", f"{tmp_path / 'net.py'}:slow", "-t", "cortex-m33", "-t", "ethos-u55-128", "--jobs", "2"]
    done = CliRunner().invoke(app, [*command, "--timeout", "0.5", "--json"])
    rows = json.loads(done.stdout)["candidates"]
    assert done.exit_code == 1 and [row["failed"] for row in rows] == [True, True]
    assert all("not compiled within 0.5 s. Try: --timeout 1" in row["blocks"] for row in rows)
    for wrong in ("0", "-1", "nan", "inf"):
        assert CliRunner().invoke(app, [*command, "--timeout", wrong]).exit_code == 1


def test_a_row_says_how_its_process_ended_and_the_next_one_gets_another(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(SLOW)
    command = ["compare", f"{tmp_path / 'net.py'}:broken", "-t", "cortex-m33,cortex-m55", "--jobs", "1", "--json"]
    rows = json.loads(CliRunner().invoke(app, command).stdout)["candidates"]
    said = 'The process that compiled it crashed with SIGABRT. Its last words: "out of luck".'
    assert [row["blocks"] for row in rows] == [said, said]
