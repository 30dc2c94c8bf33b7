"""The process in which LiteRT runs a file: ``python -I -S litert_worker.py FOLDERS``.

LiteRT does not validate a file enough for untrusted ones, so a crash has to end this process alone. FOLDERS is a JSON
list of package folders. Requests arrive on standard input, and the answers go to standard output: a JSON line, followed
by the bytes of the tensors that it lists.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Sequence
from typing import IO, Any

_MEMORY = 4 << 30
"""Limit of the memory in bytes."""
_SECONDS = 600
"""Limit of the CPU time."""


def send(stream: IO[bytes], head: dict[str, Any], blobs: Sequence[bytes] = ()) -> None:
    """Write a message: a JSON line with the sizes of the blobs, and the blobs."""
    stream.write(json.dumps({**head, "sizes": [len(blob) for blob in blobs]}).encode() + b"\n")
    for blob in blobs:
        stream.write(blob)
    stream.flush()


def receive(stream: IO[bytes]) -> tuple[dict[str, Any], list[bytes]]:
    """Read a message of `send`.

    Raises:
        EOFError: the other side ended.
    """
    line = stream.readline()
    if not line.endswith(b"\n"):
        raise EOFError
    head = json.loads(line)
    blobs = [stream.read(size) for size in head["sizes"]]
    if any(len(blob) != size for blob, size in zip(blobs, head["sizes"], strict=True)):
        raise EOFError
    return head, blobs


def main() -> None:
    """Answer requests until standard input ends."""
    with os.fdopen(os.dup(0), "rb") as requests, os.fdopen(os.dup(1), "wb") as answers:
        os.dup2(2, 1)  # LiteRT prints
        sys.path += json.loads(sys.argv[1])  # after the standard library
        sys.dont_write_bytecode = True
        import numpy as np
        from ai_edge_litert.interpreter import Interpreter  # noqa: F401  (before the process is restricted)

        from micronpu.base.fence import put_up

        put_up()
        _limit()
        interpreter: Any = None
        while True:
            try:
                head, blobs = receive(requests)
            except EOFError:
                return
            found: list[Any] = []
            try:
                if interpreter is None:
                    interpreter = _loaded(blobs[0])
                    for detail, shape in zip(interpreter.get_input_details(), head["shapes"], strict=True):
                        if list(detail["shape"]) != shape:
                            interpreter.resize_tensor_input(detail["index"], shape)
                    interpreter.allocate_tensors()
                elif head["do"] == "begin":
                    interpreter.reset_all_variables()
                elif head["do"] == "sizes":
                    interpreter.invoke()  # some shapes are known afterwards
                    details = interpreter.get_tensor_details()
                    send(answers, {"shapes": [[d["index"], d["shape"].tolist()] for d in details]})
                    continue
                else:
                    for detail, blob in zip(interpreter.get_input_details(), blobs, strict=True):
                        value = np.frombuffer(blob, detail["dtype"]).reshape(detail["shape"])
                        interpreter.set_tensor(detail["index"], value)
                    interpreter.invoke()
                    found = [_tensor(interpreter, index) for index in head["tensors"]]
            except (ValueError, RuntimeError, TypeError) as error:
                send(answers, {"error": str(error)})
                continue
            described = [None if a is None else [a.dtype.str, list(a.shape)] for a in found]
            send(answers, {"tensors": described}, [b"" if a is None else a.tobytes() for a in found])


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
