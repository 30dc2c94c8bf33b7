"""Write flatbuffers of a schema from dictionaries and lists."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from micronpu.emit.flatbuffer_tables import Fields, FlatbufferWriter, blob, number, numbers, tables
from micronpu.upstream.pte import Field, Schema


def write(schema: Schema, content: Mapping[str, Any]) -> bytes:
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
            found |= {field.number - 1: number("Uint8", kind), field.number: _fields(schema, member, inner)}
        elif value is not None:
            found[field.number] = _value(schema, field, value)
    return found


def _value(schema: Schema, field: Field, value: Any) -> Any:
    if isinstance(value, bytes):
        return blob(value, field.alignment)
    if field.is_number:
        return numbers(field.kind, value) if field.is_vector else number(field.kind, value)
    if field.is_vector:
        return tables([_fields(schema, field.kind, item) for item in value])
    return value if field.kind == "string" else _fields(schema, field.kind, value)
