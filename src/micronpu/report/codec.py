"""Conversion of dataclasses to JSON and back; `python -m tests.report_schema` derives the schema from the same classes.

A dataclass is an object with its fields by name.  Three things in its definition change that: a field made with
`named` has another key, one made with `flat` adds its own keys to the object, and properties listed in ``ALSO`` are
written beside the fields as a convenience, and not read back.
"""

from __future__ import annotations

import dataclasses
import math
import re
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from micronpu.base.docstrings import docstring
from micronpu.base.errors import FileError, InternalError
from micronpu.base.parsing import parse_json

KEY, FLAT = "json key", "json flat"
"""Keys of the metadata of fields, see `named` and `flat`."""
NOT_FINITE = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}
"""Representation of floats that JSON cannot express."""
SIMPLE = {str: "string", int: "integer", bool: "boolean"}
"""JSON type by Python type."""
_KNOWN: dict[Any, tuple[tuple[dataclasses.Field[Any], Any], ...]] = {}

Value = TypeVar("Value")


class DecodeError(ValueError):
    """Data are invalid; the message is a clause with the place and the reason."""


def named(key: str) -> dict[str, str]:
    """Return metadata of a field whose JSON key differs from its name."""
    return {KEY: key}


def flat(*names: str) -> dict[str, tuple[str, ...]]:
    """Return metadata of a field whose own fields of these names are written directly into the object."""
    return {FLAT: names}


def encode(value: object) -> Any:
    """Return the value as types that `json.dumps` accepts."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        found: dict[str, object] = {}
        for field in dataclasses.fields(value):
            own = getattr(value, field.name)
            if FLAT in field.metadata:
                found |= {name: encode(getattr(own, name)) for name in field.metadata[FLAT]}
            else:
                found[field.metadata.get(KEY, field.name)] = encode(own)
        return found | {name: encode(getattr(value, name)) for name in also(type(value))}
    if isinstance(value, Mapping):
        return {str(key): encode(own) for key, own in value.items()}
    if isinstance(value, tuple | list):
        return [encode(own) for own in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    return value


def decode(kind: type[Value], data: object) -> Value:
    """Return a value of a class from the result of `encode`; unknown keys are ignored.

    Raises:
        DecodeError: something is missing or of another type.
    """
    result: Value = _decode(kind, data, "")
    return result


def decode_text(kind: type[Value], text: str | bytes, form: tuple[str, int], name: str, hint: str) -> Value:
    """Return a value of a class from a user's JSON text.

    Args:
        form: name and version of the format, such as "micronpu report".
        name: of the text in messages.
        hint: what writes such a text.
    """
    what = form[0].rpartition(" ")[2]
    try:
        data = parse_json(text)
    except ValueError as error:
        raise FileError(f"{name} is not a {what}: it is not JSON ({error}).", hint=hint) from error
    if not isinstance(data, dict) or data.get("format") != form[0]:
        raise FileError(f'{name} is not a {what}: it has no "format": "{form[0]}".', hint=hint)
    if data.get("version") != form[1]:
        raise FileError(
            f"{name} is a {what} of version {data.get('version')!r}, but this micronpu reads version {form[1]}.",
            hint="the micronpu that wrote it, or compile the model again",
        )
    try:
        return decode(kind, data)
    except DecodeError as error:
        raise FileError(f"{name} is a damaged {what}: {error}.", hint=hint) from error


# ---------------------------------------------------------------- reading


def _decode(kind: object, data: object, where: str) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        (only,) = (a for a in arguments if a is not type(None))
        return None if data is None else _decode(only, data, where)
    if dataclasses.is_dataclass(kind):
        return _decode_object(typing.cast(type[Any], kind), _of(dict, data, where, "an object"), where)
    if origin is tuple:
        values = _of(list, data, where, "a list")
        if arguments[-1] is not Ellipsis and len(values) != len(arguments):
            raise DecodeError(f"{where or 'it'} has {len(values)} entries instead of {len(arguments)}")
        kinds = arguments if arguments[-1] is not Ellipsis else (arguments[0],) * len(values)
        return tuple(_decode(k, v, f"{where}[{i}]") for i, (k, v) in enumerate(zip(kinds, values, strict=True)))
    if origin is Mapping:
        entries = _of(dict, data, where, "an object")
        return {key: _decode(arguments[1], value, _path(where, key)) for key, value in entries.items()}
    if kind is float:
        if isinstance(data, str) and data in NOT_FINITE:
            return NOT_FINITE[data]
        return float(_of((int, float), data, where, "a number"))
    if kind in SIMPLE:
        return _of(kind, data, where, f"{'an' if kind is int else 'a'} {SIMPLE[kind]}")
    raise InternalError(f"{kind} has no form in JSON.")


def _of(kind: Any, data: object, where: str, what: str) -> Any:
    if not isinstance(data, kind) or (isinstance(data, bool) and kind is not bool):
        shown = "null" if data is None else f"{str(data)[:40]!r}" if isinstance(data, str) else type(data).__name__
        raise DecodeError(f"{where or 'it'} must be {what}, but is {shown}")
    return data


def _decode_object(kind: type[object], data: Mapping[str, object], where: str) -> Any:
    given: dict[str, object] = {}
    for field, hint in fields_of(kind):
        if FLAT in field.metadata:
            own = {name: data[name] for name in field.metadata[FLAT] if name in data}
            given[field.name] = _decode(hint, own, where)
            continue
        key = field.metadata.get(KEY, field.name)
        if key in data:
            given[field.name] = _decode(hint, data[key], _path(where, key))
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise DecodeError(f"{_path(where, key)} is missing")
    return kind(**given)


def _path(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key


# ---------------------------------------------------------------- documentation of classes


def attribute_texts(kind: type[object]) -> dict[str, str]:
    """Return the docstring's text for each attribute, on one line; several attributes may share one text."""
    section = docstring(kind).partition("Attributes:\n")[2].split("\n\n")[0]
    parts = re.split(r"^    (\w+(?:, \w+)*): ", section, flags=re.MULTILINE)[1:]
    pairs = zip(parts[::2], parts[1::2], strict=True)
    return {name: " ".join(text.split()) for names, text in pairs for name in names.split(", ")}


def also(kind: type[object]) -> tuple[str, ...]:
    """Return names of the properties that are written beside the fields."""
    names: tuple[str, ...] = getattr(kind, "ALSO", ())
    return names


def fields_of(kind: Any) -> tuple[tuple[dataclasses.Field[Any], object], ...]:
    """Return the fields of a dataclass with their types."""
    if kind not in _KNOWN:
        hints = typing.get_type_hints(kind)
        _KNOWN[kind] = tuple((field, hints[field.name]) for field in dataclasses.fields(kind))
    return _KNOWN[kind]
