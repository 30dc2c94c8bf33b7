"""Boards behind a GDB server: one of these tests with faults on demand, and QEMU's."""

from __future__ import annotations

import contextlib
import re
import socket
import struct
import subprocess
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from micronpu.board.gdb import EndedError, Packets, SilentError

FLASH, RAM, DEBUG = 0x08000000, 0x20000000, 0xE000E000
M4, M33 = 0x410FC241, 0x411FD210
_REGISTERS = "".join(f'<reg name="{"pc" if n == 15 else f"r{n}"}" bitsize="32" regnum="{n}"/>' for n in range(16))
TARGET = f'<target>{_REGISTERS}<reg name="xpsr" bitsize="32" regnum="16"/></target>'
MAP = (
    '<?xml version="1.0"?><memory-map>'
    f'<memory type="ram" start="{RAM:#x}" length="0x10000"/>'
    f'<memory type="flash" start="{FLASH:#x}" length="0x8000"><property name="blocksize">0x800</property></memory>'
    "</memory-map>"
)


def image(parts: Sequence[tuple[int, bytes]], entry: int, machine: int = 40, architecture: int | None = 13) -> bytes:
    """An ELF file with these parts, as a linker writes it."""
    start = 52 + 32 * len(parts)
    heads, body = b"", b""
    for address, data in parts:
        heads += struct.pack("<8I", 1, start + len(body), address, address, len(data), len(data), 5, 4)
        body += data
    sections, count = b"", 0
    if architecture is not None:
        inner = bytes((1,)) + struct.pack("<I", 5 + 2 + 5) + b"\x05x-m\0" + bytes((6, architecture))
        attributes = b"A" + struct.pack("<I", 4 + 6 + len(inner)) + b"aeabi\0" + inner
        sections = struct.pack("<10I", 0, 0x70000003, 0, 0, start + len(body), len(attributes), 0, 0, 1, 0)
        body += attributes
        count = 1
    head = struct.pack("<16s2H5I6H", b"\x7fELF\x01\x01\x01", 2, machine, 1, entry, 52, start + len(body), 0, 52, 32,
                       len(parts), 40, count, 0)  # fmt: skip
    return head + heads + body + sections


@dataclass
class Board:
    """How the board and its server behave.

    Attributes:
        console: what the firmware prints, call by call.
        by: how it prints and ends: "file" (File-I/O), "breakpoint" (semihosting of a halted core), "output" (packets of
            the server), "serial" (nothing on the connection).
        status: its exit status; None if it goes on for ever.
        fault: the CFSR of a hard fault with which it ends.
        drop: the number of the packet at which the connection ends, 0 for none.
        resets: its commands.
    """

    cpuid: int = M4
    memory_map: str = MAP
    console: Sequence[bytes] = (b"PASS: 1 vectors, 0 elements differ\n",)
    by: str = "file"
    status: int | None = 0
    fault: int = 0
    drop: int = 0
    resets: Sequence[str] = ("reset halt",)
    locked: bool = False
    flips: bool = False
    memories: dict[int, bytearray] = field(default_factory=dict)
    seen: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.memories = {FLASH: bytearray(b"\xff" * 0x8000), RAM: bytearray(0x10000), DEBUG: bytearray(0x1000)}
        self.memories[DEBUG][0xD00:0xD04] = struct.pack("<I", self.cpuid)
        self.registers = [0] * 17
        self.calls = list(self.console)
        self.pending: list[tuple[int, bytes]] = []

    def at(self, address: int, size: int) -> tuple[bytearray, int] | None:
        for start, memory in self.memories.items():
            if start <= address and address + size <= start + len(memory):
                return memory, address - start
        return None

    def answer(self, packet: str) -> str | None:
        """What the server says; None for nothing yet."""
        if packet.startswith("qSupported"):
            return "PacketSize=200" + (";qXfer:memory-map:read+" if self.memory_map else "")
        if match := re.fullmatch(r"qXfer:(features|memory-map):read:[\w.]*:(\w+),(\w+)", packet):
            text = TARGET if match[1] == "features" else self.memory_map
            at, size = int(match[2], 16), int(match[3], 16)
            return ("m" if at + size < len(text) else "l") + text[at : at + size]
        if packet == "?":
            return "S05"
        if packet.startswith("qRcmd,"):
            command = bytes.fromhex(packet[6:]).decode()
            return "OK" if command in self.resets else "O" + b"unknown command\n".hex() + "\0OK"
        if match := re.fullmatch(r"p([0-9a-f]|10)", packet):
            return struct.pack("<I", self.registers[int(match[1], 16)]).hex()
        if match := re.fullmatch(r"P([0-9a-f]|10)=(\w+)", packet):
            self.registers[int(match[1], 16)] = struct.unpack("<I", bytes.fromhex(match[2]))[0]
            return "OK"
        return self._memory(packet)

    def _memory(self, packet: str) -> str | None:
        if match := re.fullmatch(r"m(\w+),(\w+)", packet):
            place = self.at(int(match[1], 16), size := int(match[2], 16))
            if place is None:
                return "E14"
            found = bytearray(place[0][place[1] : place[1] + size])
            found[0] ^= int(self.flips and place[0] is self.memories[FLASH])
            return found.hex()
        if match := re.fullmatch(r"M(\w+),\w+:(\w*)", packet):
            data = bytes.fromhex(match[2])
            place = self.at(int(match[1], 16), len(data))
            if place is None:
                return "E14"
            if place[0] is not self.memories[FLASH]:
                place[0][place[1] : place[1] + len(data)] = data
            return "OK"
        if match := re.fullmatch(r"vFlashErase:(\w+),(\w+)", packet):
            address, size = (int(word, 16) for word in match.groups())
            assert address % 0x800 == 0 and size % 0x800 == 0
            place = self.at(address, size)
            assert place is not None
            place[0][place[1] : place[1] + size] = b"\xff" * size
            return "E.Flash is locked" if self.locked else "OK"
        if match := re.fullmatch(r"vFlashWrite:(\w+):(.*)", packet, re.DOTALL):
            data = re.sub(r"}(.)", lambda m: chr(ord(m[1]) ^ 32), match[2], flags=re.DOTALL).encode("latin-1")
            self.pending.append((int(match[1], 16), data))
            return "OK"
        if packet == "vFlashDone":
            for address, data in self.pending:
                place = self.at(address, len(data))
                assert place is not None and set(place[0][place[1] : place[1] + len(data)]) <= {255}  # erased
                place[0][place[1] : place[1] + len(data)] = data
            return "OK"
        if packet == "c" or packet.startswith("F"):
            return self._run()
        return ""

    def _run(self) -> str | None:
        """The next thing that the firmware does."""
        ram = self.memories[RAM]
        if self.calls:
            text = self.calls.pop(0)
            ram[0x8000 : 0x8000 + len(text) + 1] = text + b"\0"
            if self.by == "breakpoint":
                ram[0x7000:0x7002] = b"\xab\xbe"
                self.registers[0], self.registers[1], self.registers[15] = 4, RAM + 0x8000, RAM + 0x7000
                return "T05"
            return f"Fwrite,1,{RAM + 0x8000:x},{len(text):x}" if self.by == "file" else "O" + text.hex()
        if self.fault:
            self.registers[13:17] = [RAM + 0x9000, 0xFFFFFFF9, FLASH + 0x100, 3]
            ram[0x9014:0x901C] = struct.pack("<2I", FLASH + 0x21, FLASH + 0x30)
            self.memories[DEBUG][0xD28:0xD3C] = struct.pack("<5I", self.fault, 1 << 30, 0, 0, 0x1234)
            return "T05"
        if self.status is None:
            return None
        if self.by == "breakpoint":
            ram[0x8000:0x8008] = struct.pack("<2I", 0x20026, self.status)
            self.registers[0], self.registers[1], self.registers[15] = 0x20, RAM + 0x8000, RAM + 0x7000
            return "T05"
        return f"W{self.status:02x}"


@contextlib.contextmanager
def served(board: Board) -> Iterator[str]:
    """The address of a server with this board, for one connection."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(1)
    thread = threading.Thread(target=_serve, args=(listener, board), daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.close()
        thread.join(10)


def _serve(listener: socket.socket, board: Board) -> None:
    try:
        connection, _ = listener.accept()
    except OSError:
        return
    connection.settimeout(20)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    packets = Packets(connection)
    with connection, contextlib.suppress(EndedError, SilentError):
        number = 0
        while True:
            while (packet := packets.pending()) is None:
                packets.fill()
            number += 1
            board.seen.append(packet)
            if number == board.drop:
                return
            answer = "S02" if packet == "\x03" else board.answer(packet)
            for part in (answer or "").split("\0") if answer != "" else [""]:
                if answer is not None:
                    packets.send(part)
            if board.by == "output" and packet == "c":
                while answer is not None and not answer.startswith("W"):
                    answer = board.answer("c")
                    if answer is not None:
                        packets.send(answer)


@contextlib.contextmanager
def qemu(machine: str) -> Iterator[str]:
    """The address of QEMU's own GDB server, with a board that has no firmware and stands still."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)
        command = ["qemu-system-arm", "-M", machine, "-display", "none", "-monitor", "none", "-serial", "none", "-S"]
        command += ["-semihosting-config", "enable=on,target=gdb"]
        command += ["-chardev", f"socket,id=gdb,fd={listener.fileno()},server=on,wait=off", "-gdb", "chardev:gdb"]
        process = subprocess.Popen(command, pass_fds=[listener.fileno()], stdin=subprocess.DEVNULL)
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            process.kill()
            process.wait()


def written(path: Path, *more: tuple[int, bytes], **options: int | None) -> Path:
    """A firmware in flash: vectors, code and data of any bytes."""
    vectors = struct.pack("<2I", RAM + 0x8000, FLASH + 0x101)
    code = vectors + bytes(range(256)) * 9
    path.write_bytes(image([(FLASH, code), *more], FLASH + 0x101, **options))  # type: ignore[arg-type]
    return path
