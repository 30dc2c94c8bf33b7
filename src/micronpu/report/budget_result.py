"""A budget and the program's value."""

from __future__ import annotations

from dataclasses import dataclass


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
