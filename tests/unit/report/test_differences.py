"""What changed between two reports, and which of many targets nothing beats."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from micronpu.base.errors import ModelError
from micronpu.base.files import write_file
from micronpu.cli.main import app
from micronpu.ir.graph import Origin
from micronpu.report.alternatives import Candidate, Candidates
from micronpu.report.delegation import DelegationReport
from micronpu.report.difference import HOST, difference
from micronpu.report.memory import Item, MemoryReport, Region
from micronpu.report.operations import Cost, Latency, Operation
from micronpu.report.shown import shown
from micronpu.report.verdict import Reason, Verdict, host_groups


def report(cycles: int = 500, refused: bool = False, clock: float = 100.0) -> DelegationReport:
    reason = Reason("rule", "At most 7 axes.", "9 axes", "relu", hint="fewer")
    verdicts = (
        Verdict("conv2d.default", Origin(("conv",), "net.py:1"), 0, macs=9),
        Verdict("relu.default", Origin(("relu",), "net.py:2"), None if refused else 0, (reason,) if refused else ()),
    )
    cost = Cost(cycles, cycles, {}, 0, 0.5)
    operations = (Operation(0, "conv2d", "conv2d", (1, 4), 9, Origin(("conv",), "net.py:1"), cost),)
    latency = (Latency("NPU", cycles, clock, 0.8, 1.2, "a model"),)
    return DelegationReport("chip", verdicts, operations=operations, program_bytes=1000, latency=latency)


def test_equal_reports_say_so() -> None:
    found = difference(report(), report())
    assert not found.is_any and not found.moved and not found.operations


def test_what_moved_and_what_it_costs() -> None:
    found = difference(report(), report(650, refused=True))
    (moved,) = found.moved
    assert (moved.node, moved.before, moved.after, moved.why) == ("relu", "NPU", HOST, "9 axes")
    (changed,) = found.operations
    assert (changed.before, changed.cycles_before, changed.cycles_after) == ("conv2d", 500, 650)
    figures = {f.name: (f.before, f.after) for f in found.figures if f.before != f.after}
    assert figures == {
        "on the NPU": (2, 1),
        "in float on the host": (0, 1),
        "time of a call, ms": (0.005, 0.0065),
        "NPU, ms": (0.005, 0.0065),
        "NPU, cycles": (500, 650),
    }
    data = json.loads(found.to_json())
    assert data["format"] == "micronpu difference" and data["is_any"] is True
    assert {f["name"]: f["change"] for f in data["figures"]}["NPU, cycles"] == 150


def test_operators_that_are_refused_as_one_are_one_entry() -> None:
    """Two tables of two operators each, which the core computes: their name, their cycles, and a step if they cost."""
    verdicts, kernels = list(report().verdicts[:1]), []
    for head, end in (("div", "index"), ("div_1", "index_1")):
        reason = Reason("exists", "The NPU has it.", "`table`", head, hint="compile the float model")
        for name, line in ((head, 3), (end, 4)):
            origin = Origin((name,), f"net.py:{line + 10 * name.endswith('1')}")
            verdicts.append(Verdict(f"{name.split('_')[0]}.Tensor", origin, None, (reason,), core="M33"))
        cost = Cost(600, 600, {}, 0, 0.5)
        kernels.append(Operation(0, "table", "table", (1, 4), 0, Origin((head, end)), cost))
    times = (*report().latency, Latency("M33", 1200, 100.0, 0.8, 1.2, "a model"))
    made = replace(report(), verdicts=tuple(verdicts), core_operations=tuple(kernels), latency=times)
    (group,) = host_groups(made.host, made.core_operations)
    assert (group.title, group.facts, group.places) == ("table x 2 (div, index)", ("1,200 cycles",), "net.py:4, :14")
    assert [g.title for g in host_groups(made.host)] == ["div, index x 2"]
    step = "table x 2 (div, index) on the core, 71 % of the time (net.py:4, :14). Try: compile the float model."
    assert made.next_steps == (step,)
    cheap = replace(made, latency=(Latency("NPU", 9000, 100.0, 0.8, 1.2, "a model"), times[1]))
    assert not cheap.next_steps  # an eighth of the time


def test_a_function_that_several_operations_compute_is_named_with_its_share() -> None:
    gelu = "gelu(x) -> x * sigmoid(1.702 x); off by at most 0.0204"
    names = ("conv", "mul", "sigmoid", "mul_1")
    verdicts = tuple(Verdict(f"{n}.Tensor", Origin((n,), ""), 0, written=gelu * (n != "conv")) for n in names)
    for cycles, said in ((100, True), (20, False)):
        costs = [Cost(1200 if name == "conv" else cycles, 0, {}, 0, 0.5) for name in names]
        operations = [Operation(0, n, n, (1, 4), 0, Origin((n,), ""), c) for n, c in zip(names, costs, strict=True)]
        steps = replace(report(), verdicts=verdicts, operations=tuple(operations)).next_steps
        text = "3 operations, 20 % of the NPU's cycles, compute gelu(x) as x * sigmoid(1.702 x); off by"
        assert any(step.startswith(text) for step in steps) is said
    alone = replace(report(), verdicts=verdicts[:2], operations=tuple(operations[:2]))
    assert not any("compute gelu" in step for step in alone.next_steps)


def test_operators_that_are_gone_or_new() -> None:
    before, after = report(), replace(report(), verdicts=report().verdicts[:1])
    assert [(m.node, m.before, m.after) for m in difference(before, after).moved] == [("relu", "NPU", "")]
    assert [(m.node, m.before, m.after) for m in difference(after, before).moved] == [("relu", "", "NPU")]


def test_other_networks_are_refused() -> None:
    other = replace(report(), verdicts=(Verdict("add.Tensor", Origin(("add",), ""), 0),))
    with pytest.raises(ModelError, match=r"a\.json and b\.json are of different networks"):
        difference(report(), other, names=("a.json", "b.json"))


def test_command_and_page(tmp_path: Path) -> None:
    for name, made in (("a", report()), ("b", report(650, refused=True))):
        (tmp_path / f"{name}.json").write_text(made.to_json())
    a, b, page = (str(tmp_path / name) for name in ("a.json", "b.json", "d.html"))
    run = CliRunner().invoke
    assert run(app, ["diff", a, a]).exit_code == 0
    shown = run(app, ["diff", a, b, "--report-html", page])
    assert shown.exit_code == 1
    assert "+150 (+30.0 %)" in shown.output and "9 axes" in shown.output
    assert json.loads(run(app, ["diff", a, b, "--json"]).output)["moved"][0]["node"] == "relu"
    text = Path(page).read_text(encoding="utf-8")
    assert "Operators that moved" in text and "<td>9 axes</td>" in text
    (tmp_path / "old.json").write_text(report().to_json().replace('"version": 1', '"version": 99'))
    refused = run(app, ["diff", a, str(tmp_path / "old.json")])
    assert refused.exit_code == 1 and "is a report of version 99" in " ".join(refused.output.split())


def test_memories_have_one_name_and_columns_that_say_nothing_are_left_out() -> None:
    """The flash of one chip is called ddr, that of the other mram; no operator has a reason."""
    flash = (Region("ddr", "dram", (Item("NPU code", 5),)), Region("mram", "flash", (Item("NPU code", 7),)))
    first, second = (replace(report(), memory=MemoryReport((region,), (), (), 0, 0)) for region in flash)
    second = replace(second, verdicts=first.verdicts[:1])
    figures = {f.name: (f.before, f.after) for f in difference(first, second).figures}
    assert figures["flash, bytes"] == (5, 7) and not figures.keys() & {"ddr, bytes", "mram, bytes"}
    console = Console(width=80, file=io.StringIO(), color_system=None)
    with console.capture() as capture:
        console.print(difference(first, second))
    assert "relu" in capture.get() and "why" not in capture.get()


def candidate(ms: float | None, sram: int, sqnr: float, fits: bool | None = True, **more: object) -> Candidate:
    return Candidate("t", "int8", ms, ms, ms, sram, 100, fits, 1.0, 1, sqnr, **more)  # type: ignore[arg-type]


def test_front_is_what_nothing_beats() -> None:
    rows = (
        candidate(1.0, 50, 20.0),
        candidate(2.0, 50, 20.0),  # slower, and no better in anything
        candidate(2.0, 40, 20.0),
        candidate(0.5, 90, 20.0, fits=False),
        candidate(1.0, 50, 20.0),  # as good as the first: both stand
        candidate(3.0, 60, 30.0),
        candidate(None, 10, 90.0),
        Candidate("t", "int8", blocks="No.", failed=True),
    )
    assert Candidates("m", "", rows).front == (0, 2, 4, 5)


def test_scores_count_before_decibels() -> None:
    rows = (candidate(1.0, 50, 20.0, score=0.9), candidate(1.0, 50, 40.0, score=0.8))
    assert Candidates("m", "top1", rows).front == (0,)


def test_pages_are_whole(tmp_path: Path) -> None:
    rows = (candidate(1.0, 2048, 20.0), Candidate("u", "int8", blocks="<No>.", failed=True))
    write_file(tmp_path / "c.html", shown(Candidates("net.py:net", "", rows), "page").encode())
    text = (tmp_path / "c.html").read_text(encoding="utf-8")
    assert "★" in text and "2.0 KiB" in text and "&lt;No&gt;." in text
    write_file(tmp_path / "c.html", shown(Candidates("net.py:net", "top1", rows), "page").encode())
    assert '<th class="number">top1</th>' in (tmp_path / "c.html").read_text(encoding="utf-8")
    write_file(tmp_path / "d.html", shown(difference(report(), report()), "page").encode())
    assert "Both say the same." in (tmp_path / "d.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("metric", ["", "top1"])
def test_a_row_has_two_lines_at_80_columns_and_its_name_is_whole(metric: str) -> None:
    what = "Cortex-M33 at 325 MHz, N3-64 at 325 MHz, sram 7.5 MB; 2 figures assumed"
    rows = (
        replace(candidate(16.7, 7 << 20, 20.0, score=0.9), target="alif-e8-hp", what=what),
        replace(candidate(0.05, 2048, 20.0), target="imxrt700-neutron-cortexm", blocks="1 operator: gru"),
        Candidate("psoc-edge-e84", "int8", blocks="No program.", failed=True),
    )
    console = Console(width=80, file=io.StringIO(), color_system=None)
    console.print(Candidates("net.py:net", metric, rows))
    lines = [line.rstrip() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]
    assert max(map(len, lines)) <= 80
    assert lines[3].startswith("  alif-e8-hp ") and lines[3].endswith("0.1 KiB")
    below = " ".join(line.strip() for line in lines[4:6])
    assert below.startswith("fits; int8; 100 % on target, 1 call; 20.0 dB; ") and "325 MHz, sram 7.5 MB" in below
    assert ("top1 0.9000" in below) == bool(metric)
    assert any(line.startswith("* imxrt700-neutron-cortexm ") for line in lines), "the front"
    assert "    1 operator: gru" in lines and "    No program." in lines
    assert lines[-1].startswith("* fits, and no other is better in everything")
