"""Values that are joined with larger ones, and read elsewhere, too: on which grid they are is known after calibration.

Operands of a concatenation share a grid.  Where a value of 0..1 is joined with one of 0..64 that grid has four steps
for it, which is what the concatenation asks for, and too few for anything else that reads the value: it then keeps its
own grid, and is rounded a second time where it is joined.  Elsewhere one grid saves that operator and that rounding.
What is joined and joined again with larger values, as in a dense block, is such a part, and so is what it is made of;
and so is the lesser of a small value and a large one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule, Node

from micronpu.frontend.program import overload_name
from micronpu.ops.elementwise import EXTREMA
from micronpu.quantize.config import OF_RESULTS
from micronpu.quantize.observers import is_average, observer_for
from micronpu.quantize.observers.finer import FinerObserver
from micronpu.quantize.observing import Borders, RangeObserver
from micronpu.quantize.specs import Place, QuantizationAnnotation, QuantizationSpec, SharedQuantizationSpec, Spec

_FINER = 4.0
"""How many times finer a value's own steps are where it keeps them: what two bits are worth is worth an operator."""


class PartObserver(RangeObserver):
    """Sees a part of what one grid is for, and hands it on to the observer of the whole, whose grid it has until then.

    Args:
        own: of the part alone.
        whole: of all that is joined.
        edges: names of (value, reader) where the part is joined.
        fed: which of both learn from what is seen here.
        follows: of a part that nothing else reads, what is made of it: it keeps its own grid where one of these does.
    """

    def __init__(
        self,
        own: RangeObserver,
        whole: RangeObserver,
        edges: tuple[tuple[str, str], ...] = (),
        *,
        fed: tuple[RangeObserver, ...] | None = None,
        follows: tuple[PartObserver, ...] = (),
    ) -> None:
        super().__init__(whole.dtype, whole.quant_min, whole.quant_max, whole.qscheme)
        self.own, self.whole = own, whole
        self.edges = edges
        self.fed, self.follows = (own, whole) if fed is None else fed, follows

    def heed(self, borders: Borders) -> None:
        self.own.heed(borders)
        self.whole.heed(borders)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for observer in self.fed:
            observer.forward(x)
        self.min_val, self.max_val = self.own.min_val, self.own.max_val  # which poles look at
        return x

    @property
    def is_fine(self) -> bool:
        """Whether the part alone has much finer steps."""
        if self.own.is_empty or self.whole.is_empty or (self.follows and not any(p.is_fine for p in self.follows)):
            return False
        return _FINER * float(self.own.calculate_qparams()[0]) <= float(self.whole.calculate_qparams()[0])

    def calculate_qparams(self) -> tuple[torch.Tensor, torch.Tensor]:
        return (self.own if self.is_fine else self.whole).calculate_qparams()


def joined_places(notes: Mapping[Node, QuantizationAnnotation]) -> set[Place]:
    """The edges where a value is joined with others on one grid, of those operators whose result has it, too."""
    found: set[Place] = set()
    for node, note in notes.items():
        shared = note.output_qspec
        edges = [(operand, node) for operand in note.input_qspec_map]
        if len(edges) > 1 and isinstance(shared, SharedQuantizationSpec) and shared.edge_or_node in edges:
            found.update(edges)
    return found


def joined_results(notes: Mapping[Node, QuantizationAnnotation]) -> dict[Node, QuantizationSpec]:
    """Values whose spec knows what they are, as of averages, and that are joined, be they moved before: with what the
    joint asks for, which is the spec of all that is on its grid.
    """
    found: dict[Node, QuantizationSpec] = {}
    for value, reader in (place for place in joined_places(notes) if isinstance(place, tuple)):
        asked = [spec for spec in notes[reader].input_qspec_map.values() if isinstance(spec, QuantizationSpec)]
        while value in notes and isinstance(spec := notes[value].output_qspec, SharedQuantizationSpec):
            value = spec.edge_or_node[0] if isinstance(spec.edge_or_node, tuple) else spec.edge_or_node
        spec = notes[value].output_qspec if value in notes else None
        if asked and isinstance(spec, QuantizationSpec) and spec.observer in OF_RESULTS:
            found[value] = asked[0]
    return found


def watch_apart(
    observers: dict[Place, Any], specs: Mapping[Place, Spec], apart: Mapping[Place, Place], joints: Set[Place]
) -> None:
    """Puts observers of parts in the place of those of a whole, for parts that are read elsewhere, in place.

    y = cat(x, a); z = cat(y, b), and y is read elsewhere        a is on the grid of y, be it that of z or its own
    y = cat(x, a); z = cat(x, b)                                 y and z may each be on their own
    y = minimum(x, a)                                            x and a on that of y, beyond which they may saturate

    Args:
        observers: of all places.
        apart: for each place the one that stands for its group, were nothing joined.
        joints: the edges where values are joined.
    """
    groups: dict[Place, list[Place]] = {}
    for place, first in apart.items():
        groups.setdefault(first, []).append(place)
    wholes = {id(observers[edge]): observers[edge] for edge in joints}
    results = Counter(id(observers[first]) for first in {apart[edge] for edge in joints})
    only_joined: list[tuple[list[Place], list[Place]]] = []
    for places in groups.values():
        whole = observers[places[0]]
        values = [place for place in places if isinstance(place, Node)]
        if id(whole) not in wholes or not _may_part(whole) or not all(observers[p] is whole for p in places):
            continue
        edges: list[Place] = [(v, user) for v in values for user in v.users if (v, user) in joints]
        if edges and any(_reads_alone(places, values, joints)):
            _part(observers, specs, places, edges)
        elif edges:
            only_joined.append((places, edges))
        elif not joints.isdisjoint(places) and (results[id(whole)] > 1 or any(map(_is_extremum, values))):
            _part(observers, specs, places, edges)
    for places, edges in reversed(only_joined):
        # Nothing but what is made of it reads it, which may itself be a part by now, of a finer grid than the whole.
        made = list(dict.fromkeys(observers[edge] for edge in edges))
        if len(made) > 1 or any(_is_extremum(edge[1]) for edge in edges if isinstance(edge, tuple)):
            _part(observers, specs, places, edges, tuple(part for part in made if isinstance(part, PartObserver)))
        else:
            observers.update(dict.fromkeys(places, made.pop()))
    for edge in joints:
        part = observers[edge]
        if (
            isinstance(edge, tuple)
            and isinstance(part, PartObserver)
            and (before := observers.get(edge[0])) is not part
        ):
            # The result tells what the part is, and the operand has told the whole where it is on its grid.
            told = before is part.whole or (isinstance(before, PartObserver) and before.whole is part.whole)
            observers[edge] = PartObserver(part.own, part.whole, fed=() if told else (part.whole,))


def _part(
    observers: dict[Place, Any],
    specs: Mapping[Place, Spec],
    places: Collection[Place],
    edges: Collection[Place],
    follows: tuple[PartObserver, ...] = (),
) -> None:
    """Watches a group of places apart, in place, where calibration finds its grid."""
    learnt = _learnt(map(specs.__getitem__, places))
    if learnt:
        own = observer_for(learnt[0])
        assert isinstance(own, RangeObserver)
        names = tuple((edge[0].name, edge[1].name) for edge in edges if isinstance(edge, tuple))
        part = PartObserver(own, observers[next(iter(places))], names, follows=follows)
        observers.update(dict.fromkeys(places, part))


def _is_extremum(node: Node) -> bool:
    """Whether the result is one of two operands, which may saturate on its grid where they are not chosen."""
    return overload_name(node) in EXTREMA


def _learnt(specs: Iterable[Spec]) -> list[QuantizationSpec]:
    """Those whose grids calibration finds; first those that know what the value is, as of averages."""
    found = [spec for spec in specs if isinstance(spec, QuantizationSpec)]
    return sorted(found, key=lambda spec: spec.observer not in OF_RESULTS)


def _may_part(whole: Any) -> bool:
    return isinstance(whole, RangeObserver) and not isinstance(whole, FinerObserver) and not is_average(whole)


def _reads_alone(places: Collection[Place], values: Collection[Node], joints: Collection[Place]) -> Iterator[bool]:
    """For each reader of a group of values whether it is none that joins them, or that is in the group itself."""
    for value in values:
        for user in value.users:
            yield (value, user) not in joints and user not in places


def settle_joints(prepared: GraphModule) -> None:
    """Decides for each part whether it keeps its own grid, by what calibration has shown, in place."""
    parts: dict[PartObserver, list[Node]] = {}
    for node in prepared.graph.nodes:
        if node.op == "call_module":
            module = prepared.get_submodule(str(node.target))
            if isinstance(module, PartObserver):
                parts.setdefault(module, []).append(node)
    for part, nodes in parts.items():
        kept: nn.Module = part.own if part.is_fine else part.whole
        for name in {str(node.target) for node in nodes}:
            setattr(prepared, name, kept)
        if kept is part.own:
            _join_again(prepared, part, nodes)
    if parts:
        _drop_repeated(prepared)


def _drop_repeated(prepared: GraphModule) -> None:
    """x -> whole -> whole -> cat        x -> whole -> cat, and so for two that read the same value"""
    modules = dict(prepared.named_modules(remove_duplicate=False))
    known: dict[tuple[Node, int], Node] = {}
    for node in reversed([n for n in prepared.graph.nodes if n.op == "call_module"]):  # the first reader's is last
        source, observer = node.args[0], modules[str(node.target)]
        assert isinstance(source, Node)
        same = source.op == "call_module" and modules[str(source.target)] is observer
        first = source if same else known.setdefault((source, id(observer)), node)
        if first is not node:
            node.replace_all_uses_with(first)
            prepared.graph.erase_node(node)
    prepared.recompile()


def _join_again(prepared: GraphModule, part: PartObserver, nodes: Collection[Node]) -> None:
    """x -> own -> cat        x -> own -> whole -> cat"""
    for seen in nodes:
        value = seen.args[0]
        assert isinstance(value, Node)
        readers = [user for user in seen.users if (value.name, user.name) in part.edges]
        for reader in readers:
            number = 0
            while hasattr(prepared, name := f"joint_{number}"):
                number += 1
            prepared.add_module(name, part.whole)
            with prepared.graph.inserting_after(seen):
                made = prepared.graph.call_module(name, (seen,))
            reader.replace_input_with(seen, made)
    prepared.recompile()
