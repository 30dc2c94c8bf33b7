"""ELF images: core, load addresses, symbols.  Source: the ELF specification."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

from micronpu.base.files import read_file
from micronpu.board.gdb import BoardError

_ARM = 40
_LOAD = 1
_SYMBOLS = 2
_HEADER = struct.Struct("<16s2H5I6H")
_SEGMENT = struct.Struct("<8I")
_SECTION = struct.Struct("<10I")
_SYMBOL = struct.Struct("<3I2BH")
_MOST_MEMORY = 1 << 29
"""Maximum memory of an image, one region of a Cortex-M's address space; an emulator clears all of it."""


@dataclass(frozen=True)
class Segment:
    """Bytes to load: physical address, size in the file, size in memory."""

    address: int
    file_size: int
    memory_size: int


@dataclass(frozen=True)
class Elf:
    """An image for a Cortex-M.

    Attributes:
        name: name in messages.
        data: the file.
        entry: address of the entry point.
        segments: bytes to load.
    """

    name: str
    data: bytes
    entry: int
    segments: tuple[Segment, ...]

    @classmethod
    def read(cls, path: Path) -> Elf:
        """Read an image.

        Raises:
            BoardError: it is no ELF file for a 32-bit Arm core.
        """
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
                    found.append(Segment(address, stored, needed))
        except struct.error as error:
            raise BoardError(f"{path} is truncated in its table of segments.", hint=hint) from error
        if (taken := sum(segment.memory_size for segment in found)) > _MOST_MEMORY:
            raise BoardError(f"{path} takes {taken:,} bytes of memory, more than any microcontroller has.", hint=hint)
        return cls(str(path), data, entry, tuple(found))

    def symbol(self, name: str) -> int:
        """Return the address of a symbol.

        Raises:
            BoardError: there is none.
        """
        wanted = name.encode()
        sections, size, count = struct.unpack_from("<I", self.data, 32)[0], *struct.unpack_from("<2H", self.data, 46)
        for number in range(count):
            _, kind, _, _, offset, length, link, _, _, entry = _SECTION.unpack_from(self.data, sections + number * size)
            if kind != _SYMBOLS:
                continue
            names = _SECTION.unpack_from(self.data, sections + link * size)[4]
            for at in range(offset, offset + length, entry):
                start, value, *_ = _SYMBOL.unpack_from(self.data, at)
                first = names + start
                if self.data[first : first + len(wanted) + 1] == wanted + b"\0":
                    return int(value)
        raise BoardError(f"{self.name} has no symbol {name!r}.")
