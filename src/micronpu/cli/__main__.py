"""Entry point of the command: the script `micronpu` and ``python -m micronpu.cli``."""

from __future__ import annotations

import atexit
import gc
import os
import sys
import warnings
from typing import NoReturn

from micronpu.base.leaving import leave_on_signals
from micronpu.base.quiet import own_process

_STANDARD_ERROR = 2
_FEW_COLLECTIONS = 100_000, 50, 100
"""Thresholds of the garbage collector. At Python's defaults, scanning torch's objects takes a seventh of its import
time and of a compilation."""


def main() -> NoReturn:
    """Run the command line, and end the process with the command's exit code."""
    _open_standard_streams()
    leave_on_signals()
    own_process()
    warnings.formatwarning = lambda message, *_: f"Warning: {message}\n"  # no line of our source
    gc.set_threshold(*_FEW_COLLECTIONS)
    from micronpu.cli.main import app

    code: object = 0
    try:
        app(prog_name="micronpu")
    except SystemExit as end:
        code = end.code
    _leave(code)


def _open_standard_streams() -> None:
    """Open /dev/null for each standard stream that is closed, so that no other file gets its descriptor and output."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= _STANDARD_ERROR:
        os.set_inheritable(number, True)
    os.close(number)
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115 (for as long as the process lives)


def _leave(code: object) -> NoReturn:
    """End the process without destroying Python's objects: torch's take as long as compiling a small network."""
    if code is not None and not isinstance(code, int):
        print(code, file=sys.stderr)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):  # the reader is gone, or the model's file has closed the stream
            code = code or 1
    os._exit(code if isinstance(code, int) else 0 if code is None else 1)


if __name__ == "__main__":
    main()
