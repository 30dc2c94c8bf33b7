"""Search for the program that is nearest to float in the NPU time that the user allows.

1. int16 everywhere, with corrections, shows whether precision helps. It is taken if it costs little time, as in
   recurrent networks, or if nothing is near float.
2. Corrections that cost nothing on the chip are kept where held-out samples gain.
3. Otherwise operators are given back to int8 as long as the program is near float, in the order of noise removed per
   added cycle, conversions between int8 and int16 included; whole sets are simulated on held-out samples.
4. All up to logarithms of powers is tried in int16.  Operators that compute little are left to the core in float where
   that removes much noise, and these logarithms at any cost: the report shows such a program if it takes too much time.

A network for which int8 suffices keeps its int8 program, byte for byte.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from micronpu.base.errors import MicroNpuError, UnsupportedError
from micronpu.base.leaving import ended_early
from micronpu.base.quiet import quiet
from micronpu.base.texts import plural
from micronpu.chips.chip import ACTIVATIONS
from micronpu.compiler import thresholds as at
from micronpu.compiler.candidates import (
    AFTER,
    CORRECTED,
    CURES,
    PROJECTIONS,
    Allowed,
    Cures,
    Modules,
    Names,
    Results,
    Settings,
    Tried,
    typed,
)
from micronpu.compiler.clock import Clock
from micronpu.compiler.host import Compiled, host_part
from micronpu.frontend.facts import SEARCHED
from micronpu.frontend.graphs import nodes_where
from micronpu.frontend.tensors import copied
from micronpu.frontend.units import work_of
from micronpu.partition.device import Device
from micronpu.quantize.calibrate import calibrated, finished
from micronpu.quantize.calibration_cache import FloatStatistics
from micronpu.quantize.config import Activations
from micronpu.quantize.data import Trial
from micronpu.quantize.identities import front_end, has_magnitudes
from micronpu.quantize.quantization import Quantization
from micronpu.quantize.quantizer import StaticQuantizer
from micronpu.quantize.running import Call, Row, float_leaves, run_recordings, sizes_of
from micronpu.quantize.settings_file import merged, read_quantization
from micronpu.quantize.thresholds import FIT_SAMPLES
from micronpu.report.accuracy import LEAST, LEAST_RECORDINGS
from micronpu.report.diagnosis import Frontier, Point
from micronpu.upstream.session import functions_left, one_thread
from micronpu.verify.changes import expected_changes
from micronpu.verify.judge import ElementSources, compared, cross_validated, for_search, judge, sources_of
from micronpu.verify.sensitivity import Fidelity, Path, PrecisionPrice, Sensitivity, exported_name
from micronpu.verify.thresholds import CHANGED, EXPLAINED, MOST_ORDERED

_MORE_SAMPLES = f"{LEAST} calibration samples or {LEAST_RECORDINGS} recordings, to choose the precision by"


@dataclass(frozen=True)
class Chosen:
    """The quantized modules that were chosen."""

    modules: Modules  # by method; their states are inputs and outputs
    frontier: Frontier | None = None  # measurements; None if int8 suffices
    results: Results = field(default_factory=dict)  # of each method for each call of its trial
    proposal: str = ""  # hint that makes a choice possible; "" if one was made


def allowed_by(how: Quantization, device: Device, compiled: Compiled) -> Allowed | None:
    """Return limits of a search, which keeps what it compiles; None if the user has decided everything."""
    if not how.is_auto or how.slowdown is None:
        return None
    own = {} if how.settings is None else read_quantization(how.settings)

    def quantizer(activations: Activations, settings: Settings) -> StaticQuantizer:
        nodes = {name: part for name, part in settings.get("nodes", {}).items() if name not in own.get("nodes", {})}
        every = merged(settings | {"nodes": nodes}, own)
        wanted = replace(how, activations=activations, max_slowdown=None, settings=every)
        return wanted.quantizer_for(device.quantizer)

    def price(modules: Modules) -> PrecisionPrice:
        copies = [copied(m) for m in modules.values()]
        made = [host_part(m, copy.copy(device)) for m in copies]  # a device keeps decisions about one program
        compiled.update(zip(modules.values(), zip(copies, made, strict=True), strict=True))
        memory = device.chip.memory_for(ACTIVATIONS) if device.chip is not None else None
        if memory is not None and any((part.npu_sram or 0) > memory.bytes for own in made for part in own.partitions):
            raise UnsupportedError(f"The NPU needs more than the chip's {memory}.")
        return PrecisionPrice.of([own.report for own in made])

    return Allowed(quantizer, price, how.slowdown, how.base, is_accurate=how.activations == "accurate")


def chosen(
    modules: Modules,
    sequences: Sequence[Sequence[Call]],
    trials: Mapping[str, Trial],
    plain: Modules,
    allowed: Allowed,
    clock: Clock,
    statistics: FloatStatistics | None,
) -> Chosen:
    """Return the best modules within the time that is allowed.

    Args:
        modules: the float methods; they are not changed.
        trials: samples or recordings for the evaluation of each method, and the float model's results.
        plain: the methods quantized by `allowed.quantizer(allowed.activations, {})`.
        statistics: of that quantization; None for none.
    """
    for trial in trials.values():
        fewest = at.FEWEST_HELD_OUT if trial.held_out else at.FEWEST_CALLS
        if not trial.exact or sum(map(len, trial.recordings)) < fewest:
            return Chosen(plain, proposal=_MORE_SAMPLES if trial.exact else "")
    with torch.no_grad(), quiet(), one_thread():
        with clock.early("verify"):
            judged = {name: judge(plain[name], trial) for name, trial in trials.items()}
            every, counting = ({n: getattr(j, part) for n, j in judged.items()} for part in ("plain", "trial"))
            search = Search(modules, sequences, counting, allowed, statistics)
            first = search.rated(allowed.activations, plain, {}, results=_of(counting, every))
            if first.serves and (first.fidelity.score >= at.CLOSE or not allowed.is_accurate):
                return Chosen(plain, results=every)
            picked = {name: for_search(trial, judged[name]) for name, trial in trials.items()}
            of_search = {name: trial for name, (trial, _) in picked.items()}
            search = Search(modules, sequences, of_search, allowed, statistics)
            known = {name: results for name, (_, results) in picked.items()}
            start = search.rated(allowed.activations, plain, {}, results=known)
        with clock.step("choose") as search.progress:
            found = search.chosen(start)
    return replace(found, results=_of(trials, found.results))


def _of(trials: Mapping[str, Trial], results: Results) -> dict[str, list[list[Row]]]:
    """Return the results for the recordings of trials, which are the first ones."""
    return {name: list(own[: len(trials[name].recordings)]) for name, own in results.items()}


class Search:
    """Makes programs of float methods, and evaluates them.

    All methods get the same corrections and activations, so that they agree on the qparams and weights that they share;
    single operators get another precision only in a program of one method.

    Args:
        modules, sequences, trials, statistics: of `chosen`.

    Attributes:
        attempts: name of each correction that was tried, with the programs before and after it.
        compiled: programs with a price, in order.
        progress: called with the finished fraction.
        first: price of the first program.
    """

    def __init__(
        self,
        modules: Modules,
        sequences: Sequence[Sequence[Call]],
        trials: Mapping[str, Trial],
        allowed: Allowed,
        statistics: FloatStatistics | None = None,
    ) -> None:
        self.modules, self.sequences, self.trials, self.allowed = modules, sequences, trials, allowed
        self.trial = next(iter(trials.values()))  # of the only method
        self.work = {name: macs for module in modules.values() for name, macs in work_of(module).items()}
        self.sizes = {name: size for module in modules.values() for name, size in sizes_of(module).items()}
        self.calls = sum(len(recording) for trial in trials.values() for recording in trial.exact)
        self.has_int16 = allowed.quantizer(allowed.activations, {}).capabilities.has_int16
        self.has_magnitudes = any(map(has_magnitudes, modules.values()))
        self.statistics = FloatStatistics() if statistics is None else statistics
        self.attempts: list[tuple[str, Tried, Tried]] = []
        self.compiled: list[Tried] = []
        self.progress: Callable[[float], None] = lambda part: None
        self.count = 0
        self.first: PrecisionPrice | None = None
        self.sources: dict[str, list[ElementSources | None]] = {}

    def chosen(self, start: Tried) -> Chosen:
        """Return the best program within the time; if Ctrl+C ends the search, the best of those compiled so far."""
        try:
            with ended_early(), functions_left():
                start = self.priced(start)
                tried, most = self.explored(start), self.allowed.slowdown * start.cycles
                best = self.best(tried, most)
                if not best.is_near:  # a correction that harms a program may help what is left to the core of it
                    best = self.corrected(self.on_core(best, most), self.allowed.cures)
                frontier = self.frontier(tried, best, start)
        except KeyboardInterrupt:
            start, *others = self.compiled or [start]
            best = self.best([start, *others], self.allowed.slowdown * start.cycles)
            frontier = self.frontier([best], best, start, is_interrupted=True)
        return Chosen(best.modules, frontier, best.results or {})

    def explored(self, start: Tried) -> list[Tried]:
        """Return programs at several prices, the first one, whose price is known, first."""
        most, everything = self.allowed.slowdown * start.cycles, self.allowed.everything
        first = self.corrected(start, PROJECTIONS)
        tried = [start] if first.settings == start.settings else [start, first]
        wide = self.everywhere(first) if self.has_int16 and start.price is not None and not everything else None
        # If the cheapest is requested and int16 everywhere is near float, fewer operators in int16 may suffice.
        free = at.CHEAP * start.cycles if self.allowed.is_cheapest and wide is not None and wide.reaches else most
        is_dear = wide is not None and wide.cycles > free
        if wide is None or is_dear or not (wide.is_near or wide.gains_on(first) >= at.MOST_CORRECTED):
            narrow = self.corrected(first, self.allowed.cures)
            narrow = self.priced(narrow) if everything else narrow
            tried = [*(tried if everything else tried[:-1]), narrow]
            if everything and self.has_int16 and start.price is not None:
                wide = self.everywhere(narrow)
            tried += [] if narrow.reaches or narrow.is_whole else self.front(narrow)
            # If int16 everywhere gains nothing, some operators in int16 gain nothing either.
            gains = wide is not None and (wide.reaches or wide.gains_on(narrow) >= at.PAID_GAIN)
            if (is_dear and gains and not narrow.reaches) or everything:
                tried += self.mixed(narrow, wide, most)
        return tried if wide is None else [*tried, wide]

    def everywhere(self, first: Tried) -> Tried | None:
        """Return the program with int16 everywhere except operators on the core; None if there is none."""
        cured = merged(first.settings, CORRECTED | ({"projections": True} if self.has_magnitudes else {}))
        own = [name for group in (*PROJECTIONS, *CURES) for name, cure in group if cure.items() <= cured.items()]
        names = tuple(dict.fromkeys([*first.names, *own, "int16 everywhere"]))
        wide = self.quantized("int16", cured, names, first.more)
        self.attempts += [] if wide is None else [("int16 everywhere", first, wide)]
        near = wide is not None and wide.lost < at.LOST and wide.fidelity.score >= at.NEAR
        if wide is None or not (near or self.allowed.everything):  # one of the corrections may do harm
            wide = self.quantized("int16", first.settings, first.names, first.more)
            return None if wide is None else self.corrected(self.priced(wide), (*PROJECTIONS, *self.allowed.cures))
        return self.priced(wide)

    def rated(
        self, activations: Activations, modules: Modules, settings: Settings, results: Results | None = None
    ) -> Tried:
        """Return quantized methods with their distance from float; they are run unless their results are known."""
        if results is None:
            results = {name: run_recordings(module, self.trials[name].recordings) for name, module in modules.items()}
        plain, alone = results, {name: replace(trial, others=None) for name, trial in self.trials.items()}
        results = {name: cross_validated(module, alone[name], list(plain[name])) for name, module in modules.items()}
        fidelity, losses = self.fidelity_of(self.trials, results), list[float]()
        alike, differs, has_decisions = True, False, True
        for name, trial in self.trials.items():
            own = self.fidelity_of({name: trial}, results)
            judges = trial.metric is not None or own.score >= at.FAR
            if judges and name not in self.sources:  # the same for all programs
                self.sources[name] = sources_of(modules[name])
            accuracy = compared(results[name], trial, self.sources[name]) if judges else None
            metric, agreement = (None, None) if accuracy is None else (accuracy.metric, accuracy.agreement)
            if metric is not None:
                losses.append((metric.float_model - metric.quantized) * (1 if metric.larger_is_better else -1))
            if accuracy is not None:
                wants_equal = self.allowed.is_accurate and agreement not in (None, 1.0)
                differs = differs or accuracy.decides_otherwise or wants_equal
            if accuracy is not None and metric is None:  # a part of an output may differ, as scores beside pixels
                differs = differs or (accuracy.sqnr is not None and accuracy.sqnr < at.FAR)
            if accuracy is not None and own.score >= at.NEAR:
                # Scores start a search where it is sure to be needed, and end it well below.
                most = at.LEFT_CHANGED if self.count else CHANGED if own.score < EXPLAINED else math.inf
                scores, sides = expected_changes(results[name], trial, self.sources[name])
                differs = differs or scores > most or sides > at.LEFT_CHANGED
            has_decisions = has_decisions and (agreement is not None or metric is not None)
            decides = agreement == 1.0 or (agreement is None and metric is not None) or own.score >= at.NEAR
            alike = alike and decides and not self.allowed.is_accurate and own.score >= at.FAR
        alike = alike and fidelity.score < at.NEAR
        made = Tried(activations, modules, settings, fidelity, lost=max(losses, default=0.0), results=plain)
        return replace(made, decides_alike=alike, decides_otherwise=differs, has_decisions=has_decisions)

    @staticmethod
    def fidelity_of(trials: Mapping[str, Trial], results: Results) -> Fidelity:
        """Return the distance of results of all calls of trials from the float model's."""
        exact = _side_by_side([trial.exact for trial in trials.values()])
        found = _side_by_side([results[name] for name in trials])
        return Fidelity.of(exact, found, [len(calls) for trial in trials.values() for calls in trial.recordings])

    def quantized(
        self,
        activations: Activations,
        settings: Settings,
        names: Names = (),
        more: str = "",
        known: Modules | None = None,
    ) -> Tried | None:
        """Return a program, or the earlier one of the same settings; None if it cannot be made, or not in the time."""
        for _, _, done in self.attempts:
            if (done.activations, done.settings) == (activations, settings):
                return replace(done, names=names, more=more)
        if not self.allowed.has_time((names or (activations,))[-1] + more):
            return None
        self.progress(min(self.count / at.TRIALS, 1.0))
        self.count += 1
        try:
            return replace(self.made(activations, settings, known), names=names, more=more)
        except MicroNpuError:  # such as an operator without derivatives, or a metric that is not a number
            return None

    def made(self, activations: Activations, settings: Settings, known: Modules | None = None) -> Tried:
        """Return a new program.

        Args:
            known: the float methods calibrated for these settings; not changed.
        """
        quantizers = {name: self.allowed.quantizer(activations, settings) for name in self.modules}
        if known is None:
            known = calibrated(copied(dict(self.modules)), self.sequences, quantizers, None, self.statistics)
        modules = finished(copied(dict(known)), self.sequences, quantizers, self.statistics)
        left = {name for name, own in settings.get("nodes", {}).items() if own.get("float")}
        for node in (n for module in modules.values() for n in module.graph.nodes if left):
            SEARCHED.say(node, exported_name(node, self.work) in left)
        return replace(self.rated(activations, modules, settings), calibrated=known)

    def priced(self, tried: Tried) -> Tried:
        """Return the program with its price, unless it cannot be compiled or exceeds the chip's memory."""
        # One with more operators in float on the core than the first is not faster, although its estimate may be lower.
        try:
            price = self.allowed.price(tried.modules)
        except MicroNpuError:
            return tried
        self.first = self.first or price
        more = price.in_float > self.first.in_float
        return self.kept(tried, replace(price, cycles=max(price.cycles, self.first.cycles)) if more else price)

    def kept(self, tried: Tried, price: PrecisionPrice | None) -> Tried:
        """Return the program with a price, as one to return if the search ends here."""
        made = replace(tried, price=price)
        if price is not None:
            self.compiled.append(made)
        return made

    def corrected(self, tried: Tried, cures: Cures) -> Tried:
        """Return the program with those corrections that bring it nearer to float on the evaluated samples."""
        known = tried.calibrated
        for group in cures:
            found: list[tuple[Tried, bool]] = []
            for name, cure in group:
                settings = merged(tried.settings, cure)
                if self.is_idle(tried, cure, settings):
                    continue
                same, names = set(cure) <= AFTER, (*tried.names, name)
                made = self.quantized(tried.activations, settings, names, tried.more, known if same else None)
                if made is None:
                    continue
                self.attempts.append((name, tried, made))
                known = made.calibrated if same else known
                found += [(made, same)] if self.helps(tried, made) else []
            if found:
                best, same = max(found, key=lambda made: made[0].gains_on(tried))
                tried, known = (self.kept(best, tried.price) if same else self.priced(best)), best.calibrated
        return replace(tried, calibrated=known)

    def helps(self, before: Tried, after: Tried) -> bool:
        if self.allowed.helps is not None:
            return self.allowed.helps(before.fidelity, after.fidelity)
        return after.gains_on(before) >= at.FREE_GAIN

    def is_idle(self, tried: Tried, cure: Settings, settings: Settings) -> bool:
        """Return True if a correction changes nothing, or is not needed."""
        before, after = (self.allowed.quantizer(tried.activations, s).settings for s in (tried.settings, settings))
        if (before.default, before.corrections) == (after.default, after.corrections):
            return True
        if "projections" in cure:
            return not self.has_magnitudes
        if "fit_ranges" in cure:
            costs = sum(self.work.values()) * min(sum(map(len, self.sequences)), FIT_SAMPLES)
            suffices = not self.allowed.everything and (tried.is_near or costs > at.FIT_WORK)
            return tried.activations != "int8" or suffices
        observers = {"activation_observer", "input_observer"} & set(cure.get("default", {}))
        return bool(observers) and "fit_ranges" in tried.settings

    def mixed(self, narrow: Tried, wide: Tried | None, most: float) -> list[Tried]:
        """Return programs with operators in int16 within the time; the path to int16 everywhere is bisected.

        The next set is a smaller one after a program near float or one that takes too long, else a larger one.  Where
        int16 everywhere is near float, and the cheapest is wanted, only sets near float are compiled.
        """
        if wide is None or narrow.is_whole or narrow.price is None:
            return []
        path, found = self.path(narrow, wide), list[Tried]()
        first, last, is_back = 0, len(path.steps), self.allowed.is_cheapest and wide.reaches and wide.cycles <= most
        for _ in range(at.MOST_SETS + self.allowed.everything):
            if (middle := (first + last) // 2) == first:
                break
            parts = path.steps[middle - 1][0]
            nodes = {"nodes": {name: {"activations": "int16"} for name in sorted(parts)}}
            more = f"{narrow.more} with {plural(len(parts), 'operator')} in int16"
            # A correction that harms int8 may help a mixture.
            made = self.quantized("int8", merged(merged(narrow.settings, CORRECTED), nodes), narrow.names, more)
            made = made if made is None or (is_back and not made.reaches) else self.priced(made)
            fits = made is not None and made.cycles <= min(most, wide.cycles)
            found += [made] if made is not None and fits else []
            is_larger = made is not None and not made.reaches and (fits or is_back)
            first, last = (middle, last) if is_larger else (first, middle)
        return found

    def path(self, narrow: Tried, wide: Tried) -> Path:
        """Return the operators in the order in which they become int16."""
        cycles = self._by_name(narrow)
        # int16 everywhere may need more memory than the chip has, and some operators in int16 may not.
        dearer = {n: at.WIDE_COST * own for n, own in cycles.items()} if wide.price is None else self._by_name(wide)
        sensitivity = Sensitivity(narrow.module, self.work, self.for_order(narrow)[0], wide=True)
        return Path(sensitivity, cycles, dearer)

    def for_order(self, tried: Tried, noisiest: bool = True) -> tuple[list[Sequence[Row]], list[list[torch.Tensor]]]:
        """Return samples, or first calls of recordings, with most noise or of any, and the float model's results."""
        nodes = len(tried.module.graph.nodes)
        most = min(at.ORDER_WORK // max(1, sum(self.work.values())), at.ORDER_NODES // max(1, nodes))
        runs = max(1, most // max(1, min(nodes, MOST_ORDERED)))
        recordings, shares = self.trial.recordings, tried.fidelity.shares
        count = min(2 if self.trial.has_states else min(at.ORDER_SAMPLES, runs), len(recordings))
        calls = max(2, min(at.ORDER_CALLS, runs // 2)) if self.trial.has_states else 1
        picked: Sequence[int] = range(0, len(recordings), len(recordings) // count)[:count]
        picked = sorted(range(len(recordings)), key=lambda i: -shares[i])[:count] if noisiest else picked
        return [recordings[i][:calls] for i in picked], _floats([self.trial.exact[i][:calls] for i in picked])

    def _by_name(self, tried: Tried) -> dict[str, float]:
        """Return the cycles of a program by operator of the exported program."""
        assert tried.price is not None
        found = defaultdict[str, float](float)
        cycles = tried.price.operators
        for node in nodes_where(tried.module, lambda node: node.name in cycles):
            found[exported_name(node, self.work)] += cycles[node.name]
        return found

    def on_core(self, best: Tried, most: float) -> Tried:
        """Return the program with small operators in float on the core, if that removes much noise."""
        is_close = best.fidelity.score >= at.CLOSE and not best.decides_otherwise
        if is_close or best.is_whole:
            return best
        recordings, exact = self.for_order(best)
        sensitivity = Sensitivity(best.module, self.work, recordings, wide=False)
        small = [value for value in sensitivity.values if value.parts and self.fits(value.parts)]
        parts = path = frozenset[str]()
        first = left = sensitivity.without(parts) if small else 0.0
        if 2 * first <= sum(sensitivity.of_weights(exact).shares):  # too little is due to activations
            return best
        for value in sensitivity.ordered(small):
            more = path | value.parts
            if more == path or not self.fits(more):
                continue
            path = more  # errors of neighbours may cancel, so that one alone gains nothing
            if (found := sensitivity.without(path)) < left * 10 ** (-at.FREE_GAIN / 10):
                parts, left = path, found
            if sensitivity.alone(value) < at.LEAST_NOISE * left:
                break
        if not parts or left * 10 ** (at.CORE_GAIN / 10) > first:
            return best
        made = self.left_to_core(best, parts)
        return made if made is not None and made.cycles <= max(most, best.cycles) else best

    def fits(self, parts: frozenset[str]) -> bool:
        """Return True if the core can compute some operators in little time."""
        small = at.SMALL_WORK * sum(self.work.values())
        cycles = at.CORE_CYCLES * sum(self.sizes.get(name, math.inf) for name in parts)
        return cycles <= at.CORE_ROOM and len(parts) <= at.MOST_ON_CORE and all(self.work[n] <= small for n in parts)

    def front(self, tried: Tried) -> list[Tried]:
        """Return programs with all up to logarithms of powers in int16, and with these in float on the core instead."""
        inside, before = (sorted(names & self.work.keys()) for names in front_end(*self.modules.values()))
        if not inside:
            return []

        def wide(names: list[str]) -> Tried:
            nodes = {name: {"activations": "int16"} for name in names if self.has_int16}
            more = f"{tried.more} with {plural(len(nodes), 'operator')} in int16" if nodes else tried.more
            return replace(tried, settings=merged(merged(tried.settings, CORRECTED), {"nodes": nodes}), more=more)

        every = wide([*before, *inside])
        made = self.quantized("int8", every.settings, every.names, every.more) if self.has_int16 else None
        found = [] if made is None or made.gains_on(tried) < at.PAID_GAIN else [self.priced(made)]
        on_core = self.left_to_core(replace(wide(before), fidelity=(found or [tried])[0].fidelity), inside)
        return found if on_core is None else [*found, on_core]

    def left_to_core(self, tried: Tried, parts: Collection[str]) -> Tried | None:
        """Return the program with some operators in float on the core, if that is nearer to float."""
        settings = merged(tried.settings, {"nodes": {name: {"float": True} for name in sorted(parts)}})
        more = f"{tried.more} {'and' if tried.more else 'with'} {plural(len(parts), 'operator')} in float on the core"
        made = self.quantized(tried.activations, settings, tried.names, more)
        if made is None or made.gains_on(tried) < at.CORE_GAIN:
            return None
        return self.priced(made)

    def best(self, tried: Sequence[Tried], most: float) -> Tried:
        """Return the cheapest program near float, or else the nearest within the time, the fastest of those as near."""
        near = [t for t in tried if t.reaches and t.cycles <= most]
        if near and self.allowed.is_cheapest:
            return min(near, key=lambda t: t.cycles)
        best = tried[0]
        for other in sorted(tried[1:], key=lambda t: t.cycles):
            if other.cycles <= most and other.gains_on(best) >= at.PAID_GAIN:
                best = other
        return best

    def frontier(self, tried: Sequence[Tried], best: Tried, start: Tried, *, is_interrupted: bool = False) -> Frontier:
        # Corrections that do not help make a new object of the same program.
        own = best.activations, best.settings
        every = [*dict.fromkeys([*(best if (t.activations, t.settings) == own else t for t in tried), best])]
        if self.allowed.is_cheapest and best.name != start.name and not any(t is start for t in tried):
            every.insert(0, start)
        alike = Counter(t.name for t in every)
        points = tuple(
            Point(
                f"{t.name}, corrected" if t.names and alike[t.name] > 1 else t.name,
                t.fidelity.worst,
                getattr(t.price, "milliseconds", None),
                t is best,
                typed(t, best, start),
            )
            for t in every
        )
        weights = activations = math.inf
        if not best.is_whole and not is_interrupted:
            recordings, exact = self.for_order(best, noisiest=False)
            if len(exact) >= at.FEWEST_LIMITS:
                weights, activations = Sensitivity(best.module, self.work, recordings, wide=False).limits(exact)
        return Frontier(points, self.calls, weights, activations, best.is_near, is_interrupted)


def _floats(results: Sequence[Sequence[Row]]) -> list[list[torch.Tensor]]:
    return [float_leaves(row) for recording in results for row in recording]


def _side_by_side(methods: Sequence[Sequence[Sequence[Row]]]) -> list[list[torch.Tensor]]:
    """Return the float outputs of each call of all methods; in a call of one, those of the others are empty."""
    calls = [_floats(own) for own in methods]
    empty = [[torch.zeros(0)] * len(own[0]) if own else [] for own in calls]
    return [list(itertools.chain(*empty[:i], row, *empty[i + 1 :])) for i, own in enumerate(calls) for row in own]
