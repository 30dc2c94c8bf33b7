"""The process that runs Vela's compiler core: ``python -I -S worker.py FOLDER FOLDER``.

The folders contain the packages ``ethosu`` and ``micronpu``. Standard input is a socket. A message consists of two
lengths of eight bytes each, little-endian, a value in ``marshal``'s format, and bytes that are too large to be copied
into it. The worker sends None when it is ready. It answers each request, (seconds, arguments, options of
``regor.compile``) and the model, with a pair, an objection and None or "" and a dict, and the constants. It ends when
the socket is closed, even while it compiles. Standard output and error are a file of the parent, since the core prints
its reasons.

Imports delay every compiling process: use lightweight modules of the standard library only.
"""

from __future__ import annotations

import marshal
import os
import resource
import signal
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any

_GRACE = 5
"""Seconds after its time limit at which a worker ends itself; takes effect only if its parent has ended."""
_TABLES = ("perf", "source", "optimised", "queue")
_FIGURES = ("id", "est_op_cycles_without_buffering")
_FIGURES_OF_MEMORIES = ("FeatureMap_ac", "Weights_read", "Scales_read")
"""Columns of the table of all estimates, which has 130: exact names, and suffixes."""


def main() -> None:
    """Answer requests until the parent closes the socket."""
    # Vela is known to crash; do not leave core files in the user's folder.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # a parent that ignores it passes that on
    channel = os.dup(0)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    sys.path += sys.argv[1:]
    from ethosu import regor

    from micronpu.base.leaving import tie, working

    tie(channel)
    _send(channel, None, b"")
    with open(channel, "rb") as incoming:
        while sizes := incoming.read(16):
            seconds, (architecture, *arguments), options = marshal.loads(incoming.read(_number(sizes[:8])))
            model = incoming.read(_number(sizes[8:]))
            signal.alarm(int(seconds) + _GRACE)
            with working(channel):
                answer, constants = _answer(regor, (architecture, model, *arguments), options)
            signal.alarm(0)
            _send(channel, answer, constants)
            del model, answer, constants  # or they stay in memory during the next request


def _answer(regor: Any, arguments: tuple[object, ...], options: dict[str, Any]) -> tuple[Any, bytes]:
    try:
        compiled = regor.compile(*arguments, **options)
    except Exception as error:  # regor raises RuntimeError and its own exceptions
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return (lines[0] if lines else type(error).__name__, None), b""
    report, tables = compiled.perf_report, compiled.opt_database.tables
    result = {
        "cpu_operators": int(report.cpuOps),
        "npu_operators": int(report.npuOps),
        "cycles": int(report.totalCycles),
        "memory": {str(name): int(m.peakUsage) for name, m in report.memories.items()},
        "commands": bytes(compiled.command_stream),
        "scratch_size": int(compiled.scratch.size),
        "fast_scratch_size": int(compiled.scratch_fast.size),
        "inputs": _io(compiled.inputs),
        "outputs": _io(compiled.outputs),
        "tables": {name: _rows(tables[name]) for name in _TABLES if name in tables} | _figures(tables),
    }
    return ("", result), compiled.read_only.data


def _io(tensors: Any) -> list[tuple[tuple[int, ...], int, int, int]]:
    return [(tuple(int(n) for n in t.shape), int(t.element_size), int(t.address), int(t.region)) for t in tensors]


def _rows(table: Any) -> list[list[str]]:
    return [[str(cell) for cell in row] for row in (table.header, *table.data)]


def _figures(tables: Any) -> dict[str, list[list[str]]]:
    """Columns of an operation's cost without the transfers of its weights, from the table of all estimates."""
    if "perf_debug" not in tables:
        return {}
    table = tables["perf_debug"]
    wanted = [i for i, n in enumerate(table.header) if n in _FIGURES or str(n).endswith(_FIGURES_OF_MEMORIES)]
    return {"figures": [[str(row[i]) for i in wanted] for row in (table.header, *table.data)]}


def _number(data: bytes) -> int:
    return int.from_bytes(data, "little")


def _send(channel: int, value: Any, data: bytes) -> None:
    message = marshal.dumps(value)
    sizes = b"".join(len(part).to_bytes(8, "little") for part in (message, data))
    for part in (sizes + message, data):
        rest = memoryview(part)
        while rest:
            rest = rest[os.write(channel, rest) :]


if __name__ == "__main__":
    main()
