"""Where the command stream that Vela 5.2 writes computes something else than the graph that it was given.

docs/ethosu-simulator.md shows each with its smallest program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
        families: of accelerators that it concerns.
        only: the operators that it concerns, where their attributes decide.
    """

    formats: tuple[str, ...]
    operators: tuple[str, ...]
    largest: int | None
    why: str
    rows: tuple[str, ...] = ("",)
    families: tuple[str, ...] = ("u55", "u65", "u85")
    only: Callable[[Case], bool] = lambda row: True

    def covers(self, row: Case, via: str, target: str) -> bool:
        """Whether a row may differ for this reason."""
        return (
            via in self.formats
            and row.op.name in self.operators
            and any(part in row.name for part in self.rows)
            and target.split("-")[1] in self.families
            and self.only(row)
        )


def lies_between_elements(row: Case) -> bool:
    """Whether half a pixel decides which element a resize takes."""
    (x,), (y,) = row.graph().inputs, row.graph().outputs
    aligned = row.op.align_corners or row.op.half_pixel_centers  # type: ignore[attr-defined]
    return not aligned and any(y.shape[axis] % x.shape[axis] for axis in (1, 2))


DIFFERENCES = (
    Difference(
        ("tosa",), ("add", "sub"), 1, "TOSA's graph rounds each operand once, the stream twice", families=("u55", "u65")
    ),
    Difference(("litert",), ("amax", "amin"), None, "Vela confuses the axes when the pool is along a row"),
    Difference(("tosa",), ("amin",), None, "Vela confuses the axes as it does with LiteRT", families=("u55", "u65")),
    Difference(("litert",), ("mul", "requantize"), None, "LiteRT's 32 bits overflow, the NPU saturates", ("64",)),
    Difference(
        ("litert",),
        ("resize_nearest",),
        None,
        "Vela takes the centres of pixels, whatever LiteRT's program says",
        families=("u85",),
        only=lies_between_elements,
    ),
    Difference(("litert",), ("prelu",), None, "Vela's table for scales that are very far apart is wrong", ("64x4",)),
)


def known(row: Case, via: str, target: str) -> Sequence[Difference]:
    """The differences that a row may show."""
    return [d for d in DIFFERENCES if d.covers(row, via, target)]
