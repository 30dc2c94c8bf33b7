"""Where the command stream that Vela 5.2 writes computes something else than the graph that it was given.

docs/ethosu-simulator.md shows each with its smallest program.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tests.cases import Case


@dataclass(frozen=True)
class Difference:
    """A known difference of some operators.

    Attributes:
        formats: of the program that Vela was given.
        operators: names of the operators.
        largest: difference in steps; None where values are wrong altogether or missing.
        why: the cause.
        rows: parts of row names, where not every row of the operators is concerned.
        targets: how the names of the accelerators begin that show it.
    """

    formats: tuple[str, ...]
    operators: tuple[str, ...]
    largest: int | None
    why: str
    rows: tuple[str, ...] = ("",)
    targets: tuple[str, ...] = ("ethos-u",)

    def covers(self, row: Case, via: str, target: str) -> bool:
        """Whether a row may differ for this reason."""
        is_of_them = via in self.formats and row.op.name in self.operators and target.startswith(self.targets)
        return is_of_them and any(part in row.name for part in self.rows)


DIFFERENCES = (
    Difference(("litert",), ("mul", "requantize"), None, "LiteRT's 32 bits overflow, the NPU saturates", ("64",)),
    Difference(("litert",), ("prelu",), None, "Vela's table for scales that are very far apart is wrong", ("64x4",)),
    Difference(
        ("tosa",),
        ("amin",),
        None,
        "Vela uses a table again that an operation without one has destroyed",
        ("amin-1x7x5x9",),
        ("ethos-u55-32", "ethos-u55-64"),
    ),
)


def known(row: Case, via: str, target: str) -> Sequence[Difference]:
    """The differences that a row may show."""
    return [d for d in DIFFERENCES if d.covers(row, via, target)]
