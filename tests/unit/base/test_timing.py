"""Parts of a compilation are counted where they belong, and nothing is measured unasked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from micronpu.base import timing
from micronpu.cli.reports import as_json, show_times


def _counts(times: timing.Times) -> list[tuple[str, str, int]]:
    return [(p.step, p.name, p.calls) for p in times.parts()]


def test_steps_and_parts() -> None:
    with timing.timed() as times:
        assert times is not None
        with timing.step("export"):
            pass
        with timing.step("compile"):
            for _ in range(3):
                with timing.part("Vela"):
                    pass
            with timing.step("verify"), timing.part("run"):  # inside of another step
                pass
        with timing.step("compile"):
            pass
        with pytest.raises(KeyError), timing.step("lower"), timing.part("write"):
            raise KeyError
    found = _counts(times)
    assert found[:2] == [("export", "", 1), ("compile", "", 2)] and times.step == ""
    assert sorted(found[2:5]) == [("compile", "Vela", 3), ("compile", "run", 1), ("compile", "verify", 1)]
    assert found[5:] == [("lower", "", 1), ("lower", "write", 1)]
    seconds = {(p.step, p.name): p.seconds for p in times.parts()}
    assert seconds["compile", ""] >= seconds["compile", "Vela"] >= 0
    assert sum(s for (_, name), s in seconds.items() if not name) <= times.total


def test_longest_first() -> None:
    times = timing.Times()
    for name, seconds in (("", 9.0), ("short", 1.0), ("long", 5.0), ("short", 1.0)):
        times.add("compile", name, seconds)
    assert _counts(times) == [("compile", "", 1), ("compile", "long", 1), ("compile", "short", 2)]


def test_nobody_asks() -> None:
    with timing.timed(False) as times:
        assert times is None
        with timing.step("export"), timing.part("Vela"):
            pass
    with timing.timed() as later:
        pass
    assert later is not None and later.parts() == []


def test_the_file_has_what_the_table_leaves_out(tmp_path: Path) -> None:
    times = timing.Times()
    times.add("compile", "", 0.9)
    times.add("compile", "Vela", 0.8)
    times.add("compile", "pass x", 1e-9)
    out = Console(record=True, width=100)
    times._begun -= 1.0  # as if a second had gone by
    show_times(times, tmp_path / "times.json", out)
    shown = out.export_text()
    assert "Compiling for the NPU" in shown and "Vela" in shown and "pass x" not in shown
    reported = json.loads((tmp_path / "times.json").read_text())
    assert (
        [row["part"] for row in reported["parts"]]
        == ["", "Vela", "pass x"]
        == [r["part"] for r in as_json(times)["parts"]]
    )
    assert reported["seconds"] >= 1.0
