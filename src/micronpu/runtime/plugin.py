"""Load the C++ plug-in once per process, and install its executors: LiteRT's, TOSA's, and the backends'.

The plug-in calls back into Python through C function pointers. No exception may leave such a callback: it is stored as
the thread's last error, the C++ side returns an ExecuTorch error code, and the caller raises from `take_error`.
"""

from __future__ import annotations

import atexit
import ctypes
import itertools
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeVar

import numpy as np

from micronpu.base.arguments import check_switch
from micronpu.base.errors import MicroNpuError, PayloadError, RuntimeUnavailableError
from micronpu.base.quiet import quiet
from micronpu.base.texts import plural
from micronpu.container.payload import bad_payload
from micronpu.host import litert_executor, tosa_executor
from micronpu.host.build import build_plugin, find_executorch, load_library, load_or_build
from micronpu.host.litert_executor import Buffer, Executor, HostProgram, LiteRtProgram, Mode, OperatorTrace
from micronpu.host.proof import Proof, Reference
from micronpu.host.tosa_executor import TosaProgram
from micronpu.targets.registry import backend_with
from micronpu.upstream.executorch import bindings

_ABI_VERSION = 7
_Executor = TypeVar("_Executor", bound=Executor)


class _Tensor(ctypes.Structure):
    """`micronpu_tensor` of native/delegate.h."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("size", ctypes.c_uint64),
        ("scalar_type", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("shape", ctypes.POINTER(ctypes.c_int32)),
    )


class HostTensor(ctypes.Structure):
    """`micronpu_host_tensor` of native/host_runtime.cpp."""

    _fields_ = (*_Tensor._fields_, ("dim_order", ctypes.POINTER(ctypes.c_uint8)))


_TENSORS = ctypes.POINTER(_Tensor)
_SINK = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_int32, ctypes.c_char_p, ctypes.c_uint64, _TENSORS, ctypes.c_int32
)
_CREATE = ctypes.CFUNCTYPE(
    ctypes.c_int64,
    ctypes.c_char_p,
    ctypes.c_void_p,
    ctypes.c_uint64,
    ctypes.c_void_p,
    ctypes.c_uint64,
    ctypes.c_int32,
    ctypes.c_int32,
    ctypes.c_int32,
)
_RUN = ctypes.CFUNCTYPE(
    ctypes.c_int32, ctypes.c_int64, _TENSORS, ctypes.c_int32, _TENSORS, ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p
)
_DESTROY = ctypes.CFUNCTYPE(None, ctypes.c_int64)


class Failure(NamedTuple):
    """Cause of a failed call into the plug-in.

    Attributes:
        sentence: the plug-in's message.
        cause: the Python exception behind it, if any.
        elsewhere: the program is intact, but not for this machine.
    """

    sentence: str
    cause: BaseException | None
    elsewhere: bool


_FUNCTIONS: dict[str, tuple[object, ...]] = {
    "micronpu_last_error": (ctypes.c_char_p,),
    "micronpu_set_error": (None, ctypes.c_char_p),
    "micronpu_set_mode": (None, ctypes.c_int32),
}
_HOST: dict[str, tuple[object, ...]] = {
    "quiet": (None,),
    "has_operator": (ctypes.c_int32, ctypes.c_char_p),
    "load": (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint64, ctypes.c_char_p, ctypes.c_void_p),
    "run": (ctypes.c_int32, ctypes.c_void_p, ctypes.POINTER(HostTensor), ctypes.c_int32),
    "output": (ctypes.c_int32, ctypes.c_void_p, ctypes.c_int32, ctypes.POINTER(HostTensor)),
    "free": (None, ctypes.c_void_p),
}
"""Types of the results and arguments of the functions that native/host_runtime.cpp exports."""


class Plugin:
    """The loaded plug-in, a singleton: get it from `load_plugin`.

    Args:
        path: of the shared library.

    Raises:
        RuntimeUnavailableError: the library cannot be loaded or registered.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        host = {f"micronpu_host_{name}": types for name, types in _HOST.items()}
        self._library = load_library(path, "runtime plug-in", "micronpu_abi_version", _ABI_VERSION, _FUNCTIONS | host)
        self.host = SimpleNamespace(**{name: getattr(self._library, f"micronpu_host_{name}") for name in _HOST})
        self._programs: dict[int, Executor] = {}
        self._handles = itertools.count(1)
        self._local = threading.local()
        # ctypes frees a callback together with its Python object, so keep them as long as the plug-in.
        self._callbacks = (_CREATE(self._create), _RUN(self._run), _DESTROY(self._destroy))
        if self._library.micronpu_register():
            sentence = (self._library.micronpu_last_error() or b"").decode(errors="replace")
            raise RuntimeUnavailableError(
                sentence or "The runtime plug-in could not register itself.",
                hint="install micronpu and executorch again",
            )
        self._library.micronpu_set_executor(*self._callbacks)
        # C++ destroys programs that outlive the interpreter, when callbacks can no longer run.
        atexit.register(self._library.micronpu_set_executor, None, None, None)

    @property
    def live_programs(self) -> int:
        """Number of loaded delegate instances."""
        return len(self._programs)

    @contextmanager
    def mode(
        self, mode: Mode, proofs: Mapping[bytes, Proof] | None = None, payloads: Sequence[memoryview] = ()
    ) -> Iterator[None]:
        """Set the mode of programs that this thread loads inside the context.

        Args:
            proofs: compare the runs of a payload with its graph.
            payloads: memory held by the caller, used without a copy.
        """
        self._local.proofs, self._local.payloads = proofs or {}, payloads
        self._library.micronpu_set_mode(int(mode))
        try:
            yield
        finally:
            self._local.proofs, self._local.payloads = {}, ()
            self._library.micronpu_set_mode(int(Mode.REFERENCE))

    def clear_error(self) -> None:
        """Clear this thread's last error, before a call that may set one."""
        self._local.cause = None
        self._library.micronpu_clear_error()

    def take_error(self) -> Failure | None:
        """Return and clear this thread's last error; None if the plug-in did not fail."""
        sentence = (self._library.micronpu_last_error() or b"").decode(errors="replace")
        cause = getattr(self._local, "cause", None)
        elsewhere = bool(self._library.micronpu_is_for_another_machine())
        self.clear_error()
        return Failure(sentence, cause, elsewhere) if sentence else None

    def _guard(self, work: Callable[[], int], failed: int) -> int:
        """Run a callback's body and catch every exception, even KeyboardInterrupt, which the caller raises later."""
        try:
            return work()
        except BaseException as error:
            self._local.cause = error
            if isinstance(error, MicroNpuError):
                sentence = str(error)
            else:
                detail = " ".join(str(error).split())
                sentence = f"The NPU simulator failed with {type(error).__name__}: {detail or 'no message'}."
            self._library.micronpu_set_error(sentence.encode())
            return failed

    def _create(
        self,
        backend_id: bytes,
        model: int,
        size: int,
        graph: int,
        graph_size: int,
        mode: int,
        num_inputs: int,
        num_outputs: int,
    ) -> int:
        def checked(program: _Executor) -> _Executor:
            found = len(program.inputs), len(program.outputs)
            if found != (num_inputs, num_outputs):
                raise bad_payload(
                    f"The delegate call has {plural(num_inputs, 'input')} and {plural(num_outputs, 'output')}, but "
                    f"the program inside the payload has {found[0]} and {found[1]}."
                )
            return program

        def flatbuffer(content: bytes) -> HostProgram:
            kind = TosaProgram if content[4:8] == tosa_executor.IDENTIFIER else LiteRtProgram
            return checked(kind(content, Mode(mode) & ~Mode.GRAPH))

        def own() -> Executor:
            backend = backend_with(backend_id.decode())
            if backend is None:
                raise PayloadError(
                    f"No family has the delegate {backend_id.decode()}.",
                    hint="the micronpu that its plug-in belongs to",
                )
            content = self._held(model, size)
            carried = ctypes.string_at(graph, graph_size) if graph else None
            make = (lambda: flatbuffer(carried)) if carried is not None else None
            proof: Proof | None = getattr(self._local, "proofs", {}).get(content)
            if proof is not None and proof.reference is None and carried is not None:
                proof.reference = Reference(flatbuffer(carried))
            return checked(backend.executor(content, make, proof))

        def work() -> int:
            program = own() if backend_id else flatbuffer(ctypes.string_at(model, size))
            handle = next(self._handles)
            self._programs[handle] = program
            return handle

        return self._guard(work, 0)

    def _held(self, address: int, size: int) -> bytes | memoryview:
        """Return a payload as a view of the caller's memory, else as a copy."""
        given = np.frombuffer(memoryview((ctypes.c_uint8 * size).from_address(address)), np.uint8)
        payloads: Sequence[memoryview] = getattr(self._local, "payloads", ())
        equal = (s for s in payloads if len(s) == size and np.array_equal(np.frombuffer(s, np.uint8), given))
        return next(equal, None) or ctypes.string_at(address, size)

    def _run(
        self,
        handle: int,
        inputs: object,
        num_inputs: int,
        outputs: object,
        num_outputs: int,
        sink: int | None,
        context: int | None,
    ) -> int:
        def work() -> int:
            program, given, made = self._programs[handle], _buffers(inputs, num_inputs), _buffers(outputs, num_outputs)
            if sink is None:
                program.run(given, made)
                return 0
            call = _SINK(sink)

            def report(trace: OperatorTrace) -> None:
                # The lists keep the memory alive while C++ reads it.
                arrays = [np.ascontiguousarray(value) for value in trace.outputs]
                shapes = [(ctypes.c_int32 * value.ndim)(*value.shape) for value in trace.outputs]
                tensors = (_Tensor * len(arrays))()
                for tensor, array, shape in zip(tensors, arrays, shapes, strict=True):
                    tensor.data = array.ctypes.data
                    tensor.size = array.nbytes
                    tensor.scalar_type = litert_executor.scalar_type_of(array.dtype)
                    tensor.rank = len(shape)
                    tensor.shape = shape
                call(context, trace.index, trace.name.encode(), trace.nanoseconds, tensors, len(arrays))

            program.run_traced(given, made, report)
            return 0

        return self._guard(work, 1)

    def _destroy(self, handle: int) -> None:
        self._programs.pop(handle, None)


def _buffers(tensors: Any, count: int) -> list[Buffer]:
    return [Buffer(t.data or 0, t.size, t.scalar_type) for t in tensors[:count]]


_ENDING = "dylib" if sys.platform == "darwin" else "so"
_KERNELS = tuple(f"libexecutorch_kernels_{kind}.{_ENDING}" for kind in ("optimized", "quantized"))
"""Libraries of the wheel with kernels that need no torch. ExecuTorch's Python interface links the same ones."""
_lock = threading.Lock()
_loaded: Plugin | None = None
_with_torch = False


def load_plugin(*, torch: bool = True) -> Plugin:
    """Build the plug-in if necessary, load it, and register its delegates and kernels. Returns a singleton.

    Args:
        torch: import ExecuTorch's Python interface, and with it torch. If False, load only its kernels' libraries.

    Raises:
        RuntimeUnavailableError: it cannot be built or loaded on this machine.
    """
    global _loaded, _with_torch
    check_switch("torch", torch)
    with _lock:
        path = build_plugin() if _loaded is None else _loaded.path
        # If torch is loaded, the interface is likely to be imported later, and only one of the two can handle logs.
        torch = torch or (_loaded is None and "torch" in sys.modules)
        try:
            if torch and not _with_torch:
                with quiet():
                    # Registers the out variants of q and dq; imports torch, whose libraries the interface links.
                    import executorch.kernels.quantized  # noqa: F401

                    bindings()

                _with_torch = True
            elif _loaded is None:
                for name in _KERNELS:
                    ctypes.CDLL(str(find_executorch().library_directory / name), mode=ctypes.RTLD_GLOBAL)
        except (ImportError, OSError) as error:
            raise RuntimeUnavailableError(
                f"The ExecuTorch runtime cannot be imported: {error}.", hint='pip install "executorch==1.5.*" torch'
            ) from error
        if _loaded is None:
            _loaded = load_or_build(path, Plugin, build_plugin)
            if not _with_torch:
                _loaded.host.quiet()
        return _loaded
