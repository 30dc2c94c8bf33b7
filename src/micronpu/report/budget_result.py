"""A limit beside what a program takes of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class BudgetResult:
    """A budget and what the program takes of it.

    Attributes:
        name: such as "max_ms".
        limit: what was asked for.
        value: of the program.
        met: whether it keeps the limit: by its interval, or by its value where the limit lies within the interval.
        interval: 95 % confidence interval of a value that is measured on samples; None of others.
    """

    name: str
    limit: float
    value: float
    met: bool
    interval: tuple[float, float] | None = None

    @property
    def sure(self) -> bool:
        """Whether other samples would hardly decide otherwise: the interval does not hold the limit."""
        return self.interval is None or not self.interval[0] < self.limit <= self.interval[1]

    def __str__(self) -> str:
        """``max_ms is 5, and the program has 6.31``."""
        return self.said(self.name)

    def said(self, name: str) -> str:
        """The same with the name that the user knows the budget by."""
        within = "" if self.interval is None else f" (95 % interval {self.interval[0]:.4g} to {self.interval[1]:.4g})"
        return f"{name} is {_number(self.limit)}, and the program has {_number(self.value)}{within}"


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
