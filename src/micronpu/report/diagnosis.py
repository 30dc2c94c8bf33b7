"""Errors of a quantized model, layer by layer, and what was tried against them: fixes, and programs by precision."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from micronpu.base.errors import OptionError
from micronpu.report.accuracy import MetricAccuracy, decibel_text
from micronpu.report.shown import JsonReport
from micronpu.report.warnings import NOTE, ReportWarning

Sort = Literal["output", "own", "total"]


def check_sort(by: object) -> Sort:
    """Return an order of layers; raise `OptionError` if it is unknown."""
    known: tuple[Sort, ...] = get_args(Sort)
    if by not in known:
        raise OptionError(f"Layers cannot be sorted by {by!r}.", hint=f"one of {', '.join(known)}")
    return known[known.index(by)]


@dataclass(frozen=True)
class LayerError:
    """Error of one layer's result by quantization. Ratios are in dB, of the float result to the error.

    Attributes:
        node: the layer's operator, by its name in the exported program.
        operator: "conv2d + relu" and the like, or "input".
        module: path of the module in the model.
        source: the user's file and line.
        setting: the kind of quantization setting that selects it: "node" or "module", or "" if none selects it alone.
        share: share of the error at the output that the layer adds, 0 to 1; None without a gradient to the output.
        sqnr: ratio for the total error: the quantized network against the float one.
        own: ratio for the layer alone: its quantized operator on float operands that are quantized.
        inherited: ratio for the error of the layers before it.
        weights: ratio for the part of `own` by rounded weights; inf without weights.
        grid: ratio for the part of `own` by rounding and clipping of the result.
        largest: largest error of an element, in the unit of the result.
        steps: `largest` in LSB of the result.
        clipped: share of the result's elements outside of its range.
        range_gain: gain in dB at the output that another range of its result would bring, by derivatives on at most
            eight samples; None if the range is given, as that of an output is.
        advice: what to try, as a clause; "" for nothing.
    """

    node: str
    operator: str
    module: str
    source: str
    dtype: str
    shape: tuple[int, ...]
    setting: str
    share: float | None
    sqnr: float
    own: float
    inherited: float
    weights: float
    grid: float
    largest: float
    steps: float
    clipped: float
    range_gain: float | None = None
    advice: str = ""


@dataclass(frozen=True, repr=False)
class Blame(JsonReport):
    """Result of `micronpu.blame`.

    Attributes:
        rows: number of samples that were measured.
        given_rows: number of samples that were given, of which these are evenly spread.
        calibration_rows: number of samples that chose the ranges.
        calibrated_on_them: True if these are the same samples.
        sqnr: of all outputs together, in dB.
        layers: worst first.
        sort: order of the layers: by the share of the error at the output ("output"), the layer's own error ("own"), or
            its total error ("total").
        metric: of the quantized model, if one is given.
        activations: "int8", or "int16"; without a search, which `micronpu.compile` by default has.
    """

    FORMAT = "micronpu blame"

    target: str
    rows: int
    given_rows: int
    calibration_rows: int
    calibrated_on_them: bool
    sqnr: float
    layers: tuple[LayerError, ...]
    sort: Sort = "output"
    metric: MetricAccuracy | None = None
    activations: str = "int8"

    def sorted(self, by: Sort) -> Blame:
        """Return the result with the layers in another order.

        Raises:
            OptionError: there is no such order.
        """
        return replace(self, layers=tuple(sorted(self.layers, key=_ORDERS[check_sort(by)])), sort=by)

    @property
    def summary(self) -> str:
        """Return a sentence with the accuracy at the output."""
        of = f" of {self.given_rows}" if self.given_rows != self.rows else ""
        where = "that also calibrated" if self.calibrated_on_them else f"beside {self.calibration_rows} of calibration"
        rows = f"against float, on {self.rows}{of} row{'' if self.given_rows == 1 else 's'} {where}"
        metric = "" if self.metric is None else f"{self.metric}; "
        return f"{metric}{decibel_text(self.sqnr)} at the output of the {self.activations} model {rows}."


_ORDERS: dict[str, Callable[[LayerError], float]] = {
    "output": lambda layer: -layer.share if layer.share is not None else math.inf,
    "own": lambda layer: layer.own,
    "total": lambda layer: layer.sqnr,
}


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
        gain: over those kept before, on the samples for choosing.
        kept: True if it helps, and is part of the choices.
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
        sqnr: at the output against float in dB, of all samples that chose nothing together.
        gain: over the first choice, on these samples; None for that.
        cycles: of the NPU and the core, as the program's report estimates them; None without an estimate.
        bytes: of the ``.pte``.
        best: True if no other choice is as near to float for as few cycles and bytes.
        metric: of the quantized model on these samples, if one is given.
    """

    name: str
    quantization: Mapping[str, Any]
    sqnr: float
    gain: Gain | None
    cycles: int | None
    bytes: int
    best: bool = False
    metric: MetricAccuracy | None = None


@dataclass(frozen=True, repr=False)
class Fixes(JsonReport):
    """Result of `micronpu.fix`.

    Attributes:
        calibration_rows, choosing_rows, judging_rows: numbers of samples for each purpose, without overlap.
        attempts: in the order in which they were made.
        choices: the default first, then by distance to float.
        seconds: duration of the search.
        untried: the fixes that the time budget left untried.
        needed: seconds within which the first of these would have ended; 0 if there is none.
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
    needed: float = 0.0

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

    @property
    def summary(self) -> str:
        """Return one sentence: the number of fixes, and the samples they were tried on."""
        kept = sum(attempt.kept for attempt in self.attempts)
        text = (
            f"{len(self.attempts)} fixes tried in {self.seconds:.0f} s, {kept} kept: {self.calibration_rows} rows "
            f"calibrated, {self.choosing_rows} chose, {self.judging_rows} others judged."
        )
        if self.untried:
            limit = math.ceil(self.needed)
            text += f" The time limit was too short for: {', '.join(self.untried)}, of which the first takes until "
            text += f"{limit} s. Try: --time-limit {3 * limit}, budget={3 * limit} in Python."
        return text


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
        weights: dB of the chosen program with float activations: the limit of its int8 weights.
        activations: dB of the chosen program with float weights.
        is_near: True if the chosen program is near float.
        is_interrupted: True if Ctrl+C ended the search.
    """

    points: tuple[Point, ...]
    samples: int
    weights: float = math.inf
    activations: float = math.inf
    is_near: bool = False
    is_interrupted: bool = False

    def with_time(self, milliseconds: float | None) -> Frontier:
        """Return the measurements with the time of the chosen program as it was written."""
        points = tuple(replace(p, milliseconds=milliseconds) if p.is_chosen else p for p in self.points)
        return replace(self, points=points)

    @property
    def choice(self) -> str:
        """Return the chosen precision beside the first program, which is chosen by an option; "" if that is chosen."""
        first, chosen = self.points[0], next(p for p in self.points if p.is_chosen)
        if chosen.name == first.name or not first.hint:
            return ""
        time = "" if first.milliseconds is None else f", {first.milliseconds:.3g} ms"
        option = first.hint.replace("=", " ").replace('"', "")
        return f"{chosen.name}; {first.name} has {decibel_text(first.sqnr)}{time}: {first.hint}, --{option}"

    @property
    def measured(self) -> str:
        """Return accuracy and time of each program."""
        shown = " \N{MIDDLE DOT} ".join(map(str, sorted(self.points, key=lambda p: p.sqnr)))
        return f"Precision: worst output against float on {self.samples} samples: {shown}."

    @property
    def notes(self) -> tuple[str, ...]:
        """Return a note if the chosen program is near float, and one if not all programs were tried."""
        ended = "Precision: Ctrl+C ended the search; this is the best program until then."
        return (*((self.measured,) if self.is_near else ()), *((ended,) if self.is_interrupted else ()))

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
        best = max((p for p in self.points if p.is_chosen or p.hint), key=lambda p: p.sqnr)
        hint = best.hint or "micronpu.fix(model, data, target)"
        return (
            ReportWarning(
                NOTE,
                "precision",
                f"{self.measured.removesuffix('.').removesuffix(f': {best.hint}')}.{limit}",
                hint,
                sqnr=next(p.sqnr for p in self.points if p.is_chosen),
            ),
        )
