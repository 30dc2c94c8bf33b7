"""The process of a file's own runtime, seen from this side; see `runtime_worker`."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from micronpu.base.errors import first_line
from micronpu.base.fence import package_folders
from micronpu.base.worker import Head, Message, Worker
from micronpu.frontend.model_files.own_runtime import RuntimeRefusalError

_SECONDS = 600
"""Limit of the time for one request."""
_MOST = 1 << 32
"""Limit of the bytes of an answer."""


class RuntimeProcess:
    """A process that runs one file.

    Args:
        runtime: "litert" or "onnx".
        title: of the runtime, for messages.

    Raises:
        RuntimeRefusalError: it cannot be started.
    """

    def __init__(self, runtime: str, title: str) -> None:
        self.title = title
        script, environment = Path(__file__).with_name("runtime_worker.py"), {"OPENBLAS_NUM_THREADS": "1"}
        try:
            self.worker = Worker(script, json.dumps(package_folders()), runtime, environment=environment, cwd=os.sep)
        except OSError as error:
            raise RuntimeRefusalError(f"The process of {title} cannot be started: {first_line(error)}.") from error
        self.stop = self.worker.close

    def ask(self, head: Head, blobs: Sequence[bytes] = ()) -> Message:
        """Send a request, and return the answer.

        Raises:
            RuntimeRefusalError: the process ended, reports an error, or sends no message of `send`.
        """
        try:
            answer, found = self.worker.ask(head, blobs, _SECONDS, _MOST)
        except TimeoutError as error:
            self.stop()
            raise RuntimeRefusalError(f"{self.title} did not answer within {_SECONDS:g} s.") from error
        except (EOFError, OSError) as error:
            how, _ = self.worker.how_it_ended()
            raise RuntimeRefusalError(f"{self.title} {how}.") from error
        except (ValueError, OverflowError, MemoryError) as error:  # the file broke the process
            self.stop()
            raise RuntimeRefusalError(f"An answer of {self.title} cannot be read.") from error
        if "error" in answer:
            raise RuntimeRefusalError(f"{self.title} reports: {first_line(ValueError(answer['error']))}.")
        return answer, found
