"""A measurement in a process of its own, which ends when we do and leaves one JSON line."""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_SET_PARENT_DEATH_SIGNAL = 1  # prctl, Linux


class ChildError(RuntimeError):
    """The process failed or took too long; the message says which, and what to try."""


def processor_seconds() -> float:
    """Processor time of this process and of its children that have ended."""
    return time.process_time() + sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])


def peak_mib(pid: int | None) -> int:
    """Peak memory of a process that runs; what the kernel says of children includes their parent's, from the fork."""
    if pid is None:
        return 0
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) // 1024


def json_row(
    command: Sequence[str], what: str, *, time_limit: float, folder: Path | None = None, threads: int | None = None
) -> dict[str, Any]:
    """Runs a command and returns the last JSON line that it prints.

    Args:
        what: the command in words, for messages.
        time_limit: seconds; after them the process and all that it started are ended.
        folder: where it runs; an empty one that vanishes unless given.
        threads: of the mathematics libraries; theirs unless given.

    Raises:
        ChildError: it fails, prints no row, or exceeds the time limit.
    """
    limited = {} if threads is None else {"OMP_NUM_THREADS": str(threads), "OPENBLAS_NUM_THREADS": str(threads)}
    limited |= {"MICRONPU_CACHE": os.environ.get("MICRONPU_CACHE", "off")}  # what is measured is not what was kept
    with (
        _ended_by_sigterm(),
        tempfile.TemporaryDirectory() as scratch,
        subprocess.Popen(
            command,
            cwd=folder or scratch,
            env=os.environ | limited,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # so that what it starts can be ended with it
            preexec_fn=_end_with_parent,
        ) as process,
    ):
        try:
            output, errors = process.communicate(timeout=time_limit)
        except BaseException as stop:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            if not isinstance(stop, subprocess.TimeoutExpired):
                raise
            raise ChildError(f"{what} did not finish in {time_limit:g} s. Try: a longer time limit.") from None
    if process.returncode != 0:
        last_words = "\n".join(errors.strip().splitlines()[-5:]) or "It printed no error."
        raise ChildError(f"{what} failed with exit code {process.returncode}:\n{last_words}")
    for line in reversed(output.splitlines()):
        if line.startswith("{"):
            row: dict[str, Any] = json.loads(line)
            return row
    raise ChildError(f"{what} printed no JSON row.")


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Lets SIGTERM unwind the stack, as an exception, so that a child in its own session does not outlive us."""

    def stop(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():  # only the main thread may set handlers
        yield
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _end_with_parent() -> None:
    """Asks the kernel to end this process with its parent, where the kernel can."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
