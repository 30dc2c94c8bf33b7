"""Read a saved program, `file.pt2`, without running code from it.

torch's own loader runs code out of the file in several ways: names become Python source, a pickle that does not load
with ``weights_only=True`` is loaded without it, native libraries in the archive are loaded, operators are looked up by
any dotted name, and sizes and guards are evaluated as Python.  A model of tensors needs none of this, so an archive
that has any of it is refused before the loader reads it.  The file is read into memory once and parsed with torch's
own archive reader.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from micronpu.base.errors import MicroNpuError, ModelError, first_line
from micronpu.base.files import read_file
from micronpu.cli.archive_calls import RefusedContentError, check_calls, shown
from micronpu.cli.archive_fields import check_fields

if TYPE_CHECKING:
    from torch.export import ExportedProgram

_SAVE_AGAIN = "save it again with torch.export.save, with the torch of this environment"
_SAVE_TENSORS = "a program of tensors, saved with torch.export.save; what is more belongs into path/to/file.py:function"
_MODEL = "model"  # name that torch.export.save gives to its program
_RECORDS = re.compile(
    r"archive_format|archive_version|byteorder|\.data/(version|serialization_id)|version"
    r"|models/model\.json|data/sample_inputs/model\.pt|extra/[\w.\-/]{1,200}"
    r"|data/weights/(weight_\d{1,9}|model\.pt|model_weights_config\.json)"
    r"|data/constants/(tensor_\d{1,9}|model\.pt|model_constants_config\.json)"
)
_EXPANDED = 64 << 20
"""Bytes by which a tensor may exceed its storage, as the result of `expand` does."""
_FORCE = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"


def load_archive(path: Path) -> ExportedProgram:
    """Return the program of a `.pt2`.

    Raises:
        FileError: the file cannot be read.
        ModelError: it is no saved program, is damaged, or would run code while it is loaded.
    """
    data = read_file(path)
    from micronpu.upstream.torch import archive_reader, read_archive

    try:
        reader = archive_reader(io.BytesIO(data))
        _check(reader, len(data))
        with _tensors_only():
            program = read_archive(io.BytesIO(data))[_MODEL]
        _check_sizes(program)
        check_calls(program)
        return program
    except RefusedContentError as refused:
        raise ModelError(f"{path} is not loaded, because it holds {refused}.", hint=_SAVE_TENSORS) from None
    except MicroNpuError:
        raise
    except Exception as error:
        raise ModelError(
            f"{path} is no program that torch can load: {first_line(error) or type(error).__name__}.",
            hint=_SAVE_AGAIN,
        ) from error


@contextlib.contextmanager
def _tensors_only() -> Iterator[None]:
    """Make torch.load read only tensors and numbers, even if its caller passes ``weights_only=False``."""
    before = os.environ.get(_FORCE)
    os.environ[_FORCE] = "1"
    try:
        yield
    finally:
        os.environ.pop(_FORCE)
        if before is not None:
            os.environ[_FORCE] = before


def _check(reader: Any, size: int) -> None:
    """Refuse an archive that runs code when it is loaded, or needs more memory than the file has bytes.

    Raises:
        RefusedContentError: with the reason.
    """
    from torch.export.pt2_archive import constants as at

    from micronpu.upstream.torch import form_of_programs

    schema = form_of_programs()
    names = reader.get_file_names()
    for name in names:
        if name.startswith((at.AOTINDUCTOR_DIR, at.EXECUTORCH_DIR, at.MTIA_DIR)) or name.endswith((".so", ".pyd")):
            raise RefusedContentError(f"a compiled library ({shown(name)})")
        if name.startswith((at.WEIGHTS_DIR, at.CONSTANTS_DIR)) and re.search(r"/(custom|opaque)_obj_", name):
            raise RefusedContentError(f"an object that is no tensor ({shown(name)})")
        if not _RECORDS.fullmatch(name):
            raise RefusedContentError(f"the record {shown(name)}, which no saved program has")
    _check_zip(reader.archive_file, names, size)
    model = at.MODELS_FILENAME_FORMAT.format(_MODEL)
    if model not in names:
        raise RefusedContentError("no model")
    pickles = [name for name in names if name.endswith(".pt")]
    for folder, config in (
        (at.WEIGHTS_DIR, at.WEIGHTS_CONFIG_FILENAME_FORMAT),
        (at.CONSTANTS_DIR, at.CONSTANTS_CONFIG_FILENAME_FORMAT),
    ):
        if config.format(_MODEL) in names:
            content = _json(reader, config.format(_MODEL))
            check_fields(schema.PayloadConfig, content)
            pickles += _payloads(reader, content, folder)
    for name in dict.fromkeys(pickles):
        _check_pickle(reader.read_bytes(name), name)
    check_fields(schema.ExportedProgram, _json(reader, model))


def _json(reader: Any, name: str) -> Any:
    return json.loads(reader.read_bytes(name).decode())  # as the loader decodes it


def _check_zip(file: Any, names: list[str], size: int) -> None:
    """Refuse records that are larger unpacked than stored: torch writes records uncompressed."""
    if len({name.lower() for name in names}) != len(names):
        raise RefusedContentError("a record twice")
    if sum(file.get_record_size(name) for name in names) > size:
        raise RefusedContentError("compressed records, which may be of any size unpacked")


def _payloads(reader: Any, config: Any, folder: str) -> Iterator[str]:
    """Check that tensors are no larger than their storage. Yield names of the records that torch would unpickle."""
    from micronpu.upstream.torch import element_type

    for name, payload in config["config"].items():
        record = os.path.join(folder, payload["path_name"])
        if payload["use_pickle"]:
            yield record
            continue
        meta = payload["tensor_meta"]
        count = math.prod(size["as_int"] for size in meta["sizes"])
        width = element_type(meta["dtype"]).itemsize
        stored = reader.archive_file.get_record_size(record)
        if count * width > max(stored, _EXPANDED) or (count and not stored):
            raise RefusedContentError(
                f"the tensor {shown(name)} of {count * width:,} bytes, of which {stored:,} are stored"
            )


def _check_pickle(data: bytes, name: str) -> None:
    import torch

    from micronpu.upstream.torch import pickle_reader

    if not data:
        return
    try:
        reader = pickle_reader(io.BytesIO(data))  # accepts only the form that torch.save writes
        _check_zip(reader, reader.get_all_records(), len(data))
        torch.load(io.BytesIO(data), weights_only=True, map_location="meta")
    except RefusedContentError:
        raise
    except Exception as error:
        raise RefusedContentError(
            f"a pickle of other things than tensors and numbers ({name}), which could run any code"
        ) from error


def _check_sizes(program: ExportedProgram) -> None:
    """Refuse tensors that are much larger than their storage: copies of them would allocate the full size."""
    import torch

    named = {**program.state_dict, **program.constants}
    for position, value in enumerate((program.example_inputs or ((),))[0]):
        named[f"input {position}"] = value
    for name, value in named.items():
        if isinstance(value, torch.Tensor) and value.numel() * value.itemsize > max(
            value.untyped_storage().nbytes(), _EXPANDED
        ):
            raise RefusedContentError(
                f"the tensor {shown(name)} of {value.numel() * value.itemsize:,} bytes, of which "
                f"{value.untyped_storage().nbytes():,} are stored"
            )
