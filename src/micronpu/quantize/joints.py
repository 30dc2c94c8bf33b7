"""Values that are joined with larger ones, and read elsewhere, too: on which grid they are is known after calibration.

Operands of a concatenation share a grid.  Where a value of 0..1 is joined with one of 0..64 that grid has four steps
for it, which is what the concatenation asks for, and too few for anything else that reads the value: it then keeps its
own grid, and is rounded a second time where it is joined.  Elsewhere one grid saves that operator and that rounding.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule, Node

from micronpu.quantize.config import FINER
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
    """

    def __init__(self, own: RangeObserver, whole: RangeObserver, edges: tuple[tuple[str, str], ...]) -> None:
        super().__init__(whole.dtype, whole.quant_min, whole.quant_max, whole.qscheme)
        self.own, self.whole = own, whole
        self.edges = edges

    def heed(self, borders: Borders) -> None:
        self.own.heed(borders)
        self.whole.heed(borders)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.own.forward(x)
        return self.whole.forward(x)

    @property
    def is_fine(self) -> bool:
        """Whether the part alone has much finer steps."""
        if self.own.is_empty or self.whole.is_empty:
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


def watch_apart(
    observers: dict[Place, Any], specs: Mapping[Place, Spec], apart: Mapping[Place, Place], joints: Collection[Place]
) -> None:
    """Puts observers of parts in the place of those of a whole, for parts that are read elsewhere, in place.

    Args:
        observers: of all places.
        apart: for each place the one that stands for its group, were nothing joined.
        joints: the edges where values are joined.
    """
    groups: dict[Place, list[Place]] = {}
    for place, first in apart.items():
        groups.setdefault(first, []).append(place)
    wholes = {id(observers[edge]): observers[edge] for edge in joints}
    for places in groups.values():
        whole = observers[places[0]]
        values = [place for place in places if isinstance(place, Node)]
        if id(whole) not in wholes or not _may_part(whole) or not all(observers[p] is whole for p in places):
            continue
        edges = tuple((v.name, user.name) for v in values for user in v.users if (v, user) in joints)
        learnt = _learnt(map(specs.__getitem__, places))
        if edges and learnt and any(_reads_alone(places, values, joints)):
            own = observer_for(learnt[0])
            assert isinstance(own, RangeObserver)
            part = PartObserver(own, whole, edges)
            observers.update(dict.fromkeys(places, part))


def _learnt(specs: Iterable[Spec]) -> list[QuantizationSpec]:
    """Those whose grids calibration finds; none where one of them may have that of its operand."""
    found = [spec for spec in specs if isinstance(spec, QuantizationSpec)]
    return [] if any(spec.observer == FINER for spec in found) else found


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
