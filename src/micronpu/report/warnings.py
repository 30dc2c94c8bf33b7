"""What a user should know before a program is used: what, where, how far, and what to try."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from micronpu.base.arguments import check_switch
from micronpu.base.errors import BudgetError, OptionError

WARNING, NOTE = "warning", "note"
"""Levels: what makes a program useless as a rule, and what is worth a look."""


NO_KERNEL = "no-kernel"
"""Rule of the warning that an operator left to the host has no kernel there."""


NOT_VERIFIED = "not-verified"
"""Rule of the warning that this machine has not run the program: a tool is missing, or it cannot be run here."""


NOTHING_DELEGATED = "nothing-delegated"
"""Rule of the warning that a target has an NPU, and the program leaves it idle."""


class AccuracyWarning(UserWarning):
    """A program is far from the float model that it was made of; Python's `warnings` show it."""


@dataclass(frozen=True)
class ReportWarning:
    """Something about a program that its user would want to know before it is used.

    Attributes:
        level: "warning" where the program is of no use as a rule, "note" where a look is worth it.
        rule: what kind it is: "far-from-float", "avoidable-noise", "fresh-weights", "other-answers",
            "not-finite", "unequal-parts", "small-part", "precision", "int8-power", "unlike-features", "one-row",
            "uninformative-data", "undecided-budget", "no-kernel", "not-verified" or
            "nothing-delegated"; docs/accuracy.md says when.
        what: what was found, a sentence or two.
        hint: what to try, as a clause.
        output: number of the output that it is about; None where it is about no single one.
        node: the operator that costs most, by its name in the exported program; "" where it is no single one.
        operator: which operator that is, such as "log".
        module: path of its module in the model.
        source: the user's file and line.
        sqnr: how far, as signal-to-noise ratio against the float model in dB; None where it is no matter of noise.
        agreement: share of the rows in which the program gives the answer of the float model, 0 to 1; None where the
            output is no vector of scores.
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
        """Whether nobody should overlook it."""
        return self.level == WARNING

    def __str__(self) -> str:
        return f"{self.what} Try: {self.hint}."


def check_runs(warnings: Sequence[ReportWarning]) -> None:
    """Refuses a program that could not run at all.

    Raises:
        BudgetError: says the first operator without a kernel, and how many more there are.
    """
    without = [warning for warning in warnings if warning.rule == NO_KERNEL]
    if without:
        more = f" ({len(without) - 1} more of the kind in the report.)" if len(without) > 1 else ""
        raise BudgetError(without[0].what + more, hint=without[0].hint)


def check_strict_use(strict: Any, verify: bool, *, named: Callable[[str], str] = str) -> None:
    """Refuses to make errors of warnings that nobody looks for.

    Args:
        named: how the user calls a switch that is off: ``verify=False``.

    Raises:
        OptionError: ``strict`` is no switch, or nothing is verified.
    """
    check_switch("strict", strict)
    if strict and not verify:
        raise OptionError(
            f"{named('strict=True')} makes errors of warnings, and with {named('verify=False')} the program is not "
            "compared with the float model, so that there would be none.",
            hint="one of the two",
        )


def check_strict(warnings: Sequence[ReportWarning]) -> None:
    """Refuses a program that a warning is about; notes are none.

    Raises:
        BudgetError: says the first one, and how many there are.
    """
    severe = [warning for warning in warnings if warning.is_severe]
    if severe:
        more = f" ({len(severe) - 1} more of the kind in the report.)" if len(severe) > 1 else ""
        raise BudgetError(severe[0].what + more, hint=severe[0].hint)
