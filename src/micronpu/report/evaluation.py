"""Evaluation of a program on a user's data, compared with the float model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from micronpu.report.accuracy import Comparison
from micronpu.report.saved import JsonReport

CHANCE = 0.05
"""A difference with a p-value above this is reported as noise."""


@dataclass(frozen=True)
class Score:
    """A metric of one program.

    Attributes:
        value: on all samples.
        low, high: 95 % interval for samples of the same kind.
    """

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class MetricDifference:
    """Difference of a program's metric from the float model's, on the same samples.

    Attributes:
        value: program minus float.
        low, high: 95 % interval.
        p: p-value: probability of a difference as large by chance.
        test: statistical test of ``p``.
        worse, better: samples that only the float model, or only the program gets right; None if the metric has no such
            count.
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
        """True if chance explains it."""
        return self.p >= CHANCE


@dataclass(frozen=True)
class Judged:
    """One of the programs that were compared.

    Attributes:
        name: "float", "quantized" or "program".
        rows_per_second: samples per second on this machine.
        against_float: its first output compared with the float model's; None for the float model.
        score: its metric; None without labels.
        difference: from the float model's score.
    """

    name: str
    rows_per_second: float
    against_float: Comparison | None = None
    score: Score | None = None
    difference: MetricDifference | None = None


@dataclass(frozen=True, repr=False)
class Evaluation(JsonReport):
    """Result of `micronpu.evaluate`.

    Attributes:
        rows: number of samples.
        metric: name, or "" without labels.
        labels: number of labels; fewer than samples if one label is for several samples.
        larger_is_better: False for errors.
        judged: the float model, the quantized module if it was given, the program.
        against_quantized: the program compared with the quantized module.
        notes: other notes.
    """

    FORMAT = "micronpu evaluation"
    ALSO: ClassVar[tuple[str, ...]] = ("verdict",)

    rows: int
    metric: str
    labels: int
    larger_is_better: bool
    judged: tuple[Judged, ...]
    against_quantized: Comparison | None = None
    notes: tuple[str, ...] = ()

    def of(self, name: str) -> Judged:
        """Return the entry of "float", "quantized" or "program"."""
        return next(j for j in self.judged if j.name == name)

    @property
    def program(self) -> Judged:
        """Return the entry of the program."""
        return self.of("program")

    @property
    def verdict(self) -> str:
        """Return one sentence: the loss of accuracy, and whether it is noise."""
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

    def __str__(self) -> str:
        return "\n".join([self.verdict, *self.notes])
