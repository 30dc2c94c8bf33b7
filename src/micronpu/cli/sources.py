"""Paths of the model and its data in a manifest: relative to the manifest's folder when stored."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from micronpu.base import timing
from micronpu.base.errors import OptionError
from micronpu.base.files import check_name
from micronpu.cli.named_models import is_named
from micronpu.report.manifest import Sources

if TYPE_CHECKING:
    from micronpu.cli.files import CalibrationInputs, Model
    from micronpu.cli.pictures import Pictures

_PYTHON, _CHIP = ".py", ".toml"


@timing.step("load")
def load_data(calibration: str | None, pictures: Pictures, loaded: Model) -> CalibrationInputs:
    """Return the calibration inputs that the options name.

    Raises:
        ModelError, FileError: they name none, or cannot be read.
    """
    from micronpu.cli.files import CalibrationInputs, load_calibration

    if pictures.images is not None:
        return CalibrationInputs(str(pictures.images), lambda: pictures.load(loaded.examples))
    return load_calibration(calibration, loaded)


def sources_of(
    model: str, data: CalibrationInputs, pictures: Pictures, libraries: Sequence[str] | None, target: str, program: Path
) -> Sources:
    """Return the paths of the command line for the manifest beside a program."""

    def seen(text: str) -> str:
        """Make a path relative to the manifest's folder, unless it is on another drive."""
        if not text or is_named(text):
            return text
        path, colon, name = _parts(text)
        try:
            return Path(os.path.relpath(path, program.parent)).as_posix() + colon + name
        except ValueError:
            return text

    return Sources(
        seen(model),
        seen(data.name),
        seen(str(pictures.images or "")),
        pictures.normalize or "",
        tuple(map(seen, libraries or ())),
        seen(target) if _CHIP in target else "",
    )


def found_sources(
    sources: Sources, manifest: Path, model: str | None, calibration: str | None, libraries: Sequence[str] | None
) -> Sources:
    """Return the sources of a manifest, relative to the current folder.

    Args:
        model, calibration, libraries: replacements for those of the manifest, relative to the current folder.

    Raises:
        OptionError: the manifest names Python files that the command line does not name, or no model at all.
        FileError: a name cannot be a path.
    """

    def seen(text: str) -> str:
        if not text or is_named(text):
            return text
        path, colon, name = _parts(text)
        return os.path.normpath(manifest.parent / path) + colon + name

    found = replace(
        sources,
        model=model or seen(sources.model),
        calibration=calibration or seen(sources.calibration),
        images="" if calibration else seen(sources.images),
        libraries=tuple(libraries or map(seen, sources.libraries)),
        chip=seen(sources.chip),
    )
    if not found.model:
        raise OptionError(
            f"{manifest} was written by a Python program, and does not say where the model is.",
            hint=f"micronpu reproduce {manifest} path/to/file.py:function --calibration DATA",
        )
    asked = {_file(text) for text in (model or "", calibration or "", *(libraries or ()))}
    named = [text for text in (found.model, found.calibration, *found.libraries) if text and _is_python(text)]
    if others := [text for text in named if _file(text) not in asked]:
        option = "--calibration" if others[0] == found.calibration else "--library"
        give = f" {others[0]}" if others[0] == found.model else f" {found.model} {option} {others[0]}"
        raise OptionError(
            f"{manifest} names the Python file {_parts(others[0])[0]}, which would be run, and a manifest may be "
            "anybody's.",
            hint=f"micronpu reproduce {manifest}{give}, if you know that file",
        )
    return found


def _parts(text: str) -> tuple[str, str, str]:
    """Split a model or data argument into path, colon and the rest."""
    path, colon, name = text.rpartition(":")
    return (path, colon, name) if colon and path.endswith((_PYTHON, _CHIP, ".npz")) else (text, "", "")


def _file(text: str) -> str:
    return os.path.realpath(check_name(_parts(text)[0])) if text else ""


def _is_python(text: str) -> bool:
    return not is_named(text) and _parts(text)[0].endswith(_PYTHON)
