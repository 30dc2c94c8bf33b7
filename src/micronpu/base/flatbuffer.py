"""A read-only, bounds-checked view of flatbuffers, for the few fields that are needed without a schema library.

`.pte` programs and LiteRT models are both flatbuffers, and both are checked before a C++ library sees them. The
generated readers trust their input; this one raises `CorruptFlatbufferError` for every offset that leaves the buffer.
Format: https://flatbuffers.dev/internals/. Standard library only.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

Buffer = bytes | bytearray | memoryview


class CorruptFlatbufferError(ValueError):
    """An offset or length points outside the buffer. Callers turn it into a `PayloadError` with the file's name."""


def need(holds: object, what: str) -> None:
    """Raise `CorruptFlatbufferError` unless ``holds``."""
    if not holds:
        raise CorruptFlatbufferError(what)


_FORMATS = {f"<{code}": struct.Struct(f"<{code}") for code in "bBhHiIqQfd"}
_READERS = {format_: form.unpack_from for format_, form in _FORMATS.items()}
_OFFSET, _ENTRY = _READERS["<i"], _READERS["<H"]


def _read(format_: str, data: Buffer, position: int) -> int:
    if position >= 0:  # a negative position would count from the end
        try:
            value: int = _READERS[format_](data, position)[0]
            return value
        except struct.error:
            pass
    raise CorruptFlatbufferError(f"offset {position} is outside the {len(data)} bytes")


@dataclass(slots=True)  # frozen ones take three times as long to make
class Vector:
    """A vector field: `length` elements starting at byte `start`."""

    data: Buffer
    start: int
    length: int

    def fits(self, size: int) -> bool:
        """True if elements of `size` bytes are all inside the buffer."""
        return self.start + size * self.length <= len(self.data)

    def table(self, index: int) -> Table:
        """Element `index` of a vector of tables."""
        if not 0 <= index < self.length:
            raise CorruptFlatbufferError(f"element {index} of a vector of {self.length}")
        position = self.start + 4 * index
        return Table(self.data, position + _read("<I", self.data, position))

    def tables(self) -> Iterator[Table]:
        return (self.table(index) for index in range(self.length))

    def strings(self) -> Iterator[str]:
        for index in range(self.length):
            position = self.table(index).position
            size = _read("<I", self.data, position)
            if position + 4 + size > len(self.data):
                raise CorruptFlatbufferError(f"a string of {size} bytes leaves the {len(self.data)} bytes")
            yield bytes(self.data[position + 4 : position + 4 + size]).decode("utf-8", errors="replace")

    def integers(self, format_: str = "<i") -> tuple[int, ...]:
        """All elements of a vector of numbers; `format_` is a `struct` format of one element."""
        if self.start < 0 or not self.fits(_FORMATS[format_].size):
            raise CorruptFlatbufferError(f"a vector of {self.length} elements leaves the {len(self.data)} bytes")
        return struct.unpack_from(f"{format_[:-1]}{self.length}{format_[-1]}", self.data, self.start)


@dataclass(slots=True)
class Table:
    """One table; fields are addressed by their number in the schema (a union takes two: type, value)."""

    data: Buffer
    position: int

    def offset(self, number: int) -> int:
        """Byte position of a field, 0 when it is absent and has its default."""
        data, position, vtable = self.data, self.position, -1
        try:  # inlined `_read`: reading a program makes millions of these calls
            if position >= 0:
                vtable = position - _OFFSET(data, position)[0]
            if vtable >= 0:
                entry = 4 + 2 * number
                if entry + 2 > _ENTRY(data, vtable)[0]:
                    return 0
                offset: int = _ENTRY(data, vtable + entry)[0]
                return position + offset if offset else 0
        except struct.error:
            pass
        raise CorruptFlatbufferError(f"a table at {position} is outside the {len(data)} bytes")

    def fields(self) -> tuple[int, ...]:
        """Numbers of the fields that are present, including unknown ones."""
        size = _read("<H", self.data, self.position - _read("<i", self.data, self.position))
        return tuple(number for number in range((size - 4) // 2) if self.offset(number))

    def integer(self, number: int, format_: str = "<i", default: int = 0) -> int:
        position = self.offset(number)
        return _read(format_, self.data, position) if position else default

    def table(self, number: int) -> Table | None:
        """A table or union value field, None when absent."""
        position = self.offset(number)
        return Table(self.data, position + _read("<I", self.data, position)) if position else None

    def vector(self, number: int) -> Vector:
        """A vector field; an absent one has no elements."""
        position = self.offset(number)
        if not position:
            return Vector(self.data, 0, 0)
        start = position + _read("<I", self.data, position)
        length = _read("<I", self.data, start)
        # Every element takes at least one byte, so a damaged length cannot start a long loop.
        if start + 4 + length > len(self.data):
            raise CorruptFlatbufferError(f"a vector of {length} elements leaves the {len(self.data)} bytes")
        return Vector(self.data, start + 4, length)

    def string(self, number: int) -> str:
        """A string field, empty when absent."""
        vector = self.vector(number)
        return bytes(self.data[vector.start : vector.start + vector.length]).decode("utf-8", errors="replace")


def root(data: Buffer, identifier: bytes) -> Table:
    """Return the root table of a buffer with a four-byte file identifier, such as `b"TFL3"`.

    Raises:
        CorruptFlatbufferError: too short, another identifier, or a root outside the buffer.
    """
    need(len(data) >= 8, f"{len(data)} bytes are too few for a flatbuffer")
    need(bytes(data[4:8]) == identifier, f"its identifier is {bytes(data[4:8])!r}, not {identifier!r}")
    table = Table(data, _read("<I", data, 0))
    _read("<i", data, table.position)
    return table
