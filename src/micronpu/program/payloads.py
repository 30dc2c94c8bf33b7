"""A program with other payloads in the place of its delegates', for runners that read what ours do not hold."""

from __future__ import annotations

import struct
from collections.abc import Callable

from micronpu.base import flatbuffer
from micronpu.program.digest import with_digest_of
from micronpu.program.pte import IDENTIFIER, extents, read_pte
from micronpu.upstream.pte import BackendDelegateInlineData, Program

_ALIGNMENT, _SEGMENTS = 16, 128
_SIZES = 16
"""Where the header says how long the flatbuffer is, and where the segments begin."""


def with_payloads(data: bytes, change: Callable[[bytes], bytes], name: str = "The program") -> bytes:
    """The same file with each payload as a function gives it, and a right digest where it had one.

    What changes is written behind the flatbuffer, and what was there before stays as dead bytes.

    Raises:
        PayloadError: it is damaged.
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
            struct.pack_into("<I", image, position, len(image) - position)  # counted from where it stands
            image += struct.pack("<I", len(new)) + new
    if len(image) == size:
        return data
    (_, base, _), behind = extents(data, name), data[size:]
    if base:
        moved = len(image) + -len(image) % _SEGMENTS
        struct.pack_into("<QQ", image, _SIZES, len(image), moved)
        behind = bytes(moved - len(image)) + data[base:]
    return with_digest_of(data, bytes(image) + behind, name)
