"""The part of gdb's remote protocol that QEMU's stub needs, on a socket with a time limit, and semihosting.

Semihosting is calls of the firmware to the machine that debugs it: the console and the end, and no file of this
machine. Sources: the appendices "GDB Remote Serial Protocol" and "File-I/O Remote Protocol Extension" of gdb's manual;
Arm's "Semihosting for AArch32 and AArch64".
"""

from __future__ import annotations

import contextlib
import re
import socket
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from micronpu.base.errors import MicroNpuError

PC, XPSR = 15, 16
"""Index of the program counter and of the status register in `Stub.registers`."""
_XPSR_NUMBER = 25
"""Number of xPSR in the stub; 16 to 24 are registers that no Cortex-M has."""
_CHUNK = 1900
"""Bytes of memory in a packet: two digits each, of the 4,096 characters that QEMU accepts."""
_AT_ONCE = 16
"""Maximum number of packets without an answer; their answers fit into the socket's buffer."""
_INTERRUPT = b"\x03"
_BEGINS = re.compile(rb"[$\x03]")
_PRINTED = re.compile(r"O(?:[0-9a-fA-F]{2})+")
_ERROR = re.compile(r"E[0-9a-fA-F]{2}|E\..*", re.DOTALL)


class BoardError(MicroNpuError):
    """The emulated board cannot be started, or ends unexpectedly."""


class SilentError(BoardError):
    """QEMU does not answer in time."""


class EndedError(BoardError):
    """QEMU has ended: the firmware requested it, or it was stopped."""


def is_error(answer: str) -> bool:
    return _ERROR.fullmatch(answer) is not None


def text_of(packet: str) -> bytes | None:
    """Return the text of a packet for the user; None for another packet."""
    return bytes.fromhex(packet[1:]) if _PRINTED.fullmatch(packet) else None


class Packets:
    """Framing of packets on a socket: checksums and acknowledgements."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._buffer = b""
        if connection.family in (socket.AF_INET, socket.AF_INET6):  # packets are small and wait for answers
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, *texts: str) -> None:
        packets = [text.encode("latin-1") for text in texts]
        self.send_raw(b"".join(b"$" + data + b"#%02x" % (sum(data) & 255) for data in packets))

    def send_raw(self, data: bytes) -> None:
        try:
            self.connection.sendall(data)
        except OSError as error:
            raise self.lost() from error

    def lost(self) -> EndedError:
        """Return the error about a connection that the other side has closed."""
        return EndedError("The emulator has ended.")

    def interrupt(self) -> None:
        """Request the core to stop; a stop packet follows."""
        self.send_raw(_INTERRUPT)

    def pending(self) -> str | None:
        """Return a complete packet, or None; `_INTERRUPT` is a packet."""
        while True:
            start = _BEGINS.search(self._buffer)  # after acknowledgements
            self._buffer = b"" if start is None else self._buffer[start.start() :]
            if self._buffer[:1] == _INTERRUPT:
                self._buffer = self._buffer[1:]
                return _INTERRUPT.decode()
            end = self._buffer.find(b"#", 1)
            if not 0 < end <= len(self._buffer) - 3:
                return None
            packet, told, self._buffer = self._buffer[1:end], self._buffer[end + 1 : end + 3], self._buffer[end + 3 :]
            is_whole = told.lower() == b"%02x" % (sum(packet) & 255)
            with contextlib.suppress(EndedError):  # QEMU's last packet may find a closed connection
                self.send_raw(b"+" if is_whole else b"-")  # which asks for the packet again
            if is_whole:
                return packet.decode("latin-1")

    def fill(self) -> None:
        """Read data that have arrived; wait up to the time limit of the socket.

        Raises:
            EndedError: the other side has closed the connection.
        """
        try:
            data = self.connection.recv(1 << 16)
        except TimeoutError as error:
            raise SilentError("QEMU does not answer its debugger.", hint="fewer boards at once") from error
        except OSError as error:
            raise self.lost() from error
        if not data:
            raise self.lost()
        self._buffer += data

    def receive(self) -> str:
        while (packet := self.pending()) is None:
            self.fill()
        return packet

    def answer(self, packet: str, printed: Callable[[str], None]) -> str:
        """Send a packet and return its answer; packets with text for the user before it go to ``printed``."""
        self.send(packet)
        while text_of(answer := self.receive()) is not None:
            printed(answer)
        return answer


class Stub(Packets):
    """QEMU's stub: registers, memory, watchpoints and breakpoints of a stopped core."""

    def __init__(self, connection: socket.socket, seconds: float) -> None:
        super().__init__(connection)
        connection.settimeout(seconds)
        # QEMU permits writes of single registers only after a query of their description.
        self.ask("qSupported:xmlRegisters=arm")
        self.ask("qXfer:features:read:target.xml:0,ffb")

    def ask(self, text: str) -> str:
        """Return the answer to a packet.

        Raises:
            OSError: the answer is an error, such as missing memory.
        """
        self.send(text)
        answer = self.receive()
        if is_error(answer):
            raise OSError(f"QEMU answers {answer} to {text[:40]}")
        return answer

    def ask_all(self, texts: Sequence[str]) -> list[str]:
        """Return the answers to packets, including errors; several are sent before waiting, to save time."""
        answers = []
        for first in range(0, len(texts), _AT_ONCE):
            some = texts[first : first + _AT_ONCE]
            self.send(*some)
            answers += [self.receive() for _ in some]
        return answers

    def read(self, address: int, size: int) -> bytes:
        found = self.read_most(address, size)
        if len(found) < size:
            raise OSError(f"memory ends at {address + len(found):#x}")
        return found

    def read_most(self, address: int, size: int) -> bytes:
        """Return memory from an address up to its end, at most `size` bytes."""
        parts: list[bytes] = []
        requests = [f"m{address + at:x},{min(_CHUNK, size - at):x}" for at in range(0, size, _CHUNK)]
        for number, answer in enumerate(self.ask_all(requests)):
            if is_error(answer):
                at = number * _CHUNK
                step = min(_CHUNK, size - at)
                while step := step // 2:
                    last = self.ask_all([f"m{address + at:x},{step:x}"])[0]
                    if not is_error(last):
                        parts.append(bytes.fromhex(last))
                        at += step
                break
            parts.append(bytes.fromhex(answer))
        return b"".join(parts)

    def write(self, address: int, data: bytes) -> None:
        requests = []
        for at in range(0, len(data), _CHUNK):
            part = data[at : at + _CHUNK]
            requests.append(f"M{address + at:x},{len(part):x}:{part.hex()}")
        if any(map(is_error, self.ask_all(requests))):
            raise OSError(f"no memory at {address:#x}")

    def registers(self) -> list[int]:
        """Return r0 to r15, and xPSR as the last."""
        return list(struct.unpack("<17I", bytes.fromhex(self.ask("g"))[:68]))

    def set_registers(self, values: Sequence[tuple[int, int]]) -> None:
        for index, value in values:
            number = _XPSR_NUMBER if index == XPSR else index
            self.ask(f"P{number:x}={struct.pack('<I', value & 0xFFFFFFFF).hex()}")

    def watch(self, address: int, size: int) -> None:
        """Stop the core before each access to these bytes."""
        self.ask(f"Z4,{address:x},{size:x}")

    def break_at(self, address: int) -> None:
        self.ask(f"Z0,{address & ~1:x},2")

    def unbreak_at(self, address: int) -> None:
        self.ask(f"z0,{address & ~1:x},2")

    def settle(self, seconds: float) -> None:
        """Stop a core that may be running, and discard its packets."""
        self.interrupt()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            packet = self.pending()
            if packet is not None and packet[:1] in "ST":
                return
            if packet is None:
                self.fill()


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
