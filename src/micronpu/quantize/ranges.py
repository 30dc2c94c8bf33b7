"""Ranges of activations that minimize the error of the results.

An observer sees a tensor alone: large values with little effect on the results, such as the first coefficient of a
spectrum, reduce the precision of small ones with more effect.  Here quantization errors are propagated to the results
by the network's derivatives g, in random directions:

    error(low, high) = E (sum over clipped x of g (clip(x) - x))^2 + E (sum over the others of g^2) step^2 / 12

Clipping errors have one sign and add up; rounding errors are uniform within an LSB, and zeros, which are exact, have
none.

States that a call passes to the next count as results, except those that only keep earlier values: later calls show
their effect.
"""

from __future__ import annotations

import functools
import math
import operator
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import nn

from micronpu.base.errors import ModelError, first_line
from micronpu.base.order import reachable
from micronpu.frontend.graphs import GraphModule, Node, operand
from micronpu.frontend.tensors import constant_nodes, results_of, state_ends
from micronpu.quantize.calibration_cache import FloatStatistics, network_of
from micronpu.quantize.float64 import runnable
from micronpu.quantize.loops import loops_of, unobserved
from micronpu.quantize.nodes import moves, observer_of, observers_in, source_of
from micronpu.quantize.observers import is_fixed
from micronpu.quantize.observing import RangeObserver
from micronpu.quantize.running import Row, float_run, float_values, sizes_of
from micronpu.quantize.thresholds import CANDIDATES, DIRECTIONS, FEWEST_FIT, FIT_ELEMENTS, FIT_SAMPLES


def fit_ranges(
    prepared: Mapping[str, GraphModule], rows: Mapping[str, Sequence[Row]], statistics: FloatStatistics | None = None
) -> None:
    """Choose new ranges for the int8 activations of calibrated methods, in place.

    Results of the program keep their ranges, as do values that share their qparams, so that they are not clipped. So do
    states that are computed from themselves.  A range that methods share has the least error in all of them.

    Args:
        rows: calibration samples of each method.
        statistics: of earlier quantizations with these samples; None for none.
    """
    network = network_of(prepared) if statistics is not None else ""
    statistics = statistics if network else None
    shared: dict[nn.Module, list[SharedRange]] = {}
    for name, module in prepared.items():
        new = []
        for place in places_of(module):
            shared.setdefault(place.observer, []).append(place)
            known = statistics.get((network, name, place.key)) if statistics is not None else None
            if known is None:
                new.append(place)
            else:
                place.sums = known
        try:
            _add_samples(module, rows[name], new)
        except (RuntimeError, NotImplementedError) as error:
            what = f"Errors of activations cannot be followed to the results: {first_line(error)}."
            raise ModelError(what, hint="another `activation_observer` instead of `fit_ranges`") from error
        if statistics is not None:
            for place in new:
                statistics[network, name, place.key] = place.sums
    parts = [set(module.modules()) for module in prepared.values()]
    for observer, (first, *others) in shared.items():
        if sum(observer in part for part in parts) == 1 + len(others):  # elsewhere it may be that of a result
            first.sums = functools.reduce(operator.add, (place.sums for place in others), first.sums)
            first.settle()


def _add_samples(prepared: GraphModule, batches: Sequence[Row], places: Sequence[SharedRange]) -> None:
    if not places:
        return
    generator = torch.Generator().manual_seed(0)
    count = max(FEWEST_FIT, min(FIT_SAMPLES, FIT_ELEMENTS // max(1, sum(sizes_of(prepared).values()))))
    step = max(1, -(-len(batches) // count))
    wide = runnable(prepared, batches)
    run = float_run(wide)
    for row in batches[::step]:
        with torch.enable_grad(), unobserved(wide):
            values = float_values(run, row, gradients=True)
            results = [values[node.name] for node in _results(prepared)]
            results = [r for r in results if _is_followed(r) and r.is_floating_point()]
            names = dict.fromkeys(node.name for place in places for node in place.nodes)
            tracked = {name: values[name] for name in names if _is_followed(values.get(name))}
            if not results or not tracked:
                return
            slopes = []
            for number in range(DIRECTIONS):
                signs = [torch.randint(0, 2, r.shape, generator=generator) * 2 - 1 for r in results]
                target = torch.stack([(s * r).sum() for s, r in zip(signs, results, strict=True)]).sum()
                found = torch.autograd.grad(
                    target, list(tracked.values()), retain_graph=number < DIRECTIONS - 1, allow_unused=True
                )
                slopes.append(dict(zip(tracked, found, strict=True)))
            for place in places:
                place.add(values, slopes)


def _is_followed(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def places_of(prepared: GraphModule) -> list[SharedRange]:
    """Return the qparams of a calibrated module whose ranges may be changed."""
    found = [SharedRange(prepared, observer, nodes) for observer, nodes in _observed(prepared).items()]
    return [place for place in found if place.has_choice]


def _observed(prepared: GraphModule) -> dict[nn.Module, list[Node]]:
    """Return the observers whose range may change, with the values that are computed (and not only moved) to their
    qparams."""
    constants = constant_nodes(prepared)
    found: dict[nn.Module, list[Node]] = {}
    # Values that are carried from step to step keep their range: clipping would repeat in each step.
    steps = [loop.prepared for _, loop in loops_of(prepared) if loop.prepared is not None]
    refused = {module for step in steps for module in step.modules()}
    results = _results(prepared)
    for node, observer in observers_in(prepared).items():
        source = operand(node)
        if is_fixed(observer) or source in constants or source.op == "get_attr" or _is_result(prepared, node, results):
            refused.add(observer)
        if not moves(source):
            found.setdefault(observer, []).append(source)
    return {observer: nodes for observer, nodes in found.items() if observer not in refused}


def _results(prepared: GraphModule) -> list[Node]:
    """Return the results of the program, and the new values of states that are computed from themselves."""
    kept = only_kept(prepared)
    new = [value for _, _, value in state_ends(prepared) if value not in kept]
    return list(dict.fromkeys([*results_of(prepared), *new]))


def _is_result(prepared: GraphModule, node: Node, results: Sequence[Node]) -> bool:
    """Return True if a value is returned, possibly through further observers."""
    same = [node]
    for value in same:
        same += [user for user in value.users if observer_of(prepared, user) is not None]
    return any(value in results for value in same)


@dataclass
class _SumsOfSamples:
    """Sums that give the error of the results for each range."""

    clipped_low: list[torch.Tensor]  # of clipping errors, for each direction of each sample
    clipped_high: list[torch.Tensor]
    outside_low: torch.Tensor  # of squared slopes where values are clipped
    outside_high: torch.Tensor
    squares: float = 0.0  # of squared slopes

    def __add__(self, other: _SumsOfSamples) -> _SumsOfSamples:
        return _SumsOfSamples(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))


class SharedRange:
    """Qparams, and the values that share them.

    Attributes:
        nodes: that compute the values.
        key: what `sums` follow from, besides the network and the samples.
        sums: over the samples.
    """

    def __init__(self, prepared: GraphModule, observer: Any, nodes: list[Node]) -> None:
        self.observer, self.nodes = observer, nodes
        limits = [torch.as_tensor(getattr(observer, name, torch.inf)).double() for name in ("min_val", "max_val")]
        ends = [float(v) if v.numel() == 1 else torch.inf for v in limits]
        low, high = min(ends[0], 0.0), max(ends[1], 0.0)
        is_int8 = (getattr(observer, "quant_min", 0), getattr(observer, "quant_max", 0)) == (-128, 127)
        self.has_choice = is_int8 and low < high < torch.inf
        self._lows, self._highs = (_towards_zero(end if self.has_choice else 0.0) for end in (low, high))
        self.key = (tuple(source_of(prepared, node).name for node in nodes), low, high)
        self.sums = _SumsOfSamples([], [], torch.zeros_like(self._lows), torch.zeros_like(self._highs))

    def add(self, values: Mapping[str, Any], slopes: Sequence[Mapping[str, torch.Tensor | None]]) -> None:
        """Add a sample."""
        lows, highs = ([torch.zeros_like(ends) for _ in slopes] for ends in (self._lows, self._highs))
        for node in self.nodes:
            own = {number: g for number, of in enumerate(slopes) if (g := _finite(of.get(node.name))) is not None}
            if not own:
                continue
            found = _beyond(values[node.name].detach(), own.values(), self._lows, self._highs)
            for number, (below, above, squares) in zip(own, found, strict=True):
                lows[number], self.sums.outside_low = lows[number] + below[0], self.sums.outside_low + below[1]
                highs[number], self.sums.outside_high = highs[number] + above[0], self.sums.outside_high + above[1]
                self.sums.squares += squares
        self.sums.clipped_low += lows
        self.sums.clipped_high += highs

    def settle(self) -> None:
        """Set the range with the least error."""
        if not self.sums.squares:
            return
        first, last = divmod(int(self._errors().argmin()), len(self._highs))
        ends = self._lows[first].to(self.observer.min_val), self._highs[last].to(self.observer.max_val)
        if isinstance(self.observer, RangeObserver):
            self.observer.settle(*ends)
        else:
            self.observer.min_val.copy_(ends[0])
            self.observer.max_val.copy_(ends[1])

    def left(self, low: float, high: float) -> float:
        """Return the error of the results with the best range, relative to that with this one."""
        errors = self._errors()
        now = errors[int((self._lows - low).abs().argmin()), int((self._highs - high).abs().argmin())]
        return float(errors.min() / now) if now > 0 else 1.0

    def _errors(self) -> torch.Tensor:
        """Return the summed error of the results for each pair of ends, [lows, highs]."""
        sums = self.sums
        low, high = torch.stack(sums.clipped_low), torch.stack(sums.clipped_high)
        clipping = low.square().sum(0)[:, None] + 2 * low.T @ high + high.square().sum(0)[None]
        rounded = sums.squares - sums.outside_low[:, None] - sums.outside_high[None]
        below, above = -self._lows[:, None], self._highs[None]
        symmetric = self.observer.qscheme == torch.per_tensor_symmetric
        step = (2 * torch.maximum(below, above) if symmetric else below + above) / 255
        return clipping + rounded * step.square() / 12


def _towards_zero(end: float) -> torch.Tensor:
    """Return an end of a range and others nearer to zero, which is excluded unless it is the end."""
    if end == 0:
        return torch.zeros(1, dtype=torch.float64)
    return end * (1 - torch.arange(CANDIDATES, dtype=torch.float64) / CANDIDATES)


Sums: TypeAlias = tuple[torch.Tensor, torch.Tensor]


def _finite(slope: torch.Tensor | None) -> torch.Tensor | None:
    return slope if slope is not None and math.isfinite(float(slope.sum())) else None


def _beyond(
    x: torch.Tensor, slopes: Iterable[torch.Tensor], lows: torch.Tensor, highs: torch.Tensor
) -> Iterator[tuple[Sums, Sums, float]]:
    """Yield for each slope g, and for each of the lows, and of the highs, the sum of g (end - x) over x beyond it, and
    that of g^2; and the sum of g^2 over all x but zeros.
    """
    x, least = x.flatten().double(), len(lows)
    is_value, (low, high) = (x != 0).double(), map(float, x.aminmax()) if x.numel() else (0.0, 0.0)
    # Ends are multiples of the one nearest to zero: their number between zero and x is a quotient.
    place = (x / _nearest(highs)).ceil_().sub_(1).clamp_(0, len(highs)) if high > 0 else torch.zeros_like(x)
    if low < 0:
        place += (x / _nearest(-lows)).floor_().add_(1).clamp_(-least, 0)
    bins, count = place.add_(least).long().numpy(), least + 1 + len(highs)
    for g in slopes:
        g = g.flatten().double()
        squares = g * g
        sums = [np.bincount(bins, weights.numpy(), count) for weights in (g, g * x, squares)]
        below = [torch.from_numpy(own[:least].cumsum()) for own in sums]
        above = [torch.from_numpy(own[:least:-1].cumsum()) for own in sums]
        yield (
            (below[0] * lows - below[1], below[2]),
            (above[0] * highs - above[1], above[2]),
            float(squares @ is_value),
        )


def _nearest(ends: torch.Tensor) -> float:
    """Return the distance of the end nearest to zero; a tiny one if that is zero itself."""
    return max(float(ends[-1]), sys.float_info.min)


# ---------------------------------------------------------------- states


def only_kept(prepared: GraphModule) -> set[Node]:
    """Return new values of states that only keep values computed without them, such as the last frames of a sound.

    They are clipped at most once.  A state that is computed from itself could be clipped in every call.

        past, frame -> x = cat -> y = conv(x), past' = x[1:]    only kept
        h, frame -> h' = gru(h, frame)                          computed from itself
    """
    ends = state_ends(prepared)
    holders = {holder for _, holder, _ in ends}
    made_of: dict[Node, set[Node]] = {}
    for _, holder, value in ends:
        moved, computed = _sources(prepared, value)
        behind = set(reachable(computed, operator.attrgetter("all_input_nodes")))
        made_of[holder] = ((moved - {holder}) | behind) & holders
    while True:
        wider = {h: found.union(*(made_of[f] for f in found)) for h, found in made_of.items()}
        if wider == made_of:
            return {value for _, holder, value in ends if holder not in made_of[holder]}
        made_of = wider


def _sources(prepared: GraphModule, value: Node) -> tuple[set[Node], set[Node]]:
    """Return the inputs and the computed values from which operators that only move make a value."""

    def moved(node: Node) -> list[Node]:
        return node.all_input_nodes if moves(node) or observer_of(prepared, node) is not None else []

    ends = {node for node in reachable([value], moved) if not moved(node)}
    inputs = {node for node in ends if node.op == "placeholder"}
    return inputs, ends - inputs
