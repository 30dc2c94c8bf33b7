"""Groups of values with equal qparams, each with one observer, and parts of groups that may have their own.

Operands of a concatenation share qparams.  If a value of 0..1 is concatenated with one of 0..64, the shared qparams
leave four LSBs for it. That is enough for the concatenation, but not for other readers: the value then keeps its own
qparams, and is requantized for the concatenation.  Otherwise shared qparams save that operator and that rounding.  The
same holds for values that are concatenated repeatedly with larger ones, as in a dense block, for their operands, and
for the minimum of a small value and a large one.  Which of both it is shows after calibration.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Set
from typing import Any, TypeAlias

import torch

from micronpu.quantize.config import OF_RESULTS
from micronpu.quantize.observers import FinerObserver, is_average, observer_for
from micronpu.quantize.observing import FixedObserver, RangeObserver, Thresholds
from micronpu.quantize.solver.values import Edge, Place, Value
from micronpu.quantize.specs import QuantizationAnnotation, QuantizationSpec, SharedQuantizationSpec, Spec
from micronpu.quantize.thresholds import FINER_OPERAND

Observer: TypeAlias = RangeObserver | FixedObserver
Observers: TypeAlias = dict[Place, Observer]


def observers_of(notes: Mapping[Value, QuantizationAnnotation]) -> Observers:
    """Return the observers of annotated values, by value and by (operand, reader)."""
    specs: dict[Place, Spec] = {}
    for value, note in notes.items():
        for operand, spec in note.input_qspec_map.items():
            specs[operand, value] = spec
        if note.output_qspec is not None:
            specs[value] = note.output_qspec
    groups = _groups(specs)
    observers: Observers = {}
    by_group: Observers = {}
    edges = concat_places(notes)
    group_specs = {groups[place]: s for place, s in specs.items() if place in edges and isinstance(s, QuantizationSpec)}
    for place, spec in specs.items():
        if groups[place] not in by_group:
            is_of_one = isinstance(spec, QuantizationSpec) and spec.observer in OF_RESULTS
            own = group_specs.get(groups[place], spec) if is_of_one else spec
            by_group[groups[place]] = (
                observers[own.edge_or_node] if isinstance(own, SharedQuantizationSpec) else observer_for(own)
            )
        observers[place] = by_group[groups[place]]
    if edges:
        _observe_parts(observers, specs, _groups(specs, edges), edges)
    return observers


def _groups(specs: Mapping[Place, Spec], apart: Collection[Place] = ()) -> dict[Place, Place]:
    """Return the representative of each place's group, which shares qparams."""
    # A place shares qparams with the one that its spec names. An edge shares those of other edges of the same tensor,
    # and of the tensor itself, if the specs agree.
    parents: dict[Place, Place] = {place: place for place in specs}

    def root(place: Place) -> Place:
        while parents[place] != place:
            # Path compression: steps of a recurrent cell make long chains.
            parents[place] = parents[parents[place]]
            place = parents[place]
        return place

    def unite(parent: Place, child: Place) -> None:
        above, below = root(parent), root(child)
        spec = specs[above]
        if isinstance(spec, SharedQuantizationSpec) and spec.edge_or_node == below:
            parents[above] = below  # the opposite direction would be a cycle
        else:
            parents[below] = above

    def settled(spec: Spec) -> Spec:
        while isinstance(spec, SharedQuantizationSpec):
            spec = specs[root(spec.edge_or_node)]
        return spec

    for place, spec in specs.items():
        if isinstance(place, tuple):
            operand, reader = place
            own = settled(spec)
            others: list[Place] = [(operand, user) for user in operand.readers if user is not reader]
            for other in (*others, operand) if place not in apart else ():
                if other in specs and other not in apart and _agree(settled(specs[other]), own):
                    unite(other, place)
        if isinstance(spec, SharedQuantizationSpec):
            unite(spec.edge_or_node, place)
    return {place: root(place) for place in parents}


def _agree(one: Spec, other: Spec) -> bool:
    """Return True if two specs mean the same qparams, with any observer."""
    if type(one) is not type(other):
        return False
    names = ["dtype", "quant_min", "quant_max", "qscheme"]
    names += ["ch_axis"] if isinstance(one, QuantizationSpec) else ["scale", "zero_point"]
    return all(getattr(one, name) == getattr(other, name) for name in names)


# ---------------------------------------------------------------- concatenations


class PartObserver(RangeObserver):
    """Observes a part of a concat group, and passes its values to the observer of the group, whose qparams it uses so
    far.

    Args:
        own: observer of the part alone.
        group: observer of the group.
        edges: names of (value, reader) where the part is joined.
        fed: the observers that learn from the values.
        parts: for a part without other readers, the parts made of it: it keeps its own qparams if one of them does.
    """

    def __init__(
        self,
        own: RangeObserver,
        group: RangeObserver,
        edges: tuple[tuple[str, str], ...] = (),
        *,
        fed: tuple[RangeObserver, ...] | None = None,
        parts: tuple[PartObserver, ...] = (),
    ) -> None:
        super().__init__(group.dtype, group.quant_min, group.quant_max, group.qscheme)
        self.own, self.group = own, group
        self.edges = edges
        self.fed, self.parts = (own, group) if fed is None else fed, parts

    def add_thresholds(self, thresholds: Thresholds) -> None:
        self.own.add_thresholds(thresholds)
        self.group.add_thresholds(thresholds)

    def learners(self) -> tuple[RangeObserver, ...]:
        return self.fed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for observer in self.fed:
            observer.forward(x)
        self.copy_extremes()
        return x

    def copy_extremes(self) -> None:
        """Take over the part's own extremes, which singularities read."""
        self.min_val, self.max_val = self.own.min_val, self.own.max_val

    @property
    def is_unseen(self) -> bool:
        """True if the group's observer has seen all that is read of the values, see `leave_selected`."""
        return self.own is self.group

    @property
    def is_fine(self) -> bool:
        """True if its own scale is at least `FINER_OPERAND` times smaller than the group's."""
        if self.own.is_empty or self.group.is_empty or (self.parts and not any(p.is_fine for p in self.parts)):
            return False
        return FINER_OPERAND * float(self.own.calculate_qparams()[0]) <= float(self.group.calculate_qparams()[0])

    def calculate_qparams(self) -> tuple[torch.Tensor, torch.Tensor]:
        return (self.own if self.is_fine else self.group).calculate_qparams()


def leave_selected(observers: Observers) -> None:
    """Let the observer of a group see what operators select, not the values that they alone select from, in place.

        y = max_pool(x), and x is not read elsewhere    max_pool(round(x)) = round(max_pool(x)): y decides

    Most values of x are no window's largest. They would hide how much clipping of the largest ones costs.
    """
    values = {place if isinstance(place, Value) else place[0] for place in observers}
    for value in sorted(values, key=lambda value: -value.index):
        places = [place for place in (value, *((value, r) for r in value.readers)) if place in observers]
        group, *others = dict.fromkeys(observers[place] for place in places)
        if not isinstance(group, RangeObserver) or isinstance(group, (PartObserver, FinerObserver)):
            continue
        if others or is_average(group):
            continue
        if value.readers and all(_is_seen(reader, group, observers) for reader in value.readers):
            part = PartObserver(group, group, fed=())
            part.within = group.within
            observers.update(dict.fromkeys(places, part))


def _is_seen(reader: Value, group: Observer, observers: Observers) -> bool:
    """Return True if the observer sees what a reader picks, or what is picked of a result that the reader moves."""
    observer = observers.get(reader)
    is_unseen = isinstance(observer, PartObserver) and observer.is_unseen and observer.group is group
    return (is_unseen and (reader.moves or reader.picks)) or (reader.picks and observer is group)


def concat_places(notes: Mapping[Any, QuantizationAnnotation]) -> set[Any]:
    """Return the edges of concat groups, for operators whose result shares the qparams."""
    found: set[object] = set()
    for node, note in notes.items():
        shared = note.output_qspec
        edges = [(operand, node) for operand in note.input_qspec_map]
        if len(edges) > 1 and isinstance(shared, SharedQuantizationSpec) and shared.edge_or_node in edges:
            found.update(edges)
    return found


def concat_results(notes: Mapping[Any, QuantizationAnnotation]) -> dict[Any, QuantizationSpec]:
    """Return values with special specs, as of averages, that feed a concat, with the spec of the concat group."""
    found: dict[Any, QuantizationSpec] = {}
    for value, reader in (place for place in concat_places(notes) if isinstance(place, tuple)):
        asked = [spec for spec in notes[reader].input_qspec_map.values() if isinstance(spec, QuantizationSpec)]
        while value in notes and isinstance(spec := notes[value].output_qspec, SharedQuantizationSpec):
            value = spec.edge_or_node[0] if isinstance(spec.edge_or_node, tuple) else spec.edge_or_node
        spec = notes[value].output_qspec if value in notes else None
        if asked and isinstance(spec, QuantizationSpec) and spec.observer in OF_RESULTS:
            found[value] = asked[0]
    return found


def _observe_parts(
    observers: Observers, specs: Mapping[Place, Spec], apart: Mapping[Place, Place], group_edges: Set[Edge]
) -> None:
    """Replace the observers of concat groups by part observers, for values with other readers, in place.

    y = cat(x, a); z = cat(y, b), and y is read elsewhere    a shares the qparams of y, its own or those of z
    y = cat(x, a); z = cat(x, b)                             y and z may each have their own
    y = minimum(x, a)                                        x and a share those of y, and may saturate
    """
    groups: dict[Place, list[Place]] = {}
    for place, first in apart.items():
        groups.setdefault(first, []).append(place)
    group_observers = {id(observers[edge]): observers[edge] for edge in group_edges}
    results = Counter(id(observers[first]) for first in {apart[edge] for edge in group_edges})
    only_concat: list[tuple[list[Place], list[Edge]]] = []
    for places in groups.values():
        group = observers[places[0]]
        values = [place for place in places if isinstance(place, Value)]
        may_part = isinstance(group, RangeObserver) and not isinstance(group, FinerObserver) and not is_average(group)
        if id(group) not in group_observers or not may_part or not all(observers[p] is group for p in places):
            continue
        every = [(v, user) for v in values for user in v.readers]
        # A concatenation in int16 requantizes operands in int8.
        edges = [edge for edge in every if edge in group_edges and observers[edge].dtype is group.dtype]
        is_read_alone = any(edge not in edges and edge[1] not in places for edge in every)
        are_several = results[id(group)] > 1 or any(value.is_one_of for value in values)
        if edges and is_read_alone:
            _part(observers, specs, places, edges)
        elif edges:
            only_concat.append((places, edges))
        elif are_several and not group_edges.isdisjoint(places):
            _part(observers, specs, places, edges)
    for places, edges in reversed(only_concat):
        # Only the concatenation reads it, which may itself be a part with a smaller scale than the group.
        made = list(dict.fromkeys(observers[edge] for edge in edges))
        if len(made) > 1 or any(reader.is_one_of for _, reader in edges):
            _part(observers, specs, places, edges, tuple(part for part in made if isinstance(part, PartObserver)))
        else:
            observers.update(dict.fromkeys(places, made.pop()))
    for edge in group_edges:
        part, before = observers[edge], observers.get(edge[0])
        if isinstance(part, PartObserver) and before is not part:
            # The result passes values to the part; the operand already passes them to the group if it shares its
            # qparams.
            is_fed = before is part.group or (isinstance(before, PartObserver) and before.group is part.group)
            observers[edge] = PartObserver(part.own, part.group, fed=() if is_fed else (part.group,))


def _part(
    observers: Observers,
    specs: Mapping[Place, Spec],
    places: Collection[Place],
    edges: Collection[Edge],
    parts: tuple[PartObserver, ...] = (),
) -> None:
    """Observe a group of places separately, in place, if calibration finds its qparams."""
    learnt = [spec for spec in map(specs.get, places) if isinstance(spec, QuantizationSpec)]
    group = observers[next(iter(places))]
    if learnt:  # special ones, as of averages, first
        own = observer_for(min(learnt, key=lambda spec: spec.observer not in OF_RESULTS))
        assert isinstance(own, RangeObserver) and isinstance(group, RangeObserver)
        names = tuple((operand.name, reader.name) for operand, reader in edges)
        part = PartObserver(own, group, names, parts=parts)
        observers.update(dict.fromkeys(places, part))
