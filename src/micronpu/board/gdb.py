"""The part of gdb's remote protocol that QEMU's stub needs, on a socket with a time limit.

Source of the packets: the appendix "GDB Remote Serial Protocol" of gdb's manual.
"""

from __future__ import annotations

import contextlib
import re
import socket
import struct
import time
from collections.abc import Callable, Sequence

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
        while self._buffer and self._buffer[:1] not in (b"$", _INTERRUPT):
            self._buffer = self._buffer[1:]  # acknowledgements
        if self._buffer[:1] == _INTERRUPT:
            self._buffer = self._buffer[1:]
            return _INTERRUPT.decode()
        end = self._buffer.find(b"#", 1)
        if not 0 < end <= len(self._buffer) - 3:
            return None
        packet, self._buffer = self._buffer[1:end], self._buffer[end + 3 :]
        with contextlib.suppress(EndedError):  # QEMU's last packet may find a closed connection
            self.send_raw(b"+")
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
        """Return the next packet."""
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

    def set_register(self, index: int, value: int) -> None:
        number = _XPSR_NUMBER if index == XPSR else index
        self.ask(f"P{number:x}={struct.pack('<I', value & 0xFFFFFFFF).hex()}")

    def set_registers(self, values: Sequence[tuple[int, int]]) -> None:
        for index, value in values:
            self.set_register(index, value)

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
