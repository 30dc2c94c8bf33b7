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
        met: whether it keeps the limit.
    """

    name: str
    limit: float
    value: float
    met: bool

    def __str__(self) -> str:
        """``max_ms is 5, and the program has 6.31``."""
        return self.said(self.name)

    def said(self, name: str) -> str:
        """The same with the name that the user knows the budget by."""
        return f"{name} is {_number(self.limit)}, and the program has {_number(self.value)}"


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
