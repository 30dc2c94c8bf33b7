"""The parent's side of Vela's process: started on first use, restarted after a crash, ended at exit."""

from __future__ import annotations

import os
import signal
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

import micronpu.base
from micronpu.base.errors import RuntimeUnavailableError
from micronpu.base.processes import how_it_ended
from micronpu.base.worker import Head, Worker
from micronpu.targets.ethosu.accelerators import vela_package

_KILL = int(getattr(signal, "SIGKILL", 9))  # undefined on Windows
_START_SECONDS = 120.0
_MEMORY = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "131072"}
"""Environment of the worker: makes glibc return freed memory, a quarter of the process for MobileNetV2."""


class WorkerEndedError(Exception):
    """The process ended before it responded; the message describes how, as the end of a sentence."""


@dataclass(frozen=True)
class Answer:
    """Response of the compiler core: its result (see `micronpu.targets.ethosu.vela.worker`) with command stream and
    constants, or the first line of its exception and its output."""

    objection: str
    text: str
    result: Head
    commands: bytes
    constants: bytes


class VelaProcess:
    """Sends requests to a worker, which is kept for later ones. Thread-safe; requests are serialized."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._worker: Worker | None = None
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._leave_to_parent)

    @property
    def pid(self) -> int | None:
        """Process id of the worker; None if there is none."""
        return self._worker.pid if self._worker is not None else None

    def compile(self, architecture: str, model: bytes, *arguments: object, seconds: float, **options: object) -> Answer:
        """Return the result of ``regor.compile(architecture, model, *arguments, **options)``; the worker is killed
        after some seconds."""
        request = {"seconds": seconds, "arguments": (architecture, *arguments), "options": options}
        with self._lock:
            try:
                try:
                    return self._asked(request, model, seconds)
                except _KilledError:
                    # Vela does not kill itself. The first time, another process may have killed it, perhaps before the
                    # request; the second time, the program needs too much memory.
                    return self._asked(request, model, seconds)
            except BaseException:  # also an interrupt, which would leave a pending response
                self.end()
                raise

    def end(self) -> None:
        """End the worker, if there is one; the next request starts another one."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()

    def _living(self) -> Worker:
        if self._worker is None or self._worker.process.poll() is not None:
            self.end()
            self._worker = _started()
        return self._worker

    def _asked(self, request: Head, model: bytes, seconds: float) -> Answer:
        worker = self._living()
        try:
            answer, blobs = worker.ask(request, [model], seconds)
        except TimeoutError:
            raise WorkerEndedError(f"did not end within {seconds:.0f} s") from None
        except (EOFError, ConnectionError):
            code = worker.process.wait()
            raise (_KilledError if code == -_KILL else WorkerEndedError)(how_it_ended(code)) from None
        objection = answer["objection"]
        return Answer(objection, worker.printed() if objection else "", answer, *(blobs or (b"", b"")))

    def _leave_to_parent(self) -> None:
        """Detach the worker in a fork: it belongs to the parent, and so might a held lock, which would stay locked."""
        worker, self._worker = self._worker, None
        self._lock = threading.Lock()
        if worker is not None:
            worker.leave()


class _KilledError(WorkerEndedError):
    """Killed by an external signal."""


def _started() -> Worker:
    if sys.platform == "win32":
        raise RuntimeUnavailableError(
            "Vela runs in a separate process, which is started on Linux and macOS only: no Ethos-U on Windows.",
            hint="micronpu in WSL, the Linux inside of Windows; Neutron and Cortex-M compile here as well",
        )
    package = vela_package()
    if package is None:
        raise RuntimeUnavailableError("Vela is not installed.", hint="pip install ethos-u-vela==5.2.0")
    folders = str(package.parent), str(Path(micronpu.base.__file__).parents[2])
    worker: Worker | None = None
    try:
        worker = Worker(Path(__file__).with_name("worker.py"), *folders, environment=_MEMORY)
        worker.ask({}, seconds=_START_SECONDS)
    except (OSError, EOFError) as error:
        why = str(error) if worker is None else f"it ends at once{worker.how_it_ended()[1].rstrip('.')}"
        raise RuntimeUnavailableError(
            f"Vela cannot run: {sys.executable or 'python'} cannot be started as the process in which its crashes do "
            f"no harm ({why}).",
            hint="a system on which Python may start processes",
        ) from error
    return worker


VELA = VelaProcess()
"""The worker of this process."""
