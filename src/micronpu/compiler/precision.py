"""The search for the program that is nearest to float in the NPU time that the user allows.

1. Corrections that cost nothing on the chip are kept where held-out samples gain.
2. int16 everywhere is taken where it costs little time, as in recurrent networks.
3. Otherwise operators become int16 in the order of noise removed per added cycle, conversions between int8 and int16
   included; whole sets are simulated on held-out samples, and the best are compiled.
4. Operators that compute little are left to the core in float where that removes much noise.

A network that int8 serves keeps its int8 program, byte for byte.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch.fx import GraphModule, Node

from micronpu.base.errors import MicroNpuError
from micronpu.base.quiet import quiet
from micronpu.compiler.host import host_part
from micronpu.compiler.judge import compared
from micronpu.compiler.sensitivity import MOST_ORDERED, Fidelity, Sensitivity, Value, names_of
from micronpu.frontend.program import overload_name
from micronpu.frontend.states import States
from micronpu.frontend.work import work_of
from micronpu.partition.device import Device
from micronpu.quantize.attributes import attribute
from micronpu.quantize.calibrate import forget, quantize
from micronpu.quantize.config import QuantizationConfig
from micronpu.quantize.corrections import Corrections
from micronpu.quantize.loops import loops_of
from micronpu.quantize.magnitudes import has_magnitudes
from micronpu.quantize.quantization import Quantization
from micronpu.quantize.quantizer import StaticQuantizer
from micronpu.quantize.recordings import run_recordings
from micronpu.quantize.running import Row
from micronpu.quantize.trial import Trial
from micronpu.quantize.unrounded import float_leaves
from micronpu.report.precision import Frontier, Point
from micronpu.report.texts import plural
from micronpu.upstream.session import one_thread

NEAR, FAR = 26.0, 20.0
"""dB from which int8 is left as it is, and below which NPU time may be spent."""
_FREE_GAIN, _PAID_GAIN = 0.5, 1.0
"""dB on held-out samples that a correction has to bring, and a program that takes more time."""
_FEWEST_HELD_OUT, _FEWEST_CALLS = 2, 64
"""Held-out calls, and calls that also calibrated, below which nothing is chosen."""
_ORDER_SAMPLES, _CALLS = 8, 64
"""Samples, and calls of a recording, that order the values."""
_ORDER_WORK, _FIT_WORK = 12_000_000_000, 4_000_000_000
"""MACs that the ordering of values and the search for ranges may take."""
_ORDER_NODES = 400_000
"""Operators that the ordering of values may run."""
_DOWN, _UP = 3.2, 1.03
"""NPU cycles that the conversion of a number from int16 to int8 takes, and that from int8 to int16 (Vela's figures)."""
_CLOSE, _CORE_GAIN = 40.0, 3.0
"""dB up to which operators are computed on the core, and dB that they have to bring."""
_CORE_CYCLES, _CORE_ROOM, _MOST_ON_CORE = 30.0, 20_000.0, 12
"""Cycles of the core for a number that an operator computes in float; cycles and operators that this may take."""
_METRIC, _LOST = 1e-3, 1e-2
"""Difference of the user's metric from which it decides between two programs, and loss that is none."""
_UNEVEN = 0.03
"""Relative error of a constant factor from which it is left to the core."""
_STOPS = (0.2, 0.5, 1.0)
"""Parts of the time that may be added at which a set of operators is simulated."""


@dataclass(frozen=True)
class Price:
    """What a compiled program takes.

    Attributes:
        cycles: of the NPU and the core.
        milliseconds: None where the clock is not known.
        operators: cycles by the name of a node of the quantized module.
    """

    cycles: float
    milliseconds: float | None
    operators: Mapping[str, float]


@dataclass(frozen=True)
class Allowed:
    """What a search may do.

    Attributes:
        quantizer: makes the quantizer for "int8" or "int16" activations.
        price: compiles a quantized module.
        slowdown: time that a program may take, as a multiple of that of int8; None for no change of precision.
        activations: of the program that the search starts with.
    """

    quantizer: Callable[[str], StaticQuantizer]
    price: Callable[[GraphModule], Price]
    slowdown: float | None
    activations: str = "int8"


@dataclass(frozen=True, eq=False)
class _Tried:
    """A program that has been judged.

    Attributes:
        name: of its precision, for the report.
        quantizer: that made it.
        hint: what the user types for it; "" where there is no short form.
        lost: what the user's metric is worse than that of the float model; 0 without a metric.
    """

    name: str
    module: GraphModule
    quantizer: StaticQuantizer
    fidelity: Fidelity
    hint: str = ""
    price: Price | None = None
    lost: float = 0.0

    def gains_on(self, other: _Tried) -> float:
        """Return dB by which this program is nearer to float; one for each percent of the user's metric."""
        if abs(self.lost - other.lost) > _METRIC:
            return 100 * (other.lost - self.lost)
        return self.fidelity.gains_on(other.fidelity)

    @property
    def is_near(self) -> bool:
        """Return whether it is near float by the outputs, and as good by the user's metric."""
        return self.fidelity.score >= NEAR and self.lost < _LOST

    @property
    def cycles(self) -> float:
        return self.price.cycles if self.price is not None else math.inf


@dataclass(frozen=True)
class Chosen:
    """The quantized module that was chosen.

    Attributes:
        module: its states are inputs and outputs.
        frontier: what was measured; None where int8 serves.
    """

    module: GraphModule
    frontier: Frontier | None = None


def allowed_by(how: Quantization, device: Device) -> Allowed | None:
    """Return what a search may do for a user's request; None where the user decides everything."""
    if not how.is_auto:
        return None

    def quantizer(activations: str) -> StaticQuantizer:
        return replace(how, activations=activations, max_slowdown=None).quantizer_for(device.quantizer)  # type: ignore[arg-type]

    def price(module: GraphModule) -> Price:
        return _price(module, device)

    return Allowed(quantizer, price, how.slowdown, how.base)


def _price(module: GraphModule, device: Device) -> Price:
    """Compile a quantized module, which is kept as it is, for what it takes."""
    report = host_part(copy.deepcopy(module), device).report
    operators: dict[str, float] = {}
    for operation in (*report.operations, *report.core_operations):
        if operation.cost is not None and operation.origin.nodes:
            name = operation.origin.nodes[0]
            operators[name] = operators.get(name, 0.0) + operation.cost.cycles
    cycles = float(sum(t.cycles for t in report.latency) or sum(operators.values()))
    return Price(cycles, sum(t.milliseconds for t in report.latency) or None, operators)


def chosen(
    module: GraphModule,
    states: States,
    sequences: Sequence[Sequence[Row]],
    trial: Trial,
    plain: GraphModule,
    allowed: Allowed,
) -> Chosen:
    """Return the best module within the time that is allowed.

    Args:
        module: the float model; kept as it is.
        states: of the float model.
        sequences: calibration data.
        trial: samples or recordings that are judged, and what the float model gives for them.
        plain: the model quantized by `allowed.quantizer(allowed.activations)`.
    """
    fewest = _FEWEST_HELD_OUT if trial.held_out else _FEWEST_CALLS
    if not trial.exact or sum(map(len, trial.recordings)) < fewest:
        return Chosen(plain)
    with torch.no_grad(), quiet(), one_thread():
        return _Search(module, states, sequences, trial, allowed).run(plain)


class _Search:
    def __init__(
        self,
        module: GraphModule,
        states: States,
        sequences: Sequence[Sequence[Row]],
        trial: Trial,
        allowed: Allowed,
    ) -> None:
        self.module, self.states, self.sequences, self.trial = module, states, sequences, trial
        self.allowed = allowed
        self.work = work_of(module)
        self.sizes = {n.name: n.meta["val"].numel() for n in module.graph.nodes if _is_tensor(n)}
        self.exact = _floats(trial.exact)

    def run(self, plain: GraphModule) -> Chosen:
        allowed = self.allowed
        start = self.rated(allowed.activations, plain, allowed.quantizer(allowed.activations))
        if start.is_near:
            return Chosen(plain)
        if allowed.slowdown is None:
            best = self.corrected(start)
            return Chosen(best.module, self.frontier([best], best, start))
        start = self.priced(start)
        tried = [start]
        most = allowed.slowdown * start.cycles
        wide = self.everywhere() if start.quantizer.capabilities.has_int16 and start.price is not None else None
        if wide is not None:
            tried.append(wide)
        if wide is None or wide.cycles > most or not wide.is_near:
            narrow = self.corrected(start)
            tried[0] = narrow
            if wide is not None and wide.cycles > most and not self.serves(narrow):
                tried += self.mixed(narrow, wide, most)
        best = self.best(tried, start)
        best = self.on_core(best, most)
        return Chosen(best.module, self.frontier(tried, best, start))

    def serves(self, narrow: _Tried) -> bool:
        """Return whether int8 is good enough for no NPU time to be spent."""
        accurate = self.allowed.slowdown is not None and self.allowed.slowdown >= 2
        return narrow.is_near or (not accurate and narrow.fidelity.score >= FAR and narrow.lost < _LOST)

    def everywhere(self) -> _Tried | None:
        """Return the program with int16 everywhere; None where there is none."""
        wide = self.quantized("int16", self.allowed.quantizer("int16"))
        return None if wide is None else self.corrected(self.priced(wide))

    # ---------------------------------------------------------------- one program

    def rated(self, name: str, module: GraphModule, quantizer: StaticQuantizer, hint: str = "") -> _Tried:
        results = run_recordings(module, self.trial.recordings)
        accuracy = compared(results, self.trial) if self.trial.metric is not None else None
        metric = accuracy.metric if accuracy is not None else None
        lost = (
            0.0 if metric is None else (metric.float_model - metric.quantized) * (1 if metric.larger_is_better else -1)
        )
        lengths = [len(recording) for recording in self.trial.recordings]
        fidelity = Fidelity.of(self.exact, _floats(results), lengths)
        return _Tried(name, module, quantizer, fidelity, hint, lost=lost)

    def quantized(self, name: str, quantizer: StaticQuantizer, hint: str = "") -> _Tried | None:
        """Return a program that is made anew; None where the model cannot be quantized so."""
        second = copy.deepcopy(self.module)
        try:
            made = quantize(second, self.sequences, quantizer, states=self.states)
        except MicroNpuError:  # such as an operator without derivatives, or a state with two types
            return None
        forget(second, made)
        return self.rated(name, made, quantizer, hint)

    def priced(self, tried: _Tried) -> _Tried:
        try:
            return replace(tried, price=self.allowed.price(tried.module))
        except MicroNpuError:
            return tried

    def corrected(self, tried: _Tried) -> _Tried:
        """Return the program with those corrections that bring it nearer to float on the judged samples."""
        cures = [Corrections(adaptive_rounding=True, bias_correction=True)]
        if has_magnitudes(self.module):
            cures.insert(0, Corrections(projections=True))
        rows = sum(map(len, self.sequences))
        if tried.name == "int8" and sum(self.work.values()) * min(rows, 100) <= _FIT_WORK:
            cures.append(Corrections(fit_ranges=True))
        for cure in cures:
            if cure.fit_ranges and tried.is_near:
                continue
            found = self.quantized(tried.name, _with(tried.quantizer, cure), tried.hint)
            if found is not None and found.gains_on(tried) >= _FREE_GAIN:
                tried = self.priced(found) if cure.projections else replace(found, price=tried.price)
        return tried

    # ---------------------------------------------------------------- int16 for some operators

    def mixed(self, narrow: _Tried, wide: _Tried, most: float) -> list[_Tried]:
        """Return the best set of operators in int16 within the time, compiled; [] where there is none."""
        if has_loops(narrow.module) or narrow.price is None or wide.price is None:
            return []
        sensitivity = Sensitivity(narrow.module, self.work, self.for_order(narrow.module)[0], wide=True)
        path = _Path(sensitivity, self._by_name(narrow), self._by_name(wide))
        sets = [path.within(part * (most - narrow.cycles)) for part in _STOPS]
        sets = sorted((s for s in {frozenset(s) for s in sets} if s), key=sensitivity.without)
        for parts in sets[:2]:
            name = f"int8 with {plural(len(parts), 'operator')} in int16"
            made = self.quantized(name, _wider(narrow.quantizer, parts))
            made = self.priced(made) if made is not None else None
            if made is not None and made.cycles <= most:
                return [made]
        return []

    def for_order(self, module: GraphModule) -> tuple[list[Sequence[Row]], list[list[torch.Tensor]]]:
        """Return samples, or first calls of recordings, by which values are ordered, and the float model's results."""
        nodes = len(module.graph.nodes)
        most = min(_ORDER_WORK // max(1, sum(self.work.values())), _ORDER_NODES // max(1, nodes))
        runs = max(1, most // max(1, min(nodes, MOST_ORDERED)))
        recordings = self.trial.recordings
        if not self.states:
            count = min(_ORDER_SAMPLES, runs, len(recordings))
            picked, calls = range(0, len(recordings), len(recordings) // count)[:count], 1
        else:
            picked, calls = range(min(2, len(recordings))), max(2, min(_CALLS, runs // 2))
        return [recordings[i][:calls] for i in picked], _floats([self.trial.exact[i][:calls] for i in picked])

    def _by_name(self, tried: _Tried) -> dict[str, float]:
        """Return the cycles of a program by operator of the exported program."""
        assert tried.price is not None
        names = frozenset(self.work)
        found: dict[str, float] = {}
        for node in tried.module.graph.nodes:
            if node.name in tried.price.operators:
                name = next((n for n in names_of(node) if n in names), "")
                found[name] = found.get(name, 0.0) + tried.price.operators[node.name]
        return found

    # ---------------------------------------------------------------- float on the core

    def on_core(self, best: _Tried, most: float) -> _Tried:
        """Return the program with small operators in float on the core, where that removes much noise."""
        if best.fidelity.score >= _CLOSE or has_loops(best.module):
            return best
        default = best.quantizer.settings.default
        largest = torch.iinfo(torch.int8 if default is None else default.dtype).max
        uneven = self.fitting(uneven_factors(self.module, largest))
        if uneven and (made := self.left_to_core(best, uneven, most)) is not best:
            return made
        sensitivity = Sensitivity(best.module, self.work, self.for_order(best.module)[0], wide=False)
        parts = path = frozenset[str]()
        first = left = sensitivity.without(parts)
        for value in sensitivity.ordered():
            more = path | value.parts
            if more == path or not self.fitting(more):
                continue
            path = more  # errors of neighbours may cancel, so that one of them alone gains nothing
            if (found := sensitivity.without(path)) < left * 10 ** (-_FREE_GAIN / 10):
                parts, left = path, found
            if sensitivity.alone(value) * 100 < left:
                break
        if not parts or left * 10 ** (_CORE_GAIN / 10) > first:
            return best
        return self.left_to_core(best, parts, most)

    def fitting(self, parts: frozenset[str]) -> frozenset[str]:
        """Return some operators if the core can compute them in little time, and none otherwise."""
        small = 0.01 * sum(self.work.values())
        cycles = _CORE_CYCLES * sum(self.sizes.get(name, math.inf) for name in parts)
        fits = cycles <= _CORE_ROOM and len(parts) <= _MOST_ON_CORE and all(self.work[n] <= small for n in parts)
        return parts if fits else frozenset()

    def left_to_core(self, best: _Tried, parts: frozenset[str], most: float) -> _Tried:
        """Return the program with some operators in float on the core, if that is nearer to float in the time."""
        name = f"{best.name} with {plural(len(parts), 'operator')} in float on the core"
        made = self.quantized(name, _wider(best.quantizer, parts, in_float=True))
        if made is None or made.gains_on(best) < _CORE_GAIN:
            return best
        made = self.priced(made)
        return made if made.cycles <= max(most, best.cycles) else best

    # ---------------------------------------------------------------- the choice

    def best(self, tried: Sequence[_Tried], start: _Tried) -> _Tried:
        """Return the nearest program within the time, the fastest of those that are as near."""
        assert self.allowed.slowdown is not None
        most = start.cycles * (1.0 if self.serves(start) else self.allowed.slowdown)
        best = tried[0]
        for other in sorted(tried[1:], key=lambda t: t.cycles):
            if other.cycles <= most and other.gains_on(best) >= _PAID_GAIN:
                best = other
        return best

    def frontier(self, tried: Sequence[_Tried], best: _Tried, start: _Tried) -> Frontier:
        """Return what was measured, for the report."""
        every = tried if any(t is best for t in tried) else [*tried, best]
        points = tuple(
            Point(t.name, t.fidelity.worst, t.price.milliseconds if t.price else None, t is best, _typed(t, best))
            for t in every
        )
        weights, activations = self._limits(best)
        return Frontier(points, len(self.exact), weights, activations, best.is_near)

    def _limits(self, best: _Tried) -> tuple[float, float]:
        """Return dB of the worst output with float activations, and with float weights."""
        if has_loops(best.module):
            return math.inf, math.inf
        recordings, exact = self.for_order(best.module)
        return Sensitivity(best.module, self.work, recordings, wide=False).limits(exact)


def has_loops(module: GraphModule) -> bool:
    """Return whether a recurrent layer is a step that is called in a loop, which runs slowly here."""
    return next(iter(loops_of(module)), None) is not None


def _is_tensor(node: Node) -> bool:
    return node.op == "call_function" and isinstance(node.meta.get("val"), torch.Tensor)


def uneven_factors(model: GraphModule, largest: int) -> frozenset[str]:
    """Return the products with a constant whose small elements an integer does not hold, and what leads to them.

    One scale for factors of 0.14 and 530 makes the small ones 0 in int8, and 6 % wrong in int16.

    Args:
        largest: integer.
    """
    found: set[Node] = set()
    for node in model.graph.nodes:
        name = overload_name(node).split(".")[0]
        if name not in ("mul", "div"):
            continue
        known = [v for n in node.all_input_nodes if (v := attribute(model, n)) is not None and v.is_floating_point()]
        factors = known[0].detach().double().flatten() if len(known) == 1 else torch.zeros(0)
        factors = factors[factors != 0]
        if name == "div":
            factors = 1 / factors
        if factors.numel() < 2:
            continue
        scale = factors.abs().max() / largest
        if float(((factors / scale).round() * scale / factors - 1).abs().max()) > _UNEVEN:
            found.add(node)
    waiting = list(found)
    while waiting:
        node = waiting.pop()
        near = {n for n in node.all_input_nodes if n.op == "call_function"} - found
        found |= near
        waiting += near
    return frozenset(node.name for node in found)


def _typed(tried: _Tried, best: _Tried) -> str:
    """Return what the user types for a program that was not chosen."""
    if tried is best or tried.name != "int16":
        return ""
    kept = [name for name, on in vars(tried.quantizer.settings.corrections).items() if on]
    if not kept:
        return 'quantization="int16"'
    settings = ", ".join(f'"{name}": True' for name in kept)
    return f'quantization=Quantization(activations="int16", settings={{{settings}}})'


def _floats(results: Sequence[Sequence[Row]]) -> list[list[torch.Tensor]]:
    """Return the float outputs of each call."""
    return [float_leaves(row) for recording in results for row in recording]


def _with(quantizer: StaticQuantizer, cure: Corrections) -> StaticQuantizer:
    """Return a quantizer with further corrections."""
    made = copy.copy(quantizer)
    known = quantizer.settings.corrections
    every = {name: getattr(known, name) or getattr(cure, name) for name in vars(known)}
    made.settings = replace(quantizer.settings, corrections=Corrections(**every))
    return made


def _wider(quantizer: StaticQuantizer, parts: Collection[str], *, in_float: bool = False) -> StaticQuantizer:
    """Return a quantizer with int16 or float for some operators, unless the user has settings for them."""
    wanted, default = frozenset(parts), quantizer.settings.default
    setting: QuantizationConfig | None = None if in_float or default is None else default.widened()

    def found(model: GraphModule) -> list[Node]:
        return [node for node in model.graph.nodes if not wanted.isdisjoint(names_of(node))]

    made = copy.copy(quantizer)
    made.settings = replace(quantizer.settings, finders=[(found, setting), *quantizer.settings.finders])
    return made


class _Path:
    """Operators in the order in which they become int16: by noise removed per added cycle.

    A value is int16 when all operators in its `parts` are.
    """

    def __init__(self, sensitivity: Sensitivity, narrow: Mapping[str, float], wide: Mapping[str, float]) -> None:
        self.steps: list[tuple[frozenset[str], float]] = []
        names = {name for value in sensitivity.values for name in value.parts}
        added = {name: wide.get(name, 0.0) - narrow.get(name, 0.0) for name in names}
        near: dict[str, list[Value]] = {name: [] for name in names}
        for value in sensitivity.values:
            for name in value.parts:
                near[name].append(value)
        waiting = {value: sensitivity.alone(value) for value in sensitivity.ordered()}
        done: set[str] = set()
        total = 0.0
        while waiting:
            best: tuple[float, frozenset[str], float] | None = None
            for value in waiting:
                parts = frozenset(value.parts - done)
                after = done | parts
                touched = list(dict.fromkeys(v for name in parts for v in near[name]))
                price = sum(added[name] for name in parts)
                price += sum(_conversion(v, after) - _conversion(v, done) for v in touched)
                removed = sum(waiting.get(v, 0.0) for v in touched if v.parts <= after)
                rank = removed / price if price > 0 else math.inf
                if best is None or rank > best[0]:
                    best = rank, parts, price
            assert best is not None
            done |= best[1]
            total += best[2]
            self.steps.append((frozenset(done), total))
            waiting = {value: noise for value, noise in waiting.items() if not value.parts <= done}

    def within(self, cycles: float) -> frozenset[str]:
        """Return the longest start of the path that adds so many cycles at most."""
        return max((s for s, price in self.steps if price <= cycles), key=len, default=frozenset())


def _conversion(value: Value, wide: Collection[str]) -> float:
    """Return the cycles of a value's conversion between int8 and int16 when some operators are int16."""
    if not value.producer:
        return 0.0
    if value.producer in wide:
        return 0.0 if value.readers <= frozenset(wide) else _DOWN * value.elements
    return _UP * value.elements if not value.readers.isdisjoint(wide) else 0.0
