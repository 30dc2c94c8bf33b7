"""Programs for commands that take one: read from a file, or compiled from the model that the argument names."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from pathlib import Path

import micronpu
from micronpu.base.errors import FileError, ModelError, OptionError
from micronpu.base.files import check_name, read_file
from micronpu.cli import console
from micronpu.cli.named_models import is_named

_MODEL = re.compile(r"\.py(?::\w+)?$|\.(?:onnx|pt2)$|\.(?:onnx|tflite):", re.IGNORECASE)
_OF_VELA = b"ethos-u"
"""Name of the operator in Vela's files, which are programs."""


def is_model(path: Path) -> bool:
    """Return True for an argument that names a model, not a program."""
    if path.suffix.lower() == ".tflite":
        return path.is_file() and _OF_VELA not in read_file(path)
    return is_named(str(path)) or _MODEL.search(str(path)) is not None


def c_name(path: Path) -> str:
    """Return the name of a program or model in C: that of its file, or of its function."""
    stem = path.stem if not is_model(path) or ":" not in path.name else path.name.rpartition(":")[2]
    return re.sub(r"\W", "_", stem, flags=re.ASCII)


def read_program(path: Path) -> bytes:
    """Read a program; a model is refused, and a folder, such as one of `micronpu deploy`, with the program in it."""
    if is_model(path):
        hint = f"micronpu compile {path} -t TARGET -o {c_name(path)}.pte, and then {c_name(path)}.pte"
        raise FileError(f"{path} is a model, and a compiled program is expected.", hint=hint)
    if (first := min(check_name(path).glob("*.pte"), default=None)) is None:
        return read_file(path)
    built = f"; its firmware, `micronpu board build {path}`" if (path / "CMakeLists.txt").is_file() else ""
    raise FileError(f"{path} is a folder, and a program is expected.", hint=f"{first}{built}")


def program_of(path: Path, target: str | None) -> tuple[bytes, Mapping[str, bytes]]:
    """Return a program and the data files that belong to it; a model is compiled with the default options."""
    if not is_model(path):
        return read_program(path), beside(path)
    from micronpu.cli.files import load_calibration, load_with
    from micronpu.report.warnings import AccuracyWarning

    longer = f"micronpu compile {path} -t {target or 'TARGET'} --calibration DATA -o net.pte, and then net.pte"
    if not target:
        raise OptionError(f"{path} is a model, and it is not known what to compile it for.", hint="--for TARGET")
    with console.progress() as callback, warnings.catch_warnings():
        loaded = load_with(None, str(path), callback)
        if not loaded.is_quantized and (loaded.file is None or not loaded.file.has("calibration")):
            why = "there is no calibration data" if loaded.file is None else "its file has no function `calibration`"
            raise ModelError(f"{path} is a float model, and {why}.", hint=longer)
        warnings.simplefilter("ignore", AccuracyWarning)  # printed below
        data = None if loaded.is_quantized else load_calibration(None, loaded)
        program = micronpu.compile(loaded.module, loaded.examples, target, calibration=data, callback=callback)
    console.warn(program.report.warnings)
    console.say(f"Compiled {path}: {program.report.summary()}.", to=console.errors())
    return program.buffer, program.data_files


def beside(program: Path) -> dict[str, bytes]:
    """Return the data files (.ptd) that the compiler wrote beside a program."""
    return {path.name: read_file(path) for path in sorted(program.parent.glob("*.ptd"))} if program.is_file() else {}
