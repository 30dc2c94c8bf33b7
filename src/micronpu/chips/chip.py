"""Chip files: one TOML per chip, read with checked access to its fields into dataclasses."""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from importlib import resources
from os import PathLike
from typing import Any

from micronpu.base.errors import OptionError
from micronpu.base.files import check_name, read_file
from micronpu.base.parsing import parse_toml
from micronpu.base.texts import plural
from micronpu.chips.core import find_core, runs_cmsis_nn

CMSIS_NN = "cmsis-nn"
MEASURED = "measured"
"""Field of the NPU's table: number of networks that its numbers were measured with."""

ACTIVATIONS, WEIGHTS = "activations", "weights"
"""Roles of a memory: for activations, and for weights."""

_USUAL = {ACTIVATIONS: "sram", WEIGHTS: "flash"}
"""Name of the memory that has a role unless another memory of the chip declares it."""

_UNITS = ((1 << 30, "GB"), (1 << 20, "MB"), (1 << 10, "KB"))


@dataclass(frozen=True)
class Npu:
    """The accelerator of a chip.

    Attributes:
        family: backend, such as "neutron" or "ethos-u".
        variant: the vendor's name of the size.
        clock_mhz: clock in MHz; None if unknown, which disables time estimates.
        note: other remarks, or "".
        assumed: values without a published source, one clause each; reports name them.
        own: the whole table; the backend reads its specific fields from it.
    """

    family: str
    variant: str
    clock_mhz: float | None
    note: str
    assumed: tuple[str, ...]
    own: ChipSection = field(hash=False, repr=False)

    @classmethod
    def read(cls, section: ChipSection) -> Npu:
        return cls(
            section.text("family"),
            section.text("variant"),
            section.optional_number("clock_mhz"),
            section.optional_text("note"),
            section.optional_texts("assumed"),
            section,
        )

    def fields(self, *names: str) -> ChipSection:
        """Return the table, from which the backend reads its specific fields; refuse all others."""
        self.own.refuse_others((*_NPU_FIELDS, *names))
        return self.own


_NPU_FIELDS = ("family", "variant", "clock_mhz", "note", "assumed")
"""Fields of an accelerator's table that every backend has."""


@dataclass(frozen=True)
class Memory:
    """A memory of a chip.

    Attributes:
        name: such as "sram".
        bytes: size.
        bandwidth: read bandwidth of the NPU in bytes per second; None if unknown.
        role: `ACTIVATIONS`, `WEIGHTS`, or "" for the default of its name: see `Chip.memory_for`.
        address: on the core's bus; None if unknown.
        npu_address: on the NPU's bus, if different.
    """

    name: str
    bytes: int
    bandwidth: float | None = None
    role: str = ""
    address: int | None = None
    npu_address: int | None = None

    def __str__(self) -> str:
        """``sram 7.5 MB, 4 GB/s``."""
        size = next((f"{self.bytes / s:.4g} {u}" for s, u in _UNITS if self.bytes >= s), f"{self.bytes} bytes")
        return f"{self.name} {size}" + (f", {self.bandwidth / 1e9:.3g} GB/s" if self.bandwidth is not None else "")


@dataclass(frozen=True)
class TargetEntry:
    """A target of a chip, accepted by `micronpu.compile`.

    Attributes:
        name: of the target.
        title: description for people.
        aliases: other names.
        leftovers: execution of non-delegated operators: `CMSIS_NN` in int8 on the core, or "" for portable float
            kernels.
    """

    name: str
    title: str
    aliases: tuple[str, ...] = ()
    leftovers: str = ""


@dataclass(frozen=True)
class EmulatedBoard:
    """The QEMU machine that emulates a chip for firmware that needs none of its other peripherals.

    The note is about memories of the chip that the machine has and lacks.
    """

    machine: str
    note: str = ""


@dataclass(frozen=True)
class Chip:
    """A chip as described by its file.

    Attributes:
        core_clock_mhz: of the core; None if unknown.
        core_instructions: instruction set for CMSIS-NN if the core lacks an optional extension; "" for the default.
        npu: its accelerator; None if it has only a core.
        file: path of the user's file that defines it; "" for a chip of the package.
        external_flash: True if its flash is a separate device whose size depends on the board.
        same_core_as: name of the chip file whose core drives this NPU as well; "" for none.
        board: the machine that emulates it; None if there is none.
        boards: product names of boards with this chip.
    """

    name: str
    title: str
    source: str
    core: str
    core_clock_mhz: float | None
    npu: Npu | None
    memories: tuple[Memory, ...]
    targets: tuple[TargetEntry, ...]
    file: str = ""
    external_flash: bool = False
    same_core_as: str = ""
    core_instructions: str = ""
    board: EmulatedBoard | None = None
    boards: tuple[str, ...] = ()

    @property
    def names(self) -> set[str]:
        """Its name, and those of its targets."""
        return {self.name, *(name for entry in self.targets for name in (entry.name, *entry.aliases))}

    @property
    def measured(self) -> str:
        """``measured on your board, 3 networks``, or ""."""
        networks = self.npu.own.optional_integer(MEASURED) if self.npu is not None else None
        return f"measured on your board, {plural(networks, 'network')}" if networks else ""

    def memory_for(self, role: str) -> Memory | None:
        """Return the memory that declares a role, or else the one with the default name; None without either."""
        claims = next((m for m in self.memories if m.role == role), None)
        return claims or next((m for m in self.memories if m.name == _USUAL[role] and not m.role), None)


class Chips(Mapping[str, Chip]):
    """An immutable mapping of chips by name."""

    def __init__(self, *chips: Chip) -> None:
        self._chips: dict[str, Chip] = {}
        for chip in chips:
            known = self._chips.setdefault(chip.name, chip)
            if known == chip:
                continue
            if known.file:
                what = f"The chip files {known.file} and {chip.file} both describe a chip called `{chip.name}`."
            else:
                what = f"The chip file {chip.file} is called `{chip.name}`, as a chip of micronpu."
            raise OptionError(what, hint="another `name` in one of the files" if known.file else "another name")

    def with_files(self, *paths: str | PathLike[str]) -> Chips:
        """Return these chips and those of user-defined files."""
        return Chips(*self.values(), *(load_chip(path) for path in paths))

    def __getitem__(self, name: str) -> Chip:
        return self._chips[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._chips)

    def __len__(self) -> int:
        return len(self._chips)


def parse_chip(text: str, where: str, file: str = "") -> Chip:
    """Parse the text of a chip file; ``where`` names the file in errors."""
    try:
        data = ChipSection(where, "", parse_toml(text))
    except ValueError as error:
        raise OptionError(f"The chip file {where} is not valid TOML: {error}.", hint="see docs/chips.md") from error
    core = data.table("core")
    return Chip(
        name=data.text("name"),
        title=data.text("title"),
        source=data.text("source"),
        core=core.text("name"),
        core_clock_mhz=core.optional_number("clock_mhz"),
        core_instructions=_instructions(core),
        npu=Npu.read(data.table("npu")) if "npu" in data else None,
        memories=_memories(data.tables("memory") if "memory" in data else (), where),
        targets=tuple(_target(t, core.text("name")) for t in data.tables("target")),
        file=file,
        external_flash=data.flag("external_flash"),
        same_core_as=data.optional_text("same_core_as"),
        board=_board(data.table("board")) if "board" in data else None,
        boards=data.optional_texts("boards"),
    )


def _instructions(core: ChipSection) -> str:
    given = core.optional_text("instructions")
    return find_core(core.text("name"), given).instructions.value if given else ""


def _board(section: ChipSection) -> EmulatedBoard:
    section.refuse_others([f.name for f in fields(EmulatedBoard)])
    return EmulatedBoard(section.text("machine"), section.optional_text("note"))


def _memories(sections: Sequence[ChipSection], where: str) -> tuple[Memory, ...]:
    memories = tuple(_memory(section) for section in sections)
    for role in _USUAL:
        claims = [m.name for m in memories if m.role == role]
        if len(claims) > 1:
            raise OptionError(
                f"The memories {' and '.join(claims)} in the chip file {where} have the role {role!r}.",
                hint="leave it to one of them",
            )
    return memories


def _memory(section: ChipSection) -> Memory:
    name, role = section.text("name"), section.optional_text("role")
    section.refuse_others([f.name for f in fields(Memory)])
    if role not in ("", *_USUAL):
        raise OptionError(
            f"`role` of the memory {name} in the chip file {section.where} is {role!r}.",
            hint=f"{' or '.join(map(repr, _USUAL))}, or none",
        )
    places = [section.optional_integer(key) for key in ("address", "npu_address")]
    if places[1] is not None and places[0] is None:
        raise OptionError(
            f"The memory {name} in the chip file {section.where} has an `npu_address`, but no `address`.",
            hint="where the core has it, too",
        )
    return Memory(name, section.integer("bytes"), section.optional_number("bandwidth"), role, *places)


def _target(section: ChipSection, core: str) -> TargetEntry:
    name, leftovers = section.text("name"), section.optional_text("leftovers")
    if leftovers not in ("", CMSIS_NN):
        raise OptionError(
            f"`leftovers` of the target {name} in the chip file {section.where} is {leftovers!r}.",
            hint=f'"{CMSIS_NN}", or none',
        )
    if leftovers and not runs_cmsis_nn(core):
        raise OptionError(
            f"The target {name} in the chip file {section.where} computes with CMSIS-NN, which does not run on the "
            f"core {core!r}.",
            hint="leave out `leftovers`",
        )
    return TargetEntry(name, section.text("title"), section.optional_texts("aliases"), leftovers)


def load_chip(path: str | PathLike[str]) -> Chip:
    """Load a user-defined chip file."""
    file = check_name(path)
    if not file.is_file():
        raise OptionError(f"There is no chip file {file}.", hint="check the path")
    try:
        text = read_file(file, "The chip file").decode()
    except UnicodeDecodeError as error:
        raise OptionError(f"The chip file {file} is not UTF-8 text.", hint="save it as UTF-8") from error
    return parse_chip(text, str(file), str(file))


def load_measured(path: str | PathLike[str]) -> Chip:
    """Load a chip file that `micronpu calibrate` has written."""
    chip = load_chip(path)
    if not chip.measured:
        raise OptionError(
            f"The chip file {path} has no measurements: `{MEASURED}` in [npu] is missing.",
            hint=f"micronpu calibrate CHIP measurement.toml --report report.json -o {path}",
        )
    return chip


@functools.lru_cache(maxsize=1)
def shipped_chips() -> Chips:
    """The chips of the package, sorted by name."""
    return Chips(*(parse_chip(text, name) for name, text in _texts()))


def with_clock(core: str) -> str:
    """Return the names of the shipped chips without an NPU that have a core, and its clock, as "a or b"."""
    chips = (chip for chip in shipped_chips().values() if chip.core == core and chip.core_clock_mhz)
    return " or ".join(chip.name for chip in chips if chip.npu is None) or "a chip file"


def text_of(chip: Chip) -> str:
    """Return the file of a chip of the package."""
    own = f'name = "{chip.name}"'  # also a core's, in the files of other chips
    return next(text for name, text in _texts() if own in text and parse_chip(text, name) == chip)


def _texts() -> Iterator[tuple[str, str]]:
    files = (f for f in resources.files("micronpu.chips").iterdir() if f.name.endswith(".toml"))
    for file in sorted(files, key=lambda f: f.name):
        yield file.name, file.read_text(encoding="utf-8")


_NAME = re.compile(r"[A-Za-z0-9][\w.+-]*", re.ASCII)
_NOT_IN_TEXT = re.compile(r'["\\$]|\*/')


@dataclass(frozen=True)
class ChipSection:
    """A table of a chip file, as errors name both; "" for the file itself."""

    where: str
    name: str
    values: Mapping[str, Any]

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def text(self, key: str) -> str:
        """Return a string; this method and all others raise `OptionError` if it is missing, or something else."""
        return self._checked(key, str(self._field(key, str)))

    def optional_text(self, key: str) -> str:
        """A string, default ""."""
        return self.text(key) if key in self else ""

    def optional_texts(self, key: str) -> tuple[str, ...]:
        """A list of non-empty strings, default empty."""
        given = self._field(key, list) if key in self else []
        if not all(isinstance(g, str) and g for g in given):
            raise self._wrong(key, "a list of filled strings", f'{key} = ["..."]')
        return tuple(self._checked("name" if key == "aliases" else key, g) for g in given)

    def _checked(self, key: str, text: str) -> str:
        """Check that a text is valid in the files generated for a board: C, CMake, linker scripts and Markdown."""
        allowed = _NAME.fullmatch(text) if key == "name" else text.isprintable() and not _NOT_IN_TEXT.search(text)
        if text and not allowed:
            what = "letters, digits and .+-_" if key == "name" else "one line without quotation marks, \\, $ and */"
            raise OptionError(f"`{key}` in the chip file {self.where} is {text!r}; it is {what}.", hint="another text")
        return text

    def integer(self, key: str) -> int:
        return int(self._field(key, int))

    def optional_integer(self, key: str) -> int | None:
        """A whole number, 0 or more; None if absent."""
        if key not in self.values:
            return None
        value = self.values[key]
        if type(value) is not int or not 0 <= value < 1 << 32:
            raise self._wrong(key, "a whole number of 32 bits", f"{key} = 0x48102000, or leave it out")
        return value

    def number(self, key: str) -> float:
        return float(self._field(key, (int, float)))

    def optional_number(self, key: str) -> float | None:
        """A positive number; None if absent."""
        return self.number(key) if key in self else None

    def optional_numbers(self, key: str, count: int) -> tuple[float, ...] | None:
        """An increasing list of ``count`` non-negative numbers; None if absent."""
        if key not in self:
            return None
        given = self._field(key, list)
        numbers = [float(g) for g in given if isinstance(g, (int, float)) and not isinstance(g, bool)]
        rising = all(0 <= a <= b < math.inf for a, b in itertools.pairwise([0.0, *numbers]))
        if len(numbers) != len(given) or len(given) != count or not rising:
            raise self._wrong(key, f"{count} numbers that rise", f"{key} = [{', '.join(['1', '2', '3'][:count])}]")
        return tuple(numbers)

    def flag(self, key: str) -> bool:
        """A truth value, default False."""
        value = self.values.get(key, False)
        if not isinstance(value, bool):
            raise self._wrong(key, "true or false", f"{key} = true")
        return value

    def table(self, key: str) -> ChipSection:
        """A table, ``[key]`` in TOML."""
        return ChipSection(self.where, key, self._field(key, dict))

    def tables(self, key: str) -> tuple[ChipSection, ...]:
        """A list of tables, ``[[key]]`` in TOML."""
        given = self._field(key, list)
        if not all(isinstance(g, dict) for g in given):
            raise self._wrong(key, "a list of tables", f"[[{key}]]")
        return tuple(ChipSection(self.where, f"{key} {g.get('name', '')}".strip(), g) for g in given)

    def refuse_others(self, known: Collection[str]) -> None:
        """Refuse unknown fields, so that a typo does not silently select a default."""
        for key in self.values:
            if key not in known:
                raise OptionError(
                    f"The {self.name} in the chip file {self.where} has the field `{key}`, which there is not.",
                    hint=f"one of {', '.join(known)}",
                )

    def _wrong(self, key: str, what: str, hint: str) -> OptionError:
        given = self.values[key]
        return OptionError(f"`{key}` in the chip file {self.where} is {given!r}; it is {what}.", hint=hint)

    def _field(self, key: str, kind: type | tuple[type, ...]) -> Any:
        if key not in self.values:
            hint = f"add a table [{key}]" if kind is dict else f"add a table [[{key}]]" if kind is list else ""
            beside = ", ".join(f"`{name}`" for name in self.values)
            hint = hint or f"add `{key} = ...`" + (f" beside {beside}" if beside else "")
            raise OptionError(f"The chip file {self.where} has no `{key}`.", hint=hint)
        value = self.values[key]
        if not isinstance(value, kind) or isinstance(value, bool):
            raise OptionError(
                f"`{key}` in the chip file {self.where} is {value!r}, which is not of the expected type.",
                hint="docs/chips.md, which shows each field",
            )
        if isinstance(value, (int, float)) and not 0 < value < math.inf:
            raise OptionError(
                f"`{key}` in the chip file {self.where} is {value}; it must be positive.", hint="a number above 0"
            )
        return value
