"""The command as a process of its own: the script `micronpu`, or ``python -m micronpu.cli`` where there is none."""

from __future__ import annotations

import atexit
import gc
import os
import sys
from typing import NoReturn

from micronpu.base.leaving import leave_on_signals
from micronpu.base.quiet import own_process

_STANDARD_ERROR = 2
_FEW_COLLECTIONS = 100_000, 50, 100
"""Looking through all of torch for garbage takes a seventh of the time of its import, and of a compilation's."""


def main() -> NoReturn:
    """Runs the command line of the process, and ends the process with the command's exit code."""
    _open_standard_streams()
    leave_on_signals()
    own_process()
    gc.set_threshold(*_FEW_COLLECTIONS)
    from micronpu.cli.main import app

    code: object = 0
    try:
        app(prog_name="micronpu")
    except SystemExit as end:
        code = end.code
    _leave(code)


def _open_standard_streams() -> None:
    """Gives a process that was started without one of them (``>&-``) one that leads nowhere.

    Or the next file that is opened takes its place, and what a library prints ends up in it.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= _STANDARD_ERROR:
        os.set_inheritable(number, True)
    os.close(number)
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115 (for as long as the process lives)


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
        except (OSError, ValueError):  # nobody reads it any more, or a model's file has closed it
            code = code or 1
    os._exit(code if isinstance(code, int) else 0 if code is None else 1)


if __name__ == "__main__":
    main()
