"""Rules for each text field of a saved program.

torch.fx writes the names of a graph into Python source and runs it, sizes and guards are evaluated, and calls and types
are looked up by name.  So each text field of torch's schema has a rule here for its content.  A text without a rule and
a field that the schema does not have are refused.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import json
import keyword
import re
import types
import typing
from collections.abc import Callable
from typing import Any

from micronpu.base.arguments import is_class
from micronpu.cli.archive_calls import RefusedContentError, check_operator, shown

# Names of modules and parameters: torch.fx writes them in quotation marks.
_PATH = re.compile(r"[\w\-. +/:@]*")
_LONGEST = 4000
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2028\u2029\u2066-\u2069\ud800-\udfff]")
_CONTAINERS = frozenset(("builtins.tuple", "builtins.list", "builtins.dict", "collections.OrderedDict"))
_NOTES = frozenset(("stack_trace", "nn_module_stack", "source_fn_stack", "torch_fn", "custom", "from_node"))
_LARGEST = 1 << 63


def check_fields(kind: type, value: Any) -> None:
    """Compare a record of an archive with torch's schema, and each text in it with its rule.

    Args:
        kind: a class of `torch._export.serde.schema`.
        value: the parsed JSON.

    Raises:
        RefusedContentError: with the reason.
    """
    _walk(kind, value, kind.__name__, "")


def _walk(kind: Any, value: Any, owner: str, field: str) -> None:
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


def _record(kind: Any, value: Any, owner: str, field: str) -> None:
    if (refused := REFUSED.get(kind.__name__)) is not None:
        raise RefusedContentError(refused)
    hints = _hints(kind)
    unknown = [key for key in _of(dict, value, owner, field) if key not in hints]
    if unknown:
        raise RefusedContentError(f"the field {shown(unknown[0])}, which a {kind.__name__} does not have")
    for key, item in value.items():
        _walk(hints[key], item, kind.__name__, key)


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    from micronpu.upstream.torch import form_of_programs

    return typing.get_type_hints(kind, localns=vars(form_of_programs()))


def _of(kind: Any, value: Any, owner: str, field: str) -> Any:
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
    compiled = re.compile(pattern, re.ASCII)

    def check(text: str) -> None:
        if not compiled.fullmatch(text):
            raise RefusedContentError(f"the name {shown(text)} where it has no place")

    return check


def _no_guard(text: str) -> None:
    raise RefusedContentError(f"the guard {shown(text)}, which torch would run")


def _no_symbol(text: str) -> None:
    raise RefusedContentError(f"the size {shown(text)}, which is no number")


def _inputs(text: str) -> None:
    """Positional inputs, and a dictionary of keyword inputs, whose names become arguments of a function."""
    spec = _spec(text)
    children = spec.get("children_spec") if isinstance(spec, dict) else None
    if isinstance(children, list) and len(children) == 2 and isinstance(children[1], dict):
        for name in _keys(children[1]):
            _identifier(str(name))


def _outputs(text: str) -> None:
    _spec(text)


def _spec(text: str) -> Any:
    """Check the structure of inputs or outputs: tuples, lists and dictionaries; other types would import a module.

    Returns:
        the specification, or None.
    """
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


def _keys(spec: dict[str, Any]) -> list[Any]:
    """Return the keys of a dictionary among the inputs or outputs; other containers have none."""
    context = spec.get("context")
    found = json.loads(context) if isinstance(context, str) else context
    if found is None:
        return []
    return found if isinstance(found, list) else [found]


REFUSED = {
    "CustomObjArgument": "an object that is no tensor",
    "InputToCustomObjSpec": "an object that is no tensor",
    "SymExpr": "a size that depends on its inputs (dynamic_shapes), which torch would evaluate",
}
"""Parts of the schema that torch.export writes only for models that cannot run on a microcontroller."""

RULES: dict[tuple[str, str], Callable[[str], None]] = {
    **{
        (owner, field): _identifier
        for owner, field in (
            ("TensorArgument", "name"),
            ("TokenArgument", "name"),
            ("GraphArgument", "name"),
            ("SymIntArgument", "as_name"),
            ("SymFloatArgument", "as_name"),
            ("SymBoolArgument", "as_name"),
            ("InputToConstantInputSpec", "name"),
            ("GradientToUserInputSpec", "user_input_name"),
            ("UserInputMutationSpec", "user_input_name"),
            ("Node", "name"),
            ("Graph", "tensor_values key"),
            ("Graph", "sym_int_values key"),
            ("Graph", "sym_bool_values key"),
            ("Graph", "sym_float_values key"),
            ("Graph", "custom_obj_values key"),
            ("Argument", "as_string_to_argument key"),
            ("ModuleCallSignature", "forward_arg_names"),
            ("NamedTupleDef", "field_names"),
            ("ExportedProgram", "verifiers"),
        )
    },
    **{
        (owner, field): _path
        for owner, field in (
            ("InputToParameterSpec", "parameter_name"),
            ("InputToBufferSpec", "buffer_name"),
            ("InputToTensorConstantSpec", "tensor_constant_name"),
            ("BufferMutationSpec", "buffer_name"),
            ("ParameterMutationSpec", "parameter_name"),
            ("GradientToParameterSpec", "parameter_name"),
            ("ModuleCallEntry", "fqn"),
            ("GraphModule", "treespec_namedtuple_fields key"),
            ("PayloadConfig", "config key"),
        )
    },
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
    ("ModuleCallSignature", "out_spec"): _outputs,
    ("ExportedProgram", "opset_version key"): _matches(r"\w{1,40}"),
    ("ExportedProgram", "torch_version"): _matches(r"[\w.+<=\-]{1,80}"),
    ("ExportedProgram", "range_constraints key"): _no_symbol,
    ("ExportedProgram", "guards_code"): _no_guard,
    ("PayloadMeta", "path_name"): _matches(r"(weight|tensor)_\d{1,9}"),
}
"""Rule of each text, by the class and the field of torch's schema; a text may also be a key of the field.

Each rule raises `RefusedContentError`.
"""
