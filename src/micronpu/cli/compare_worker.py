"""The process of `micronpu compare` that compiles for one target after the other.

``python -I compare_worker.py FOLDER...``: where its parent finds modules.  Standard input is a socket.  On it come,
pickled, a task and then jobs, each answered with its row.  With the socket the process ends, also in the middle of a
job.
"""

import sys

if __name__ == "__main__":
    sys.path[:] = sys.argv[1:]  # before anything is looked for

import contextlib
import os
import signal
import threading
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any


def main() -> None:
    """Answers jobs until the parent is gone."""
    from micronpu.base.errors import MicroNpuError
    from micronpu.base.leaving import leave_on_signals
    from micronpu.cli.workers import Worker, failed

    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a parent that ignores it hands that on
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
        with contextlib.suppress(OSError):  # the parent is gone, as the other thread sees too
            parent.send(row)


def _listen(parent: Connection, asked: SimpleQueue[Any]) -> None:
    with contextlib.suppress(EOFError, OSError):
        while True:
            asked.put(parent.recv())
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
