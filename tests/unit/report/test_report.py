"""The delegation report as JSON, in the terminal and as a page; reports made by hand, no torch."""

from __future__ import annotations

import html
import io
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from rich.console import Console

from micronpu.base.errors import FileError
from micronpu.base.files import write_file
from micronpu.base.texts import affine, short_source
from micronpu.ir import DType, GraphBuilder, Origin, QParams, TensorType
from micronpu.ir.window import Activation
from micronpu.ops.clamps import Relu
from micronpu.ops.convolution import Conv2d
from micronpu.report.accuracy import Agreement, Comparison, OutputAccuracy, ProgramAccuracy
from micronpu.report.alternatives import Candidates
from micronpu.report.delegation import DelegationReport
from micronpu.report.diagnosis import Frontier, Point
from micronpu.report.difference import Difference
from micronpu.report.memory import Item, MemoryReport, Region
from micronpu.report.operations import Cost, Latency, Operation, ResidentPrice
from micronpu.report.verdict import Reason, Verdict
from micronpu.report.views.html import framed, page
from micronpu.report.views.rows import folded, partition_rows, total_cycles
from micronpu.report.views.terminal import report_view

TWO_RULES = (
    Reason("is_imported", "The operator is one that micronpu can express.", "No operator imports cumsum", "sum"),
    Reason("rank", "Tensors have at most 7 axes.", "9 axes.", "sum", "net.py:7", "join `a` and [b] by <reshape>"),
)


def origin(node: str, line: int, module: str = "") -> Origin:
    return Origin((node,), f"{Path.cwd()}/net.py:{line}", module)


def report() -> DelegationReport:
    """Two partitions, two operators on the host, names that are markup to rich and to HTML."""
    return DelegationReport(
        "chip-npu",
        (
            Verdict("conv2d.default", origin("conv", 3, "stem.conv"), 0, (), 3000, (1, 8, 5, 5)),
            Verdict("relu.default", origin("relu", 3, "stem"), 0, (), 0, (1, 8, 5, 5)),
            Verdict("cumsum.default", origin("sum", 7), None, TWO_RULES, 0, (1, 8, 5, 5)),
            Verdict(
                "conv3d.default",
                origin("deep", 8, "[red]<b>"),
                None,
                (replace(TWO_RULES[0], node="deep"),),
                500,
                (1, 1),
            ),
            Verdict("linear.default", origin("fc", 9, "fc"), 1, (), 1000, (1, 12)),
        ),
        ("Made by <hand> & [bold]so[/bold].",),
    )


def compiled() -> DelegationReport:
    conv = Origin(("conv", "relu"), f"{Path.cwd()}/net.py:3", "stem.conv")
    return replace(
        report(),
        operations=(
            Operation(0, "conv2d + relu", "conv2d{activation=relu}", (1, 5, 5, 8), 3000, conv, None, 75, 200, 248),
            Operation(1, "fully_connected", "fully_connected", (1, 12), 1000, origin("fc", 9, "fc")),
        ),
        program_bytes=4096,
    )


def printed(value: object, width: int = 120) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(value)
    return console.file.getvalue()  # type: ignore[attr-defined]


# --- the value ----------------------------------------------------------------------------------------------------


def test_counts():
    made = report()
    assert (made.delegated, made.partitions, len(made.host), made.share) == (3, 2, 2, 0.6)
    assert (made.macs, made.delegated_macs) == (4500, 4000)
    assert DelegationReport("chip", ()).share == 1.0


def test_json_says_everything():
    data = json.loads(compiled().to_json())
    assert data["target"] == "chip-npu"
    assert (data["operators"], data["delegated"], data["partitions"]) == (5, 3, 2)
    assert (data["macs"], data["delegated_macs"], data["program_bytes"]) == (4500, 4000, 4096)
    verdict = data["verdicts"][2]
    assert (verdict["node"], verdict["partition"], verdict["shape"]) == ("sum", None, [1, 8, 5, 5])
    assert verdict["reasons"][1]["hint"] == "join `a` and [b] by <reshape>"
    assert data["operations"][0] == {
        "partition": 0,
        "operation": "conv2d + relu",
        "attributes": "conv2d{activation=relu}",
        "shape": [1, 5, 5, 8],
        "macs": 3000,
        "bytes_read": 75,
        "bytes_written": 200,
        "constant_bytes": 248,
        "sparse": False,
        "nodes": ["conv", "relu"],
        "source": f"{Path.cwd()}/net.py:3",
        "module": "stem.conv",
        "passes": [],
        "cost": None,
        "dtype": "",
        "scale": None,
        "zero_point": None,
    }


def test_costs_are_columns_where_the_compiler_knows_them():
    plain = compiled()
    cost = Cost(1234, 1000, {"Sram": 200, "OffChipFlash": 1234}, 4096, 0.25)
    first, second = plain.operations
    costly = replace(plain, operations=(replace(first, cost=cost), second))
    assert json.loads(costly.to_json())["operations"][0]["cost"] == {
        "cycles": 1234,
        "arithmetic_cycles": 1000,
        "memory_cycles": {"Sram": 200, "OffChipFlash": 1234},
        "memory_bytes": 4096,
        "utilisation": 0.25,
        "start_cycles": 0,
        "clock_mhz": None,
        "bus": {},
        "bound_by": "OffChipFlash",
        "microseconds": None,
    }
    timed = replace(cost, clock_mhz=100.0)
    assert timed.microseconds == 12.34
    assert "12.3" in printed(replace(plain, operations=(replace(first, cost=timed), second)), 200)
    assert "cycles" not in printed(plain)
    text = printed(costly, 200)
    assert "1,234" in text and "OffChipFlash" in text and "25%" in text
    text = page(costly)
    assert "bound by" in text and "1,234 cycles" in text
    assert "bound by" not in page(plain, graph=False)


@pytest.mark.parametrize("width", [60, 80, 100, 120])
def test_cycles_and_source_are_readable_at_every_width(width):
    plain = compiled()
    cost = Cost(1_234_567, 1000, {"Sram": 200, "OffChipFlash": 1_234_567}, 4096, 0.25)
    far = [
        replace(o, cost=cost, origin=replace(o.origin, source="/a/long/way/down/net.py:3")) for o in plain.operations
    ]
    lines = printed(replace(plain, operations=tuple(far)), width).splitlines()
    assert max(map(len, lines)) <= width
    rows = [line for line in lines if "1,234,567" in line and "1,234,567 cycles" not in line]
    assert len(rows) == len(far)
    assert all(line.rstrip().endswith("net.py:3") for line in rows)


def test_equal_operations_in_a_row_are_one_line():
    plain = compiled()
    first, second = plain.operations
    cost = Cost(7, 7, {}, 0, 0.5)
    repeated = replace(first, partition=0)
    several = replace(plain, operations=(repeated, repeated, repeated, replace(second, partition=0)))
    rows = partition_rows(several)[0]
    assert [(row.title, row.macs) for row in rows] == [
        (f"3 x {first.name}", 3 * first.macs),
        (second.name, second.macs),
    ]
    assert "Partition 0: 4 NPU operations" in printed(several)
    assert "4 NPU operations" in page(several)
    costly = replace(several, operations=(repeated, replace(repeated, cost=cost), replace(repeated, cost=cost)))
    assert [row.count for row in partition_rows(costly)[0]] == [1, 1, 1]


def recurrent(steps: int = 60) -> DelegationReport:
    """A step of 12 operators again and again, between a first and a last one; the tenth of a step stays on the host."""
    names = ["first", *(f"{kind}_{step}" for step in range(steps) for kind in "abcdefghijkl"), "last"]
    verdicts, operations = [], []
    for place, node in enumerate(names):
        kind = node.split("_")[0]
        refused = kind == "j"
        reasons = (Reason("rank", "Tensors have at most 7 axes.", "9 axes.", node),) if refused else ()
        where = origin(node, 3, "gru")
        verdicts.append(Verdict(f"{kind}.default", where, None if refused else 0, reasons, 10, (1, 8)))
        if not refused:
            cost = Cost(100 + place % 2, 50, {"sram": 70}, 64, 0.5) if kind != "k" else None
            operations.append(Operation(0, kind, kind, (1, 8), 10, where, cost))
    return DelegationReport("chip", tuple(verdicts), operations=tuple(operations))


def test_repeated_steps_are_one_group_with_sums():
    made = recurrent()
    (rows,) = partition_rows(made).values()
    lines = folded(rows)
    assert [line.title for line in lines[:3]] == ["first", "60 x these 11 lines", "60 x a"]
    assert [line.name for line in lines[2:13]] == list("abcdefghikl") and lines[13].name == "last"
    assert len(lines) == 14
    head, first = lines[1], lines[2]
    assert head.macs == 60 * 11 * 10 and first.macs == 600
    assert total_cycles(lines[2:13]) == head.cost.cycles == total_cycles(rows) - total_cycles([rows[0], rows[-1]])
    assert first.cost.memory_cycles == {"sram": 60 * 70} and first.cost.utilisation == pytest.approx(0.5)
    assert lines[11].cost is None  # of "k" nothing is known, sixty times


def test_steps_that_differ_are_no_group():
    (rows,) = partition_rows(recurrent()).values()
    odd = [replace(row, shape=(1, place)) for place, row in enumerate(rows)]
    assert folded(odd) == odd
    assert folded(rows[:23]) == rows[:23]  # two steps are no loop


def test_terminal_shows_groups_and_every_operation_on_demand():
    made = recurrent()
    text = printed(made)
    assert "60 x these 11 lines" in text and re.search(r"^  60 x a +1×8 +600", text, re.M)
    assert "j.default x 60  1×8" in text
    assert len(text.splitlines()) <= 40
    every = printed(report_view(made, every=True))
    assert len(re.findall(r"^a +1×8 ", every, re.M)) == 60 and every.count("j.default") == 60


def test_long_tables_show_what_costs_most():
    rows = [Operation(0, f"op{i}", f"op{i}", (i + 1,), 1, origin(f"n{i}", i)) for i in range(30)]
    made = [replace(row, cost=Cost(1000 - i, 1, {}, 0, 0.1)) for i, row in enumerate(rows)]
    costly = replace(compiled(), operations=tuple(made))
    text = printed(costly)
    assert re.findall(r"^(op\d+) ", text, re.M) == [f"op{i}" for i in range(10)]
    assert "The 10 most costly of 30 lines, 34 % of the cycles; --all shows every NPU operation." in text
    assert re.findall(r"^(op\d+) ", printed(report_view(costly, top=2)), re.M) == ["op0", "op1"]
    assert len(re.findall(r"^(op\d+) ", printed(replace(costly, operations=tuple(made[:24]))), re.M)) == 24


def test_page_folds_steps_and_keeps_every_row():
    text = page(recurrent())
    assert text.count('<tr class="steps">') == 1 and text.count('<tr class="step">') == 11
    assert "Every NPU operation, 662 lines" in text
    assert text.count('<td class="name" title="a&#10;') + text.count('<td class="name" title="a\n') == 61
    assert "<h3>j.default x 60</h3>" in text and text.count("<article>") == 1


def test_operation_is_read_off_the_graph():
    build = GraphBuilder(origin=Origin(("conv",), "net.py:3", "stem"))
    x = build.input(_int8((1, 4, 4, 2)))
    w = build.constant([[[[1, 2]]]] * 3, _int8((3, 1, 1, 2), 0.5))
    b = build.constant([0, 0, 0], TensorType((3,), DType.INT32, QParams.per_tensor(0.05, 0)))
    y = build.emit(Conv2d(activation=Activation.RELU6), x, w, b, qparams=QParams.per_tensor(0.05, 0))
    build.finish(build.emit(Relu(), y, qparams=QParams.per_tensor(0.05, 0)))
    first, second = (Operation.of(1, node) for node in build.graph.nodes)
    assert (first.partition, first.name, first.shape, first.macs) == (1, "conv2d + relu6", (1, 4, 4, 3), 96)
    assert first.origin.source == "net.py:3"
    assert "activation=relu6" in first.attributes
    assert (second.name, second.macs) == ("relu", 0)


def _int8(shape: tuple[int, ...], scale: float = 0.1) -> TensorType:
    return TensorType(shape, DType.INT8, QParams.per_tensor(scale, 0))


def test_rows_are_operations_after_compilation_and_operators_before():
    before, after = partition_rows(report()), partition_rows(compiled())
    assert [row.name for row in before[0]] == ["conv2d.default", "relu.default"]
    assert [row.name for row in after[0]] == ["conv2d + relu"]
    assert after[0][0].nodes == ("conv", "relu")
    assert list(before) == list(after) == [0, 1]


def test_text_is_the_terminal_view_whatever_the_width():
    """`print(report)` and the commands show the same: five lines, what to do next, and then details."""
    for value in (report(), compiled()):
        assert str(value).splitlines() == [line.rstrip() for line in printed(value).splitlines()]
        assert repr(value).startswith("<DelegationReport>\n")


def test_source_is_relative_below_the_present_folder():
    assert short_source(f"{Path.cwd()}/a/net.py:3") == f"a{os.sep}net.py:3"
    assert short_source("/elsewhere/net.py:3") == "/elsewhere/net.py:3"
    assert short_source("") == ""


# --- terminal -----------------------------------------------------------------------------------------------------


def test_terminal_shows_partitions_host_and_notes():
    lines = printed(compiled()).splitlines()
    text = "\n".join(line.rstrip() for line in lines)
    assert text.startswith("Operators: 3 of 5 on the NPU of chip-npu in 2 partitions\n")
    assert "Partition 0: 1 NPU operation, 3,000 MACs" in text
    assert re.search(r"^conv2d \+ relu +1×5×5×8 +3,000 +stem\.conv +net\.py:3$", text, re.MULTILINE)
    assert re.search(r"^fully_connected +1×12 +1,000 +fc +net\.py:9$", text, re.MULTILINE)
    assert "On the core: 2 operators, 500 MACs\n  cumsum.default  1×8×5×5  sum  net.py:7\n" in text
    assert (
        "    Rule:  Tensors have at most 7 axes.\n    Found: 9 axes.\n    Try:   join `a` and [b] by <reshape>." in text
    )
    assert "Found: No operator imports cumsum.\n" in text
    # Brackets are text, not markup.
    assert "[red]<b>  net.py:8" in text
    assert "Note: Made by <hand> & [bold]so[/bold]." in text


def test_terminal_shows_operators_before_compilation():
    text = printed(report())
    assert "Partition 0: 2 operators, 3,000 MACs" in text
    assert re.search(r"relu\.default +1×8×5×5 +– +stem +net\.py:3", text)


def test_narrow_terminal_loses_nothing():
    words = "".join(printed(compiled(), width=60).split())
    for text in ("conv2d+relu", "stem.conv", "net.py:3", "Tensorshaveatmost7axes.", "join`a`and[b]by<reshape>."):
        assert text in words
    assert "…" not in words


# --- page ---------------------------------------------------------------------------------------------------------


class Reader(HTMLParser):
    """Checks that tags are balanced and collects text, tags and attributes."""

    VOID = ("input", "meta", "col", "br")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, f"</{tag}> closes something else at {self.getpos()}"

    def handle_data(self, data):
        if not {"style", "script"} & set(self.open):
            self.texts.append(data)


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    reader.close()
    assert not reader.open
    return reader


@pytest.mark.parametrize(
    "made", [report(), compiled(), DelegationReport("chip", ())], ids=["check", "compile", "empty"]
)
def test_page_is_whole_and_needs_nothing_else(made):
    text = page(made)
    reader = read(text)
    assert text.startswith("<!doctype html>")
    assert {tag for tag, _ in reader.tags}.isdisjoint({"link", "img", "iframe", "b"})
    assert not any(name in attributes for _, attributes in reader.tags for name in ("src", "href", "onclick"))
    style = text.partition("<style>")[2].partition("</style>")[0]
    assert "url(" not in style
    assert "@import" not in style
    assert "prefers-color-scheme: dark" in style
    assert {tag for tag, _ in read(page(made, graph=False)).tags}.isdisjoint({"script"})


def test_names_end_no_script():
    """Whatever an operator is called, the data stay data, and the script reads what the report says."""
    odd = "</script><script>alert(1)</script><!--"
    made = replace(report(), target=odd, notes=(odd,))
    data = re.search(r'<script type="application/json" id="report">(.*?)</script>', page(made), re.S)
    assert data is not None
    assert json.loads(data[1]) == made.to_dict()
    assert "alert" not in " ".join(name for name, _ in read(page(made)).tags)


def test_page_says_what_the_report_says():
    reader = read(page(compiled()))
    text = " ".join(" ".join(reader.texts).split())
    assert "3 of 5 operators on the NPU of chip-npu in 2 partitions" in text
    assert "Operators 3 of 5 on the NPU of chip-npu" in text
    assert "Partition 0 1 NPU operation, 3,000 MACs" in text
    assert "conv2d + relu 1×5×5×8 3,000" in text
    assert "cumsum.default 1×8×5×5 · sum · net.py:7" in text
    assert "Rule Tensors have at most 7 axes. Found 9 axes." in text
    assert "<dt>Try</dt><dd>join <code>a</code> and [b] by &lt;reshape&gt;.</dd>" in page(compiled())
    assert "Made by <hand> & [bold]so[/bold]." in text
    assert "[red]<b>" in text
    titles = [attributes.get("title") for _, attributes in reader.tags]
    assert "conv2d{activation=relu}\nfrom conv, relu" in titles


def test_bars_are_on_one_scale():
    widths = re.findall(r'class="bar" style="width:([\d.]+)%"', page(compiled()))
    assert [float(w) for w in widths] == pytest.approx([100, 100 / 3], abs=0.01)


def test_file_is_written(tmp_path):
    compiled().to_html(tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == page(compiled())
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]


def test_notebook_gets_the_page_in_a_frame():
    text = compiled()._repr_html_()
    assert text == framed(compiled())
    ((tag, attributes),) = read(text).tags
    assert tag == "iframe"
    assert attributes["srcdoc"] == page(compiled(), graph=False)
    assert html.escape(page(compiled(), graph=False)) in text


def test_reports_need_no_torch():
    code = (
        "import sys; import micronpu.report.views.html, micronpu.report.views.terminal, micronpu.base.files;"
        "print([m for m in ('torch', 'executorch') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=900)
    assert done.stdout == "[]\n"


# --- files --------------------------------------------------------------------------------------------------------


def test_write_replaces_a_file(tmp_path):
    path = tmp_path / "a.bin"
    assert write_file(path, b"old") == path
    write_file(str(path), b"new")
    assert path.read_bytes() == b"new"
    assert [p.name for p in tmp_path.iterdir()] == ["a.bin"]


def test_write_follows_a_link_and_writes_into_a_device(tmp_path):
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write_file(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"new"
    write_file("/dev/null", b"gone")
    assert not Path("/dev/null").is_file()


def test_write_refuses_with_a_sentence(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    for path, sentence in (
        (tmp_path, rf"{tmp_path} cannot be written: it is a folder\. Try: a file in it, {tmp_path}/NAME\."),
        (
            tmp_path / "no" / "a",
            rf"{tmp_path}/no/a cannot be .* {tmp_path}/no does not exist\. Try: mkdir -p {tmp_path}/no",
        ),
        (tmp_path / "file" / "a", rf"{tmp_path}/file is a file, not a folder\. Try: another folder\."),
    ):
        with pytest.raises(FileError, match=sentence):
            write_file(path, b"new")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_session_shows_a_few_lines_of_a_value():
    """Its fields would be thousands of lines: see the classes with `short`."""
    made = (compiled(), recurrent(), Candidates("net", "", ()), Difference("a", "b", ()))
    for value in made:
        lines = repr(value).splitlines()
        assert lines[0] == f"<{type(value).__name__}>" and 2 <= len(lines) <= 15
        assert max(map(len, lines)) <= 160
        assert value._repr_html_().startswith(("<pre", "<iframe"))
    assert "\\x1b[31m" in repr(replace(compiled(), target="odd \x1b[31m"))
    assert "&lt;hand&gt;" in Candidates("<hand>", "", ())._repr_html_()


def test_words_of_a_table_are_explained_where_it_has_them() -> None:
    cost = Cost(100, 100, {}, 64, 0.5)
    operations = [Operation(0, name, name, (1, 8), 10, Origin((name,)), cost) for name in ("conv2d", "table + clamp")]
    verdicts = (Verdict("conv2d.default", Origin(("conv2d",)), 0),)
    for chosen, has_cost in ((operations, True), ([replace(operations[0], cost=None)], False)):
        report = DelegationReport("chip", verdicts, operations=tuple(chosen))
        for text in (printed(report_view(report)), page(report, graph=False)):
            words = " ".join(html.unescape(text).split())
            assert ("MAC utilisation" in words and "looked up" in words) is has_cost


@pytest.mark.parametrize(("width", "is_shown"), [(120, True), (50, False)])
def test_a_column_that_a_narrow_terminal_leaves_out_is_not_explained(width: int, is_shown: bool) -> None:
    operations = (Operation(0, "conv2d", "conv2d", (1, 8), 10, Origin(("conv2d",)), Cost(100, 100, {}, 64, 0.5)),)
    report = DelegationReport("chip", (Verdict("conv2d.default", Origin(("conv2d",)), 0),), operations=operations)
    with (console := Console(width=width)).capture() as capture:
        console.print(report_view(report))
    lines = capture.get().splitlines()
    (head,) = (line for line in lines if line.startswith("NPU operation"))
    assert head.rstrip().count("use") == is_shown
    assert any("use: MAC" in line for line in lines) is is_shown
    said = re.search(r"Left out, as lines are short: (.*)\. COLUMNS=(\d+) ", " ".join(lines))
    assert (said is None) is is_shown
    if said is not None:
        assert "use" in said[1].split(", ") and "Left out" not in printed(report_view(report), int(said[2]))
        assert "Left out" in printed(report_view(report), int(said[2]) - 1)


def test_a_source_of_250_letters_loses_its_beginning_before_a_column_is_omitted() -> None:
    origin = Origin(("conv2d",), f"net.tflite:{'functional_' * 25}relu_7")
    cost = Cost(100, 100, {}, 64, 0.5, clock_mhz=100.0)
    operations = (Operation(0, "conv2d", "conv2d", (1, 8), 10, origin, cost),)
    report = DelegationReport("chip", (Verdict("conv2d.default", origin, 0),), operations=operations)
    with (console := Console(width=120)).capture() as capture:
        console.print(report_view(report))
    lines = capture.get().splitlines()
    head, _, row = lines[next(i for i, line in enumerate(lines) if line.startswith("NPU operation")) :][:3]
    assert all(name in head for name in ("MACs", "cycles", "µs", "bound by", "use", "source"))
    assert row.rstrip().endswith("functional_relu_7") and "…" in row and "Left out" not in capture.get()


def test_what_takes_the_time_is_named_with_what_to_try() -> None:
    verdicts = (Verdict("conv2d.default", Origin(("conv2d",)), 0),)
    cheap, idle, busy = Cost(100, 100, {}, 64, 0.5), Cost(900, 900, {}, 64, 0.02), Cost(900, 900, {}, 64, 0.6)
    for cost, said in ((idle, True), (busy, False)):
        operations = [Operation(0, n, n, (1, 8), 10, Origin((n,), "net.py:7"), cheap) for n in ("conv2d", "add")]
        operations.append(Operation(0, "resize", "resize", (1, 8), 10, Origin(("up",), "net.py:9"), cost))
        report = DelegationReport("chip", verdicts, operations=tuple(operations))
        text = " ".join(printed(report_view(report)).split())
        assert ("What to do next: 1. `resize` takes 82 % of the NPU's cycles, with 2 % of the" in text) is said
        assert ("micronpu advise" in text) is said
        shown = page(report, graph=True)
        assert "Time by operation" in shown and shown.index(">resize<") < shown.index(">add<")


def test_equal_reasons_are_one_entry_and_next_steps_are_sorted() -> None:
    """Seven operators with one reason are one entry that names a file once; what saves most comes first."""
    reason = Reason("rule", "In a table.", "silu", "silu", hint="Hardswish")
    lines = (15, 16, 26, 27, 28, 29, 30)
    left = [Verdict("silu.default", Origin((f"s{i}",), f"net.py:{i}"), None, (reason,), shape=(1, i)) for i in lines]
    made = (*(Verdict("conv2d.default", Origin((f"c{i}",)), 0, macs=9) for i in range(7)), *left)
    report = DelegationReport("chip", made, latency=(Latency("NPU", 1000, 1.0, 0.5, 2.0, "a model"),))
    said = " ".join(printed(report).split())
    assert "silu.default x 7 net.py:15, :16, :26, :27, :28, :29, :30 Rule:" in said and said.count("Rule:") == 1
    step = "silu.default x 7 on the core (net.py:15, :16, :26, :27, :28, :29, :30). Try: Hardswish."
    assert report.next_steps == (step,)
    for time, places in ((0.3, (0, 1)), (0.7, (1, 0))):
        priced = replace(report, resident=ResidentPrice(time, 84_000))
        how = '--weights sram, `weights="sram"` of the options'
        weights = f"Keep the weights in SRAM ({how}): {100 * (1 - time):.0f} % less time"
        assert priced.next_steps[places[1]] == step and priced.next_steps[places[0]].startswith(weights)
    assert priced.to_dict()["next_steps"] == list(priced.next_steps)


def test_the_first_lines_are_time_flash_sram_accuracy_and_operators() -> None:
    """In the terminal, on the page and as the first keys of the JSON."""
    regions = (
        Region("mram", "flash", (Item("NPU code", 1_000), Item("weights and biases", 9_000)), 20_000),
        Region("sram", "sram", (Item("planned memory 1", 3_000),), 2_000),
    )
    exact = Comparison(40, 30.0, 0.1, 0.1, 38, (28.0, 32.0))
    report = replace(
        compiled(),
        memory=(memory := MemoryReport(regions, (), (3_000,), 0, 0)),
        warnings=memory.too_small,
        accuracy=ProgramAccuracy(tuple(range(40)), 200, True, (OutputAccuracy(0, exact),)),
        latency=tuple(Latency(name, ticks, 1.0, 0.5, 2.0, "a model") for name, ticks in (("NPU", 480), ("core", 990))),
        missing={"time of the host": "1 operator in float", "energy": "not published"},
    )
    lines = (
        "Time: 1.47 ms a call, estimated (0.73 to 2.94), without the time of the host: 1 operator in float",
        "Flash: 10,000 bytes, 50.0 % of mram in use",
        "SRAM: 3,000 bytes, 1,000 more than sram has",
        "Accuracy: 30.0 dB (28.0 to 32.0) against float, top-1 agrees on 38 of 40, on 40 held-out samples",
        "Operators: 3 of 5 on the NPU of chip-npu in 2 partitions",
    )
    assert report.headline.lines == lines
    for agreement, why in (
        (None, "the program was not run"),
        (Agreement(reason="no compiler"), "no compiler"),
        (Agreement(1, 1, 1.0), "there is no float model"),
    ):
        unknown = replace(report, accuracy=None, agreement=agreement).headline.lines
        assert unknown == (*lines[:3], f"Accuracy: not measured, because {why}", lines[4])
    shown = [line.rstrip() for line in printed(report).splitlines()]
    assert tuple(shown[:5]) == lines
    assert any("sram: too small by 1,000 bytes; most of it is planned memory 1, 3,000." in line for line in shown)
    assert "Energy" not in printed(report) and "Energy: not published." in printed(report_view(report, every=True))
    reported = report.to_dict()
    assert list(reported)[:4] == ["format", "version", "headline", "next_steps"]
    assert reported["headline"]["milliseconds"] == pytest.approx(1.47) and reported["headline"]["in_place"] == 3
    text = " ".join(" ".join(read(page(report, graph=False)).texts).split())
    assert "Time 1.47 ms a call, estimated (0.73 to 2.94)" in text and text.index("1.47 ms") < text.index(
        "What to do next"
    )


def test_precision_gives_the_setting_of_the_best_program_once():
    points = (Point("int8", 17.4, 2.47, is_chosen=True), Point("int16", 43.9, 3.78, hint='quantization="int16"'))
    (warning,) = Frontier(points, 32).warnings
    assert warning.what.endswith("int8 17.4 dB, 2.47 ms (this program) \N{MIDDLE DOT} int16 43.9 dB, 3.78 ms.")
    assert warning.hint == 'quantization="int16"'
    (warning,) = Frontier(points[:1], 32).warnings
    assert warning.what.endswith("int8 17.4 dB, 2.47 ms (this program).") and "micronpu.fix" in warning.hint


def test_what_the_cycles_wait_for() -> None:
    def spent(*costs: tuple[int, int, int]) -> list[Operation]:
        """Operations by cycles, cycles of arithmetic, and cycles of the start; the rest is a memory's."""
        made = [Cost(c, a, {"flash": c - a - s}, 0, 0.5, start_cycles=s) for c, a, s in costs]
        return [Operation(0, f"op{i}", "", (1,), 1, Origin(), cost=cost) for i, cost in enumerate(made)]

    def step(*costs: tuple[int, int, int]) -> str:
        report = replace(compiled(), operations=tuple(spent(*costs)), warnings=(), resident=None)
        return next((one for one in report.next_steps if "of the NPU's cycles" in one), "")

    assert not step() and not step((9, 8, 1))
    assert step((60, 5, 50), (40, 30, 5)).startswith("60 % of the NPU's cycles are in operations bound by their start.")
    assert not step((40, 5, 30), (60, 30, 5))  # less than half


@pytest.mark.parametrize(("zero", "text"), [(3, "0.5 * (q - 3)"), (-128, "0.5 * (q + 128)"), (0, "0.5 * (q - 0)")])
def test_numbers_of_integers(zero: int, text: str) -> None:
    assert affine(0.5, zero) == text
