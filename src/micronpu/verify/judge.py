"""Accuracy of a quantized model against the float model, measured on held-out samples.

A few samples or recordings often have most of the noise, so that the figure depends on which ones are held out.  Those
that calibrated count too, unless the held-out ones are noisier than these by more than chance.

The report, its warnings and budgets use this measurement, as the search for precision does, without the rounding of
programs that it does not run.  The quantized module runs in torch on all samples, or on whole recordings of a model
with states; a few of them verify that the program computes the same, see `micronpu.verify.program`.

The ratio of an output is dominated by its large values.  If an output is a concatenation, or has channels, elements
that are far smaller than others (boxes beside scores, or channels in different units) are evaluated separately.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import torch

from micronpu.base.arrays import Array
from micronpu.base.errors import ModelError, attempted
from micronpu.base.order import operands_first
from micronpu.frontend.facts import EXTREMES
from micronpu.frontend.graphs import GraphModule, Node, findings
from micronpu.frontend.integers import IntegerIO
from micronpu.frontend.program import Edge, ProgramView, is_conversion, is_float32, value_of
from micronpu.frontend.run import called
from micronpu.frontend.tensors import results_of
from micronpu.quantize.data import Recording, Trial
from micronpu.quantize.nodes import moves
from micronpu.quantize.observing import Extremes
from micronpu.quantize.running import Row, float_leaves, noise, run_recordings
from micronpu.quantize.thresholds import SEVERAL
from micronpu.report.accuracy import (
    Comparison,
    MetricAccuracy,
    OutputAccuracy,
    PartAccuracy,
    ProgramAccuracy,
    Z,
    are_probabilities,
    decibels,
)
from micronpu.report.metrics import Metric
from micronpu.verify import thresholds as at


@dataclass(frozen=True)
class JudgedResults:
    """Results of a quantized module for the samples that count."""

    trial: Trial  # these samples, the held-out ones first
    # Results of the module for each call of each recording, as floats if the float model returns floats; of those that
    # do not count, too.
    plain: list[list[Row]]
    # The same of those that count, with the ranges of other samples where these calibrated, see `left_out`.
    results: list[list[Row]]
    sources: Sequence[ElementSources | None] = ()  # of the elements of each output, see `sources_of`

    def accuracy(self, program: Sequence[Row] = ()) -> ProgramAccuracy | None:
        """Return the accuracy against the float model; None if it is unknown, or without comparable outputs.

        The rounding of a program, which differs from that of the quantized module, adds its own noise: the difference
        of both is added to the module's results.  A call that the program has not run gets that of another call, as
        much of it as the program has more noise than the module in the calls that both have run.

        Args:
            program: results of the program for the first calls; () to judge the quantized module.
        """
        if not self.trial.exact:
            return None
        results, before = self.results, list(itertools.chain.from_iterable(self.plain))
        if program:
            every, exact = (itertools.chain.from_iterable(of) for of in (results, self.trial.exact))
            added = _added_noise(before, program, list(itertools.islice(exact, len(program))))
            calls = iter([_with_program(i, y, before, program, added) for i, y in enumerate(every)])
            results = [list(itertools.islice(calls, len(own))) for own in results]
        return compared(results, self.trial, self.sources)


def _added_noise(plain: Sequence[Row], program: Sequence[Row], exact: Sequence[Row]) -> list[float]:
    """Return for each output the part of the difference of program and module that adds noise, 0 to 1."""
    sums = np.zeros((len(exact[0]), 2))
    for q, p, x in zip(plain, program, exact, strict=False):
        for number, (own, ours, wanted) in enumerate(zip(q, p, x, strict=True)):
            if wanted.is_floating_point():
                y, z, w = (value.double().nan_to_num(0.0, 0.0, 0.0) for value in (own, ours, wanted))
                more = float((z - w).square().sum() - (y - w).square().sum())
                sums[number] += max(more, 0.0), float((z - y).square().sum())
    return [math.sqrt(min(more / difference, 1.0)) if difference > 0 else 0.0 for more, difference in sums.tolist()]


def _with_program(
    number: int, result: Row, plain: Sequence[Row], program: Sequence[Row], added: Sequence[float]
) -> Row:
    """Return the program's result for a call: that of the quantized module with the difference of both."""
    other = number % len(program)
    found = []
    for y, q, p, before, part in zip(result, plain[other], program[other], plain[number], added, strict=True):
        same = number == other and torch.equal(y, before)
        is_sum = y.is_floating_point() and bool((q.isfinite() & p.isfinite()).all())
        found.append(p if same else y + (1.0 if number == other else part) * (p - q) if is_sum else y)
    return tuple(found)


def judge(
    module: GraphModule, trial: Trial, integer_io: IntegerIO | None = None, known: Sequence[Sequence[Row]] | None = None
) -> JudgedResults:
    """Run a quantized module on all samples of a trial, for a comparison with the float model."""
    if integer_io is not None:
        given = [[integer_io.quantize(row) for row in recording] for recording in trial.with_others]
        plain = [[integer_io.dequantize(row) for row in own] for own in run_recordings(module, given)]
    else:
        plain = list(map(list, known or ()))
        plain += run_recordings(module, trial.with_others[len(plain) :])
    results = cross_validated(module, trial, plain, integer_io)
    judged = _counting(trial, results)
    return JudgedResults(judged, plain, results[: len(judged.recordings)], sources_of(module))


def cross_validated(
    module: GraphModule, trial: Trial, plain: list[list[Row]], integer_io: IntegerIO | None = None
) -> list[list[Row]]:
    """Return `left_out` for all samples, and the module's own result for a sample that alone would decide."""
    results = left_out(module, trial, integer_io, plain)
    if trial.exact and (one := _decides_alone(trial, plain, results)) is not None:
        results[one] = plain[one]
    return results


def _decides_alone(trial: Trial, plain: list[list[Row]], results: list[list[Row]]) -> int | None:
    """Return the sample that has more noise than all others together because it is left out; None without one."""
    # The others tell nothing about values that far away, and its own range contains them.
    exact = [*trial.exact, *(trial.others.exact if trial.others is not None else ())]
    powers = _powers(results, exact)
    noises = (powers[..., 1] / np.maximum(powers[..., 0].sum(0), np.finfo(np.float64).tiny)).sum(1)
    if not len(noises) or not np.isfinite(noises).all():
        return None
    most = int(noises.argmax())
    return most if results[most] is not plain[most] and 2 * noises[most] > noises.sum() else None


def _powers(results: Sequence[Sequence[Row]], exact: Sequence[Sequence[Row]]) -> Array:
    powers = [
        np.sum([noise(float_leaves(y), float_leaves(x)) for y, x in zip(*own, strict=True)], 0)
        for own in zip(results, exact, strict=True)
    ]
    return np.reshape(powers, (len(exact), len(float_leaves(exact[0][0])), 2))


def _counting(trial: Trial, results: Sequence[Sequence[Row]]) -> Trial:
    """Return the trial with the samples that count; `results` are for all."""
    others = trial.others if trial.exact else None
    if others is None or are_noisier(len(trial.recordings), results, exact := [*trial.exact, *others.exact]):
        return trial
    calibrated = (*trial.calibrated, *others.calibrated)
    return replace(trial, recordings=trial.with_others, exact=exact, others=None, calibrated=calibrated)


def for_search(trial: Trial, judged: JudgedResults) -> tuple[Trial, list[list[Row]]]:
    """Return the samples that evaluate the programs of a search: the held-out ones, and if these are few, others too.

    Returns:
        The samples, and the results of the judged module for them.
    """
    every, plain = judged.trial, judged.plain
    first, count = len(trial.recordings), len(every.recordings)
    more = min(at.EVALUATED, count) - first
    if more <= 0 or trial.has_states:
        return trial, plain[:first]
    picked = [*range(first), *(first + i * (count - first) // more for i in range(more))]
    rest = [i for i in range(count) if i not in picked]
    own, others = (
        Trial(
            tuple(every.recordings[i] for i in of),
            exact=[every.exact[i] for i in of],
            calibrated=tuple(every.calibrated[i] for i in of) if every.calibrated else (),
            calibrating=every.calibrating,
        )
        for of in (picked, rest)
    )
    found = replace(trial, recordings=own.recordings, exact=own.exact, others=others)
    return replace(found, calibrated=own.calibrated, calibrating=own.calibrating), [plain[i] for i in picked]


def are_noisier(count: int, results: Sequence[Sequence[Row]], exact: Sequence[Sequence[Row]]) -> bool:
    """Return True if the first recordings have more noise, relative to the signal, than the others by more than chance.

    It is the rank-sum test of each output (Mann and Whitney, 1947): no single sample decides it.
    """
    signal, error = np.moveaxis(_powers(results, exact), 2, 0)
    ratios = error / np.maximum(signal, np.finfo(np.float64).tiny)
    ranks = ratios.argsort(0, kind="stable").argsort(0, kind="stable")
    total = len(ranks)
    excess = ranks[:count].mean(0) - (total - 1) / 2
    return bool((excess > at.BY_CHANCE * math.sqrt((total + 1) * (total - count) / (12 * count))).any())


def compared(
    results: Sequence[Sequence[Row]], trial: Trial, sources: Sequence[ElementSources | None] = ()
) -> ProgramAccuracy | None:
    """Return the accuracy of results for all samples; None if there is nothing to compare."""
    found, wanted = (list(itertools.chain.from_iterable(of)) for of in (results, trial.exact))
    lengths, independent = [len(recording) for recording in trial.recordings], _independent(trial)
    outputs = []
    for number, first in enumerate(wanted[0] if wanted else ()):
        if first.is_floating_point() and number < len(found[0]) and found[0][number].shape == first.shape:
            ys, xs = ([row[number].double().numpy() for row in of] for of in (found, wanted))
            against = _on_other_data(Comparison.of(ys, xs, lengths if trial.has_states else None, independent))
            own = sources[number] if number < len(sources) else None
            parts = () if own is None or own.number.shape != xs[0].shape else unequal_parts(ys, xs, own)
            quarters = _over_calls(ys, xs, lengths) if trial.has_states else ()
            outputs.append(OutputAccuracy(number, against, parts=parts, over_calls=quarters))
    integers = _equal_integers(found, wanted)
    if not outputs and integers is None:
        return None
    calls = sum(lengths) if trial.has_states else 0
    metric = metric_accuracy(trial.metric, found, wanted, trial) if trial.metric is not None else None
    also = len(lengths) - len(trial.numbers) if trial.numbers else 0
    return ProgramAccuracy(trial.numbers, trial.of, trial.held_out, tuple(outputs), integers, calls, metric, also)


def _independent(trial: Trial) -> float:
    """Return how many independent samples a mean of the samples varies like; near-duplicates say the same.

    Source: Kish, Survey Sampling (1965), on clusters.
    """
    count, of = len(trial.recordings), trial.calibrated
    return count**2 / max(count, 1, sum(not a.isdisjoint(b) for a in of for b in of) + sum(not a for a in of))


def _on_other_data(against: Comparison) -> Comparison:
    """Return a comparison whose interval covers other data sets, which differ by more than the samples of one.

    Source: Paule and Mandel, Consensus values and weighting factors, J. Res. Natl. Bur. Stand. 87 (1982).
    """
    if against.interval is None or not math.isfinite(against.sqnr):
        return against
    low, high = (math.hypot(end - against.sqnr, Z * at.BETWEEN_DATA) for end in against.interval)
    return replace(against, interval=(against.sqnr - low, against.sqnr + high))


def _over_calls(found: Sequence[Array], wanted: Sequence[Array], lengths: Sequence[int]) -> tuple[float, ...]:
    """Return dB in each quarter of the recordings; () if these have fewer calls than quarters."""
    parts = 4
    powers = np.zeros((parts + 1, 2))  # the last row for short recordings
    calls = [call * parts // n if n >= parts else parts for n in lengths for call in range(n)]
    for quarter, y, x in zip(calls, found, wanted, strict=True):
        known = np.isfinite(x)
        powers[quarter] += np.square(x[known]).sum(), np.square(y[known] - x[known]).sum()
    return tuple(decibels(float(s), float(n)) for s, n in powers[:-1]) if powers[:-1, 0].any() else ()


def _equal_integers(results: Sequence[Row], exact: Sequence[Row]) -> float | None:
    """Return the share of the elements of integer outputs that equal the float model's; None without any."""
    equal = elements = 0
    for ours, floats in zip(results, exact, strict=True):
        for y, x in zip(ours, floats, strict=False):
            if not x.is_floating_point() and not y.is_floating_point() and x.shape == y.shape:
                equal, elements = equal + int((x == y).sum()), elements + x.numel()
    return equal / elements if elements else None


# ---------------------------------------------------------------- samples that calibrated

# A sample that calibrated cannot be clipped, and other data can.  A range follows from the farthest extremes of single
# calls, so that leaving out a sample changes few ranges, by known amounts.  The quantized module runs again with these
# narrower ranges for the samples that they clip: leave-one-out cross-validation without another calibration.
#
# Source: Stone, Cross-validatory choice and assessment of statistical predictions, J. R. Statist. Soc. B 36 (1974).

Limits: TypeAlias = dict[Node, tuple[int, int]]
"""Smallest and largest integer of quantize nodes."""


def left_out(
    module: GraphModule, trial: Trial, integer_io: IntegerIO | None, found: Sequence[list[Row]]
) -> list[list[Row]]:
    """Return the results of a module, for recordings that calibrated with the ranges of the other recordings."""
    results, first = list(found), 0
    view = ProgramView(module)
    edges = findings(module, view.result_qparams)
    nodes = [(node, *EXTREMES.of(node)) for node in edges]
    known = [(node, extremes) for node, name, extremes in nodes if name == node.name]
    for some in [trial] if trial.others is None or not trial.exact else [trial, trial.others]:
        for number, calls in enumerate(some.calibrated, first):
            limits = dict[Node, tuple[int, int]]()
            for node, extremes in known:
                times, rest = divmod(extremes.calls, some.calibrating)  # some observers see several values in a call
                if not rest:
                    seen = calls if times == 1 else {call * times + i for call in calls for i in range(times)}
                    limits |= _limits(node, edges[node], extremes, seen)
            if limits:
                results[number] = _limited_run(module, limits, some.recordings[number - first], integer_io)
        first += len(some.recordings)
    return results


def _limited_run(module: GraphModule, limits: Limits, recording: Recording, integer_io: IntegerIO | None) -> list[Row]:
    """Return the results for a recording with narrower ranges."""
    with _limited(limits):
        if integer_io is None:
            return run_recordings(module, [recording])[0]
        given = [integer_io.quantize(row) for row in recording]
        return [integer_io.dequantize(row) for row in run_recordings(module, [given])[0]]


def _limits(node: Node, edge: Edge, extremes: Extremes, calls: Collection[int]) -> Limits:
    """Return the limits of a quantize node without some calls; empty if they clip nothing that counts."""
    scale, ends, (low, high) = edge.scale, [*edge.limits], edge.range
    noise = at.CLIPPED_NOISE * len(calls) * extremes.values / extremes.calls * scale**2 / 12
    found = list(ends)
    for side, most in enumerate((-low, high)):
        held = [end for end, call in extremes.farthest[side] if call in calls]
        if not held:
            continue
        end = min(most, extremes.without(calls, side))
        if sum(max(own - end, 0.0) ** 2 for own in held) > noise:
            found[side] = max(ends[0], min(ends[1], round((end if side else -end) / scale) + edge.zero_point))
    return {node: (found[0], found[1])} if found != ends and math.isfinite(scale) else {}


@contextmanager
def _limited(limits: Limits) -> Iterator[None]:
    """Narrow the ranges of quantize nodes."""
    before = {node: node.args for node in limits}
    try:
        for node, ends in limits.items():
            (source, scale, zero_point, _, _, *more) = node.args
            node.args = (source, scale, zero_point, *ends, *more)
        yield
    finally:
        for node, args in before.items():
            node.args = args


# ---------------------------------------------------------------- the metric of the user's task


def check_metric(trial: Trial) -> None:
    """Raise `ModelError` if the metric cannot be computed from the float model's outputs, before quantization."""
    if trial.metric is not None and trial.exact:
        exact = list(itertools.chain.from_iterable(trial.exact))
        metric_accuracy(trial.metric, exact, exact, trial)


def metric_accuracy(metric: Metric, found: Sequence[Row], wanted: Sequence[Row], trial: Trial) -> MetricAccuracy:
    """Return the metric of the float and of the quantized model, from their results for each call of the trial."""
    one = metric.is_builtin
    outputs, exact = _arrays(found, one), _arrays(wanted, one)
    inputs = tuple(joined([row[i] for row in trial.rows_of_all]) for i in range(len(trial.rows[0])))
    labels = metric.labels_from(exact) if trial.labels is None else trial.labels
    if isinstance(exact, np.ndarray):
        metric.check(exact, labels)
    values = [metric.score(of, labels, inputs) for of in (exact, exact, outputs)]
    for value in values:
        if math.isnan(value):
            raise ModelError(
                f"The metric `{metric.name}` is not a number (NaN) on the held-out samples.",
                hint="held-out samples of every label that it counts, or a metric that is defined without them",
            )
    if values[0] != values[1]:
        what = f"The metric `{metric.name}` gives {values[0]:g} and {values[1]:g} for the same outputs."
        raise ModelError(what, hint="a metric that draws no random numbers and keeps nothing from call to call")
    lengths = [len(recording) for recording in trial.recordings]
    interval = _bootstrapped(metric, outputs, labels, inputs, lengths)
    missing = metric.missing(exact, labels) if isinstance(exact, np.ndarray) else ()
    return MetricAccuracy(
        metric.name, values[0], values[2], interval, metric.larger_is_better, trial.labels is not None, missing
    )


def _arrays(rows: Sequence[Row], first_only: bool) -> Any:
    """Return an array with a row for each call, or a tuple of arrays for several outputs."""
    columns = [joined(column) for column in zip(*rows, strict=True)]
    return columns[0] if first_only or len(columns) == 1 else tuple(columns)


def joined(values: Sequence[torch.Tensor]) -> Array:
    """Return the values of all calls as one array, along the first axis."""
    arrays = [value.detach().numpy() for value in values]
    return np.concatenate(arrays) if arrays[0].ndim and arrays[0].shape[0] == 1 else np.stack(arrays)


def _bootstrapped(
    metric: Metric, outputs: object, labels: object, inputs: tuple[Array, ...], lengths: Sequence[int]
) -> tuple[float, float] | None:
    """Return the 95 % interval of a metric by resampling samples or recordings; None if few, or if the metric fails."""
    if len(lengths) < SEVERAL:
        return None
    random, ends = np.random.default_rng(0), np.cumsum(lengths)
    calls = [np.arange(end - length, end) for end, length in zip(ends, lengths, strict=True)]

    def drawn(values: Any, numbers: Array) -> Any:
        return tuple(v[numbers] for v in values) if isinstance(values, tuple) else values[numbers]

    found = []
    for _ in range(at.RESAMPLES):
        numbers = np.concatenate([calls[i] for i in random.integers(0, len(lengths), len(lengths))])
        try:
            value = metric.score(drawn(outputs, numbers), drawn(labels, numbers), drawn(inputs, numbers))
        except ModelError:  # a draw may lack a class that the metric needs
            return None
        found.append(value)
    return percentile_interval(np.asarray(found)) if np.isfinite(found).any() else None


def percentile_interval(values: Array) -> tuple[float, float]:
    """Return the central 95 % of some values; NaN is ignored."""
    known = values[np.isfinite(values)]
    low, high = np.percentile(known, at.INTERVAL) if len(known) else (math.nan, math.nan)
    return float(low), float(high)


# ---------------------------------------------------------------- parts of an output whose values differ in size


@dataclass(frozen=True)
class ElementSources:
    """Sources of an output's elements."""

    number: Array  # index into `names` for each element, in the shape of the output; negative for a constant element
    names: tuple[tuple[str, int | None], ...]  # of the sources: the operator, and the channel, or None without channels


def sources_of(module: GraphModule) -> list[ElementSources | None]:
    """Return the sources of each output of a quantized module, None for one with a single source."""
    return [_sources(node) for node in results_of(module)]


def _sources(node: Node) -> ElementSources | None:
    names: list[tuple[str, int | None]] = []
    number = attempted(lambda: _numbered(node, names))  # a copy may not accept integers
    # A cast makes floats of the numbers. Constant elements, with 0 or less, have no source.
    return ElementSources(number.long().numpy() - 1, tuple(names)) if number is not None and len(names) > 1 else None


def _numbered(node: Node, names: list[tuple[str, int | None]]) -> torch.Tensor | None:
    """Return the number of each element's source, moved as the elements are; adds the names of new sources."""
    found: dict[Node, torch.Tensor | None] = {}
    for value in operands_first(node, _moved):
        sources = _moved(value)
        if is_conversion(value):
            found[value] = found[sources[0]]
        elif sources:
            known = [found[source] for source in sources]
            found[value] = None if any(n is None for n in known) else called(value, found)
        else:
            found[value] = _numbers(value, names)
    return found[node]


def _moved(node: Node) -> list[Node]:
    """Return the values whose elements a node returns, moved or with other qparams; [] for other operators."""
    sources = node.all_input_nodes
    if is_conversion(node):
        return sources[:1]
    return sources if moves(node) and all(map(is_float32, sources)) else []


def _numbers(node: Node, names: list[tuple[str, int | None]]) -> torch.Tensor | None:
    """Return numbers of the elements, or of the channels, of a source; adds their names."""
    value = value_of(node)
    if not isinstance(value, torch.Tensor):
        return None
    axis = 1 if value.dim() in (2, 4) else value.dim() - 1
    count = value.shape[axis] if value.dim() > 1 else 0
    first, shape = len(names) + 1, tuple(value.shape)
    if not 2 <= count <= at.CHANNELS:
        names.append((node.name, None))
        return torch.full(shape, first)
    names += [(node.name, channel) for channel in range(count)]
    line = torch.arange(first, first + count).view([-1 if i == axis else 1 for i in range(len(shape))])
    return line.expand(shape)


def unequal_parts(found: Sequence[Array], wanted: Sequence[Array], sources: ElementSources) -> tuple[PartAccuracy, ...]:
    """Return the parts of an output for all samples, largest values first; () if of similar size, or of few values."""
    count = len(sources.names)
    known = (sources.number >= 0) & (sources.number < count)
    place = sources.number[known]
    elements = np.bincount(place, minlength=count)
    signal, noise = np.zeros(count), np.zeros(count)
    low, high = np.inf, -np.inf
    for y, x in zip(found, wanted, strict=True):
        if not np.isfinite(x).all():
            return ()
        low, high = min(low, float(x.min(initial=np.inf))), max(high, float(x.max(initial=-np.inf)))
        signal += np.bincount(place, np.square(x[known]), count)
        noise += np.bincount(place, np.square(y - x)[known], count)
    if are_probabilities(low, high):  # their errors are comparable
        return ()
    sizes = np.sqrt(signal / np.maximum(elements * len(wanted), 1))
    order = [int(i) for i in np.argsort(-sizes, kind="stable") if sizes[i] > at.EMPTY * sizes.max()]
    groups: list[list[int]] = []
    for number in order:
        if groups and sizes[groups[-1][-1]] < at.APART * sizes[number]:
            groups[-1].append(number)
        else:
            groups.append([number])
    fewest = min((elements[group].sum() for group in groups), default=0) * len({x.tobytes() for x in wanted})
    if len(groups) < 2 or fewest < at.ENOUGH_VALUES:
        return ()
    return tuple(
        PartAccuracy(
            _named(sorted(group), sources.names),
            float(np.sqrt(np.mean(np.square(sizes[group])))),
            decibels(float(signal[group].sum()), float(noise[group].sum())),
        )
        for group in groups
    )


def _named(numbers: Sequence[int], names: Sequence[tuple[str, int | None]]) -> str:
    channels: dict[str, list[str]] = {}
    for number in numbers:
        name, channel = names[number]
        channels.setdefault(name, []).extend([] if channel is None else [str(channel)])
    whole = {name: sum(other == name for other, _ in names) for name in channels}
    said = []
    for name, own in channels.items():
        if not own or len(own) == whole[name]:
            said.append(f"`{name}`")
        else:
            more = ", ..." if len(own) > at.SHOWN else ""
            said.append(f"channel{'s' * (len(own) > 1)} {', '.join(own[: at.SHOWN])}{more} of `{name}`")
    return ", ".join(said[: at.SHOWN]) + (f" and {len(said) - at.SHOWN} more" if len(said) > at.SHOWN else "")
