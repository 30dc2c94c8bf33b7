"""Write flatbuffers from nested tables, or from dictionaries and lists by a schema, without generated classes."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from micronpu.upstream.pte import Field, Schema

_CODES = {
    "Bool": "?",
    "Int8": "b",
    "Uint8": "B",
    "Int32": "i",
    "Uint32": "I",
    "Int64": "q",
    "Uint64": "Q",
    "Float64": "d",
}
"""`struct` codes by flatbuffers' names of numbers."""
_OFFSET = struct.Struct("<I")
_ONE = {kind: struct.Struct(f"<{code}") for kind, code in _CODES.items()}


class Number(NamedTuple):
    """A number field, of the kind "Bool", "Int32", "Uint8" and so on; the file omits it if it has its default."""

    kind: str
    value: Any
    default: Any = 0


class Vector(NamedTuple):
    """A vector of numbers of a kind; of "tables", each a `Fields`; or of "bytes", aligned to ``alignment``."""

    kind: str
    items: Any
    alignment: int = 1


Fields: TypeAlias = dict[int, Any]
"""The fields of a table by number, in the order in which their referenced objects are written.

A field is a number, a text, a table, a vector, or the position of an object written earlier."""


class FlatbufferWriter:
    """Write a flatbuffer from its end to its start, with the same bytes as the library's Python or C++ code.

    A position is the number of bytes from the start of an object to the end of the file.

    Args:
        cpp: sort the fields of a table by size, last first within a size, and share field layouts only between tables
            of equal size, like generated C++ code; else keep the given order, and share all layouts.
    """

    def __init__(self, *, cpp: bool = False) -> None:
        self._cpp = cpp
        self._chunks: list[bytes] = []  # the last one is first in the file
        self._size, self._alignment = 0, 1
        self._layouts: dict[bytes, int] = {}

    def table(self, fields: Fields) -> int:
        """Write a table after the objects it references; return its position."""
        points = {slot: self._write(f) for slot, f in fields.items() if not isinstance(f, Number)}
        start, places = self._size, dict[int, int]()
        for slot in sorted(fields, key=lambda slot: (-_size(fields[slot]), -slot)) if self._cpp else fields:
            content = fields[slot]
            if not isinstance(content, Number):
                self._point(points[slot])
            elif content.value == content.default:
                continue
            else:
                form = _ONE[content.kind]
                self._pad(form.size)
                self._push(form.pack(content.value))
            places[slot] = self._size
        self._pad(4)
        position, count = self._size + 4, max(places, default=-1) + 1
        offsets = [position - places[slot] if slot in places else 0 for slot in range(count)]
        layout = struct.pack(f"<{count + 2}H", 2 * count + 4, position - start, *offsets)
        key = layout if self._cpp else layout[4:]
        known = self._layouts.get(key)
        self._push(struct.pack("<i", len(layout) if known is None else known - position))
        if known is None:
            self._push(layout)
            self._layouts[key] = self._size
        return position

    def text(self, text: str) -> int:
        """Write a string; return its position."""
        data = text.encode() + b"\0"
        self._pad(4, len(data))
        self._push(data)
        return self._count(len(data) - 1)

    def offsets(self, positions: Sequence[int]) -> int:
        """Write a vector of references to written objects; return its position."""
        self._pad(4)
        for position in reversed(positions):
            self._point(position)
        return self._count(len(positions))

    def finish(self, root: int, identifier: bytes) -> bytes:
        """Return the file whose root table is at a position."""
        self._pad(self._alignment, _OFFSET.size + len(identifier))
        self._push(identifier)
        self._point(root)
        return b"".join(reversed(self._chunks))

    def _write(self, content: Any) -> int:
        if isinstance(content, int):
            return content
        if isinstance(content, str):
            return self.text(content)
        if isinstance(content, dict):
            return self.table(content)
        items = content.items
        if content.kind == "tables":
            return self.offsets([self.table(item) for item in items])
        is_blob = content.kind == "bytes"
        data = bytes(items) if is_blob else struct.pack(f"<{len(items)}{_CODES[content.kind]}", *items)
        self._pad(4, len(data))
        self._pad(content.alignment if is_blob else _ONE[content.kind].size, len(data))
        self._push(data)
        return self._count(len(items))

    def _count(self, length: int) -> int:
        self._push(_OFFSET.pack(length))
        return self._size

    def _point(self, position: int) -> None:
        self._pad(4)
        self._push(_OFFSET.pack(self._size - position + 4))

    def _pad(self, alignment: int, further: int = 0) -> None:
        """Add zeros, so that ``alignment`` holds after ``further`` more bytes."""
        self._alignment = max(self._alignment, alignment)
        if missing := -(self._size + further) % alignment:
            self._push(bytes(missing))

    def _push(self, data: bytes) -> None:
        self._chunks.append(data)
        self._size += len(data)


def _size(content: object) -> int:
    return _ONE[content.kind].size if isinstance(content, Number) else _OFFSET.size


def write(schema: Schema, content: Mapping[str, object]) -> bytes:
    """Return the flatbuffer of a schema's root table.

    Args:
        content: by field name: numbers, text, bytes, dictionaries for tables, lists for vectors, and pairs of a table's
            name and its content for unions. None and missing fields are not written.
    """
    writer = FlatbufferWriter()
    return writer.finish(writer.table(_fields(schema, schema.root, content)), schema.identifier)


def _fields(schema: Schema, table: str, content: Mapping[str, Any]) -> Fields:
    """Return a table by field numbers, in the schema's order."""
    found: Fields = {}
    for name, field in schema.tables[table].items():
        value = content.get(name)
        if value is not None and field.kind == "union":
            member, inner = value
            kind = next(members[member] for members in schema.enums.values() if member in members)
            found |= {field.number - 1: Number("Uint8", kind), field.number: _fields(schema, member, inner)}
        elif value is not None:
            found[field.number] = _value(schema, field, value)
    return found


def _value(schema: Schema, field: Field, value: Any) -> object:
    if isinstance(value, bytes):
        return Vector("bytes", value, field.alignment)
    if field.is_number:
        return (Vector if field.is_vector else Number)(field.kind, value)
    if field.is_vector:
        return Vector("tables", (_fields(schema, field.kind, item) for item in value))  # each is freed once written
    return value if field.kind == "string" else _fields(schema, field.kind, value)
