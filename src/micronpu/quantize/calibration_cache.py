"""Calibration cache: the observed ranges of a module, stored on disk.

The key depends on the float program with every weight, on the data sample by sample, on torch and on the instructions
of the processor.  A program that calls anything but operators of torch is not cached, because their code is unknown.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule, Node

from micronpu.base.cache import CACHE, Entry
from micronpu.base.parsing import head_and_rest, with_head
from micronpu.frontend.constants import read
from micronpu.frontend.states import States
from micronpu.quantize import post_training
from micronpu.quantize.observing import FixedObserver, RangeObserver
from micronpu.upstream.torch import OpOverload

_TOOLS = ("torch", "torchao", "numpy")
_NAMESPACES = ("aten", "prims", "quantized_decomposed")
_MODULES = ("_operator", "math")
_OF_EVERY_MODULE = frozenset(vars(nn.Module()))
_DTYPES = {str(dtype): dtype for dtype in (torch.float32, torch.float64, torch.int64)}

Row = tuple[torch.Tensor, ...]


def calibration_entry(prepared: GraphModule, states: States, sequences: Sequence[Sequence[Row]]) -> Entry | None:
    """Return the cache entry for observers and data; None if nothing can be cached.

    Args:
        prepared: with empty observers.
        states, sequences: of `micronpu.quantize.calibrate.calibrated`.
    """
    if CACHE.folder is None or not post_training.is_prepared(prepared):
        return None
    if not all(_is_known(prepared, node) for node in prepared.graph.nodes):
        return None
    nodes = [(n.op, n.name, str(n.target), repr(n.args), repr(n.kwargs)) for n in prepared.graph.nodes]
    observers = [(name, type(o).__qualname__, settings_of(o)) for name, o in _observers(prepared)]
    tensors = {str(n.target): read(prepared, n) for n in prepared.graph.nodes if n.op == "get_attr"}
    try:
        weights = [(name, _bytes(tensor)) for name, tensor in tensors.items()]
        rows = [[[_bytes(tensor) for tensor in row] for row in sequence] for sequence in sequences]
        initial = [_bytes(tensor) for tensor in states.initial]
    except (TypeError, RuntimeError):  # a dtype or a layout that NumPy does not have
        return None
    machine = platform.machine(), torch.backends.cpu.get_cpu_capability()
    return CACHE.entry("calibration", _TOOLS, machine, nodes, observers, weights, rows, initial)


def pack_observers(prepared: GraphModule) -> bytes:
    """Return the observed values of a module as bytes."""
    rows, blobs = [], []
    for name, observer in _observers(prepared):
        buffers = []
        for key, value in observer.named_buffers():
            blobs.append(value.detach().contiguous().numpy().tobytes())
            buffers.append([key, str(value.dtype), list(value.shape), len(blobs[-1])])
        rows.append([name, numbers_of(observer), buffers])
    return with_head(rows, *blobs)


def unpack_observers(prepared: GraphModule, data: bytes) -> None:
    """Restore the observed values of a module."""
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


def _observers(prepared: GraphModule) -> Iterator[tuple[str, nn.Module]]:
    return ((name, m) for name, m in prepared.named_modules() if isinstance(m, (RangeObserver, FixedObserver)))


def restore(observer: nn.Module, numbers: Mapping[str, Any], buffers: Mapping[str, torch.Tensor]) -> None:
    """Restore the observed values of one observer."""
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


def _is_known(prepared: GraphModule, node: Node) -> bool:
    """Return True if the code of a node is known by its name."""
    if node.op == "call_module":
        module = prepared.get_submodule(str(node.target))
        ours = type(module).__module__.startswith("micronpu.")
        return ours and isinstance(module, (RangeObserver, FixedObserver))
    if node.op == "get_attr":
        return isinstance(read(prepared, node), torch.Tensor)
    if node.op != "call_function" or getattr(node.target, "__module__", "") in _MODULES:
        return True
    return isinstance(node.target, OpOverload) and node.target.namespace in _NAMESPACES


def _bytes(tensor: torch.Tensor) -> tuple[tuple[int, ...], Any]:
    """Return strides and values; the latter contain shape and dtype."""
    return tuple(tensor.stride()), tensor.detach().contiguous().numpy()
