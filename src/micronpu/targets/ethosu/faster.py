"""Optimize the schedule of a compiled program, and verify that its results are unchanged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from micronpu.base.arrays import Array
from micronpu.base.errors import MicroNpuError, RuntimeUnavailableError
from micronpu.ir.graph import Graph
from micronpu.targets.ethosu.host.proof import StreamRun, is_large, random_integers
from micronpu.targets.ethosu.host.simulator import WEIGHTS_OF_ONE_RUN, EthosUSimulator, NotModelledError
from micronpu.targets.ethosu.options import EthosUOptions
from micronpu.targets.ethosu.payload import checksum
from micronpu.targets.ethosu.schedule.operations import CONSTANTS, tables_of
from micronpu.targets.ethosu.schedule.prefetch import (
    Analysed,
    PrefetchResult,
    analysed,
    arrangement_in,
    missing_waits,
    prefetched,
    space_of,
)
from micronpu.targets.ethosu.schedule.traffic import accesses_of
from micronpu.targets.ethosu.stream import actions_of, can_be_rewritten
from micronpu.targets.ethosu.vela.compiler import VelaProgram

LEAST_GAIN = 0.03
"""Minimum fraction of the cycles that another schedule must save."""
_NEAR_BEST = 1.01
"""Maximum cycles of a schedule that needs less memory, relative to the best schedule."""
_LEAST_ROOM = 16 * 1024
PART_OF_MEMORY = 0.9
"""Maximum fraction of the available SRAM; other users need some, too."""
_NEAR_BOUND = 1.05
"""Minimum ratio of the cycles to those of the busier engine alone at which other plans are considered."""


@dataclass(frozen=True)
class ScheduleCandidate:
    """An unverified schedule of a program: the old program with a run of it, if there is one, and the new one with its
    result."""

    old: VelaProgram
    before: StreamRun | None
    program: VelaProgram
    prefetch: PrefetchResult

    def proved(self, spec: EthosUOptions) -> tuple[VelaProgram, PrefetchResult]:
        """Return the new program; the original if the simulator refutes the new one, or if a wait is missing in it.

        The new stream runs in the simulator on the inputs of the original's run. If the simulator is not available, or
        does not model the stream, the new program is returned, and `PrefetchResult.unproved` gives the reason.
        """
        objection, unproved = compared(self.old, self.program, spec, before=self.before)
        if objection := objection or _overlap(self.program, spec):
            return self.old, PrefetchResult(self.old.cycles, objection=objection)
        return self.program, replace(self.prefetch, unproved=unproved)


def may_pay(program: VelaProgram, spec: EthosUOptions) -> bool:
    """True if the lower bound of the cycles allows another schedule to save enough."""
    memories = spec.memories
    if memories is None or not can_be_rewritten(program.commands) or not program.places:
        return False
    layers = [program.layers[place] for place in {*program.places} if place >= 0]
    if not any(layer.work.weight_bytes for layer in layers):
        return False
    busy = sum(layer.work.least(memories) for layer in layers)
    least = max(busy, _read_once(program) / memories.stored_rate)
    return least <= (1 - LEAST_GAIN) * program.cycles


def _read_once(program: VelaProgram) -> int:
    """Bytes of constants that every run reads: all except tables of which indices select rows."""
    tables = tables_of(actions_of(program.commands))
    return len(program.constants) - sum(end - begin for begin, end in tables.of(CONSTANTS))


def candidate(program: VelaProgram, spec: EthosUOptions, before: StreamRun | None = None) -> ScheduleCandidate | None:
    """Return the program, of which there may be a run, with prefetched weights if that pays; else None."""
    memories = spec.memories
    if memories is None or not may_pay(program, spec):
        return None
    found = analysed(program, spec.accelerator.family, memories)
    room = int(spec.max_sram_bytes * PART_OF_MEMORY) - program.sram_bytes
    made = _best(found, program.scratch_size + max(room, 0))
    return None if made is None else ScheduleCandidate(program, before, *made)


def resident_bytes(program: VelaProgram, spec: EthosUOptions, scratch: int) -> int | None:
    """Return the bytes of SRAM of a program with its constants there, and without the scratch memory for prefetched
    weights; None if they are there already or do not fit."""
    if spec.memories is None or not program.places or not spec.max_sram_bytes:
        return None
    sram = program.sram_bytes - scratch + len(program.constants) + len(program.commands)
    return sram if sram <= spec.max_sram_bytes * PART_OF_MEMORY else None


def could_be_faster(program: VelaProgram, spec: EthosUOptions) -> bool:
    """True if a program takes notably longer than its arithmetic, and than reading its constants once."""
    memories = spec.memories
    if memories is None or not program.places:
        return False
    busy = sum(layer.work.near(memories) for layer in program.layers)
    return program.cycles > _NEAR_BOUND * max(busy, _read_once(program) / memories.stored_rate)


def _best(found: Analysed, limit: int) -> tuple[VelaProgram, PrefetchResult] | None:
    """Return the fastest schedule, or a nearly as fast one with less memory; None if it does not pay."""
    # Vela's total ignores that transfers and operations share a port, ours does not: require a gain in both.
    enough = (1 - LEAST_GAIN) * min(found.program.cycles, found.before.cycles)
    *rooms, most = _rooms(found.program.scratch_size, limit)
    space = space_of(found, most)
    best = arrangement_in(found, space.within(most))
    if best.cycles > enough and most > found.program.scratch_size:
        rooms = rooms[:1]
    for room in rooms:
        made = arrangement_in(found, space.within(room))
        if made.cycles <= min(best.cycles * _NEAR_BEST, enough):
            best = made
            break
        best = min(best, made, key=lambda x: x.cycles)
    if best.cycles > enough:
        return None
    program, prefetch = prefetched(found, best)
    return (program, prefetch) if program.cycles <= enough else None


def _rooms(least: int, most: int) -> Iterator[int]:
    yield least
    more = _LEAST_ROOM
    while least + more < most:
        yield least + more
        more *= 2
    if most > least:
        yield most


def run(program: VelaProgram, spec: EthosUOptions, inputs: list[Array] | None = None) -> StreamRun:
    """Run a program in the simulator, on random integers by default; raise `SimulationError` if it is invalid or not
    modelled."""
    if inputs is None:
        seed = checksum(program)
        io = enumerate(program.inputs)
        inputs = [random_integers(b.shape, f"<i{b.element_size}", seed + i, near=bool(i % 2)) for i, b in io]
    return StreamRun(inputs, EthosUSimulator(spec.silicon, weight_limit=WEIGHTS_OF_ONE_RUN).run(program, inputs))


def proved_by(before: StreamRun | None, program: VelaProgram, graph: Graph, spec: EthosUOptions) -> StreamRun | None:
    """Return a run that shows that a program computes the same as a verified one; None if it must be compared with the
    graph.

    For a large network, the comparison with its graph would use one run as well, and take twice the time.

    Args:
        before: a run of the verified program.
        graph: of the program, with the inputs and outputs of the verified one.
    """
    if before is None or not is_large(graph):
        return None
    try:
        ran = run(program, spec, before.inputs)
    except MicroNpuError:  # it may start too early, which the comparison with the graph corrects
        return None
    same = all(np.array_equal(old, new) for old, new in zip(before.outputs, ran.outputs, strict=True))
    return ran if same else None


def compared(
    old: VelaProgram,
    made: VelaProgram,
    spec: EthosUOptions,
    rows: Sequence[list[Array] | None] = (None,),
    before: StreamRun | None = None,
) -> tuple[str, str]:
    """Reason why a stream must not replace another, or ""; reason why that could not be verified, or "".

    Args:
        rows: inputs of both; None for random ones.
        before: a run of the original, instead of others.
    """
    try:
        for row in rows:
            if objection := _objection(before or run(old, spec, row), made, spec):
                return objection, ""
    except (RuntimeUnavailableError, NotModelledError) as error:
        return "", error.what.rstrip(".")
    except MicroNpuError as error:
        return error.what.rstrip("."), ""
    return "", ""


def _objection(before: StreamRun, made: VelaProgram, spec: EthosUOptions) -> str:
    """How the results of a stream differ from those of a run, or ""."""
    after = run(made, spec, before.inputs)
    for number, (old, new) in enumerate(zip(before.outputs, after.outputs, strict=True)):
        if wrong := int(np.count_nonzero(old != new)):
            return f"{wrong:,} of {old.size:,} values of output {number} differ"
    return ""


def _overlap(made: VelaProgram, spec: EthosUOptions) -> str:
    """The operations of a stream that may overlap because a wait is missing, or ""."""
    actions = actions_of(made.commands)
    accesses = [(a.reads, a.writes) for a in accesses_of(actions, spec.accelerator.family)]
    if missing := missing_waits(actions, accesses, spec.accelerator.family):
        return f"operation {missing[0][0]} may begin before one has ended that it must not overlap"
    return ""
