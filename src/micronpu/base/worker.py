"""Workers: scripts of this package that answer the requests of one process, in a separate process, which may crash.

A message is the length of a JSON head, the head, which has the sizes of the blobs, and the blobs.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import socket
import sys
import tempfile
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from micronpu.base.leaving import tie, working
from micronpu.base.parsing import JsonObject, parse_json
from micronpu.base.processes import end, how_it_ended, last_words, tied

_LENGTH = 8  # size of the length prefix
_LEAST = 1e-3  # seconds; 0 would select the socket's non-blocking mode
_ENDING = 10.0
"""Seconds in which a process ends that has closed its socket."""

Blobs: TypeAlias = Sequence[bytes | memoryview]
Head: TypeAlias = JsonObject
Message: TypeAlias = tuple[Head, list[bytes]]


class Worker:
    """A worker, seen from the process that started it. It sends nothing but its answers.

    Args:
        script: its file; it runs without the user's environment and without packages, as with -m Python would import
            from the current folder.
        arguments: of the script.
        environment: variables beside those of this process.
        options: of `subprocess.Popen`.

    Attributes:
        close: ends the process; called also if the worker is forgotten, or this process ends.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self, script: Path, *arguments: str, environment: Mapping[str, str], **options: object) -> None:
        command = [sys.executable or "python", "-I", "-S", str(script), *arguments]
        with contextlib.ExitStack() as stack:
            self._log = stack.enter_context(tempfile.TemporaryFile(buffering=0))
            self.process, self._channel = tied(command, self._log, env={**os.environ, **environment}, **options)
            stack.enter_context(self._channel)
            stack.callback(end, self.process)
            self.close = weakref.finalize(self, stack.pop_all().close)
        self.pid = self.process.pid

    def ask(self, head: Head, blobs: Blobs = (), seconds: float | None = None, most: float = math.inf) -> Message:
        """Send a request and return the answer.

        Args:
            seconds: time limit; None for none.
            most: bytes of the answer's head, and of its blobs.

        Raises:
            TimeoutError: there is no answer in time.
            EOFError, OSError: the process has ended.
            ValueError: the answer is no message.
        """
        if not self.close.alive:
            raise EOFError
        self._log.seek(0)  # shared by both processes, including the file position
        self._log.truncate()
        self._channel.settimeout(seconds)
        send(self._channel, head, blobs)
        return receive(self._channel, None if seconds is None else time.monotonic() + seconds, most)

    def printed(self) -> str:
        """Return the output since the last request."""
        with contextlib.suppress(OSError, ValueError):
            self._log.seek(0)
            return self._log.read().decode("utf-8", "replace")
        return ""

    def how_it_ended(self) -> tuple[str, str]:
        """Return a clause about the end of the process, with its last words, and end it."""
        with contextlib.suppress(Exception):
            self.process.wait(_ENDING)
        code, said = self.process.poll(), self.printed()
        self.close()
        return "gave up" if code is None else how_it_ended(code), last_words(said)

    def leave(self) -> None:
        """Release a process that belongs to another one, of which this one is a fork."""
        self.close.detach()
        self.process.returncode = 0  # prevents its destructor from waiting for the child
        self._channel.close()
        self._log.close()


def parent() -> socket.socket:
    """Return the socket to the process that started this worker: the standard input, which is empty from then on."""
    channel = socket.socket(fileno=os.dup(0))
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    return channel


def serve(channel: socket.socket, answer: Callable[[Head, list[bytes]], tuple[Head, Blobs]]) -> None:
    """Answer requests until the socket is closed; end at once if that happens during one."""
    tie(channel)
    while True:
        try:
            head, blobs = receive(channel)
        except EOFError:
            return
        with working(channel):
            found, made = answer(head, blobs)
        send(channel, found, made)
        del head, blobs, found, made  # or they stay in memory during the next request


def send(channel: socket.socket, head: Head, blobs: Blobs = ()) -> None:
    text = json.dumps({**head, "sizes": [len(blob) for blob in blobs]}).encode()
    channel.sendall(len(text).to_bytes(_LENGTH, "little") + text)
    for blob in blobs:
        channel.sendall(blob)


def receive(channel: socket.socket, until: float | None = None, most: float = math.inf) -> Message:
    """Receive a message of `send`.

    Args:
        until: deadline in `time.monotonic` seconds; None for none.
        most: bytes of the head, and of the blobs.

    Raises:
        EOFError: the other side has closed the socket.
        TimeoutError: the message is incomplete at the deadline.
        ValueError: the data are not a message.
    """
    length = int.from_bytes(_read(channel, _LENGTH, until), "little")
    if length > most:
        raise ValueError("a message that is too long")
    head = parse_json(_read(channel, length, until))
    sizes = head.get("sizes") if isinstance(head, dict) else None
    if not isinstance(sizes, list) or not all(isinstance(n, int) and n >= 0 for n in sizes) or sum(sizes) > most:
        raise ValueError("a message without sizes, or one that is too long")
    return head, [_read(channel, size, until) for size in sizes]


def _read(channel: socket.socket, size: int, until: float | None) -> bytes:
    data = bytearray()
    while len(data) < size:
        if until is not None:
            channel.settimeout(max(until - time.monotonic(), _LEAST))
        part = channel.recv(min(size - len(data), 1 << 20))
        if not part:
            raise EOFError
        data += part
    return bytes(data)
