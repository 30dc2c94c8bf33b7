"""Read a saved program, `file.pt2`, without running code from it.

torch's own loader runs code out of the file in several ways: names become Python source, a pickle that does not load
with ``weights_only=True`` is loaded without it, native libraries in the archive are loaded, operators are looked up by
any dotted name, and sizes and guards are evaluated as Python.  A model of tensors needs none of this, so an archive
that has any of it is refused before the loader reads it.  The file is read into memory once and parsed with torch's
own archive reader.  Each text field of torch's schema has a rule for its content; a text without a rule and a field
that the schema does not have are refused.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import io
import json
import keyword
import math
import os
import re
import types
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from micronpu.base.arguments import is_class
from micronpu.base.errors import ErrorsAs, ModelError, reason
from micronpu.base.files import read_file
from micronpu.cli.archive_calls import RefusedContentError, check_calls, check_operator, shown

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
    """Return the program of a `.pt2`."""
    data = read_file(path)
    from torch.export.pt2_archive import PT2ArchiveReader

    from micronpu.upstream.torch import read_archive

    what = f"{path} is no program that torch can load"
    with ErrorsAs(lambda error: ModelError(f"{what}: {reason(error)}.", hint=_SAVE_AGAIN)):
        try:
            reader = PT2ArchiveReader(io.BytesIO(data))
            _check(reader, len(data))
            with _tensors_only():
                program = read_archive(io.BytesIO(data))[_MODEL]
            _check_sizes(program)
            check_calls(program)
            return program
        except RefusedContentError as refused:
            raise ModelError(f"{path} is not loaded, because it holds {refused}.", hint=_SAVE_TENSORS) from None


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
    """Refuse an archive that runs code when it is loaded, or needs more memory than the file has bytes."""
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


def _json(reader: Any, name: str) -> object:
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
    what = f"a pickle of other things than tensors and numbers ({name}), which could run any code"
    with ErrorsAs(lambda _: RefusedContentError(what), RefusedContentError):
        reader = pickle_reader(io.BytesIO(data))  # accepts only the form that torch.save writes
        _check_zip(reader, reader.get_all_records(), len(data))
        torch.load(io.BytesIO(data), weights_only=True, map_location="meta")


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


# Names of modules and parameters: torch.fx writes them in quotation marks.
_PATH = re.compile(r"[\w\-. +/:@]*")
_LONGEST = 4000
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2028\u2029\u2066-\u2069\ud800-\udfff]")
_CONTAINERS = frozenset(("builtins.tuple", "builtins.list", "builtins.dict", "collections.OrderedDict"))
_NOTES = frozenset(("stack_trace", "nn_module_stack", "source_fn_stack", "torch_fn", "custom", "from_node"))
_LARGEST = 1 << 63


def check_fields(kind: type, value: object) -> None:
    """Compare a record of an archive with torch's schema, and each text in it with its rule."""
    _walk(kind, value, kind.__name__, "")


def _walk(kind: Any, value: object, owner: str, field: str) -> None:
    """Check a value; ``owner`` and ``field`` are the schema's class and field that contain it."""
    origin = typing.get_origin(kind)
    if origin is typing.Annotated:
        _walk(kind.__origin__, value, owner, field)
    elif origin in (typing.Union, types.UnionType):
        (inner,) = (part for part in typing.get_args(kind) if part is not type(None))
        if value is not None:
            _walk(inner, value, owner, field)
    elif origin is list:
        for item in _of(list, value, owner, field):
            _walk(typing.get_args(kind)[0], item, owner, field)
    elif origin is dict:
        for key, item in _of(dict, value, owner, field).items():
            _text(key, owner, f"{field} key")
            _walk(typing.get_args(kind)[1], item, owner, field)
    elif dataclasses.is_dataclass(kind):
        _record(kind, value, owner, field)
    elif kind is str:
        _text(_of(str, value, owner, field), owner, field)
    elif kind is float:
        if value not in ("NaN", "Infinity", "-Infinity"):
            _of((int, float), value, owner, field)
    elif kind is int or is_class(kind, enum.IntEnum):
        if not -_LARGEST <= _of(int, value, owner, field) < _LARGEST:
            raise RefusedContentError(f"a number beyond 64 bits in `{field}`")
    elif kind is bool:
        _of(bool, value, owner, field)
    else:
        raise RefusedContentError(f"`{field}`, of which it is not known what it may be")


def _record(kind: Any, value: object, owner: str, field: str) -> None:
    if (refused := REFUSED.get(kind.__name__)) is not None:
        raise RefusedContentError(refused)
    hints = _hints(kind)
    for key, item in _of(dict, value, owner, field).items():
        if key not in hints:
            raise RefusedContentError(f"the field {shown(key)}, which a {kind.__name__} does not have")
        _walk(hints[key], item, kind.__name__, key)


@functools.cache
def _hints(kind: object) -> dict[str, object]:
    from micronpu.upstream.torch import form_of_programs

    return typing.get_type_hints(kind, localns=vars(form_of_programs()))


def _of(kind: Any, value: object, owner: str, field: str) -> Any:
    if not isinstance(value, kind):
        raise RefusedContentError(f"a {type(value).__name__} in `{field or owner}`, where it has no place")
    return value


def _text(value: str, owner: str, field: str) -> None:
    rule = RULES.get((owner, field))
    if rule is None:
        raise RefusedContentError(f"the text {shown(value)} in `{field}`, of which it is not known what it may be")
    rule(value)


# ---------------------------------------------------------------- the rules


def _identifier(text: str) -> None:
    if not text.isidentifier() or keyword.iskeyword(text) or len(text) > _LONGEST:
        raise RefusedContentError(f"the name {shown(text)}, which is no identifier")


def _argument(text: str) -> None:
    """The name of an operator's argument, which may be a keyword of Python, such as `from`."""
    if text and not text.isidentifier():
        raise RefusedContentError(f"the argument {shown(text)}, which is no identifier")


def _path(text: str) -> None:
    hidden = any(part.startswith("__") for part in text.split("."))
    if not _PATH.fullmatch(text) or hidden or len(text) > _LONGEST:
        raise RefusedContentError(f"the name {shown(text)}, which no module or parameter may have")


def _words(text: str) -> None:
    if _CONTROL.search(text) or "\n" in text or len(text) > _LONGEST:
        raise RefusedContentError(f"the text {shown(text)}, which has characters that no operand has")


def _note(text: str) -> None:
    """A text of several lines that a node holds for messages."""
    if _CONTROL.search(text):
        raise RefusedContentError(f"the text {shown(text)}, which has characters that no message has")


def _one_of(names: frozenset[str]) -> Callable[[str], None]:
    def check(text: str) -> None:
        if text not in names:
            raise RefusedContentError(f"the field {shown(text)}, which is none of {', '.join(sorted(names))}")

    return check


def _matches(pattern: str) -> Callable[[str], None]:
    def check(text: str) -> None:
        if not re.fullmatch(pattern, text, re.ASCII):
            raise RefusedContentError(f"the name {shown(text)} where it has no place")

    return check


def _refused(what: str, why: str) -> Callable[[str], None]:
    def check(text: str) -> None:
        raise RefusedContentError(f"the {what} {shown(text)}, which {why}")

    return check


def _inputs(text: str) -> None:
    """Positional inputs, and a dictionary of keyword inputs, whose names become arguments of a function."""
    spec = _spec(text)
    children = spec.get("children_spec") if isinstance(spec, dict) else None
    if isinstance(children, list) and len(children) == 2 and isinstance(children[1], dict):
        for name in _keys(children[1]):
            _identifier(str(name))


def _spec(text: str) -> object:
    """Check the structure of inputs or outputs: tuples, lists and dictionaries; other types would import a module."""
    if not text:
        return None
    parts = json.loads(text)
    if not isinstance(parts, list) or len(parts) != 2 or not isinstance(parts[0], int):
        raise RefusedContentError("inputs or outputs in an unknown form")
    stack = [parts[1]]
    while stack:
        value = stack.pop()
        if not isinstance(value, dict) or value.keys() != {"type", "context", "children_spec"}:
            raise RefusedContentError("inputs or outputs in an unknown form")
        if value["type"] not in (None, *_CONTAINERS):
            raise RefusedContentError(f"inputs or outputs of the type {value['type']}")
        for key in _keys(value):
            if isinstance(key, str):
                _path(key)
            elif not isinstance(key, int):
                raise RefusedContentError("an enumeration or another object among its inputs or outputs")
        if not isinstance(value["children_spec"], list):
            raise RefusedContentError("inputs or outputs in an unknown form")
        stack.extend(value["children_spec"])
    return parts[1]


def _keys(spec: dict[str, Any]) -> list[object]:
    """Return the keys of a dictionary among the inputs or outputs; other containers have none."""
    context = spec.get("context")
    found = json.loads(context) if isinstance(context, str) else context
    if found is None:
        return []
    return found if isinstance(found, list) else [found]


def _fields(text: str) -> Iterator[tuple[str, str]]:
    """Yield the class and the field of each entry CLASS.FIELD."""
    for entry in text.split(","):
        owner, _, field = entry.strip().partition(".")
        yield owner, field


REFUSED = {
    "CustomObjArgument": "an object that is no tensor",
    "InputToCustomObjSpec": "an object that is no tensor",
    "SymExpr": "a size that depends on its inputs (dynamic_shapes), which torch would evaluate",
}
"""Parts of the schema that torch.export writes only for models that cannot run on a microcontroller."""

RULES: dict[tuple[str, str], Callable[[str], Any]] = {
    **dict.fromkeys(
        _fields(
            """
            TensorArgument.name, TokenArgument.name, GraphArgument.name, SymIntArgument.as_name,
            SymFloatArgument.as_name, SymBoolArgument.as_name, InputToConstantInputSpec.name,
            GradientToUserInputSpec.user_input_name, UserInputMutationSpec.user_input_name, Node.name,
            Graph.tensor_values key, Graph.sym_int_values key, Graph.sym_bool_values key, Graph.sym_float_values key,
            Graph.custom_obj_values key, Argument.as_string_to_argument key, ModuleCallSignature.forward_arg_names,
            NamedTupleDef.field_names, ExportedProgram.verifiers
            """
        ),
        _identifier,
    ),
    **dict.fromkeys(
        _fields(
            """
            InputToParameterSpec.parameter_name, InputToBufferSpec.buffer_name, BufferMutationSpec.buffer_name,
            InputToTensorConstantSpec.tensor_constant_name, ParameterMutationSpec.parameter_name,
            GradientToParameterSpec.parameter_name, ModuleCallEntry.fqn, PayloadConfig.config key,
            GraphModule.treespec_namedtuple_fields key
            """
        ),
        _path,
    ),
    ("NamedArgument", "name"): _argument,
    ("Node", "target"): check_operator,
    ("Argument", "as_operator"): check_operator,
    ("Argument", "as_string"): _words,
    ("Argument", "as_strings"): _words,
    ("ConstantValue", "as_string"): _words,
    ("Node", "metadata key"): _one_of(_NOTES),
    ("Node", "metadata"): _note,
    ("GraphModule", "metadata key"): _one_of(frozenset(("custom",))),
    ("GraphModule", "metadata"): _note,
    ("Device", "type"): _matches(r"[a-z]{1,20}"),
    ("ModuleCallSignature", "in_spec"): _inputs,
    ("ModuleCallSignature", "out_spec"): _spec,
    ("ExportedProgram", "opset_version key"): _matches(r"\w{1,40}"),
    ("ExportedProgram", "torch_version"): _matches(r"[\w.+<=\-]{1,80}"),
    ("ExportedProgram", "range_constraints key"): _refused("size", "is no number"),
    ("ExportedProgram", "guards_code"): _refused("guard", "torch would run"),
    ("PayloadMeta", "path_name"): _matches(r"(weight|tensor)_\d{1,9}"),
}
"""Rule of each text, by the class and the field of torch's schema; a text may also be a key of the field.

Each rule raises `RefusedContentError`.
"""
