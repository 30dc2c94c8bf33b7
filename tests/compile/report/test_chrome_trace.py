"""A trace for Chrome and Perfetto: it adds up to the report's figures."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.deploy import programs
from typer.testing import CliRunner

from micronpu.base.errors import UnsupportedError
from micronpu.cli.main import app
from micronpu.report.views.chrome import chrome_trace

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("kind", ["ethosu_int8", "neutron_int8"])
def test_the_trace_has_the_reports_figures(kind: str) -> None:
    report = programs.program(kind).report
    trace = json.loads(chrome_trace(report))
    rows = {e["tid"]: e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name"}
    whole = [e for e in trace["traceEvents"] if e["ph"] == "X" and rows[e["tid"]] == "NPU"]
    timed = [o for o in report.operations if o.cost is not None and o.cost.cycles]
    assert [e["name"] for e in whole] == [o.name for o in timed] and len(whole) >= 2
    assert sum(e["args"]["cycles"] for e in whole) == sum(o.cost.cycles for o in timed)
    unit = trace["otherData"]["unit"]
    for before, after in itertools.pairwise(whole):
        assert after["ts"] == pytest.approx(before["ts"] + before["dur"], abs=0.01)
    wanted = sum(o.cost.microseconds if unit == "microseconds" else o.cost.cycles for o in timed)
    assert sum(e["dur"] for e in whole) == pytest.approx(wanted, abs=0.01)
    assert set(rows.values()) >= {"NPU", "NPU: arithmetic", *timed[0].cost.memory_cycles}
    assert "estimates" in trace["otherData"]["figures"]


def test_without_a_clock_the_unit_is_cycles() -> None:
    report = programs.program("ethosu_int8").report
    without = [replace(o, cost=replace(o.cost, clock_mhz=None) if o.cost else None) for o in report.operations]
    trace = json.loads(chrome_trace(replace(report, operations=tuple(without))))
    assert trace["otherData"]["unit"] == "cycles"
    whole = [e for e in trace["traceEvents"] if e["ph"] == "X" and e["tid"] == 0]
    assert sum(e["dur"] for e in whole) == sum(o.cost.cycles for o in without if o.cost)
    with pytest.raises(UnsupportedError, match="no estimate of what an operation takes"):
        chrome_trace(replace(report, operations=()))


def test_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text(
        "import torch\n\ndef net():\n    return torch.nn.Linear(8, 8).eval(), torch.randn(1, 8)\n\n"
        "def calibration():\n    return [torch.randn(1, 8) for _ in range(3)]\n"
    )
    done = CliRunner().invoke(app, ["compile", "model.py:net", "-t", "ethos-u55-128", "--trace", "out.json"])
    assert done.exit_code == 0 and "Wrote out.json" in done.output, done.output
    assert json.loads((tmp_path / "out.json").read_text())["traceEvents"]
