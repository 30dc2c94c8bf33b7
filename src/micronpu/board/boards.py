"""Boards that can be emulated: those of a table, and chips whose file has the place of their NPU."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources

from micronpu.base.errors import OptionError
from micronpu.base.parsing import parse_toml
from micronpu.chips import Chip, shipped_chips
from micronpu.report.codec import decode
from micronpu.targets.ethosu.accelerators import find_accelerator
from micronpu.targets.ethosu.npu import EthosUNpu


@dataclass(frozen=True)
class NpuPlace:
    """Place of a board's NPU: the non-secure address of its registers, and its interrupt."""

    base: int
    irq: int


@dataclass(frozen=True)
class BoardSpec:
    """A board that can be emulated.

    Attributes:
        name: name for the user.
        title: description.
        machine: machine of QEMU.
        core: the emulated core.
        npus: places of its NPUs.
        families: generations of Ethos-U that it may have, such as "u55".
        cpuid: value of the core's CPUID register; 0 for QEMU's.
        vectors: address of the image's vector table; None for the machine's default.
        note: differences from the real board.
        usual: its default NPU; "" for the default of its generation.
        aliases: (address for the NPU, address for the core, bytes) of memories at different addresses for both.
    """

    name: str
    title: str
    machine: str
    core: str
    npus: tuple[NpuPlace, ...] = ()
    families: tuple[str, ...] = ()
    cpuid: int = 0
    vectors: int | None = None
    note: str = ""
    usual: str = ""
    aliases: tuple[tuple[int, int, int], ...] = ()


@functools.cache
def boards() -> Mapping[str, BoardSpec]:
    """Return every board by name: of the table, then the chips whose file has a table ``[board]``."""
    text = resources.files("micronpu.board").joinpath("boards.toml").read_text(encoding="utf-8")
    found = {name: decode(BoardSpec, {"name": name, **entry}) for name, entry in parse_toml(text).items()}
    return found | {chip.name: _of_chip(chip) for chip in shipped_chips().values() if chip.board is not None}


def _of_chip(chip: Chip) -> BoardSpec:
    npu, entry = EthosUNpu.of(chip), chip.board
    assert entry is not None
    if npu.base is None or npu.interrupt is None:
        raise OptionError(
            f"The chip file {chip.file or chip.name} has a table [board], and does not say where its NPU is.",
            hint="`base` and `interrupt` in its table [npu]",
        )
    return BoardSpec(
        chip.name,
        chip.title,
        entry.machine,
        chip.core,
        (NpuPlace(npu.base, npu.interrupt),),
        (find_accelerator(npu.accelerator).family,),
        note=entry.note,
        usual=npu.accelerator,
        aliases=tuple((m.npu_address, m.address or 0, m.bytes) for m in chip.memories if m.npu_address),
    )


def find_board(name: str) -> BoardSpec:
    """Return the board of a name.

    Raises:
        OptionError: there is none; the message lists the known ones.
    """
    found = boards().get(name)
    if found is None:
        raise OptionError(f"There is no emulated board {name!r}.", hint=f"one of {', '.join(boards())}")
    return found
