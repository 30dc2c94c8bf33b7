"""The process in which Vela's compiler core runs: ``python -I -S worker.py FOLDER FOLDER``.

The folders hold the packages ``ethosu`` and ``micronpu``.  Standard input is a socket.  A message on it is two lengths
in eight bytes each, least significant first, a value in ``marshal``'s form, and bytes that are too many to be copied
into that.  The worker says None once it is ready.  It answers each request, (seconds, arguments, options of
``regor.compile``) and the model, with a pair, an objection and None or "" and a dict, and the constants.  It ends with
the socket, also while it compiles.  Standard output and error are a file of the parent, since the core prints its
reasons.

What is imported here is waited for by every process that compiles: the standard library's lightest only.
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
"""Seconds after its time limit at which a worker ends itself, which matters only where its parent is gone."""
_TABLES = ("perf", "source", "optimised", "queue")
_FIGURES = ("id", "est_op_cycles_without_buffering")
_FIGURES_OF_MEMORIES = ("FeatureMap_ac", "Weights_read", "Scales_read")
"""Columns of the table of all figures, which has 130 of them: named so, and ending so."""


def main() -> None:
    """Answers requests until the parent closes the socket."""
    # Vela is known to crash, which is no reason to leave a core file in the user's folder.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # a parent that ignores it hands that on
    channel = os.dup(0)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    sys.path += sys.argv[1:]
    from ethosu import regor

    from micronpu.base.lifeline import tie, working

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
            del model, answer, constants  # or they stand beside the next


def _answer(regor: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, bytes]:
    try:
        compiled = regor.compile(*arguments, **options)
    except Exception as error:  # regor raises RuntimeError and kinds of its own
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
        "inputs": _borders(compiled.inputs),
        "outputs": _borders(compiled.outputs),
        "tables": {name: _rows(tables[name]) for name in _TABLES if name in tables} | _figures(tables),
    }
    return ("", result), compiled.read_only.data


def _borders(tensors: Any) -> list[tuple[tuple[int, ...], int, int, int]]:
    return [(tuple(int(n) for n in t.shape), int(t.element_size), int(t.address), int(t.region)) for t in tensors]


def _rows(table: Any) -> list[list[str]]:
    """The header of a table and its rows."""
    return [[str(cell) for cell in row] for row in (table.header, *table.data)]


def _figures(tables: Any) -> dict[str, list[list[str]]]:
    """What an operation takes beside the transfers of its weights: those columns of the table of all figures."""
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
