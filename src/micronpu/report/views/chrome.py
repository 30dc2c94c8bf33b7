"""A trace for `chrome://tracing` and Perfetto: the estimate of the NPU by operation, or recorded times of a run."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from micronpu.base.errors import ErrorsAs, FileError, UnsupportedError, reason
from micronpu.base.files import read_file
from micronpu.base.parsing import JsonObject
from micronpu.base.quiet import quiet

if TYPE_CHECKING:
    from micronpu.report.delegation import DelegationReport

_PROCESS = 1
_IDENTIFIER = b"ED00"
"""Identifier of an ETDump, after its size."""
_RUNTIME, _INSIDE = "runtime", "inside of delegates"
_WHOLE, _ARITHMETIC = "NPU", "NPU: arithmetic"


def chrome_trace(report: DelegationReport) -> str:
    """Return the text of a trace file: operations of the NPU in a call, as the report estimates them.

    Operations follow each other; arithmetic and memories of an operation start together. Operators on the core have no
    estimate by operation, and are not shown. Times are microseconds, or cycles if the clock is unknown.
    """
    timed = [(o, o.cost) for o in report.operations if o.cost is not None]
    if not timed:
        raise UnsupportedError(
            "There is no estimate of what an operation takes, of which a trace could be made.",
            hint="a compiled program with a part for an NPU",
        )
    in_cycles = any(not cost.clock_mhz for _, cost in timed)
    memories = sorted({name for _, cost in timed for name in cost.memory_cycles})
    rows = [_WHOLE, _ARITHMETIC, *memories]
    events = _names(f"{report.target}, an estimate", rows)
    begin = 0.0
    for operation, cost in timed:
        unit = 1.0 if in_cycles else 1.0 / (cost.clock_mhz or 1.0)
        spans = {_WHOLE: cost.cycles, _ARITHMETIC: cost.arithmetic_cycles, **cost.memory_cycles}
        args = {
            "operators": ", ".join(operation.origin.nodes),
            "source": operation.origin.source,
            "shape": list(operation.shape),
            "macs": operation.macs,
            "cycles": cost.cycles,
            "bound by": cost.bound_by,
            "partition": operation.partition,
        }
        for row, cycles in spans.items():
            if cycles:
                own = args if row == _WHOLE else {}
                events.append(_span(rows.index(row), operation.name, begin, cycles * unit, own))
        begin += cost.cycles * unit
    return _file(events, "cycles" if in_cycles else "microseconds", "estimates, not measured")


def recorded_trace(etdump: Path, title: str) -> str:
    """Return the text of a trace file: times of each operator of the runtime, and of each operation inside delegates.

    Times are microseconds from the first event, by the clock of the machine that ran it; a board's ticks count as
    nanoseconds, as in ExecuTorch's Inspector.
    """
    hint = "what ExecuTorch's runtime writes, or `micronpu run --profile`"
    if read_file(etdump)[8:12] != _IDENTIFIER:
        raise FileError(f"{etdump} is no ETDump.", hint=hint)
    from executorch.devtools import Inspector
    from executorch.devtools.inspector import TimeScale

    with ErrorsAs(lambda error: FileError(f"{etdump} is no ETDump that can be read: {reason(error)}.", hint=hint)):
        with quiet(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about values that were not recorded
            inspector = Inspector(
                etdump_path=str(etdump), source_time_scale=TimeScale.NS, target_time_scale=TimeScale.US
            )
        found = [(block.name, event) for block in inspector.event_blocks for event in block.events]
    timed = [
        (block, event, begin / 1000, duration)
        for block, event in found
        for begin, duration in zip(event.start_time or (), event.perf_data.raw if event.perf_data else (), strict=False)
    ]
    if not timed:
        raise UnsupportedError(f"{etdump} has no times of which a trace could be made.", hint="a run that is profiled")
    first = min(begin for _, _, begin, _ in timed)
    events = _names(title, [_RUNTIME, _INSIDE])
    for block, event, begin, duration in sorted(timed, key=lambda row: (row[2], -row[3])):
        inside = bool(event.is_delegated_op)
        said = [part.decode(errors="replace") for part in event.raw_delegate_debug_metadatas if isinstance(part, bytes)]
        name = next(filter(None, said), "") if inside else ""
        args = {"block": block, "operators": ", ".join(event.op_types), "identifier": str(event.name)}
        args = {key: value for key, value in args.items() if value}
        events.append(_span(int(inside), name or str(event.name), begin - first, duration, args))
    return _file(events, "microseconds", "recorded")


def _span(row: int, name: str, begin: float, duration: float, args: JsonObject) -> dict[str, object]:
    times = {"ts": round(begin, 3), "dur": round(duration, 3)}
    return {"ph": "X", "pid": _PROCESS, "tid": row, "name": name, **times, "args": args}


def _names(title: str, rows: Sequence[str]) -> list[JsonObject]:
    """Return events with the names of the process and its rows."""
    of_rows = [{"tid": i, "name": "thread_name", "args": {"name": row}} for i, row in enumerate(rows)]
    named: list[dict[str, object]] = [{"name": "process_name", "args": {"name": title}}, *of_rows]
    return [{"ph": "M", "pid": _PROCESS, **names} for names in named]


def _file(events: list[JsonObject], unit: str, figures: str) -> str:
    other = {"unit": unit, "figures": figures}
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ns", "otherData": other}, indent=1) + "\n"
