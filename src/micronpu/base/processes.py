"""Other programs as processes: run to their end with a time limit, and what can be said of how they ended."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Sequence
from typing import IO, Any

from micronpu.base.leaving import undone

_SAID = 2000
"""Characters of a program's output in which its last message is searched."""


def tied(command: Sequence[str], log: IO[bytes], **options: Any) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start a worker whose standard input is the other end of the socket, and whose output goes to a file.

    It leads a session, so that its children are killed with it, and this process alone gets keyboard interrupts.
    """
    ours, theirs = socket.socketpair()
    output: dict[str, Any] = {"stdout": log, "stderr": subprocess.STDOUT}
    with theirs, contextlib.ExitStack() as undo:
        undo.enter_context(ours)
        worker = subprocess.Popen(command, stdin=theirs.fileno(), start_new_session=True, **output, **options)
        undo.pop_all()
    return worker, ours


def finished(process: subprocess.Popen[Any], seconds: float) -> int | None:
    """Wait for a process, the leader of its session, and end it with all of its children, also if a signal ends this
    one; return its exit status, negative if a signal ended it, or None after the time limit."""
    with undone(lambda: end(process)):
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        finally:
            end(process)


def end(process: subprocess.Popen[Any]) -> None:
    """Kill a running process, the leader of its session, and all of its children."""
    if process.returncode is None:  # after it has been waited for, its number may be another process's
        with contextlib.suppress(ProcessLookupError):
            if hasattr(os, "killpg"):
                os.killpg(process.pid, signal.SIGKILL)
            else:
                process.kill()
        process.wait()


def how_it_ended(status: int) -> str:
    """Return a clause about an exit status that is not 0."""
    number = -status if status < 0 else status - 128  # a shell reports signals like this
    with contextlib.suppress(ValueError):
        return f"crashed with {signal.Signals(number).name}"
    return f"ended with code {status & 0xFF}"


def last_words(said: str) -> str:
    """Return the last line of a program's output as a sentence after a space; "" if there is none."""
    lines = [line.strip() for line in said[-_SAID:].splitlines() if line.strip()]
    return f' Its last words: "{lines[-1][:200]}".' if lines else ""
