"""ExecuTorch's record of a run, an ETDump: begin and end of each instruction.

Layout: `executorch/devtools/etdump/etdump_schema_flatcc.fbs`, ExecuTorch 1.5.  No ExecuTorch, no torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from micronpu.base.flatbuffer import CorruptFlatbufferError, root

IDENTIFIER = b"ED00"
_RUNS, _EVENTS, _PROFILE = 1, 3, 0
_NAME, _INSTRUCTION, _DELEGATE_ID, _DELEGATE_NAME, _START, _END = 0, 2, 3, 4, 6, 7
EXECUTES = "Method::execute"
"""Name of the event of a whole run."""
CALLS = ("OPERATOR_CALL", "DELEGATE_CALL")
"""Names of the events of an instruction; a kernel inside of one has a separate event, `native_call_...`."""


@dataclass(frozen=True)
class Event:
    """An event with a duration.

    Attributes:
        name: name in the runtime.
        instruction: index of the instruction; -1 for other events.
        in_delegate: True for an operation inside a delegate.
        ticks: from begin to end, in the unit of the runtime's clock.
    """

    name: str
    instruction: int
    in_delegate: bool
    ticks: int


def is_etdump(data: bytes) -> bool:
    """Return True if bytes are an ETDump, by their identifier; the runtime writes the size before it."""
    return IDENTIFIER in (data[4:8], data[8:12])


def events_of(data: bytes) -> Iterator[Event]:
    """Yield all events with a duration, run by run.

    Raises:
        ValueError: the file is damaged.
    """
    found_size = data[8:12] == IDENTIFIER and data[4:8] != IDENTIFIER
    if found_size and int.from_bytes(data[:4], "little") > len(data) - 4:
        raise CorruptFlatbufferError(f"it has {len(data)} bytes, fewer than it says")
    for run in root(data[4:] if found_size else data, IDENTIFIER).vector(_RUNS).tables():
        for event in run.vector(_EVENTS).tables():
            found = event.table(_PROFILE)
            if found is None:
                continue
            start, end = (found.integer(number, "<Q") for number in (_START, _END))
            if end < start:
                raise CorruptFlatbufferError("an event ends before it begins")
            apart = found.integer(_DELEGATE_ID, default=-1) >= 0 or bool(found.string(_DELEGATE_NAME))
            yield Event(found.string(_NAME), found.integer(_INSTRUCTION, default=-1), apart, end - start)
