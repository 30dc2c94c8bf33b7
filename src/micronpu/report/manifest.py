"""Inputs that determine the bytes of a program, and the manifest beside it, which records how to rebuild the bytes."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path

from micronpu.base.arguments import check_type
from micronpu.base.errors import FileError
from micronpu.base.files import check_name, read_file, write_file
from micronpu.base.texts import plural
from micronpu.report.codec import decode_text, encode

WHOLE = ""
"""Key of a part that is known only by its digest."""
_MOST = 4
"""Maximum number of parts that a sentence names."""


@dataclass(frozen=True)
class Basis:
    """Inputs that determine the bytes of a program, each with its digest or value.

    Attributes:
        model: digests, the first 16 digits of a SHA-256 in hexadecimal: of the exported graph, of the example inputs,
            and of each weight by its name.
        data: digests of the calibration data, one per sample or block of samples in order.
        options: options of the compilation, value as JSON by name.
        tools: versions by name.
        machine: system, processor and its instructions, threads. Bytes depend on them only in quantization-aware
            training; see docs/stability.md.
    """

    model: Mapping[str, str] = field(default_factory=dict)
    data: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    tools: Mapping[str, str] = field(default_factory=dict)
    machine: Mapping[str, str] = field(default_factory=dict)

    def hashes(self) -> dict[str, str]:
        """Return the SHA-256 of each field in hexadecimal, by its name."""
        return {f.name: _digest(getattr(self, f.name)) for f in fields(self)}

    @classmethod
    def of_hashes(cls, hashes: Mapping[str, str]) -> Basis | None:
        """Return a basis from `hashes`, which do not say in which part two programs differ; None if one is missing."""
        names = [f.name for f in fields(cls)]
        if not all(name in hashes for name in names):
            return None
        return cls(**{name: {WHOLE: hashes[name]} for name in names})

    @property
    def is_whole(self) -> bool:
        """True if only its digests are known."""
        return set(self.model) == {WHOLE}


@dataclass(frozen=True)
class Cause:
    """An input that differs between two programs.

    Attributes:
        name: of the field of `Basis`.
        parts: names of its parts that differ; () if unknown.
        before, after: values of the parts, in their order; "" if there is no such part.
    """

    name: str
    parts: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()

    def __str__(self) -> str:
        what = "another one, and a manifest of each would say where"
        if self.parts:
            entries = [_change(self.name, *values) for values in zip(self.parts, self.before, self.after, strict=True)]
            more = len(entries) - _MOST
            what = ", ".join(entries[:_MOST]) + (f" and {plural(more, 'other part')}" if more > 0 else "")
        return f"{self.name.capitalize()}: {what}."


def causes(before: Basis, after: Basis) -> tuple[Cause, ...]:
    """Return the differences between the bases of two programs, in the order of the fields."""
    coarse, found = before.is_whole or after.is_whole, []
    for own in fields(Basis):
        first, second = getattr(before, own.name), getattr(after, own.name)
        parts = [name for name in dict.fromkeys((*first, *second)) if first.get(name) != second.get(name)]
        if coarse and _whole(first) != _whole(second):
            found.append(Cause(own.name))
        elif parts and not coarse:
            values = [tuple(entries.get(name, "") for name in parts) for entries in (first, second)]
            found.append(Cause(own.name, tuple(parts), *values))
    return tuple(found)


def _whole(entries: Mapping[str, str]) -> str:
    return entries[WHOLE] if set(entries) == {WHOLE} else _digest(entries)


def _digest(entries: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps(entries, sort_keys=True).encode()).hexdigest()


def _change(name: str, part: str, before: str, after: str) -> str:
    """Return the text for a part that differs; digests are not shown."""
    if name in ("model", "data"):
        return f"{part} ({'new' if not before else 'gone' if not after else 'changed'})"
    return f"{part} {before or 'not there'} -> {after or 'not there'}"


FORMAT, VERSION = "micronpu manifest", 1
SUFFIX = ".manifest.json"
_WRITE_ONE = "micronpu compile --manifest, or program.save(path, manifest=True)"


@dataclass(frozen=True)
class Sources:
    """Inputs on the command line; paths are relative to the folder of the manifest.

    Attributes:
        model: argument of `micronpu compile`; "" for a program that was compiled from Python.
        calibration: argument for the data; "" without data.
        images: the folder of pictures; "" for none.
        normalize: of pictures; "" for the default.
        libraries: Python files that register operators.
        chip: the chip file, if the target is one; "" for a shipped target.
    """

    model: str = ""
    calibration: str = ""
    images: str = ""
    normalize: str = ""
    libraries: tuple[str, ...] = ()
    chip: str = ""


@dataclass(frozen=True)
class Manifest:
    """A program's files and the inputs of its compilation.

    Attributes:
        program: name of its file.
        bytes: of the ``.pte``.
        hashes: SHA-256 in hexadecimal of each file of the program by its name.
        basis: inputs that determine the bytes.
        sources: inputs on the command line.
    """

    program: str
    bytes: int
    hashes: Mapping[str, str]
    basis: Basis
    sources: Sources = field(default_factory=Sources)

    @staticmethod
    def beside(program: str | os.PathLike[str]) -> Path:
        """Return the path of a program's manifest: ``net.manifest.json`` beside ``net.pte``."""
        path = check_name(program)
        return path.with_name(path.stem + SUFFIX)

    def to_json(self) -> str:
        return json.dumps({"format": FORMAT, "version": VERSION, **encode(self)}, indent=2)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the manifest.

        Raises:
            FileError: it cannot be written.
        """
        return write_file(path, (self.to_json() + "\n").encode())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Manifest:
        """Read the result of `save`.

        Raises:
            FileError: it cannot be read, is no manifest, or has another version.
        """
        return decode_text(cls, read_file(path, "The manifest"), (FORMAT, VERSION), str(path), _WRITE_ONE)

    def check_program(self, path: str | os.PathLike[str]) -> None:
        """Refuse a program that does not belong to the manifest.

        Raises:
            FileError: it cannot be read, or has other bytes.
        """
        check_type("path", path, str, os.PathLike)
        name = check_name(path)
        if hashlib.sha256(read_file(name)).hexdigest() != self.hashes.get(self.program):
            raise FileError(
                f"{name} is not the program that {self.beside(name)} was written for: its bytes are others.",
                hint="compile it again with --manifest",
            )
