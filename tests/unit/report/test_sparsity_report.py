"""The report about sparse weights as a value: points, front, JSON, picture, table."""

from __future__ import annotations

import io
import json
import xml.etree.ElementTree as ET
from dataclasses import replace

from rich.console import Console

from micronpu.report.delegation import DelegationReport
from micronpu.report.sparsity import SparseLayer, SparsePoint, SparsityReport

POINTS = (
    SparsePoint((), 1000, 500, 0.99, 0.01),
    SparsePoint(("a",), 800, 450, 0.95, 0.05, ("fit_ranges", "bias_correction")),
    SparsePoint(("a", "b"), 900, 440, 0.94, 0.06),
    SparsePoint(("a", "b", "c"), 600, 400, 0.9, 0.1),
)
REPORT = SparsityReport(
    "ethos-u85-256",
    "2:4",
    (
        SparseLayer("a", "model.py:7", (8, 8, 3, 3), True, 300, 150, 0.02, cycles=155),
        SparseLayer(
            "d", "", (8, 1, 3, 3), False, 40, why="a depthwise convolution has no sum over channels", cycles=40
        ),
    ),
    POINTS,
    1,
    40,
    ("A <note>.",),
)


def test_the_front_leaves_out_what_another_point_beats() -> None:
    assert REPORT.front == (0, 1, 3)
    assert REPORT.point is POINTS[1]


def test_figures_are_the_same_in_text_json_and_table() -> None:
    found = json.loads(REPORT.to_json())
    assert found["front"] == [0, 1, 3] and found["points"][1]["cycles"] == 800
    assert found["layers"][0]["cycles_sparse"] == 150
    out = io.StringIO()
    Console(file=out, width=160).print(REPORT)
    for printed in (str(REPORT), out.getvalue()):
        text = " ".join(printed.split())
        assert "1,000 -> 800 cycles (0.80)" in text and " 155 " in text and "bias_correction" in text
        assert "a depthwise convolution has no sum over channels" in text and "A <note>." in text
    assert "1 of 2 layers are 2:4 sparse" in REPORT.summary()
    assert REPORT.summary().endswith("held-out inputs, quantized with fit_ranges, bias_correction.")


def test_a_target_without_estimates_has_no_cycles() -> None:
    none = replace(REPORT, points=(SparsePoint((), 0, 0, 0.9, 0.1),), chosen=0)
    assert none.summary() == "1 of 2 layers are 2:4 sparse."
    ET.fromstring(none.to_svg())


def test_the_picture_holds_every_point_and_marks_the_chosen_one() -> None:
    root = ET.fromstring(REPORT.to_svg())
    rings = [c for c in root.iter("{http://www.w3.org/2000/svg}circle")]
    assert sum(c.get("fill") != "none" for c in rings) == len(POINTS)
    (chosen,) = (c for c in rings if c.get("fill") == "none")
    assert any(c.get("cx") == chosen.get("cx") and c.get("cy") == chosen.get("cy") for c in rings if c is not chosen)


def test_the_report_of_a_program_carries_it() -> None:
    report = DelegationReport("ethos-u85-256", (), ("last",), sparsity=REPORT)
    assert report.remarks == (REPORT.summary(), "A <note>.", "last")
    assert json.loads(report.to_json())["sparsity"]["chosen"] == 1
