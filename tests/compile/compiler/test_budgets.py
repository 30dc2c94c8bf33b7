"""Budgets: kept in silence, missed with a sentence and an exit code of their own."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.compile.compiler.test_figures import compiled
from tests.compile.small import batches, linear
from typer.testing import CliRunner

import micronpu
from micronpu.base.errors import BudgetError, OptionError
from micronpu.cli.main import app
from micronpu.report.accuracy import Comparison, OutputAccuracy, ProgramAccuracy
from micronpu.report.budgets import Budgets, check_budgets
from micronpu.report.delegation import DelegationReport


def report() -> DelegationReport:
    exact = Comparison(2, 30.0, 0.1, 0.1)
    accuracy = ProgramAccuracy((0, 8), 16, True, (OutputAccuracy(0, exact, exact),))
    return replace(compiled("imxrt700").report, accuracy=accuracy)


def test_kept_and_missed():
    made = report()
    figures = {
        "max_ms": sum(t.milliseconds for t in made.latency),
        "max_sram": made.memory.sram,
        "max_flash": made.memory.flash,
        "min_sqnr": 30.0,
    }
    results = Budgets(**figures).results(made)
    assert {r.name: r.value for r in results} == figures and all(r.met for r in results)
    check_budgets(results, made)
    for name, value in figures.items():
        worse = type(value)(value + 1 if name.startswith("min_") else value - value / 10)
        tries = "fix" if name.startswith("min_") else "advise"
        says = f"The program misses a budget: {name} is .*, and the program has .* Try: `micronpu {tries}`"
        with pytest.raises(BudgetError, match=says):
            check_budgets(Budgets(**(figures | {name: worse})).results(made), made)
    says = r"misses 2 budgets: max_sram is 1, .*; max_flash is 2, .*; most of it is \w.*, [\d,]+\. Try: `micronpu adv"
    with pytest.raises(BudgetError, match=says):
        check_budgets(Budgets(max_sram=1, max_flash=2).results(made), made)


@pytest.mark.parametrize(
    ("budget", "target", "why"),
    [
        ({"max_ms": 1}, "cortex-m55", "cycles estimated, and a core without a chip has no clock; as the target"),
        ({"min_sqnr": 1}, "cortex-m55", "the program was not compared with a float model"),
    ],
)
def test_a_budget_on_a_figure_that_there_is_none_of(budget, target, why):
    with pytest.raises(OptionError) as caught:
        Budgets(**budget).results(compiled(target).report)
    assert why in str(caught.value) and "has no figure to compare with" in str(caught.value)


def test_before_compilation_there_is_no_memory():
    with pytest.raises(OptionError, match=r"max_sram has no figure to compare with: nothing was compiled"):
        Budgets(max_sram=1).results(DelegationReport("chip", ()))


@pytest.mark.parametrize("wrong", [{"max_ms": 0}, {"max_sram": 1.5}, {"min_sqnr": "30"}, {"max_flash": True}])
def test_limits_that_are_none(wrong):
    (name,) = wrong
    with pytest.raises(OptionError, match=f"The budget {name} is "):
        Budgets(**wrong)


FILE = """
import torch
from torch import nn

def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 4), nn.ReLU()).eval(), (torch.randn(1, 8),)

def calibration():
    torch.manual_seed(1)
    return [torch.randn(1, 8) for _ in range(16)]
"""


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.py").write_text(FILE)
    rows = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)
    np.save("x.npy", rows)
    np.save("y.npy", np.zeros(8, np.int64))
    return tmp_path


def run(*options: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["compile", "m.py:net", "-t", "imxrt700", "-o", "n.pte", *options])
    return done.exit_code, " ".join((done.output + done.stderr).split())


def test_the_command_keeps_budgets(folder):
    labelled = ("--data", "x.npy", "--labels", "y.npy")
    code, said = run("--budget", "ms=100,sram=1M", "--budget", "flash=64K,sqnr=5", "--report-json", "r.json")
    assert code == 0 and (folder / "n.pte").exists(), said
    budgets = DelegationReport.load("r.json").budgets
    assert [b.name for b in budgets] == ["max_ms", "max_sram", "max_flash", "min_sqnr"]
    assert all(b.met for b in budgets) and budgets[1].limit == 1 << 20
    (folder / "n.pte").unlink()
    code, said = run("--budget", "sram=10,accuracy=1.01", *labelled, "--report-json", "r.json")
    assert code == 3 and "misses 2 budgets: --budget sram is 10, and the program has" in said, said
    assert not (folder / "n.pte").exists()
    missed = {b["name"]: b["met"] for b in json.loads((folder / "r.json").read_text())["budgets"]}
    assert missed == {"max_sram": False, "min_accuracy": False}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--budget", "sram=lots"), "--budget sram is 'lots'; it is a number of bytes. Try: --budget sram=256K"),
        (("--budget", "flash=1.3"), "--budget flash is '1.3'; it is a number of bytes."),
        (("--budget", "ms=-1"), "--budget ms is -1; it is a positive number. Try: --budget ms=100"),
        (("--budget", "ms=soon"), "--budget ms is 'soon'; it is a positive number."),
        (("--budget", "5"), "There is no budget '5'. Try: --budget NAME=LIMIT,... of ms, sram, flash, sqnr, top1, acc"),
        (("--budget", "accuracy=0.9"), "--budget accuracy needs labelled samples. Try: --data DATA --labels FILE"),
        (("--labels", "y.npy"), "--labels is given without --data."),
        (("--data", "x.npy", "--labels", "x.npy"), "The labels are float32"),
    ],
)
def test_the_command_refuses(folder, options, sentence):
    code, said = run(*options)
    assert code == 1 and sentence in said


def test_the_command_judges_on_data_of_the_user(folder):
    Path("m.py").write_text(FILE + "\n\ndef near(outputs, labels):\n    return 1.0 - abs(outputs - labels).mean()\n")
    judged = ("--data", "x.npy", "--report-json", "r.json")
    code, said = run(*judged, "--metric", "m.py:near")
    assert code == 0 and "Accuracy on 8 held-out samples: near 0.9" in said, said
    code, said = run(*judged, "--labels", "y.npy")
    metric = DelegationReport.load("r.json").accuracy.metric
    assert code == 0 and metric.labelled and metric.missing == (1, 2, 3), said


def test_labels_that_do_not_fit_are_refused_before_the_work(folder, monkeypatch):
    def quantized(*_):
        raise AssertionError("The model is quantized before its labels are checked.")

    monkeypatch.setattr("micronpu.compiler.quantized._calibrated", quantized)
    code, said = run("--data", "x.npy", "--labels", "y.npy", "--metric", "iou")
    assert code == 1 and "The output has shape [8, 4], and" in said


def test_budgets_in_python():
    model, data = linear().eval(), batches((torch.zeros(1, 8),), 16)
    with pytest.raises(BudgetError, match="max_flash is 100, and the program has"):
        micronpu.compile(model, data[0], "imxrt700", calibration=data, verify=Budgets(max_flash=100))
