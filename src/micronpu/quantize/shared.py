"""Joint quantization of several methods: states and common operators share their qparams.

Methods are graphs of one model, or of models with the same modules.  A tensor that the same source line of the same
module computes in two of them has one observer for both. So a method can read the states of another, and the same
tokens give the same numbers in each method.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from micronpu.base.errors import ModelError
from micronpu.frontend.facts import ROW_SIZE, UNEVEN, Fact
from micronpu.frontend.graphs import GraphModule, Node, calls, nodes_where
from micronpu.frontend.program import origin_of
from micronpu.frontend.tensors import state_ends, states_of
from micronpu.quantize.nodes import observers_in, source_of
from micronpu.quantize.observers import is_fixed
from micronpu.quantize.observing import RangeObserver
from micronpu.quantize.solver.neighbours import dtype_name, strictest

Key: TypeAlias = tuple[Hashable, ...]


@dataclass(eq=False)
class _Place:
    """An observer in a prepared method."""

    method: str
    prepared: GraphModule
    target: str
    observer: Any
    key: Key  # identifies corresponding places of other methods
    producer: Node
    state: str = ""  # name of the state that it observes, or ""


_LINE = "micronpu_line"
"""Key of a node's meta: identifies an operator of the user's model in several methods."""


def name_lines(modules: Iterable[GraphModule]) -> None:
    """Record module, source line, operator and number of each node; its replacements inherit that."""
    for module in modules:
        count: Counter[Key] = Counter()
        for node in calls(module):
            if (origin := origin_of(node)).source:
                key = (origin.module, origin.source, str(node.target))
                count[key] += 1
                node.meta[_LINE] = (*key, count[key])


def level_norms(modules: Iterable[GraphModule]) -> None:
    """Give a norm in several methods the ratio of the most unequal rows, in place."""
    most: dict[tuple[Key, Fact[float]], float] = {}
    nodes = [node for module in modules for node in nodes_where(module, UNEVEN.is_said)]
    for node, fact in itertools.product(nodes, (UNEVEN, ROW_SIZE)):
        most[_key(node), fact] = max(most.get((_key(node), fact), 0.0), fact.of(node))
    for node, fact in itertools.product(nodes, (UNEVEN, ROW_SIZE)):
        fact.say(node, most[_key(node), fact])


# ---------------------------------------------------------------- which observers are one


def share_qparams(prepared: Mapping[str, GraphModule]) -> None:
    """Share one observer among all places of the same state, or the same source line of the same module."""
    places = [place for name, module in prepared.items() for place in _places(name, module)]
    groups = {place.observer: [place.observer] for place in places}
    states: dict[Any, tuple[str, _Place]] = {}
    for place in places:
        if place.state:
            states.setdefault(place.observer, (place.state, place))

    def unite(one: _Place, other: _Place, state: str) -> None:
        first, second = groups[one.observer], groups[other.observer]
        if first is second:
            return
        why = _disagreement(strictest(first), strictest(second), bool(state))
        if why:
            if state:
                raise _no_qparams(state, one.method, other.method, why)
            return
        first += second
        for observer in second:
            groups[observer] = first

    seen: dict[Key, _Place] = {}
    # States first: in a conflict, a state must have the same qparams everywhere.
    for place in sorted(places, key=lambda p: not p.state):
        for key in filter(None, (("state", place.state) if place.state else (), place.key)):
            if key in seen:
                unite(seen[key], place, place.state if key[0] == "state" else "")
            else:
                seen[key] = place
    _see_alike(groups.values())
    kept = {observer: strictest(group) for group in {id(g): g for g in groups.values()}.values() for observer in group}
    for place in places:
        if kept[place.observer] is not place.observer:
            place.prepared.add_module(place.target, kept[place.observer])


def _see_alike(groups: Iterable[Sequence[object]]) -> None:
    """Widen the limits of observers for values that one method clamps and another does not, in place."""
    for group in groups:
        ranges = [getattr(observer, "within", (-math.inf, math.inf)) for observer in group]
        for observer in group:
            if isinstance(observer, RangeObserver):
                observer.within = min(low for low, _ in ranges), max(high for _, high in ranges)
                observer.saturation = observer.saturation if len(group) == 1 else None


def _disagreement(one: Any, other: Any, of_state: bool) -> str:
    """Return why two observers cannot be shared, or ""."""
    if one.dtype is not other.dtype:
        return f"{dtype_name(one.dtype)} in the one and {dtype_name(other.dtype)} in the other"
    if (one.quant_min, one.quant_max) != (other.quant_min, other.quant_max):
        return f"from {one.quant_min} to {one.quant_max} in the one and to {other.quant_max} in the other"
    if is_fixed(one) and is_fixed(other):
        if (float(one.scale), int(one.zero_point)) != (float(other.scale), int(other.zero_point)):
            return f"of scale {float(one.scale):.4g} in the one and {float(other.scale):.4g} in the other"
        return ""
    if not is_fixed(one) and not is_fixed(other) and type(one) is not type(other):
        return "learnt by different observers"
    if is_fixed(one) != is_fixed(other) and not of_state:
        return "dictated in the one and learnt in the other"
    return ""


def _no_qparams(state: str, one: str, other: str, why: str) -> ModelError:
    return ModelError(
        f"The methods `{one}` and `{other}` cannot share the qparams of the state `{state}`: it is {why}.",
        hint="the same setting of the quantizer for what reads and writes the state in both",
    )


def _places(method: str, prepared: GraphModule) -> list[_Place]:
    ends = state_ends(prepared)
    holders = {holder: state.name for state, holder, _ in ends}
    written = {value: state.name for state, _, value in ends if value.op == "call_module"}
    found: list[_Place] = []
    for node, observer in observers_in(prepared).items():
        producer = source_of(prepared, node)
        if producer.op == "get_attr" or getattr(observer, "ch_axis", None) is not None:
            continue  # weights, which are equal in all methods
        state = written.get(node, holders.get(producer, ""))
        found.append(_Place(method, prepared, str(node.target), observer, _key(producer), producer, state))
    written_for: dict[Key, list[_Place]] = {}
    for place in found:
        if place.key:
            written_for.setdefault(place.key, []).append(place)
    # Values of decomposed operators correspond if both methods have the same decomposition, in the same order.
    for key, places in written_for.items():
        targets = tuple(str(place.producer.target) for place in places if place.producer.op == "call_function")
        for number, place in enumerate(places):
            place.key = (*key, targets, number)
    return found


def _key(node: Node) -> Key:
    """Return the key of a value: module, source line and operator; () if unknown."""
    is_input = node.op == "placeholder"
    reader = next((user for user in _readers(node) if user.op == "call_function"), None) if is_input else node
    line = None if reader is None else reader.meta.get(_LINE)
    return (*(("input",) if is_input else ()), "line", *line) if line else ()


def _readers(node: Node) -> list[Node]:
    found, waiting = [], [*reversed(node.users)]
    while waiting:
        user = waiting.pop()
        if user.op == "call_module":
            waiting += reversed(user.users)
        else:
            found.append(user)
    return found


def check_qparams(made: Mapping[str, GraphModule]) -> None:
    """Raise `ModelError` if a state has different integers in several methods."""
    seen: dict[str, tuple[str, Any]] = {}
    for name, module in made.items():
        for state in states_of(module).values:
            qparams = (state.dtype, state.scale, state.zero_point)
            first, known = seen.setdefault(state.name, (name, qparams))
            if known != qparams:
                why = f"{_described(known)} in the one and {_described(qparams)} in the other"
                raise _no_qparams(state.name, first, name, why)


def _described(qparams: tuple[str, float | None, int | None]) -> str:
    dtype, scale, zero_point = qparams
    return dtype if scale is None else f"{dtype} with steps of {scale:.4g} from {zero_point}"
