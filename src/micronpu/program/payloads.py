"""Replace the payloads of a program's delegates, or its first method, for runners that need other ones."""

from __future__ import annotations

import struct
from collections.abc import Callable

from micronpu.base import flatbuffer
from micronpu.base.errors import PayloadError
from micronpu.program.digest import with_digest_of
from micronpu.program.pte import IDENTIFIER, extents, read_pte
from micronpu.upstream.pte import BackendDelegateInlineData, ExecutionPlan, Program


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


_ALIGNMENT, _SEGMENTS = 16, 128
_SIZES = 16
"""Offset of the header fields with the size of the flatbuffer and the position of the segments."""


def with_payloads(data: bytes, change: Callable[[bytes], bytes], name: str = "The program") -> bytes:
    """Return the file with each payload replaced by ``change(payload)``, and an updated digest if it had one.

    Changed payloads are appended to the flatbuffer; the old ones remain as dead bytes.

    Raises:
        PayloadError: the file is damaged.
    """
    size = read_pte(data, name=name).program_size
    program = flatbuffer.root(memoryview(data)[:size], IDENTIFIER)
    image = bytearray(data[:size])
    for entry in program.vector(Program.BACKEND_DELEGATE_DATA).tables():
        held = entry.vector(BackendDelegateInlineData.DATA)
        old = bytes(held.data[held.start : held.start + held.length])
        if (new := change(old)) != old:
            image += bytes((-len(image) - 4) % _ALIGNMENT)
            position = entry.offset(BackendDelegateInlineData.DATA)
            struct.pack_into("<I", image, position, len(image) - position)  # relative to its own position
            image += struct.pack("<I", len(new)) + new
    if len(image) == size:
        return data
    (_, base, _), behind = extents(data, name), data[size:]
    if base:
        moved = len(image) + -len(image) % _SEGMENTS
        struct.pack_into("<QQ", image, _SIZES, len(image), moved)
        behind = bytes(moved - len(image)) + data[base:]
    return with_digest_of(data, bytes(image) + behind, name)
