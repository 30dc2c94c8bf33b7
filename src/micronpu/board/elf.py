"""ELF images: core, load addresses, symbols.  Source: the ELF specification.

The package pyelftools would save about 65 lines. It is not used, because it takes 1.5 CPU seconds for the 32,908
symbols of Arm's runner where this module takes less than 0.1, and every installation would need it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from micronpu.base.files import read_file
from micronpu.board.gdb import BoardError

_ARM = 40
_LOAD = 1
_SYMBOLS = 2
_NO_BITS = 8
_WRITABLE, _ALLOCATED = 1, 2
_FUNCTION = 2
_ATTRIBUTES = 0x70000003
_TAG_ARCHITECTURE, _TAG_COMPATIBILITY = 6, 32
_TEXTS = (4, 5)
"""Tags of build attributes below 32 whose value is a text."""
_HEADER = struct.Struct("<16s2H5I6H")
_SEGMENT = struct.Struct("<8I")
_SECTION = struct.Struct("<10I")
_SYMBOL = struct.Struct("<3I2BH")
_MOST_MEMORY = 1 << 29
"""Maximum memory of an image, one region of a Cortex-M's address space; an emulator clears all of it."""


@dataclass(frozen=True)
class Segment:
    """Bytes to load: physical address, size in the file, size in memory, offset in the file."""

    address: int
    file_size: int
    memory_size: int
    offset: int


@dataclass(frozen=True)
class ElfSegment:
    """Bytes and the address at which they are loaded."""

    address: int
    data: bytes


@dataclass(frozen=True)
class Section:
    """A section that takes memory: name, address, bytes, whether the file has its contents, whether it is written."""

    name: str
    address: int
    size: int
    is_stored: bool
    is_writable: bool


class _Entry(NamedTuple):
    """A line of the table of sections."""

    name: int
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int
    entry: int


@dataclass(frozen=True)
class Elf:
    """An image for a Cortex-M.

    Attributes:
        name: name in messages.
        entry: address of the entry point.
        segments: bytes to load.
    """

    name: str
    data: bytes
    entry: int
    segments: tuple[Segment, ...]

    @classmethod
    def read(cls, path: Path) -> Elf:
        """Read an image."""
        data = read_file(path, "The firmware")
        hint = "an image that arm-none-eabi-gcc or armclang has linked"
        if data[:4] != b"\x7fELF" or len(data) < _HEADER.size:
            raise BoardError(f"{path} is no ELF file.", hint=hint)
        if data[4] != 1 or data[5] != 1:
            raise BoardError(f"{path} is an ELF file, but not for a 32-bit Cortex-M.", hint=hint)
        _, kind, machine, _, entry, segments, _, _, _, size, count, *_ = _HEADER.unpack_from(data)
        if machine != _ARM or kind != 2:
            what = "is for another core" if machine != _ARM else "is not linked to an image"
            raise BoardError(f"{path} {what}, so that no Cortex-M runs it.", hint=hint)
        found = []
        try:
            for number in range(count):
                kind, offset, _, address, stored, needed, _, _ = _SEGMENT.unpack_from(data, segments + number * size)
                if kind == _LOAD and needed:
                    if offset + stored > len(data):
                        raise BoardError(f"{path} is truncated: a segment of it ends behind the file.", hint=hint)
                    if stored > needed or address + needed > 1 << 32:
                        raise BoardError(f"{path} is damaged: a segment of it has no place in memory.", hint=hint)
                    found.append(Segment(address, stored, needed, offset))
        except struct.error as error:
            raise BoardError(f"{path} is truncated in its table of segments.", hint=hint) from error
        if (taken := sum(segment.memory_size for segment in found)) > _MOST_MEMORY:
            raise BoardError(f"{path} takes {taken:,} bytes of memory, more than any microcontroller has.", hint=hint)
        return cls(str(path), data, entry, tuple(found))

    @property
    def parts(self) -> tuple[ElfSegment, ...]:
        """Contents of the loaded segments, by address."""
        found = [
            ElfSegment(s.address, self.data[s.offset : s.offset + s.file_size]) for s in self.segments if s.file_size
        ]
        return tuple(sorted(found, key=lambda part: part.address))

    @property
    def vectors(self) -> int | None:
        """Address of the vector table: that of the part whose second word is the entry; None without one."""
        for part in self.parts:
            if len(part.data) >= 8 and struct.unpack_from("<I", part.data, 4)[0] | 1 == self.entry | 1:
                return part.address
        return None

    def symbol(self, name: str) -> int:
        """Return the address of a symbol."""
        for found, value, _ in self._symbols():
            if found == name:
                return value
        raise BoardError(f"{self.name} has no symbol {name!r}.")

    def function_at(self, address: int) -> str:
        """Name of the function with an address; "" without symbols."""
        best = max(
            ((v & ~1, n) for n, v, kind in self._symbols() if kind == _FUNCTION and v & ~1 <= address), default=None
        )
        return best[1] if best is not None else ""

    @property
    def architecture(self) -> int | None:
        """Tag_CPU_arch of its build attributes; None if it has none.  Source: Arm's ABI addenda."""
        section = next((one for one in self._sections() if one.kind == _ATTRIBUTES), None)
        data = b"" if section is None else self.data[section.offset : section.offset + section.size]
        start = data.find(b"aeabi\0\x01")
        try:
            return _attribute(data, start + 11, _TAG_ARCHITECTURE) if start >= 0 else None
        except (IndexError, ValueError):
            return None

    def sections(self) -> Iterator[Section]:
        """Yield the sections that take memory."""
        found = list(self._sections())
        number = struct.unpack_from("<H", self.data, 50)[0]
        names = found[number].offset if number < len(found) else len(self.data)
        for one in found:
            if one.flags & _ALLOCATED and one.size:
                name, is_stored = self._text(names + one.name), one.kind != _NO_BITS
                yield Section(name, one.address, one.size, is_stored, bool(one.flags & _WRITABLE))

    def _sections(self) -> Iterator[_Entry]:
        """The table of sections; none of a damaged one."""
        table, size, count = struct.unpack_from("<I", self.data, 32)[0], *struct.unpack_from("<2H", self.data, 46)
        for at in range(table, table + count * size, size or 1):
            if at + _SECTION.size > len(self.data):
                return
            yield _Entry(*_SECTION.unpack_from(self.data, at))

    def _symbols(self) -> Iterator[tuple[str, int, int]]:
        """Name, value and type of each symbol."""
        sections = list(self._sections())
        for one in sections:
            if one.kind != _SYMBOLS or one.link >= len(sections) or one.entry < _SYMBOL.size:
                continue
            names = sections[one.link].offset
            last = min(one.offset + one.size, len(self.data) - _SYMBOL.size + 1)
            for at in range(one.offset, last, one.entry):
                start, value, _, info, _, _ = _SYMBOL.unpack_from(self.data, at)
                yield self._text(names + start), value, info & 15

    def _text(self, at: int) -> str:
        return self.data[at : self.data.find(b"\0", at)].decode(errors="replace")


def _attribute(data: bytes, at: int, wanted: int) -> int | None:
    """Value of a number among build attributes."""
    while at < len(data):
        tag, at = _number(data, at)
        if tag in _TEXTS or (tag > _TAG_COMPATIBILITY and tag % 2):
            at = data.index(b"\0", at) + 1
            continue
        value, at = _number(data, at)
        if tag == wanted:
            return value
        if tag == _TAG_COMPATIBILITY:
            at = data.index(b"\0", at) + 1
    return None


def _number(data: bytes, at: int) -> tuple[int, int]:
    """An unsigned LEB128 number, and where it ends."""
    value = shift = 0
    while data[at] & 0x80:
        value |= (data[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
    return value | data[at] << shift, at + 1
