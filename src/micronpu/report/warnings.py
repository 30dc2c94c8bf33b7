"""Warnings about a program, and its value for each budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from micronpu.base.arguments import check_switch
from micronpu.base.errors import BudgetError, OptionError

WARNING, NOTE = "warning", "note"
"""Levels: the program is usually useless; the finding deserves a look."""


NO_KERNEL = "no-kernel"
"""Rule of the warning that a non-delegated operator has no kernel."""


NOT_VERIFIED = "not-verified"
"""Rule of the warning that this machine has not run the program: a tool is missing, or the program cannot run here."""


NOTHING_DELEGATED = "nothing-delegated"
"""Rule of the warning that the target has an NPU, and the program does not use it."""
PRODUCTS_ON_CORE = "products-on-core"
"""Rule of the warning that the target has an NPU, and the core computes products in float."""


DOES_NOT_FIT = "does-not-fit"
"""Rule of the warning that a memory of the chip is too small."""
NO_SILICON = "no-silicon"
"""Rule of the warning that programs for the target run on this machine alone."""
UNLIKE_MODULE = "unlike-module"
"""Rule of the warning that the exported program computes something else than the module."""


class AccuracyWarning(UserWarning):
    """A program is far from its float model; raised through Python's `warnings`."""


@dataclass(frozen=True)
class ReportWarning:
    """A finding about a program.

    Attributes:
        level: "warning" if the program is usually useless, "note" if the finding deserves a look.
        rule: its kind: "far-from-float", "avoidable-noise", "fresh-weights", "other-answers", "not-finite",
            "unequal-parts", "small-part", "precision", "int8-power", "unlike-features", "one-row",
            "uninformative-data", "undecided-budget", "no-kernel", "not-verified", "nothing-delegated",
            "does-not-fit", "no-silicon", "unlike-module" or "products-on-core"; see docs/accuracy.md.
        what: the finding, a sentence or two.
        hint: what to try, as a clause.
        output: index of its output; None if it is not about a single one.
        node: the operator that costs most, by its name in the exported program; "" if it is not about a single one.
        operator: kind of that operator, such as "log".
        module: path of its module in the model.
        source: the user's file and line.
        sqnr: signal-to-noise ratio against the float model in dB; None if it is not about noise.
        agreement: top-1 agreement with the float model, 0 to 1; None if the output is no vector of scores.
    """

    level: str
    rule: str
    what: str
    hint: str
    output: int | None = None
    node: str = ""
    operator: str = ""
    module: str = ""
    source: str = ""
    sqnr: float | None = None
    agreement: float | None = None

    @property
    def is_severe(self) -> bool:
        """True for a severe finding."""
        return self.level == WARNING

    def __str__(self) -> str:
        return f"{self.what} Try: {self.hint}."


def check_runs(warnings: Sequence[ReportWarning]) -> None:
    """Refuse a program that cannot run.

    Raises:
        BudgetError: names the first operator without a kernel, and the number of others.
    """
    _refuse([warning for warning in warnings if warning.rule == NO_KERNEL])


def _refuse(warnings: Sequence[ReportWarning]) -> None:
    if warnings:
        more = f" ({len(warnings) - 1} more of the kind in the report.)" if len(warnings) > 1 else ""
        raise BudgetError(warnings[0].what + more, hint=warnings[0].hint)


def check_strict_use(strict: object, verify: bool, *, named: Callable[[str], str] = str) -> None:
    """Refuse ``strict`` without verification, which would find no warnings.

    Args:
        named: returns the user's name of a switch that is off: ``verify=False``.
    """
    check_switch("strict", strict)
    if strict and not verify:
        raise OptionError(
            f"{named('strict=True')} makes errors of warnings, and with {named('verify=False')} the program is not "
            "compared with the float model, so that there would be none.",
            hint="one of the two",
        )


def check_strict(warnings: Sequence[ReportWarning]) -> None:
    """Refuse a program with a severe warning; notes are accepted.

    Raises:
        BudgetError: quotes the first one, and their number.
    """
    _refuse([warning for warning in warnings if warning.is_severe])


@dataclass(frozen=True)
class BudgetResult:
    """A budget and the program's value.

    Attributes:
        name: such as "max_ms".
        limit: the budget.
        value: of the program.
        met: True if the limit holds: for its interval, or for its value if the limit is within the interval.
        interval: 95 % confidence interval of a value that is measured on samples; None for other values.
    """

    name: str
    limit: float
    value: float
    met: bool
    interval: tuple[float, float] | None = None

    @property
    def sure(self) -> bool:
        """True if the interval does not contain the limit, so that other samples hardly change the result."""
        return self.interval is None or not self.interval[0] < self.limit <= self.interval[1]

    def __str__(self) -> str:
        """``max_ms is 5, and the program has 6.31``."""
        return self.said(self.name)

    def said(self, name: str) -> str:
        """Return the text with the name under which the user set the budget."""
        within = "" if self.interval is None else f" (95 % interval {self.interval[0]:.4g} to {self.interval[1]:.4g})"
        return f"{name} is {_number(self.limit)}, and the program has {_number(self.value)}{within}"


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
