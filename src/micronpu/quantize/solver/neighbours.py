"""Requirements of readers and producers on the qparams of a value, passed to its observer before calibration.

A threshold: rounding must not move a value across it.  Take x > 0.3 with a scale of 0.0275. Values between 0.28875 and
0.31625 round to 0.3025, which is larger than 0.3.  With 0.02857 a rounding interval ends at 0.3.  Zero is exact in all
qparams: it is never between two LSBs.

A clamp: the range of values that only clamps read ends with the clamps.  If the values go up to 100, and the clamp ends
at 1, qparams for all values leave two LSBs below 1.  The same holds for a sigmoid or tanh, whose integers no longer
change from some operand on, and for the terms of a sum that these read: none needs to reach further than that and the
other terms together.

A distance of an input, as of an autoencoder: its threshold is beyond calibration on healthy rows, so that its range and
those of the values it is computed from, back to inputs and layers, have room.

A singularity at 0: 1 / sqrt(sum(x * x)) of a row of zeros is 1e6 in float, because of an eps, and no row needs it.  The
range of the result ends at its value one LSB of the operand away from 0.

A mask adds a number that means minus infinity.  A range that covered it would leave few LSBs for the unmasked scores of
a softmax. A range that ends `MASKED_FLOOR` below the lowest of them is as good, since a score that saturates there has
hardly any weight, which is zero in the result of a softmax.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import nn

from micronpu.base.errors import ModelError
from micronpu.ir.facts import Form
from micronpu.ops.softmax import HIDDEN, MASKED
from micronpu.quantize import thresholds as at
from micronpu.quantize.observers import FinerObserver, is_average, is_fixed, is_observer
from micronpu.quantize.observing import RangeObserver, Thresholds
from micronpu.quantize.solver.groups import PartObserver
from micronpu.quantize.solver.requirements import Rules, known_rules
from micronpu.quantize.solver.values import Place, State, Value, Values

Ends: TypeAlias = tuple[float, float]
UNLIMITED: Ends = (-math.inf, math.inf)
Places: TypeAlias = Mapping[Place, Any]
"""Observers, this package's or torchao's, of values and of (operand, reader) edges."""
Groups: TypeAlias = Mapping[Any, Mapping[Value, None]]
"""The values of each observer."""
Sum: TypeAlias = tuple[Ends, tuple[Any, ...]]
"""Ends beyond which the sum of a value and others saturates, and the observers of the others."""

_DISTANCES = (Form.ROW_SUM, Form.ROW_MEAN, Form.ROW_MAXIMUM)
_AT_ZERO = Thresholds(frozenset({(0.0, 0.0)}))


def observe_for_neighbours(values: Values, places: Places) -> None:
    """Pass the requirements of readers and producers to observers, in place."""
    groups: dict[Any, dict[Value, None]] = {}
    for place, observer in places.items():
        groups.setdefault(observer, {})[place[0] if isinstance(place, tuple) else place] = None
    _lift_masked(values, places, groups)
    _observe_operands(places)
    results = Counter(observer for place, observer in places.items() if isinstance(place, Value))
    _observe_clamped(values, places, groups)
    _observe_exceeded(values, groups)
    for distance in map(distance_of, values.returned):
        for observer, observed in groups.items():
            if isinstance(observer, RangeObserver) and observer.widens and not distance.isdisjoint(observed):
                observer.part = max(observer.part, at.UNLIKE_ROWS)
    for value in values.all:
        if value.jumps and value.first is not None:  # also if it stays in float
            _set_thresholds(places, value.first, Thresholds(value.jumps))
        if value.is_bounded:
            operand = _observer_of_edge(places, value.operands[0], value)
            if isinstance(operand, RangeObserver):
                operand.part = min(operand.part, 1.0)
        observer = places.get(value)
        if not isinstance(observer, RangeObserver):
            continue
        is_alone = results[observer] == 1
        if value.sign_counts:
            observer.part = at.SIGN_RANGE if is_alone else observer.part
            _set_thresholds(places, value, _AT_ZERO)
        observer.is_whole |= is_alone and value.is_whole
        if is_alone and (found := _singular(value)) is not None:
            operand = _observer_of_edge(places, found.operand, found.reader)
            if isinstance(operand, RangeObserver) and operand is not observer:
                observer.singularity = Singularity(operand, found.factor, found.is_log)


def _observer_of_edge(places: Places, operand: Value, reader: Value) -> Any:
    return places.get((operand, reader), places.get(operand))


def _observe_operands(places: Places) -> None:
    """Connect the observers of averages and clamps with those of their operands, of at most `FINER_DEPTH` in a row."""
    depths = dict[Any, int]()

    def depth(seen: object) -> int:
        both = (seen.own, seen.group) if isinstance(seen, PartObserver) else (seen,)
        return max(depths.get(observer, 0) for observer in both)

    for value, seen in places.items():
        observer = seen.own if isinstance(seen, PartObserver) else seen
        if not isinstance(value, Value) or not isinstance(observer, FinerObserver):
            continue
        if value.rule is not None and value.rule.finer is not None:
            of = _observer_of_edge(places, value.operands[0], value)
            both = isinstance(seen, PartObserver) and isinstance(of, PartObserver) and of.group is seen.group
            if (before := depth(of)) < at.FINER_DEPTH:
                observer.observe_operand(of.own if both else of)  # which then passes values to the group once
                depths[observer] = max(depths.get(observer, 0), before + 1)


def has_room(observer: object) -> bool:
    """Return True for an observer whose range has room for rows unlike those that calibrated."""
    return isinstance(observer, RangeObserver) and observer.part >= at.UNLIKE_ROWS


def distance_of(score: Value) -> frozenset[Value]:
    """Return a distance that each row has, of an input, with what it is computed from back to inputs and layers; else
    none.

    A sum, mean or maximum of values of one sign, such as squares, is one.  If inputs reach it through layers alone, as
    in a distance of embeddings, those clip before.  Pictures do not exceed what their pixels can be.
    """
    is_single = score.shape is not None and all(size == 1 for size in score.shape[1:])
    if not is_single or math.isfinite(score.bounds[0]) == math.isfinite(score.bounds[1]):
        return frozenset()
    found, last = {score}, [score]
    while last:
        value = last.pop()
        if value.weights is None and not value.is_constant and not value.is_clamp:
            before = {v for v in value.float_operands if not all(map(math.isfinite, v.bounds))} - found
            last += before
            found |= before
    is_distance = any(v.form in _DISTANCES for v in found) and any(v.is_input for v in found)
    return frozenset(v for v in found if not v.is_input or len(v.shape or ()) < 4) if is_distance else frozenset()


# ---------------------------------------------------------------- jumps


def _set_thresholds(places: Places, value: Value, thresholds: Thresholds) -> None:
    """Set the thresholds of a value, and of the values that it is a linear function of, which are rounded before."""
    while True:
        observer = places.get(value)
        if isinstance(observer, RangeObserver):
            observer.add_thresholds(thresholds)
        if value.line is None:
            return
        value, factor, addend = value.line
        thresholds = thresholds.before(factor, addend)


# ---------------------------------------------------------------- clamps


def _observe_clamped(values: Values, places: Places, groups: Groups) -> None:
    """Limit the ranges of groups whose values are made or read by clamps; an input is quantized by the application."""
    made, read = dict[Value, Ends](), dict[Value, tuple[Sum, ...]]()
    for value in values.all:
        padding = 0.0 if value.rule is None else value.rule.padding
        selected = [(padding, padding), *(made[v] for v in value.float_operands)] if _selects(value) else ()
        made[value] = value.clamps_to if value.is_clamp else _union(selected)
    for value in reversed(values.all):
        found = [_read_within(value, reader, places, read) for reader in value.readers]
        sums: dict[tuple[Any, ...], list[Ends]] = {}
        for ends, terms in itertools.chain(*found):
            sums.setdefault(terms, []).append(ends)
        is_known = all(found) and len(sums) <= at.MOST_SUMS  # residual connections double them block by block
        read[value] = tuple((_union(ends), terms) for terms, ends in sums.items()) if is_known else ()
    kept = {state.old for state in values.states} if values.is_step else {v for v in values.all if v.is_input}
    for observer, observed in groups.items():
        if not isinstance(observer, RangeObserver) or not kept.isdisjoint(observed):
            continue
        alone = {
            v: UNLIMITED if any(terms for _, terms in read[v]) else _union(e for e, _ in read[v]) for v in observed
        }
        low, high = _union((max(made[v][0], own[0]), min(made[v][1], own[1])) for v, own in alone.items())
        if math.isfinite(low + high) and any(own != UNLIMITED for own in alone.values()):
            observer.within = low, high
        elif all(read[v] for v in observed) and not isinstance(observer, FinerObserver | PartObserver):
            observer.saturation = Saturation(tuple(dict.fromkeys(one for v in observed for one in read[v])))


def _observe_exceeded(values: Values, groups: Groups) -> None:
    """Let ranges of groups extend beyond calibration if other samples exceed them and all errors count alike."""
    alike = dict[Value, bool]()
    sums = set[Value]()  # of many products: other samples exceed their extremes, for any inputs
    states = {state.old for state in values.states}  # their values of successive calls do not tell how far others reach
    for value in values.all:
        if value.weights is not None or (_passes(value) and not sums.isdisjoint(value.operands)):
            sums.update((value, value.result or value))
    for value in reversed(values.all):
        alike[value] = all(_counts_by_size(reader, alike) for reader in value.readers)
    for observer, observed in groups.items():
        if not isinstance(observer, RangeObserver) or isinstance(observer, FinerObserver | PartObserver):
            continue
        makers = [value for value in observed if observed.keys().isdisjoint(value.operands)]
        if len(makers) == 1 and observed.keys().isdisjoint(states) and all(alike[value] for value in observed):
            observer.exceeded_from = 0 if makers[0] in sums else at.ENOUGH_VALUES if makers[0].is_input else math.inf
            observer.repeats = len(observed)  # of what maxima select not all is observed, but they are not `alike`


def _read_within(value: Value, reader: Value, places: Places, read: Mapping[Value, tuple[Sum, ...]]) -> tuple[Sum, ...]:
    """Return the limits of the clamps behind a reader, which may move, select or add to the value; () for none."""
    observer = places.get(reader)
    if reader.reads_within != UNLIMITED:
        return ((reader.reads_within, ()),)
    if observer is not None and is_fixed(observer):
        end = reader.saturates_from(float(observer.scale) / 2)
        # The last integers of the operand are larger than that, for any zero point.
        return () if end is None else (((-(1 + at.SATURATED) * end, (1 + at.SATURATED) * end), ()),)
    if _selects(reader):
        return read[reader]
    others = [operand for operand in reader.float_operands if operand is not value]
    is_sum = reader.form is Form.SUM and len(others) == 1
    term = _observer_of_edge(places, others[0], reader) if is_sum else None
    if not isinstance(term, RangeObserver):
        return ()
    is_limited = all(math.isfinite(b - a) and len(terms) < at.MOST_TERMS for (a, b), terms in read[reader])
    return tuple((ends, (*terms, term)) for ends, terms in read[reader]) if is_limited else ()


def _counts_by_size(reader: Value, alike: Mapping[Value, bool]) -> bool:
    """Return True if an error of an operand counts alike wherever it is, so that clipping compares with rounding."""
    # Rounding of small values that are divided by, or compared, or averaged, counts more than that of large ones.
    reads_all = reader.is_output or reader.weights is not None or reader.softmax_axis is not None
    return reads_all or (_passes(reader) and alike[reader])


def _passes(value: Value) -> bool:
    return value.moves or value.form is Form.SUM or (value.is_clamp and value.clamps_to == (0.0, math.inf))


def _selects(value: Value) -> bool:
    """Return True if each element is one of an operand, so that clamps before the operator give the same result."""
    return value.moves or (value.rule is not None and value.rule.selects)


def _union(found: Iterable[Ends]) -> Ends:
    ends = list(found)
    return (min(low for low, _ in ends), max(high for _, high in ends)) if ends else UNLIMITED


@dataclass(frozen=True)
class Saturation:
    """Ends of a value beyond which all sums that read it saturate, for any integers of the other terms."""

    sums: tuple[Sum, ...]

    def __repr__(self) -> str:
        return f"Saturation({[(ends, len(terms)) for ends, terms in self.sums]})"

    def ends(self) -> Ends:
        reaches = [(ends, [term.reach() for term in terms]) for ends, terms in self.sums]
        return _union((low - sum(m for _, m in r), high - sum(n for n, _ in r)) for (low, high), r in reaches)


# ---------------------------------------------------------------- singularities


@dataclass(frozen=True)
class Singularity:
    """Range that the result of a function with a singularity at 0 needs: z ** c, or c * log(z)."""

    operand: RangeObserver  # observer of the value
    factor: float  # c
    is_log: bool = False  # True for c * log(z), False for the power

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


class _Singular(NamedTuple):
    """A value z ** factor, or factor * log(z), of an operand z that a reader computes it from."""

    operand: Value
    reader: Value
    factor: float
    is_log: bool = False


def _singular(value: Value) -> _Singular | None:
    """Return the power or logarithm with a singularity at 0 that a value is, or None."""
    before = value.first
    if before is None:
        return None
    if value.power is not None:
        return _Singular(before, value, value.power) if value.power < 0 else None
    if value.form is Form.LOGARITHM:
        return _Singular(before, value, 1.0, is_log=True) if all(map(_inverse_factor, value.readers)) else None
    if factor := _inverse_factor(value):
        of = _singular(before) if before.form is Form.LOGARITHM else None
        return of._replace(factor=factor) if of is not None else None
    if value.form is Form.EXPONENTIAL:  # of c * log(z), which is a power of z
        of = _singular(before) if before.form is not Form.EXPONENTIAL else None
        return of._replace(is_log=False) if of is not None and of.is_log and of.factor < 0 else None
    return None


def _inverse_factor(value: Value) -> float | None:
    """Return c of a value c * log(z) that is only read as the logarithm of a negative power."""
    # A positive power is near 0 if z is, so that its reader needs precision there.
    line = value.line
    is_inverse = line is not None and line[0] is value.first and line[1] < 0 and not line[2]
    is_read = all(reader.form is Form.EXPONENTIAL for reader in value.readers)
    return line[1] if line is not None and is_inverse and is_read else None


# ---------------------------------------------------------------- masks


def _lift_masked(values: Values, places: Places, groups: Groups) -> None:
    """Lift masked scores before they are observed, in place."""
    lifted: set[nn.Module] = set()
    rules, all_axes = known_rules(values.all), _row_axes(values)
    for value in values.all:
        if value.softmax_axis is None:
            if _distance_axis(value) is None:
                continue
            distances = places.get(value)
            if distances is not None and is_observer(distances) and distances not in lifted:
                distances.register_forward_pre_hook(_near_the_largest)
                lifted.add(distances)
        observer = _observer_of_edge(places, value.operands[0], value)
        if observer is None or is_fixed(observer) or observer in lifted:
            continue
        found = {score: all_axes[score] for score in groups[observer]}
        if not all(found.values()):
            continue
        along: dict[int | None, list[tuple[object, ...]]] = {}
        for score, axes in found.items():
            for axis in axes:
                along.setdefault(axis, []).append(score.shape or ())
        may_hide = any(_hides(score, rules) for score in found) and is_observer(observer)
        keeps = may_hide and not is_average(observer)
        observer.register_forward_pre_hook(functools.partial(_lifted, along=along, also_floor=keeps))
        lifted.add(observer)


def _lifted(
    observer: nn.Module,
    inputs: tuple[torch.Tensor, ...],
    *,
    along: Mapping[int | None, Sequence[tuple[object, ...]]],
    also_floor: bool,
) -> tuple[torch.Tensor, ...]:
    """Return scores, with masked ones lifted to `MASKED_FLOOR` below the lowest of the others.

    Masked are scores `SCORE_REACH` below the largest of their row, and rows that are completely masked.

    Args:
        along: shapes of the scores that softmaxes read along an axis; None for rows along none.
        also_floor: also observe the floor: later inputs may have masked keys even if these have none.
    """
    x, *others = inputs
    if not x.numel():
        return inputs
    data = x.detach()
    counts, number = torch.zeros_like(data, dtype=torch.bool), 0
    axes = {axis for axis, shapes in along.items() if any(_is_of_shape(x, shape) for shape in shapes)}
    for axis in sorted(axes or {None}, key=str):
        if axis is None:
            top, near = data.amax(), data > MASKED / 2
        else:
            top = data.amax(axis, keepdim=True)
            near = (data >= top - at.SCORE_REACH) & (top > MASKED / 2)
        counts, number = counts | near, max(number, top.numel())
    shown = data[counts]
    if not shown.numel():
        return inputs
    floor = shown.min() - at.MASKED_FLOOR
    if also_floor:
        observer.forward(floor.expand(number))
    return x.clamp(min=float(floor)), *others


def _near_the_largest(observer: nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """Clip distances to the largest of a row where the exponential is zero compared with one."""
    return inputs[0].clamp(min=-at.MASKED_FLOOR), *inputs[1:]


def _is_of_shape(x: torch.Tensor, shape: tuple[object, ...]) -> bool:
    """Return True if a value has a shape, some of whose sizes may be known only at run time."""
    pairs = list(zip(x.shape, shape, strict=False))
    return x.dim() == len(shape) and all(own == size for own, size in pairs if isinstance(size, int))


def _row_axes(values: Values) -> Mapping[Value, frozenset[int | None]]:
    """Return the axes along which softmaxes read each value, possibly moved; empty if it has other readers."""
    # Rows along no axis are None: for concatenated or cut rows, more than one row decides which scores count.
    found: dict[Value, frozenset[int | None]] = {}
    for value in reversed(values.all):  # what is behind a value first
        found[value] = _axes_of(value, found) if value.shape else frozenset()
    return found


def _axes_of(value: Value, known: Mapping[Value, frozenset[int | None]]) -> frozenset[int | None]:
    """Return the axes of a value, given those of its readers."""
    found: set[int | None] = set()
    axes = [_distance_axis(reader) for reader in value.readers]
    if value.form is Form.ROW_MAXIMUM and any(axis is not None for axis in axes):
        return frozenset(axes) - {None}
    for reader, axis in zip(value.readers, axes, strict=True):
        if reader.softmax_axis is not None:
            found.add(reader.softmax_axis)
        elif axis is not None:
            found.add(axis)
        elif reader.form is Form.ROW_MAXIMUM and any(far.first is value for far in _distances(reader)):
            pass
        elif reader.moves and (behind := known[reader]):
            found |= {None if axis is None else reader.axis_before(value, axis) for axis in behind}
        else:
            return frozenset()
    return frozenset(found)


def _distance_axis(value: Value) -> int | None:
    """Return the axis of x - amax(x), if only its exponentials are read, as in a logsumexp, or None."""
    largest = value.second
    if value.form is not Form.DIFFERENCE or largest is None or largest.first is not value.first:
        return None
    if {reader.form for reader in value.readers} != {Form.EXPONENTIAL}:
        return None
    return largest.maximum_axis


def _distances(largest: Value) -> list[Value]:
    """Return the distances of values to the largest of their row."""
    return [r for r in largest.readers if r.second is largest and _distance_axis(r) is not None]


def _hides(value: Value, rules: Rules) -> bool:
    """Return True if a mask is added to a value that the program computes, and may hide more than in calibration."""
    return any(rules[a] == HIDDEN and not a.is_stored and not a.is_input for a in _addends(value))


def _addends(value: Value) -> Iterable[Value]:
    """Return a value, and the addends of it through operators that only add or move."""
    found, last = {value: None}, [value]
    while last:
        operands = [v for adds in last if adds.form is Form.SUM or adds.moves for v in adds.operands]
        last = [operand for operand in dict.fromkeys(operands) if operand not in found]
        found.update(dict.fromkeys(last))
    return found


# ---------------------------------------------------------------- states


def share_states(values: Values, places: dict[Place, Any]) -> None:
    """Merge the groups that share qparams with a state's old and new value, in place."""
    for state in values.states:
        old = places.get(state.old)
        if old is None:
            continue
        for new in (places.get(state.new), places.get((state.new, values.output))):
            if new is None or new is old:
                continue
            kept = common_observer(state, old, new)
            places.update({place: kept for place, own in places.items() if own is old or own is new})
            old = kept


def common_observer(state: State, old: Any, new: Any) -> object:
    """Return the stricter of two observers of a state."""
    found = "" if old.dtype is new.dtype else f"{dtype_name(old.dtype)} in and {dtype_name(new.dtype)} out"
    fixed = [o for o in (old, new) if is_fixed(o)]
    if len(fixed) == 2 and (float(old.scale), int(old.zero_point)) != (float(new.scale), int(new.zero_point)):
        found = (
            f"read with scale {float(old.scale):.4g} and written with scale {float(new.scale):.4g}, both prescribed by "
            "operators"
        )
    if found:
        raise ModelError(
            f"The state `{state.name}` cannot have one pair of qparams: it is "
            f"{found}{f' ({state.source})' if state.source else ''}.",
            hint="the same setting of the quantizer for the operators that read the state and for the one that makes "
            "its new value",
        )
    return strictest((old, new))


def strictest(observers: Sequence[Any]) -> Any:
    """Return the first observer with fixed qparams, or else with zero point 0, or else the first."""
    return min(observers, key=lambda o: (not is_fixed(o), o.qscheme != torch.per_tensor_symmetric))


def dtype_name(dtype: torch.dtype) -> str:
    """Return ``int8`` for ``torch.int8``."""
    return str(dtype).removeprefix("torch.")
