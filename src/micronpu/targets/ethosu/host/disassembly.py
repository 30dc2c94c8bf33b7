"""Disassemble a command stream: named commands, operands of operations, memory over time; and describe a payload.

The stream is run once in the simulator, on random integers, to find what every operation writes. No torch.

A byte of memory is live from the operation that writes it, or from the beginning for an input, to the last operation
that reads it, or to the end for an output. A value that is never read is live only during the operation that writes it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from micronpu.base.arrays import Array
from micronpu.base.errors import MicroNpuError, PayloadError
from micronpu.base.parsing import JsonObject
from micronpu.container.trace import StreamTrace
from micronpu.report.inside import InspectedDelegate, Section, Tensor
from micronpu.targets.ethosu import registers as reg
from micronpu.targets.ethosu.host.proof import random_integers
from micronpu.targets.ethosu.host.simulator import Bytes, EthosUSimulator, SimulatedOperation
from micronpu.targets.ethosu.payload import VelaIO, blocks, parse
from micronpu.targets.ethosu.schedule.operations import parts_of
from micronpu.targets.ethosu.stream import Action, accelerator_of, actions_of, commands_in, operation_offsets, words_of

GRAIN = 16
"""Granularity in bytes: Vela's alignment of tensors."""
READ, WRITTEN, BOTH, ALIVE, FREE = "r", "w", "x", "#", "."
"""State of a column in a picture: some byte of it is read, is written, both, or is live; or none is."""


@dataclass(frozen=True)
class Use:
    """Bytes that an operation reads and writes."""

    reads: tuple[Bytes, ...]
    writes: tuple[Bytes, ...]


@dataclass(frozen=True)
class MemoryMap:
    """One region over time.

    Attributes:
        region: its number in the stream.
        size: bytes up to the last used one.
        live: live bytes during each operation, in multiples of 16.
        picture: a row per operation; each column covers an equal part of the size. "r": read, "w": written, "x": both,
            "#": live, ".": free.
    """

    region: int
    size: int
    live: tuple[int, ...]
    picture: tuple[str, ...]

    @property
    def peak(self) -> int:
        """Maximum number of live bytes."""
        return max(self.live, default=0)

    @property
    def busiest(self) -> int:
        """Index of the first operation with that many live bytes."""
        return self.live.index(self.peak) if self.live else 0


def sources(uses: Sequence[Use], inputs: Sequence[Bytes], outputs: Sequence[Bytes]) -> list[tuple[int, ...]]:
    """Producers of the data that each operation, and then each output, reads: operation numbers, and -1 - i for input
    i."""
    owned: defaultdict[int, _Owners] = defaultdict(_Owners)

    def read(ranges: Iterable[Bytes]) -> tuple[int, ...]:
        return tuple(sorted({owner for b in ranges for owner in owned[b.region].of(b.address, b.address + b.size)}))

    for number, own in enumerate(inputs):
        owned[own.region].put(own.address, own.address + own.size, -1 - number)
    found = []
    for number, use in enumerate(uses):
        found.append(read(use.reads))
        for b in use.writes:
            owned[b.region].put(b.address, b.address + b.size, number)
    return [*found, *(read((own,)) for own in outputs)]


class _Owners:
    """The last writer of each byte of a region: sorted ranges that do not touch, or have different writers.

    An operation writes a tensor row by row, in thousands of ranges; merging adjacent ones keeps their number small.
    """

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._owners: list[int] = []

    def put(self, start: int, end: int, owner: int) -> None:
        """Assign the bytes [start, end) to a writer."""
        if start >= end:
            return
        # All ranges that overlap or touch the new one.
        first, behind = bisect_left(self._ends, start), bisect_right(self._starts, end)
        before: list[tuple[int, int, int]] = []
        after: list[tuple[int, int, int]] = []
        for a, b, o in zip(*(x[first:behind] for x in (self._starts, self._ends, self._owners)), strict=True):
            if o == owner:
                start, end = min(a, start), max(b, end)
                continue
            if a < start:
                before = [(a, min(b, start), o)]
            if b > end:
                after = [(max(a, end), b, o)]
        parts = [*before, (start, end, owner), *after]
        for index, values in enumerate((self._starts, self._ends, self._owners)):
            values[first:behind] = [part[index] for part in parts]

    def of(self, start: int, end: int) -> list[int]:
        """The writers of the bytes [start, end)."""
        return self._owners[bisect_right(self._ends, start) : bisect_left(self._starts, end)] if start < end else []


def memory_map(uses: Sequence[Use], region: int, outputs: Sequence[Bytes], columns: int = 64) -> MemoryMap:
    """Return the map of a region, given the uses of every operation in order, and the bytes that are read after the
    last."""
    spans = [*outputs, *(b for use in uses for b in (*use.reads, *use.writes))]
    size = max((b.address + b.size for b in spans if b.region == region), default=0)
    grains = -(-size // GRAIN)
    alive = _grains(outputs, region, grains)
    live, picture = [], []
    for use in reversed(uses):
        reads, writes = (_grains(ranges, region, grains) for ranges in (use.reads, use.writes))
        before = (alive & ~writes) | reads
        during = before | writes | alive
        live.append(int(np.count_nonzero(during)) * GRAIN)
        picture.append(_row(during, reads, writes, columns))
        alive = before
    return MemoryMap(region, size, tuple(reversed(live)), tuple(reversed(picture)))


def _grains(ranges: Sequence[Bytes], region: int, count: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
    found = np.zeros(count, np.bool_)
    for b in ranges:
        if b.region == region:
            found[b.address // GRAIN : -(-(b.address + b.size) // GRAIN)] = True
    return found


def _row(during: Array, reads: Array, writes: Array, columns: int) -> str:
    if not during.size:
        return ""
    starts = np.arange(min(columns, during.size)) * during.size // min(columns, during.size)
    d, r, w = (np.logical_or.reduceat(a, starts) for a in (during, reads, writes))
    return "".join(np.where(r & w, BOTH, np.where(w, WRITTEN, np.where(r, READ, np.where(d, ALIVE, FREE)))))


_SCRATCH = (1, 2)
_REGIONS = {0: "constants", 1: "scratch", 2: "fast scratch", 3: "inputs", 4: "outputs"}


@dataclass(frozen=True)
class StreamCommand:
    """One command of a stream.

    Attributes:
        offset: bytes from the first command.
        name: such as "NPU_SET_IFM_REGION".
        parameter: upper 16 bits of the command.
        value: the second word of commands that have one, or None.
    """

    offset: int
    name: str
    parameter: int
    value: int | None = None

    def __str__(self) -> str:
        """``0x0028  NPU_SET_IFM_REGION  1``."""
        second = "" if self.value is None else f"  0x{self.value:08x}"
        return f"0x{self.offset:04x}  {self.name:<28} {self.parameter}{second}"


@dataclass(frozen=True)
class StreamStep:
    """An operation or transfer, with the commands that set it up.

    Attributes:
        index: in the stream, including transfers; the same as in profiles and errors.
        name: of the computation, such as "convolution".
        reads, writes: each "name [sizes] at region+address", from the registers.
        work: multiplications, and bytes read.
        moved: bytes read and written, by region.
        commands: those since the previous operation, its own last.
        operator: operator of the user's model with its line, such as "Conv2d model.py:12", or "".
        after: operations whose results it reads; -1 - i means input i of the stream.
    """

    index: int
    name: str
    reads: tuple[str, ...]
    writes: str
    work: int
    moved: dict[str, int]
    commands: tuple[StreamCommand, ...]
    operator: str = ""
    after: tuple[int, ...] = ()


@dataclass(frozen=True)
class StreamDisassembly:
    """A command stream.

    Attributes:
        accelerator: that it was compiled for.
        steps: operations in order.
        rest: commands after the last operation.
        stopped: reason why the simulator did not finish, or "".
        memory: the scratch regions over time, without operations that the simulator did not reach.
        results: the operations that compute each output, as in `StreamStep.after`; empty if the simulator did not
            finish.
    """

    accelerator: str
    steps: tuple[StreamStep, ...]
    rest: tuple[StreamCommand, ...] = ()
    stopped: str = ""
    memory: tuple[MemoryMap, ...] = ()
    results: tuple[tuple[int, ...], ...] = ()

    @property
    def moved(self) -> dict[str, int]:
        """Bytes that all operations read and write, by region."""
        total: Counter[str] = Counter()
        for step in self.steps:
            total.update(step.moved)
        return dict(total)

    def to_dict(self) -> JsonObject:
        return {**asdict(self), "moved": self.moved}

    def lines(self, registers: bool = False) -> Iterator[str]:
        """Return the stream as text, a line per operation, and optionally one for each command before it."""
        for step in self.steps:
            if registers:
                yield from (f"    {command}" for command in step.commands)
            reads = ", ".join(step.reads)
            operator = f"  ; {step.operator}" if step.operator else ""
            yield f"{step.index:4d}  {step.name:<22} {reads} -> {step.writes}{operator}"
        if registers:
            yield from (f"    {command}" for command in self.rest)
        if self.stopped:
            yield f"The simulator stops here: {self.stopped}"
        yield "bytes moved: " + ", ".join(f"{name} {count:,}" for name, count in sorted(self.moved.items()))

    def memory_lines(self) -> Iterator[str]:
        """Memory over time as text: per region, a line per operation with the live bytes and their location."""
        width = max((len(s.operator or s.name) for s in self.steps), default=0)
        for region in self.memory:
            step = self.steps[region.busiest]
            yield (
                f"{_region(region.region)}: {region.size:,} bytes, at most {region.peak:,} alive, during operation "
                f"{step.index} ({step.operator or step.name}); a column is {max(1, region.size // 64):,} bytes: "
                f"r read, w written, x both, # alive, . free"
            )
            for step, live, row in zip(self.steps, region.live, region.picture, strict=False):
                yield f"{step.index:4d}  {step.operator or step.name:<{width}} {live:>10,}  {row}"


def disassemble(payload: bytes, trace: StreamTrace | None = None) -> StreamDisassembly:
    """Disassemble the stream of a payload; a trace names the operators of the model."""
    content = parse(payload)
    accelerator = accelerator_of(content.commands)
    simulator = EthosUSimulator(accelerator)
    seen: dict[int, SimulatedOperation] = {}

    def watch(operation: SimulatedOperation) -> None:
        seen[operation.index] = operation

    given = [random_integers(b.shape, f"<i{b.element_size}", i) for i, b in enumerate(content.inputs)]
    stopped = ""
    try:
        simulator.run(content, given, watch=watch, accesses=True)
    except MicroNpuError as error:
        stopped = error.what
    uses = [Use(seen[i].reads, seen[i].writes) for i in range(len(seen))]
    ends = [_place(b) for b in (() if stopped else content.outputs)]
    flow = sources(_with_chains(uses, seen), [_place(b) for b in content.inputs], ends)
    # The first reader of each operation whose result is read.
    readers = {source: i for i in reversed(range(len(uses))) for source in flow[i]}
    operations = [action for action in actions_of(content.commands) if action.is_operation]
    starts = dict(zip(operation_offsets(content.commands), operations, strict=True))
    steps: list[StreamStep] = []
    since: list[StreamCommand] = []
    for command in _commands(words_of(content.commands), simulator):
        since.append(command)
        if command.offset in starts:
            index = len(steps)
            found = _step(index, starts[command.offset], seen.get(index), tuple(since), simulator.accelerator.family)
            # The data of a transfer belong to the operation that reads them, which may come later.
            brings = index in seen and not seen[index].shape
            operator = trace.of(readers.get(index, index) if brings else index) if trace is not None else None
            after = flow[index] if index < len(uses) else ()
            steps.append(replace(found, operator=str(operator or ""), after=after))
            since = []
    used = {b.region for use in uses for b in use.writes} & set(_SCRATCH)
    memory = tuple(memory_map(uses, region, ends) for region in sorted(used))
    return StreamDisassembly(accelerator, tuple(steps), tuple(since), stopped, memory, tuple(flow[len(uses) :]))


def _with_chains(uses: Sequence[Use], seen: Mapping[int, SimulatedOperation]) -> list[Use]:
    """Model values that stay inside the NPU until the next operation as a byte of a pseudo region."""
    inside, found, kept = (Bytes(-1, 0, 1),), [], False
    for index, use in enumerate(uses):
        if not seen[index].shape:  # a transfer
            found.append(use)
            continue
        keeps = seen[index].region < 0
        found.append(Use(use.reads + inside * kept, use.writes + inside * keeps))
        kept = keeps
    return found


def _place(tensor: VelaIO) -> Bytes:
    return Bytes(tensor.region, tensor.address, tensor.bytes)


def _commands(words: Sequence[int], simulator: EthosUSimulator) -> Iterator[StreamCommand]:
    for command in commands_in(words):
        name = simulator.command_name(command.word) or f"unknown 0x{command.word & 0x43FF:04x}"
        yield StreamCommand(4 * command.at, name, command.parameter, command.value)


def _step(
    index: int, action: Action, seen: SimulatedOperation | None, commands: tuple[StreamCommand, ...], family: str
) -> StreamStep:
    name = seen.name if seen is not None else commands[-1].name.removeprefix("NPU_OP_").lower()
    number, address = action.number, action.address
    moved: Counter[str] = Counter()
    if action.is_transfer:
        length = address(reg.LENGTH)
        source, target = _region(number(reg.SOURCE_REGION) & 7), number(reg.TARGET_REGION)
        into = "table memory" if target & 0x100 else _region(target & 7)
        moved[source] += length
        moved[into] += length
        read = f"{length:,} bytes at {source}+0x{address(reg.SOURCE):x}"
        return StreamStep(index, name, (read,), f"{into}+0x{address(reg.TARGET):x}", length, dict(moved), commands)
    size = 1 << (number(reg.IFM_PRECISION) >> 2 & 3)
    height, width, depth = (number(code) + 1 for code in (reg.HEIGHT, reg.WIDTH, reg.IFM_DEPTH))
    region = _region(number(reg.REGION))
    reads = [f"ifm [{height}, {width}, {depth}] at {region}+0x{address(reg.INPUT):x}"]
    moved[region] += height * width * depth * size
    is_binary = number(reg.IFM2_PRECISION) and not number(reg.IFM2_BROADCAST) & 0x88
    is_product = action.code == reg.CONVOLUTION and action.parameter & 1
    if (action.code == reg.ELEMENTWISE and is_binary) or is_product:
        rows, columns, place = (number(reg.SECOND_INPUT + code) for code in (reg.HEIGHT, reg.WIDTH, reg.REGION))
        where = f"{_region(place)}+0x{address(reg.SECOND_INPUT):x}"
        reads.append(f"ifm2 [{rows + 1}, {columns + 1}] at {where}")
    elif action.code in (reg.CONVOLUTION, reg.DEPTHWISE):
        where = _region(number(reg.WEIGHT_REGION))
        length = sum(part.length for part in parts_of(action, family) if part.region == reg.WEIGHT_REGION)
        reads.append(f"{length:,} bytes of weights at {where}+0x{address(reg.WEIGHTS):x}")
        moved[where] += length
    if seen is None:
        return StreamStep(index, name, tuple(reads), "?", 0, dict(moved), commands)
    if seen.region < 0:
        writes = f"[{', '.join(map(str, seen.shape))}] kept inside"
    else:
        writes = f"[{', '.join(map(str, seen.shape))}] at {_region(seen.region)}+0x{seen.address:x}"
        elements = seen.shape[0] * seen.shape[1] * seen.shape[2] if seen.shape else 0
        moved[_region(seen.region)] += elements * (seen.value.itemsize if seen.value is not None else 1)
    return StreamStep(index, name, tuple(reads), writes, seen.work, dict(moved), commands)


def _region(number: int) -> str:
    return _REGIONS.get(number, f"region {number}")


def inspect(backend: str, blob: bytes) -> InspectedDelegate:
    """Return the sections and tensors of a payload; if it cannot be read, its sections and the reason."""
    sections = tuple(
        Section(b.name, len(b.data), f"stands elsewhere as {str(b.data, 'ascii', 'replace')}" if b.external else "")
        for b in blocks(blob)
    )
    try:
        payload = parse(blob)
    except PayloadError as error:
        return InspectedDelegate(backend, len(blob), sections=sections, objection=str(error))
    tensors = tuple(
        Tensor(
            f"{kind} {i}",
            tensor.shape,
            f"{tensor.element_size} byte{'' if tensor.element_size == 1 else 's'}",
            f"{_region(tensor.region)} + {tensor.address}",
        )
        for kind, side in (("input", payload.inputs), ("output", payload.outputs))
        for i, tensor in enumerate(side)
    )
    kind = f"{_accelerator(payload.commands)}, {payload.scratch_size:,} bytes of scratch memory"
    return InspectedDelegate(backend, len(blob), kind, sections, tensors)


def _accelerator(commands: bytes) -> str:
    try:
        _, family, macs = accelerator_of(commands).split("-")
    except PayloadError:
        return "an Ethos-U"
    return f"Ethos-{family.upper()} with {macs} MACs per cycle"
