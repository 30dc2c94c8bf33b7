"""An emulated board: QEMU's core and memories, and NPUs at their registers.

QEMU has nothing at the NPU's addresses.  Its debugger stops the core before every access to that page; the board
decodes the load or store, answers it from the register model, and resumes after it.  The firmware needs no symbols,
patches or other changes: drivers access registers.
"""

from __future__ import annotations

import contextlib
import selectors
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO

from micronpu.board.boards import BoardSpec, NpuPlace
from micronpu.board.gdb import PC, XPSR, BoardError, EndedError, Stub, of_packet
from micronpu.board.npu import Npu, Run
from micronpu.board.qemu import Emulator
from micronpu.board.registers import PAGE
from micronpu.board.thumb import after_one, decode, without_block

SECURE = 0x10000000
"""Bit that distinguishes a peripheral's secure alias address."""
_CPUID = 0xE000ED00
_SET_PENDING = 0xE000E200
"""NVIC_ISPR, the first word of the interrupt controller's register that sets interrupts pending."""
_STORE = struct.pack("<H", 0x6001)  # str r1, [r0]
_THUMB = 1 << 24
_LOOK = 2.0
"""Seconds of running after which the board checks for missed interrupts."""
_SLICE = 0.2
"""Seconds after which a wait checks the time limit."""
END_MARK = b"\x04"
"""Last byte of a firmware that ends without semihosting, as Arm's do."""
ENDED, REACHED = "ended", "reached"
"""Results of `Machine.run`: the firmware has ended, or the requested address is reached."""

ConsoleCallback = Callable[[bytes], None]
RunCallback = Callable[[Npu, Run], None]


class Machine:
    """A board that runs a firmware.

        with Machine(spec, image, ["ethos-u55-128"]) as machine:
            machine.run(seconds=60)

    Args:
        board: the board.
        image: an ELF file for its core.
        accelerators: of its NPUs, in the board's order.
        data: files that are in memory from the start, by address.
        console: called with the firmware's output as it arrives.
        on_run: called after each run of an NPU.
        fault: see `Npu`.
        clock_hz: of the NPUs, to delay interrupts by the estimated time; 0 for no delay.

    Attributes:
        npus: in the board's order.
        accesses: number of accesses of the core to registers of NPUs.
        status: the firmware's exit status once it has ended by semihosting, else None.
    """

    def __init__(
        self,
        board: BoardSpec,
        image: Path,
        accelerators: Sequence[str] = (),
        *,
        data: Sequence[tuple[Path, int]] = (),
        console: ConsoleCallback | None = None,
        on_run: RunCallback | None = None,
        fault: str = "",
        clock_hz: float = 0.0,
    ) -> None:
        self.board = board
        self.output = b""
        self.accesses = 0
        self.status: int | None = None
        self._console, self._on_run = console, on_run
        self._clock = clock_hz
        self._emulator = Emulator(board.machine, image, data)
        try:
            self.stub: Stub = self._emulator.stub
            self.npus = [
                Npu(a, self.stub, number=i, fault=fault, aliases=board.aliases) for i, a in enumerate(accelerators)
            ]
            self._places: dict[int, tuple[Npu, NpuPlace]] = {}
            for npu, place in zip(self.npus, board.npus, strict=False):
                for page in (place.base, place.base ^ SECURE):
                    self._places[page] = (npu, place)
                    self.stub.watch(page, PAGE)
            if board.cpuid:
                self.stub.watch(_CPUID, 4)
            self._waiting: list[tuple[float, Npu, NpuPlace]] = []
            self._selector = selectors.DefaultSelector()
            self._selector.register(self.stub.connection, selectors.EVENT_READ, self.stub.fill)
            self._selector.register(self._emulator.output, selectors.EVENT_READ, self._take_output)
            for file, address in data:
                self._check_memory(file, address)
            if board.vectors is not None:  # not at the machine's default address
                stack, reset = struct.unpack("<2I", self.stub.read(board.vectors, 8))
                self.stub.set_registers([(13, stack), (PC, reset & ~1), (XPSR, _THUMB)])
        except BaseException:
            self._emulator.close()
            raise

    def _check_memory(self, file: Path, address: int) -> None:
        """Refuse data behind the end of a memory, which QEMU silently ignores."""
        last = address + max(file.stat().st_size, 1) - 1
        for at in (address, last):
            if not self.stub.read_most(at, 1):
                raise BoardError(
                    f"{file} does not fit: the board {self.board.name} has no memory at {at:#x}.",
                    hint="another address",
                )

    # -- running

    def run(self, seconds: float, until: int | None = None) -> str:
        """Resume the core.

        Args:
            seconds: time limit.
            until: address of an instruction at which to stop.

        Returns:
            `ENDED` or `REACHED`.

        Raises:
            BoardError: the time limit is exceeded, or the firmware needs something that the board does not have.
        """
        end = time.monotonic() + seconds
        if until is not None:
            self.stub.break_at(until)
        try:
            while True:
                stop = self._resume(end, seconds)
                if stop is None:
                    return ENDED
                if "watch:" in stop:
                    self.answer()
                elif until is not None and stop.startswith("T05"):
                    return REACHED
                elif stop.startswith("T02"):
                    self._raise_again()
        except EndedError:
            self.finish()
            return ENDED
        finally:
            if until is not None and self.status is None:
                with contextlib.suppress(BoardError):
                    self.stub.unbreak_at(until)

    def _resume(self, end: float, limit: float) -> str | None:
        """Resume until the core stops with something to do; return None if the firmware has ended."""
        self._raise_due()
        self.stub.send("c")
        interrupted = False
        look = time.monotonic() + _LOOK
        while True:
            packet = self.stub.pending()
            if packet is not None:
                if packet[:1] in "WX":
                    self.finish()
                    return None
                if packet.startswith("F"):
                    self.answer_host(packet)  # after the answer the core resumes
                    continue
                return None if packet.startswith(("T02", "S02")) and self._is_over else packet
            now = time.monotonic()
            if now >= end and not interrupted:
                raise BoardError(
                    f"The firmware did not end within {limit:g} seconds.",
                    hint="a longer --time-limit; --console shows what it prints",
                )
            due = min(self._waiting[0][0], look) if self._waiting else look
            if (self._is_over or now >= due) and not interrupted:
                self.stub.interrupt()
                interrupted = True
            for key, _ in self._selector.select(min(_SLICE, max(due - now, 0.001))):
                key.data()

    @property
    def _is_over(self) -> bool:
        return END_MARK in self.output

    def _take_output(self) -> None:
        if data := self._emulator.output.read1(1 << 16):
            self._print(data)
        else:
            self._selector.unregister(self._emulator.output)

    def poll(self, seconds: float) -> bool:
        """Read output of the firmware; return True if there was any."""
        before = len(self.output)
        for key, _ in self._selector.select(seconds):
            if key.data == self._take_output:
                self._take_output()
        return len(self.output) > before

    def answer_host(self, packet: str) -> None:
        """Answer a semihosting call: writes to the console are allowed; files and commands are not."""
        call = of_packet(packet, self.stub.read)
        self._print(call.printed)
        self.stub.send(str(call.answer))

    def _print(self, data: bytes) -> None:
        self.output += data
        if self._console is not None and data:
            self._console(data)

    def finish(self) -> None:
        """Read the last output and the status after QEMU has ended."""
        if self.status is None:
            while data := self._emulator.output.read1(1 << 16):
                self._print(data)
            self.status = self._emulator.wait()

    # -- accesses of the core to an NPU

    def answer(self) -> None:
        """Execute the current instruction's access to an NPU's registers in place of the core."""
        registers = self.stub.registers()
        access = decode(self.stub.read(registers[PC], 4), registers)
        page = access.address & ~(PAGE - 1)
        place = self._places.get(page)
        changed: list[tuple[int, int]] = []
        if place is None and access.address != _CPUID:
            raise BoardError(f"The core stopped at {registers[PC]:#x} for an access to {access.address:#x}.")
        for i, register in enumerate(access.registers):
            offset = (access.address + access.width * i) & (PAGE - 1)
            if place is None:
                changed.append((register, access.loaded(self.board.cpuid)))
            elif access.is_load:
                changed.append((register, access.loaded(place[0].load(offset, access.width))))
            else:
                self._store(*place, offset, registers[register], access.width)
        if access.writeback is not None:
            changed.append(access.writeback)
        if (moved := after_one(registers[XPSR])) != registers[XPSR]:
            changed.append((XPSR, moved))
        if not any(register == PC for register, _ in changed):
            changed.append((PC, registers[PC] + access.length))
        self.stub.set_registers(changed)
        self.accesses += 1
        self._raise_due()

    def _store(self, npu: Npu, place: NpuPlace, offset: int, value: int, width: int) -> None:
        runs = len(npu.runs)
        npu.store(offset, value, width)
        if len(npu.runs) == runs:
            return
        run = npu.runs[-1]
        if self._on_run is not None:
            self._on_run(npu, run)
        if npu.fault != "hang":
            delay = run.cycles / self._clock if self._clock else 0.0
            self._waiting.append((time.monotonic() + delay, npu, place))
            self._waiting.sort(key=lambda entry: entry[0])

    def _raise_due(self) -> None:
        """Raise the interrupts that are due; the core is stopped."""
        while self._waiting and self._waiting[0][0] <= time.monotonic():
            _, npu, place = self._waiting.pop(0)
            npu.finish()
            self._pend(place.irq)

    def _raise_again(self) -> None:
        """Raise interrupts again that the driver has not handled: an NPU's line stays high until it is cleared."""
        for npu, place in dict(self._places.values()).items():
            if npu.interrupt and npu.registers.field("STATUS", "irq_raised"):
                self._pend(place.irq)

    def _pend(self, irq: int) -> None:
        """Make the core write to its interrupt controller by one instruction, since a debugger cannot."""
        stub = self.stub
        registers = stub.registers()
        code = stub.read(registers[PC], 2)
        stub.write(registers[PC], _STORE)
        pending = [(0, _SET_PENDING + irq // 32 * 4), (1, 1 << irq % 32)]
        stub.set_registers([*pending, (XPSR, without_block(registers[XPSR]))])
        stub.ask("s")
        stub.write(registers[PC], code)
        stub.set_registers([(index, registers[index]) for index in (0, 1, PC, XPSR)])

    def is_own(self, address: int) -> bool:
        """Return True if a stop at an address is for the board: an NPU's registers, or the core's identity."""
        return address & ~(PAGE - 1) in self._places or (bool(self.board.cpuid) and address & ~3 == _CPUID)

    @property
    def emulator_output(self) -> IO[bytes]:
        """The pipe with the firmware's output; see `poll`."""
        return self._emulator.output

    # -- memory and functions

    def read(self, address: int, size: int) -> bytes:
        """Read memory of the board."""
        with _memory(address, size):
            return self.stub.read(address, size)

    def write(self, address: int, data: bytes) -> None:
        """Write bytes into memory."""
        with _memory(address, len(data)):
            self.stub.write(address, data)

    def close(self) -> None:
        """End the board, and remove its files."""
        self._selector.close()
        self._emulator.close()

    def __enter__(self) -> Machine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextlib.contextmanager
def _memory(address: int, size: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise BoardError(f"The board has no {size:,} bytes of memory at {address:#x}.") from error
