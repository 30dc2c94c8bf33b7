"""A method on ExecuTorch's runtime without torch, through the C interface of the plug-in, on arrays.

The runtime trusts the program's plan, so call `micronpu.program.plan_check.check_plan` first.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence

import numpy as np

from micronpu.base.arrays import Array
from micronpu.host.litert_executor import NUMPY_TYPES
from micronpu.program.pte import MethodSummary
from micronpu.runtime.plugin import HostTensor, Plugin


class NativeError(RuntimeError):
    """The runtime failed; the plug-in's last error has the message."""


def has_all(plugin: Plugin, operators: Sequence[str]) -> bool:
    """True if the runtime has a kernel for each operator, such as "aten::add.out"."""
    return all(plugin.host.has_operator(name.encode()) for name in operators)


def in_order(memory: Array, shape: Sequence[int], order: Sequence[int]) -> Array:
    """Return elements as an array of this shape; ``order`` has its axes from the outermost in memory."""
    inverse = sorted(range(len(order)), key=order.__getitem__)
    return memory.reshape([shape[axis] for axis in order]).transpose(inverse)


def has_arrays(summary: MethodSummary) -> bool:
    """True if all inputs and outputs of a method are tensors of an element type that NumPy has."""
    return all(v is not None and v.scalar_type in NUMPY_TYPES for v in (*summary.inputs, *summary.outputs))


class NativeMethods:
    """The loaded methods, with checked plans, of a program that share states; all are loaded before one runs."""

    def __init__(self, plugin: Plugin, data: bytes, summaries: Sequence[MethodSummary]) -> None:
        self._plugin = plugin
        self._data = data  # the runtime reads it while the methods are open
        self._summaries = {summary.name: summary for summary in summaries}
        self._lock = threading.Lock()
        self._handles: dict[str, int] = {}
        for name in self._summaries:
            plugin.clear_error()
            beside = next(iter(self._handles.values()), None)
            handle = plugin.host.load(data, len(data), name.encode(), beside)
            if not handle:
                self.close()
                raise NativeError
            self._handles[name] = handle

    def run(self, method: str, inputs: Sequence[Array]) -> list[Array]:
        """Run a method once on arrays of its types and shapes, in its order of axes; return new ones."""
        with self._lock:
            if self.is_closed:
                raise NativeError
            self._plugin.clear_error()
            handle, summary = self._handles[method], self._summaries[method]
            given = (HostTensor * max(len(inputs), 1))()
            for tensor, array, wanted in zip(given, inputs, summary.inputs, strict=False):
                assert wanted is not None  # see has_arrays
                tensor.data = array.ctypes.data
                tensor.size = array.nbytes
                tensor.scalar_type = wanted.scalar_type
                tensor.rank = array.ndim
                tensor.shape = (ctypes.c_int32 * array.ndim)(*array.shape)
                tensor.dim_order = (ctypes.c_uint8 * array.ndim)(*wanted.dim_order)
            if self._plugin.host.run(handle, given, len(inputs)):
                raise NativeError
            return [self._output(handle, i) for i in range(len(summary.outputs))]

    @property
    def is_closed(self) -> bool:
        """True if they have been freed."""
        return not self._handles

    def close(self) -> None:
        """Free the methods; safe to call twice."""
        with self._lock:
            handles, self._handles = self._handles, {}
            for handle in handles.values():
                self._plugin.host.free(handle)

    def _output(self, handle: int, index: int) -> Array:
        found = HostTensor()
        if self._plugin.host.output(handle, index, ctypes.byref(found)):
            raise NativeError
        rank = found.rank
        shape, order = tuple(found.shape[:rank]), tuple(found.dim_order[:rank])
        content = ctypes.string_at(found.data, found.size) if found.size else b""
        return in_order(np.frombuffer(bytearray(content), NUMPY_TYPES[found.scalar_type]), shape, order)

    def __del__(self) -> None:
        if getattr(self, "_handles", None):
            self.close()
