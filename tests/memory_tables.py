"""The table of docs/memories.md: memories of each chip, and what the firmware folder puts into them.

python -m tests.memory_tables      # writes it
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from micronpu.chips import Chip, Memory, shipped_chips
from micronpu.targets.board import Board
from micronpu.targets.registry import find_target, options_for

PAGE = Path(__file__).parents[1] / "docs" / "memories.md"
BEGIN, END = "<!-- memories: made by `python -m tests.memory_tables` -->", "<!-- end of memories -->"
HEAD = "| chip | NPU and core | programs | pools | scratch of the NPU | other memories |"


def board(chip: Chip) -> Board:
    """The board of a chip's first target, compiled for with default options."""
    target = find_target(chip.targets[0].name)
    mode = getattr(options_for(target), "memory_mode", None) or ""
    return Board(target.name, chip, chip.core, memory_mode=mode)


def clock(mhz: float | None) -> str:
    return "" if mhz is None else f", {mhz:g} MHz"


def place(chip: Chip, name: str) -> str:
    """A memory with its size and addresses; the name alone where the chip file does not describe it."""
    found = [memory for memory in chip.memories if memory.name == name]
    return described(found[0]) if found else f"{name} of the board" if chip.external_flash else name


def described(memory: Memory) -> str:
    text = str(memory).partition(",")[0]
    if memory.address is not None:
        text += f" at 0x{memory.address:08x}"
    if memory.npu_address is not None:
        text += f" (NPU: 0x{memory.npu_address:08x})"
    return text


def row(chip: Chip) -> str:
    at = board(chip)
    dedicated = bool(at.fast_scratch)
    programs = place(chip, at.flash)
    if at.is_resident:
        programs += f", copied at start-up from {place(chip, at.stored)}"
    scratch = "–"
    if at.memory_mode:
        scratch = f"{at.far}, and {at.fast_scratch // 1024} KB of {at.sram}" if dedicated else at.sram
    used = {at.flash, at.sram, at.stored, at.far if dedicated else ""}
    others = ", ".join(described(memory) for memory in chip.memories if memory.name not in used) or "–"
    core = f"{chip.core.replace('cortex-', 'Cortex-').replace('-m', '-M').replace('-a', '-A').replace('-r', '-R')}"
    npu = chip.npu
    names = {"neutron": "Neutron", "ethos-u": "Ethos"}
    parts = [] if npu is None else [f"{names[npu.family]}-{npu.variant}{clock(npu.clock_mhz)}"]
    parts.append(core + clock(chip.core_clock_mhz))
    return f"| `{chip.name}` | {'; '.join(parts)} | {programs} | {place(chip, at.sram)} | {scratch} | {others} |"


def lines() -> Iterator[str]:
    yield from (BEGIN, "", HEAD, "|---|---|---|---|---|---|")
    yield from (row(chip) for chip in shipped_chips().values())
    yield from ("", END)


def page_with_table(text: str) -> str:
    before, _, rest = text.partition(BEGIN)
    return before + "\n".join(lines()) + rest.partition(END)[2]


if __name__ == "__main__":
    PAGE.write_text(page_with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
