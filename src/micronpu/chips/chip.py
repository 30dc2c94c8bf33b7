"""Chip files: one TOML per chip, read and checked into dataclasses."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from importlib import resources
from os import PathLike

from micronpu.base.errors import OptionError
from micronpu.base.files import check_name, read_file
from micronpu.base.parsing import parse_toml
from micronpu.chips.core import find_core, runs_cmsis_nn
from micronpu.chips.section import ChipSection

CMSIS_NN = "cmsis-nn"

ACTIVATIONS, WEIGHTS = "activations", "weights"
"""Roles of a memory: what a program computes in, and where it lies."""

_USUAL = {ACTIVATIONS: "sram", WEIGHTS: "flash"}
"""Name of the memory that has a role where no memory of the chip claims it."""

_UNITS = ((1 << 30, "GB"), (1 << 20, "MB"), (1 << 10, "KB"))


@dataclass(frozen=True)
class Npu:
    """The accelerator of a chip.

    Attributes:
        family: such as "neutron" or "ethos-u".
        variant: the vendor's name of the size.
        clock_mhz: clock in MHz; None where the file does not say, and then there is no estimate of time.
        note: what else is worth knowing about it, or "".
        assumed: what stands in the file without a published source, one clause each; reports name them.
        own: the whole table, of which its family reads the fields that only it has.
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
        """The table, of which its family reads what only it has.

        Raises:
            OptionError: it has a field that is neither of these nor one that every family has.
        """
        self.own.refuse_others((*_NPU_FIELDS, *names))
        return self.own


_NPU_FIELDS = ("family", "variant", "clock_mhz", "note", "assumed")
"""Of the table of an accelerator, those that every family has."""


@dataclass(frozen=True)
class Memory:
    """A memory of a chip.

    Attributes:
        name: such as "sram".
        bytes: size.
        bandwidth: bytes per second that the NPU can read; None where that is not known.
        role: `ACTIVATIONS`, `WEIGHTS`, or "" for that of its name, if it has one: see `Chip.memory_for`.
        address: where the core has it; None where the file does not say.
        npu_address: where the NPU sees it, if elsewhere.
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
class EmulatedBoard:
    """The machine of QEMU that stands in for a chip, for firmware that needs no other peripheral of it.

    Attributes:
        machine: as QEMU calls it.
        note: which of the chip's memories the machine has, and which not.
    """

    machine: str
    note: str = ""


@dataclass(frozen=True)
class Chip:
    """A chip as its file describes it.

    Attributes:
        core_clock_mhz: of the core; None where the file does not say.
        core_instructions: what CMSIS-NN uses of the core where its maker has left out an extension; "" for the usual.
        npu: its accelerator; None where the core is alone.
        file: path of the user's own file that it is from; "" for a chip that comes with the package.
        external_flash: whether its flash is a chip of its own, whose size is the board's.
        same_core_as: name of the chip file whose core drives this NPU as well; "" for none.
        board: what emulates it; None where nothing does.
        boards: names of boards that have it, as their makers sell them.
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

    def memory_for(self, role: str) -> Memory | None:
        """The memory of a role: the one that claims it, or else the one of the usual name; None without either."""
        claims = next((m for m in self.memories if m.role == role), None)
        return claims or next((m for m in self.memories if m.name == _USUAL[role] and not m.role), None)


class Chips(Mapping[str, Chip]):
    """Chips by name: a value that holds those that it was made with, and never gets another one."""

    def __init__(self, *chips: Chip) -> None:
        self._chips: dict[str, Chip] = {}
        for chip in chips:
            known = self._chips.setdefault(chip.name, chip)
            if known == chip:
                continue
            if known.file:
                what = f"The chip files {known.file} and {chip.file} both describe a chip called `{chip.name}`."
            else:
                what = f"The chip file {chip.file} is called `{chip.name}`, as a chip that micronpu brings along."
            raise OptionError(what, hint="another `name` in one of the files" if known.file else "another name")

    def with_files(self, *paths: str | PathLike[str]) -> Chips:
        """These chips and those of a user's own files.

        Raises:
            OptionError: a file is missing or wrong, or two chips have one name.
        """
        return Chips(*self.values(), *(load_chip(path) for path in paths))

    def __getitem__(self, name: str) -> Chip:
        return self._chips[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._chips)

    def __len__(self) -> int:
        return len(self._chips)


def parse_chip(text: str, where: str, file: str = "") -> Chip:
    """A chip from the text of its file; ``where`` names the file in errors."""
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
    told = core.optional_text("instructions")
    return find_core(core.text("name"), told).instructions.value if told else ""


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
    """A chip from a user's own file."""
    file = check_name(path)
    if not file.is_file():
        raise OptionError(f"There is no chip file {file}.", hint="check the path")
    try:
        text = read_file(file, "The chip file").decode()
    except UnicodeDecodeError as error:
        raise OptionError(f"The chip file {file} is not UTF-8 text.", hint="save it as UTF-8") from error
    return parse_chip(text, str(file), str(file))


@functools.lru_cache(maxsize=1)
def shipped_chips() -> Chips:
    """The chips that come with the package, sorted by name."""
    files = sorted(
        (f for f in resources.files("micronpu.chips").iterdir() if f.name.endswith(".toml")), key=lambda f: f.name
    )
    return Chips(*(parse_chip(f.read_text(encoding="utf-8"), f.name) for f in files))
