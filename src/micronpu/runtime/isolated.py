"""Run a program in a separate process, so that a crash of ExecuTorch or LiteRT becomes an error.

Neither validates a program enough for untrusted files. Responses of the process are parsed as numbers and text only.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import weakref
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import micronpu.base.errors
from micronpu.base.arguments import is_class
from micronpu.base.arrays import Array
from micronpu.base.errors import MicroNpuError, ModelError, PayloadError, RuntimeUnavailableError
from micronpu.base.fence import package_folders
from micronpu.base.leaving import scratch_folder
from micronpu.base.worker import Head, Message, Worker
from micronpu.host.build import cache_directory
from micronpu.program.pte import ELEMENT_TYPES, TensorValue
from micronpu.runtime.native import in_order

if TYPE_CHECKING:
    import torch

    from micronpu.runtime.run_options import RunOptions

_START_LIMIT = 600.0
"""Seconds until the process must be ready: importing torch takes minutes on a busy machine or a slow disk."""
_SHORT, _LONGEST = 1 << 16, 1 << 32
"""Bytes of an answer without results, and of a record."""
_TYPES = frozenset(ELEMENT_TYPES.values())
_BFLOAT16 = "bfloat16"


def pack(value: torch.Tensor | Array) -> tuple[Head, bytes]:
    """A tensor's type and shape, its axes from the outermost in memory, and its bytes in this order."""
    if isinstance(value, np.ndarray):
        dtype, array = value.dtype.name, value
    else:
        import torch

        dtype, plain = str(value.dtype).removeprefix("torch."), value.detach()
        array = (plain.view(torch.int16) if dtype == _BFLOAT16 else plain).numpy()
    order = sorted(range(array.ndim), key=lambda axis: -array.strides[axis])
    return {"dtype": dtype, "shape": list(array.shape), "order": order}, array.transpose(order).tobytes()


def unpack(head: Head, data: bytes, arrays: bool) -> torch.Tensor | Array:
    """Return the tensor that `pack` serialized, with its own memory, or an array; bfloat16, which NumPy does not have,
    becomes float32."""
    dtype, shape, order = head["dtype"], [int(n) for n in head["shape"]], [int(n) for n in head["order"]]
    if dtype not in _TYPES or sorted(order) != list(range(len(shape))):
        raise ValueError("a tensor of no known type or order")
    flat = np.frombuffer(bytearray(data), np.int16 if dtype == _BFLOAT16 else dtype)
    if dtype == _BFLOAT16 and arrays:
        flat = (flat.astype(np.uint32) << 16).view(np.float32)
    array = in_order(flat, shape, order)
    if arrays:
        return array
    import torch

    tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if dtype == _BFLOAT16 else tensor


def pack_all(values: Sequence[object]) -> tuple[list[Any], list[bytes]]:
    """Serialize tensors and arrays with `pack`; numbers, texts and None are unchanged."""
    heads: list[Any] = []
    blobs: list[bytes] = []
    tensors = (np.ndarray, sys.modules["torch"].Tensor) if "torch" in sys.modules else (np.ndarray,)
    for position, value in enumerate(values):
        if value is None or isinstance(value, bool | int | float | str):
            heads.append(value)
        elif isinstance(value, tensors):
            head, blob = pack(value)
            heads.append(head)
            blobs.append(blob)
        else:
            raise ModelError(
                f"Value {position} is a {type(value).__name__}, which cannot be handed to another process.",
                hint="a tensor or a number",
            )
    return heads, blobs


def unpack_all(heads: Sequence[object], blobs: Sequence[bytes], arrays: bool) -> tuple[Any, ...]:
    """Return the values that `pack_all` serialized; see `unpack`."""
    parts = list(blobs)
    if len(parts) != sum(isinstance(head, dict) for head in heads):
        raise ValueError("another number of tensors")
    return tuple(unpack(head, parts.pop(0), arrays) if isinstance(head, dict) else head for head in heads)


class IsolatedProgram:
    """The part of a `HostProgram` that runs in a separate process.

    Args:
        data: the program.
        name: what to call it in messages.
        options: how to run; their `time_limit` applies to each request, including loading.
        operators: what the program calls, if it may run without torch, which takes seconds to import; otherwise None.

    Attributes:
        fences: restrictions that this machine's kernel enforces on the process; see `micronpu.base.fence`.
        close: ends the process.

    Raises:
        PayloadError: it cannot be loaded, or loading it ends the process or takes too long.
        RuntimeUnavailableError: no process can be started, or it ends before it has read the program.
    """

    def __init__(
        self, data: bytes, name: str, options: RunOptions, method: str, operators: Sequence[str] | None
    ) -> None:
        self._name = name
        self._limit = options.time_limit
        self._lock = threading.Lock()
        script = Path(__file__).with_name("isolated_worker.py")
        try:
            with contextlib.ExitStack() as stack:
                scratch = str(stack.enter_context(scratch_folder("micronpu-"))) if options.profile else ""
                arguments = json.dumps(package_folders()), scratch
                self._worker = Worker(script, *arguments, environment=_environment(), cwd="/")
                stack.callback(self._worker.close)
                self.close = weakref.finalize(self, stack.pop_all().close)
        except OSError as error:
            raise RuntimeUnavailableError(
                f"{name} runs in a separate process, which cannot be started: {error.strerror or error}.",
                hint="RunOptions(isolated=False), for a program that you trust",
            ) from error
        try:
            self.fences = self._await_start({"operators": operators})
            self.ask({"do": "load", "name": name, "options": asdict(options), "method": method}, [data])
        except BaseException:
            self.close()
            raise

    def run(
        self, inputs: Sequence[object], method: str, outputs: Sequence[TensorValue | None], arrays: bool = False
    ) -> tuple[Any, ...]:
        """Run once on checked tensors or arrays, and return what the program says of its results; see
        `HostProgram.run`, `unpack`."""
        described, sent = pack_all(inputs)
        most = _SHORT * (1 + len(outputs)) + sum(0 if v is None else v.bytes for v in outputs)
        head, blobs = self.ask({"do": "run", "inputs": described, "method": method}, sent, most)
        try:
            if not all(map(_fits, head["outputs"], outputs)) or len(head["outputs"]) != len(outputs):
                raise ValueError("other results than the program has")
            return unpack_all(head["outputs"], blobs, arrays)
        except Exception as error:  # a process that was taken over answers anything
            raise PayloadError(f"{self._name} gave something that is no tensor.", hint="do not trust it") from error

    def save(self, values: bool) -> list[bytes]:
        """Return the recorded ETDump, and the recorded values if requested."""
        return self.ask({"do": "save", "values": values}, most=_LONGEST)[1]

    def ask(self, head: Head, blobs: Sequence[bytes] = (), most: int = _SHORT) -> Message:
        """Send a request and return the response, of at most that many bytes."""
        with self._lock:
            try:
                answer, data = self._worker.ask(head, blobs, self._limit, most)
            except TimeoutError as error:
                self.close()
                what = {"load": "be loaded", "run": "run"}.get(head["do"], "answer")
                raise PayloadError(
                    f"{self._name} took more than {self._limit:g} s to {what} and was stopped: it never ends, or is "
                    "large.",
                    hint="RunOptions(time_limit=...) or `micronpu run --time-limit`, with more seconds, for one that "
                    "you trust",
                ) from error
            except (EOFError, OSError, ValueError) as error:
                how, printed = self._worker.how_it_ended()
                self.close()
                raise PayloadError(
                    f"{self._name} ran in a process that {how}: the program is damaged, or made to do this.{printed}",
                    hint="copy the file again, or compile the model again",
                ) from error
            except BaseException:  # an interrupt: the pending response has no reader
                self.close()
                raise
        _raise_error(answer)
        return answer, data

    def _await_start(self, head: Head) -> frozenset[str]:
        """Send what the process imports, and wait until it can read a program; return its restrictions."""
        try:
            answer, _ = self._worker.ask(head, seconds=_START_LIMIT, most=_SHORT)
        except (EOFError, OSError, ValueError) as error:  # TimeoutError is an OSError
            how, printed = self._worker.how_it_ended()
            raise RuntimeUnavailableError(
                f"{self._name} was to run in a process that {how} before it read the program.{printed}",
                hint="`micronpu doctor`; or --not-isolated, RunOptions(isolated=False), for a program that you trust",
            ) from error
        _raise_error(answer)
        return frozenset(map(str, answer.get("fences") or ()))


def _fits(head: object, output: TensorValue | None) -> bool:
    if output is None or not isinstance(head, dict):
        return output is None and not isinstance(head, dict)
    shape = head["shape"]
    sizes_fit = len(shape) == len(output.shape) and all(
        isinstance(n, int) and (0 <= n <= most if output.dynamic else n == most)
        for n, most in zip(shape, output.shape, strict=True)
    )
    return bool(head["dtype"] == output.dtype and sizes_fit)


def _raise_error(answer: Head) -> None:
    if (kind := answer.get("error")) is not None:
        made = getattr(micronpu.base.errors, str(kind), None)
        known = is_class(made, MicroNpuError)
        raise (made if known else PayloadError)(str(answer.get("what")), hint=str(answer.get("hint")))  # type: ignore[misc]


def _environment() -> dict[str, str]:
    """Variables that adapt the process to another folder, and to one thread when it restricts itself."""
    environment = {"OPENBLAS_NUM_THREADS": "1"}  # NumPy's library starts its threads when it is loaded
    with contextlib.suppress(RuntimeUnavailableError):
        environment["MICRONPU_CACHE_DIR"] = str(cache_directory())
    return environment
