"""Budgets for continuous integration: time, memory, accuracy."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from micronpu.base.errors import BudgetError, OptionError
from micronpu.base.texts import plural
from micronpu.report.accuracy import ProgramAccuracy
from micronpu.report.delegation import DelegationReport
from micronpu.report.warnings import NOTE, BudgetResult, ReportWarning

Named = Callable[[str], str]


@dataclass(frozen=True, kw_only=True)
class Budgets:
    """Limits of a program; None for no limit.

    Attributes:
        max_ms: milliseconds of a call, all processors together, as the report estimates them: the estimate itself, not
            an end of its band.
        max_sram: bytes of SRAM, with the pools of the runtime and without the firmware's own data.
        max_flash: bytes of the program's file.
        min_sqnr: signal-to-noise ratio against the float model in dB, of the worst output or part of one.
        min_agreement: share of the samples with the float model's top-1 result, or of equal integers, 0 to 1; of the
            worst output.  If the 95 % interval of one of these two contains the limit, a note warns that other samples
            may decide otherwise, and ``strict`` refuses the program.

    Raises:
        OptionError: a limit is no positive number.
    """

    max_ms: float | None = None
    max_sram: int | None = None
    max_flash: int | None = None
    min_sqnr: float | None = None
    min_agreement: float | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            check_limit(field.name, getattr(self, field.name), f"The budget {field.name}", f"{field.name}=100")

    def results(self, report: DelegationReport, named: Named = str) -> tuple[BudgetResult, ...]:
        """Return each budget that is set with the program's value.

        Args:
            named: returns the name under which the user set a budget.

        Raises:
            OptionError: the report has no value for a budget.
        """
        return tuple(
            result(field.name, limit, *_figure(field.name, report, named(field.name)))
            for field in fields(self)
            if (limit := getattr(self, field.name)) is not None
        )


def check_limit(name: str, value: Any, called: str, hint: str) -> None:
    """Refuse an invalid limit of a budget; None is no limit."""
    if value is None:
        return
    is_bytes = name in ("max_sram", "max_flash")
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < math.inf
    if not good or (is_bytes and value != math.floor(value)):
        what = "a number of bytes" if is_bytes else "a positive number"
        raise OptionError(f"{called} is {value!r}; it is {what}.", hint=hint)
    if name == "min_agreement" and value > 1:
        raise OptionError(f"{called} is {value!r}; it is a share, of at most 1.", hint=hint.replace("100", "0.95"))


def result(name: str, limit: float, value: float, interval: tuple[float, float] | None = None) -> BudgetResult:
    """Return a budget with a value; its name starts with "max_" or "min_"."""
    return BudgetResult(name, limit, value, value <= limit if name.startswith("max_") else value >= limit, interval)


def check_budgets(
    results: tuple[BudgetResult, ...], report: DelegationReport, named: Named = str, *, strict: bool = False
) -> None:
    """Refuse a program that misses a budget.

    Args:
        named: returns the name under which the user set a budget.
        strict: also refuse a program that may miss a budget on other samples.

    Raises:
        BudgetError: lists the missed budgets and the program's values.
    """
    missed = [r.said(named(r.name)) for r in results if not r.met]
    if missed:
        what = f"The program misses {plural(len(missed), 'budget') if missed[1:] else 'a budget'}: {'; '.join(missed)}"
        if report.memory is not None and any(r.name == "max_sram" and not r.met for r in results):
            regions = (region for region in report.memory.regions if region.kind == "sram")
            what += f"; {max(regions, key=lambda region: region.bytes).largest}"
        sizes = any(r.name in ("max_ms", "max_sram", "max_flash") and not r.met for r in results)
        tries = "`micronpu advise`, which compiles alternatives" if sizes else "`micronpu fix`, which tries settings"
        raise BudgetError(f"{what}.", hint=f"{tries}, or another limit")
    for warning in undecided(results, named) if strict else ():
        raise BudgetError(warning.what, hint=warning.hint)


def undecided(results: tuple[BudgetResult, ...], named: Named = str) -> tuple[ReportWarning, ...]:
    """Return a note for each budget that is met, but may be missed on other samples."""
    return tuple(
        ReportWarning(
            NOTE,
            "undecided-budget",
            f"The budget {r.said(named(r.name))}: on other samples it may be missed.",
            "more held-out samples, which make the interval narrower",
        )
        for r in results
        if r.met and not r.sure
    )


def _figure(name: str, report: DelegationReport, called: str) -> tuple[float, tuple[float, float] | None]:
    """Return the program's value, with its interval if it is measured on samples."""
    lacking = next((f"{what}: {why}" for what, why in report.missing.items() if what.startswith("time")), "")
    if name == "max_ms":
        if lacking or not report.latency:
            raise _none(called, lacking or "no processor has a model of its time", "a target with a figure of its time")
        return sum(t.milliseconds for t in report.latency), None
    if name in ("min_sqnr", "min_agreement"):
        return _accuracy(name, report.accuracy, called)
    if report.memory is None:
        raise _none(called, "nothing was compiled", "a budget of `compile`")
    return report.memory.sram if name == "max_sram" else report.memory.flash, None


def _accuracy(name: str, accuracy: ProgramAccuracy | None, called: str) -> tuple[float, tuple[float, float] | None]:
    figure = None if accuracy is None else accuracy.sqnr if name == "min_sqnr" else accuracy.agreement
    if accuracy is None or figure is None:
        if name == "min_sqnr":
            raise _none(called, "the program was not compared with a float model", "a float model, and verify=True")
        why = "no output is a vector of scores or of integers that was compared with a float model"
        raise _none(called, why, "a float classifier, and verify=True")
    if accuracy.is_single:
        raise _none(called, "one sample is no verdict", "16 calibration samples or more, or held-out data")
    return figure, accuracy.sqnr_interval if name == "min_sqnr" else accuracy.agreement_interval


def _none(called: str, why: str, hint: str) -> OptionError:
    return OptionError(f"{called} has no figure to compare with: {why}.", hint=hint)
