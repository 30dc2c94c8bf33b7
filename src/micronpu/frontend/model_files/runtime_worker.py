"""The process in which a file's own runtime runs it: ``python -I -S runtime_worker.py FOLDERS litert|onnx``.

Runtimes do not validate a file enough for untrusted ones, so a crash has to end this process alone. FOLDERS is a JSON
list of package folders. Requests arrive on standard input, a socket; answers list tensors, and have their bytes.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from micronpu.base.worker import Head, Message

_MEMORY = 4 << 30
"""Limit of the memory in bytes."""
_SECONDS = 600
"""Limit of the CPU time."""


class _LiteRt:
    """A file in LiteRT's interpreter; the ``shapes`` of the first request are those of the inputs."""

    def __init__(self, data: bytes, head: Head) -> None:
        self._interpreter = interpreter = _loaded(data)
        for detail, shape in zip(interpreter.get_input_details(), head["shapes"], strict=True):
            if list(detail["shape"]) != shape:
                interpreter.resize_tensor_input(detail["index"], shape)
        interpreter.allocate_tensors()

    def begin(self) -> None:
        self._interpreter.reset_all_variables()

    def sizes(self) -> list[Any]:
        self._interpreter.invoke()  # some shapes are known afterwards
        return [[d["index"], d["shape"].tolist()] for d in self._interpreter.get_tensor_details()]

    def run(self, head: Head, blobs: Sequence[bytes]) -> list[Any]:
        import numpy as np

        interpreter = self._interpreter
        for detail, blob in zip(interpreter.get_input_details(), blobs, strict=True):
            value = np.frombuffer(blob, detail["dtype"]).reshape(detail["shape"])
            interpreter.set_tensor(detail["index"], value)
        interpreter.invoke()
        return [_tensor(interpreter, index) for index in head["tensors"]]


class _Onnx:
    """A file in onnxruntime without graph optimizations, and without sums that saturate on processors without VNNI."""

    def __init__(self, data: bytes, head: Head) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 4
        options.add_session_config_entry("session.x64quantprecision", "1")
        self._run = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"]).run

    def run(self, head: Head, blobs: Sequence[bytes]) -> list[Any]:
        import numpy as np

        given = zip(head["inputs"], blobs, strict=True)
        feeds = {name: np.frombuffer(blob, kind).reshape(shape) for (name, kind, shape), blob in given}
        found = [a if a is None else np.asarray(a) for a in self._run(head["tensors"], feeds)]
        return [a if a is not None and a.dtype.kind in "fiub" else None for a in found]


_RUNTIMES: dict[str, tuple[Any, str]] = {
    "litert": (_LiteRt, "ai_edge_litert.interpreter"),
    "onnx": (_Onnx, "onnxruntime"),
}


def main() -> None:
    """Answer requests until standard input ends."""
    sys.path += json.loads(sys.argv[1])  # after the standard library
    sys.dont_write_bytecode = True
    kind, package = _RUNTIMES[sys.argv[2]]
    import_module(package)  # before the process is restricted

    from micronpu.base.fence import put_up
    from micronpu.base.worker import parent, serve

    runtime: Any = None

    def answer(head: Head, blobs: list[bytes]) -> Message:
        nonlocal runtime
        found: list[Any] = []
        try:
            if runtime is None:
                runtime = kind(blobs[0], head)
            elif head["do"] == "begin":
                runtime.begin()
            elif head["do"] == "sizes":
                return {"shapes": runtime.sizes()}, []
            else:
                found = runtime.run(head, blobs)
        except Exception as error:  # each runtime has its own
            return {"error": f"{error}" or type(error).__name__}, []
        described = [None if a is None else [a.dtype.str, list(a.shape)] for a in found]
        return {"tensors": described}, [b"" if a is None else a.tobytes() for a in found]

    with parent() as channel:
        put_up()
        _limit()
        serve(channel, answer)


def _loaded(data: bytes) -> Any:
    """Return an interpreter with the reference kernels; with others if some operators, such as CEIL, have none."""
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    kernels = (OpResolverType.BUILTIN_REF, OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES)
    for kind in kernels:
        try:
            return Interpreter(
                model_content=data,
                num_threads=1,
                experimental_op_resolver_type=kind,
                experimental_preserve_all_tensors=True,
            )
        except ValueError:
            if kind is kernels[-1]:
                raise
    return None


def _tensor(interpreter: Any, index: int) -> Any:
    """Return a tensor of the last call, or None if it has no value."""
    try:
        value = interpreter.get_tensor(index)
    except ValueError:
        return None
    return value if value.dtype.kind in "fiub" else None


def _limit() -> None:
    """Limit memory and time, where the system can."""
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        for kind, value in ((resource.RLIMIT_AS, _MEMORY), (resource.RLIMIT_CPU, _SECONDS), (resource.RLIMIT_CORE, 0)):
            resource.setrlimit(kind, (value, resource.getrlimit(kind)[1]))


if __name__ == "__main__":
    main()
