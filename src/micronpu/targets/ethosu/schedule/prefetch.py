"""Prefetch the weights of a finished program: the same results, fewer cycles.

    conv 0                                   transfer of 1's weights into scratch
    conv 1, weights among the constants  ->  conv 0
                                             wait for transfers; conv 1, weights in scratch

The encoded weights, the feature maps and the order of computations are unchanged. Vela's own transfers of weights are
rescheduled together with the added ones.

Waits: operations that must have finished before another one may start, for any speed of the engines.

Transfers finish in order, and so do computations; the relative progress of the two engines is unknown except at waits.
Computations wait for each other as `BLOCKDEP` specifies, which the simulator checks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from micronpu.targets.ethosu import registers as reg
from micronpu.targets.ethosu.schedule.arrange import Arrangement, Slot, Transfer, arranged
from micronpu.targets.ethosu.schedule.constants import Weights, weights_of
from micronpu.targets.ethosu.schedule.engines import DEPTHS, NOTHING, EngineWork, Memories
from micronpu.targets.ethosu.schedule.operations import (
    CONSTANTS,
    COUNT,
    SCRATCH,
    OperationAccess,
    Timed,
    part_of,
    shares,
    timed,
)
from micronpu.targets.ethosu.schedule.ranges import GRAIN, Ranges, Space
from micronpu.targets.ethosu.schedule.traffic import accesses_of
from micronpu.targets.ethosu.stream import Action, actions_of, large, small, with_actions
from micronpu.targets.ethosu.vela.compiler import LayerEstimate, VelaProgram


@dataclass(frozen=True)
class Analysed:
    """A program split into its operations.

    Attributes:
        program: Vela's.
        family: of the accelerator.
        memories: cost of moving bytes.
        slots: the operations that keep their position.
        last: commands after them.
        before: times of the original stream.
    """

    program: VelaProgram
    family: str
    memories: Memories
    slots: tuple[Slot, ...]
    last: tuple[Action, ...]
    before: Timed


def analysed(program: VelaProgram, family: str, memories: Memories) -> Analysed:
    """Split a program into its operations."""
    actions = actions_of(program.commands)
    accesses = accesses_of(actions, family)
    share = shares(actions, program.places, accesses)
    works = {
        number: part_of(program.layers[place].work, part)
        for number, (place, part) in enumerate(zip(program.places, share, strict=True))
        if place >= 0 and part
    }
    slots, last = _slots(program, actions, accesses, works, family)
    return Analysed(program, family, memories, slots, last, timed(actions, works, memories, family))


def _slots(
    program: VelaProgram,
    actions: Sequence[Action],
    accesses: Sequence[OperationAccess],
    works: Mapping[int, EngineWork],
    family: str,
) -> tuple[tuple[Slot, ...], tuple[Action, ...]]:
    found = weights_of(actions, family)
    slots: list[Slot] = []
    before: list[Action] = []
    number, stays, settled = 0, list[bool](), 0
    for at, action in enumerate(actions):
        if action.code == reg.TRANSFER_WAIT:
            ended = max(len(stays) - (action.parameter & COUNT), 0)
            settled = max(settled, sum(stays[:ended]))
        elif not action.is_operation:
            before.append(action)
        else:
            if action.is_transfer:
                stays.append(at not in found.bringing)
            if at in found.bringing:
                # Waits before a removed transfer do not apply to what follows.
                before = [x for x in before if x.code != reg.KERNEL_WAIT]
            else:
                access, weights = accesses[number], found.weights.get(at)
                own = [(p.address, p.address + p.length) for p, _ in weights.origins] if weights is not None else []
                reads = access.reads - Ranges((region, *span) for span in own for region in (CONSTANTS, SCRATCH))
                source = program.sources[number] if number < len(program.sources) else -1
                slots.append(
                    Slot(
                        *(action, tuple(before), works.get(number, NOTHING), program.places[number], source),
                        *(reads, access.writes, weights, settled),
                    )
                )
                before = []
            number += 1
    return tuple(slots), tuple(before)


@dataclass(frozen=True)
class PrefetchResult:
    """Result of prefetching the weights of a program.

    Attributes:
        cycles: of Vela's own schedule, by Vela's estimate.
        brought: number of operations whose weights are in SRAM when they start.
        with_weights: number of operations with weights.
        size: prefetched bytes.
        scratch: bytes of scratch memory in addition to Vela's.
        objection: reason why a faster schedule was not used, or "".
        unproved: reason why the new stream could not be verified, or "".
    """

    cycles: int
    brought: int = 0
    with_weights: int = 0
    size: int = 0
    scratch: int = 0
    objection: str = ""
    unproved: str = ""


def space_of(found: Analysed, limit: int) -> Space:
    """The free scratch memory of a program, up to ``limit`` bytes."""
    outputs = Ranges((b.region, b.address, b.address + b.bytes) for b in found.program.outputs)
    reads, writes = [slot.reads for slot in found.slots], [slot.writes for slot in found.slots]
    size = found.program.scratch_size
    return Space(reads, writes, outputs, SCRATCH, size, max(size, limit))


def arrangement_in(found: Analysed, space: Space) -> Arrangement:
    """Schedule transfers in the free memory; the space is modified."""
    return arranged(found.slots, space, found.memories, found.family)


def prefetched(found: Analysed, arrangement: Arrangement) -> tuple[VelaProgram, PrefetchResult]:
    """Return the program with prefetched weights, and the unverified result."""
    program = found.program
    items = _Written(found, arrangement)
    time = timed(items.actions, items.works, found.memories, found.family)
    scratch = max(program.scratch_size, -(-arrangement.top // GRAIN) * GRAIN)
    more = scratch - program.scratch_size
    memory = {**program.memory, found.memories.near: program.memory.get(found.memories.near, 0) + more}
    made = replace(
        program,
        commands=with_actions(program.commands, items.actions),
        scratch_size=scratch,
        cycles=time.cycles,
        memory=memory,
        layers=_layers(program, items.places, time),
        sources=tuple(items.sources),
        places=tuple(items.places),
    )
    loads = {id(load): load for load in arrangement.loads.values()}
    size = sum(load.weights.size for load in loads.values())
    with_weights = sum(s.weights is not None for s in found.slots)
    return made, PrefetchResult(program.cycles, len(arrangement.loads), with_weights, size, more)


def _layers(program: VelaProgram, places: Sequence[int], time: Timed) -> tuple[LayerEstimate, ...]:
    """Vela's rows with the cycles from the end of the previous row to the end of each."""
    cycles, ended = [0] * len(program.layers), 0
    for place, (_, end) in zip(places, time.spans, strict=True):
        if place >= 0 and end > ended:
            cycles[place] += end - ended
            ended = end
    return tuple(replace(layer, cycles=count) for layer, count in zip(program.layers, cycles, strict=True))


class _Written:
    """Writes the commands of a schedule; its works, places and sources are those of operations and transfers."""

    def __init__(self, found: Analysed, arrangement: Arrangement) -> None:
        self._slots = found.slots
        self._order = Order(found.family)
        self.actions: list[Action] = []
        self.works: dict[int, EngineWork] = {}
        self.places: list[int] = []
        self.sources: list[int] = []
        settled: list[int] = [0]  # total number of transfers by number of transfers of the slots
        for now, slot in enumerate(self._slots):
            for piece in arrangement.pieces.get(now, ()):
                self._transfer(piece)
            for action in slot.before:
                self._order.waited(action)
                self.actions.append(action)
            load = arrangement.loads.get(now)
            action, reads = slot.action, slot.reads
            if slot.weights is not None:
                action = _reading(action, slot.weights, None if load is None else load.address)
                reads |= _places(slot.weights, None if load is None else load.address)
            self.works[len(self.places)] = slot.work
            self._add(action, reads, slot.writes, slot.place, slot.source, settled[min(slot.settled, len(settled) - 1)])
            if action.is_transfer:
                settled.append(self._order.transfers)
        self.actions += found.last

    def _transfer(self, piece: Transfer) -> None:
        first = self._slots[piece.load.users[0]]
        registers = {
            small(reg.SOURCE_REGION): (CONSTANTS, None),
            small(reg.TARGET_REGION): (SCRATCH, None),
            large(reg.SOURCE): _wide(piece.source),
            large(reg.TARGET): _wide(piece.target),
            large(reg.LENGTH): _wide(piece.length),
        }
        reads = Ranges([(CONSTANTS, piece.source, piece.source + piece.length)])
        writes = Ranges([(SCRATCH, piece.target, piece.target + piece.length)])
        self._add(Action(reg.TRANSFER, 0, registers), reads, writes, first.place, first.source)

    def _add(self, action: Action, reads: Ranges, writes: Ranges, place: int, source: int, settled: int = 0) -> None:
        waits = self._order.waits_for(action.is_transfer, reads, writes, settled)
        for wait in waits:
            self._order.waited(wait)
        self._order.add(action.is_transfer, reads, writes)
        self.actions += [*waits, action]
        self.places.append(place)
        self.sources.append(source)


def _wide(value: int) -> tuple[int, int]:
    return value >> 32, value & 0xFFFFFFFF


def _reading(action: Action, weights: Weights, address: int | None) -> Action:
    """An operation that reads its weights from a scratch address, or, if None, where they are stored."""
    registers = dict(action.registers)
    for part, origin in weights.origins:
        place = origin if address is None else address + weights.offset(origin)
        registers[large(part.base)] = _wide(place)
        registers[small(part.region)] = (CONSTANTS if address is None else SCRATCH), None
    return replace(action, registers=registers)


def _places(weights: Weights, address: int | None) -> Ranges:
    region = CONSTANTS if address is None else SCRATCH
    starts = (
        (origin if address is None else address + weights.offset(origin), part) for part, origin in weights.origins
    )
    return Ranges((region, start, start + part.length) for start, part in starts)


@dataclass
class _Engine:
    """The operations queued in one engine, by the bytes that they read and write; ``done`` have certainly finished."""

    jobs: list[tuple[Ranges, Ranges]] = field(default_factory=list)
    done: int = 0

    def last_against(self, reads: Ranges, writes: Ranges) -> int:
        """Number of them that must have finished before an operation of the other engine may start."""
        for at in range(len(self.jobs), self.done, -1):
            read, written = self.jobs[at - 1]
            if writes.meets(read) or writes.meets(written) or reads.meets(written):
                return at
        return 0

    def ended(self, left: int) -> None:
        """Apply a wait or the engine's own limit: at most ``left`` remain."""
        self.done = max(self.done, len(self.jobs) - left)


class Order:
    """Tracks which operations of a stream have certainly finished.

    The transfer engine may queue any number of transfers, so that only waits count.

    Args:
        family: "u55", "u65" or "u85".
    """

    def __init__(self, family: str) -> None:
        self._most_kernels, _ = DEPTHS[family]
        self._kernels, self._transfers = _Engine(), _Engine()

    @property
    def transfers(self) -> int:
        """Number of transfers so far."""
        return len(self._transfers.jobs)

    def waited(self, action: Action) -> None:
        """Process a command that is not an operation."""
        if action.code == reg.TRANSFER_WAIT:
            self._transfers.ended(action.parameter & COUNT)
        elif action.code == reg.KERNEL_WAIT:
            self._kernels.ended(action.parameter & COUNT)

    def waits_for(self, is_transfer: bool, reads: Ranges, writes: Ranges, transfers: int = 0) -> list[Action]:
        """Return the waits that are missing before an operation, and for the least number of transfers that must have
        finished."""
        found = []
        if is_transfer:
            kernels = self._kernels.last_against(reads, writes)
            if kernels > self._kernels.done:
                found.append(Action(reg.KERNEL_WAIT, len(self._kernels.jobs) - kernels))
        transfers = max(transfers, self._transfers.last_against(reads, writes))
        if transfers > self._transfers.done:
            found.append(Action(reg.TRANSFER_WAIT, min(len(self._transfers.jobs) - transfers, COUNT)))
        return found

    def add(self, is_transfer: bool, reads: Ranges, writes: Ranges) -> None:
        """Add an operation when it is queued."""
        if not is_transfer:
            self._kernels.ended(self._most_kernels - 1)
        (self._transfers if is_transfer else self._kernels).jobs.append((reads, writes))


def missing_waits(
    actions: Sequence[Action], accesses: Sequence[tuple[Ranges, Ranges]], family: str
) -> list[tuple[int, Action]]:
    """Return missing waits for operations that must not overlap: number of the operation, and the wait before it."""
    order, found, number = Order(family), [], 0
    for action in actions:
        if not action.is_operation:
            order.waited(action)
            continue
        reads, writes = accesses[number]
        found += [(number, wait) for wait in order.waits_for(action.is_transfer, reads, writes)]
        order.add(action.is_transfer, reads, writes)
        number += 1
    return found
