"""The examples of one file each, run as they stand, and the list of all."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLES = Path(__file__).parents[3] / "examples"


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_list_names_every_example_and_no_other() -> None:
    listed = re.findall(r"^\| \[([\w.]+)\]\(([\w.]+)\)", (EXAMPLES / "README.md").read_text(), re.MULTILINE)
    there = {p.name for p in EXAMPLES.iterdir() if p.suffix == ".py" or any(p.glob("*.py"))}
    assert {name for name, _ in listed} == {link for _, link in listed} == there
    for path in EXAMPLES.glob("*.py"):
        assert len(path.read_text().splitlines()) < 80, path


@pytest.mark.slow
def test_anomaly_score(capsys: pytest.CaptureFixture[str]) -> None:
    in_float, in_int8 = example("anomaly_score").main(["--target", "ethos-u55-128"])
    assert in_float > 0.85, "the network has learnt what the machine sounds like"
    assert abs(in_int8 - in_float) < 0.03
    printed = capsys.readouterr().out
    assert f"AUC float  {in_float:.3f}" in printed and f"AUC int8   {in_int8:.3f}" in printed


@pytest.mark.slow
def test_blame_and_fix(capsys: pytest.CaptureFixture[str]) -> None:
    before, after = example("blame_and_fix").main(["--rows", "24", "--seconds", "600"])
    assert after > before + 5.0, "equalization makes the channels even again"
    printed = capsys.readouterr().out
    assert "Try: " in printed and "22 of 22 operators on the NPU" in printed


@pytest.mark.slow
def test_choose_a_chip(capsys: pytest.CaptureFixture[str]) -> None:
    module = example("choose_a_chip")
    assert module.main(["imxrt700", "himax-we2"]) == "imxrt700", "less SRAM"
    assert "himax-we2" in capsys.readouterr().out
