"""The process of a file's own runtime, seen from this side; see `runtime_worker`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from micronpu.base.errors import first_line
from micronpu.base.fence import package_folders
from micronpu.base.parsing import parse_json
from micronpu.frontend.model_files.own_runtime import RuntimeRefusalError
from micronpu.frontend.model_files.runtime_worker import receive, send

_SECONDS = 600
"""Limit of the time for one request."""


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
        script = str(Path(__file__).with_name("runtime_worker.py"))
        command = [sys.executable or "python", "-I", "-S", script, json.dumps(package_folders()), runtime]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd=os.sep,
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
                start_new_session=True,
            )
        except OSError as error:
            raise RuntimeRefusalError(f"The process of {title} cannot be started: {first_line(error)}.") from error

    @property
    def pid(self) -> int:
        return self._process.pid

    def stop(self) -> None:
        self._process.kill()
        self._process.communicate()

    def ask(self, head: dict[str, Any], blobs: Sequence[bytes] = ()) -> tuple[dict[str, Any], list[bytes]]:
        """Send a request, and return the answer.

        Raises:
            RuntimeRefusalError: the process ended, reports an error, or sends no message of `send`.
        """
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        watch = threading.Timer(_SECONDS, process.kill)
        watch.daemon = True
        watch.start()
        try:
            send(process.stdin, head, blobs)
            answer, found = receive(process.stdout, parse_json)
        except (EOFError, OSError) as error:
            code = process.wait()
            raise RuntimeRefusalError(f"{self.title} ends with exit code {code}.") from error
        except (ValueError, TypeError, LookupError, OverflowError, MemoryError) as error:  # the file broke the process
            process.kill()
            process.wait()
            raise RuntimeRefusalError(f"An answer of {self.title} cannot be read.") from error
        finally:
            watch.cancel()
        if "error" in answer:
            raise RuntimeRefusalError(f"{self.title} reports: {first_line(ValueError(answer['error']))}.")
        return answer, found
