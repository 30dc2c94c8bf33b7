"""Programs with other bytes: without what only the host needs, with other payloads, or with another first method.

Only the host needs the integer graphs that its plug-in runs, and our metadata. Both are named data with our keys, like
the digest of the whole file. Their entries and segments are removed, the remaining segments are moved together, and
references to segments are renumbered. The rest of the file is unchanged, so the board computes from the bytes that the
host has checked.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from micronpu.base import flatbuffer
from micronpu.base.errors import PayloadError
from micronpu.program.digest import with_digest_of
from micronpu.program.pte import HEADER, PREFIX, extents, opened, read_pte, whole
from micronpu.upstream.pte import (
    BackendDelegate,
    BackendDelegateDataReference,
    BackendDelegateInlineData,
    DataLocation,
    DataSegment,
    ExecutionPlan,
    NamedData,
    Program,
    SubsegmentOffsets,
)

_ALIGNMENT, _SEGMENTS = 16, 128
"""Alignment of payloads and of segments in ExecuTorch."""
_SIZES = 16
"""Offset of the header fields with the size of the flatbuffer, and the position and the size of the segments."""


def append(image: bytearray, field: int, content: bytes, *, before: int, alignment: int = 8) -> None:
    """Append a vector or table, aligned at a byte of it, to an image of a flatbuffer and make a field point to it."""
    if not field:
        raise flatbuffer.CorruptFlatbufferError("a tensor without a place has one")
    image += bytes(-(len(image) + before) % alignment)
    struct.pack_into("<I", image, field, len(image) - field)  # relative to its own position
    image += content


def with_flatbuffer(data: bytes, image: bytearray, name: str) -> bytes:
    """Return a file with a longer flatbuffer before its segments."""
    size, base, _ = extents(data, name)
    moved = len(image) + -len(image) % _SEGMENTS if base else 0
    if image[8:12] == HEADER:
        struct.pack_into("<2Q", image, _SIZES, len(image), moved)
    return b"".join((image, bytes(moved - len(image)), data[base:]) if base else (image, data[size:]))


def with_method_first(data: bytes, method: str, name: str = "The program") -> bytes:
    """Swap two methods in the file's list and update the digest if it had one."""
    read_pte(data, name=name)
    plans = opened(data, name)[0].vector(Program.EXECUTION_PLAN)
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


def with_payloads(data: bytes, change: Callable[[bytes], bytes], name: str = "The program") -> bytes:
    """Return the file with each payload replaced by ``change(payload)``, and an updated digest if it had one.

    Changed payloads are appended to the flatbuffer; the old ones remain as dead bytes.

    Raises:
        PayloadError: the file is damaged.
    """
    read_pte(data, name=name)
    program, size, _, _ = opened(data, name)
    image = bytearray(data[:size])
    for entry in program.vector(Program.BACKEND_DELEGATE_DATA).tables():
        held = entry.vector(BackendDelegateInlineData.DATA)
        old = bytes(held.data[held.start : held.start + held.length])
        if (new := change(old)) != old:
            field = entry.offset(BackendDelegateInlineData.DATA)
            append(image, field, struct.pack("<I", len(new)) + new, before=4, alignment=_ALIGNMENT)
    return data if len(image) == size else with_digest_of(data, with_flatbuffer(data, image, name), name)


def strip(data: bytes, *, name: str = "The program") -> bytes:
    """Return the program for the board."""
    read_pte(data, name=name)
    with whole(name):
        program, program_size, base, _ = opened(data, name)
        named = program.vector(Program.NAMED_DATA).tables()
        if not any(entry.string(NamedData.KEY).startswith(PREFIX) for entry in named):
            return data
        return _strip(data, program, program_size, base)


def _strip(data: bytes, program: flatbuffer.Table, program_size: int, base: int) -> bytes:
    image = bytearray(memoryview(data)[:program_size])
    segments, named = program.vector(Program.SEGMENTS), program.vector(Program.NAMED_DATA)
    entries = list(named.tables())
    kept = [e for e in entries if not e.string(NamedData.KEY).startswith(PREFIX)]
    dropped = {_segment(e) for e in entries} - {_segment(e) for e in kept}
    dropped -= {index for index, _ in _references(program)}
    stay = [i for i in range(segments.length) if i not in dropped]
    moved = {old: new for new, old in enumerate(stay)}
    for entry in entries:
        if entry not in kept:
            _blank(image, entry)
    _keep(image, named, [entries.index(e) for e in kept])
    for index, position in [*_references(program), *((_segment(e), e.offset(NamedData.SEGMENT_INDEX)) for e in kept)]:
        _write(image, "<I", position, index, moved[index])
    body = bytearray()
    for index in stay:
        table = segments.table(index)
        offset, size = table.integer(DataSegment.OFFSET, "<Q"), table.integer(DataSegment.SIZE, "<Q")
        body += bytes(-len(body) % _SEGMENTS)
        _write(image, "<Q", table.offset(DataSegment.OFFSET), offset, len(body))
        body += memoryview(data)[base + offset : base + offset + size]
    _keep(image, segments, stay)
    new_base = base if body else 0
    struct.pack_into("<2Q", image, _SIZES + 8, new_base, len(body))
    return b"".join((image, bytes(base - program_size), body) if body else (image,))


def _segment(entry: flatbuffer.Table) -> int:
    return entry.integer(NamedData.SEGMENT_INDEX, "<I")


def _references(program: flatbuffer.Table) -> list[tuple[int, int]]:
    """Segment numbers referenced by anything but named data, and the offset of each reference (0: not stored)."""
    found = []
    place = BackendDelegateDataReference
    for table in (program.table(Program.CONSTANT_SEGMENT), *program.vector(Program.MUTABLE_DATA_SEGMENTS).tables()):
        if table is not None:
            number = SubsegmentOffsets.SEGMENT_INDEX
            found.append((table.integer(number, "<I"), table.offset(number)))
    for plan in program.vector(Program.EXECUTION_PLAN).tables():
        for delegate in plan.vector(ExecutionPlan.DELEGATES).tables():
            where = delegate.table(BackendDelegate.PROCESSED)
            if where is not None and where.integer(place.LOCATION, "<b") == DataLocation.SEGMENT:
                found.append((where.integer(place.INDEX, "<I"), where.offset(place.INDEX)))
    return found


def _write(image: bytearray, format_: str, position: int, old: int, new: int) -> None:
    """Overwrite a number by a smaller one; a field omitted because it is zero stays zero."""
    if position:
        struct.pack_into(format_, image, position, new)
    elif old != new:
        raise flatbuffer.CorruptFlatbufferError("a number of a segment is missing")


def _keep(image: bytearray, vector: flatbuffer.Vector, indices: list[int]) -> None:
    """Shorten a vector of tables to the elements ``indices``, in order."""
    if not vector.length:
        return
    targets = [vector.table(i).position for i in indices]
    struct.pack_into("<I", image, vector.start - 4, len(targets))
    for number, target in enumerate(targets):
        position = vector.start + 4 * number
        struct.pack_into("<I", image, position, target - position)
    end = vector.start + 4 * vector.length
    image[vector.start + 4 * len(targets) : end] = bytes(end - vector.start - 4 * len(targets))


def _blank(image: bytearray, entry: flatbuffer.Table) -> None:
    """Overwrite the key of an unreferenced entry."""
    key = entry.vector(NamedData.KEY)
    image[key.start : key.start + key.length] = bytes(key.length)
