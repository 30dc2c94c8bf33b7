"""Warnings about programs that are far from the float model: the distance, and the operator that costs most.

The comparison itself is in `verify`; here its figures become warnings.  Single operators are only measured if an output
is far from float.
"""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, chain
from operator import attrgetter
from typing import Any

import torch

from micronpu.base.order import reachable
from micronpu.base.quiet import quiet
from micronpu.frontend.facts import EXTREMES
from micronpu.frontend.graphs import GraphModule, Node, nodes_where
from micronpu.frontend.importer import known_import
from micronpu.frontend.program import Edge, arguments, is_compute, is_dequantize_channel, origin_of
from micronpu.frontend.run import Values
from micronpu.ir.lowering import facts_of
from micronpu.ir.op import OutputQuantization
from micronpu.quantize.data import Trial
from micronpu.quantize.loops import loops_of
from micronpu.quantize.nodes import rule_of
from micronpu.quantize.running import (
    DequantizedReference,
    RoundedLayer,
    Rounding,
    Row,
    float_leaves,
    noise,
    side_by_side,
)
from micronpu.quantize.thresholds import ACTIVATION_EPS, EXAMINED_AGAIN, SEVERAL
from micronpu.report.accuracy import WRONG, Comparison, OutputAccuracy, ProgramAccuracy, decibel_text, decibels
from micronpu.report.warnings import NOTE, WARNING, ReportWarning
from micronpu.upstream.session import one_thread
from micronpu.verify import thresholds
from micronpu.verify.sensitivity import Beside, Fidelity, beside_own_qparams, exported_call
from micronpu.verify.static_checks import place_of

MSE = 'quantization=Quantization(settings={"default": {"weight_observer": "mse"}})'
"""Hint: ranges of weights with the least squared error."""


@dataclass(frozen=True)
class _Cause:
    """The largest cause of noise at an output."""

    layer: RoundedLayer | None = None  # the operator; None if it is not a single one
    own: float = math.inf  # ratio of its result against the exact one, on exact operands, in dB
    alone: float = math.inf  # ratio of the output if nothing else is rounded, in dB
    share: float = 0.0  # share of the noise at the output; may exceed 1
    # Ratio of the output if only weights are rounded, in dB, if that explains most of the noise: the cause is then the
    # weights, or decompositions of operators.
    written: float | None = None
    reach: tuple[float, float] = (0.0, 0.0)  # smallest and largest exact value of the operator

    @property
    def place(self) -> dict[str, Any]:
        """The place of the operator, as fields of a warning."""
        return place_of(None if self.layer is None else self.layer.first)


def warnings_of(
    module: GraphModule,
    trial: Trial,
    results: Sequence[Sequence[Row]],
    accuracy: ProgramAccuracy | None,
    proposal: str,
    *,
    in_float: bool,
) -> tuple[ReportWarning, ...]:
    """Return a warning for each output that is far from float, and a note for each that is rather far."""
    if accuracy is None or not any(trial.exact):
        return ()
    search = _Search(module, trial, results, proposal, in_float)
    found = [make(i, search) for make in (_not_finite, _constant) for i in range(len(search.exact[0]))]
    for output in accuracy.outputs:
        if output.float_model is not None and output.float_model.sqnr < thresholds.NEAR:
            found.append(_far(output.output, output.float_model, accuracy, search))
        elif (part := _far_part(output, accuracy)) is not None:
            found.append(part)
        elif output.float_model is not None:
            text = _other_answers(output.output, output.float_model, accuracy)
            found.append(text or _avoidable(output.output, output.float_model, search))
    found.append(_other_integers(accuracy))
    return tuple(sorted(filter(None, found), key=lambda w: (w.level != WARNING, w.output or 0)))


def first_causes(
    module: GraphModule, trial: Trial, found: Sequence[ReportWarning], lost: Sequence[ReportWarning]
) -> tuple[ReportWarning, ...]:
    """Return warnings in order: a cause before the model comes first, with what the rest reaches without it."""
    causes = [w for w in lost if w.rule == "int8-power"]
    if not causes or trial.has_states or not any(w.rule == "far-from-float" for w in found):
        return (*found, *lost)
    rest = _without({w.node for w in causes}, module, trial)
    first = replace(
        causes[0], what=f"{causes[0].what} With all before it in float, the output is {decibel_text(rest)}."
    )
    return (first, *found, *(w for w in lost if w is not causes[0]))


def _without(names: set[str], module: GraphModule, trial: Trial) -> float:
    """Return dB of the worst output if some operators and all before them are in float, on a few samples."""
    nodes = [node for node in nodes_where(module, is_compute) if exported_call(node)[0] in names]
    before = set(reachable(nodes, attrgetter("all_input_nodes")))
    reference = DequantizedReference(module)
    rounding = {layer.quantize: layer.edge.rounded for layer in reference.layers if layer.quantize not in before}
    rows, exact = trial.rows_of_all[:SEVERAL], list(chain.from_iterable(trial.exact))
    with torch.no_grad(), quiet(), one_thread():
        found = [reference.outputs(reference.exact(row, rounding)) for row in rows]
    return Fidelity.of([float_leaves(row) for row in exact[: len(rows)]], found).worst


def _far(number: int, against: Comparison, accuracy: ProgramAccuracy, search: _Search) -> ReportWarning:
    text = f"Output {number} is {against.against('float')}, {accuracy.measured_on}."
    known: dict[str, Any] = {"output": number, "sqnr": against.sqnr, "agreement": against.agreement}
    peak = max(float(_finite(row[number]).abs().max()) for row in search.exact)
    if not peak:
        what = (
            f"Output {number} of the float model is 0 for all samples, {accuracy.measured_on}: its accuracy is unknown."
        )
        return ReportWarning(NOTE, "uninformative-data", what, "samples for which it is not 0", output=number)
    if peak < thresholds.FRESH * ACTIVATION_EPS["int8"]:
        what = (
            f"{text} In float it is {peak:.3g} at most, and int8's smallest scale is {ACTIVATION_EPS['int8']:.3g}: "
            "the weights look untrained, so that the accuracy is not meaningful."
        )
        hint = "the trained weights, or larger units where values of that size are meant"
        return ReportWarning(NOTE, "fresh-weights", what, hint, **known)
    level = WARNING if against.sqnr < thresholds.FAR else NOTE
    cause = search.cause(number)
    if cause.written is not None and cause.written > against.sqnr + thresholds.MARGIN:
        cause = _Cause()  # of other samples, such as one at which an angle jumps
    what, hint = _cause_text(cause, search, search.proposal)
    return ReportWarning(level, "far-from-float", f"{text} {what}", hint, **known, **cause.place)


def _far_part(output: OutputAccuracy, accuracy: ProgramAccuracy) -> ReportWarning | None:
    """Return a warning for an output with a part of small values that is far from float, though the output is not."""
    worst = min(output.parts, key=lambda part: part.sqnr, default=None)
    if worst is None or worst.sqnr >= thresholds.NEAR:
        return None
    return ReportWarning(
        WARNING if worst.sqnr < thresholds.FAR else NOTE,
        "unequal-parts",
        f"Output {output.output}: {worst} against float, {accuracy.measured_on}; it shares its qparams with values of "
        f"size {max(part.rms for part in output.parts):.3g}.",
        "parts that are returned separately, each with its own qparams, or scaled to similar sizes",
        output=output.output,
        sqnr=worst.sqnr,
    )


def _other_answers(number: int, against: Comparison, accuracy: ProgramAccuracy) -> ReportWarning | None:
    """Return a warning for an output whose top-1 results change, although its noise is small."""
    share = against.agreement
    wrong = against.rows - (against.agreeing or 0)
    is_near = against.sqnr >= thresholds.EXPLAINED
    if share is None or 1 - share <= thresholds.FEW_CHANGED or (is_near and wrong < 2):
        return None
    return ReportWarning(
        WARNING if 1 - share >= WRONG and not is_near else NOTE,
        "other-answers",
        f"The top-1 class of output {number} differs from float in {wrong} of {against.rows} samples, "
        f"{accuracy.measured_on}, at {decibel_text(against.sqnr)}.",
        "micronpu.evaluate on labelled samples, which shows whether the accuracy drops; "
        + ("scores that differ by more of their range, as before a softmax" if is_near else "micronpu.fix"),
        output=number,
        sqnr=against.sqnr,
        agreement=share,
    )


def _avoidable(number: int, against: Comparison, search: _Search) -> ReportWarning | None:
    """Return a note for an output that is further from float than int8 requires."""
    if against.sqnr >= thresholds.EXPLAINED + thresholds.MARGIN or (beside := search.beside(number)) is None:
        return None
    if min(against.sqnr, beside.sqnr) >= thresholds.EXPLAINED or beside.lost < thresholds.AVOIDABLE:
        return None
    cause = search.cause(number)
    what, hint = _cause_text(cause, search, "")  # an automatic precision may stay
    return ReportWarning(
        NOTE,
        "avoidable-noise",
        f"Output {number} is {decibel_text(beside.sqnr)} against float on {beside.rows} calibration samples, and would "
        f"be {decibel_text(beside.possible)} with separate qparams for the result of every operator. {what}",
        hint,
        output=number,
        sqnr=beside.sqnr,
        **cause.place,
    )


def _other_integers(accuracy: ProgramAccuracy) -> ReportWarning | None:
    """Return a warning for integer outputs, such as positions of the largest values."""
    share = accuracy.integers
    if share is None or 1 - share <= thresholds.FEW_CHANGED:
        return None
    return ReportWarning(
        WARNING if 1 - share >= WRONG else NOTE,
        "other-answers",
        f"{1 - share:.0%} of the integers in the outputs differ from float, {accuracy.measured_on}.",
        "the scores that they are computed from as an output; micronpu.blame(model, data, target)",
        agreement=share,
    )


def _not_finite(number: int, search: _Search) -> ReportWarning | None:
    """Return a warning for an output that is NaN or infinite in float, which comparisons ignore."""
    for place, row in enumerate(search.exact):
        if not row[number].is_floating_point() or bool(row[number].isfinite().all()):
            continue
        kind = "NaN" if bool(row[number].isnan().any()) else "infinity"
        node = search.first_not_finite(place, kind == "NaN")
        where = origin_of(node) if node is not None else None
        first = f"; first computes it `{where.nodes[0]}`{where.at}" if where else ""
        return ReportWarning(
            WARNING,
            "not-finite",
            f"Output {number} of the float model holds {kind} for {search.name_of(place)}{first}.",
            "rows without it, or a look for a division by zero and the logarithm of what is not positive",
            output=number,
            **place_of(node),
        )
    return None


def _constant(number: int, search: _Search) -> ReportWarning | None:
    """Return a note for an output that is the same for all samples, whose accuracy means nothing for others."""
    values = [row[number] for row in search.exact]
    first, *others = search.trial.rows_of_all
    # Else the data are to blame.
    differ = any(not x.equal(y) for row in others for x, y in zip(row, first, strict=True))
    is_same = bool(values[0].any()) and all(map(values[0].equal, values[1:]))
    if len(values) < SEVERAL or not differ or not is_same:
        return None
    what = f"Output {number} of the float model is the same for all {len(values)} samples: its accuracy and interval "
    what += "are those of this one result."
    return ReportWarning(NOTE, "uninformative-data", what, "samples with other results", output=number)


def _finite(values: torch.Tensor) -> torch.Tensor:
    return torch.cat([values.new_zeros(1), values[values.isfinite()]])


# ---------------------------------------------------------------- which operator


class _Search:
    """Searches the operators that cost most; intermediate results are kept for other outputs."""

    def __init__(
        self, module: GraphModule, trial: Trial, results: Sequence[Sequence[Row]], proposal: str, in_float: bool
    ) -> None:
        self.trial, self.proposal = trial, proposal
        self.exact = list(chain.from_iterable(trial.exact))
        self.module, self._in_float = module, in_float
        self._rows, self._found = trial.rows_of_all, list(chain.from_iterable(results))
        # Number of the first call of each recording.
        self._starts = list(accumulate(map(len, trial.recordings), initial=0))[:-1]
        self._known: dict[int, Values] = {}
        self._owns: dict[int, dict[RoundedLayer, torch.Tensor]] = {}
        self._ratios: dict[RoundedLayer, float] = {}
        self._alone: dict[RoundedLayer, list[float]] = {}

    def _place_of(self, call: int) -> int:
        return bisect(self._starts, call) - 1

    def name_of(self, call: int) -> str:
        """Return the name of a call in messages."""
        if not self.trial.numbers:
            return "the example inputs"
        if not self.trial.has_states:
            return f"calibration sample {self.trial.numbers[call]}"
        place = self._place_of(call)
        return f"call {call - self._starts[place]} of calibration recording {self.trial.numbers[place]}"

    @cached_property
    def _dequantized(self) -> DequantizedReference:
        return DequantizedReference(self.module)

    @cached_property
    def _totals(self) -> list[list[tuple[float, float]]]:
        """The power, by call and float output, of the float result and of the quantized model's error."""
        return [noise(float_leaves(y), float_leaves(x)) for y, x in zip(self._found, self.exact, strict=True)]

    @cached_property
    def _recordings(self) -> list[range]:
        """The recordings with most noise, as ranges of calls; only the first calls of long ones."""
        lengths = [min(len(recording), thresholds.BLAME_CALLS) for recording in self.trial.recordings]
        found = [range(first, first + length) for first, length in zip(self._starts, lengths, strict=True)]
        sums = [sum(s for s, _ in column) or 1.0 for column in zip(*self._totals, strict=True)]

        def share(calls: range) -> float:
            own = zip(*(self._totals[i] for i in calls), strict=True)
            return max((sum(n for _, n in column) / whole for column, whole in zip(own, sums, strict=True)), default=0)

        return sorted(found, key=share, reverse=True)[: 1 if self.trial.has_states else SEVERAL]

    @cached_property
    def _calls(self) -> list[int]:
        return list(chain.from_iterable(self._recordings))

    def cause(self, output: int) -> _Cause:
        """Return the largest cause of the noise at an output."""
        place = self._place(output)
        with torch.no_grad(), quiet(), one_thread():
            signal, total = (sum(self._totals[i][place][k] for i in self._calls) for k in (0, 1))
            bare = sum(noise(self._outputs(i), float_leaves(self.exact[i]))[place][1] for i in self._calls)
            if bare >= total / 2:
                return _Cause(written=decibels(signal, bare), share=bare / max(total, 1e-30))
            return self._costliest(place, signal, total)

    def _place(self, output: int) -> int:
        """Return the index of an output among those that are floats."""
        return sum(v.is_floating_point() for v in self.exact[0][:output])

    def beside(self, output: int) -> Beside | None:
        """Return the distance that int8 allows; None if unknown, or slow to compute."""
        return None if self._beside is None else self._beside[self._place(output)]

    @cached_property
    def _beside(self) -> list[Beside] | None:
        seen, tried = self.trial.seen, min(len(self._rows), EXAMINED_AGAIN // 2)
        most = thresholds.BLAME_WORK // max(1, thresholds.LOOKS * self.trial.macs) - tried
        is_looped = any(loops_of(self.module))  # the steps of a loop are not rounded one by one
        if self.trial.has_states or not self._in_float or min(len(seen), most) < SEVERAL or is_looped:
            return None
        with torch.no_grad(), quiet(), one_thread():
            return beside_own_qparams(
                self._dequantized, self._rows[:tried], self.exact[:tried], self._found[:tried], seen[:most]
            )

    def first_not_finite(self, row: int, nan: bool) -> Node | None:
        """Return the first operator that computes NaN, or infinity, in float."""
        with torch.no_grad(), quiet(), one_thread():
            values = self._values(row)
        for node, value in values.items():
            if not is_compute(node) or not isinstance(value, torch.Tensor) or not value.is_floating_point():
                continue
            if bool((value.isnan() if nan else value.isinf()).any()):
                return node
        return None

    # ---------------------------------------------------------------- values and states

    def _outputs(self, call: int) -> list[torch.Tensor]:
        return self._dequantized.outputs(self._values(call))

    def _values(self, call: int) -> Values:
        if call in self._known:
            return self._known[call]
        states = self._dequantized.initial
        first = self._starts[self._place_of(call)] if states else call
        for number in range(first, call + 1):
            if number not in self._known:
                self._known[number] = self._dequantized.exact((*self._rows[number], *states))
            states = self._dequantized.split(self._known[number])[1]
        return self._known[call]

    # ---------------------------------------------------------------- one operator at a time

    def _costliest(self, place: int, signal: float, total: float) -> _Cause:
        """Return the operator that adds most of the noise; among similar ones, the first."""
        # A value and the result computed from it often cost as much: then the operator whose own error is large is
        # named.
        self._measure()
        count = min(
            thresholds.MOST_ORDERED, max(2, thresholds.BLAME_WORK // max(self.trial.macs * len(self._calls), 1))
        )
        tried = list(self._ratios)
        if self.trial.has_states:
            worst = set(sorted(tried, key=self._ratios.__getitem__)[:count])
            self._all_in_turn(tried := [layer for layer in tried if layer in worst])
        while len(tried) > count:  # the half that adds more noise in the noisiest call
            middle = len(tried) // 2
            tried = max(tried[:middle], tried[middle:], key=lambda some: self._noise_of_all(some, place))
        errors = {layer: self._noise_of(layer)[place] for layer in tried}
        most = max(errors.values(), default=0.0)
        alike = [layer for layer in tried if errors[layer] >= thresholds.ALIKE * most and errors[layer] > 0]
        if not alike:
            return _Cause()
        seen = {layer: self._own_as_read(layer, place, errors[layer]) for layer in alike}
        far = [layer for layer in alike if seen[layer][0] < thresholds.NEAR]
        layer = far[0] if far else max(alike, key=lambda layer: errors[layer])
        (own, reach), error = seen[layer], errors[layer]
        return _Cause(layer, own, decibels(signal, error), error / max(total, 1e-30), reach=reach)

    def _own_as_read(self, layer: RoundedLayer, place: int, error: float) -> tuple[float, tuple[float, float]]:
        """Return a layer's own ratio and its extremes, without values that saturate and that no reader distinguishes.

        Readers such as a comparison or a clamp give the same result for all values beyond a limit, which the qparams
        may then leave out.  A layer that is not rounded at all, such as a comparison, only passes errors on.
        """
        limits = layer.edge.range
        values = {call: _finite(self._values(call)[layer.quantize]) for call in self._calls}
        if all(torch.equal(layer.edge.rounded(value), value) for value in values.values()):
            return math.inf, limits
        ends = torch.stack([torch.stack(value.aminmax()) for value in values.values()])
        low, high = float(ends[:, 0].min()), float(ends[:, 1].max())
        if limits[0] <= low and high <= limits[1]:
            return self._ratios[layer], (low, high)
        cut = {call: self._values(call)[layer.quantize].clamp(*limits) for call in self._calls}
        lost = 0.0
        for call, value in cut.items():
            found = self._dequantized.alone(self._values(call), {layer.quantize: value})
            lost += noise(found, self._outputs(call))[place][1]
        if lost > thresholds.READ * error:
            return self._ratios[layer], (low, high)
        pairs = [noise([own[layer]], [cut[call]])[0] for call, own in self._owns.items()]
        ratio = decibels(sum(signal for signal, _ in pairs), sum(rest for _, rest in pairs))
        return ratio, (max(low, limits[0]), min(high, limits[1]))

    def _measure(self) -> None:
        if self._owns:
            return
        powers = {layer: (0.0, 0.0) for layer in self._dequantized.layers if not layer.moves}
        for call in self._calls[:: max(1, len(self._calls) // thresholds.OWN_CALLS)]:
            self._owns[call] = {}
            for layer, wanted, own in self._dequantized.own(self._values(call)):
                if layer in powers:
                    ((x, error),) = noise([own], [wanted])
                    powers[layer] = (powers[layer][0] + x, powers[layer][1] + error)
                    self._owns[call][layer] = own
        self._ratios = {layer: decibels(x, error) for layer, (x, error) in powers.items() if x > 0 and error > 0}

    def _noise_of_all(self, layers: Sequence[RoundedLayer], place: int) -> float:
        """Return the noise of an output in the noisiest call if some layers are rounded."""
        call = self._calls[0]
        found = self._dequantized.exact(self._rows[call], {layer.quantize: layer.edge.rounded for layer in layers})
        return noise(self._dequantized.outputs(found), self._outputs(call))[place][1]

    def _noise_of(self, layer: RoundedLayer) -> list[float]:
        if layer not in self._alone:
            found = [
                noise(
                    self._dequantized.alone(self._values(call), {layer.quantize: self._owns[call][layer]}),
                    self._outputs(call),
                )
                for call in self._calls
            ]
            self._alone[layer] = [sum(error for _, error in column) for column in zip(*found, strict=True)]
        return self._alone[layer]

    def _all_in_turn(self, layers: Sequence[RoundedLayer]) -> None:
        """Measure layers of a model with states: each layer alone through all calls, so that its error persists in
        states.

        All layers run in one batch, whose entries differ in the rounded layer.
        """
        wanted = [layer for layer in layers if layer not in self._alone]
        if not wanted:
            return

        def call_of(which: torch.Tensor, row: Row, states: Row) -> tuple[list[torch.Tensor], Row]:
            def rounding(edge: Edge, number: int) -> Rounding:
                return lambda value: torch.where(which == number, edge.rounded(value), value)

            but = {layer.quantize: rounding(layer.edge, number) for number, layer in enumerate(wanted)}
            return self._dequantized.split(self._dequantized.exact(row + states, but))

        count = len(wanted)
        states = tuple(s.expand(count, *s.shape).clone() for s in self._dequantized.initial)
        batched = side_by_side(call_of, in_dims=(0, None, 0))
        totals = [[0.0] * len(self._totals[0]) for _ in wanted]
        for call in self._calls:
            found, states = batched(torch.arange(count), self._rows[call], states)
            exact = self._outputs(call)
            for number, own in enumerate(totals):
                for place, (_, error) in enumerate(noise([y[number] for y in found], exact)):
                    own[place] += error
        self._alone.update(zip(wanted, totals, strict=True))


def _weight_tries(module: GraphModule) -> str:
    """Return the settings of weights that a module does not have yet."""
    of_channels = nodes_where(module, is_dequantize_channel)
    tries = [] if of_channels else ["per_channel=True"]
    tries += ["weight_bits=8"] if any(int(arguments(n)["quant_max"]) < 127 for n in of_channels) else []
    return ", ".join([*tries, MSE, "quantization-aware training"])


def _is_prescribed(node: Node) -> bool:
    """Return True if the qparams of an operator's result do not depend on values, as those of a sigmoid."""
    entry = known_import(node)
    return entry is not None and rule_of(node, entry).output is OutputQuantization.FIXED


def _extremes_of(layer: RoundedLayer) -> list[list[float]]:
    """Return the farthest extremes of single calls of calibration, downwards and upwards; [] if they are unknown."""
    name, extremes = EXTREMES.of(layer.quantize)
    known = extremes is not None and name == layer.quantize.name
    return [[end for end, _ in side] for side in extremes.farthest] if known else []


def _cause_text(cause: _Cause, search: _Search, proposal: str) -> tuple[str, str]:
    """Return the description of a cause, and what to try; `proposal` is first."""
    look = ["micronpu.blame(model, data, target)", "micronpu.fix(model, data, target)"]
    if cause.written is not None:
        what = f"Rounding only the weights already gives {decibel_text(cause.written)}: "
        what += "the weights are the cause, or rewrites of operators."
        chosen = f"{proposal}, " if proposal else ""
        return what, f"{chosen}{_weight_tries(search.module)}; `micronpu passes` lists rewrites that can be disabled"
    if cause.layer is None:
        return "No single operator costs much of it.", ", ".join(look)
    place = cause.place
    where = f" ({place['source']})" if place["source"] else ""
    name = f"`{place['node']}`{where}"
    dtype = str(arguments(cause.layer.quantize)["dtype"]).removeprefix("torch.")
    auto = [proposal] if proposal and dtype == "int8" else []
    if cause.share < thresholds.CAUSE:
        what = f"No single operator costs much of it; most costs {name}, {decibel_text(cause.alone)} with all else"
        return f"{what} in float.", ", ".join([*auto, *look])
    most_costs = (
        f"Most costs {name} in {dtype}: its own result is at {decibel_text(cause.own)} on exact operands, and with all "
        f"else in float the output is at {decibel_text(cause.alone)}."
    )
    (low, high), (least, most) = cause.layer.edge.range, cause.reach
    what = f"{most_costs} Its values reach from {least:.3g} to {most:.3g}, its int8 range from {low:.3g} to {high:.3g}"
    if max(low - least, most - high) > thresholds.CLIPPED * (high - low):
        seen = [side[0] for side in _extremes_of(cause.layer)] or [-math.inf, -math.inf]
        was_seen = (least >= low or seen[0] >= -least) and (most <= high or seen[1] >= most)  # and left out
        # A wider range makes the first step of such a function, and of what it reads, coarser.
        _, name = exported_call(cause.layer.first)
        spreads = facts_of(name.removeprefix("aten.")).amplifier is not None
        missing = [] if was_seen or spreads else ["calibration samples with such values"]
        return f"{what}.", ", ".join([*missing, *look])
    if high - low > thresholds.WIDE * (most - least) > 0 and not _is_prescribed(cause.layer.first):
        limit, ends = thresholds.WIDE / 2 * (most - least), _extremes_of(cause.layer)
        if any(side[0] > limit for side in ends) and all(side[-1] <= limit for side in ends):
            what += ": few of the calibration data have values of such size."
            return what, ", ".join(["calibration data without them, if they are not typical", *look])
        what += ": a constant or another value with the same qparams widens the range."
        return what, ", ".join(["padding and masks no larger than the values beside them", *look])
    return most_costs, ", ".join([*auto, *look])
