"""What `make canary` makes of what it finds."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import pytest
from typer.testing import CliRunner

from micronpu.cli.main import app
from micronpu.upstream import shim
from micronpu.upstream.shim import SEEN, Shim

SCRIPT = Path(__file__).parents[2] / "scripts" / "canary.py"


@pytest.fixture(scope="module")
def canary() -> Any:
    spec = importlib.util.spec_from_file_location("canary", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GONE = escape(str(Shim("torch.nothing:at_all", "nothing works").misfit()), {'"': "&quot;"})
REPORT = f"""<testsuites><testsuite>
  <testcase classname="tests.a" name="one"/>
  <testcase classname="tests.a" name="two"><failure message="UpstreamError: x">{GONE}</failure></testcase>
  <testcase classname="tests.b" name="three"><error message="{GONE}"/></testcase>
  <testcase classname="tests.b" name="four"><failure message="assert 1 == 2">text</failure></testcase>
</testsuite></testsuites>"""


def test_failures_are_grouped_by_shim(canary: Any) -> None:
    found = canary.by_shim(REPORT)
    assert found == {"torch.nothing:at_all": ["tests.a.two", "tests.b.three"], canary.ELSEWHERE: ["tests.b.four"]}
    text = canary.summary({"torch": "2.99"}, ["torch.nothing:at_all: gone"], found)
    assert f"torch 2.99 (tested with {SEEN['torch']})" in text and "1 private names do not fit:" in text
    assert "3 tests failed" in text and text.index("torch.nothing:at_all: 2") < text.index(canary.ELSEWHERE)
    assert "0 tests failed." in canary.summary({}, [], {})


@pytest.fixture
def other_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another torch than micronpu was tested with, which lacks a name."""
    found, other = shim.installed, {"torch": "2.99.1"} | {p: f"{SEEN[p]}.9" for p in SEEN if p != "torch"}
    monkeypatch.setattr(shim, "installed", lambda package: other.get(package) or found(package))
    monkeypatch.setattr("micronpu.cli.doctor.installed", shim.installed)
    monkeypatch.setattr("micronpu.cli.doctor.all_shims", lambda: (Shim("torch.nothing:at_all", "nothing works"),))


@pytest.mark.sweep
def test_the_doctor_reports_misfits_where_a_version_differs(canary: Any, other_torch: None) -> None:
    done = CliRunner().invoke(app, ["doctor", "--json"])
    findings = {f["name"]: f for f in json.loads(done.stdout)["findings"]}
    assert findings["torch's private names"]["found"] == f"2.99.1, tested with {SEEN['torch']}"
    sentence = f"torch 2.99.1 has no `torch.nothing:at_all`, without which nothing works; torch {SEEN['torch']} has it."
    assert findings["torch.nothing:at_all"]["found"] == sentence
    assert not findings["torch.nothing:at_all"]["needed"]  # work goes on where it can
    assert canary.misfits(json.loads(done.stdout)) == [f"torch.nothing:at_all: {sentence}"]


@pytest.mark.sweep
def test_the_doctor_lists_every_name_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    made = (Shim("json:loads", "nothing is read"), Shim("json:nothing", "nothing works"))
    monkeypatch.setitem(SEEN, "json", "1.0")
    monkeypatch.setattr("micronpu.cli.doctor.all_shims", lambda: made)
    monkeypatch.setattr("micronpu.cli.doctor.is_seen", lambda package: True)
    lines = CliRunner().invoke(app, ["doctor", "--upstream"]).stdout.splitlines()
    assert any(line.startswith("ok") and "json:loads" in line and "fits, as in json 1.0" in line for line in lines)
    assert any(line.startswith("broken") and "has no `json:nothing`" in line for line in lines)
    assert not any("json:" in line for line in CliRunner().invoke(app, ["doctor"]).stdout.splitlines())
