"""Accuracy of a program, with confidence intervals: at every compilation, and on a user's data."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from micronpu.base.arrays import Array
from micronpu.base.texts import plural
from micronpu.report.codec import named
from micronpu.report.shown import JsonReport

LEAST, LEAST_RECORDINGS = 16, 8
"""Number of calibration samples, and of recordings of a model with states, from which on some are held out."""
WRONG = 0.5
"""Share of samples with another top-1 result from which a program decides otherwise."""
_PLACED, _PROBABLE, _UNDECIDED = 0.9, 1e-3, 1e-3
"""Share of the variance of a vector's elements that their means explain, from which each element has its own place;
largest difference of a sum of probabilities from 1; lead of the largest element over the spread of all elements, below
which it decides nothing."""


def decibels(signal: float, noise: float) -> float:
    """Return the ratio of two powers in dB; inf without noise, -inf without signal or with infinite noise."""
    if noise <= 0.0:
        return math.inf
    return 10.0 * math.log10(signal / noise) if signal > 0.0 and noise < math.inf else -math.inf


def decibel_text(value: float, interval: tuple[float, float] | None = None) -> str:
    """``28.6 dB``, or ``28.6 dB (27.9 to 29.3)``."""
    within = "" if interval is None else f" ({interval[0]:.1f} to {interval[1]:.1f})"
    if value == -math.inf:
        return "no signal"
    return "no difference" if value == math.inf else f"{value:.1f} dB{within}"


@dataclass(frozen=True)
class Comparison:
    """Distance of results from reference results, over all samples.

    Attributes:
        rows: number of samples.
        sqnr: signal-to-quantization-noise ratio in dB: power of the reference over power of the difference; inf if
            nothing differs.
        largest: largest difference, in the unit of the result.
        relative: `largest` divided by the largest reference value.
        agreeing: number of samples with the same largest element; None if they are not scores, see `are_scores`.
        interval: 95 % confidence interval of `sqnr` in dB, for other samples of the same kind; None for fewer than two
            samples.
    """

    rows: int
    sqnr: float
    largest: float
    relative: float
    agreeing: int | None = None
    interval: tuple[float, float] | None = None

    @classmethod
    def of(
        cls,
        found: Sequence[Array],
        wanted: Sequence[Array],
        lengths: Sequence[int] | None = None,
        independent: float = math.inf,
    ) -> Comparison:
        """Compare the results of each sample, arrays of shape [1, ...] or any output shape.

        Elements whose reference is not finite are left out; if only the result is not finite, the noise is infinite.

        Args:
            lengths: numbers of successive rows that depend on each other, such as the calls of a recording: each is one
                sample for the interval.  Default: every row is a sample.
            independent: number of independent samples, at most that of all.
        """
        largest = peak = 0.0
        signals, noises = [], []
        for y, x in zip(found, wanted, strict=True):
            y, x = np.asarray(y, np.float64), np.asarray(x, np.float64)
            known = np.isfinite(x)
            error = np.abs(y[known] - x[known])
            error[np.isnan(error)] = math.inf
            signals.append(float(np.square(x[known]).sum()))
            noises.append(float(np.square(error).sum()))
            largest = max(largest, float(error.max(initial=0.0)))
            peak = max(peak, float(np.abs(x[known]).max(initial=0.0)))
        relative = largest / peak if peak else (math.inf if largest else 0.0)
        first = np.cumsum([0, *(lengths or [1] * len(wanted))])[:-1]
        powers = [np.add.reduceat(of, first) for of in (signals, noises)] if len(wanted) else [[0.0], [0.0]]
        sqnr = decibels(float(sum(signals)), float(sum(noises)))
        agreeing = None
        if are_scores(wanted):
            agreeing = sum(bool((y.argmax(1) == x.argmax(1)).all()) for y, x in zip(found, wanted, strict=True))
        interval = jackknife(decibels, *powers, independent=independent)
        return cls(len(wanted), sqnr, largest, relative, agreeing, interval)

    @property
    def agreement(self) -> float | None:
        """Return `agreeing` divided by the number of samples, 0 to 1."""
        return None if self.agreeing is None or not self.rows else self.agreeing / self.rows

    @property
    def decides_otherwise(self) -> bool:
        """Return True if top-1 differs in half of the samples or more, and in at least two."""
        share = self.agreement
        return share is not None and 1 - share >= WRONG and self.rows - (self.agreeing or 0) >= 2

    @property
    def agreement_interval(self) -> tuple[float, float] | None:
        """Return the 95 % confidence interval of `agreement`, see `wilson`."""
        return None if self.agreeing is None or not self.rows else wilson(self.agreeing, self.rows)

    def against(self, what: str) -> str:
        """``28.6 dB (27.9 to 29.3) against float, top-1 agrees on 8 of 8``."""
        same = f", top-1 agrees on {self.agreeing} of {self.rows}" if self.agreeing is not None else ""
        return f"{decibel_text(self.sqnr, self.interval)} against {what}{same}"


def are_probabilities(low: Any, high: Any) -> Any:
    """Return True, of arrays for each element, if values from `low` to `high` may be probabilities."""
    return (low >= 0) & (high <= 1)


def are_scores(values: Sequence[Array]) -> bool:
    """Return True if the position of the largest element is a decision, as among the scores of classes.

    Landmarks and other positions are vectors too.  There each element keeps near its own mean, and the largest elements
    differ by less than they vary, so that which of them is the largest means nothing.  Scores depend on the sample; if
    nearly all samples are of one class, its score leads clearly.

    Args:
        values: results of the float model, arrays of shape [1, elements].
    """
    if not values or any(x.ndim != 2 or x.shape[1] < 2 for x in values):
        return False
    every = np.concatenate(values).astype(np.float64)
    if not np.isfinite(every).all():
        return False
    if (every >= 0).all() and np.allclose(every.sum(1), 1.0, atol=_PROBABLE):
        return True
    leads = np.diff(np.partition(every, -2)[:, -2:])[:, 0]
    if np.median(leads) < _UNDECIDED * every.std():  # as of a saturated state, whose largest elements are all 1
        return False
    clear = np.median(leads - every.std(0)[every.argmax(1)]) >= 0
    return bool(clear or every.mean(0).var() < _PLACED * every.var())


@dataclass(frozen=True)
class PartAccuracy:
    """Elements of an output that differ in size from its other elements, such as boxes beside scores.

    Attributes:
        what: description of the elements, such as "channels 0 to 3 (axis 1)".
        rms: root mean square of the float model's values.
        sqnr: signal-to-noise ratio of the part against the float model, in dB.
    """

    what: str
    rms: float
    sqnr: float

    def __str__(self) -> str:
        return f"{self.what}, of size {self.rms:.3g}: {decibel_text(self.sqnr)}"


@dataclass(frozen=True)
class OutputAccuracy:
    """One output of a program.

    Attributes:
        output: its number.
        float_model: the quantized model against the float model, on all samples; None if unknown.
        quantized: the program against the quantized model, on the samples that the program runs; None if it does not
            run on this machine.
        parts: parts of the output whose values differ in size, against the float model; () if there are none.
        over_calls: of a model with states, dB against the float model in each quarter of the recordings.
    """

    output: int
    float_model: Comparison | None = field(default=None, metadata=named("float"))
    quantized: Comparison | None = None
    parts: tuple[PartAccuracy, ...] = ()
    over_calls: tuple[float, ...] = ()

    @property
    def sqnr(self) -> float | None:
        """Return the ratio against float of the output, or of its worst part."""
        return None if self.float_model is None else min([self.float_model.sqnr, *(part.sqnr for part in self.parts)])

    def __str__(self) -> str:
        said = [self.float_model.against("float")] if self.float_model is not None else []
        if self.parts:
            said.append(f"part by part: {', '.join(map(str, self.parts))}")
        if self.over_calls:
            quarters = ", ".join(f"{value:.1f}" for value in self.over_calls)
            said.append(f"from the first to the last quarter of the calls {quarters} dB")
        if self.quantized is not None:
            said.append(replace(self.quantized, interval=None).against("the quantized model"))
        return "; ".join(said)


@dataclass(frozen=True)
class MetricAccuracy:
    """A metric of the user's task on the held-out samples.

    Attributes:
        name: of the metric.
        float_model, quantized: its values.
        interval: 95 % confidence interval of `quantized`; None for too few samples.
        larger_is_better: False for errors.
        labelled: True if labels were given; otherwise the float model's outputs are the labels.
        missing: classes without a sample, which the metric does not cover.
    """

    name: str
    float_model: float = field(metadata=named("float"))
    quantized: float
    interval: tuple[float, float] | None = None
    larger_is_better: bool = True
    labelled: bool = False
    missing: tuple[int, ...] = ()

    def __str__(self) -> str:
        within = f" ({self.interval[0]:.4g} to {self.interval[1]:.4g})" if self.interval is not None else ""
        without = f", with no sample of class {', '.join(map(str, self.missing))}" if self.missing else ""
        against = "" if self.labelled else " against the float model's outputs"
        return f"{self.name} {self.quantized:.4g}{within}{against}, in float {self.float_model:.4g}{without}"


@dataclass(frozen=True)
class ProgramAccuracy:
    """Accuracy of the quantized model, measured on held-out samples at every compilation.

    Attributes:
        rows: numbers of the calibration samples that it was measured on, or of the recordings of a model with states;
            () for the example inputs.
        of: how many calibration samples, or recordings, there were.
        held_out: True if these samples were held out from calibration; otherwise they also calibrated.
        outputs: one for each output that is a float.
        integers: share of the elements of integer outputs, such as positions, that equal the float model's, 0 to 1;
            None without such outputs.
        calls: number of calls in all recordings; 0 for a model without states.
        metric: of the user's task, or None.
        calibrated: number of calibration samples or recordings that count beside the held-out ones.
    """

    ALSO: ClassVar[tuple[str, ...]] = ("sqnr", "agreement")

    rows: tuple[int, ...]
    of: int = field(metadata=named("calibration_rows"))
    held_out: bool
    outputs: tuple[OutputAccuracy, ...]
    integers: float | None = None
    calls: int = 0
    metric: MetricAccuracy | None = None
    calibrated: int = 0

    @property
    def _scores(self) -> list[Comparison]:
        """Outputs that are vectors of scores, against the float model."""
        compared = (o.float_model for o in self.outputs)
        return [c for c in compared if c is not None and c.agreement is not None]

    @property
    def agreement(self) -> float | None:
        """Return the worst output's top-1 agreement with the float model, or its share of equal integers.

        None if no output is a vector of scores or of integers.
        """
        return min((s for s in (*(c.agreement for c in self._scores), self.integers) if s is not None), default=None)

    @property
    def decides_otherwise(self) -> bool:
        """Return True if an output's top-1 results are mostly others than the float model's."""
        return any(comparison.decides_otherwise for comparison in self._scores)

    @property
    def sqnr(self) -> float | None:
        """Return the ratio against float in dB, of the worst output or part of one; None if unknown."""
        known = [sqnr for o in self.outputs if (sqnr := o.sqnr) is not None]
        return min(known) if known else None

    @property
    def sqnr_interval(self) -> tuple[float, float] | None:
        """Return the 95 % confidence interval of the worst output; None if a part of an output is worse."""
        compared = (o.float_model for o in self.outputs if o.float_model is not None)
        return next((c.interval for c in compared if c.sqnr == self.sqnr), None)

    @property
    def agreement_interval(self) -> tuple[float, float] | None:
        """Return the 95 % confidence interval of `agreement`; None if that is a share of integers."""
        return next((c.agreement_interval for c in self._scores if c.agreement == self.agreement), None)

    @property
    def is_single(self) -> bool:
        """True if it is measured on one sample, which is not enough for a verdict."""
        return max(len(self.rows), self.calls) < 2

    @property
    def measured_on(self) -> str:
        """Return the samples as a clause."""
        if not self.rows:
            return "on the example inputs"
        kind = "recording" if self.calls else "sample"
        count = f"{len(self.rows)} {'held-out ' if self.held_out else ''}{kind}{'' if len(self.rows) == 1 else 's'}"
        calls = f" ({plural(self.calls, 'call')})" if self.calls else ""
        if self.held_out:
            return f"on {count}{f' and {self.calibrated} cross-validated' if self.calibrated else ''}{calls}"
        least = LEAST_RECORDINGS if self.calls else LEAST
        return f"on {count}{calls} that also calibrated (give {least} different ones to have some held out)"

    @property
    def numbers(self) -> str:
        """Return which samples these are, as a sentence without full stop."""
        held_out = "held out" if self.held_out else "calibrated, too"
        return f"Measured on {', '.join(map(str, self.rows))} of {self.of} ({held_out})"

    def __str__(self) -> str:
        several = len(self.outputs) > 1
        parts = [f"output {output.output}: {output}" if several else str(output) for output in self.outputs]
        if self.integers is not None:
            parts.append(f"{self.integers:.1%} of the integers are those of the float model")
        if self.metric is not None:
            parts.insert(0, str(self.metric))
        single = ", which is no verdict" if self.is_single and self.rows else ""
        return f"Accuracy {self.measured_on}{single}: {'. '.join(parts)}."


@dataclass(frozen=True)
class Agreement:
    """Agreement of a program with the quantized model that it was compiled from.

    Attributes:
        inputs: number of inputs that both ran on.
        elements: number of elements of all results.
        equal: share of the elements that are the same, 0 to 1.
        largest: largest difference, in LSB of the result, or in 1/127 of the largest value of a float result.
        bound: largest expected difference: twice the quantization error on these inputs, plus four LSB.
        hanging: results that differ by more because of rounding, such as the position of the largest of nearly equal
            values.  The quantized model itself returns these values with other rounding.
        reason: reason why nothing was compared, or "".
    """

    inputs: int = 0
    elements: int = 0
    equal: float = 1.0
    largest: float = 0.0
    bound: float = 0.0
    hanging: tuple[int, ...] = ()
    reason: str = ""

    def __str__(self) -> str:
        if self.reason:
            return f"The program was not compared with the quantized model: {self.reason}."
        where = f"Against the quantized model, on {plural(self.inputs, 'input')}"
        if self.equal == 1.0:
            return f"{where}: the same {plural(self.elements, 'value')}."
        text = (
            f"{where}: {self.equal:.1%} of {self.elements:,} values equal, the others at most {self.largest:.3g} LSB "
            f"off, as expected: rounding explains up to {self.bound:.3g} LSB."
        )
        if self.hanging:
            results = f"result{'' if len(self.hanging) == 1 else 's'} {', '.join(map(str, self.hanging))}"
            text += f" Not counted: values of {results} that depend on rounding, such as positions or comparisons of "
            text += "almost equal values."
        return text


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
        model: what is called "float": the float model, or "quantized model" if the model was quantized already.
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
    model: str = "float model"

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
        program, short = self.program, {"float model": "float"}.get(self.model, f"the {self.model}")
        assert program.against_float is not None
        comparison = program.against_float
        if program.difference is None or program.score is None:
            return f"On {plural(self.rows, 'row')}: {comparison.against(short)}."
        difference, float_score = program.difference, self.of("float").score
        assert float_score is not None
        if difference.worse is not None and difference.better is not None:
            counts = f"{difference.worse} of {self.labels:,} rows are right in {short} only and {difference.better} "
            counts += "in the program only"
            size = f"{100 * difference.value:+.2f} points"
        else:
            counts = f"{short} {float_score.value:.4f}, program {program.score.value:.4f}"
            size = f"{difference.value:+.4f}"
        chance = f"p = {difference.p:.2g}, {difference.test}"
        if difference.value == 0:
            return f"No difference in {self.metric}: {counts}."
        kind = "gain" if (difference.value > 0) == self.larger_is_better else "loss"
        kind, cause = ("difference", "noise") if difference.is_noise else (kind, "more than chance")
        return f"The {kind} of {size} in {self.metric} is {cause} ({chance}): {counts}."


Z = 1.959963984540054
"""The normal distribution's 97.5 % point: intervals hold the true value in 95 of 100 cases."""
_STUDENT = (12.706, 4.303, 3.182, 2.776)
"""The 97.5 % points of Student's t with 1 to 4 degrees of freedom; more by the expansion of Cornish and Fisher."""


def wilson(right: int, rows: int) -> tuple[float, float]:
    """Return the 95 % interval of a share (E. B. Wilson, 1927): ``right`` of ``rows`` samples."""
    share = right / rows
    middle = (share + Z * Z / (2 * rows)) / (1 + Z * Z / rows)
    half = Z / (1 + Z * Z / rows) * math.sqrt(share * (1 - share) / rows + Z * Z / (4 * rows * rows))
    return max(0.0, middle - half), min(1.0, middle + half)


def student(freedom: int) -> float:
    """Return the 97.5 % point of Student's t; from 5 degrees of freedom on by an expansion, within 0.5 %."""
    if freedom <= len(_STUDENT):
        return _STUDENT[freedom - 1]
    first, second = (Z**3 + Z) / 4, (5 * Z**5 + 16 * Z**3 + 3 * Z) / 96
    third = (3 * Z**7 + 19 * Z**5 + 17 * Z**3 - 15 * Z) / 384
    return Z + first / freedom + second / freedom**2 + third / freedom**3


def jackknife(
    figure: Callable[[float, float], float], *columns: Sequence[object], independent: float = math.inf
) -> tuple[float, float] | None:
    """Return the 95 % interval of a figure of two sums over samples (Tukey, 1958); None for fewer than two samples.

    It is wider on the side of few samples that have most of the noise, as others may have more.
    Source: Johnson, Modified t tests for asymmetrical populations, J. Am. Statist. Assoc. 73 (1978).

    Args:
        figure: such as the ratio of the sums in dB.
        columns: the terms of each sum, a number per sample.
        independent: number of independent samples, at most that of all.

    Returns:
        None also if the figure of all samples but one is not finite.
    """
    first, second = (np.asarray(column, np.float64) for column in columns)
    count = len(first)
    if count < 2 or not np.isfinite(first.sum()) or not np.isfinite(second.sum()):
        return None
    values = np.asarray([figure(float(a), float(b)) for a, b in zip(_others(first), _others(second), strict=True)])
    if not np.isfinite(values).all():
        return None
    own = max(min(count, independent), 2.0)
    change, quantile = values - values.mean(), student(round(own) - 1)
    error = math.sqrt((count - 1) / own * float(np.square(change).sum()))
    skew = float(np.power(change, 3).mean()) / max(float(np.square(change).mean()) ** 1.5, np.finfo(np.float64).tiny)
    beyond = error * skew * (1 + 2 * quantile**2) / (6 * math.sqrt(own))
    middle = figure(float(first.sum()), float(second.sum()))
    return middle - quantile * error - max(beyond, 0.0), middle + quantile * error + max(-beyond, 0.0)


def _others(terms: Any) -> Any:
    """Return sums of all terms but one.  Subtracting from the total would lose all digits of a nearly dominant term."""
    before = np.concatenate([[0.0], np.cumsum(terms)[:-1]])
    after = np.concatenate([np.cumsum(terms[::-1])[::-1][1:], [0.0]])
    return before + after
