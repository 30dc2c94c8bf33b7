"""What the reports of `tries.py` say to try is tried as it is written: it runs, and does what it says.

A fragment of code that no entry of `FRAGMENTS` understands is a failure, and one that Python or a command refuses, too.
"""

from __future__ import annotations

import ast
import inspect
import re
import warnings
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import torch
from tests.compile.compiler.tries import TOLD
from typer.main import get_command

import micronpu
from micronpu.cli.main import app
from micronpu.targets.registry import find_target, options_for

CODE = re.compile(r"\b\w+=|\w\(|--\w|`micronpu|\btorch\.\w")
"""What looks like code in a text."""
COMMANDS = get_command(app).commands  # type: ignore[attr-defined]


@cache
def compiled(name: str, options: Any = None, **given: Any) -> micronpu.CompiledProgram:
    told = TOLD[name]
    model, data = made(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", micronpu.AccuracyWarning)
        given = {"quantization": told.quantization} | {key: evaluated(text) for key, text in given.items()}
        return micronpu.compile(model, data[0], told.target, calibration=data, options=options, **given)


@cache
def made(name: str) -> tuple[torch.nn.Module, list[torch.Tensor]]:
    torch.manual_seed(0)
    model, data = TOLD[name].make()
    return model.eval(), data


def evaluated(text: str) -> Any:
    return eval(text, {"Quantization": micronpu.Quantization})


def hints(name: str) -> Iterator[str]:
    """Return the parts of a report that say what to try."""
    report = compiled(name).report
    yield from report.next_steps
    yield from (reason.hint for verdict in report.host for reason in verdict.reasons)
    yield from (remark for remark in report.all_remarks if remark.startswith("Precision: "))


def keyword(text: str) -> tuple[str, str] | None:
    """Return name, source and end of the longest keyword argument at the beginning of a text."""
    for end in range(len(text), 0, -1):
        try:
            call = ast.parse(f"f({text[:end]})", mode="eval").body
        except SyntaxError:
            continue
        if isinstance(call, ast.Call) and len(call.keywords) == 1 and not call.args and call.keywords[0].arg:
            return text[:end], ast.unparse(call.keywords[0].value)
    return None


def call_of_python(name: str, text: str) -> None:
    """`micronpu.blame(model, data, target)`."""
    model, data = made(name)
    function = getattr(micronpu, text.partition("(")[0].removeprefix("micronpu."))
    arguments = (model, data, TOLD[name].target)
    inspect.signature(function).bind(*arguments)
    if function is micronpu.blame:
        function(*arguments)


def options_of_python(name: str, text: str) -> None:
    """`weights="sram"` of the options costs and saves what is said."""
    before = compiled(name).report
    argument = ast.literal_eval(text.partition("`")[0].partition("=")[2])
    after = compiled(name, micronpu.EthosUOptions("ethos-u55-128", weights=argument)).report
    (said,) = (step for step in before.next_steps if text in step)
    saved, more = re.search(r"(\d+) % less time for about ([\d,]+) bytes more", said).groups()  # type: ignore[union-attr]
    assert after.headline.milliseconds and before.headline.milliseconds and before.headline.sram
    assert 1 - after.headline.milliseconds / before.headline.milliseconds == pytest.approx(int(saved) / 100, abs=0.06)
    assert after.headline.sram - before.headline.sram == pytest.approx(int(more.replace(",", "")), rel=0.2, abs=4096)


def option_of_the_command(name: str, text: str) -> None:
    """`--weights sram`."""
    flag, value = text.split()
    if flag not in {opt for p in COMMANDS["compile"].params for opt in p.opts}:  # else of the target
        options_for(find_target(TOLD[name].target), given={flag.strip("-").replace("-", "_"): value})


def command(name: str, text: str) -> None:
    assert text.split()[-1].strip("`,") in COMMANDS, text


def name_of_torch(name: str, text: str) -> None:
    assert eval(text, {"torch": torch}) is not None


FRAGMENTS = (
    (re.compile(r"micronpu\.\w+\(model, data, target\)"), call_of_python),
    (re.compile(r'weights="\w+"` of the options'), options_of_python),
    (re.compile(r"--[a-z-]+ [\w.\"]+"), option_of_the_command),
    (re.compile(r"`micronpu \w+"), command),
    (re.compile(r"\btorch\.[\w.]*\w"), name_of_torch),
)


@pytest.mark.sweep
@pytest.mark.parametrize("name", TOLD)
def test_what_a_report_says_to_try_runs(name: str) -> None:
    report = compiled(name).report
    assert {w.rule for w in report.warnings} >= {*TOLD[name].rules}
    tried = []
    for text in dict.fromkeys(hints(name)):
        rest = text.partition("Try: ")[2] or text
        while (found := re.search(r"\bquantization=", rest)) is not None:
            argument = keyword(rest[found.start() :])
            assert argument is not None, rest
            after = compiled(name, quantization=argument[1]).report
            _check_figures(rest[: found.start()], after)
            rest = rest.replace(argument[0], "")
            tried.append(argument[0])
        for pattern, action in FRAGMENTS:
            for fragment in pattern.findall(rest):
                action(name, fragment)
                tried.append(fragment)
            rest = pattern.sub("", rest)
        assert CODE.search(rest) is None, f"no test tries this: {rest}"
    assert tried or name in ("scaled", "features"), "their hints are words"


def _check_figures(before: str, after: micronpu.DelegationReport) -> None:
    """The figures in front of an argument, `int16 76.5 dB, 0.181 ms: quantization=...`, are the program's."""
    said = re.search(r"([\d.]+) dB, ([\d.]+) ms: $", before)
    if said is not None and after.accuracy is not None and after.accuracy.outputs[0].float_model is not None:
        assert after.headline.milliseconds == pytest.approx(float(said[2]), rel=0.1)
        assert after.accuracy.outputs[0].float_model.sqnr == pytest.approx(float(said[1]), abs=6)


def test_every_reason_to_warn_is_among_them() -> None:
    rules = {warning.rule for name in TOLD for warning in compiled(name).report.warnings}
    assert rules >= {"far-from-float", "precision", "unequal-parts", "unlike-features", "uninformative-data"}
