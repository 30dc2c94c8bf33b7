"""Metadata of model files: names, labels and normalization.

LiteRT: the buffer `TFLITE_METADATA` is a flatbuffer of metadata_schema.fbs (tflite-support), and the files that it
names are in a ZIP archive behind the model. ONNX: `metadata_props`, of which the exporters of detectors use "names".
Nothing here can make a model unreadable: what is damaged is left out, with a note.
"""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

from micronpu.base import flatbuffer
from micronpu.base.errors import reason
from micronpu.base.flatbuffer import Table
from micronpu.base.parsing import parse_json
from micronpu.program.file_facts import FileFacts, Normalization, clean, labels_of, normalization_of

BUFFER = "TFLITE_METADATA"
_MAX_BYTES = 1 << 20
_MAX_TABLES = 256
_LABELS = (2, 3)
"""`AssociatedFileType`: labels of an axis, labels of values."""
_NORMALIZATION = 1
"""`ProcessUnitOptions`: NormalizationOptions."""
_KEYS = ("names", "labels", "classes", "class_names")
_ITEM = re.compile(r"""\s*(\d{1,6})\s*:\s*(?:'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)")\s*(?:,|$)""")


def of_litert(metadata: bytes, data: bytes, facts: FileFacts) -> FileFacts:
    """Return the facts with those of a LiteRT file's metadata."""
    if not metadata:
        return facts
    try:
        model = flatbuffer.root(metadata, b"M001")
        graph = next(_tables(model, 3), None)
        if graph is None:
            return facts
        inputs, outputs = list(_tables(graph, 2)), list(_tables(graph, 3))
        holders = [*((part, 6) for part in outputs), (graph, 4), (model, 6)]
        listed = (file for part, number in holders for file in _tables(part, number))
        files = [file.string(0) for file in listed if file.integer(2, "<b") in _LABELS]
        return replace(
            facts,
            inputs=_named(facts.inputs, inputs),
            outputs=_named(facts.outputs, outputs),
            normalization={i: own for i, part in enumerate(inputs) if (own := _normalization(part)) is not None},
            labels=_labels(data, files[0]) if files else (),
        )
    except Exception as error:  # zipfile and its decompressors raise many kinds
        return _without(facts, error)


def of_onnx(properties: Sequence[tuple[str, str]], facts: FileFacts) -> FileFacts:
    """Return the facts with the labels of an ONNX file's properties: a list, or numbers with labels."""
    for key, text in properties:
        if key.lower() in _KEYS and len(text) <= _MAX_BYTES:
            try:
                return replace(facts, labels=labels_of(_listed(text)))
            except ValueError as error:
                return _without(facts, error)
    return facts


def _without(facts: FileFacts, error: Exception) -> FileFacts:
    what = reason(error)
    return replace(facts, notes=(f"Labels in the metadata of the file are left out: {clean(what)}.",))


def _listed(text: str) -> list[str]:
    if text.lstrip().startswith("{"):
        body, found, place = text.strip()[1:-1].rstrip(), dict[int, str](), 0
        while place < len(body) and (item := _ITEM.match(body, place)) is not None:
            found[int(item[1])] = re.sub(r"\\(.)", r"\1", item[2] if item[2] is not None else item[3])
            place = item.end()
        if place < len(body) or sorted(found) != list(range(len(found))):
            raise ValueError("the names are not numbered from 0")
        return [found[i] for i in range(len(found))]
    content: object = parse_json(text) if text.lstrip().startswith("[") else re.split(r"\s*[,\n]\s*", text.strip())
    if not isinstance(content, list) or not all(isinstance(one, str) for one in content):
        raise ValueError("the names are no list of texts")
    return content


def _named(names: tuple[str, ...], parts: Sequence[Table]) -> tuple[str, ...]:
    """Return the names of tensors, in the metadata's words where it has any."""
    own = [clean(part.string(0)) for part in parts[: len(names)]]
    return tuple(other or name for name, other in zip(names, [*own, *[""] * len(names)], strict=False))


def _tables(part: Table, number: int) -> Iterator[Table]:
    """Yield the first tables of a field: lists may share tables, so that their product has no limit in the file."""
    return islice(part.vector(number).tables(), _MAX_TABLES)


def _normalization(part: Table) -> Normalization | None:
    for unit in _tables(part, 4):
        options = unit.table(1)
        if unit.integer(0, "<B") == _NORMALIZATION and options is not None:
            return normalization_of(options.vector(0).integers("<f"), options.vector(1).integers("<f"))
    return None


def _labels(data: bytes, name: str) -> tuple[str, ...]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive, archive.open(name) as file:
        content = file.read(_MAX_BYTES + 1)
    if len(content) > _MAX_BYTES:
        raise ValueError(f"the label file has more than {_MAX_BYTES:,} bytes")
    return labels_of(content.decode("utf-8", "replace").rstrip("\r\n").split("\n"))
