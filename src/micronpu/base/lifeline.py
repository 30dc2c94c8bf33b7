"""A worker ends with the process that asked it, also in the middle of an answer, in whatever language it computes."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
from collections.abc import Iterator


def tie(channel: socket.socket | int) -> None:
    """Lets the system signal what happens on a socket to this process; nothing comes of it but in `working`."""
    import fcntl  # not on Windows, where no worker is started

    signal.signal(signal.SIGIO, signal.SIG_IGN)
    fcntl.fcntl(channel, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(channel, fcntl.F_SETFL, fcntl.fcntl(channel, fcntl.F_GETFL) | os.O_ASYNC)


@contextlib.contextmanager
def working(channel: socket.socket | int) -> Iterator[None]:
    """Where the other end of a tied socket is closed meanwhile, the system ends this process at once.

    Whoever is at the other end must send nothing until it has the answer.
    """
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    try:
        if select.select([channel], [], [], 0)[0]:
            raise EOFError  # it was closed before
        yield
    finally:
        signal.signal(signal.SIGIO, signal.SIG_IGN)
