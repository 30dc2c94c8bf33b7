"""Process of `micronpu compare` that compiles for one target after the other.

``python -I compare_worker.py FOLDER...`` takes the parent's module search path. Standard input is a socket. It receives
a pickled task and then jobs, and returns a row for each. The process ends when the socket closes, even during a job.
"""

import sys

if __name__ == "__main__":
    sys.path[:] = sys.argv[1:]  # before any import

import contextlib
import os
import signal
import threading
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any


def main() -> None:
    """Process jobs until the parent is gone."""
    from micronpu.base.errors import MicroNpuError
    from micronpu.base.leaving import leave_on_signals
    from micronpu.cli.workers import Worker, failed

    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a parent that ignores the signal passes that on
    leave_on_signals()
    parent = Connection(os.dup(0))
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    asked: SimpleQueue[Any] = SimpleQueue()
    threading.Thread(target=_listen, args=(parent, asked), daemon=True).start()
    worker: Worker | None = None
    failure = ""
    try:
        worker = Worker(asked.get())
    except MicroNpuError as error:
        failure = str(error)
    while True:
        job = asked.get()
        row = worker.run(job) if worker is not None else failed(job, failure)
        with contextlib.suppress(OSError):  # the parent is gone; the other thread notices as well
            parent.send(row)


def _listen(parent: Connection, asked: SimpleQueue[Any]) -> None:
    with contextlib.suppress(EOFError, OSError):
        while True:
            asked.put(parent.recv())
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
