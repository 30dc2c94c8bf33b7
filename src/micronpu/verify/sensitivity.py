"""The noise that the rounding of single values, and of sets of them, adds to a network's outputs.

Everything is measured in a quantized module that runs in float: its weights are rounded, and of its activations only
the measured ones.  A network with states is run call by call.

The limit of int8 is a network in which every value has its own qparams: one rounding per operator of the user's model,
none inside decompositions except the steps of recurrent layers, and no shared, prescribed or narrow range.  A program
that is much further from float has avoidable losses.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from micronpu.base.order import reachable
from micronpu.frontend.graphs import GraphModule, Node
from micronpu.frontend.program import is_compute, node_sources
from micronpu.ops.recurrent import RECURRENT
from micronpu.quantize.nodes import moves
from micronpu.quantize.running import (
    DequantizedReference,
    RoundedLayer,
    Rounding,
    Row,
    float_leaves,
    noise,
    rounding_to,
    run_recordings,
)
from micronpu.quantize.thresholds import ACTIVATION_EPS, BATCH, FAR_GAP, SEVERAL, STEPS_INT8
from micronpu.report.accuracy import are_probabilities, decibels
from micronpu.report.delegation import DelegationReport
from micronpu.verify.thresholds import DOWN, MOST_ORDERED, SATURATED, UP


@dataclass(frozen=True)
class Fidelity:
    """Distance of results from the float model's.

    An output with values that saturate a sigmoid counts twice: unchanged, and after a sigmoid, since scores far from a
    threshold would otherwise hide those near it.  So does a single number that is no probability: unchanged, and
    without its mean, which tells nothing about a sample.
    """

    signal: tuple[float, ...]  # power of each view of an output, over all samples
    noise: tuple[tuple[float, ...], ...]  # power of the noise of each sample or recording, by view: [samples][views]
    outputs: int  # number of views that are unchanged outputs; these come first

    @classmethod
    def of(
        cls,
        exact: Sequence[Sequence[torch.Tensor]],
        found: Sequence[Sequence[torch.Tensor]],
        lengths: Sequence[int] = (),
    ) -> Fidelity:
        """Compare results call by call, with recordings of these lengths as samples, since most calls are quiet."""
        peaks = [max(_peak(row[i]) for row in exact) for i in range(len(exact[0]))] if exact else []
        behind = [i for i, peak in enumerate(peaks) if peak > SATURATED]
        means = {i: mean for i in range(len(peaks)) if (mean := _mean_of_number([row[i] for row in exact])) is not None}
        rows = []
        total = [0.0] * (len(peaks) + len(behind) + len(means))
        for wanted, got in zip(exact, found, strict=True):
            views = ((*(of[i].sigmoid() for i in behind), *(of[i] - means[i] for i in means)) for of in (got, wanted))
            powers = noise(*([*of, *more] for of, more in zip((got, wanted), views, strict=True)))
            total = [t + signal for t, (signal, _) in zip(total, powers, strict=True)]
            rows.append(tuple(error for _, error in powers))
        if lengths:
            calls = iter(rows)
            rows = [tuple(map(sum, zip(*itertools.islice(calls, length), strict=True))) for length in lengths]
        return cls(tuple(total), tuple(rows), len(peaks))

    @property
    def shares(self) -> tuple[float, ...]:
        """Noise of each sample relative to the sum of all views' signals, each view scaled to a signal of 1."""
        return tuple(sum(n / s for n, s in zip(row, self.signal, strict=True) if s > 0) for row in self.noise)

    @property
    def score(self) -> float:
        """dB of all views together, close to that of the worst one."""
        return decibels(1.0, sum(self.shares))

    @property
    def worst(self) -> float:
        """dB of the output that is furthest from float."""
        totals = [sum(column) for column in zip(*self.noise, strict=True)] or [0.0]
        pairs = list(zip(self.signal, totals, strict=False))[: self.outputs]
        return min((decibels(s, n) for s, n in pairs if s > 0), default=math.inf)

    def gains_on(self, other: Fidelity) -> float:
        """Return dB by which this one is nearer; 0 if a single one of several samples decides that."""
        gained = sorted(t - m for m, t in zip(self.shares, other.shares, strict=True) if m != t)
        rest = gained if len(self.shares) < SEVERAL else gained[:-1]
        return self.score - other.score if sum(rest) > 0 else 0.0


def _mean_of_number(values: Sequence[torch.Tensor]) -> float | None:
    """Return the mean of a number over all samples; None of probabilities, of several elements, and of few samples."""
    if len(values) < SEVERAL or any(x.numel() != 1 for x in values):
        return None
    every = torch.cat([x.detach().reshape(1) for x in values]).double()
    is_known = bool(every.isfinite().all()) and not are_probabilities(every.min(), every.max())
    return float(every.mean()) if is_known else None


def _peak(x: torch.Tensor) -> float:
    if not x.numel():
        return 0.0
    low, high = map(float, x.detach().aminmax())
    is_finite = math.isfinite(low) and math.isfinite(high)
    return max(-low, high) if is_finite else float(x.abs().nan_to_num(posinf=0.0).max())


@dataclass(frozen=True)
class RoundedValue:
    """A value that a quantized module rounds."""

    quantize: Node  # the node that rounds it
    producer: str  # the operator that computes it, by its name in the exported program; "" for an input
    readers: frozenset[str]  # the operators that compute with it
    elements: int  # number of its elements

    @property
    def parts(self) -> frozenset[str]:
        """The operators that must be wider for the value to be wider."""
        return self.readers | {self.producer} if self.producer else self.readers


class Sensitivity:
    """Measures the values of a quantized module.

    Args:
        module: its states are inputs and outputs.
        names: the operators of the exported program.
        sequences: samples; those of a network with states are sequences of calls.
        wide: True if a wider value is int16; otherwise it is float.

    Attributes:
        values: in the order of the graph.
    """

    def __init__(
        self, module: GraphModule, names: Collection[str], sequences: Sequence[Sequence[Row]], wide: bool
    ) -> None:
        self._names = frozenset(names)
        self._dequantized = DequantizedReference(module)
        self._sequences = sequences
        self.values = tuple(self._valued(layer) for layer in self._dequantized.layers)
        self._own: dict[Node, Rounding] = {layer.quantize: layer.edge.rounded for layer in self._dequantized.layers}
        peaks: dict[Node, float] = {}
        self._alone: dict[Node, float] = {}
        self._exact = list(self._run({}, peaks))
        self._wide: dict[Node, Rounding] = {}
        if wide:
            largest = torch.iinfo(torch.int16).max
            for layer in self._dequantized.layers:
                peak, reach = peaks.get(layer.quantize, 0.0), max(map(abs, layer.edge.range))
                peak = max(reach, peak if peak < 2 * FAR_GAP * reach else 0.0)  # far values saturate in int16, too
                self._wide[layer.quantize] = rounding_to(torch.int16, max(peak / largest, ACTIVATION_EPS["int16"]))

    def alone(self, value: RoundedValue) -> float:
        """Return the noise that rounding one value adds, as a share of the signal."""
        if value.quantize not in self._alone:
            self._measure([value.quantize])
        return self._alone[value.quantize]

    def _measure(self, nodes: Sequence[Node]) -> None:
        """Measure the noise that the rounding of each node adds alone."""
        # A network with states runs once for each; of any other, only what depends on the node is computed again.
        if self._dequantized.initial:
            self._alone |= {node: self._noise({node: self._own[node]}) for node in nodes}
            return
        for start in range(0, len(nodes), BATCH):
            some = nodes[start : start + BATCH]
            found: dict[Node, list[list[torch.Tensor]]] = {node: [] for node in some}
            for row in itertools.chain.from_iterable(self._sequences):
                exact = self._dequantized.exact(row)
                for node in some:
                    change = {node: self._own[node](exact[node])} if exact[node].is_floating_point() else {}
                    found[node].append(self._dequantized.alone(exact, change))
            self._alone |= {node: sum(Fidelity.of(self._exact, own).shares) for node, own in found.items()}

    def ordered(self, among: Sequence[RoundedValue] | None = None) -> list[RoundedValue]:
        """Return the values with most noise alone, largest first; of many, only those with coarse rounding."""
        values = [v for v in (self.values if among is None else among) if v.parts]
        if len(values) > MOST_ORDERED:
            own = self._coarseness()
            values = sorted(values, key=lambda v: -own.get(v.quantize, 0.0))[:MOST_ORDERED]
        self._measure(list(dict.fromkeys(v.quantize for v in values if v.quantize not in self._alone)))
        return sorted(values, key=lambda v: -self.alone(v))

    def without(self, parts: Collection[str]) -> float:
        """Return the noise if some operators are wider, as a share of the signal."""
        kept = dict(self._own)
        for value in self.values:
            if value.parts and value.parts <= frozenset(parts):
                kept.pop(value.quantize)
                if value.quantize in self._wide:
                    kept[value.quantize] = self._wide[value.quantize]
        return self._noise(kept)

    def of_weights(self, exact: Sequence[Sequence[torch.Tensor]]) -> Fidelity:
        """Return the distance from the float model, whose results for the samples are given, due to weights alone."""
        return Fidelity.of(exact, self._exact)

    def limits(self, exact: Sequence[Sequence[torch.Tensor]]) -> tuple[float, float]:
        """Return dB of the worst output with float activations, and with float weights, for the same results."""
        found = list(self._run(self._own))
        return self.of_weights(exact).worst, Fidelity.of(self._exact, found).worst

    def _noise(self, rounding: Mapping[Node, Rounding]) -> float:
        return sum(Fidelity.of(self._exact, list(self._run(rounding))).shares)

    def _run(
        self, rounding: Mapping[Node, Rounding], peaks: dict[Node, float] | None = None
    ) -> Iterator[list[torch.Tensor]]:
        for sequence in self._sequences:
            states = self._dequantized.initial
            for row in sequence:
                found = self._dequantized.exact((*row, *states), rounding)
                if peaks is not None:
                    for node in self._own:
                        peaks[node] = max(peaks.get(node, 0.0), _peak(found[node]))
                results, states = self._dequantized.split(found)
                yield results

    def _coarseness(self) -> dict[Node, float]:
        """Return the relative noise of each layer's own result on exact operands, in the first sample."""
        exact = self._dequantized.exact((*self._sequences[0][0], *self._dequantized.initial))
        found: dict[Node, float] = {}
        for layer, wanted, result in self._dequantized.own(exact):
            ((signal, error),) = noise([result], [wanted])
            found[layer.quantize] = error / signal if signal > 0 else 0.0
        return found

    def _valued(self, layer: RoundedLayer) -> RoundedValue:
        source = _source(layer)
        producer = "" if source.op == "placeholder" else exported_name(source, self._names)
        size = source.meta.get("val")
        elements = size.numel() if isinstance(size, torch.Tensor) else 0
        return RoundedValue(layer.quantize, producer, frozenset(self._readers_of(layer)), elements)

    def _readers_of(self, layer: RoundedLayer) -> Iterator[str]:

        def further(node: Node) -> Collection[Node]:
            return node.users if node.op == "call_function" and (not is_compute(node) or moves(node)) else ()

        for node in reachable([layer.quantize], further):
            if is_compute(node) and (name := exported_name(node, self._names)):
                yield name


def exported_name(node: Node, names: Collection[str]) -> str:
    """Return the one of these operators of the exported program that a node was made of; "" if unknown."""
    found = (node.name, *(str(source.name) for source in node_sources(node)))
    return next((name for name in found if name in names), "")


def _source(layer: RoundedLayer) -> Node:
    """Return the operator that computes the values of a layer, before operators that only move them."""
    node = layer.first
    while node.op == "call_function" and (not is_compute(node) or (moves(node) and len(node.all_input_nodes) == 1)):
        node = node.all_input_nodes[0]
    return node


@dataclass(frozen=True)
class PrecisionPrice:
    """Cost of a compiled program."""

    cycles: float  # of the NPU and the core, at the clock of the first
    milliseconds: float | None  # None if the clock is unknown; at the NPU's clock for a core with an unknown one
    operators: Mapping[str, float]  # cycles by the name of a node of the quantized module
    bytes: int = 0  # of the file; 0 before it is written
    in_float: int = 0  # number of operators that the core computes in float

    @classmethod
    def of(cls, reports: Sequence[DelegationReport], size: int = 0) -> PrecisionPrice:
        """Return the cost of a call of each method from the reports of a program."""
        operators = defaultdict[str, float](float)
        for operation in (o for report in reports for o in (*report.operations, *report.core_operations)):
            if operation.cost is not None and operation.origin.nodes:
                operators[operation.origin.nodes[0]] += operation.cost.cycles
        in_float = [verdict for report in reports for verdict in report.in_float]
        for verdict in in_float:
            operators[verdict.node] += verdict.cycles
        times = [time for report in reports for time in report.latency]
        first = max((r.latency[0] for r in reports if r.latency), key=lambda t: t.clock_mhz, default=None)
        if first is None or any(report.operations and "time of the NPU" in report.missing for report in reports):
            return cls(float(sum(operators.values())), None, operators, size, len(in_float))
        cycles = sum(t.cycles * first.clock_mhz / t.clock_mhz for t in times)
        cycles += sum(v.cycles for r in reports if "time of the host" in r.missing for v in r.in_float)
        milliseconds = replace(first, cycles=round(cycles)).milliseconds
        return cls(cycles, milliseconds, operators, size, len(in_float))


class Path:
    """Operators in the order in which they become int16: by noise removed per added cycle.

    A value is int16 when all operators in its `parts` are.
    """

    def __init__(self, sensitivity: Sensitivity, narrow: Mapping[str, float], wide: Mapping[str, float]) -> None:
        self.steps: list[tuple[frozenset[str], float]] = []
        names = {name for value in sensitivity.values for name in value.parts}
        self._added = {name: wide.get(name, 0.0) - narrow.get(name, 0.0) for name in names}
        self._near: dict[str, list[RoundedValue]] = {name: [] for name in names}
        for value in sensitivity.values:
            for name in value.parts:
                self._near[name].append(value)
        waiting = {value: sensitivity.alone(value) for value in sensitivity.ordered()}
        done: set[str] = set()
        total = 0.0
        while waiting:
            best: tuple[float, frozenset[str], float] | None = None
            for value in waiting:
                parts = frozenset(value.parts - done)
                after = done | parts
                price = self.price(parts, done)
                removed = sum(waiting.get(v, 0.0) for v in self._touched(parts) if v.parts <= after)
                rank = removed / price if price > 0 else math.inf
                if best is None or rank > best[0]:
                    best = rank, parts, price
            assert best is not None
            done |= best[1]
            total += best[2]
            self.steps.append((frozenset(done), total))
            waiting = {value: noise for value, noise in waiting.items() if not value.parts <= done}

    def price(self, parts: frozenset[str], done: Collection[str] = ()) -> float:
        """Return the cycles that int16 adds to some operators, with conversions; those of `done` are int16 already."""
        after = parts.union(done)
        conversions = (_conversion(v, after) - _conversion(v, done) for v in self._touched(parts))
        return sum(self._added[name] for name in sorted(parts)) + sum(conversions)

    def _touched(self, parts: frozenset[str]) -> list[RoundedValue]:
        """Return the values that some operators compute or read."""
        return list(dict.fromkeys(value for name in sorted(parts) for value in self._near[name]))


def _conversion(value: RoundedValue, wide: Collection[str]) -> float:
    """Return the cycles of a value's conversion between int8 and int16 if some operators are int16."""
    if not value.producer:
        return 0.0
    if value.producer in wide:
        return 0.0 if value.readers <= frozenset(wide) else DOWN * value.elements
    return UP * value.elements if not value.readers.isdisjoint(wide) else 0.0


# ---------------------------------------------------------------- own qparams for every value


@dataclass(frozen=True)
class Beside:
    """Ratios of one output, in dB against float."""

    sqnr: float  # of the program
    possible: float  # if every value has its own qparams
    rows: int  # number of samples that both were measured on

    @property
    def lost(self) -> float:
        """dB by which the program is further from float."""
        return self.possible - self.sqnr


def beside_own_qparams(
    dequantized: DequantizedReference,
    tried: Sequence[Row],
    exact: Sequence[Row],
    results: Sequence[Row],
    seen: Sequence[Row],
) -> list[Beside]:
    """Return the ratios of each float output."""
    ends, first = _ends(dequantized), dict[Node, tuple[float, float]]()
    others = []
    for row in seen:
        values = dequantized.exact(row)
        if all(row is not known for known in tried):  # the program's own samples may have calibrated, too
            others.append((row, dequantized.outputs(values)))
        for node in (n for n in ends if values[n].is_floating_point() and values[n].numel()):
            low, high = values[node].nan_to_num(posinf=0.0, neginf=0.0).aminmax()
            least, most = first.get(node, (0.0, 0.0))
            first[node] = min(least, float(low)), max(most, float(high))
    own_qparams = {node: _rounding_within(*limits) for node, limits in first.items()}
    more = run_recordings(dequantized.module, [[row] for row, _ in others])
    ours = list(map(float_leaves, [*results, *more]))
    floats = [float_leaves(r) for r in exact] + [outputs for _, outputs in others]
    best = [dequantized.outputs(dequantized.exact(row, own_qparams)) for row in (*tried, *(row for row, _ in others))]
    sums = []
    for given in (ours, best):
        by_row = [noise(y, x) for y, x in zip(given, floats, strict=True)]
        sums.append([decibels(sum(s for s, _ in of), sum(e for _, e in of)) for of in zip(*by_row, strict=True)])
    return [Beside(own, possible, len(floats)) for own, possible in zip(*sums, strict=True)]


def _rounding_within(low: float, high: float) -> Rounding:
    """Return the function that rounds the values of a range to int8."""
    step = max((high - low) / STEPS_INT8, ACTIVATION_EPS["int8"])
    return rounding_to(torch.int8, step, max(-128, min(127, round(-128 - low / step))))


def _ends(dequantized: DequantizedReference) -> list[Node]:
    """Return the quantize nodes of inputs, and of the last operator of each decomposition of the user's operators."""
    # The steps of a recurrent layer are rounded one by one.
    last: dict[Node | str, Node] = {}
    for layer in dequantized.layers:
        name, target = exported_call(layer.first)
        last[layer.quantize if target.removeprefix("aten.") in RECURRENT else name] = layer.quantize
    return list(last.values())


def exported_call(node: Node) -> tuple[str, str]:
    """Return name and target of the operator of the exported program that a node was made of."""
    return [(node.name, ""), *((str(source.name), str(source.target)) for source in node_sources(node))][-1]
