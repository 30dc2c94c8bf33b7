"""Results of runs of a float network, kept from one quantization of it to the next.

A search quantizes one network several times with the same calibration data.  Its values do not depend on the precision
of others, so that an observer, a range or a layer that an earlier quantization had needs no further run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node

from micronpu.frontend.constants import read
from micronpu.quantize.calibration_cache import numbers_of, restore, settings_of
from micronpu.quantize.digests import of_tensors
from micronpu.quantize.observers import is_observer
from micronpu.quantize.observing import HistogramObserver, RangeObserver

_OF_EXTREMES = ("calls", "values", "lowest", "highest")
"""Numbers of an observer that belong to the extremes."""


@dataclass(frozen=True)
class Key:
    """Everything that determines what an observer sees and keeps.

    Attributes:
        network: digest of the network, see `network_of`.
        kind, settings: of the observer.
        sources: names of the values that it sees in a call.
        operands: of the observers of the operand of a function with a singularity.
    """

    network: str
    kind: str
    settings: tuple[Hashable, ...]
    sources: tuple[str, ...]
    operands: tuple[Key, ...]


class FloatStatistics(dict[Hashable, Any]):
    """Statistics of a float network for one set of calibration data; see `network_of` for the keys."""

    def known(self, keys: Mapping[RangeObserver, Key]) -> dict[RangeObserver, Any]:
        """Return what others of the same keys have seen, for `restore_all`, by the observers that need no more."""
        found = {}
        for observer, key in keys.items():
            seen = self.get(("observer", key))
            if seen is None and type(observer).see is RangeObserver.see and observer.singularity is None:
                seen = self.get(_extremes(key, observer, observer.widens))
            if seen is not None:
                found[observer] = seen
        unknown = [observer for observer in keys if observer not in found]
        while unknown:  # what is left out at a singularity depends on what the operand's observers have seen so far
            for operand in _operands(unknown.pop()):
                if found.pop(operand, None) is not None:
                    unknown.append(operand)
        return found

    def keep(self, keys: Mapping[RangeObserver, Key]) -> None:
        """Keep what observers have seen."""
        for observer, key in keys.items():
            buffers = {name: value.detach().clone() for name, value in observer.named_buffers(recurse=False)}
            numbers = numbers_of(observer)
            self["observer", key] = numbers, buffers
            sees_extremes = isinstance(observer, HistogramObserver) or type(observer).see is RangeObserver.see
            if sees_extremes and observer.singularity is None:
                for widens in {observer.widens, False}:
                    self[_extremes(key, observer, widens)] = {n: numbers[n] for n in _OF_EXTREMES}, buffers


def restore_all(found: Mapping[RangeObserver, Any]) -> None:
    """Give observers what others have seen; they are calibrated."""
    for observer, (numbers, buffers) in found.items():
        own = {name for name, _ in observer.named_buffers(recurse=False)} - {"eps"}
        restore(observer, numbers, {name: buffers[name] for name in own})
        observer.is_calibrated = True


def network_of(prepared: GraphModule) -> str:
    """Return the digest of a network with every weight and without its observers; "" if it calls other modules."""
    lines = []
    for node in prepared.graph.nodes:
        if node.op == "call_module":
            if not is_observer(prepared.get_submodule(str(node.target))):
                return ""
            continue
        args = torch.fx.map_arg((node.args, node.kwargs), lambda n: source_of(prepared, n).name)
        lines.append(repr((node.op, node.name, str(node.target), args)))
        if node.op == "get_attr":
            value = read(prepared, node)
            if not isinstance(value, torch.Tensor):
                return ""
            lines.append(of_tensors([value]))
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def observer_keys(prepared: GraphModule) -> dict[RangeObserver, Key]:
    """Return a key for each empty observer of a module: the network, the settings, and the values that it sees in a
    call."""
    network = network_of(prepared)
    seen: dict[RangeObserver, list[str]] = {}
    for node in prepared.graph.nodes if network else ():
        if node.op == "call_module":
            observer: Any = prepared.get_submodule(str(node.target))
            source = source_of(prepared, node).name
            for learner in _learners(observer):
                seen.setdefault(learner, []).append(source)
    keys: dict[RangeObserver, Key] = {}

    def keyed(observer: RangeObserver) -> Key:
        if observer not in keys:
            kind, settings = type(observer).__qualname__, tuple(settings_of(observer))
            operands = tuple(keyed(operand) for operand in _operands(observer))
            keys[observer] = Key(network, kind, settings, tuple(seen.get(observer, ())), operands)
        return keys[observer]

    for observer in seen:
        keyed(observer)
    return keys


def _operands(observer: RangeObserver) -> tuple[RangeObserver, ...]:
    """Return the observers of the operand of a function with a singularity, if one is observed."""
    return () if observer.singularity is None else tuple(_learners(observer.singularity.operand))


def _extremes(key: Key, observer: RangeObserver, widens: bool) -> tuple[Hashable, ...]:
    """Return the key of the extremes that an observer has seen, which observers of other kinds share."""
    return "extremes", key.network, key.sources, observer.within, widens


def _learners(observer: Any) -> Iterator[RangeObserver]:
    """Yield the observers that learn from what one of them is called with."""
    if isinstance(observer, RangeObserver):
        for other in observer.learners():
            if other is observer:
                yield other
            else:
                yield from _learners(other)


def source_of(prepared: GraphModule, node: Any) -> Node:
    """Return the value behind observers."""
    while node.op == "call_module" and is_observer(prepared.get_submodule(str(node.target))):
        node = node.args[0]
    return node  # type: ignore[no-any-return]
