"""The process of an isolated program: ``python -I -S isolated_worker.py FOLDERS SCRATCH``, a socket as standard input.

FOLDERS is a list of folders of packages, as JSON, and SCRATCH a folder that it may write to, or nothing.  Started as a
script, without the user's environment and with the standard library first, it imports nothing from the folder that it
is started in, which may have come with the program.  It answers requests until the socket is closed; see
`micronpu.runtime.isolated` for the messages.
"""

from __future__ import annotations

import json
import math
import os
import resource
import socket
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from micronpu.runtime.program import HostProgram

_MEMORY = 4 << 30
"""Bytes that a program may take beside what the process has when it is loaded."""
_FILE = 1 << 30
"""Bytes of the largest file that it may write: what it prints, and the record of a profile."""
_FILES = 512
_GRACE = 60
"""Seconds of computing beyond a request's time limit, which matter only where the parent is gone."""


def main() -> None:
    """Answers requests until the parent is gone."""
    sys.path += json.loads(sys.argv[1])  # behind the standard library
    scratch = sys.argv[2] or None
    sys.dont_write_bytecode = True
    from micronpu.base.errors import MicroNpuError
    from micronpu.base.lifeline import tie, working
    from micronpu.runtime.isolated import receive, send

    with socket.socket(fileno=os.dup(0)) as channel:
        try:
            fences = _prepare(scratch)
        except MicroNpuError as error:
            send(channel, {"error": type(error).__name__, "what": error.what, "hint": error.hint})
            return
        tie(channel)
        send(channel, {"fences": sorted(fences)})
        program: HostProgram | None = None
        answer: tuple[dict[str, Any], list[bytes]]
        while True:
            try:
                head, blobs = receive(channel)
            except EOFError:
                return
            try:
                with working(channel):
                    if program is None:
                        program, answer = _load(head, blobs), ({}, [])
                    else:
                        _limit_time(program.options.time_limit)
                        answer = _answer(program, head, blobs)
                send(channel, *answer)
            except MicroNpuError as error:
                send(channel, {"error": type(error).__name__, "what": error.what, "hint": error.hint})


def _prepare(scratch: str | None) -> frozenset[str]:
    """Import all that running a program takes, then fence this process in; return its fences.

    Imports look for temporary and cache folders, start compilers and read the machine's devices, each build of torch
    others: behind the fence they fail. The code imported is as trusted as this module.
    """
    import torch  # noqa: F401  (its memory is not the program's)

    import micronpu.runtime.program  # noqa: F401
    from micronpu.base.fence import put_up
    from micronpu.runtime.plugin import load_plugin

    load_plugin()
    fences = put_up(scratch)
    tempfile.tempdir = scratch
    for limit, value in ((resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, _FILE), (resource.RLIMIT_NOFILE, _FILES)):
        _limit(limit, value, for_good=True)
    _limit_memory()
    return fences


def _load(head: dict[str, Any], blobs: list[bytes]) -> HostProgram:
    from micronpu.runtime.program import HostProgram
    from micronpu.runtime.run_options import RunOptions

    class Program(HostProgram):
        """A program that runs whatever its digest says: this process is expendable."""

        _checks_digest = False

    options = RunOptions(**{**head["options"], "isolated": False})
    _limit_time(options.time_limit)
    return Program(blobs[0], options, method=head["method"], name=head["name"])


def _limit(kind: int, value: int, for_good: bool = False) -> None:
    """Lowers a limit of this process, or sets it anew below what nobody may pass."""
    hard = resource.getrlimit(kind)[1]
    least = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (least, least if for_good else hard))


def _limit_memory() -> None:
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            taken = int(file.read().split()[0]) * resource.getpagesize()
    except OSError:
        return  # no Linux
    if taken <= 1 << 40:  # else under a sanitizer, which maps terabytes that nobody uses
        _limit(resource.RLIMIT_AS, taken + _MEMORY)


def _limit_time(seconds: float | None) -> None:
    """Ends the process some time after its parent would have ended it, had it not gone before."""
    if seconds is not None:
        used = resource.getrusage(resource.RUSAGE_SELF)
        each = math.ceil(seconds + _GRACE) * (os.cpu_count() or 1)
        _limit(resource.RLIMIT_CPU, math.ceil(used.ru_utime + used.ru_stime) + each)


def _answer(program: HostProgram, head: dict[str, Any], blobs: list[bytes]) -> tuple[dict[str, Any], list[bytes]]:
    from micronpu.runtime.isolated import pack_all, unpack_all

    if head["do"] == "save":
        with tempfile.TemporaryDirectory() as scratch:
            files = [Path(scratch) / name for name in ("etdump", "values")[: 2 if head["values"] else 1]]
            program.save_etdump(*files)
            return {}, [file.read_bytes() for file in files]
    if head["do"] == "reset":
        program.reset()
        return {}, []
    outputs, data = pack_all(program.run(*unpack_all(head["inputs"], blobs), method=head["method"]))
    return {"outputs": outputs}, data


if __name__ == "__main__":
    main()
