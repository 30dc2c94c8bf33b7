"""Fixes for quantization that were tried, their gain and their cost."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from micronpu.report.saved import JsonReport

_FREE = 1.01
"""Ratio of cycles to the default's up to which a choice counts as free."""


@dataclass(frozen=True)
class Gain:
    """Mean gain in dB per sample over the same samples, with its 95 % interval."""

    value: float
    low: float
    high: float

    @property
    def helps(self) -> bool:
        """True if it is more than chance."""
        return self.low > 0.0

    def __str__(self) -> str:
        return f"{self.value:+.2f} dB ({self.low:+.2f} to {self.high:+.2f})"


@dataclass(frozen=True)
class Attempt:
    """A fix that was tried in addition to those kept before.

    Attributes:
        name: of the fix.
        gain: over those kept before, on the samples for choosing.
        kept: True if it is part of the choices.
    """

    name: str
    gain: Gain
    kept: bool


@dataclass(frozen=True)
class FixChoice:
    """A quantization of the model.

    Attributes:
        name: the default, or the fixes.
        quantization: the dictionary that `micronpu.compile(quantization=...)` takes.
        sqnr: at the output against float in dB, on samples that chose nothing.
        gain: over the default, on these samples; None for the default.
        cycles: of the program, as its report estimates them; None without an estimate.
        bytes: of the ``.pte``.
        best: True if no other choice is as near to float for as few cycles and bytes.
    """

    name: str
    quantization: Mapping[str, Any]
    sqnr: float
    gain: Gain | None
    cycles: int | None
    bytes: int
    best: bool = False


@dataclass(frozen=True, repr=False)
class Fixes(JsonReport):
    """Result of `micronpu.fix`.

    Attributes:
        target: name of the target.
        calibration_rows, choosing_rows, judging_rows: numbers of samples for each purpose, without overlap.
        attempts: in the order in which they were made.
        choices: the default first, then by distance to float.
        seconds: duration of the search.
        untried: the fixes that the time budget left untried.
    """

    FORMAT = "micronpu fixes"

    target: str
    calibration_rows: int
    choosing_rows: int
    judging_rows: int
    attempts: tuple[Attempt, ...]
    choices: tuple[FixChoice, ...]
    seconds: float
    untried: tuple[str, ...] = ()

    @property
    def best(self) -> FixChoice:
        """Return the choice nearest to float, sample by sample, among those with at most 1 % more cycles than the
        default.

        The tolerance is for weight compression: other weights change the cycles a little.
        """
        default = self.choices[0]
        most = math.inf if default.cycles is None else _FREE * default.cycles
        free = [c for c in self.choices if c.cycles is None or c.cycles <= most]
        return max(free, key=lambda choice: choice.gain.value if choice.gain is not None else 0.0)

    def __str__(self) -> str:
        lines = [self.summary]
        for choice in self.choices:
            cycles = f", {choice.cycles:,} cycles" if choice.cycles is not None else ""
            gain = f" ({choice.gain})" if choice.gain is not None else ""
            lines.append(f"  - {choice.name}: {choice.sqnr:.1f} dB{gain}{cycles}, {choice.bytes:,} bytes")
        return "\n".join(lines)

    @property
    def summary(self) -> str:
        """Return one sentence: the number of fixes, and the samples they were tried on."""
        kept = sum(attempt.kept for attempt in self.attempts)
        text = (
            f"{len(self.attempts)} fixes tried in {self.seconds:.0f} s, {kept} kept: {self.calibration_rows} rows "
            f"calibrated, {self.choosing_rows} chose, {self.judging_rows} others judged."
        )
        if self.untried:
            text += f" The budget ended it; not tried: {', '.join(self.untried)}."
        return text
