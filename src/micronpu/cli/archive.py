"""Reads a saved program, `file.pt2`, without running what somebody may have hidden in it.

torch's own loader runs code out of the file in several ways: a pickle that does not load with ``weights_only=True`` is
loaded without it, native libraries in the archive are loaded, operators are looked up by any dotted name, and symbolic
sizes are evaluated as Python.  None of this is needed for a model of tensors, so that an archive with any of it is
refused before the loader sees it.  What is read is one copy in memory, through torch's own reader of archives.
"""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from micronpu.base.errors import MicroNpuError, ModelError, first_line
from micronpu.base.files import read_file

if TYPE_CHECKING:
    from torch.export import ExportedProgram

_SAVE_AGAIN = "save it again with torch.export.save, with the torch of this environment"
_SAVE_TENSORS = "a program of tensors, saved with torch.export.save; what is more belongs into path/to/file.py:function"
# Operators of graphs, and what torch.export makes of arithmetic with sizes.
_OPERATOR = re.compile(
    r"torch\.ops\.\w+\.\w+(\.\w+)?|torch\._?sym_\w+|math\.\w+"
    r"|_operator\.(add|sub|mul|truediv|floordiv|mod|pow|neg|pos|eq|ne|lt|le|gt|ge|and_|or_|not_|getitem)"
)
_NO_OPERATORS = ("torch.ops.aten.from_file",)  # opens any file
_EXPRESSION = re.compile(r"(\w|[\s+\-*/(),<>=!&|~%]|(?<=\d)\.(?=\d|\b))*")
_CONTAINERS = frozenset(("builtins.tuple", "builtins.list", "builtins.dict", "collections.OrderedDict"))


class _RefusedError(Exception):
    """What the archive holds, as the end of a sentence."""


def load_archive(path: Path) -> ExportedProgram:
    """The program of a `.pt2`.

    Raises:
        FileError: the file cannot be read.
        ModelError: it is none, is damaged, or holds what would run code while it is loaded.
    """
    data = read_file(path)
    from torch.export.pt2_archive import _package

    try:
        reader = _package.PT2ArchiveReader(io.BytesIO(data))
        names = reader.get_file_names()
        _check(reader, names)
        # Not torch.export.load, which goes on to an older format where this one fails.
        programs = _package.load_pt2(io.BytesIO(data)).exported_programs
        if "model" not in programs:
            raise _RefusedError("no model")
        program: ExportedProgram = programs["model"]
        return program
    except _RefusedError as refused:
        raise ModelError(f"{path} is not loaded, because it holds {refused}.", hint=_SAVE_TENSORS) from None
    except MicroNpuError:
        raise
    except Exception as error:
        raise ModelError(
            f"{path} is no program that torch can load: {first_line(error) or type(error).__name__}.",
            hint=_SAVE_AGAIN,
        ) from error


def _check(reader: Any, names: list[str]) -> None:
    """Refuses an archive of which loading runs code.

    Raises:
        _RefusedError: with what was found.
    """
    from torch.export.pt2_archive import constants as at

    for name in names:
        if name.startswith((at.AOTINDUCTOR_DIR, at.EXECUTORCH_DIR, at.MTIA_DIR)) or name.endswith((".so", ".pyd")):
            raise _RefusedError(f"a compiled library ({name})")
    prefix, suffix = at.MODELS_FILENAME_FORMAT.split("{}")
    pickles = [name for name in names if name.endswith(".pt")]
    for file in (name for name in names if name.startswith(at.MODELS_DIR)):
        model = file[len(prefix) : -len(suffix)]
        pickles.append(at.SAMPLE_INPUTS_FILENAME_FORMAT.format(model))
        for folder, config in (
            (at.WEIGHTS_DIR, at.WEIGHTS_CONFIG_FILENAME_FORMAT),
            (at.CONSTANTS_DIR, at.CONSTANTS_CONFIG_FILENAME_FORMAT),
        ):
            if config.format(model) in names:
                pickles += _pickles_of(json.loads(reader.read_bytes(config.format(model))), folder)
        _check_graph(json.loads(reader.read_bytes(file)))
    for name in dict.fromkeys(pickles):
        _check_pickle(reader.read_bytes(name), name)


def _pickles_of(config: Any, folder: str) -> Iterator[str]:
    """Names of the records that the loader would unpickle."""
    from torch.export.pt2_archive import constants as at

    for payload in config["config"].values():
        name = str(payload["path_name"])
        if name.startswith((at.CUSTOM_OBJ_FILENAME_PREFIX, at.OPAQUE_OBJ_FILENAME_PREFIX)):
            raise _RefusedError(f"an object that is no tensor ({name})")
        if payload["use_pickle"]:
            yield os.path.join(folder, name)


def _check_pickle(data: bytes, name: str) -> None:
    import torch

    if not data:
        return
    try:
        torch.load(io.BytesIO(data), weights_only=True, map_location="meta")
    except Exception as error:
        raise _RefusedError(
            f"a pickle of other things than tensors and numbers ({name}), which could run any code"
        ) from error


def _check_graph(graph: Any) -> None:
    """Looks at every name and expression that the loader would look up or evaluate."""
    stack: list[tuple[str, Any]] = [("", graph)]
    while stack:
        key, value = stack.pop()
        if isinstance(value, dict):
            stack.extend((str(k), v) for k, v in value.items())
        elif isinstance(value, list):
            stack.extend((key, v) for v in value)
        elif not isinstance(value, str):
            continue
        elif key in ("target", "as_operator"):
            if not _OPERATOR.fullmatch(value) or value.startswith(_NO_OPERATORS):
                raise _RefusedError(f"a call of {value!r}, which is no operator of a model")
        elif key == "expr_str":
            if not _EXPRESSION.fullmatch(value) or "__" in value:
                raise _RefusedError(f"the size {value!r}, which is no arithmetic")
        elif key in ("in_spec", "out_spec") and value:
            _check_containers(json.loads(value))


def _check_containers(spec: Any) -> None:
    """Inputs and outputs are tuples, lists and dictionaries; other types name a module that would be imported."""
    stack = [spec]
    while stack:
        value = stack.pop()
        if isinstance(value, list):
            stack.extend(value)
        elif isinstance(value, dict):
            if value.get("type") not in (None, *_CONTAINERS):
                raise _RefusedError(f"inputs or outputs of the type {value['type']}")
            if "__enum__" in str(value.get("context")):
                raise _RefusedError("an enumeration among its inputs or outputs")
            stack.extend(value.get("children_spec", ()))
