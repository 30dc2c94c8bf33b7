"""Requirements of operators on the qparams of adjacent values, by the facts of `micronpu.ops.facts`.

A threshold: rounding must not move a value across it.  Take x > 0.3 with a scale of 0.0275. Values between 0.28875 and
0.31625 round to 0.3025, which is larger than 0.3.  With 0.02857 a rounding interval ends at 0.3.  Zero is exact in all
qparams: it is never between two LSBs.

A clamp: the range of values that only clamps read ends with the clamps.  If the values go up to 100, and the clamp ends
at 1, qparams for all values leave two LSBs below 1.  The same holds for a sigmoid or tanh, whose integers no longer
change from some operand on.

A singularity at 0: 1 / sqrt(sum(x * x)) of a row of zeros is 1e6 in float, because of an eps, and no row needs it.  The
range of the result ends at its value one LSB of the operand away from 0.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.fx import GraphModule, Node

from micronpu.frontend.constants import number
from micronpu.frontend.facts import SIGN_COUNTS
from micronpu.frontend.importer import NodeArguments, known_import
from micronpu.frontend.program import arguments, overload_name
from micronpu.ops import facts
from micronpu.ops.clamps import clamp_bounds
from micronpu.ops.facts import Form
from micronpu.quantize.observers import is_fixed
from micronpu.quantize.observing import RangeObserver, Thresholds
from micronpu.quantize.specs import Place
from micronpu.quantize.thresholds import LINEAR_DEPTH, SATURATED, SIGN_RANGE, UNKNOWN_LSB

Ends: TypeAlias = tuple[float, float]
Places: TypeAlias = Mapping[Place, Any]
Values: TypeAlias = Mapping[Any, Mapping[Node, None]]

_AT_ZERO = Thresholds(frozenset({(0.0, 0.0)}))


def form_of(x: Any) -> Form | None:
    """Return the function of its operands that a node computes, see `micronpu.ops.facts`; None for other values."""
    return facts.form_of(overload_name(x)) if isinstance(x, Node) and x.kwargs.get("alpha", 1) == 1 else None


def power_of(node: Node) -> float | None:
    """Return the exponent c of a node that is the power c of its operand."""
    name = overload_name(node)
    return facts.power_of(name, arguments(node)) if name else None


def line_of(model: GraphModule, node: Node) -> tuple[Any, float, float] | None:
    """Return (x, factor, addend) of a node that is ``factor * x + addend``."""
    name = overload_name(node)
    return facts.line_of(name, arguments(node), functools.partial(number, model)) if name else None


def is_singular(node: Node) -> bool:
    """Return whether a node, or its gradient, has a singularity at 0."""
    name = overload_name(node)
    return bool(name) and facts.is_singular(name, arguments(node))


def observe_for_readers(model: GraphModule, places: Mapping[Place, Any]) -> None:
    """Pass requirements of adjacent operators to observers, in place.

    Args:
        places: observer by node or by (operand, reader) edge, as in torchao's preparation.
    """
    values: dict[Any, dict[Node, None]] = {}
    results = Counter(observer for place, observer in places.items() if isinstance(place, Node))
    for place, observer in places.items():
        values.setdefault(observer, {})[place[0] if isinstance(place, tuple) else place] = None
    for observer, nodes in values.items():
        if isinstance(observer, RangeObserver) and not any(node.op == "placeholder" for node in nodes):
            _observe_clamped(observer, nodes, places, values)
    for node in model.graph.nodes:
        name = overload_name(node)
        jumps = facts.jumps_of(name, arguments(node)) if name else None
        if jumps and isinstance(node.args[0], Node):  # also if it stays in float
            _set_thresholds(model, places, node.args[0], Thresholds(jumps))
        if name and facts.is_bounded(name):
            (value,) = node.all_input_nodes
            operand = places.get((value, node), places.get(value))
            if isinstance(operand, RangeObserver):
                operand.part = min(operand.part, 1.0)
        observer = places.get(node)
        if not isinstance(observer, RangeObserver):
            continue
        is_alone = results[observer] == 1
        if SIGN_COUNTS.of(node) == node.name:
            observer.part = SIGN_RANGE if is_alone else observer.part
            _set_thresholds(model, places, node, _AT_ZERO)
        observer.is_whole |= is_alone and facts.is_whole(name)
        if is_alone and (found := _singular(model, node)) is not None:
            value, reader, factor, is_log = found
            operand = places.get((value, reader), places.get(value))
            if isinstance(operand, RangeObserver) and operand is not observer:
                observer.singularity = Singularity(operand, factor, is_log)


# ---------------------------------------------------------------- jumps


def _set_thresholds(model: GraphModule, places: Mapping[Place, Any], value: Node, thresholds: Thresholds) -> None:
    """Set the thresholds of a value, and of the values that it is a linear function of, which are rounded before."""
    for _ in range(LINEAR_DEPTH):
        observer = places.get(value)
        if isinstance(observer, RangeObserver):
            observer.add_thresholds(thresholds)
        before = line_of(model, value)
        if before is None:
            return
        value, factor, addend = before
        thresholds = thresholds.before(factor, addend)


# ---------------------------------------------------------------- clamps


def _observe_clamped(observer: RangeObserver, nodes: Iterable[Node], places: Places, values: Values) -> None:
    found = [_ends(node, places, values) for node in nodes]
    low = min((ends[0] for ends in found if ends), default=-math.inf)
    high = max((ends[1] for ends in found if ends), default=math.inf)
    if all(found) and math.isfinite(low + high):
        observer.within = low, high


def _ends(value: Node, places: Places, values: Values) -> Ends | None:
    """Return the limits of clamps that read a value, possibly moved; None if it has other readers.

    Args:
        values: the values of each observer. The result of a clamp may share the qparams of its operand, which must then
            cover the same range.
    """
    found: list[Ends] = []
    for user in value.users:
        entry, observer = known_import(user), places.get(user)
        if entry is None or not isinstance(user.meta.get("val"), torch.Tensor):
            return None
        ends = None
        if entry.is_activation and all(_stems_from(node, user) for node in values.get(observer, {})):
            low, high = clamp_bounds(NodeArguments(user))
            ends = (-math.inf if low is None else low, math.inf if high is None else high)
        elif observer is not None and is_fixed(observer):
            end = facts.saturates_from(overload_name(user), float(observer.scale) / 2)
            # The last integers of the operand lie beyond that, wherever its zero point is.
            ends = None if end is None else (-(1 + SATURATED) * end, (1 + SATURATED) * end)
        elif entry.moves_only and len(user.all_input_nodes) == 1:
            ends = _ends(user, places, values)
        if ends is None:
            return None
        found.append(ends)
    return (min(low for low, _ in found), max(high for _, high in found)) if found else None


def _stems_from(node: Node, clamp: Node) -> bool:
    """Return True if a node is a clamp, or its result, moved."""
    while node is not clamp:
        entry = known_import(node)
        if entry is None or not entry.moves_only or len(node.all_input_nodes) != 1:
            return False
        (node,) = node.all_input_nodes
    return True


# ---------------------------------------------------------------- singularities


@dataclass(frozen=True)
class Singularity:
    """Range that the result of a function with a singularity at 0 needs: z ** c, or c * log(z).

    Attributes:
        operand: observer of the value.
        factor: c.
        is_log: True for c * log(z), False for the power.
    """

    operand: RangeObserver
    factor: float
    is_log: bool = False

    def __repr__(self) -> str:
        return f"Singularity({self.factor}, {self.is_log})"

    def ends(self) -> tuple[float, float]:
        """Return the smallest and the largest result for an operand that is not 0 with its own qparams."""
        if self.operand.is_empty:
            return -math.inf, math.inf
        return self._at(float(self.operand.calculate_qparams()[0]))

    def counting(self, results: torch.Tensor) -> torch.Tensor:
        """Return the results whose operand is more than half an LSB from 0, with the qparams of values seen so far."""
        if self.operand.is_empty:
            return results
        most = max(-float(self.operand.min_val), float(self.operand.max_val))
        steps = self.operand.quant_max - self.operand.quant_min
        least, most = self._at(most / (2 * steps)) if most > 0 else (-math.inf, math.inf)
        return results[(results >= least) & (results <= most)]

    def _at(self, z: float) -> tuple[float, float]:
        """Return the ends of results for operands with a magnitude of at least z."""
        if not self.is_log:
            return -(z**self.factor), z**self.factor
        end = self.factor * math.log(z)
        return (end, math.inf) if self.factor > 0 else (-math.inf, end)


def _singular(model: GraphModule, node: Node) -> tuple[Node, Node, float, bool] | None:
    """Return (z, its reader, c, True for the logarithm) of c * log(z) or z ** c with a singularity at 0, or None."""
    before = node.args[0] if node.args and isinstance(node.args[0], Node) else None
    if before is None:
        return None
    if (power := power_of(node)) is not None:
        return (before, node, power, False) if power < 0 else None
    if form_of(node) is Form.LOGARITHM:
        return (before, node, 1.0, True) if all(_inverse_factor(model, user) for user in node.users) else None
    if factor := _inverse_factor(model, node):
        of = _singular(model, before) if form_of(before) is Form.LOGARITHM else None
        return (of[0], of[1], factor, True) if of is not None else None
    if form_of(node) is Form.EXPONENTIAL:  # of c * log(z), which is a power of z
        of = _singular(model, before)
        return (of[0], of[1], of[2], False) if of is not None and of[3] and of[2] < 0 else None
    return None


def _inverse_factor(model: GraphModule, node: Node) -> float | None:
    """Return c of a node c * log(z) that is only read as the logarithm of a negative power.

    A positive power is near 0 if z is, so that its reader needs precision there.
    """
    line = line_of(model, node)
    is_inverse = line is not None and line[0] is node.args[0] and line[1] < 0 and not line[2]
    is_read = all(form_of(user) is Form.EXPONENTIAL for user in node.users)
    return line[1] if line is not None and is_inverse and is_read else None


@contextmanager
def bounded(model: GraphModule) -> Iterator[None]:
    """Context in which functions with a singularity at 0 keep the value that they have half an LSB of their operand
    away.

        x + 1e-3 -> fake quantization -> log        with a scale of 0.02, x = 0 becomes log(0), and its gradient 1 / 0

    The program computes the value at 0 by a table; a training step would get infinity or NaN, in the range or gradient.
    """
    exact = {node: node.target for node in model.graph.nodes if is_singular(node)}
    for node, function in exact.items():
        node.target = _away_from_zero(function, _observer_of(model, node.args[0]), _is_of_positive(node))
    if exact:
        model.recompile()
    try:
        yield
    finally:
        for node, function in exact.items():
            node.target = function
        if exact:
            model.recompile()


def _is_of_positive(node: Node) -> bool:
    """Return True if a function with a singularity has no values below 0 either."""
    power = power_of(node)
    return power is None or not power.is_integer()


def _observer_of(model: GraphModule, operand: Any) -> nn.Module | None:
    """Return the fake quantization of an operand, or None."""
    if not isinstance(operand, Node) or operand.op != "call_module":
        return None
    module = model.get_submodule(str(operand.target))
    return module if isinstance(getattr(module, "scale", None), torch.Tensor) else None


def _away_from_zero(function: Callable[..., Any], observer: nn.Module | None, positive: bool) -> Callable[..., Any]:
    """Return the function with finite values and gradients; unchanged wherever it is finite."""

    def computed(x: torch.Tensor, *arguments: Any) -> torch.Tensor:
        step: Any = UNKNOWN_LSB if observer is None else observer.scale
        half = (torch.as_tensor(step, dtype=x.dtype, device=x.device) / 2).max()
        near = torch.maximum(x, half) if positive else torch.where(x.abs() < half, half.copysign(x), x)
        result: torch.Tensor = function(near, *arguments)
        value = function(x.detach(), *arguments)
        return torch.where(value.isfinite(), result + (value - result).detach(), result)

    return computed
