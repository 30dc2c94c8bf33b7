"""A process that a signal ends takes its temporary files and its children with it.

The command line calls `leave_on_signals`.  In a process of somebody else signals are its own, and what is registered
here is cleared away by those who registered it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

SIGNALED = 128
"""Exit code of a process that a signal ends, without the signal's number: as shells have it."""

_STALL_SECONDS = 0.3
_UNDO_SECONDS = 1.0
_undo: dict[object, Callable[[], object]] = {}
_is_leaving = threading.Event()
_is_main_thread_still = threading.Event()


@contextlib.contextmanager
def undone(undo: Callable[[], object]) -> Iterator[None]:
    """Calls `undo` where a signal ends the process meanwhile, the latest first; at the end it is the caller's to do.

    It is registered before what it undoes is begun, so it has to do nothing where that has not been.
    """
    key = object()
    _undo[key] = undo
    if _is_leaving.is_set():
        _wait_for_the_end()  # nothing new is begun
    try:
        yield
    finally:
        _undo.pop(key, None)


@contextlib.contextmanager
def scratch_folder(prefix: str, beside: Path | None = None) -> Iterator[Path]:
    """A folder of a new name that is there for as long as the context is open; mode 0700.

    Args:
        prefix: of its name.
        beside: the folder in which it is made; the system's for temporary files unless given.
    """
    import shutil
    import tempfile

    path = (beside if beside is not None else Path(tempfile.gettempdir())) / f"{prefix}{secrets.token_hex(8)}"
    with undone(lambda: _remove(path)):
        path.mkdir(mode=0o700)
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)


def leave_on_signals() -> None:
    """From now on SIGINT, SIGTERM and SIGHUP end the process with 128 and their number; one that is ignored stays so.

    They do so while the main thread is in another language's code, too, as long as that lets other threads run.
    """
    import tempfile

    # Python finds its folder for temporary files by writing one.
    wanted = (signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else []))
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, wanted)
    with contextlib.suppress(OSError):
        tempfile.gettempdir()
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    numbers = [int(n) for n in wanted if signal.getsignal(n) is not signal.SIG_IGN]
    for number in numbers:
        signal.signal(number, _stand_still)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)

    def watch() -> None:
        while True:
            for number in os.read(reading, 64):
                if number in numbers:
                    leave(SIGNALED + number)

    threading.Thread(target=watch, name="signals", daemon=True).start()
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def leave(code: int) -> None:
    """Undoes what is under way and ends the process."""
    _is_leaving.set()
    # What the main thread does until it has seen the signal could make what is removed here anew. Where it computes in
    # another language it makes nothing.
    _is_main_thread_still.wait(_STALL_SECONDS)
    for undo in reversed(list(_undo.values())):
        with contextlib.suppress(Exception):
            undo()
    os._exit(code)


def _stand_still(number: int, frame: object) -> None:
    """In the main thread, where Python calls handlers: whoever reads the signal's number ends the process."""
    _is_main_thread_still.set()
    _wait_for_the_end()


def _wait_for_the_end() -> None:
    while True:
        time.sleep(1)


def _remove(path: Path) -> None:
    """Removes a folder into which a child that was killed a moment ago may still have written."""
    import shutil

    until = time.monotonic() + _UNDO_SECONDS
    while path.exists() and time.monotonic() < until:
        shutil.rmtree(path, ignore_errors=True)
