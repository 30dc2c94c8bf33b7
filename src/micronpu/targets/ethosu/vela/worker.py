"""The process that runs Vela's compiler core: ``python -I -S worker.py FOLDER FOLDER``.

The folders contain the packages ``ethosu`` and ``micronpu``. The first request has an empty answer. Each further one
has seconds, arguments and options of ``regor.compile``, and the model as a blob; its answer has an objection, or the
result with command stream and constants as blobs. The core prints its reasons to standard output or error.

Imports delay every compiling process: use lightweight modules of the standard library only.
"""

from __future__ import annotations

import resource
import signal
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any

    from micronpu.base.worker import Head, Message

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
    sys.path += sys.argv[1:]
    from ethosu import regor

    from micronpu.base.worker import parent, serve

    def answer(head: Head, blobs: list[bytes]) -> Message:
        if not blobs:
            return {}, []
        signal.alarm(int(head["seconds"]) + _GRACE)
        try:
            architecture, *arguments = head["arguments"]
            return _answer(regor, (architecture, *blobs, *arguments), head["options"])
        finally:
            signal.alarm(0)

    serve(parent(), answer)


def _answer(regor: Any, arguments: tuple[object, ...], options: Head) -> Message:
    try:
        compiled = regor.compile(*arguments, **options)
    except Exception as error:  # regor raises RuntimeError and its own exceptions
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return {"objection": lines[0] if lines else type(error).__name__}, []
    report, tables = compiled.perf_report, compiled.opt_database.tables
    result = {
        "objection": "",
        "cpu_operators": int(report.cpuOps),
        "npu_operators": int(report.npuOps),
        "cycles": int(report.totalCycles),
        "memory": {str(name): int(m.peakUsage) for name, m in report.memories.items()},
        "scratch_size": int(compiled.scratch.size),
        "fast_scratch_size": int(compiled.scratch_fast.size),
        "inputs": _io(compiled.inputs),
        "outputs": _io(compiled.outputs),
        "tables": {name: _rows(tables[name]) for name in _TABLES if name in tables} | _figures(tables),
    }
    return result, [bytes(compiled.command_stream), bytes(compiled.read_only.data)]


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


if __name__ == "__main__":
    main()
