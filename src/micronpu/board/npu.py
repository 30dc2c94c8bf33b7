"""An Ethos-U as its driver sees it: registers, runs of command streams on the board's memory, faults, counters.

Results are the open simulator's.  Time is estimated as the minimum that MACs and AXI ports need.
"""

from __future__ import annotations

import functools
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from micronpu.base.arrays import Array
from micronpu.base.errors import OptionError
from micronpu.board.gdb import BoardError
from micronpu.board.registers import RegisterFile, generations
from micronpu.targets.ethosu.host.simulator import (
    EthosUSimulator,
    NotModelledError,
    SimulatedOperation,
    SimulationError,
    aligned_bytes,
)
from micronpu.targets.ethosu.stream import commands_in

FAULTS = ("bus", "hang", "reset")
"""Faults that `Npu` can simulate: a bus error in a run, a run that never ends, a reset that never ends."""

_ALIGNMENT = 16
_LONGEST_STREAM = 32 << 20
_WIDEST = 32 << 20
"""Maximum number of bytes behind a base pointer that are fetched."""
_BLOCK = 1024
"""Bytes that are compared, and written back, at once."""
_COP1 = 0x31504F43
_CONFIG_ACTION, _STREAM_ACTION = 0x00100001, 2
_COUNTER_BITS, _CYCLE_BITS = 32, 48
_CYCLE_COUNTER = 1 << 31
"""The cycle counter's bit in PMCNTENSET and PMOVSSET."""
_PORTS_OF_LIMITS = (0, 0, 1, 1)
"""AXI port of each of the four limits that REGIONCFG chooses from."""


class BoardMemory(Protocol):
    """The memory of a board whose core is stopped."""

    def read(self, address: int, size: int) -> bytes: ...

    def read_most(self, address: int, size: int) -> bytes: ...

    def write(self, address: int, data: bytes) -> None: ...


@dataclass(frozen=True)
class Run:
    """One run of the NPU.

    Attributes:
        npu: its number on the board.
        stream: address and bytes of the command stream.
        bases: the base pointers.
        operations: finished operations, without values.
        written: (address, bytes) that changed.
        cycles: estimated minimum for MACs and ports.
        fault: why it stopped, or "".
        seconds: of this machine.
    """

    npu: int
    stream: tuple[int, int]
    bases: tuple[int, ...]
    operations: tuple[SimulatedOperation, ...]
    written: tuple[tuple[int, int], ...]
    cycles: int
    fault: str
    seconds: float


@dataclass
class _Traffic:
    """Traffic of one run, for the counters."""

    cycles: int = 0
    mac_cycles: int = 0
    axi0_reads: int = 0
    axi0_writes: int = 0
    axi1_reads: int = 0
    axi1_writes: int = 0


@dataclass
class _Span:
    """A range of the board's memory that base pointers reach, and a copy of it."""

    start: int
    end: int
    data: npt.NDArray[np.uint8] = field(default_factory=lambda: np.empty(0, np.uint8))


class Npu:
    """One NPU on a board.

    Args:
        accelerator: such as "ethos-u55-128".
        memory: of the board.
        number: its number on the board.
        fault: one of `FAULTS`, or "".
        aliases: see `BoardSpec`.

    Attributes:
        runs: its runs, in order.
        interrupt: True if its interrupt is pending.
    """

    def __init__(
        self,
        accelerator: str,
        memory: BoardMemory,
        *,
        number: int = 0,
        fault: str = "",
        aliases: Sequence[tuple[int, int, int]] = (),
    ) -> None:
        if fault and fault not in FAULTS:
            raise OptionError(f"There is no fault {fault!r} of an NPU.", hint=f"one of {', '.join(FAULTS)}")
        self.accelerator = accelerator
        self.memory = memory
        self.number = number
        self.fault = fault
        self._aliases = aliases
        self._simulator = EthosUSimulator(accelerator)
        size = self._simulator.accelerator
        self._macs = size.macs * size.cores
        self.generation = generations()[size.family]
        self.registers = RegisterFile(self.generation)
        self.runs: list[Run] = []
        self.interrupt = False
        self._known: dict[bytes, tuple[SimulatedOperation, ...]] = {}
        self._moved: dict[tuple[int, int], _Traffic] = {}
        self._reset(0)
        self._stores: dict[str, Callable[[int], None]] = {
            "CMD": self._command,
            "RESET": self._reset,
            "PMCR": self._control_counters,
        }
        for name in ("PMCNTEN", "PMOVS", "PMINT"):
            self._stores[f"{name}SET"] = functools.partial(self._set_bits, name, is_set=True)
            self._stores[f"{name}CLR"] = functools.partial(self._set_bits, name, is_set=False)

    def load(self, offset: int, width: int = 4) -> int:
        """Return the value that the core reads at a byte of the register page."""
        word = self.registers.load(offset & ~3)
        return word >> 8 * (offset & 3) & (1 << 8 * width) - 1

    def store(self, offset: int, value: int, width: int = 4) -> None:
        """Write a value of the core at a byte of the register page."""
        at = offset & ~3
        if width < 4:  # the other bytes of the word do not change
            shift, mask = 8 * (offset & 3), (1 << 8 * width) - 1
            value = self.registers.load(at) & ~(mask << shift) | (value & mask) << shift
        done = self._stores.get(self.registers.name_at(at))
        if done is not None:
            done(value)
        else:
            self.registers.store(at, value)

    def finish(self) -> None:
        """End a run: the interrupt is raised."""
        self.registers.set_fields("STATUS", state=0, irq_raised=1)
        self.interrupt = True

    # -- effects of stores

    def _reset(self, value: int) -> None:
        kept = self.registers
        kept.reset()
        kept.set("ID", self.generation.id_word())
        kept.set("CONFIG", self.generation.config_word(self._macs))
        kept.set_fields("PMCR", counters=self.generation.event_counters)
        kept.set("RESET", value & 3)
        kept.set("PROT", value & 3)  # the requested level
        self.interrupt = False
        if self.fault == "reset":
            kept.set_fields("STATUS", reset_status=1)

    def _command(self, value: int) -> None:
        command = self.generation.registers["CMD"]
        enables = command.pack(clock_q_enable=1, power_q_enable=1)
        self.registers.set("CMD", value & enables)
        if command.unpack(value, "clear_irq"):
            self.registers.set_fields("STATUS", irq_raised=0)
        if command.unpack(value, "clear_irq_history"):
            left = self.registers.field("STATUS", "irq_history") & ~command.unpack(value, "clear_irq_history")
            self.registers.set_fields("STATUS", irq_history=left)
        if command.unpack(value, "run") and not self.registers.field("STATUS", "state"):
            self._run()

    def _control_counters(self, value: int) -> None:
        control = self.generation.registers["PMCR"]
        if control.unpack(value, "reset_events"):
            for number in range(self.generation.event_counters):
                self.registers.set("PMEVCNTR", 0, number)
        if control.unpack(value, "reset_cycles"):
            self.registers.set("PMCCNTR", 0)
        fields = {name: control.unpack(value, name) for name in ("enable", "mask_enable")}
        self.registers.set("PMCR", control.pack(**fields, counters=self.generation.event_counters))

    def _set_bits(self, name: str, value: int, *, is_set: bool) -> None:
        word = self.registers.get(f"{name}SET")
        for register in (f"{name}SET", f"{name}CLR"):  # both read as the set bits
            self.registers.set(register, word | value if is_set else word & ~value)

    # -- a run

    def _run(self) -> None:
        begin = time.perf_counter()
        kept = self.registers
        kept.set_fields("STATUS", state=1, bus_status=0, cmd_parse_error=0, cmd_end_reached=0)
        mask = (1 << self.generation.address_bits) - 1
        bases = tuple(self._of_core(kept.get("BASEP", i) & mask) for i in range(REGIONS))
        stream = (self._of_core(kept.get("QBASE") & mask), kept.get("QSIZE"))
        operations: list[SimulatedOperation] = []
        written: list[tuple[int, int]] = []
        fault, field_ = "", ""
        if self.fault == "bus":
            fault, field_ = "a bus error, on purpose", "bus_status"
        elif self.fault == "hang":
            fault = "it never ends, on purpose"
        else:
            try:
                words = self._stream(*stream)
                written = self._compute(words, bases, operations)
            except _BusError as error:
                fault, field_ = str(error), "bus_status"
            except NotModelledError as error:
                raise BoardError(
                    f"The board's NPU cannot compute the command stream at {stream[0]:#x}: {error.what}"
                ) from error
            except SimulationError as error:
                fault, field_ = error.what, "bus_status" if _is_outside(error) else "cmd_parse_error"
        traffic = self._traffic(operations)
        self.runs.append(
            Run(
                self.number,
                stream,
                bases,
                tuple(operations),
                tuple(written),
                traffic.cycles,
                fault,
                time.perf_counter() - begin,
            )
        )
        if self.fault == "hang":
            return
        kept.set("QREAD", 0 if fault else stream[1])
        kept.set_fields("STATUS", **{field_ or "cmd_end_reached": 1})
        self._count(traffic)

    def _of_core(self, address: int) -> int:
        """Return the core's address for an address of the NPU."""
        found = ((core, npu) for npu, core, size in self._aliases if npu <= address < npu + size)
        core, npu = next(found, (0, 0))
        return address - npu + core

    def _stream(self, base: int, size: int) -> bytes:
        if base % 4 or size % 4 or not 0 < size <= _LONGEST_STREAM:
            raise _BusError(f"a command stream of {size} bytes at {base:#x}, which are no words")
        words = self.memory.read_most(base, size)
        if len(words) < size:
            raise _BusError(f"a command stream of {size:,} bytes at {base:#x}, where memory ends after {len(words):,}")
        return words

    def _compute(
        self, words: bytes, bases: Sequence[int], operations: list[SimulatedOperation]
    ) -> list[tuple[int, int]]:
        """Run a stream on copies of the board's memory, and write back its changes."""
        commands = self._actions(words)
        sizes = [min(size, _WIDEST) for size in reach(words, self._simulator.command_name)]
        for is_last in (False, True):
            for number, size in enumerate(sizes):
                if size and bases[number] % _ALIGNMENT:
                    raise _BusError(f"base pointer {number} is {bases[number]:#x}, no multiple of {_ALIGNMENT}")
            spans = _spans(bases, sizes)
            for span in spans:
                found = self.memory.read_most(span.start, span.end - span.start)
                span.data = aligned_bytes(len(found))
                span.data[:] = np.frombuffer(found, np.uint8)
            memories = [_view(spans, base, size) for base, size in zip(bases, sizes, strict=True)]
            before = [span.data.copy() for span in spans]
            operations.clear()
            # A stream has the same operations in each run; recording them costs more than the run.
            known = self._known.get(words)
            watch = None if known else lambda o: operations.append(replace(o, value=None))
            try:
                self._simulator.run_on(commands, memories, watch=watch, accesses=watch is not None)
                if known:
                    operations.extend(known)
                self._known[words] = tuple(operations)
                return self._write_back(spans, before)
            except NotModelledError:
                raise
            except SimulationError as error:
                # The bound may have been too small; the board's memory may extend further.
                wider = [min(4 * size + (1 << 20), _WIDEST) if size else 0 for size in sizes]
                if is_last or not _is_outside(error) or wider == sizes:
                    raise
                sizes = wider
        return []

    def _actions(self, words: bytes) -> bytes:
        """Return the words for the simulator, after a driver's actions."""
        config, identity = self.generation.config_word(self._macs), self.generation.id_word()
        count = len(words) // 4
        last = _STREAM_ACTION | (count & 0xFFFF) << 16 | (count >> 16 & 0xFF) << 8
        return struct.pack("<5I", _COP1, _CONFIG_ACTION, config, identity, last) + words

    def _write_back(self, spans: Sequence[_Span], before: Sequence[npt.NDArray[np.uint8]]) -> list[tuple[int, int]]:
        written = []
        for span, old in zip(spans, before, strict=True):
            for at, size in _changes(old, span.data):
                try:
                    self.memory.write(span.start + at, span.data[at : at + size].tobytes())
                except OSError as error:
                    raise _BusError(f"{size} bytes at {span.start + at:#x} cannot be written") from error
                written.append((span.start + at, size))
        return written

    # -- time and counters

    def _traffic(self, operations: Sequence[SimulatedOperation]) -> _Traffic:
        """Return an estimate: each operation takes the time of the slowest of MACs and ports."""
        config, beat = self.registers.get("REGIONCFG"), self.generation.port_bytes
        key = (id(operations[0]) if operations else 0, config)  # of what `_known` keeps
        if key in self._moved:
            return self._moved[key]
        total = _Traffic()
        for operation in operations:
            moved = np.zeros((2, 2), np.int64)
            for column, ranges in enumerate((operation.reads, operation.writes)):
                for part in ranges:
                    if part.region < REGIONS:
                        moved[_PORTS_OF_LIMITS[config >> 2 * part.region & 3], column] += part.size
            beats = -(-moved // beat)
            is_transfer = not operation.shape
            macs = 0 if is_transfer else -(-operation.work // self._macs)
            total.mac_cycles += macs
            total.cycles += max(macs, int(beats.sum(axis=1).max()))
            total.axi0_reads += int(beats[0, 0])
            total.axi0_writes += int(beats[0, 1])
            total.axi1_reads += int(beats[1, 0])
            total.axi1_writes += int(beats[1, 1])
        if operations and any(known[0] is operations[0] for known in self._known.values() if known):
            self._moved[key] = total
        return total

    def _count(self, traffic: _Traffic) -> None:
        """Advance the enabled counters."""
        kept = self.registers
        if not kept.field("PMCR", "enable"):
            return
        chosen = kept.get("PMCNTENSET")
        if chosen & _CYCLE_COUNTER:
            self._advance("PMCCNTR", 0, traffic.cycles, _CYCLE_BITS, _CYCLE_COUNTER)
        fields = {number: getattr(traffic, name) for name, ns in self.generation.events.items() for number in ns}
        for number in range(self.generation.event_counters):
            if chosen >> number & 1:
                event = kept.get("PMEVTYPER", number) & 0x3FF
                self._advance("PMEVCNTR", number, fields.get(event, 0), _COUNTER_BITS, 1 << number)

    def _advance(self, name: str, number: int, by: int, bits: int, overflow: int) -> None:
        value = self.registers.get(name, number) + by
        self.registers.set(name, value & (1 << bits) - 1, number)
        if value >> bits:
            self._set_bits("PMOVS", overflow, is_set=True)


class _BusError(Exception):
    """An access to an address without memory."""


def _is_outside(error: SimulationError) -> bool:
    """Return True if an operation exceeds its region, which is a bus error in hardware."""
    return " needs " in error.what and " which has " in error.what


def _spans(bases: Sequence[int], sizes: Sequence[int]) -> list[_Span]:
    """Return the ranges of memory that regions cover; overlapping or adjacent ones are merged."""
    spans: list[_Span] = []
    for base, size in sorted((b, s) for b, s in zip(bases, sizes, strict=True) if s):
        if spans and base <= spans[-1].end:
            spans[-1].end = max(spans[-1].end, base + size)
        else:
            spans.append(_Span(base, base + size))
    return spans


def _view(spans: Sequence[_Span], base: int, size: int) -> Array | None:
    """Return the bytes behind a base pointer, up to the end of its range, so that regions may overlap."""
    if not size:
        return None
    span = next(s for s in spans if s.start <= base < s.end)
    view = span.data[base - span.start :]
    return view if view.size else None


def _changes(before: npt.NDArray[np.uint8], now: npt.NDArray[np.uint8]) -> list[tuple[int, int]]:
    """Return (first byte, bytes) of differences, in whole blocks, with neighbours merged."""
    whole = len(now) // _BLOCK * _BLOCK
    differs = (before[:whole] != now[:whole]).reshape(-1, _BLOCK).any(axis=1)
    blocks = [(int(i) * _BLOCK, _BLOCK) for i in np.flatnonzero(differs)]
    if whole < len(now) and not np.array_equal(before[whole:], now[whole:]):
        blocks.append((whole, len(now) - whole))
    found: list[tuple[int, int]] = []
    for at, size in blocks:
        if found and sum(found[-1]) == at:
            found[-1] = (found[-1][0], found[-1][1] + size)
        else:
            found.append((at, size))
    return found


REGIONS = 8
_COMPUTES = ("NPU_OP_CONV", "NPU_OP_DEPTHWISE", "NPU_OP_POOL", "NPU_OP_ELEMENTWISE", "NPU_OP_RESIZE")
_STREAMS = ("WEIGHT", "WEIGHT1", "WEIGHT2", "WEIGHT3", "SCALE", "SCALE1")
_INSIDE = 0x100
"""Region of a transfer that means the NPU's own memory."""
_STRIDE_BITS = 40


def reach(words: bytes, name_of: Callable[[int], str]) -> list[int]:
    """Return the maximum number of bytes behind each of the eight base pointers that a stream accesses.

    More is fetched when the simulator needs it, so a bound that is too small only costs time.

    Args:
        name_of: returns the name of the command in a word, "" for none.
    """
    registers: dict[str, int] = {}
    ends = [0] * REGIONS

    def get(name: str) -> int:
        return registers.get(name, 0)

    def stretch(region: int, end: int) -> None:
        if not region & _INSIDE:
            ends[region & 7] = max(ends[region & 7], end)

    for command in commands_in(struct.unpack(f"<{len(words) // 4}I", words[: len(words) // 4 * 4])):
        name, parameter, value = name_of(command.word), command.parameter, command.value or 0
        if name.startswith("NPU_SET_"):
            key = name.removeprefix("NPU_SET_")
            wide = key.endswith(("_BASE", "_SRC", "_DST", "_LEN", "_LENGTH")) or "_BASE" in key or "STRIDE" in key
            registers[key] = (value | (parameter & 0xFF) << 32) if wide else value or parameter
        elif name == "NPU_OP_DMA_START":
            length = get("DMA0_LEN") * (get("DMA0_SIZE0") + 1) * (get("DMA0_SIZE1") + 1)
            for side in ("SRC", "DST"):
                skips = sum(abs(_signed(get(f"DMA0_{k}"))) * 0xFFFF for k in ("SKIP0", "SKIP1") if get(f"DMA0_{k}"))
                stretch(get(f"DMA0_{side}_REGION"), get(f"DMA0_{side}") + length + min(skips, 1 << 20))
        elif name in _COMPUTES:
            for part in _STREAMS:
                region = get("SCALE_REGION" if part.startswith("SCALE") else "WEIGHT_REGION")
                if f"{part}_LENGTH" in registers:
                    stretch(region, get(f"{part}_BASE") + get(f"{part}_LENGTH"))
            for part, shape in (("IFM", "IFM"), ("IFM2", "IFM"), ("OFM", "OFM")):
                if f"{part}_BASE0" in registers:
                    stretch(get(f"{part}_REGION"), _end_of(part, shape, get))
    return [-(-end // _ALIGNMENT) * _ALIGNMENT for end in ends]


def _end_of(part: str, shape: str, get: Callable[[str], int]) -> int:
    """Return the end of a feature map whose tiles have sizes of 16 bits; a negative stride adds nothing."""
    height = max(get(f"{part}_HEIGHT0_M1"), get(f"{shape}_HEIGHT0_M1"), get("OFM_HEIGHT_M1")) + 1
    width = max(get(f"{part}_WIDTH0_M1"), get(f"{shape}_WIDTH0_M1"), get("OFM_WIDTH_M1")) + 1
    bricks = get(f"{shape}_DEPTH_M1") // 16 + 1
    row, column, brick = (max(_signed(get(f"{part}_STRIDE_{d}")), 0) for d in "YXC")
    base = max(get(f"{part}_BASE{i}") for i in range(4))
    return base + height * row + width * max(column, 64) + bricks * brick


def _signed(value: int) -> int:
    return value - (1 << _STRIDE_BITS) if value >> (_STRIDE_BITS - 1) else value
