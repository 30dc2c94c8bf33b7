"""Which boards can be emulated: those of a table, and chips whose file says where their NPU is."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources

from micronpu.base.errors import OptionError
from micronpu.base.parsing import parse_toml


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


@functools.cache
def boards() -> Mapping[str, BoardSpec]:
    """Every board of the table by name."""
    text = resources.files("micronpu.board").joinpath("boards.toml").read_text(encoding="utf-8")
    return {
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


def find_board(name: str) -> BoardSpec:
    """The board of a name.

    Raises:
        OptionError: there is none; the message lists those that there are.
    """
    found = boards().get(name)
    if found is None:
        raise OptionError(f"There is no emulated board {name!r}.", hint=f"one of {', '.join(boards())}")
    return found
