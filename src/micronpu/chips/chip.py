"""Chip files: one TOML per chip, read and checked into dataclasses."""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from importlib import resources
from pathlib import Path
from typing import Any

from micronpu.chips.core import is_cortex_m
from micronpu.errors import OptionError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


NEUTRON = "neutron"
ETHOS_U = "ethos-u"
CMSIS_NN = "cmsis-nn"

_UNITS = ((1 << 30, "GB"), (1 << 20, "MB"), (1 << 10, "KB"))


@dataclass(frozen=True, kw_only=True)
class Npu:
    """The accelerator of a chip.

    Attributes:
        family: "neutron" or "ethos-u".
        variant: the vendor's name of the size.
        clock_mhz: clock in MHz.
        note: what else is worth knowing about it, or "".
        assumed: what stands in the file without a published source, one clause each; reports name them.
    """

    family: str
    variant: str
    clock_mhz: float
    note: str = ""
    assumed: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class NeutronNpu(Npu):
    """A Neutron.

    Attributes:
        kind: the family's class: "C" is driven by the host's core, "S" has a controller.
        pipelines: dot-product units that run in parallel.
        macs: multiplications per unit and cycle; input channels are padded to a multiple of it.
        converter: the name by which the vendor's converter makes programs for it that ExecuTorch's runtime for this
            NPU takes, or "" where only the open reference converter serves.
        weight_bandwidth: bytes per second at which weights are copied from flash to where the NPU can read them; None
            where it reads them in place, or where nothing is known.
        fitted: published latencies of this Neutron are among those that the cost model is fitted to; without any, a
            report gives no time.
    """

    kind: str
    pipelines: int
    macs: int
    converter: str = ""
    weight_bandwidth: float | None = None
    fitted: bool = False


@dataclass(frozen=True, kw_only=True)
class EthosUNpu(Npu):
    """An Ethos-U.

    Attributes:
        accelerator: Vela's name, such as "ethos-u55-128".
        system_config, memory_mode: sections of the Vela configuration that fit the chip; "" for the family's defaults.
    """

    accelerator: str
    system_config: str = ""
    memory_mode: str = ""


@dataclass(frozen=True)
class Memory:
    """A memory of a chip.

    Attributes:
        name: such as "sram".
        bytes: size.
        bandwidth: bytes per second that the NPU can read; None where that is not known.
    """

    name: str
    bytes: int
    bandwidth: float | None = None

    def __str__(self) -> str:
        """``sram 7.5 MB, 4 GB/s``."""
        size = next((f"{self.bytes / s:.4g} {u}" for s, u in _UNITS if self.bytes >= s), f"{self.bytes} bytes")
        return f"{self.name} {size}" + (f", {self.bandwidth / 1e9:.3g} GB/s" if self.bandwidth is not None else "")


@dataclass(frozen=True)
class TargetEntry:
    """A way to use a chip that `micronpu.compile` accepts.

    Attributes:
        name: of the target.
        title: what it is, for people.
        aliases: other names.
        leftovers: what computes the operators that the NPU does not take: `CMSIS_NN` in int8 on the core, or "" for
            portable kernels in float.
    """

    name: str
    title: str
    aliases: tuple[str, ...] = ()
    leftovers: str = ""


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
        hint = f"add a table [{key}]" if kind is dict else f"add a table [[{key}]]" if kind is list else ""
        beside = ", ".join(f"`{name}`" for name in table)
        hint = hint or f"add `{key} = ...`" + (f" beside {beside}" if beside else "")
        raise OptionError(f"The chip file {where} has no `{key}`.", hint=hint)
    value = table[key]
    if not isinstance(value, kind) or isinstance(value, bool):
        raise OptionError(f"`{key}` in the chip file {where} is {value!r}, which is not of the expected type.")
    if isinstance(value, (int, float)) and not 0 < value < math.inf:
        raise OptionError(f"`{key}` in the chip file {where} is {value}; it must be positive.")
    return value


def _text(table: Mapping[str, Any], key: str, where: str) -> str:
    """An optional string."""
    return str(_field(table, key, str, where)) if key in table else ""


def _flag(table: Mapping[str, Any], key: str, where: str) -> bool:
    """An optional truth value."""
    value = table.get(key, False)
    if not isinstance(value, bool):
        raise OptionError(f"`{key}` in the chip file {where} is {value!r}; it is true or false.")
    return value


def _number(table: Mapping[str, Any], key: str, where: str) -> float | None:
    """An optional positive number."""
    return float(_field(table, key, (int, float), where)) if key in table else None


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


def _npu(table: Mapping[str, Any], where: str) -> Npu:
    """The accelerator from its table; each family has fields of its own."""
    family = _field(table, "family", str, where)
    common: dict[str, Any] = {
        "family": family,
        "variant": _field(table, "variant", str, where),
        "clock_mhz": float(_field(table, "clock_mhz", (int, float), where)),
        "note": _text(table, "note", where),
        "assumed": _texts(table, "assumed", where),
    }
    if family == NEUTRON:
        return NeutronNpu(
            **common,
            kind=_field(table, "class", str, where),
            pipelines=_field(table, "pipelines", int, where),
            macs=_field(table, "macs", int, where),
            converter=_text(table, "converter", where),
            weight_bandwidth=_number(table, "weight_bandwidth", where),
            fitted=_flag(table, "fitted", where),
        )
    if family == ETHOS_U:
        return EthosUNpu(
            **common,
            accelerator=_field(table, "accelerator", str, where),
            system_config=_text(table, "system_config", where),
            memory_mode=_text(table, "memory_mode", where),
        )
    raise OptionError(f"The NPU family in the chip file {where} is {family!r}.", hint=f'"{NEUTRON}" or "{ETHOS_U}"')


def parse_chip(text: str, where: str) -> Chip:
    """A chip from the text of its file; ``where`` names the file in errors."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise OptionError(f"The chip file {where} is not valid TOML: {error}.") from error
    number = (int, float)
    core = _field(data, "core", dict, where)
    return Chip(
        name=_field(data, "name", str, where),
        title=_field(data, "title", str, where),
        source=_field(data, "source", str, where),
        core=_field(core, "name", str, where),
        core_clock_mhz=float(_field(core, "clock_mhz", number, where)),
        npu=_npu(_field(data, "npu", dict, where), where),
        memories=tuple(_memory(m, where) for m in (_tables(data, "memory", where) if "memory" in data else ())),
        targets=tuple(_target(t, _field(core, "name", str, where), where) for t in _tables(data, "target", where)),
    )


def _memory(table: Mapping[str, Any], where: str) -> Memory:
    name = _field(table, "name", str, where)
    known = [f.name for f in fields(Memory)]
    for key in table:
        if key not in known:
            raise OptionError(
                f"The memory {name} in the chip file {where} has the field `{key}`, which there is not.",
                hint=f"one of {', '.join(known)}",
            )
    return Memory(name, _field(table, "bytes", int, where), _number(table, "bandwidth", where))


def _target(table: Mapping[str, Any], core: str, where: str) -> TargetEntry:
    name, leftovers = _field(table, "name", str, where), _text(table, "leftovers", where)
    if leftovers not in ("", CMSIS_NN):
        raise OptionError(
            f"`leftovers` of the target {name} in the chip file {where} is {leftovers!r}.",
            hint=f'"{CMSIS_NN}", or none',
        )
    if leftovers and not is_cortex_m(core):
        raise OptionError(
            f"The target {name} in the chip file {where} computes with CMSIS-NN, which does not run on the core "
            f"{core!r}.",
            hint="leave out `leftovers`",
        )
    return TargetEntry(name, _field(table, "title", str, where), _texts(table, "aliases", where), leftovers)


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
        (f for f in resources.files("micronpu.chips").iterdir() if f.name.endswith(".toml")), key=lambda f: f.name
    )
    return tuple(parse_chip(f.read_text(encoding="utf-8"), f.name) for f in files)
