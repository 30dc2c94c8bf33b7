"""Programs that a search for precision has measured, with accuracy and time."""

from __future__ import annotations

import math
from dataclasses import dataclass

from micronpu.report.accuracy import decibel_text
from micronpu.report.warnings import NOTE, ReportWarning


@dataclass(frozen=True)
class Point:
    """One program.

    Attributes:
        name: its precision, such as "int16".
        sqnr: dB of the worst output against float.
        milliseconds: estimated inference time; None if unknown.
        is_chosen: True for the program of the report.
        hint: option that selects it; "" for this program, or without a short form.
    """

    name: str
    sqnr: float
    milliseconds: float | None
    is_chosen: bool = False
    hint: str = ""

    def __str__(self) -> str:
        """``int16 35.0 dB, 5.59 ms: quantization="int16"``."""
        time = f", {self.milliseconds:.3g} ms" if self.milliseconds is not None else ""
        more = " (this program)" if self.is_chosen else f": {self.hint}" if self.hint else ""
        return f"{self.name} {decibel_text(self.sqnr)}{time}{more}"


@dataclass(frozen=True)
class Frontier:
    """Result of a search for precision.

    Attributes:
        points: the programs.
        samples: number of samples.
        weights: dB of the chosen program with float activations: the limit of its int8 weights.
        activations: dB of the chosen program with float weights.
        is_near: True if the chosen program is near float.
    """

    points: tuple[Point, ...]
    samples: int
    weights: float = math.inf
    activations: float = math.inf
    is_near: bool = False

    @property
    def measured(self) -> str:
        """Return accuracy and time of each program."""
        shown = " \N{MIDDLE DOT} ".join(map(str, sorted(self.points, key=lambda p: p.sqnr)))
        return f"Precision: worst output against float on {self.samples} samples: {shown}."

    @property
    def notes(self) -> tuple[str, ...]:
        """Return a note if the chosen program is near float."""
        return (self.measured,) if self.is_near else ()

    @property
    def warnings(self) -> tuple[ReportWarning, ...]:
        """Return the measurements and the limit of the chosen program as a warning, unless it is near float."""
        if self.is_near:
            return ()
        limit = ""
        if math.isfinite(min(self.weights, self.activations)):
            what = "activations" if self.activations < self.weights else "int8 weights"
            limit = (
                f" The limit of this program is its {what}: {decibel_text(self.weights)} with float activations, "
                f"{decibel_text(self.activations)} with float weights."
            )
        best = max(self.points, key=lambda p: p.sqnr)
        hint = best.hint or "micronpu.fix(model, data), or a larger max_slowdown"
        return (
            ReportWarning(
                NOTE,
                "precision",
                f"{self.measured}{limit}",
                hint,
                sqnr=next(p.sqnr for p in self.points if p.is_chosen),
            ),
        )
