"""The process of an isolated program: ``python -I -S isolated_worker.py FOLDERS SCRATCH``, a socket as standard input.

FOLDERS is a JSON list of package folders, and SCRATCH a writable folder, or "". The script runs without the user's
environment and with the standard library first on the path, so it imports nothing from the current folder, which may be
untrusted. It answers requests until the socket is closed; see `micronpu.runtime.isolated` for the messages.
"""

from __future__ import annotations

import json
import math
import os
import resource
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from micronpu.base.worker import Head, Message
    from micronpu.runtime.array_program import ArrayProgram

_MEMORY = 4 << 30
"""Memory in bytes that a program may use, in addition to that of the process before loading."""
_FILE = 1 << 30
"""Maximum size in bytes of a file it writes: its output, and the record of a profile."""
_FILES = 512
_GRACE = 60
"""Seconds of CPU time beyond a request's time limit; takes effect only if the parent has ended."""


def main() -> None:
    """Answer requests until the parent ends."""
    sys.path += json.loads(sys.argv[1])  # after the standard library
    scratch = sys.argv[2] or None
    sys.dont_write_bytecode = True
    from micronpu.base.errors import MicroNpuError
    from micronpu.base.worker import parent, receive, send, serve

    program: ArrayProgram | None = None

    def answer(head: Head, blobs: list[bytes]) -> Message:
        nonlocal program
        try:
            if program is None:
                program = _load(head, blobs)
                return {}, []
            _limit_time(program.options.time_limit)
            return _answer(program, head, blobs)
        except MicroNpuError as error:
            return {"error": type(error).__name__, "what": error.what, "hint": error.hint}, []

    with parent() as channel:
        try:
            fences = _prepare(scratch, receive(channel)[0]["operators"])
        except EOFError:
            return
        except MicroNpuError as error:
            send(channel, {"error": type(error).__name__, "what": error.what, "hint": error.hint})
            return
        send(channel, {"fences": sorted(fences)})
        serve(channel, answer)


def _prepare(scratch: str | None, operators: list[str] | None) -> frozenset[str]:
    """Import everything that running a program needs, then restrict this process; return the restrictions.

    Imports look for temporary and cache folders, start compilers and read the machine's devices, depending on the build
    of torch: after the restriction they fail. The imported code is as trusted as this module.
    """
    import micronpu.runtime.array_program  # noqa: F401
    from micronpu.base.fence import put_up
    from micronpu.runtime.native import has_all
    from micronpu.runtime.plugin import load_plugin

    if operators is None or not has_all(load_plugin(torch=False), operators):
        import torch  # noqa: F401  (its memory is not the program's)

        load_plugin()
    fences = put_up(scratch)
    tempfile.tempdir = scratch
    for limit, value in ((resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, _FILE), (resource.RLIMIT_NOFILE, _FILES)):
        _limit(limit, value, for_good=True)
    _limit_memory()
    return fences


def _load(head: Head, blobs: list[bytes]) -> ArrayProgram:
    from micronpu.runtime.array_program import ArrayProgram
    from micronpu.runtime.run_options import RunOptions

    class Program(ArrayProgram):
        """A program that runs even with a wrong digest: this process is expendable."""

        _checks_digest = False

    options = RunOptions(**{**head["options"], "isolated": False})
    _limit_time(options.time_limit)
    return Program(blobs[0], options, method=head["method"], name=head["name"])


def _limit(kind: int, value: int, for_good: bool = False) -> None:
    """Lower a limit of this process, or reset it below the hard limit."""
    hard = resource.getrlimit(kind)[1]
    least = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (least, least if for_good else hard))


def _limit_memory() -> None:
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            taken = int(file.read().split()[0]) * resource.getpagesize()
    except OSError:
        return  # not Linux
    if taken <= 1 << 40:  # otherwise a sanitizer has mapped terabytes of unused memory
        _limit(resource.RLIMIT_AS, taken + _MEMORY)


def _limit_time(seconds: float | None) -> None:
    """Limit CPU time, to end the process if its parent has ended and cannot stop it."""
    if seconds is not None:
        used = resource.getrusage(resource.RUSAGE_SELF)
        each = math.ceil(seconds + _GRACE) * (os.cpu_count() or 1)
        _limit(resource.RLIMIT_CPU, math.ceil(used.ru_utime + used.ru_stime) + each)


def _answer(program: ArrayProgram, head: Head, blobs: list[bytes]) -> Message:
    from micronpu.runtime.isolated import pack_all, unpack_all

    if head["do"] == "save":
        with tempfile.TemporaryDirectory() as scratch:
            files = [Path(scratch) / name for name in ("etdump", "values")[: 2 if head["values"] else 1]]
            program.save_etdump(*files)
            return {}, [file.read_bytes() for file in files]
    if head["do"] == "reset":
        program.reset()
        return {}, []
    inputs = unpack_all(head["inputs"], blobs, arrays=program.is_native)
    run = program.run_arrays if program.is_native else program.run
    outputs, data = pack_all(run(*inputs, method=head["method"]))
    return {"outputs": outputs}, data


if __name__ == "__main__":
    main()
