"""A program judged on a user's data, beside the float model."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from micronpu.report.accuracy import Comparison
from micronpu.report.codec import encode
from micronpu.report.shown import rendered, short

if TYPE_CHECKING:
    from rich.console import RenderableType

FORMAT, VERSION = "micronpu evaluation", 1
"""Of the JSON form."""
CHANCE = 0.05
"""A difference that chance explains more often than this is called noise."""


@dataclass(frozen=True)
class Score:
    """A metric of one program.

    Attributes:
        value: of all rows.
        low, high: 95 % interval for rows like these.
    """

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Difference:
    """What a program's metric is away from the float model's, on the same rows.

    Attributes:
        value: program less float.
        low, high: 95 % interval.
        p: how often chance alone gives a difference as large.
        test: how ``p`` was found.
        worse, better: rows that only the float model, or only the program has right; None where the metric counts none.
    """

    ALSO: ClassVar[tuple[str, ...]] = ("is_noise",)

    value: float
    low: float
    high: float
    p: float
    test: str
    worse: int | None = None
    better: int | None = None

    @property
    def is_noise(self) -> bool:
        """Whether chance explains it."""
        return self.p >= CHANCE


@dataclass(frozen=True)
class Judged:
    """One of the programs that were compared.

    Attributes:
        name: "float", "quantized" or "program".
        rows_per_second: how fast it ran here.
        against_float: its first output beside the float model's; None for the float model itself.
        score: its metric; None without labels.
        difference: of the metric to the float model's.
    """

    name: str
    rows_per_second: float
    against_float: Comparison | None = None
    score: Score | None = None
    difference: Difference | None = None


@short
@dataclass(frozen=True)
class Evaluation:
    """What `micronpu.evaluate` returns.

    Attributes:
        rows: of data.
        metric: name, or "" without labels.
        labels: how many; fewer than rows where one label is for several rows.
        larger_is_better: False for errors.
        judged: the float model, the quantized module where it was given, the program.
        against_quantized: the program beside the quantized module.
        notes: what else a user should know.
    """

    ALSO: ClassVar[tuple[str, ...]] = ("verdict",)

    rows: int
    metric: str
    labels: int
    larger_is_better: bool
    judged: tuple[Judged, ...]
    against_quantized: Comparison | None = None
    notes: tuple[str, ...] = ()

    def of(self, name: str) -> Judged:
        """The entry of "float", "quantized" or "program"."""
        return next(j for j in self.judged if j.name == name)

    @property
    def program(self) -> Judged:
        """The finished program."""
        return self.of("program")

    @property
    def verdict(self) -> str:
        """One sentence: what was lost, and whether that is noise."""
        program = self.program
        assert program.against_float is not None
        comparison = program.against_float
        if program.difference is None or program.score is None:
            return f"On {self.rows:,} rows: {comparison.against('float')}."
        difference, float_score = program.difference, self.of("float").score
        assert float_score is not None
        gained = difference.value if self.larger_is_better else -difference.value
        if difference.worse is not None and difference.better is not None:
            counts = (
                f"{difference.worse} of {self.labels:,} rows are right in float only and {difference.better} in the "
                f"program only"
            )
            size = f"{100 * difference.value:+.2f} points"
        else:
            counts = f"float {float_score.value:.4f}, program {program.score.value:.4f}"
            size = f"{difference.value:+.4f}"
        chance = f"p = {difference.p:.2g}, {difference.test}"
        if difference.value == 0:
            return f"No difference in {self.metric}: {counts}."
        if difference.is_noise:
            return f"The difference of {size} in {self.metric} is noise ({chance}): {counts}."
        kind = "gain" if gained > 0 else "loss"
        return f"The {kind} of {size} in {self.metric} is more than chance ({chance}): {counts}."

    def to_dict(self) -> dict[str, Any]:
        """What `to_json` writes; docs/accuracy.md says what it means."""
        return {"format": FORMAT, "version": VERSION, **encode(self)}

    def to_json(self, indent: int | None = 2) -> str:
        """The whole as JSON, for other programs."""
        return json.dumps(self.to_dict(), indent=indent)

    def __str__(self) -> str:
        return "\n".join([self.verdict, *self.notes])

    def __rich__(self) -> RenderableType:
        return rendered(self)
