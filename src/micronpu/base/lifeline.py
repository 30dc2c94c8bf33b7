"""End a worker together with the process that started it, even during native code."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
from collections.abc import Iterator


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
