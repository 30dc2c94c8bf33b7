"""A board behind a GDB server: OpenOCD, pyOCD, J-Link, ST-LINK, QEMU.

Source: the appendix "GDB Remote Serial Protocol" of gdb's manual. Packets are sent one at a time, as gdb does, because
servers of debug probes expect it.
"""

from __future__ import annotations

import contextlib
import math
import re
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from micronpu.base.errors import OptionError
from micronpu.board.elf import ElfSegment
from micronpu.board.gdb import BoardError, EndedError, Packets, SilentError, is_error, text_of

PC, LR, SP = 15, 14, 13
XPSR = "xpsr"
CPUID, VTOR = 0xE000ED00, 0xE000ED08
_DEMCR = 0xE000EDFC
_CATCH = 0x7D0
"""Bits of DEMCR that halt the core on a fault, without NOCPERR, which an RTOS may use."""
_CONNECT_SECONDS = 10.0
_PACKET_BYTES = 400
"""Length of a packet that every server takes. Source: gdb's default."""
_LONGEST_ANSWER = 1 << 20
_LONGEST_DOCUMENT = 1 << 16
"""Characters of a memory map, or of a description of registers."""
_NOT_A_COMMAND = re.compile(r"unknown|invalid|not (found|supported|recogni)|unsupported|\berror\b", re.IGNORECASE)
_ATTRIBUTE = re.compile(r"\b(\w{1,32})\s{0,8}=\s{0,8}[\"']([^\"'<>]*)[\"']")
_ESCAPED = frozenset(b"#$}*")


class RefusedRequestError(BoardError):
    """The server has no such memory or register."""


@dataclass(frozen=True)
class RemoteMemory:
    """A memory of the server's map.

    Attributes:
        kind: "ram", "rom" or "flash".
        start, size: in bytes.
        block: bytes that are erased together; 0 without flash.
    """

    kind: str
    start: int
    size: int
    block: int = 0

    def __str__(self) -> str:
        return f"{self.kind} {self.start:#x} to {self.start + self.size - 1:#x}"

    @property
    def end(self) -> int:
        return self.start + self.size


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of "HOST:PORT" or ":PORT"."""
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise OptionError(f"{text!r} is no HOST:PORT of a GDB server.", hint="--gdb localhost:3333")
    return host.strip("[]") or "localhost", int(port)


def read_map(text: str) -> tuple[RemoteMemory, ...]:
    """The memories of a map in XML, as ``qXfer:memory-map`` answers it, by address."""
    found = []
    for match in re.finditer(r"<memory\s([^<>]*)>", text):
        attributes = match[1]
        body = "" if attributes.endswith("/") else text[match.end() :].partition("</memory>")[0]
        values = dict(_ATTRIBUTE.findall(attributes))
        blocks = re.search(r"<property\s{1,8}name=[\"']blocksize[\"']\s*>\s*(\w+)", body)
        try:
            kind, block = values["type"], int(blocks[1], 0) if blocks else 0
            region = RemoteMemory(kind, int(values["start"], 0), int(values["length"], 0), block)
            if min(region.start, region.size, block) < 0 or region.end > 1 << 32:
                raise ValueError("outside of the address space")
        except (KeyError, ValueError) as error:
            raise BoardError(f"The GDB server's memory map is damaged: {attributes[:60]!r}.") from error
        if region.kind == "flash" and region.block <= 0:
            raise BoardError(f"The GDB server's memory map has no block size for {region}.")
        found.append(region)
    return tuple(sorted(found, key=lambda region: region.start))


class Remote(Packets):
    """A connection to a GDB server.

        with Remote("localhost:3333", seconds=60) as remote:
            remote.load(elf.parts)

    Args:
        address: "HOST:PORT".
        seconds: time limit of each answer; erasing flash may take long.

    Attributes:
        said: what the server has printed for the user.
        is_emulated: True for QEMU.

    Raises:
        BoardError: there is no server.
    """

    def __init__(self, address: str, seconds: float = 60.0) -> None:
        self.where = address
        self._doing, self._seconds = "connecting", seconds
        self._end, self._together = time.monotonic() + seconds, False
        self.said = ""
        try:
            connection = socket.create_connection(parse_address(address), _CONNECT_SECONDS)
        except OSError as error:
            raise BoardError(
                f"There is no GDB server at {address}: {error.strerror or error}.",
                hint="start openocd, pyocd gdbserver, JLinkGDBServer or the like first, and look for its port",
            ) from error
        super().__init__(connection)
        try:
            connection.settimeout(1.0)
            features = self.ask("qSupported:xmlRegisters=arm;qXfer:memory-map:read+")
            size = re.search(r"PacketSize=([0-9a-fA-F]+)", features)
            self._packet = max(min(int(size[1], 16), 1 << 14), _PACKET_BYTES) if size else _PACKET_BYTES
            self._numbers = self._read_registers()
            self.ask("?")
            # Only QEMU knows this packet; an emulated board's cycles are estimates.
            self.is_emulated = self.ask("qqemu.sstepbits").startswith("ENABLE")
            has_map = "qXfer:memory-map:read+" in features
            self.map = read_map(self._transfer("memory-map", "")) if has_map else ()
        except BaseException:
            self.close()
            raise

    @contextlib.contextmanager
    def doing(self, what: str) -> Iterator[None]:
        """Name what is under way, for the message about a lost connection."""
        before, self._doing = self._doing, what
        yield
        self._doing = before

    # -- packets

    def lost(self) -> EndedError:
        return EndedError(
            f"The connection to the GDB server at {self.where} was lost while {self._doing}.",
            hint="the server's own messages, the probe's cable, power of the board",
        )

    def receive(self, seconds: float | None = None) -> str:
        """The next packet, with escapes and runs expanded."""
        end = self._end if seconds is None else time.monotonic() + seconds
        while time.monotonic() <= end and len(self._buffer) <= _LONGEST_ANSWER:
            if (packet := self.pending()) is not None:
                return _expanded(packet)
            with contextlib.suppress(SilentError):
                self.fill()
        raise SilentError(
            f"The GDB server at {self.where} did not answer within {self._seconds:g} seconds while {self._doing}.",
            hint="the server's own messages; --time-limit, if erasing takes longer",
        )

    def ask(self, text: str) -> str:
        """The answer to a packet; what the server prints meanwhile is kept in `said`."""
        if not self._together:
            self._end = time.monotonic() + self._seconds
        return self.answer(text, self._keep)

    @contextlib.contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """Give all questions together one time limit."""
        before = self._together, self._end
        self._together, self._end = True, min(time.monotonic() + seconds, self._end if self._together else math.inf)
        yield
        self._together, self._end = before

    def _keep(self, packet: str) -> None:
        self.said = (self.said + (text_of(packet) or b"").decode(errors="replace"))[:_LONGEST_DOCUMENT]

    def _transfer(self, kind: str, annex: str) -> str:
        """A document of the server, whole."""
        text = ""
        with self.within(self._seconds):
            while len(text) <= _LONGEST_DOCUMENT:
                part = self.ask(f"qXfer:{kind}:read:{annex}:{len(text):x},{self._packet - 16:x}")
                if part[:1] not in ("m", "l"):
                    return ""
                text += part[1:]
                if (part[0] == "l" or len(part) == 1) and len(text) <= _LONGEST_DOCUMENT:
                    return text
        raise BoardError(f"The GDB server at {self.where} has a {kind} of more than {_LONGEST_DOCUMENT:,} characters.")

    def command(self, text: str) -> str | None:
        """Return the output of a server's own command; None if the server does not have it."""
        before, self.said = self.said, ""
        answer = self.ask(f"qRcmd,{text.encode().hex()}")
        printed, self.said = self.said, before + self.said
        refused = not answer or is_error(answer) or _NOT_A_COMMAND.search(printed)
        return None if refused else printed

    # -- registers and memory

    def _read_registers(self) -> dict[str, int]:
        """Numbers of the registers by name, as the server describes them."""
        text = self._transfer("features", "target.xml")
        for annex in re.findall(r"<xi:include\s+href=[\"']([\w.-]{1,64})[\"']", text)[:8]:
            text += self._transfer("features", annex)
        found = {}
        for attributes in re.findall(r"<reg\s([^<>]*)>", text):
            values = dict(_ATTRIBUTE.findall(attributes))
            if re.fullmatch("[0-9]{1,4}", values.get("regnum", "")):
                found[values.get("name", "").lower()] = int(values["regnum"])
        return found

    def register(self, which: int | str) -> int:
        """Value of r0 to r15 by number, or of `XPSR`."""
        answer = self.ask(f"p{self._number(which):x}")
        try:
            return int(struct.unpack("<I", bytes.fromhex(answer)[:4])[0])
        except (ValueError, struct.error) as error:
            raise RefusedRequestError(
                f"The GDB server at {self.where} has no register {which}: {answer[:40]!r}."
            ) from error

    def set_register(self, which: int | str, value: int) -> None:
        """Write r0 to r15 by number, or `XPSR`."""
        if self.ask(f"P{self._number(which):x}={struct.pack('<I', value & 0xFFFFFFFF).hex()}") != "OK":
            raise RefusedRequestError(f"The GDB server at {self.where} does not write the register {which}.")

    def _number(self, which: int | str) -> int:
        return which if isinstance(which, int) else self._numbers.get(which, 25)

    def read(self, address: int, size: int) -> bytes:
        """Memory."""
        found = b""
        step = (self._packet - 8) // 2
        while len(found) < size:
            at = address + len(found)
            answer = self.ask(f"m{at:x},{min(step, size - len(found)):x}")
            try:
                part = bytes.fromhex(answer)
            except ValueError:
                part = b""
            if not part or len(part) > size - len(found):
                raise RefusedRequestError(
                    f"The board has no memory at {at:#x}: the GDB server answers {answer[:40]!r}."
                )
            found += part
        return found

    def word(self, address: int) -> int:
        return int(struct.unpack("<I", self.read(address, 4))[0])

    def write(self, address: int, data: bytes) -> None:
        """Write RAM."""
        step = (self._packet - 32) // 2
        for at in range(0, len(data), step):
            part = data[at : at + step]
            if self.ask(f"M{address + at:x},{len(part):x}:{part.hex()}") != "OK":
                raise RefusedRequestError(
                    f"The board has no RAM at {address + at:#x}.", hint="a linker script for the memories of this board"
                )

    # -- loading

    def load(self, parts: Sequence[ElfSegment]) -> bool:
        """Write a firmware to flash and RAM and verify it; return True if any of it is in flash.

        Raises:
            BoardError: a part has no memory, flash is locked, or what is read back differs. Nothing is written if the
                map lacks a memory.
        """
        flash: list[tuple[RemoteMemory, ElfSegment]] = []
        ram: list[ElfSegment] = []
        for part in parts:
            for region, piece in self._split(part):
                if region is not None and region.kind == "flash":
                    flash.append((region, piece))
                else:
                    ram.append(piece)
        if flash:
            with self.doing("writing flash"):
                self._write_flash(flash)
        with self.doing("writing RAM"):
            for piece in ram:
                self.write(piece.address, piece.data)
        with self.doing("reading the firmware back"):
            for part in parts:
                self._verify(part)
        return bool(flash)

    def _split(self, part: ElfSegment) -> Iterator[tuple[RemoteMemory | None, ElfSegment]]:
        """A part by the memories that hold it."""
        if not self.map:
            yield None, part
            return
        at, end = part.address, part.address + len(part.data)
        while at < end:
            region = next((r for r in self.map if r.start <= at < r.end), None)
            if region is None or region.kind not in ("ram", "flash"):
                raise BoardError(
                    f"The firmware has {end - at:,} bytes at {at:#x}, where the board has "
                    f"{'no memory' if region is None else f'only {region}'}; its map: "
                    f"{', '.join(map(str, self.map))}.",
                    hint="a firmware for this chip, or the chip's own configuration of the GDB server",
                )
            upto = min(end, region.end)
            yield region, ElfSegment(at, part.data[at - part.address : upto - part.address])
            at = upto

    def _write_flash(self, pieces: Sequence[tuple[RemoteMemory, ElfSegment]]) -> None:
        blocks = {
            (start, region.block)
            for region, piece in pieces
            for start in range(
                piece.address - (piece.address - region.start) % region.block,
                piece.address + len(piece.data),
                region.block,
            )
        }
        for start, size in sorted(blocks):
            self._flash(f"vFlashErase:{start:x},{size:x}", f"erase flash at {start:#x}")
        step = (self._packet - 40) // 2  # each byte may need an escape
        for _, piece in pieces:
            for at in range(0, len(piece.data), step):
                data = _escaped(piece.data[at : at + step])
                self._flash(f"vFlashWrite:{piece.address + at:x}:{data}", f"write flash at {piece.address + at:#x}")
        self._flash("vFlashDone", "finish writing flash")

    def _flash(self, packet: str, what: str) -> None:
        if (answer := self.ask(packet)) != "OK":
            said = f"answers {answer[:60]!r}" if answer else "knows no such packet"
            raise BoardError(
                f"The GDB server at {self.where} could not {what}: it {said}.",
                hint="is the flash locked or write-protected? The server's own messages say more",
            )

    def _verify(self, part: ElfSegment) -> None:
        found = self.read(part.address, len(part.data))
        if found != part.data:
            at = next(i for i, (a, b) in enumerate(zip(found, part.data, strict=True)) if a != b)
            unknown = "" if self.map else "; the GDB server describes no memories: this may be flash"
            raise BoardError(
                f"The memory at {part.address + at:#x} reads back as {found[at]:#04x} where {part.data[at]:#04x} was "
                f"written{unknown}.",
                hint="is the memory locked or write-protected, or is another chip configured in the GDB server?",
            )

    # -- running

    def reset(self, command: str = "") -> bool:
        """Reset the board and halt its core.

        Args:
            command: of the server; by default "reset halt", and "reset".

        Returns:
            Whether the server has such a command.
        """
        with self.doing("resetting the board"):
            done = any(self.command(text) is not None for text in ([command] if command else ["reset halt", "reset"]))
            with contextlib.suppress(RefusedRequestError):
                self.write(_DEMCR, struct.pack("<I", self.word(_DEMCR) | _CATCH))
            return done

    def start_at(self, entry: int, vectors: int | None) -> None:
        """Set the core's registers as a reset would with this vector table."""
        if vectors is not None:
            self.set_register(SP, self.word(vectors))
            with contextlib.suppress(RefusedRequestError):
                self.write(VTOR, struct.pack("<I", vectors))
        self.set_register(PC, entry & ~1)
        self.set_register(XPSR, 1 << 24)

    def close(self) -> None:
        """End the connection; the core stays as it is."""
        self.connection.close()

    def __enter__(self) -> Remote:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _escaped(data: bytes) -> str:
    return "".join(f"}}{chr(byte ^ 0x20)}" if byte in _ESCAPED else chr(byte) for byte in data)


def _expanded(packet: str) -> str:
    """A packet without escapes and run lengths."""
    if "}" not in packet and "*" not in packet:
        return packet
    found: list[str] = []
    letters = iter(packet)
    for letter in letters:
        if letter == "}":
            found.append(chr(ord(next(letters, "\0")) ^ 0x20))
        elif letter == "*" and found:
            found.append(found[-1][-1:] * max(ord(next(letters, "\x1d")) - 29, 0))
        else:
            found.append(letter)
    return "".join(found)
