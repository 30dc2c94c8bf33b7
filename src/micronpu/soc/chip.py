"""Chip files: one TOML per chip, read and checked into dataclasses."""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from micronpu.errors import OptionError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@dataclass(frozen=True)
class Npu:
    """The accelerator of a chip.

    Attributes:
        family: "neutron" or another family with a room of its own.
        variant: the vendor's name of the size.
        kind: the family's class, such as "C" for a Neutron without a controller.
        pipelines: dot-product units that run in parallel.
        macs: multiplications per unit and cycle; input channels are padded to a multiple of it.
        clock_mhz: clock in MHz.
        note: what else is worth knowing about it, or "".
        assumed: what stands in the file without a published source, one clause each; reports name them.
        converter: the name by which the vendor's converter makes programs for it that ExecuTorch's runtime for this
            NPU takes, or "" where only the open reference converter serves.
    """

    family: str
    variant: str
    kind: str
    pipelines: int
    macs: int
    clock_mhz: float
    note: str = ""
    assumed: tuple[str, ...] = ()
    converter: str = ""


@dataclass(frozen=True)
class Memory:
    """A memory of a chip; size in bytes."""

    name: str
    bytes: int


@dataclass(frozen=True)
class TargetEntry:
    """A way to use a chip that `micronpu.compile` accepts."""

    name: str
    title: str
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True)
class Chip:
    """A chip as its file describes it."""

    name: str
    title: str
    source: str
    core: str
    core_clock_mhz: float
    npu: Npu
    memories: tuple[Memory, ...]
    targets: tuple[TargetEntry, ...]


def _field(table: Mapping[str, Any], key: str, kind: type | tuple[type, ...], where: str) -> Any:
    if key not in table:
        raise OptionError(f"The chip file {where} has no `{key}`.", hint=f"add `{key} = ...`")
    value = table[key]
    if not isinstance(value, kind) or isinstance(value, bool):
        raise OptionError(f"`{key}` in the chip file {where} is {value!r}, which is not of the expected type.")
    if isinstance(value, (int, float)) and not 0 < value < math.inf:
        raise OptionError(f"`{key}` in the chip file {where} is {value}; it must be positive.")
    return value


def _text(table: Mapping[str, Any], key: str, where: str) -> str:
    """An optional string."""
    return str(_field(table, key, str, where)) if key in table else ""


def _texts(table: Mapping[str, Any], key: str, where: str) -> tuple[str, ...]:
    """An optional list of strings."""
    given = _field(table, key, list, where) if key in table else []
    if not all(isinstance(g, str) and g for g in given):
        raise OptionError(f"`{key}` in the chip file {where} is {given!r}; it is a list of filled strings.")
    return tuple(given)


def _tables(table: Mapping[str, Any], key: str, where: str) -> list[dict[str, Any]]:
    """A list of tables, `[[key]]` in TOML."""
    given = _field(table, key, list, where)
    if not all(isinstance(g, dict) for g in given):
        raise OptionError(f"`{key}` in the chip file {where} is {given!r}; it is a list of tables.")
    return list(given)


def parse_chip(text: str, where: str) -> Chip:
    """A chip from the text of its file; ``where`` names the file in errors."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise OptionError(f"The chip file {where} is not valid TOML: {error}.") from error
    number = (int, float)
    core, npu = _field(data, "core", dict, where), _field(data, "npu", dict, where)
    return Chip(
        name=_field(data, "name", str, where),
        title=_field(data, "title", str, where),
        source=_field(data, "source", str, where),
        core=_field(core, "name", str, where),
        core_clock_mhz=float(_field(core, "clock_mhz", number, where)),
        npu=Npu(
            family=_field(npu, "family", str, where),
            variant=_field(npu, "variant", str, where),
            kind=_field(npu, "class", str, where),
            pipelines=_field(npu, "pipelines", int, where),
            macs=_field(npu, "macs", int, where),
            clock_mhz=float(_field(npu, "clock_mhz", number, where)),
            note=_text(npu, "note", where),
            assumed=_texts(npu, "assumed", where),
            converter=_text(npu, "converter", where),
        ),
        memories=tuple(
            Memory(_field(m, "name", str, where), _field(m, "bytes", int, where))
            for m in (_tables(data, "memory", where) if "memory" in data else ())
        ),
        targets=tuple(
            TargetEntry(_field(t, "name", str, where), _field(t, "title", str, where), _texts(t, "aliases", where))
            for t in _tables(data, "target", where)
        ),
    )


def load_chip(path: str | Path) -> Chip:
    """A chip from a user's own file."""
    file = Path(path)
    if not file.is_file():
        raise OptionError(f"There is no chip file {file}.")
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise OptionError(f"The chip file {file} is not UTF-8 text.") from error
    return parse_chip(text, str(file))


@functools.lru_cache(maxsize=1)
def load_chips() -> tuple[Chip, ...]:
    """The chips that come with the package, sorted by name."""
    files = sorted(
        (f for f in resources.files("micronpu.soc").iterdir() if f.name.endswith(".toml")), key=lambda f: f.name
    )
    return tuple(parse_chip(f.read_text(encoding="utf-8"), f.name) for f in files)


def all_targets() -> dict[str, tuple[Chip, TargetEntry]]:
    """Every target by name, aliases excluded."""
    return {t.name: (chip, t) for chip in load_chips() for t in chip.targets}


def find_target(name: str) -> tuple[Chip, TargetEntry]:
    """The chip and entry of a target or alias; an unknown name is an `OptionError` that lists the known ones."""
    for chip, target in all_targets().values():
        if name == target.name or name in target.aliases:
            return chip, target
    known = [t for chip in load_chips() for entry in chip.targets for t in (entry.name, *entry.aliases)]
    raise OptionError(f"There is no target {name!r}.", hint=f"one of {', '.join(sorted(known))}")
