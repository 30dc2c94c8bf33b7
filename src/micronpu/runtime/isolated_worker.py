"""The process of an isolated program: ``python -m micronpu.runtime.isolated_worker``, a socket as standard input.

It answers requests until the socket is closed; see `micronpu.runtime.isolated` for the messages.
"""

from __future__ import annotations

import os
import resource
import socket
from typing import Any

from micronpu.base.errors import MicroNpuError
from micronpu.runtime.isolated import pack_all, receive, send, unpack_all
from micronpu.runtime.program import HostProgram
from micronpu.runtime.run_options import RunOptions

_MEMORY = 4 << 30
"""Bytes that a program may take beside what the process has when it is loaded."""


class _Program(HostProgram):
    """A program that runs whatever its digest says: this process is expendable."""

    _checks_digest = False


def main() -> None:
    """Answers requests until the parent is gone."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    with socket.socket(fileno=os.dup(0)) as channel:
        program: _Program | None = None
        while True:
            try:
                head, blobs = receive(channel)
            except EOFError:
                return
            try:
                if program is None:
                    program = _load(head, blobs)
                    send(channel, {})
                else:
                    _answer(channel, program, head, blobs)
            except MicroNpuError as error:
                send(channel, {"error": type(error).__name__, "what": error.what, "hint": error.hint})


def _load(head: dict[str, Any], blobs: list[bytes]) -> _Program:
    import torch  # noqa: F401  (what it takes is not the program's)

    from micronpu.runtime.plugin import load_plugin

    load_plugin()
    # TOSA's reference model starts a debugger, where there is one, to show what it thinks of a program.
    os.environ["PATH"] = ""
    _limit_memory()
    options = RunOptions(**{**head["options"], "isolated": False})
    return _Program(blobs[0], options, method=head["method"], name=head["name"])


def _limit_memory() -> None:
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            taken = int(file.read().split()[0]) * resource.getpagesize()
    except OSError:
        return  # no Linux
    if taken > 1 << 40:
        return  # under a sanitizer, which maps terabytes that nobody uses
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    limit = taken + _MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))


def _answer(channel: socket.socket, program: _Program, head: dict[str, Any], blobs: list[bytes]) -> None:
    if head["do"] == "save":
        program.save_etdump(head["etdump"], head["debug_buffer"])
        send(channel, {})
        return
    if head["do"] == "reset":
        program.reset()
        send(channel, {})
        return
    outputs, data = pack_all(program.run(*unpack_all(head["inputs"], blobs)))
    send(channel, {"outputs": outputs}, data)


if __name__ == "__main__":
    main()
