"""End a process: remove its temporary files and child processes, also after a signal; end workers with their parent.

The command line calls `leave_on_signals`. In a process of another application, signal handling is unchanged, and the
code that registers a cleanup runs it.
"""

from __future__ import annotations

import contextlib
import os
import queue
import secrets
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

SIGNALED = 128
"""Exit code of a process that a signal ends, without the signal's number, as in shells."""

_STALL_SECONDS = 0.3
_UNDO_SECONDS = 1.0
_undo: dict[object, Callable[[], object]] = {}
_is_leaving = threading.Event()
_is_main_thread_still = threading.Event()
_is_searching = threading.Event()
_goes_on: queue.SimpleQueue[bool] = queue.SimpleQueue()


@contextlib.contextmanager
def undone(undo: Callable[[], object]) -> Iterator[None]:
    """Call `undo` if a signal ends the process within the context, latest first; at its normal end the caller cleans
    up.

    Register it before the action that it undoes: it must do nothing if that has not started.
    """
    key = object()
    _undo[key] = undo
    if _is_leaving.is_set():
        _wait_for_the_end()  # start nothing new
    try:
        yield
    finally:
        _undo.pop(key, None)


@contextlib.contextmanager
def ended_early() -> Iterator[None]:
    """Let the next Ctrl+C raise KeyboardInterrupt in a search, which returns the best that it has found, instead of
    ending the process."""
    before = _is_searching.is_set()
    if threading.current_thread() is threading.main_thread():
        _is_searching.set()
    try:
        yield
    finally:
        if before:
            _is_searching.set()
        else:
            _is_searching.clear()


@contextlib.contextmanager
def scratch_folder(prefix: str, beside: Path | None = None) -> Iterator[Path]:
    """Create a folder with a unique name, mode 0700, in the system's temporary folder or another one, and remove it at
    the end of the context."""
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
    """End the process on SIGINT, SIGTERM and SIGHUP with exit code 128 plus their number; ignored signals stay ignored.

    Within `ended_early` the first SIGINT only ends the search.
    This works while the main thread is in native code too, if that lets other threads run.
    """
    import tempfile

    # Python finds its temporary folder by writing a file.
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
                if number == signal.SIGINT and _is_searching.is_set():
                    _is_searching.clear()
                    os.write(2, b"\nThe search ends with the best that it has found. Ctrl+C again ends the command.\n")
                    _goes_on.put(True)
                elif number in numbers:
                    leave(SIGNALED + number)

    threading.Thread(target=watch, name="signals", daemon=True).start()
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def leave(code: int) -> None:
    """Run the registered cleanups and end the process."""
    _is_leaving.set()
    # Before it sees the signal, the main thread could recreate what is removed here. In native code it creates nothing.
    _is_main_thread_still.wait(_STALL_SECONDS)
    for undo in reversed(list(_undo.values())):
        with contextlib.suppress(Exception):
            undo()
    os._exit(code)


def _stand_still(number: int, frame: object) -> None:
    """Block the main thread, in which Python calls handlers, until the thread that reads signals ends the process.

    Only that thread decides; it may end a search instead.
    """
    _is_main_thread_still.set()
    if number == signal.SIGINT and _goes_on.get():
        _is_main_thread_still.clear()
        raise KeyboardInterrupt
    _wait_for_the_end()


def _wait_for_the_end() -> None:
    while True:
        time.sleep(1)


def _remove(path: Path) -> None:
    """Remove a folder into which a recently killed child may still have written."""
    import shutil

    until = time.monotonic() + _UNDO_SECONDS
    while path.exists() and time.monotonic() < until:
        shutil.rmtree(path, ignore_errors=True)


def tie(channel: socket.socket | int) -> None:
    """Make the system signal events of a socket to this process; they have no effect outside of `working`."""
    import fcntl  # missing on Windows, which has no workers

    signal.signal(signal.SIGIO, signal.SIG_IGN)
    fcntl.fcntl(channel, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(channel, fcntl.F_SETFL, fcntl.fcntl(channel, fcntl.F_GETFL) | os.O_ASYNC)


@contextlib.contextmanager
def working(channel: socket.socket | int) -> Iterator[None]:
    """End this process at once if the other end of a tied socket is closed within the context.

    The other end must send nothing until it has the response.
    """
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    try:
        if select.select([channel], [], [], 0)[0]:
            raise EOFError  # it is closed already
        yield
    finally:
        signal.signal(signal.SIGIO, signal.SIG_IGN)
