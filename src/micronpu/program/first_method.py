"""Move a method of a program to the first place, for runners that call the first one."""

from __future__ import annotations

import struct

from micronpu.base import flatbuffer
from micronpu.base.errors import PayloadError
from micronpu.program.digest import with_digest_of
from micronpu.program.pte import IDENTIFIER, read_pte
from micronpu.upstream.pte import ExecutionPlan, Program


def with_method_first(data: bytes, method: str, name: str = "The program") -> bytes:
    """Swap two methods in the file's list and update the digest if it had one.

    Raises:
        PayloadError: it is damaged, or has no such method.
    """
    size = read_pte(data, name=name).program_size
    program = flatbuffer.root(memoryview(data)[:size], IDENTIFIER)
    plans = program.vector(Program.EXECUTION_PLAN)
    names = [plan.string(ExecutionPlan.NAME) for plan in plans.tables()]
    if method not in names:
        raise PayloadError(f"{name} has no method {method!r}.", hint=f"one of {', '.join(sorted(names)) or 'none'}")
    number = names.index(method)
    if number == 0:
        return data
    places = [plans.start, plans.start + 4 * number]
    tables = [plans.table(0).position, plans.table(number).position]
    image = bytearray(data)
    for place, table in zip(places, reversed(tables), strict=True):
        struct.pack_into("<I", image, place, table - place)  # relative to its own position
    return with_digest_of(data, bytes(image), name)
