"""What operators ask of the qparams of the values around them, by the facts of `micronpu.ops.facts`.

A result that jumps: the numbers where it does lie between two LSBs of the value that is read, so that rounding leads no
value past them.  x > 0.3 with a scale of 0.0275, of which one LSB is 0.3025: what lies between 0.28875 and 0.31625
becomes that LSB, which is larger, whatever it was before.  With 0.02857 the values of an LSB end at 0.3.  Zero is exact
in all qparams: it is never between two LSBs.

A clamp: of values that nothing but clamps reads, the range ends where the clamps do.  Qparams for values up to 100, of
which a clamp leaves those up to 1, have two LSBs for these.

A singularity at 0: 1 / sqrt(sum(x * x)) of a row of zeros is 1e6 in float, where an eps says so, and no row needs it.
The range of the result ends at its value one LSB of the operand away from 0.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch.fx import GraphModule, Node

from micronpu.frontend.constants import number
from micronpu.frontend.facts import SIGN_COUNTS
from micronpu.frontend.importer import NodeArguments, known_import
from micronpu.frontend.program import arguments, overload_name
from micronpu.ops import facts
from micronpu.ops.clamps import clamp_bounds
from micronpu.quantize.observing import Borders, RangeObserver
from micronpu.quantize.specs import Place

Ends: TypeAlias = tuple[float, float]

_PART = 0.125
"""Part of the range of a difference whose sign alone is read: its LSBs are smaller than those of its operands."""
_AT_ZERO = Borders(frozenset({(0.0, 0.0)}))
_DEEPEST = 4
"""Maximum number of successive operators that multiply or add a number, and are looked through."""


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
    """Sets what observers know of the operators around their values.

    Args:
        places: observer by node or by (operand, reader) edge, as torchao has them while it prepares.
    """
    values: dict[Any, dict[Node, None]] = {}
    results = Counter(observer for place, observer in places.items() if isinstance(place, Node))
    for place, observer in places.items():
        values.setdefault(observer, {})[place[0] if isinstance(place, tuple) else place] = None
    for observer, nodes in values.items():
        if isinstance(observer, RangeObserver) and not any(node.op == "placeholder" for node in nodes):
            _observe_clamped(observer, nodes, lambda clamp: values.get(places.get(clamp), {}))
    for node in model.graph.nodes:
        name = overload_name(node)
        jumps = facts.jumps_of(name, arguments(node)) if name else None
        if jumps and isinstance(node.args[0], Node):  # also if it stays in float
            _set_borders(model, places, node.args[0], Borders(jumps))
        observer = places.get(node)
        if not isinstance(observer, RangeObserver):
            continue
        is_alone = results[observer] == 1
        if SIGN_COUNTS.of(node) == node.name:
            observer.part = _PART if is_alone else observer.part
            _set_borders(model, places, node, _AT_ZERO)
        observer.is_whole |= is_alone and facts.is_whole(name)
        if is_alone and (found := _singular(model, node)) is not None:
            value, reader, factor, is_log = found
            operand = places.get((value, reader), places.get(value))
            if isinstance(operand, RangeObserver) and operand is not observer:
                observer.pole = Pole(operand, factor, is_log)


# ---------------------------------------------------------------- jumps


def _set_borders(model: GraphModule, places: Mapping[Place, Any], value: Node, borders: Borders) -> None:
    """Sets those of a value, and of what it is a multiple of, beside a number: that is rounded before."""
    for _ in range(_DEEPEST):
        observer = places.get(value)
        if isinstance(observer, RangeObserver):
            observer.heed(borders)
        before = line_of(model, value)
        if before is None:
            return
        value, factor, addend = before
        borders = borders.before(factor, addend)


# ---------------------------------------------------------------- clamps


def _observe_clamped(observer: RangeObserver, nodes: Iterable[Node], with_it: Callable[[Node], Iterable[Node]]) -> None:
    found = [_ends(node, with_it) for node in nodes]
    low = min((ends[0] for ends in found if ends), default=-math.inf)
    high = max((ends[1] for ends in found if ends), default=math.inf)
    if all(found) and math.isfinite(low + high):
        observer.within = low, high


def _ends(value: Node, with_it: Callable[[Node], Iterable[Node]]) -> Ends | None:
    """Between which numbers clamps that read a value leave it, be it moved before; None where others read it, too.

    Args:
        with_it: what has the qparams of a node's result. A clamp may have those of its operand, whose range then has to
            reach as far.
    """
    found: list[Ends] = []
    for user in value.users:
        entry = known_import(user)
        if entry is None or not isinstance(user.meta.get("val"), torch.Tensor):
            return None
        if entry.is_activation and all(_stems_from(node, user) for node in with_it(user)):
            low, high = clamp_bounds(NodeArguments(user))
            found.append((-math.inf if low is None else low, math.inf if high is None else high))
        elif entry.moves_only and len(user.all_input_nodes) == 1 and (ends := _ends(user, with_it)) is not None:
            found.append(ends)
        else:
            return None
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
class Pole:
    """Range that the result of a function with a singularity at 0 needs: z ** c, or c * log(z).

    Attributes:
        operand: observer of the value.
        factor: c.
        is_log: whether it is c * log(z), and not the power.
    """

    operand: RangeObserver
    factor: float
    is_log: bool = False

    def __repr__(self) -> str:
        return f"Pole({self.factor}, {self.is_log})"

    def ends(self) -> tuple[float, float]:
        """The least and the largest result of an operand that is not 0 with its own qparams."""
        if self.operand.is_empty:
            return -math.inf, math.inf
        return self._at(float(self.operand.calculate_qparams()[0]))

    def counting(self, results: torch.Tensor) -> torch.Tensor:
        """Results whose operand is more than half an LSB from 0, with qparams of what was seen of it until now."""
        if self.operand.is_empty:
            return results
        most = max(-float(self.operand.min_val), float(self.operand.max_val))
        steps = self.operand.quant_max - self.operand.quant_min
        least, most = self._at(most / (2 * steps)) if most > 0 else (-math.inf, math.inf)
        return results[(results >= least) & (results <= most)]

    def _at(self, z: float) -> tuple[float, float]:
        """The ends of results of operands as far from 0 as z, or farther."""
        if not self.is_log:
            return -(z**self.factor), z**self.factor
        end = self.factor * math.log(z)
        return (end, math.inf) if self.factor > 0 else (-math.inf, end)


def _singular(model: GraphModule, node: Node) -> tuple[Node, Node, float, bool] | None:
    """(z, its reader, c, is it the logarithm) of c * log(z) or z ** c with a singularity at 0; None of other nodes."""
    before = node.args[0] if node.args and isinstance(node.args[0], Node) else None
    if before is None:
        return None
    if (power := power_of(node)) is not None:
        return (before, node, power, False) if power < 0 else None
    if overload_name(node) == facts.LOGARITHM:
        return (before, node, 1.0, True) if all(_inverse_factor(model, user) for user in node.users) else None
    if factor := _inverse_factor(model, node):
        of = _singular(model, before) if overload_name(before) == facts.LOGARITHM else None
        return (of[0], of[1], factor, True) if of is not None else None
    if overload_name(node) == facts.EXPONENTIAL:  # of c * log(z), which is a power of z
        of = _singular(model, before)
        return (of[0], of[1], of[2], False) if of is not None and of[3] and of[2] < 0 else None
    return None


def _inverse_factor(model: GraphModule, node: Node) -> float | None:
    """Return c of a node c * log(z) that is read as the logarithm of a negative power alone.

    That of a positive power is near 0 where z is, so that its reader needs to know how near.
    """
    line = line_of(model, node)
    is_inverse = line is not None and line[0] is node.args[0] and line[1] < 0 and not line[2]
    is_read = all(overload_name(user) == facts.EXPONENTIAL for user in node.users)
    return line[1] if line is not None and is_inverse and is_read else None
