"""Calls of the firmware to the machine that debugs it: the console and the end, and no file of this machine.

Sources: Arm's "Semihosting for AArch32 and AArch64", and "File-I/O Remote Protocol Extension" in gdb's manual.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

BREAKPOINT = b"\xab\xbe"
"""The instruction BKPT 0xAB."""
_CONSOLE = (1, 2)
"""Files that are the console: standard output, and where errors go."""
_MOST = 1 << 20
"""Bytes of one call, and of a text without an end."""
_OPEN, _CLOSE, _WRITEC, _WRITE0, _WRITE, _READ, _IS_TTY = 0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x09
_EXIT, _EXIT_EXTENDED, _CLOCK, _TIME, _ERRNO = 0x18, 0x20, 0x10, 0x11, 0x13
_APPLICATION_EXIT = 0x20026
_REFUSED = 0xFFFFFFFF

Read = Callable[[int, int], bytes]
"""Read memory: address, bytes."""


@dataclass(frozen=True)
class SemihostingEffects:
    """Effects of a call.

    Attributes:
        answer: what goes to the firmware: r0, or gdb's packet.
        printed: bytes for the console.
        status: exit status if it is the end, else None.
    """

    answer: int | str
    printed: bytes = b""
    status: int | None = None


def of_packet(packet: str, read: Read) -> SemihostingEffects:
    """A call as gdb's File-I/O passes it, such as ``Fwrite,1,20000000,5``."""
    name, *words = packet[1:].split(",")
    try:
        numbers = [int(word.split("/")[0], 16) for word in words]
    except ValueError:
        return SemihostingEffects("F-1,1")
    if name == "write" and len(numbers) == 3 and numbers[0] in _CONSOLE:
        return SemihostingEffects(f"F{numbers[2]:x}", read(numbers[1], min(numbers[2], _MOST)))
    if name in ("isatty", "read", "close"):
        return SemihostingEffects("F1" if name == "isatty" else "F0")
    return SemihostingEffects("F-1,1")


def of_breakpoint(operation: int, argument: int, read: Read) -> SemihostingEffects:
    """A call of a core that has halted at `BREAKPOINT`, with r0 and r1."""

    def words(count: int) -> tuple[int, ...]:
        return struct.unpack(f"<{count}I", read(argument, 4 * count))

    if operation == _WRITE0:
        return SemihostingEffects(operation, _text(argument, read))
    if operation == _WRITEC:
        return SemihostingEffects(operation, read(argument, 1))
    if operation == _WRITE:
        _, address, size = words(3)
        return SemihostingEffects(0, read(address, min(size, _MOST)))
    if operation == _READ:
        return SemihostingEffects(words(3)[2])  # nothing was read: the end of the file
    if operation == _OPEN:
        address, _, size = words(3)
        return SemihostingEffects(1 if read(address, min(size, 3)) == b":tt" else _REFUSED)
    if operation == _EXIT:
        return SemihostingEffects(0, status=0 if argument == _APPLICATION_EXIT else 1)
    if operation == _EXIT_EXTENDED:
        reason, status = words(2)
        return SemihostingEffects(0, status=status & 0xFF if reason == _APPLICATION_EXIT else 1)
    return SemihostingEffects({_CLOSE: 0, _IS_TTY: 1, _CLOCK: 0, _TIME: 0, _ERRNO: 0}.get(operation, _REFUSED))


def _text(address: int, read: Read) -> bytes:
    """Bytes up to the first zero, which may be the last of a memory."""
    found = b""
    while b"\0" not in found and len(found) < _MOST:
        step = 64 - (address + len(found)) % 64  # never across a boundary at which a memory may end
        found += read(address + len(found), step)
    return found.partition(b"\0")[0]
