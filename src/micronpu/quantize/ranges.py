"""Ranges of activations by what their errors do to the results.

An observer looks at a tensor by itself: large values that matter little to the results take the steps from small ones
that matter much, as the first coefficient of a spectrum does.  Here the errors that a grid makes are followed to the
results with the network's derivatives g, in random directions:

    error(low, high) = E (sum over clipped x of g (clip(x) - x))^2 + E (sum over the others of g^2) step^2 / 12

What clipping changes lies to one side and adds up; what rounding changes is spread evenly over a step, and of zeros,
which every grid has, it is nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_leaves

from micronpu.base.errors import ModelError, first_line
from micronpu.frontend.importer import known_import
from micronpu.quantize.floats import FloatRun
from micronpu.quantize.loops import loops_of
from micronpu.quantize.observers import RangeSearch, is_fixed, is_observer
from micronpu.quantize.transforms import constant_nodes

_ROWS = 100
"""Calibration rows that are looked at, at most."""
_DIRECTIONS = 2
"""Random directions at the results, for each row."""
_CANDIDATES = 64
"""Of each end of a range."""


def fit_ranges(prepared: GraphModule, batches: Sequence[tuple[torch.Tensor, ...]]) -> None:
    """Gives the int8 activations of a calibrated module other ranges, in place.

    The results of the program keep theirs, and what is on a grid with them: nothing of them is clipped.

    Args:
        batches: calibration rows.

    Raises:
        ModelError: an operator has no derivative.
    """
    places = [_Place(observer, nodes) for observer, nodes in _observed(prepared).items()]
    places = [place for place in places if place.has_choice]
    if not places:
        return
    generator = torch.Generator().manual_seed(0)
    step = max(1, len(batches) // _ROWS)
    for row in batches[::step][:_ROWS]:
        run = FloatRun(prepared, gradients=True)
        with torch.enable_grad(), _told():
            leaves = tree_leaves(run.run(*row))
            results = [r for r in leaves if isinstance(r, torch.Tensor) and r.is_floating_point() and r.requires_grad]
            names = dict.fromkeys(node.name for place in places for node in place.nodes)
            tracked = {name: run.values[name] for name in names if _is_followed(run.values.get(name))}
            if not results or not tracked:
                return
            for number in range(_DIRECTIONS):
                signs = [torch.randint(0, 2, r.shape, generator=generator) * 2 - 1 for r in results]
                target = torch.stack([(s * r).sum() for s, r in zip(signs, results, strict=True)]).sum()
                found = torch.autograd.grad(
                    target, list(tracked.values()), retain_graph=number < _DIRECTIONS - 1, allow_unused=True
                )
                slopes = dict(zip(tracked, found, strict=True))
                for place in places:
                    place.add([(run.values[n.name].detach(), slopes.get(n.name)) for n in place.nodes])
    for place in places:
        place.settle()


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except (RuntimeError, NotImplementedError) as error:
        raise ModelError(
            f"Errors of activations cannot be followed to the results: {first_line(error)}.",
            hint="another `activation_observer` in the place of `fit_ranges`",
        ) from error


def _is_followed(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def _observed(prepared: GraphModule) -> dict[nn.Module, list[Node]]:
    """The observers whose range may change, and the values on their grid that are not merely moved there."""
    constants = constant_nodes(prepared)
    found: dict[nn.Module, list[Node]] = {}
    # What is carried from step to step keeps all that was seen of it: what is clipped there is clipped again and again.
    steps = [loop.prepared for _, loop in loops_of(prepared) if loop.prepared is not None]
    refused = {module for step in steps for module in step.modules()}
    for node in prepared.graph.nodes:
        if node.op != "call_module":
            continue
        observer, source = prepared.get_submodule(str(node.target)), node.args[0]
        if not is_observer(observer):
            continue
        if is_fixed(observer) or source in constants or source.op == "get_attr" or _is_result(prepared, node):
            refused.add(observer)
        entry = known_import(source) if source.op == "call_function" else None
        if entry is None or not entry.moves_only:
            found.setdefault(observer, []).append(source)
    return {observer: nodes for observer, nodes in found.items() if observer not in refused}


def _is_result(prepared: GraphModule, node: Node) -> bool:
    """Whether a value is returned, behind further observers at most."""
    observers = [u for u in node.users if u.op == "call_module" and is_observer(prepared.get_submodule(str(u.target)))]
    return any(u.op == "output" for u in node.users) or any(_is_result(prepared, u) for u in observers)


class _Place:
    """A grid, and the values on it.

    Attributes:
        nodes: that give the values.
    """

    def __init__(self, observer: Any, nodes: list[Node]) -> None:
        self.observer, self.nodes = observer, nodes
        limits = [torch.as_tensor(getattr(observer, name, torch.inf)).double() for name in ("min_val", "max_val")]
        ends = [float(v) if v.numel() == 1 else torch.inf for v in limits]
        low, high = min(ends[0], 0.0), max(ends[1], 0.0)
        is_int8 = (getattr(observer, "quant_min", 0), getattr(observer, "quant_max", 0)) == (-128, 127)
        self.has_choice = is_int8 and low < high < torch.inf
        self._lows, self._highs = (_towards_zero(end if self.has_choice else 0.0) for end in (low, high))
        self._clipped_low: list[torch.Tensor] = []
        self._clipped_high: list[torch.Tensor] = []
        self._outside_low, self._outside_high = torch.zeros_like(self._lows), torch.zeros_like(self._highs)
        self._squares = 0.0

    def add(self, values: Sequence[tuple[torch.Tensor, torch.Tensor | None]]) -> None:
        """Adds one direction of a row: values, and the derivatives of the results by them."""
        low, high = torch.zeros_like(self._lows), torch.zeros_like(self._highs)
        for value, slope in values:
            if slope is None or not torch.isfinite(slope).all():
                continue
            x, g = value.flatten().double(), slope.flatten().double()
            x, g = x[x != 0], g[x != 0]
            clipped, outside = _beyond(x, g, self._highs)
            high, self._outside_high = high + clipped, self._outside_high + outside
            clipped, outside = _beyond(-x, -g, -self._lows)
            low, self._outside_low = low + clipped, self._outside_low + outside
            self._squares += float(g.square().sum())
        self._clipped_low.append(low)
        self._clipped_high.append(high)

    def settle(self) -> None:
        """Gives the observer the range with the least error."""
        if not self._squares:
            return
        low, high = torch.stack(self._clipped_low), torch.stack(self._clipped_high)
        clipping = low.square().sum(0)[:, None] + 2 * low.T @ high + high.square().sum(0)[None]
        rounded = self._squares - self._outside_low[:, None] - self._outside_high[None]
        below, above = -self._lows[:, None], self._highs[None]
        symmetric = self.observer.qscheme == torch.per_tensor_symmetric
        step = (2 * torch.maximum(below, above) if symmetric else below + above) / 255
        first, last = divmod(int((clipping + rounded * step.square() / 12).argmin()), len(self._highs))
        ends = self._lows[first].to(self.observer.min_val), self._highs[last].to(self.observer.max_val)
        if isinstance(self.observer, RangeSearch):
            self.observer.chosen = ends
        else:
            self.observer.min_val.copy_(ends[0])
            self.observer.max_val.copy_(ends[1])


def _towards_zero(end: float) -> torch.Tensor:
    """An end of a range and others nearer to zero, which is none of them unless it is where they start."""
    if end == 0:
        return torch.zeros(1, dtype=torch.float64)
    return end * (1 - torch.arange(_CANDIDATES, dtype=torch.float64) / _CANDIDATES)


def _beyond(x: torch.Tensor, g: torch.Tensor, bounds: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """For each bound [S], falling: the sum of g (bound - x) over x above it, and that of g^2."""
    rising = bounds.flip(0)
    place = torch.bucketize(x, rising)  # as many bounds are below x

    def above(weights: torch.Tensor) -> torch.Tensor:
        sums = torch.bincount(place, weights, minlength=len(rising) + 1)
        return sums.flip(0).cumsum(0).flip(0)[1:]

    clipped = above(g) * rising - above(g * x)
    return clipped.flip(0), above(g * g).flip(0)
