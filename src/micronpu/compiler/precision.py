"""`quantization="auto"`: int8 everywhere but where a few operators in int8 cost most of the accuracy.

The network is run in float while the values of one group of operators are rounded, group by group; a group is what one
setting of the quantizer reaches.  The groups with most noise at the outputs are given more precision until what is left
is little, then those that are not needed lose it again, those that compute most first.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch.fx import GraphModule, Node

from micronpu.base.quiet import quiet
from micronpu.frontend.importer import known_import
from micronpu.frontend.program import is_compute
from micronpu.quantize.config import ACTIVATION_EPS, QuantizationConfig
from micronpu.quantize.quantizer import StaticQuantizer
from micronpu.quantize.unrounded import Layer, Row, Unrounded, Values, grid_limits, noise
from micronpu.report.accuracy import decibel_text, decibels
from micronpu.upstream.session import one_thread

ENOUGH = 20.0
"""dB of the outputs against float, from which int8 is left as it is."""
_WANTED = 26.0
"""dB that are looked for where it is not enough."""
_GAIN = 3.0
"""dB that more precision has to bring."""
_ROWS = 4
"""Calibration rows that are looked at."""
_CHEAP, _WORTH = 0.05, 6.0
"""Share of the network from which a group has to bring something, and dB that all of it would have to bring."""
_LITTLE = 15.0
"""dB above what is looked for, from which the noise of a group does not count."""
_TRIED, _WORK = 40, 3_000_000_000
"""Groups that are tried, at most, and MACs from which one row has to do."""
_FLOAT_WORK = 0.05
"""Share of the network's MACs up to which an operator may be left to the core in float."""


@dataclass(frozen=True)
class Precision:
    """Which parts of a model get more than int8.

    Attributes:
        names: of operators in the exported program.
        before, after: dB of the worst output against float, in int8 alone and with them, on calibration rows.
    """

    names: tuple[str, ...]
    before: float
    after: float

    def told(self, has_int16: bool) -> str:
        """A sentence for the report."""
        shown = ", ".join(f"`{name}`" for name in self.names)
        what = "in int16" if has_int16 else "in float on the core"
        return (
            f'quantization="auto" has {shown} {what} and all else in int8: {decibel_text(self.after)} against float in '
            f"the place of {decibel_text(self.before)}, on calibration rows."
        )

    def applied(self, quantizer: StaticQuantizer) -> StaticQuantizer:
        """A quantizer with settings for these parts, unless the user has settings for them."""
        made = copy.copy(quantizer)
        own = quantizer.settings
        made.settings = replace(own, finders=[(self._found, _wider(quantizer)), *own.finders])
        return made

    def _found(self, model: GraphModule) -> list[Node]:
        return [node for node in model.graph.nodes if not self._wanted.isdisjoint(_names(node))]

    @property
    def _wanted(self) -> frozenset[str]:
        return frozenset(self.names)


def _wider(quantizer: StaticQuantizer) -> QuantizationConfig | None:
    """int16 where the device computes with it; otherwise float, which the core computes."""
    default = quantizer.settings.default
    if default is None or not quantizer.capabilities.has_int16:
        return None
    return default.widened()


def chosen(
    module: GraphModule, work: Mapping[str, int], rows: Sequence[Row], quantizer: StaticQuantizer
) -> Precision | None:
    """The parts that get more precision; None where int8 is enough, or more would not help.

    Args:
        module: the model in int8, its states as buffers.
        work: of the operators of the float model, by name, the MACs.
        rows: inputs, of which a few are taken.
    """
    count = max(1, min(_ROWS, len(rows), _WORK // max(1, _TRIED * sum(work.values()))))
    with torch.no_grad(), quiet(), one_thread():
        return _Search(module, work, rows[:: len(rows) // count][:count], in_float=_wider(quantizer) is None).run()


def _names(node: Node) -> Iterator[str]:
    """What an operator is called, and what it was made of on the way from the exported program."""
    yield node.name
    sources = list(node.meta.get("from_node") or ())
    while sources:
        source = sources.pop()
        yield str(source.name)
        sources += source.from_node


def _step(node: Node, values: Sequence[Values]) -> float:
    """Of the grid of int16 that reaches as far as some values, and as the grid of int8 that calibration has chosen."""
    peaks = [float(exact[node].abs().nan_to_num(posinf=0.0).max()) for exact in values]
    peak = max(*peaks, *map(abs, grid_limits(node)))
    return max(peak / torch.iinfo(torch.int16).max, ACTIVATION_EPS["int16"])


def _source(layer: Layer) -> Node:
    """What makes the values of a layer: not what only moves them."""
    node = layer.first
    while node.op == "call_function" and not (is_compute(node) and not _moves(node)):
        node = node.all_input_nodes[0]
    return node


def _moves(node: Node) -> bool:
    entry = known_import(node)
    return entry is not None and entry.moves_only and len(node.all_input_nodes) == 1


class _Search:
    """Tries which groups of values matter.

    Attributes:
        made: by group, the quantize nodes of its values.
        touched: by group, the operators that need a setting for its values to be wider: what makes them, and what reads
            them, or they would be rounded there.
    """

    def __init__(self, module: GraphModule, work: Mapping[str, int], rows: Sequence[Row], in_float: bool) -> None:
        self.unrounded, self.work, self.rows = Unrounded(module), work, rows
        values = [self.unrounded.exact(row) for row in rows]
        self.exact = [self.unrounded.outputs(v) for v in values]
        self.signal = [sum(x for x, _ in pairs) for pairs in zip(*(noise(y, y) for y in self.exact), strict=True)]
        self.everything = dict.fromkeys((layer.quantize for layer in self.unrounded.layers), 0.0)
        self.steps: dict[Node, float] = {} if in_float else {n: _step(n, values) for n in self.everything}
        most = _FLOAT_WORK * sum(work.values()) if in_float else math.inf
        self.made: dict[str, set[Node]] = {}
        self.touched: dict[str, set[str]] = {}
        for layer in self.unrounded.layers:
            name = self.name_of(_source(layer))
            touched = {n for n in (name, *self.readers_of(layer)) if n in work}
            if touched and all(work[n] <= most for n in touched):
                self.made.setdefault(name, set()).add(layer.quantize)
                self.touched.setdefault(name, set()).update(touched)
        self._least(values)

    def _least(self, values: Sequence[Values]) -> None:
        """Leaves out groups that are near enough by themselves, where there are many."""
        own: dict[Node, float] = {}
        for exact in values[:1]:
            for layer, wanted, result in self.unrounded.own(exact):
                own[layer.quantize] = (
                    decibels(*noise([result], [wanted])[0]) if wanted.is_floating_point() else math.inf
                )
        ordered = sorted(self.made, key=lambda name: min(own.get(node, math.inf) for node in self.made[name]))
        self.made = {name: self.made[name] for name in ordered[:_TRIED]}

    def run(self) -> Precision | None:
        before = self.measured(self.everything)
        if before >= ENOUGH or not self.signal:
            return None
        alone = {name: self.measured(dict.fromkeys(nodes, 0.0)) for name, nodes in self.made.items()}
        picked: set[str] = set()
        after = before
        for name in sorted(alone, key=lambda name: alone[name]):
            if after >= _WANTED or alone[name] > _WANTED + _LITTLE:
                break
            picked.add(name)
            after = self.without(picked)
        for name in sorted(picked, key=lambda name: (-self.price(name), -alone[name])):
            price = self.price(name)
            if price < _CHEAP or len(picked) == 1:
                continue
            if self.without(picked - {name}) >= min(_WANTED, after) - _WORTH * price:
                picked.remove(name)
        after = self.without(picked)
        if after < before + _GAIN:
            return None
        parts = set().union(*(self.touched[name] for name in picked))
        return Precision(tuple(sorted(parts)), before, after)

    def without(self, picked: set[str]) -> float:
        """dB of the worst output when some groups have more precision."""
        wider = {node for name in picked for node in self.made[name]}
        kept = {node: step for node, step in self.everything.items() if node not in wider}
        return self.measured(kept | {node: self.steps[node] for node in wider if node in self.steps})

    def measured(self, rounded: Mapping[Node, float]) -> float:
        """dB of the worst output when only some values are rounded, by the steps of their grids; 0 for that of int8."""
        lost = [0.0] * len(self.signal)
        for row, exact in zip(self.rows, self.exact, strict=True):
            found = self.unrounded.outputs(self.unrounded.exact(row, rounded))
            lost = [total + error for total, (_, error) in zip(lost, noise(found, exact), strict=True)]
        return min((decibels(s, n) for s, n in zip(self.signal, lost, strict=True) if s > 0), default=math.inf)

    def price(self, name: str) -> float:
        """Share of the network that a group is, by MACs or by values, 0 to 1."""
        macs = sum(self.work[part] for part in self.touched[name]) / max(1, sum(self.work.values()))
        return max(macs, len(self.made[name]) / len(self.everything))

    def name_of(self, node: Node) -> str:
        """The operator of the exported program that a node was made of, or an input; "" where that is not known."""
        if node.op == "placeholder":
            return node.name
        return next((name for name in _names(node) if name in self.work), "")

    def readers_of(self, layer: Layer) -> Iterator[str]:
        """The operators that compute with a layer's values."""
        waiting, seen = list(layer.quantize.users), set[Node]()
        while waiting:
            node = waiting.pop()
            if node in seen or node.op != "call_function":
                continue
            seen.add(node)
            if is_compute(node) and (name := self.name_of(node)):
                yield name
            entry = known_import(node)
            if not is_compute(node) or (entry is not None and entry.moves_only):
                waiting += list(node.users)
