"""Remove from a `.pte` what only the host needs: the integer graphs that the host's plug-in runs, and our metadata.

Both are named data with our keys, like the digest of the whole file. Their entries and segments are removed, the
remaining segments are moved together, and references to segments are renumbered. The rest of the file is unchanged, so
the board computes from the bytes that the host has checked.
"""

from __future__ import annotations

import struct

from micronpu.base import flatbuffer
from micronpu.container.digest import PREFIX
from micronpu.program.pte import IDENTIFIER, read_pte, whole
from micronpu.upstream.pte import (
    BackendDelegate,
    BackendDelegateDataReference,
    DataLocation,
    DataSegment,
    ExecutionPlan,
    NamedData,
    Program,
    SubsegmentOffsets,
)

_ALIGNMENT = 128
"""Segment alignment of ExecuTorch."""


def strip(data: bytes, *, name: str = "The program") -> bytes:
    """Return the program for the board.

    Args:
        data: a `.pte`.
        name: what to call it in messages.

    Raises:
        PayloadError: not a `.pte`, truncated or damaged.
    """
    summary = read_pte(data, name=name)
    with whole(name):
        program = flatbuffer.root(memoryview(data)[: summary.program_size], IDENTIFIER)
        named = program.vector(Program.NAMED_DATA).tables()
        if not any(entry.string(NamedData.KEY).startswith(PREFIX) for entry in named):
            return data
        return _strip(data, summary.program_size)


def _strip(data: bytes, program_size: int) -> bytes:
    image = bytearray(memoryview(data)[:program_size])
    program = flatbuffer.root(memoryview(data)[:program_size], IDENTIFIER)
    base = struct.unpack_from("<Q", data, 24)[0]
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
        body += bytes(-len(body) % _ALIGNMENT)
        _write(image, "<Q", table.offset(DataSegment.OFFSET), offset, len(body))
        body += memoryview(data)[base + offset : base + offset + size]
    _keep(image, segments, stay)
    new_base = base if body else 0
    struct.pack_into("<QQ", image, 24, new_base, len(body))
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
