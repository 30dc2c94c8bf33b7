"""The JSON schema of reports, made from the classes: `python -m tests.report_schema` writes it into the package."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import types
import typing
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from micronpu.report.codec import FLAT, KEY, NOT_FINITE, SIMPLE, also, attribute_texts, fields_of
from micronpu.report.delegation import DelegationReport

PLACE = Path(str(resources.files("micronpu.report"))) / "schema.json"


def report_schema() -> dict[str, Any]:
    """Of what `DelegationReport.to_json` gives."""
    schema = schema_of(DelegationReport, title=f"{DelegationReport.FORMAT}, version {DelegationReport.VERSION}")
    made = {"format": {"const": DelegationReport.FORMAT}, "version": {"const": DelegationReport.VERSION}}
    schema["properties"] = {**made, **schema["properties"]}
    schema["required"] = ["format", "version", *schema["required"]]
    return schema


def schema_of(kind: type[Any], **about: Any) -> dict[str, Any]:
    """The JSON schema (draft 2020-12) of a class, with the sentences of its doc-string.

    Args:
        about: further entries of the outermost object, such as ``title``.
    """
    definitions: dict[str, Any] = {}
    _schema(kind, definitions)
    own = definitions.pop(kind.__name__)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **about, **own, "$defs": definitions}


def _schema(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        (only,) = (a for a in arguments if a is not type(None))
        return {"anyOf": [_schema(only, definitions), {"type": "null"}]}
    if dataclasses.is_dataclass(kind):
        name = typing.cast(type[Any], kind).__name__
        if name not in definitions:
            definitions[name] = {}
            definitions[name] = _object_schema(typing.cast(type[Any], kind), definitions)
        return {"$ref": f"#/$defs/{name}"}
    if origin is tuple:
        if arguments[-1] is Ellipsis:
            return {"type": "array", "items": _schema(arguments[0], definitions)}
        size = len(arguments)
        entries = [_schema(a, definitions) for a in arguments]
        return {"type": "array", "prefixItems": entries, "minItems": size, "maxItems": size}
    if origin is Mapping:
        return {"type": "object", "additionalProperties": _schema(arguments[1], definitions)}
    if kind is float:
        return {"anyOf": [{"type": "number"}, {"enum": list(NOT_FINITE)}]}
    if kind in SIMPLE:
        return {"type": SIMPLE[kind]}
    raise TypeError(f"{kind} has no form in JSON.")


def _object_schema(kind: type[Any], definitions: dict[str, Any]) -> dict[str, Any]:
    texts = _texts(kind)
    properties: dict[str, Any] = {}
    for field, hint in fields_of(kind):
        if FLAT in field.metadata:
            inner, said = typing.get_type_hints(hint), _texts(hint)
            for name in field.metadata[FLAT]:
                properties[name] = _said(said.get(name, ""), _schema(inner[name], definitions))
        else:
            text = texts.get(field.name, "")
            properties[field.metadata.get(KEY, field.name)] = _said(text, _schema(hint, definitions))
    for name in also(kind):
        getter = getattr(kind, name).fget
        text = (inspect.getdoc(getter) or texts.get(name, "")).split("\n\n")[0]
        properties[name] = _said(" ".join(text.split()), _schema(typing.get_type_hints(getter)["return"], definitions))
    about = " ".join((inspect.getdoc(kind) or "").split("\n\n")[0].split())
    return _said(about, {"type": "object", "properties": properties, "required": list(properties)})


def _texts(kind: type[Any]) -> dict[str, str]:
    """The sentences of a class on its fields: in its doc-string, or beside them."""
    beside = re.findall(r"^    (\w+): [^#\n]*  # (.+)$", inspect.getsource(kind), re.MULTILINE)
    return {name: f"{text}." for name, text in beside} | attribute_texts(kind)


def _said(text: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": text.replace("``", "`"), **schema} if text else schema


if __name__ == "__main__":
    PLACE.write_text(json.dumps(report_schema(), indent=2) + "\n", encoding="utf-8")
