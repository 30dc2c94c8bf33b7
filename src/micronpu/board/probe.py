"""A firmware on a board: written through a GDB server, run, and its outputs compared with those of this machine."""

from __future__ import annotations

import contextlib
import hashlib
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from micronpu.base.arrays import Array
from micronpu.base.errors import OptionError
from micronpu.base.parsing import JsonObject
from micronpu.board.check import Comparison, Rows, compare
from micronpu.board.elf import Elf
from micronpu.board.faults import fault_in, fault_of, npu_in, npus_of, place
from micronpu.board.gdb import BREAKPOINT, BoardError, SilentError, of_breakpoint, of_packet, text_of
from micronpu.board.machine import END_MARK
from micronpu.board.printed import Printed, read_printed
from micronpu.board.remote import CPUID, PC, RefusedRequestError, Remote

_CORES = {
    0xC20: ("Cortex-M0", "6-M"), 0xC60: ("Cortex-M0+", "6-M"), 0xC21: ("Cortex-M1", "6-M"), 0xC23: ("Cortex-M3", "7-M"),
    0xC24: ("Cortex-M4", "7E-M"), 0xC27: ("Cortex-M7", "7E-M"), 0xD20: ("Cortex-M23", "8-M.base"),
    0xD21: ("Cortex-M33", "8-M.main"), 0xD31: ("Cortex-M35P", "8-M.main"), 0xD22: ("Cortex-M55", "8.1-M.main"),
    0xD23: ("Cortex-M85", "8.1-M.main"), 0xD24: ("Cortex-M52", "8.1-M.main"),
}  # fmt: skip
"""Part numbers in CPUID. Source: the cores' technical reference manuals."""
_RUNS = {
    "6-M": {11, 12},
    "7-M": {10, 11, 12},
    "7E-M": {10, 11, 12, 13},
    "8-M.base": {11, 12, 16},
    "8-M.main": {10, 11, 12, 13, 16, 17},
    "8.1-M.main": {10, 11, 12, 13, 16, 17, 21},
}
"""Values of Tag_CPU_arch that run on an architecture."""
_NAMES = {
    10: "7-M or another Armv7", 11: "6-M", 12: "6S-M", 13: "7E-M", 16: "8-M.base", 17: "8-M.main", 21: "8.1-M.main",
}  # fmt: skip
_VERDICT = re.compile(rb"^(PASS|FAIL): [^\r\n]*\r?\n", re.MULTILINE)
_PROGRAM = re.compile(r"micronpu-program (\S+) ([0-9a-fA-F]{64})\s*$", re.MULTILINE)
_GRACE = 0.3
"""Seconds for what a firmware still prints that ends without an exit status."""
_SLICE = 0.05
_HALT = 5.0
"""Seconds to halt a core that does not end, and to ask where it is."""
_LONGEST = 64 << 20
"""Bytes of a console."""

ConsoleCallback = Callable[[bytes], None]


class Serial(Protocol):
    """A serial port."""

    def read(self, size: int) -> bytes:
        """Return received bytes, without waiting."""

    def close(self) -> None:
        """End it."""


def open_serial(text: str) -> Serial:
    """The port of "PORT@BAUD"."""
    name, _, baud = text.rpartition("@")
    if not name or not baud.isdecimal() or not 0 < int(baud) < 1 << 31:
        raise OptionError(f"{text!r} is no PORT@BAUD.", hint="--serial /dev/ttyACM0@115200")
    try:
        import serial
    except ImportError as error:
        raise OptionError(
            "A serial port needs the package pyserial, which is not installed.", hint='pip install "micronpu[serial]"'
        ) from error
    try:
        port: Serial = serial.Serial(name, int(baud), timeout=0)
    except (OSError, ValueError) as error:
        raise BoardError(f"The serial port {name} cannot be opened: {error}.") from error
    return port


@dataclass(frozen=True)
class ProbeOptions:
    """How to reach a board.

    Attributes:
        gdb: "HOST:PORT" of the GDB server.
        serial: "PORT@BAUD" of the console; "" for semihosting.
        reset: the server's command that resets and halts; "" for the usual ones.
        seconds: time limit of the run, and of each answer of the server.
    """

    gdb: str
    serial: str = ""
    reset: str = ""
    seconds: float = 120.0


@dataclass(frozen=True)
class ProbeRun:
    """Result of a run on a board.

    Attributes:
        board: core and server.
        status: exit status; 0 or 1 by the firmware's verdict if it does not exit.
        output: what it has printed.
        compared: its outputs, with those of this machine; no elements without a reference.
        note: what the user should know.
        fault: of the core; "" if there was none.
        is_emulated: True if the board is QEMU's.
    """

    name: str
    board: str
    status: int
    output: bytes
    compared: Comparison = field(default_factory=Comparison)
    note: str = ""
    fault: str = ""
    is_emulated: bool = False

    @property
    def exit_code(self) -> int:
        return self.status or int(bool(self.compared.differing or self.fault))

    def lines(self) -> Iterator[str]:
        found = self.compared
        summary = (
            f"{found.differing} of {found.elements:,} elements differ from this machine's; " if found.elements else ""
        )
        yield f"{'FAIL' if self.exit_code else 'PASS'}: {self.name} on {self.board}: {summary}exit status {self.status}"
        if found.first is not None:
            yield str(found.first)
        yield from filter(None, (self.fault, self.note))

    def to_dict(self) -> JsonObject:
        summary = {k: getattr(self, k) for k in ("name", "board", "status", "note", "fault")}
        first = vars(self.compared.first) if self.compared.first is not None else None
        summary |= {"elements": self.compared.elements, "differing": self.compared.differing, "first": first}
        return summary | {"passed": not self.exit_code, "output": self.output.decode(errors="replace")}


@dataclass(frozen=True)
class ExpectedOutputs:
    """Expected outputs.

    Attributes:
        name: of the program in a console with several.
        digest: SHA-256 of its first payload; "" if it has none.
        rows: vectors that the firmware contains.
    """

    name: str
    digest: str
    rows: Rows

    @classmethod
    def of(cls, name: str, payload: bytes | None, rows: Rows) -> ExpectedOutputs:
        """Return the reference of a program with this first payload."""
        return cls(name, "" if payload is None else hashlib.sha256(payload).hexdigest(), rows)


def flash(image: Path, options: ProbeOptions) -> str:
    """Write a firmware, verify it and leave the core halted after a reset; return a description of what was done."""
    elf = Elf.read(image)
    with Remote(options.gdb, options.seconds) as remote:
        core, note = _load(remote, elf, options)
        size = sum(len(part.data) for part in elf.parts)
        return f"{image}: {size:,} bytes written to {core} and read back.{note and ' ' + note}"


def _load(remote: Remote, elf: Elf, options: ProbeOptions) -> tuple[str, str]:
    """Write a firmware and halt the core at its beginning; return core and note."""
    if not elf.parts:
        raise BoardError(f"{elf.name} contains nothing to load.")
    was_reset = remote.reset(options.reset)
    if options.reset and not was_reset:
        raise BoardError(f"The GDB server at {options.gdb} has no command {options.reset!r}: {remote.said.strip()!r}.")
    core = _check_core(remote, elf)
    in_flash = remote.load(elf.parts)
    if in_flash and was_reset:
        remote.reset(options.reset)
        return core, ""
    with remote.doing("starting the firmware"):
        remote.start_at(elf.entry, elf.vectors)
    if was_reset:
        return core, ""
    return core, "The server has no command for a reset: the core's registers were set, its peripherals were not reset."


def _check_core(remote: Remote, elf: Elf) -> str:
    """The core's name."""
    try:
        cpuid = remote.word(CPUID)
    except RefusedRequestError as error:
        raise BoardError(
            f"The core at {remote.where} has no CPUID register: it is no Cortex-M, or sleeps.",
            hint="the GDB port of another core of the chip, or a reset that halts",
        ) from error
    name, architecture = _CORES.get(cpuid >> 4 & 0xFFF, (f"a core with CPUID {cpuid:#010x}", ""))
    needed = elf.architecture
    if architecture and needed is not None and needed not in _RUNS[architecture]:
        raise BoardError(
            f"{elf.name} is for Armv{_NAMES.get(needed, needed)}, and the board has a {name} (Armv{architecture}).",
            hint="a build with the core's -mcpu, or the GDB port of the other core",
        )
    return name


def run_on_probe(
    image: Path,
    options: ProbeOptions,
    *,
    reference: ExpectedOutputs | None = None,
    console: ConsoleCallback | None = None,
) -> ProbeRun:
    """Write a firmware, run it to its end and compare what it prints.

    Args:
        reference: with which the printed outputs are compared; without, the firmware's own verdict counts.
    """
    elf = Elf.read(image)
    with contextlib.ExitStack() as stack:
        port = open_serial(options.serial) if options.serial else None
        if port is not None:
            stack.callback(port.close)
        remote = stack.enter_context(Remote(options.gdb, options.seconds))
        core, note = _load(remote, elf, options)
        run = _Run(remote, elf, port, options, console)
        with remote.doing("the firmware ran"):
            status, fault = run.to_the_end()
    output = bytes(run.output).replace(END_MARK, b"")
    text = output.decode(errors="replace")
    fault = fault or fault_in(text, elf) or npu_in(text)
    found = ProbeRun(image.name, f"{core} at {options.gdb}", status, output, note=note, fault=fault)
    found = replace(found, is_emulated=remote.is_emulated)
    return found if reference is None or found.fault else _compared(found, text, reference)


class _Run:
    """A core that runs, and its console."""

    def __init__(
        self, remote: Remote, elf: Elf, port: Serial | None, options: ProbeOptions, console: ConsoleCallback | None
    ) -> None:
        self._remote, self._elf, self._port, self._console = remote, elf, port, console
        self._seconds = options.seconds
        self.output, self._line = bytearray(), 0
        self._said = len(remote.said)

    def to_the_end(self) -> tuple[int, str]:
        """Exit status and fault."""
        with self._remote.within(self._seconds + _GRACE + _HALT):
            return self._to_the_end(time.monotonic() + self._seconds)

    def _to_the_end(self, end: float) -> tuple[int, str]:
        self._remote.send("c")
        verdict, over = None, False
        while True:
            done = self._packet()
            if done is not None:
                return done
            self._poll()
            now = time.monotonic()
            verdict = verdict or _VERDICT.search(self.output, self._line)
            over = over or self.output.find(END_MARK, self._line) >= 0
            over = over or (self._port is not None and verdict is not None)
            self._line = self.output.rfind(b"\n") + 1
            if over:
                end = min(end, now + _GRACE)
            if over and verdict is None and is_garbled(bytes(self.output)):  # an end mark by chance
                raise self._silent("")
            if now >= end or len(self.output) > _LONGEST:
                with self._remote.within(_HALT):
                    fault = "" if over else self._out_of_time(has_ended=verdict is not None)
                return int(bool(fault) or (verdict is not None and verdict[1] == b"FAIL")), fault

    def _print(self, data: bytes) -> None:
        self.output += data
        if data and self._console is not None:
            self._console(data)

    def _poll(self) -> None:
        """Read the serial port."""
        try:
            self._print(b"" if self._port is None else self._port.read(1 << 16))
        except OSError as error:
            raise BoardError(f"The serial port was lost while the firmware ran: {error}.") from error

    def _packet(self) -> tuple[int, str] | None:
        """Handle one packet of the server, if there is one; return exit status and fault if the firmware has ended."""
        remote = self._remote
        try:
            packet = remote.receive(_SLICE)
        except SilentError:
            return None
        if (text := text_of(packet)) is not None:
            self._print(text)
        elif packet.startswith("F"):
            call = of_packet(packet, remote.read)
            self._print(call.printed)
            remote.send(str(call.answer))
        elif (ended := re.match(r"[WX]([0-9a-fA-F]+)", packet)) is not None:
            code = int(ended[1], 16)
            code = code and (code & 0xFF or 1)
            return (code, "") if packet[0] == "W" else (1, f"the board ended with signal {code}")
        elif packet[:1] in ("T", "S"):
            return self._stopped()
        return None

    def _stopped(self) -> tuple[int, str] | None:
        remote = self._remote
        at = remote.register(PC) & ~1
        with contextlib.suppress(RefusedRequestError):
            if remote.read(at, 2) == BREAKPOINT:
                call = of_breakpoint(remote.register(0), remote.register(1), remote.read)
                self._print(call.printed)
                if call.status is not None:
                    return call.status, ""
                remote.set_register(0, int(call.answer))
                remote.set_register(PC, at + 2)
                remote.send("c")
                return None
        return 1, fault_of(remote, self._elf) or f"the core stopped at {place(self._elf, at)}"

    def _out_of_time(self, *, has_ended: bool) -> str:
        """Halt the core; the fault that it handles."""
        remote = self._remote
        remote.interrupt()
        with contextlib.suppress(SilentError):
            while remote.receive()[:1] not in ("T", "S", "W", "X"):
                pass
            if (fault := fault_of(remote, self._elf)) or has_ended:
                return fault
            where = f"; the core is at {place(self._elf, remote.register(PC) & ~1)}"
            where += f"; {npu}" if (npu := npus_of(remote, self._elf)) else ""
            raise self._silent(where)
        raise self._silent("; the core cannot be halted")

    def _silent(self, where: str) -> BoardError:
        last = self.output[-400:].decode(errors="replace").strip().splitlines()
        if not self.output:
            said = "The firmware has printed nothing"
            hint = "--serial PORT@BAUD if it prints to a UART; for semihosting, a firmware that is linked with it"
        elif is_garbled(bytes(self.output)):
            said, hint = f"The console has {len(self.output):,} bytes that are no text", "another baud rate"
        else:
            said, hint = f"The firmware has not ended, and its last line is {last[-1][:120]!r}", "a longer --time-limit"
        return BoardError(f"{said} within {self._seconds:g} seconds{where}.", hint=hint)


def is_garbled(console: bytes) -> bool:
    """Return True for bytes of a serial port at another baud rate: more than an eighth is no text."""
    text = console.decode(errors="replace")
    return sum(c == "\ufffd" or not (c.isprintable() or c in "\t\n\r\x04\x1b") for c in text) * 8 > len(text)


def _compared(run: ProbeRun, text: str, reference: ExpectedOutputs) -> ProbeRun:
    """A run with its outputs compared."""
    printed = read_printed(run.output, run.name)
    names = printed.names()
    own = names[0] if len(names) == 1 else reference.name  # a folder calls its only program "model"
    for name, digest in _PROGRAM.findall(text):
        if reference.digest and name == own and digest.lower() != reference.digest:
            raise BoardError(
                f"The console is of another program: {name} on the board is {digest[:16]}..., the reference is "
                f"{reference.digest[:16]}...",
                hint="deploy the reference again, build, and run that firmware",
            )
    if not printed.outputs:
        raise BoardError(
            "The firmware prints no outputs to compare with the reference.",
            hint="a build with -DMICRONPU_PRINT_OUTPUTS=ON, or no --reference: the firmware itself compares",
        )
    rows = reference.rows.outputs
    pairs = ((_outputs(printed, own, vector, wanted), wanted) for vector, wanted in enumerate(rows))
    return replace(run, compared=compare(pairs))


def _outputs(printed: Printed, name: str, vector: int, wanted: Sequence[Array]) -> list[Array]:
    found = [printed.outputs.get((name, vector, output)) for output in range(len(wanted))]
    for output, (array, right) in enumerate(zip(found, wanted, strict=True)):
        if array is None or array.shape != right.shape or array.dtype.itemsize != right.dtype.itemsize:
            raise BoardError(
                f"The console does not have output {output} of vector {vector} of {name} as the reference has it.",
                hint=f"the programs and vectors of this firmware; the console has {', '.join(printed.names())}",
            )
    return [array for array in found if array is not None]
