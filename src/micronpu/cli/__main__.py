"""The command as a process of its own: the script `micronpu`, or ``python -m micronpu.cli`` where there is none."""

from __future__ import annotations

import atexit
import gc
import os
import sys
from typing import NoReturn

from micronpu.cli.main import app

# What is imported stays: looking through all of torch for garbage takes a seventh of the time of its import.
_THRESHOLDS = 100_000, 50, 100


def main() -> NoReturn:
    """Runs the command line of the process, and ends the process with the command's exit code."""
    gc.set_threshold(*_THRESHOLDS)
    code: object = 0
    try:
        app(prog_name="micronpu")
    except SystemExit as end:
        code = end.code
    _leave(code)


def _leave(code: object) -> NoReturn:
    """Ends the process as `sys.exit` does, without taking apart what the system takes back as a whole.

    With torch in it that would take as long as a small network's compilation.
    """
    if code is not None and not isinstance(code, int):
        print(code, file=sys.stderr)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:  # nobody reads it any more
            code = code or 1
    os._exit(code if isinstance(code, int) else 0 if code is None else 1)


if __name__ == "__main__":
    main()
