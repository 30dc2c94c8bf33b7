"""The parent's side of Vela's process: started on first use, restarted after a crash, ended at exit."""

from __future__ import annotations

import atexit
import contextlib
import marshal
import os
import signal
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import micronpu.base
from micronpu.base.errors import RuntimeUnavailableError
from micronpu.base.processes import how_it_ended, tied
from micronpu.targets.ethosu.accelerators import vela_package

_KILL = int(getattr(signal, "SIGKILL", 9))  # undefined on Windows
_START_SECONDS = 120.0
_MEMORY = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "131072"}
"""Environment of the worker: makes glibc return freed memory, a quarter of the process for MobileNetV2."""


class WorkerEndedError(Exception):
    """The process ended before it responded; the message describes how, as the end of a sentence."""


@dataclass(frozen=True)
class Answer:
    """Response of the compiler core: its result (see `micronpu.targets.ethosu.vela.worker`) and the constants, or the
    first line of its exception and its output."""

    objection: str
    text: str
    result: dict[str, Any] | None
    constants: memoryview


class VelaProcess:
    """Sends requests to a worker, which is kept for later ones. Thread-safe; requests are serialized."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._worker: _Worker | None = None
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._leave_to_parent)
        atexit.register(self.end)

    @property
    def pid(self) -> int | None:
        """Process id of the worker; None if there is none."""
        return self._worker.pid if self._worker is not None else None

    def compile(self, architecture: str, model: bytes, *arguments: Any, seconds: float, **options: object) -> Answer:
        """Return the result of ``regor.compile(architecture, model, *arguments, **options)``; the worker is killed
        after some seconds."""
        request = marshal.dumps((seconds, (architecture, *arguments), options))
        with self._lock:
            try:
                try:
                    return self._living().ask(request, model, seconds)
                except _KilledError:
                    # Vela does not kill itself. The first time, another process may have killed it, perhaps before the
                    # request; the second time, the program needs too much memory.
                    return self._living().ask(request, model, seconds)
            except BaseException:  # also an interrupt, which would leave a pending response
                self.end()
                raise

    def end(self) -> None:
        """End the worker, if there is one; the next request starts another one."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.end()

    def _living(self) -> _Worker:
        if self._worker is None or not self._worker.is_alive():
            self.end()
            self._worker = _Worker()
        return self._worker

    def _leave_to_parent(self) -> None:
        """Detach the worker in a fork: it belongs to the parent, and so might a held lock, which would stay locked."""
        worker, self._worker = self._worker, None
        self._lock = threading.Lock()
        if worker is not None:
            worker.leave()


class _KilledError(WorkerEndedError):
    """Killed by an external signal."""


class _Worker:
    def __init__(self) -> None:
        if sys.platform == "win32":
            raise RuntimeUnavailableError(
                "Vela runs in a separate process, which is started on Linux and macOS only: no Ethos-U on Windows.",
                hint="micronpu in WSL, the Linux inside of Windows; Neutron and Cortex-M compile here as well",
            )
        package = vela_package()
        if package is None:
            raise RuntimeUnavailableError("Vela is not installed.", hint="pip install ethos-u-vela==5.2.0")
        # -I and -S: ignore the user's environment, and skip the start-up files of packages, which take most of the
        # time.
        command = [sys.executable or "python", "-I", "-S", str(Path(__file__).with_name("worker.py"))]
        command += [str(package.parent), str(Path(micronpu.base.__file__).parents[2])]
        try:
            with contextlib.ExitStack() as stack:
                self._log = stack.enter_context(tempfile.TemporaryFile(buffering=0))
                self._process, self._socket = tied(command, self._log, env=os.environ | _MEMORY)
                stack.enter_context(self._socket)
                stack.callback(self._kill)
                self._socket.settimeout(_START_SECONDS)
                self._receive()
                stack.pop_all()
        except (OSError, EOFError) as error:
            why = str(error) or "it ends at once"
            raise RuntimeUnavailableError(
                f"Vela cannot run: {command[0]} cannot be started as the process in which its crashes do no harm "
                f"({why}).",
                hint="a system on which Python may start processes",
            ) from error

    @property
    def pid(self) -> int:
        return self._process.pid

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def end(self) -> None:
        self._kill()
        self._socket.close()
        self._log.close()

    def leave(self) -> None:
        """Release a process that is not a child of this one, and close its socket."""
        self._process.returncode = 0  # prevents its destructor from waiting for the child
        self._socket.close()
        self._log.close()

    def ask(self, request: bytes, model: bytes, seconds: float) -> Answer:
        self._log.seek(0)  # shared by both processes, including the file position
        self._log.truncate()
        try:
            self._socket.settimeout(seconds)
            sizes = b"".join(len(part).to_bytes(8, "little") for part in (request, model))
            self._socket.sendall(sizes + request)
            self._socket.sendall(model)
            (objection, result), constants = self._receive()
        except TimeoutError:
            raise WorkerEndedError(f"did not end within {seconds:.0f} s") from None
        except (EOFError, ConnectionError):
            code = self._process.wait()
            raise (_KilledError if code == -_KILL else WorkerEndedError)(how_it_ended(code)) from None
        return Answer(objection, self._printed() if objection else "", result, constants)

    def _receive(self) -> tuple[Any, memoryview]:
        """Receive a message; the worker sends it in one go, so the socket's timeout is that of the response."""
        sizes = self._read(16)
        value = marshal.loads(self._read(int.from_bytes(sizes[:8], "little")))
        return value, self._read(int.from_bytes(sizes[8:], "little"))

    def _read(self, size: int) -> memoryview:
        # Without a buffered reader, whose lock a fork would inherit locked.
        data = bytearray(size)
        rest = memoryview(data)
        while rest:
            count = self._socket.recv_into(rest)
            if not count:
                raise EOFError(self._printed().strip().rpartition("\n")[2])
            rest = rest[count:]
        return memoryview(data).toreadonly()

    def _printed(self) -> str:
        self._log.seek(0)
        return self._log.read().decode("utf-8", "replace")

    def _kill(self) -> None:
        self._process.kill()  # it has no unsaved state
        self._process.wait()


VELA = VelaProcess()
"""The worker of this process."""
