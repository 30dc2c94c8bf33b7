"""Quantization settings in a TOML file: observers, corrections and parts of a model.

    equalize = true
    adaptive_rounding = true

    [default]
    activation_observer = "mse"

    [modules."block1.conv"]
    activations = "int16"

    [nodes.softmax]
    float = true

Fields that a part does not set are those of ``[default]``; a dictionary of the same form is also accepted.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from typing import Any, TypeAlias

from micronpu.base.errors import OptionError, first_line
from micronpu.base.files import read_file
from micronpu.base.parsing import parse_toml, toml_text
from micronpu.quantize.config import Corrections, QuantizationConfig
from micronpu.quantize.quantizer import StaticQuantizer

Settings: TypeAlias = str | os.PathLike[str] | Mapping[str, Any]
"""A file, or a dictionary of its form."""

_CORRECTIONS = tuple(field.name for field in fields(Corrections))
_FIELDS = tuple(field.name for field in fields(QuantizationConfig) if field.name not in ("is_qat", "freeze_batch_norm"))
_PARTS: dict[str, Callable[[StaticQuantizer, str, QuantizationConfig | None], Any]] = {
    "nodes": StaticQuantizer.set_node_name,
    "modules": StaticQuantizer.set_module_name,
    "types": StaticQuantizer.set_module_type,
    "operators": StaticQuantizer.set_operator,
}
_DEFAULT, _FLOAT = "default", "float"


def read_quantization(given: Settings) -> dict[str, Any]:
    """Return the dictionary of a file, or the dictionary itself; `configure` checks its content."""
    if isinstance(given, Mapping):
        return dict(given)
    if not isinstance(given, str | os.PathLike):
        what = f"The settings of quantization are a {type(given).__name__}."
        raise OptionError(what, hint='the path of a TOML file, or a dictionary such as {"equalize": True}')
    data = read_file(given)
    try:
        return parse_toml(data.decode())
    except ValueError as error:
        what = f"The quantization file {os.fspath(given)} is no TOML: {first_line(error)}."
        raise OptionError(what, hint='lines such as name = "x"') from error


def merged(settings: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with others on top, table by table."""
    found = {name: dict(value) if isinstance(value, Mapping) else value for name, value in settings.items()}
    for name, value in more.items():
        found[name] = merged(found.get(name, {}), value) if isinstance(value, Mapping) else value
    return found


def configure(quantizer: StaticQuantizer, given: Settings) -> StaticQuantizer:
    """Apply a file or a dictionary to a quantizer, which keeps its configuration for anything unset."""
    where = f"the quantization file {os.fspath(given)}" if isinstance(given, str | os.PathLike) else "`quantization`"
    settings = read_quantization(given)
    known = (*_CORRECTIONS, _DEFAULT, *_PARTS)
    for name in settings:
        if name not in known:
            raise OptionError(f"There is no {name!r} in {where}.", hint=f"one of {', '.join(known)}")
    default = quantizer.settings.default
    base = asdict(default) if default is not None else {}
    if _DEFAULT in settings:
        quantizer.set_global(_config(_table(settings, _DEFAULT, where), base, f"[{_DEFAULT}] of {where}"))
        default = quantizer.settings.default
        base = asdict(default) if default is not None else {"is_qat": quantizer.is_qat}
    for part, setter in _PARTS.items():
        for name, fields_given in _table(settings, part, where).items():
            place = f"[{part}.{name}] of {where}"
            if not isinstance(fields_given, Mapping):
                raise OptionError(f"{place} is {fields_given!r}, not a table.", hint='activations = "int16"')
            setter(quantizer, name, _config(fields_given, base, place))
    chosen = {name: settings[name] for name in _CORRECTIONS if name in settings}
    if chosen:
        quantizer.set_corrections(Corrections(**(asdict(quantizer.settings.corrections) | chosen)))
    return quantizer


def _table(settings: Mapping[str, object], name: str, where: str) -> Mapping[str, Any]:
    table = settings.get(name, {})
    if not isinstance(table, Mapping):
        raise OptionError(f"`{name}` in {where} is {table!r}, not a table.", hint=f"[{name}]")
    return table


def _config(given: Mapping[str, Any], base: Mapping[str, Any], where: str) -> QuantizationConfig | None:
    if _FLOAT in given:
        if given[_FLOAT] is not True or len(given) > 1:
            raise OptionError(f"{where} says {dict(given)!r}.", hint="float = true and nothing else, or no such line")
        return None
    for name in given:
        if name not in _FIELDS:
            raise OptionError(f"There is no {name!r} in {where}.", hint=f"one of {', '.join((*_FIELDS, _FLOAT))}")
    return QuantizationConfig(**(dict(base) | dict(given)))


def to_toml(settings: Mapping[str, Any]) -> str:
    lines = [f"{name} = {toml_text(settings[name])}" for name in _CORRECTIONS if name in settings]
    tables = [("", _DEFAULT, settings[_DEFAULT])] if _DEFAULT in settings else []
    tables += [(part, name, table) for part in _PARTS for name, table in settings.get(part, {}).items()]
    for part, name, table in tables:
        lines += ["", f"[{part}.{toml_text(name)}]" if part else f"[{name}]"]
        lines += [f"{key} = {toml_text(value)}" for key, value in table.items()]
    return "\n".join(lines).lstrip("\n") + "\n"
