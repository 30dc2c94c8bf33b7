"""Takes out of a `.pte` what only a laptop needs: the integer graphs that the host's plug-in runs, and notes of ours.

They travel as named data with keys of ours, as does the digest of the whole file.  Their entries and segments are cut
out; what remains moves together, and the numbers that point to segments follow.  Nothing else of the file is touched,
so that the board computes from the very bytes that the host has checked.
"""

from __future__ import annotations

import struct

from micronpu.base import flatbuffer
from micronpu.base.errors import PayloadError
from micronpu.container.digest import PREFIX
from micronpu.program.pte import read_pte

_IDENTIFIER = b"ET12"
_ALIGNMENT = 128
"""ExecuTorch's own alignment of segments."""


def strip(data: bytes, *, name: str = "The program") -> bytes:
    """The program for the board.

    Args:
        data: a `.pte`.
        name: what to call it in messages.

    Raises:
        PayloadError: no `.pte`, truncated or damaged.
    """
    summary = read_pte(data, name=name)
    try:
        program = flatbuffer.root(memoryview(data)[: summary.program_size], _IDENTIFIER)
        if not any(entry.string(0).startswith(PREFIX) for entry in program.vector(7).tables()):
            return data
        return _strip(data, summary.program_size)
    except flatbuffer.CorruptFlatbufferError as error:
        raise PayloadError(
            f"{name} is a damaged ExecuTorch program: {error}.", hint="copy or export the file again"
        ) from error


def _strip(data: bytes, program_size: int) -> bytes:
    image = bytearray(memoryview(data)[:program_size])
    program = flatbuffer.root(memoryview(data)[:program_size], _IDENTIFIER)
    base = struct.unpack_from("<Q", data, 24)[0]
    segments, named = program.vector(4), program.vector(7)
    entries = list(named.tables())
    kept = [e for e in entries if not e.string(0).startswith(PREFIX)]
    dropped = {e.integer(1, "<I") for e in entries} - {e.integer(1, "<I") for e in kept}
    dropped -= {index for index, _ in _references(program)}
    stay = [i for i in range(segments.length) if i not in dropped]
    moved = {old: new for new, old in enumerate(stay)}
    for entry in entries:
        if entry not in kept:
            _blank(image, entry)
    _keep(image, named, [entries.index(e) for e in kept])
    for index, position in [*_references(program), *((e.integer(1, "<I"), e.offset(1)) for e in kept)]:
        _write(image, "<I", position, index, moved[index])
    body = bytearray()
    for index in stay:
        table = segments.table(index)
        offset, size = table.integer(0, "<Q"), table.integer(1, "<Q")
        body += bytes(-len(body) % _ALIGNMENT)
        _write(image, "<Q", table.offset(0), offset, len(body))
        body += memoryview(data)[base + offset : base + offset + size]
    _keep(image, segments, stay)
    new_base = base if body else 0
    struct.pack_into("<QQ", image, 24, new_base, len(body))
    return b"".join((image, bytes(base - program_size), body) if body else (image,))


def _references(program: flatbuffer.Table) -> list[tuple[int, int]]:
    """Numbers of segments that something other than named data points to, and where the number stands (0: nowhere)."""
    found = []
    # Program: constant_segment 5, mutable_data_segments 6; SubsegmentOffsets.segment_index 0.
    for table in (program.table(5), *program.vector(6).tables()):
        if table is not None:
            found.append((table.integer(0, "<I"), table.offset(0)))
    for plan in program.vector(1).tables():
        for delegate in plan.vector(7).tables():
            where = delegate.table(1)
            if where is not None and where.integer(0, "<b") == 1:
                found.append((where.integer(1, "<I"), where.offset(1)))
    return found


def _write(image: bytearray, format_: str, position: int, old: int, new: int) -> None:
    """A number only ever becomes smaller, so that one that is left out because it is zero stays zero."""
    if position:
        struct.pack_into(format_, image, position, new)
    elif old != new:
        raise flatbuffer.CorruptFlatbufferError("a number of a segment is missing")


def _keep(image: bytearray, vector: flatbuffer.Vector, indices: list[int]) -> None:
    """Shortens a vector of tables to some of its elements, in order."""
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
    """Overwrites the key of an entry that nothing points to any more."""
    key = entry.vector(0)
    image[key.start : key.start + key.length] = bytes(key.length)
