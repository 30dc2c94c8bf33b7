"""Which boards can be emulated: those of a table, and chips whose file says where their NPU is."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources

from micronpu.base.errors import OptionError
from micronpu.base.parsing import parse_toml
from micronpu.chips import Chip, shipped_chips
from micronpu.targets.ethosu.accelerators import find_accelerator
from micronpu.targets.ethosu.npu import EthosUNpu


@dataclass(frozen=True)
class NpuPlace:
    """Where a board has an NPU: its registers' non-secure address, and its interrupt."""

    base: int
    irq: int


@dataclass(frozen=True)
class BoardSpec:
    """A board that can be emulated.

    Attributes:
        name: as the user asks for it.
        title: what it is.
        machine: of QEMU.
        core: that it stands for.
        npus: where its NPUs are.
        families: of Ethos-U that it may have, such as "u55".
        cpuid: what the core is to say that it is; 0 for what it says by itself.
        vectors: where the image's vector table is; None where the machine's core looks for it.
        note: in what it is not the board.
        usual: its NPU unless another is asked for; "" for the usual one of its family.
        aliases: (address for the NPU, address for the core, bytes) of memories that both see at other addresses.
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
    """Every board by name: of the table, then the chips whose file has a table ``[board]``."""
    text = resources.files("micronpu.board").joinpath("boards.toml").read_text(encoding="utf-8")
    found = {
        name: BoardSpec(
            name,
            entry["title"],
            entry["machine"],
            entry["core"],
            tuple(NpuPlace(**place) for place in entry.get("npus", ())),
            tuple(entry.get("families", ())),
            entry.get("cpuid", 0),
            entry.get("vectors"),
            entry.get("note", ""),
        )
        for name, entry in parse_toml(text).items()
    }
    return found | {chip.name: _of_chip(chip) for chip in shipped_chips().values() if chip.board is not None}


def _of_chip(chip: Chip) -> BoardSpec:
    npu, told = EthosUNpu.of(chip), chip.board
    assert told is not None
    if npu.base is None or npu.interrupt is None:
        raise OptionError(
            f"The chip file {chip.file or chip.name} has a table [board], and does not say where its NPU is.",
            hint="`base` and `interrupt` in its table [npu]",
        )
    return BoardSpec(
        chip.name,
        chip.title,
        told.machine,
        chip.core,
        (NpuPlace(npu.base, npu.interrupt),),
        (find_accelerator(npu.accelerator).family,),
        note=told.note,
        usual=npu.accelerator,
        aliases=tuple((m.npu_address, m.address or 0, m.bytes) for m in chip.memories if m.npu_address),
    )


def find_board(name: str) -> BoardSpec:
    """The board of a name.

    Raises:
        OptionError: there is none; the message lists those that there are.
    """
    found = boards().get(name)
    if found is None:
        raise OptionError(f"There is no emulated board {name!r}.", hint=f"one of {', '.join(boards())}")
    return found
