"""The process that Vela runs in, as its parent sees it: started on first use, replaced after a crash, ended at exit."""

from __future__ import annotations

import atexit
import contextlib
import marshal
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import micronpu.base
from micronpu.base.errors import RuntimeUnavailableError
from micronpu.targets.ethosu.accelerators import vela_package

_KILL = int(getattr(signal, "SIGKILL", 9))  # which Windows does not name
_START_SECONDS = 120.0
_MEMORY = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "131072"}
"""Of the worker's environment: glibc keeps most of what is freed, which for MobileNetV2 is a quarter of the process."""


class WorkerEndedError(Exception):
    """The process has ended, or was ended, before it had answered; the message tells how, as the end of a sentence."""


@dataclass(frozen=True)
class Answer:
    """What the compiler core says.

    Attributes:
        objection: the first line of its exception, empty where it has none.
        text: what it printed, where there is an objection.
        result: see `micronpu.targets.ethosu.vela.worker`; None where there is an objection.
        constants: weights and tables, as they were received.
    """

    objection: str
    text: str
    result: dict[str, Any] | None
    constants: memoryview


class VelaProcess:
    """Asks a worker, and keeps it for the next question.  Any thread may ask; questions wait for each other."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._worker: _Worker | None = None
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._leave_to_parent)
        atexit.register(self.end)

    @property
    def pid(self) -> int | None:
        """Number of the worker's process, None where there is none."""
        return self._worker.pid if self._worker is not None else None

    def compile(self, architecture: str, model: bytes, *arguments: Any, seconds: float, **options: Any) -> Answer:
        """The answer to ``regor.compile(architecture, model, *arguments, **options)``.

        Args:
            seconds: after which the worker is ended.

        Raises:
            WorkerEndedError: the compiler core crashes, or does not end.
            RuntimeUnavailableError: no worker can be started.
        """
        request = marshal.dumps((seconds, (architecture, *arguments), options))
        with self._lock:
            try:
                try:
                    return self._living().ask(request, model, seconds)
                except _KilledError:
                    # Vela does not kill itself. Someone did, perhaps before the question; a second time it is the
                    # program's doing, for which there is not enough memory.
                    return self._living().ask(request, model, seconds)
            except BaseException:  # an interrupt as well: it leaves an answer on its way that nobody waits for
                self.end()
                raise

    def end(self) -> None:
        """Ends the worker, if there is one; the next question starts another."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.end()

    def _living(self) -> _Worker:
        if self._worker is None or not self._worker.is_alive():
            self.end()
            self._worker = _Worker()
        return self._worker

    def _leave_to_parent(self) -> None:
        """In a fork: the worker is the parent's, and a lock that another thread of it held stays locked."""
        worker, self._worker = self._worker, None
        self._lock = threading.Lock()
        if worker is not None:
            worker.leave()


class _KilledError(WorkerEndedError):
    """By a signal that comes from outside."""


class _Worker:
    """One process, ready for questions.

    Raises:
        RuntimeUnavailableError: it cannot be started.
    """

    def __init__(self) -> None:
        if sys.platform == "win32":
            raise RuntimeUnavailableError(
                "Vela runs in a process of its own, which is started on Linux and macOS only: no Ethos-U on Windows.",
                hint="micronpu in WSL, the Linux inside of Windows; Neutron and Cortex-M compile here as well",
            )
        package = vela_package()
        if package is None:
            raise RuntimeUnavailableError("Vela is not installed.", hint="pip install ethos-u-vela==5.2.0")
        # -I and -S: neither the user's environment nor the start-up files of packages, which take longer than the rest.
        command = [sys.executable or "python", "-I", "-S", str(Path(__file__).with_name("worker.py"))]
        command += [str(package.parent), str(Path(micronpu.base.__file__).parents[2])]
        try:
            with contextlib.ExitStack() as stack:
                self._log = stack.enter_context(tempfile.TemporaryFile(buffering=0))
                self._socket, theirs = socket.socketpair()
                stack.enter_context(self._socket)
                with theirs:
                    # In a session of its own: an interrupt from the keyboard is for the parent, which ends the worker.
                    self._process = subprocess.Popen(
                        command,
                        stdin=theirs.fileno(),
                        stdout=self._log,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                        env=os.environ | _MEMORY,
                    )
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
        self._close()

    def leave(self) -> None:
        """Lets go of a process that is not a child of this one, which must not hold its socket open either."""
        self._process.returncode = 0  # or its destructor looks for the child
        self._close()

    def ask(self, request: bytes, model: bytes, seconds: float) -> Answer:
        self._log.seek(0)  # for both processes, which share the file's position
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
            if code == -_KILL:
                raise _KilledError(f"ended with signal {_KILL}") from None
            raise WorkerEndedError(f"ended with {f'signal {-code}' if code < 0 else f'exit code {code}'}") from None
        return Answer(objection, self._printed() if objection else "", result, constants)

    def _receive(self) -> tuple[Any, memoryview]:
        """A message; the worker sends it at once when it has it, so the limit of the socket is that of the answer."""
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
        self._process.kill()  # it holds nothing that could be lost
        self._process.wait()

    def _close(self) -> None:
        self._socket.close()
        self._log.close()


VELA = VelaProcess()
"""The worker of this process."""
