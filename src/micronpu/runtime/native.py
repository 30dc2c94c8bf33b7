"""A method on ExecuTorch's runtime without torch, through the C interface of the plug-in, on arrays.

The runtime trusts the program's plan, so call `micronpu.program.plan_check.check_plan` first.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from micronpu.host.litert_executor import NUMPY_TYPES
from micronpu.program.pte import MethodSummary
from micronpu.runtime.plugin import HostTensor, Plugin

Array = np.ndarray[Any, Any]


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


class NativeMethod:
    """A loaded method.

    Args:
        plugin: with the delegates' mode set.
        data: the program, with a checked plan.
        summary: of the method.
        beside: another method of the same bytes, with which it shares states.

    Raises:
        NativeError: the runtime cannot load it.
    """

    def __init__(self, plugin: Plugin, data: bytes, summary: MethodSummary, beside: NativeMethod | None = None) -> None:
        self._plugin = plugin
        self._data = data  # the runtime reads it while the method is open
        self._summary = summary
        self._lock = threading.Lock()
        plugin.clear_error()
        other = beside._handle if beside is not None else None
        self._handle: int | None = plugin.host.load(data, len(data), summary.name.encode(), other)
        if not self._handle:
            raise NativeError

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """Run once.

        Args:
            inputs: of the method's types and shapes, in its order of axes.

        Returns:
            New arrays in the method's order of axes.

        Raises:
            NativeError: the method fails, or is closed.
        """
        with self._lock:
            if not self._handle:
                raise NativeError
            self._plugin.clear_error()
            given = (HostTensor * max(len(inputs), 1))()
            for tensor, array, wanted in zip(given, inputs, self._summary.inputs, strict=False):
                assert wanted is not None  # see has_arrays
                tensor.data = array.ctypes.data
                tensor.size = array.nbytes
                tensor.scalar_type = wanted.scalar_type
                tensor.rank = array.ndim
                tensor.shape = (ctypes.c_int32 * array.ndim)(*array.shape)
                tensor.dim_order = (ctypes.c_uint8 * array.ndim)(*wanted.dim_order)
            if self._plugin.host.run(self._handle, given, len(inputs)):
                raise NativeError
            return [self._output(i) for i in range(len(self._summary.outputs))]

    @property
    def is_closed(self) -> bool:
        """True if it has been freed."""
        return not self._handle

    def close(self) -> None:
        """Free the method; safe to call twice."""
        with self._lock:
            handle, self._handle = self._handle, None
            if handle:
                self._plugin.host.free(handle)

    def _output(self, index: int) -> Array:
        found = HostTensor()
        if self._plugin.host.output(self._handle, index, ctypes.byref(found)):
            raise NativeError
        rank = found.rank
        shape, order = tuple(found.shape[:rank]), tuple(found.dim_order[:rank])
        content = ctypes.string_at(found.data, found.size) if found.size else b""
        return in_order(np.frombuffer(bytearray(content), NUMPY_TYPES[found.scalar_type]), shape, order)

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self.close()


class NativeMethods:
    """The loaded methods of a program that share states, by name; all are loaded before one runs.

    Args:
        plugin, data: as for `NativeMethod`.
        summaries: of the methods.

    Raises:
        NativeError: the runtime cannot load one.
    """

    def __init__(self, plugin: Plugin, data: bytes, summaries: Sequence[MethodSummary]) -> None:
        self._methods: dict[str, NativeMethod] = {}
        try:
            for summary in summaries:
                beside = next(iter(self._methods.values()), None)
                self._methods[summary.name] = NativeMethod(plugin, data, summary, beside)
        except NativeError:
            self.close()
            raise

    def run(self, method: str, inputs: Sequence[Array]) -> list[Array]:
        """Run a method once; see `NativeMethod.run`."""
        return self._methods[method].run(inputs)

    @property
    def is_closed(self) -> bool:
        """True if they have been freed."""
        return all(method.is_closed for method in self._methods.values())

    def close(self) -> None:
        """Free the methods; safe to call twice."""
        for method in self._methods.values():
            method.close()
