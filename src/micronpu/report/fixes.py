"""What was tried against the cost of quantization, what helped, and what it costs."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from micronpu.report.codec import encode
from micronpu.report.shown import rendered, short

if TYPE_CHECKING:
    from rich.console import RenderableType

FORMAT, VERSION = "micronpu fixes", 1
"""Of the JSON form."""
_FREE = 1.01
"""As many times the cycles of the default are called the same."""


@dataclass(frozen=True)
class Gain:
    """How much nearer to float, in dB per row, over the same rows: the mean and its 95 % interval."""

    value: float
    low: float
    high: float

    @property
    def helps(self) -> bool:
        """Whether it is more than chance."""
        return self.low > 0.0

    def __str__(self) -> str:
        return f"{self.value:+.2f} dB ({self.low:+.2f} to {self.high:+.2f})"


@dataclass(frozen=True)
class Attempt:
    """A cure that was tried on top of those that were kept before.

    Attributes:
        name: of the cure.
        gain: over what it was tried on top of, on the rows to choose by.
        kept: whether it went into the choices.
    """

    name: str
    gain: Gain
    kept: bool


@dataclass(frozen=True)
class Choice:
    """A way to quantize the model.

    Attributes:
        name: the default, or the cures.
        quantization: the dictionary that `micronpu.compile(quantization=...)` takes.
        sqnr: at the output against float in dB, on the rows to judge by, which chose nothing.
        gain: over the default, on these rows; None for the default.
        cycles: of the program, as its report estimates them; None where there is no estimate.
        bytes: of the ``.pte``.
        best: whether no other choice is as near to float for as few cycles and bytes.
    """

    name: str
    quantization: Mapping[str, Any]
    sqnr: float
    gain: Gain | None
    cycles: int | None
    bytes: int
    best: bool = False


@short
@dataclass(frozen=True)
class Fixes:
    """What `micronpu.fix` returns.

    Attributes:
        target: what the model was quantized for.
        calibration_rows, choosing_rows, judging_rows: which rows did what, none of them two things.
        attempts: in the order in which they were made.
        choices: the default first, then by distance to float.
        seconds: how long it took.
        untried: the cures for which the budget left no time.
    """

    target: str
    calibration_rows: int
    choosing_rows: int
    judging_rows: int
    attempts: tuple[Attempt, ...]
    choices: tuple[Choice, ...]
    seconds: float
    untried: tuple[str, ...] = ()

    @property
    def best(self) -> Choice:
        """The nearest to float, row by row, of those that cost at most a hundredth more cycles than the default.

        Other weights are compressed otherwise, which is a cycle here and there.
        """
        default = self.choices[0]
        most = math.inf if default.cycles is None else _FREE * default.cycles
        free = [c for c in self.choices if c.cycles is None or c.cycles <= most]
        return max(free, key=lambda choice: choice.gain.value if choice.gain is not None else 0.0)

    def to_dict(self) -> dict[str, Any]:
        """What `to_json` writes; docs/accuracy.md says what it means."""
        return {"format": FORMAT, "version": VERSION, **encode(self)}

    def to_json(self, indent: int | None = 2) -> str:
        """The whole as JSON, for other programs."""
        return json.dumps(self.to_dict(), indent=indent)

    def __str__(self) -> str:
        lines = [self.summary]
        for choice in self.choices:
            cycles = f", {choice.cycles:,} cycles" if choice.cycles is not None else ""
            gain = f" ({choice.gain})" if choice.gain is not None else ""
            lines.append(f"  - {choice.name}: {choice.sqnr:.1f} dB{gain}{cycles}, {choice.bytes:,} bytes")
        return "\n".join(lines)

    @property
    def summary(self) -> str:
        """One sentence: what was tried on which rows."""
        kept = sum(attempt.kept for attempt in self.attempts)
        told = (
            f"{len(self.attempts)} cures tried in {self.seconds:.0f} s, {kept} kept: {self.calibration_rows} rows "
            f"calibrated, {self.choosing_rows} chose, {self.judging_rows} others judged."
        )
        if self.untried:
            told += f" The budget ended it; not tried: {', '.join(self.untried)}."
        return told

    def __rich__(self) -> RenderableType:
        return rendered(self)
