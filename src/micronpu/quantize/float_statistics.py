"""Results of runs of a float network, kept from one quantization of it to the next.

A search quantizes one network several times with the same calibration data.  Its values do not depend on the precision
of others, so that an observer, a range or a layer that an earlier quantization had needs no further run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterator, Mapping
from typing import Any

import torch
from torch.fx import GraphModule, Node

from micronpu.frontend.constants import read
from micronpu.quantize.calibration_cache import numbers_of, restore, settings_of
from micronpu.quantize.digests import of_tensors
from micronpu.quantize.observers import is_observer
from micronpu.quantize.observing import RangeObserver


class FloatStatistics:
    """Statistics of a float network for one set of calibration data; see `network_of` for the keys."""

    def __init__(self) -> None:
        self._known: dict[Hashable, Any] = {}

    def get(self, key: Hashable) -> Any:
        """Return what is known under a key, or None."""
        return self._known.get(key)

    def put(self, key: Hashable, value: Any) -> None:
        """Keep a value under a key."""
        self._known[key] = value

    def restore(self, keys: Mapping[RangeObserver, Hashable]) -> bool:
        """Give observers what others of the same keys have seen; False, and no change, if one of them is unknown."""
        known = {observer: self.get(key) for observer, key in keys.items()}
        if not known or None in known.values():
            return False
        for observer, (numbers, buffers) in known.items():
            restore(observer, numbers, buffers)
        return True

    def keep(self, keys: Mapping[RangeObserver, Hashable]) -> None:
        """Keep what observers have seen."""
        for observer, key in keys.items():
            buffers = {name: value.detach().clone() for name, value in observer.named_buffers(recurse=False)}
            self.put(key, (numbers_of(observer), buffers))


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


def observer_keys(prepared: GraphModule) -> dict[RangeObserver, Hashable]:
    """Return a key for each empty observer of a module: the network, the settings, and the values that it sees in a
    call.

    The result is empty if an observer's range depends on that of another one.
    """
    network = network_of(prepared)
    seen: dict[RangeObserver, list[str]] = {}
    for node in prepared.graph.nodes if network else ():
        if node.op == "call_module":
            observer: Any = prepared.get_submodule(str(node.target))
            source = source_of(prepared, node).name
            for learner in _learners(observer):
                seen.setdefault(learner, []).append(source)
    if any(observer.singularity is not None for observer in seen):
        return {}
    return {
        observer: (network, type(observer).__qualname__, tuple(settings_of(observer)), tuple(sources))
        for observer, sources in seen.items()
    }


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
