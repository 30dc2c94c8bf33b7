"""Exclude values far beyond all others from a range, where calibration shows that they cannot change the results.

A constant used as infinity (a pad before a maximum, a masked element, a sentinel in a concat) takes all the
steps of a range.  Whether it matters is measured: the float program runs with such values clamped to where the others
end; if all results stay the same, they may saturate there in the quantized program, too.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from micronpu.frontend.graphs import GraphModule, Node, called_modules
from micronpu.frontend.run import Run
from micronpu.frontend.tensors import constant_nodes
from micronpu.quantize.observing import RangeObserver
from micronpu.quantize.running import unobserved_step
from micronpu.quantize.solver.groups import PartObserver
from micronpu.quantize.thresholds import FAR_DISTANCES, FAR_GAP, FARTHEST_BEYOND, MOST_FAR, SAME_VALUES, SAME_WEIGHTS
from micronpu.upstream.torch import tree_leaves


class _Range:
    """The range of an observer, or of several that share qparams, with far values.

    Attributes:
        observer: has the range, far values included.
        observed: results of the calls of its observers.
        limit: magnitude from which on values are far; 0 where no value has a gap below its largest magnitude.
        low, high: ends of the other values.
        ends: of the clamp that is tried, or that changes no result.
    """

    def __init__(self, observer: RangeObserver) -> None:
        self.observer = observer
        self.observed: set[Node] = set()
        self.limit = 0.0
        self.low = self.high = 0.0
        self.ends: tuple[float, float] | None = None
        self._is_computed = self._is_given = False

    def find_gap(self, x: torch.Tensor) -> None:
        """Set the limit where the magnitudes of values have a gap between the largest and others except zeros."""
        sizes = x.abs()
        most = float(sizes.max()) if x.numel() else 0.0
        others = sizes[(sizes > 0) & (sizes < most / 2)]
        if most < math.inf and others.numel() and not (others >= most / 2 / FAR_GAP).any():
            self.limit = max(self.limit, most / 2)

    def note(self, place: Node, x: torch.Tensor) -> torch.Tensor:
        """Widen the range of the other values, and note where far ones come from."""
        is_far = x.abs() >= self.limit
        if not is_far.all():
            low, high = torch.aminmax(x[~is_far])
            self.low, self.high = min(self.low, float(low)), max(self.high, float(high))
        if is_far.any():
            self._is_given |= place.op == "placeholder"
            is_moved = not self.observed.isdisjoint(place.all_input_nodes)
            self._is_computed |= place.op == "call_function" and not is_moved
        return x

    def has_gap(self, others: float) -> bool:
        """True if values are far beyond a magnitude and not of an input, whose range is the user's."""
        return not self._is_given and others * FAR_GAP <= self.limit

    def clamp(self, place: Node, x: torch.Tensor) -> torch.Tensor:
        return x if self.ends is None else x.clamp(*self.ends)

    def trials(self) -> Iterator[tuple[float, float]]:
        """Yield ends of clamps, the narrowest first; none where other samples have values in the gap."""
        least, most = float(self.observer.min_val), float(self.observer.max_val)
        reach = max(-self.low, self.high)
        for distance in FAR_DISTANCES if reach else ():
            low = self.low - distance * reach if least <= -self.limit else least
            high = self.high + distance * reach if most >= self.limit else most
            if (low, high) == (least, most) or not self.has_gap(max(-low, high)):
                return
            # The kernels that requantize a computed value count its steps in int32.
            if not self._is_computed or max(-least, most) <= FARTHEST_BEYOND * (high - low):
                yield low, high

    def settle(self, observer: RangeObserver) -> None:
        """Give an observer what is left of its range."""
        if self.ends is not None and not observer.is_empty:
            low, high = self.ends
            observer.settle(observer.min_val.clamp(min=low), observer.max_val.clamp(max=high))


def _is_observed(module: GraphModule, node: Node) -> bool:
    return node.op == "call_module" and isinstance(module.get_submodule(str(node.target)), RangeObserver)


class FarValues:
    """Ranges with far values in calibrated modules: of one, or of the methods of a program, which share observers."""

    def __init__(self) -> None:
        self._ranges: dict[Node, _Range] = {}
        self._by_observer: dict[RangeObserver, _Range] = {}
        self._parts: dict[PartObserver, _Range] = {}

    @property
    def narrowed(self) -> set[RangeObserver]:
        """The observers whose ranges `clamp` has narrowed."""
        parts = {part.own: whole for part, whole in self._parts.items()}
        return {o for o, found in (*self._by_observer.items(), *parts.items()) if found.ends is not None}

    @contextlib.contextmanager
    def noted(self, module: GraphModule) -> Iterator[None]:
        """Note where values have a gap in the first call of a module."""
        observers = self._add(module)
        handles = [o.register_forward_pre_hook(lambda _, x, r=r: r.find_gap(x[0])) for o, r in observers.items()]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _add(self, module: GraphModule) -> dict[RangeObserver, _Range]:
        """Add the observed activations of a module; return their observers."""
        constants = constant_nodes(module)
        ranges: dict[Node, _Range] = {}
        observers: dict[RangeObserver, _Range] = {}
        for node, observer in called_modules(module, RangeObserver):
            whole = observer.group if isinstance(observer, PartObserver) else observer
            if whole.is_calibrated or (whole is not observer and observer.is_unseen):
                continue  # an earlier quantization has kept its range, or it sees what selects from these values
            found = self._by_observer.setdefault(whole, _Range(whole))
            found.observed.add(node)
            observers[observer] = ranges[node] = found
            if isinstance(observer, PartObserver):
                self._parts[observer] = found
        read = {own for place, own in ranges.items() if place.args[0] not in constants}
        self._ranges |= {place: own for place, own in ranges.items() if own in read}
        return observers

    def clamp(self, calls: Callable[[Callable[..., Any]], Iterator[object]]) -> None:
        """Narrow the ranges, in place."""
        ranges = {place: found for place, found in self._ranges.items() if found.limit}
        runs: dict[GraphModule, Run] = {}

        def results(show: Callable[..., torch.Tensor]) -> Iterator[list[torch.Tensor]]:
            def shown(node: Node, value: object, _: object) -> Any:
                return show(ranges[node], node.args[0], value) if node in ranges else value

            def run(module: GraphModule, *given: object) -> Any:
                if module not in runs:
                    is_left_out = functools.partial(_is_observed, module)
                    runs[module] = Run(module, functools.partial(unobserved_step, module, is_left_out))
                return runs[module].run(*given, behind=shown)

            for found in calls(run):
                yield [x for x in tree_leaves(found) if isinstance(x, torch.Tensor)]

        if not ranges:
            return
        wanted = []
        for found in results(_Range.note):
            wanted.append(found)
            if not any(r.has_gap(max(-r.low, r.high)) for r in ranges.values()):
                return

        def same(count: int) -> int:
            """Return how many of the first calls have the same results, up to one that has not."""
            pairs = zip(wanted[:count], results(_Range.clamp), strict=False)
            return sum(1 for _ in itertools.takewhile(lambda pair: _are_same(pair[1], pair[0]), pairs))

        every, count = list(dict.fromkeys(ranges.values())), 1
        while True:  # few calls decide on each range, and all calls on the ranges together
            _narrow(every[:MOST_FAR], same, count)
            if count == len(wanted) or (agreeing := same(len(wanted))) == len(wanted):
                break
            count = min(max(2 * count, agreeing + 1), len(wanted))
        for part, whole in self._parts.items():
            whole.settle(part.own)
        for one in every:
            one.settle(one.observer)


def _narrow(ranges: Sequence[_Range], same: Callable[[int], int], count: int) -> None:
    """Set the ends of each range in turn to the narrowest ones with which some first calls have the same results."""
    for one in ranges:
        one.ends = None
    for one in ranges:
        for ends in one.trials():
            one.ends = ends
            if same(count) == count:
                break
        else:
            one.ends = None


def _are_same(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> bool:
    """True if all results of a call are the same, but for weights of far values that are almost zero."""
    for pair in zip(found, wanted, strict=True):
        x, y = (value.double() if value.dtype == torch.bool else value for value in pair)
        least = min(1.0, float(y.abs().max())) if y.numel() else 1.0
        if not torch.allclose(x, y, rtol=SAME_VALUES, atol=SAME_WEIGHTS * least, equal_nan=True):
            return False
    return True
