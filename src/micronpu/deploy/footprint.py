"""Sizes of a linked firmware by component, from its ELF file and GNU ld's map."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from micronpu.base.files import read_file
from micronpu.board.elf import Elf, Section
from micronpu.deploy.integration import component_of
from micronpu.deploy.shared import SHARED

_COMPILERS = re.compile(r"(c|g|m|gcc|nosys|rdimon|(std|sup)c\+\+)(_nano)?")
"""Libraries of Arm's GNU toolchain."""
_START = "Linker script and memory map"
_OUTPUT = re.compile(r"^([._A-Za-z]\S*)(?:\s+0x[0-9a-f]+\s+0x[0-9a-f]+(\s+load address)?)?", re.ASCII)
_INPUT = re.compile(r"^ [^\s*]\S*\s+0x([0-9a-f]+)\s+0x([0-9a-f]+) (\S.*)$", re.ASCII)
_ARCHIVE = re.compile(r"lib([^/]+)\.a\(([^()]*)\)$")


@dataclass(frozen=True)
class Component:
    """A part of a firmware.

    Attributes:
        name: of the part: "program", "pools", "application", or of a library.
        flash: bytes that are stored: code, constants, and initial values of variables.
        ram: bytes of variables, and of what is copied to RAM at the start.
    """

    name: str
    flash: int
    ram: int


def footprint(image: Path, linker_map: Path) -> tuple[Component, ...]:
    """Return the components of a firmware, without empty ones; their sums are the sizes of the sections."""
    elf = Elf.read(image)
    text = read_file(linker_map, "The linker's map").decode(errors="replace")
    pieces = _pieces(text.partition(_START)[2].splitlines())
    sizes: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for section in elf.sections():
        parts, is_copied = pieces.get(section.name, ([], False))
        for name, size in _without_overlap(section, parts):
            sizes[name][0] += size if section.is_stored else 0
            sizes[name][1] += size if section.is_writable or is_copied or not section.is_stored else 0
    return tuple(Component(name, *size) for name, size in sizes.items() if any(size))


_Piece = tuple[int, int, str]
"""Address, size and component."""


def _without_overlap(section: Section, parts: Iterable[_Piece]) -> Iterator[tuple[str, int]]:
    """Yield component and size of the pieces of a section, and of what is between them.

    The linker lists a constant that it has merged with another at the place of that one.
    """
    at, end = section.address, section.address + section.size
    gaps = 0
    for begin, size, name in sorted(parts):
        upto = min(begin + size, end)
        if upto > at:
            gaps += max(begin - at, 0)
            yield name, upto - max(begin, at)
            at = upto
    yield ("alignment" if parts else section.name.lstrip(".")), gaps + end - at


def _pieces(lines: Iterable[str]) -> dict[str, tuple[list[_Piece], bool]]:
    """Return the pieces of each output section by its name, and whether it is copied at the start."""
    found: dict[str, tuple[list[_Piece], bool]] = {}
    parts: list[_Piece] = []
    for line in _joined(lines):
        if (output := _OUTPUT.match(line)) is not None:
            parts = []
            found[output[1]] = (parts, output[2] is not None)
        elif (piece := _INPUT.match(line)) is not None and (size := int(piece[2], 16)):
            parts.append((int(piece[1], 16), size, _component(piece[3])))
    return found


def _joined(lines: Iterable[str]) -> Iterator[str]:
    """Yield lines, each long name with what the linker writes into the line after it."""
    before = ""
    for line in lines:
        if re.fullmatch(r" ?[._A-Za-z]\S*", line):
            before = line
            continue
        yield f"{before} {line.strip()}" if before and line.startswith(" " * 8) else line
        before = ""


def _component(file: str) -> str:
    """Return the component of an object file, as the linker names it."""
    archive = _ARCHIVE.search(file)
    if archive is None or archive[1] == SHARED:
        name = (archive[2] if archive is not None else file).rpartition("/")[2]
        if re.fullmatch(r"crt\w+\.o", name):
            return "C library"
        if re.fullmatch(r"\w+\.S\.o(bj)?", name):
            return "program"
        return "pools" if name.startswith(f"{SHARED}_pools.") else "application"
    return "C library" if _COMPILERS.fullmatch(archive[1]) else component_of(archive[1])
