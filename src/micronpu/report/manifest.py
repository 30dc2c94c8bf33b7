"""The manifest beside a program, which records how to rebuild the same bytes."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from micronpu.base.arguments import check_type
from micronpu.base.errors import FileError
from micronpu.base.files import check_name, read_file, write_file
from micronpu.base.parsing import parse_json
from micronpu.report.basis import Basis
from micronpu.report.codec import DecodeError, decode, encode

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
        data = read_file(path, "The manifest")
        try:
            found = parse_json(data.decode())
        except ValueError as error:
            raise FileError(f"{path} is no manifest: it is not JSON.", hint=_WRITE_ONE) from error
        if not is_manifest(found):
            raise FileError(f'{path} is no manifest: it has no "format": "{FORMAT}".', hint=_WRITE_ONE)
        if found.get("version") != VERSION:
            raise FileError(
                f"{path} is a manifest of version {found.get('version')!r}, but this micronpu reads version {VERSION}.",
                hint="the micronpu that wrote it, or compile the model again",
            )
        try:
            return decode(cls, found)
        except DecodeError as error:
            raise FileError(f"{path} is a damaged manifest: {error}.", hint=_WRITE_ONE) from error

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


def is_manifest(data: object) -> bool:
    """Return True if parsed JSON is a manifest."""
    return isinstance(data, Mapping) and data.get("format") == FORMAT
