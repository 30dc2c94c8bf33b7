"""An estimate as a trace for `chrome://tracing` and Perfetto: a row for the NPU, its arithmetic, and each memory."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from micronpu.base.errors import UnsupportedError

if TYPE_CHECKING:
    from micronpu.report.delegation import DelegationReport

_PROCESS = 1
_WHOLE, _ARITHMETIC = "NPU", "NPU: arithmetic"


def chrome_trace(report: DelegationReport) -> str:
    """The text of a trace file: what the NPU does in a call, operation by operation, as the report estimates it.

    Operations stand one behind the other; of each, arithmetic and memories begin together. What runs on the core has no
    estimate by operation, and is not shown. Times are microseconds, or cycles where the clock is not known.

    Raises:
        UnsupportedError: the report has no estimate of an operation.
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
    events: list[dict[str, Any]] = [
        {"ph": "M", "pid": _PROCESS, "name": "process_name", "args": {"name": f"{report.target}, an estimate"}},
        *(
            {"ph": "M", "pid": _PROCESS, "tid": i, "name": "thread_name", "args": {"name": row}}
            for i, row in enumerate(rows)
        ),
    ]
    begin = 0.0
    for operation, cost in timed:
        unit = 1.0 if in_cycles else 1.0 / (cost.clock_mhz or 1.0)
        spans = {_WHOLE: cost.cycles, _ARITHMETIC: cost.arithmetic_cycles, **cost.memory_cycles}
        told = {
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
                events.append(
                    {
                        "ph": "X",
                        "pid": _PROCESS,
                        "tid": rows.index(row),
                        "name": operation.name,
                        "ts": round(begin, 3),
                        "dur": round(cycles * unit, 3),
                        "args": told if row == _WHOLE else {},
                    }
                )
        begin += cost.cycles * unit
    other = {"unit": "cycles" if in_cycles else "microseconds", "figures": "estimates, nobody has measured them"}
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ns", "otherData": other}, indent=1) + "\n"
