"""Comparison of a model on a board with this machine, vector by vector; and complete runs of firmware."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Protocol

import numpy as np

from micronpu.base.arrays import Array
from micronpu.base.errors import OptionError
from micronpu.base.files import read_file
from micronpu.base.parsing import JsonObject
from micronpu.base.texts import plural
from micronpu.board.boards import BoardSpec, find_board
from micronpu.board.elf import Elf
from micronpu.board.faults import npu_in
from micronpu.board.gdb import BoardError
from micronpu.board.machine import END_MARK, ConsoleCallback, Machine, RunCallback
from micronpu.board.model import PTE, BoardModel, LiteRtReference
from micronpu.board.npu import FAULTS, Npu, Run
from micronpu.board.nsys import NsysBoard
from micronpu.board.nsys_tools import RUNNER
from micronpu.board.session import SECONDS, VirtualBoard
from micronpu.report.codec import encode, flat, named
from micronpu.runtime.array_program import ArrayProgram
from micronpu.targets.ethosu.accelerators import accelerators, find_accelerator

_MEGA = 1e6
_SHOWN = 12
"""Maximum number of a run's operations in a trace."""
_ESTIMATE = "the least that MACs and AXI ports need; a report adds the wait for memories and the start of a call"


class Rows(Protocol):
    """Vectors: an array per input and per output for each."""

    @property
    def inputs(self) -> Sequence[Sequence[Array]]: ...
    @property
    def outputs(self) -> Sequence[Sequence[Array]]: ...


@dataclass(frozen=True)
class MachineOptions:
    """Options of an emulated board.

    Attributes:
        npu: the accelerator; "" for the model's, or the board's default.
        fault: one of `FAULTS`, or "".
        clock_mhz: of the NPU, to delay interrupts by the estimated time; 0 for no delay.
        seconds: time limit.
    """

    npu: str = ""
    fault: str = ""
    clock_mhz: float = 0.0
    seconds: float = SECONDS

    def __post_init__(self) -> None:
        if self.npu:
            find_accelerator(self.npu)
        if self.fault and self.fault not in FAULTS:
            raise OptionError(f"There is no fault {self.fault!r} of an NPU.", hint=f"one of {', '.join(FAULTS)}")
        for name, value in (("the time limit", self.seconds), ("the clock of the NPU", self.clock_mhz or 1.0)):
            if not (math.isfinite(value) and value > 0):
                raise OptionError(f"{value:g} is no positive number for {name}.", hint="a number above 0")


@dataclass(frozen=True)
class FirstDifference:
    """The first element that differs."""

    vector: int
    output: int
    element: int
    board: float
    wanted: float

    def __str__(self) -> str:
        return (
            f"first difference: vector {self.vector}, output {self.output}, element {self.element}: the board has "
            f"{self.board:g}, this machine {self.wanted:g}"
        )


@dataclass(frozen=True)
class Comparison:
    """Number of compared elements, number of those that differ, and the first of these."""

    elements: int = 0
    differing: int = 0
    first: FirstDifference | None = None


def compare(pairs: Iterable[tuple[Sequence[Array], Sequence[Array]]]) -> Comparison:
    """Compare the bytes of a board's outputs with those of this machine, vector by vector."""
    elements = differing = 0
    first: FirstDifference | None = None
    for vector, (found, wanted) in enumerate(pairs):
        for output, (left, right) in enumerate(zip(found, wanted, strict=True)):
            rows = [
                np.ascontiguousarray(a).reshape(-1).view(np.uint8).reshape(-1, right.itemsize) for a in (left, right)
            ]
            places = np.flatnonzero((rows[0] != rows[1]).any(axis=1))
            elements, differing = elements + right.size, differing + places.size
            if first is None and places.size:
                at = int(places[0])
                values = (array.reshape(-1)[at].item() for array in (left, right))
                first = FirstDifference(vector, output, at, *values)
    return Comparison(elements, differing, first)


@dataclass(frozen=True)
class BoardOutcome:
    """Result of a check.

    Attributes:
        board: its name, with its limits.
        runner: the firmware.
        compared: their outputs, with those of this machine.
        start, later: seconds of this machine: the first vector with the board's start, and the mean of the others; in
            NXP's simulator the total time and None, and cycles, runs and accesses are 0.
        cycles: estimated for the last vector.
        runs: of the NPU.
        accesses: accesses of the core to its registers.
    """

    ALSO: ClassVar[tuple[str, ...]] = ("equal",)

    name: str
    board: str
    runner: str
    vectors: int
    compared: Comparison = field(metadata=flat("elements", "differing", "first"))
    start: float = field(metadata=named("start_seconds"))
    later: float | None = field(metadata=named("later_seconds"))
    cycles: int = field(metadata=named("estimated_cycles"))
    runs: int
    accesses: int

    @property
    def equal(self) -> bool:
        return not self.compared.differing

    def lines(self) -> Iterator[str]:
        found = self.compared
        counted = f"{plural(self.vectors, 'vector')}, {found.differing} of {found.elements:,} elements differ"
        yield f"{'PASS' if self.equal else 'FAIL'}: {self.name} on {self.board}: {counted}"
        if found.first is not None:
            yield str(found.first)
        if not self.runs:
            yield f"{self.runner}; {self.start:.2f} s of this machine"
            return
        later = "" if self.later is None else f", each further vector {self.later:.2f} s"
        yield f"{self.runner}; start and first vector {self.start:.2f} s of this machine{later}"
        ran = f"The NPU ran {plural(self.runs, 'time')}, {self.accesses} accesses to its registers; "
        yield f"{ran}{self.cycles:,} cycles in the last vector,\n{_ESTIMATE}"

    def to_dict(self) -> JsonObject:
        return dict(encode(self))


def reference(model: BoardModel) -> Callable[[Sequence[Array]], Sequence[Array]]:
    """Return a function that computes a model's outputs on this machine, call by call from its initial states."""
    if model.format != PTE:
        return LiteRtReference(model).run
    made: list[ArrayProgram] = []

    def run(row: Sequence[Array]) -> Sequence[Array]:
        if not made:
            made.append(ArrayProgram(model.data, name=model.name, method=model.method or "forward"))
        return made[0].run_arrays(*row)

    return run


def check_on_board(
    model: BoardModel,
    rows: Rows,
    board: str,
    options: MachineOptions | None = None,
    *,
    console: ConsoleCallback | None = None,
    on_run: RunCallback | None = None,
) -> BoardOutcome:
    """Run vectors in Arm's runner on a board, and compare every element."""
    options = options or MachineOptions()
    times: list[float] = []
    with VirtualBoard(
        model,
        board,
        accelerator=options.npu,
        seconds=options.seconds,
        console=console,
        on_run=on_run,
        fault=options.fault,
        clock_hz=options.clock_mhz * _MEGA,
    ) as virtual:
        found = []
        for inputs in rows.inputs:
            begin = time.perf_counter()
            found.append(virtual.run(*inputs))
            times.append(time.perf_counter() - begin)
        calls = sum(1 for run in virtual.runs) // max(len(times), 1)
        cycles = sum(run.cycles for run in virtual.runs[-calls:]) if calls else 0
        return BoardOutcome(
            model.name,
            f"{virtual.spec.name} with {virtual.accelerator}",
            virtual.runner.title,
            len(times),
            compare(zip(found, rows.outputs, strict=True)),
            round(times[0], 3) if times else 0.0,
            round(float(np.mean(times[1:])), 4) if len(times) > 1 else None,
            cycles,
            len(virtual.runs),
            virtual.accesses,
        )


def check_in_nsys(
    model: BoardModel, rows: Rows, board: NsysBoard, *, console: ConsoleCallback | None = None
) -> BoardOutcome:
    """Run vectors of a Neutron program for silicon in NXP's simulator, and compare every element."""
    begin = time.perf_counter()
    try:
        found = board.run_rows(rows.inputs)
    finally:
        if console is not None:
            console(board.output.encode())
    seconds = round(time.perf_counter() - begin, 3)
    name = f"{board.chip} in NXP's simulator"
    compared = compare(zip(found, rows.outputs, strict=True))
    return BoardOutcome(model.name, name, RUNNER, len(found), compared, seconds, None, cycles=0, runs=0, accesses=0)


# -- any firmware


@dataclass(frozen=True)
class Finished:
    """A firmware that has ended.

    Attributes:
        memory: requested memory at the end.
        runs: of the NPUs.
        accesses: accesses of the core to their registers.
        seconds: of this machine.
    """

    status: int
    output: str
    memory: tuple[bytes, ...]
    runs: tuple[Run, ...]
    accesses: int
    seconds: float

    def line(self) -> str:
        cycles = sum(run.cycles for run in self.runs)
        summary = f"[board: exit status {self.status}; {self.seconds:.2f} s of this machine"
        if self.runs:
            summary += f"; the NPU ran {plural(len(self.runs), 'time')}, {self.accesses} accesses to its registers; "
            summary += f"{cycles:,} cycles ({_ESTIMATE})"
        npu = npu_in(self.output)
        return summary + (f"; {npu}]" if npu else "]")

    def to_dict(self) -> JsonObject:
        runs = [{"cycles": r.cycles, "operations": len(r.operations), "fault": r.fault} for r in self.runs]
        return {"status": self.status, "output": self.output, "runs": runs, "accesses": self.accesses}


def run_firmware(
    image: Path,
    board: str,
    options: MachineOptions | None = None,
    *,
    data: Sequence[tuple[Path, int]] = (),
    dumps: Sequence[tuple[int, int]] = (),
    console: ConsoleCallback | None = None,
    on_run: RunCallback | None = None,
) -> Finished:
    """Run a firmware until it ends: by semihosting, or with `END_MARK` on its UART.

    Args:
        data: files that are in memory from the start, by address.
        dumps: (address, bytes) of memory that is read at the end.
    """
    options = options or MachineOptions()
    spec = find_board(board)
    Elf.read(image)
    for path, _ in data:
        read_file(path)
    begin = time.perf_counter()
    with Machine(
        spec,
        image,
        npus_of(spec, options.npu),
        data=data,
        console=console,
        on_run=on_run,
        fault=options.fault,
        clock_hz=options.clock_mhz * _MEGA,
    ) as machine:
        machine.run(options.seconds)
        if dumps and machine.status is not None:
            raise BoardError(
                "The firmware has ended the emulation, and its memory with it, before it could be read.",
                hint="a firmware that prints the character 4 on its UART and waits, for --dump",
            )
        memory = tuple(machine.read(address, size) for address, size in dumps)
        runs = tuple(run for npu in machine.npus for run in npu.runs)
        output = machine.output.replace(END_MARK, b"").decode(errors="replace")
        return Finished(machine.status or 0, output, memory, runs, machine.accesses, time.perf_counter() - begin)


def npus_of(spec: BoardSpec, name: str) -> list[str]:
    """Return the accelerators of a board: the named one, or the default."""
    if not spec.npus:
        if name:
            raise OptionError(f"The board {spec.name} has no NPU.", hint="corstone300")
        return []
    usual = {"u55": "ethos-u55-128", "u65": "ethos-u65-256", "u85": "ethos-u85-256"}[spec.families[0]]
    chosen = name or spec.usual or usual
    if find_accelerator(chosen).family not in spec.families:
        known = [a for a in accelerators() if find_accelerator(a).family in spec.families]
        raise OptionError(f"The board {spec.name} has no {chosen}.", hint=f"one of {', '.join(known)}")
    return [chosen] * len(spec.npus)


# -- traces of the NPU


def trace_lines(npu: Npu, run: Run) -> Iterator[str]:
    """Yield lines about a run of an NPU, like a logic analyser's listing."""
    begin, size = run.stream
    bases = ", ".join(f"{i} at {base:#x}" for i, base in enumerate(run.bases) if base)
    yield f"[NPU {run.npu}, run {len(npu.runs)}] {size:,} bytes of commands at {begin:#x}; base pointers: {bases}"
    for operation in run.operations[:_SHOWN]:
        moved = [f"{sum(r.size for r in side):,} bytes" for side in (operation.reads, operation.writes)]
        shape = f" [{', '.join(map(str, operation.shape))}]" if operation.shape else ""
        yield f"  {operation.index:4d}  {operation.name}{shape}: reads {moved[0]}, writes {moved[1]}"
    if len(run.operations) > _SHOWN:
        yield f"  ... {len(run.operations) - _SHOWN} more"
    changed = ", ".join(f"{size:,} at {at:#x}" for at, size in run.written) or "nothing"
    yield f"  changed in memory: {changed}; {run.cycles:,} cycles ({_ESTIMATE})"
    if run.fault:
        yield f"  stopped: {run.fault}"
