"""Observed ranges and other results of the float network, kept on disk and from one quantization of it to the next.

The calibration cache stores the ranges of all observers of a module.  Its key depends on the float program with every
weight, on the data sample by sample, on torch and on the instructions of the processor.  A program that calls anything
but operators of torch is not cached, because their code is unknown.

A search quantizes one network several times with the same calibration data.  Its values do not depend on the precision
of others, so that an observer, a range or a layer that an earlier quantization had needs no further run.  Precisions
have other rewrites: a value is the same if the operators, weights and numbers that compute it from the inputs are.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from micronpu.base.cache import CACHE, Entry
from micronpu.base.parsing import head_and_rest, with_head
from micronpu.frontend.graphs import GraphModule, Node, map_arg, nodes_where
from micronpu.frontend.program import is_random
from micronpu.frontend.run import computed, elementwise, is_mutable
from micronpu.frontend.tensors import read, states_of
from micronpu.quantize import post_training
from micronpu.quantize.data import of_tensors
from micronpu.quantize.float64 import has_float64, is_plain
from micronpu.quantize.nodes import observer_of
from micronpu.quantize.observing import FixedObserver, HistogramObserver, RangeObserver
from micronpu.quantize.running import Call
from micronpu.upstream.torch import OpOverload

_TOOLS = ("torch", "torchao", "numpy")
_NAMESPACES = ("aten", "prims", "quantized_decomposed")
_MODULES = ("_operator", "math")
_OF_EVERY_MODULE = frozenset(vars(nn.Module()))
_DTYPES = {str(dtype): dtype for dtype in (torch.float32, torch.float64, torch.int64)}


def calibration_entry(prepared: Mapping[str, GraphModule], sequences: Sequence[Sequence[Call]]) -> Entry | None:
    """Return the cache entry for observers and data; None if nothing can be cached."""
    methods = prepared.values()
    if CACHE.folder is None or not all(map(post_training.is_prepared, methods)):
        return None
    if any(nodes_where(m, lambda node: not _is_known(node)) for m in methods) or not (network := network_of(prepared)):
        return None
    places = [[(str(n.target), repr(n.args)) for n in m.graph.find_nodes(op="call_module")] for m in methods]
    observers = [(name, type(o).__qualname__, settings_of(o)) for name, o in _observers(prepared)]
    try:
        rows = [[(name, [_bytes(tensor) for tensor in row]) for name, row in sequence] for sequence in sequences]
        initial = [[(state.name, _bytes(state.initial)) for state in states_of(m).values] for m in methods]
    except (TypeError, RuntimeError):  # a dtype or a layout that NumPy does not have
        return None
    machine = platform.machine(), torch.backends.cpu.get_cpu_capability()
    return CACHE.entry("calibration", _TOOLS, machine, network, places, observers, rows, initial)


def pack_observers(prepared: Mapping[str, GraphModule]) -> bytes:
    """Return the observed values of methods as bytes."""
    rows, blobs = [], []
    for name, observer in _observers(prepared):
        buffers = []
        for key, value in observer.named_buffers():
            blobs.append(value.detach().contiguous().numpy().tobytes())
            buffers.append([key, str(value.dtype), list(value.shape), len(blobs[-1])])
        rows.append([name, numbers_of(observer), buffers])
    return with_head(rows, *blobs)


def unpack_observers(prepared: Mapping[str, GraphModule], data: bytes) -> None:
    """Restore the observed values of methods."""
    rows, blobs = head_and_rest(data)
    start = 0
    own = dict(_observers(prepared))
    for name, numbers, buffers in rows:
        values = {}
        for key, dtype, shape, size in buffers:
            kind, part = _DTYPES[dtype], bytearray(blobs[start : start + size])
            values[key] = torch.frombuffer(part, dtype=kind).reshape(shape) if size else torch.empty(shape, dtype=kind)
            start += size
        restore(own[name], numbers, values)


def _observers(prepared: Mapping[str, GraphModule]) -> Iterator[tuple[str, nn.Module]]:
    """Yield each observer once, with its first place in the methods."""
    known = set[nn.Module]()
    for method, module in prepared.items():
        for name, part in module.named_modules(known, method):
            if isinstance(part, (RangeObserver, FixedObserver)):
                yield name, part


def restore(observer: nn.Module, numbers: Mapping[str, object], buffers: Mapping[str, torch.Tensor]) -> None:
    for name, number in numbers.items():
        setattr(observer, name, number)
    for name, value in buffers.items():
        observer.get_buffer(name).resize_(value.shape).copy_(value)


def numbers_of(observer: nn.Module) -> dict[str, int | float]:
    """Return the numbers of an observer that are no buffers."""
    return {key: value for key, value in vars(observer).items() if type(value) in (int, float)}


def settings_of(observer: nn.Module) -> list[tuple[str, str]]:
    """Return all settings of an observer as text; functions by their names."""
    values = {key: value for key, value in vars(observer).items() if key not in _OF_EVERY_MODULE}
    return [(k, getattr(v, "__qualname__", "") or ("" if k == "operands" else repr(v))) for k, v in values.items()]


def _is_known(node: Node) -> bool:
    """Return True if a node calls no function whose code its name does not determine."""
    if node.op != "call_function" or getattr(node.target, "__module__", "") in _MODULES:
        return True
    return isinstance(node.target, OpOverload) and node.target.namespace in _NAMESPACES


def _bytes(tensor: torch.Tensor) -> tuple[tuple[int, ...], object]:
    """Return strides and values; the latter contain shape and dtype."""
    return tuple(tensor.stride()), tensor.detach().contiguous().numpy()


# ---------------------------------------------------------------- from one quantization to the next


_OF_EXTREMES = ("calls", "values", "lowest", "highest")
"""Numbers of an observer that belong to the extremes."""


@dataclass(frozen=True)
class Key:
    """Everything that determines what an observer of a kind with some settings sees and keeps."""

    kind: str
    settings: tuple[Hashable, ...]
    sources: tuple[str, ...]  # digests of the values that it sees in a call, see `_digests`
    operands: tuple[Key, ...]  # of the observers of the operand of a function with a singularity


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
        for observer, key in keys.items():
            buffers = {name: value.detach().clone() for name, value in observer.named_buffers(recurse=False)}
            numbers = {name: getattr(observer, name) for name in observer.counted}
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


def network_of(prepared: Mapping[str, GraphModule]) -> str:
    """Return the digest of methods with every weight and without observers; "" if they call other modules."""
    values = _digests(prepared)
    return _digest([(n.op, n.name, d) for n, d in values.items() if n.op != "call_module"]) if values else ""


def _digest(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def _digests(prepared: Mapping[str, GraphModule], network: str = "") -> dict[Node, str]:
    """Return digests of all values of methods by what computes them, and a network; {} if they call other modules.

    A function of one element has the digest of its operators, whether they are written or not.
    """
    found: dict[Node, str] = {}

    def called(overload: object, args: Iterable[Any], kwargs: Mapping[str, Any]) -> str:
        return _digest(network, str(overload), tuple(args), dict(kwargs))

    for method, module in prepared.items():
        for node in module.graph.nodes:
            args, kwargs = map_arg((node.args, node.kwargs), found.__getitem__)
            if node.op == "call_module" and observer_of(module, node) is not None:
                found[node] = args[0]
            elif node.op == "get_attr" and isinstance(value := read(module, node), torch.Tensor):
                is_number = value.numel() == 1 and value.dtype == torch.float32
                found[node] = _digest(float(value)) if is_number else _digest(value.stride(), of_tensors([value]))
            elif node.op in ("call_module", "get_attr"):
                return {}
            elif node.target is elementwise:
                found[node] = computed(args[0], args[1], called, lambda number: _digest(float(number)))
            else:
                name = (method, node.name) if node.op == "placeholder" else network and node.name
                found[node] = called((name, str(node.target)) if name else node.target, args, kwargs)
    return found


def observer_keys(prepared: Mapping[str, GraphModule]) -> dict[RangeObserver, Key]:
    """Return a key for each empty observer of methods: the settings, and the values that it sees."""
    ties = (nodes_where(module, lambda node: is_random(node) or is_mutable(node)) for module in prepared.values())
    is_alone = len(prepared) == 1 and not any(ties)
    # Operators that change others, or are computed in another way, tie all values to their network.
    is_free = is_alone and all(is_plain(m) and not has_float64(m) and not states_of(m) for m in prepared.values())
    values = _digests(prepared, "" if is_free else network_of(prepared))
    seen: dict[RangeObserver, list[str]] = {}
    for module in prepared.values() if values else ():
        for node in module.graph.find_nodes(op="call_module"):
            for learner in _learners(module.get_submodule(str(node.target))):
                seen.setdefault(learner, []).append(values[node])
    keys: dict[RangeObserver, Key] = {}

    def keyed(observer: RangeObserver) -> Key:
        if observer not in keys:
            kind, settings = type(observer).__qualname__, tuple(settings_of(observer))
            if isinstance(observer, HistogramObserver):
                settings = tuple(own for own in settings if own[0] in ("within", "singularity"))  # others move its ends
            keys[observer] = Key(kind, settings, tuple(seen.get(observer, ())), tuple(map(keyed, _operands(observer))))
        return keys[observer]

    for observer in seen:
        keyed(observer)
    return keys


def _operands(observer: RangeObserver) -> tuple[RangeObserver, ...]:
    """Return the observers of the operand of a function with a singularity, if one is observed."""
    return () if observer.singularity is None else tuple(_learners(observer.singularity.operand))


def _extremes(key: Key, observer: RangeObserver, widens: bool) -> tuple[Hashable, ...]:
    """Return the key of the extremes that an observer has seen, which observers of other kinds share."""
    return "extremes", key.sources, observer.within, widens


def _learners(observer: object) -> Iterator[RangeObserver]:
    """Yield the observers that learn from what one of them is called with."""
    if isinstance(observer, RangeObserver):
        for other in observer.learners():
            if other is observer:
                yield other
            else:
                yield from _learners(other)
