"""Limits that a program has to keep, for continuous integration: time, memory, accuracy."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from micronpu.base.errors import BudgetError, OptionError

if TYPE_CHECKING:
    from micronpu.report.delegation import DelegationReport


@dataclass(frozen=True)
class BudgetResult:
    """A budget and what the program takes of it.

    Attributes:
        name: such as "max_ms".
        limit: what was asked for.
        value: of the program.
        met: whether it keeps the limit.
    """

    name: str
    limit: float
    value: float
    met: bool

    def __str__(self) -> str:
        """``max_ms is 5, and the program takes 6.31``."""
        return f"{self.name} is {_number(self.limit)}, and the program has {_number(self.value)}"


@dataclass(frozen=True, kw_only=True)
class Budgets:
    """What a program may take at most, and must reach at least; None for no limit.

    Attributes:
        max_ms: milliseconds of a call, all processors together, as the report estimates them: the estimate itself, not
            an end of its band.
        max_sram: bytes of SRAM, with the pools of the runtime and without the firmware's own data.
        max_flash: bytes of the program's file.
        min_sqnr: signal-to-noise ratio against the float model in dB, of the worst output.

    Raises:
        OptionError: a limit is no positive number.
    """

    max_ms: float | None = None
    max_sram: int | None = None
    max_flash: int | None = None
    min_sqnr: float | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None:
                continue
            good = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < math.inf
            if not good or (field.name in ("max_sram", "max_flash") and int(value) != value):
                what = "a number of bytes" if field.name in ("max_sram", "max_flash") else "a positive number"
                raise OptionError(f"The budget {field.name} is {value!r}; it is {what}.", hint=f"{field.name}=100")

    def results(self, report: DelegationReport) -> tuple[BudgetResult, ...]:
        """Each budget that is set beside the program's figure.

        Raises:
            OptionError: a budget is on a figure that the report does not have.
        """
        return tuple(
            result(field.name, limit, _figure(field.name, report))
            for field in fields(self)
            if (limit := getattr(self, field.name)) is not None
        )


def result(name: str, limit: float, value: float) -> BudgetResult:
    """A budget beside a figure; its name says whether it is a maximum or a minimum."""
    return BudgetResult(name, limit, value, value <= limit if name.startswith("max_") else value >= limit)


def check_budgets(results: tuple[BudgetResult, ...]) -> None:
    """Refuses a program that misses a budget.

    Raises:
        BudgetError: says which, and by how much.
    """
    missed = [str(r) for r in results if not r.met]
    if missed:
        raise BudgetError(
            f"The program misses {'a budget' if len(missed) == 1 else f'{len(missed)} budgets'}: {'; '.join(missed)}.",
            hint="the report, which says what takes the most, or another limit",
        )


def _figure(name: str, report: DelegationReport) -> float:
    lacking = next((f"{what}: {why}" for what, why in report.missing.items() if what.startswith("time")), "")
    if name == "max_ms":
        if lacking or not report.latency:
            raise _none(name, lacking or "no processor has a model of its time", "a target with a figure of its time")
        return sum(t.milliseconds for t in report.latency)
    if name == "min_sqnr":
        value = report.accuracy.sqnr if report.accuracy is not None else None
        if value is None:
            raise _none(name, "the program was not compared with a float model", "a float model, and verify=True")
        return value
    if report.memory is None:
        raise _none(name, "nothing was compiled", "a budget of `compile`")
    return report.memory.sram if name == "max_sram" else report.memory.flash


def _none(name: str, why: str, hint: str) -> OptionError:
    return OptionError(f"The budget {name} is on a figure that there is none of ({why}).", hint=hint)


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
