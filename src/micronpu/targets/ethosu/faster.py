"""A compiled program made faster behind Vela, and proved to compute what it computed before."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from micronpu.base.errors import MicroNpuError
from micronpu.ir.graph import Graph
from micronpu.targets.ethosu.host.proof import Ran, is_large, random_integers
from micronpu.targets.ethosu.host.simulator import WEIGHTS_OF_ONE_RUN, Array, EthosUSimulator, Footprint
from micronpu.targets.ethosu.options import EthosUOptions
from micronpu.targets.ethosu.payload import checksum, content_of
from micronpu.targets.ethosu.schedule.hazards import missing_waits
from micronpu.targets.ethosu.schedule.operations import CONSTANTS, for_any_data, tables_of
from micronpu.targets.ethosu.schedule.prefetch import (
    Analysed,
    Prefetched,
    analysed,
    arrangement_in,
    prefetched,
    space_of,
)
from micronpu.targets.ethosu.schedule.stream import actions_of, can_be_rewritten
from micronpu.targets.ethosu.vela.compiler import VelaProgram

LEAST_GAIN = 0.03
"""Part of the cycles that another schedule must save."""
_NEAR_BEST = 1.01
"""Cycles, in those of the best schedule, that another may take which needs less memory."""
_LEAST_ROOM = 16 * 1024
PART_OF_MEMORY = 0.9
"""Of the SRAM that there is: what is not the NPU's needs some, too."""
_NEAR_BOUND = 1.05
"""Cycles, in those that either engine takes by itself, from which on another plan is worth a look."""


@dataclass(frozen=True)
class Ahead:
    """What bringing weights ahead has done to a program.

    Attributes:
        cycles: of Vela's own schedule, by Vela's own estimate.
        brought: operations whose weights are in SRAM when they begin.
        with_weights: operations that have weights.
        size: bytes that are brought.
        scratch: bytes of scratch memory that they take beyond Vela's.
        objection: why nothing was done that would have paid, or "".
    """

    cycles: int
    brought: int = 0
    with_weights: int = 0
    size: int = 0
    scratch: int = 0
    objection: str = ""


@dataclass(frozen=True)
class Candidate:
    """Another schedule of a program, which nobody has proved yet.

    Attributes:
        old: the program.
        before: a run of it.
        made: the new one.
    """

    old: VelaProgram
    before: Ran
    made: Prefetched

    @property
    def scratch(self) -> int:
        """Bytes of scratch memory that it takes beyond the old one's."""
        return self.made.program.scratch_size - self.old.scratch_size

    def proved(self, spec: EthosUOptions) -> tuple[VelaProgram, Ahead]:
        """The new program, where it computes what the old one does in every order that its waits allow; else the old.

        The new stream runs in the simulator on the integers of the old one's run.
        """
        made = self.made
        if objection := _objection(self.before, made.program, spec):
            return self.old, Ahead(self.old.cycles, objection=objection)
        return made.program, Ahead(self.old.cycles, made.brought, made.with_weights, made.size, self.scratch)


def may_pay(program: VelaProgram, spec: EthosUOptions) -> bool:
    """Whether another schedule of a program's weights may save enough, by what no schedule can save."""
    memories = spec.memories
    if memories is None or not can_be_rewritten(program.commands) or not program.places:
        return False
    layers = [program.layers[place] for place in {*program.places} if place >= 0]
    if not any(layer.work.weight_bytes for layer in layers):
        return False
    busy = sum(layer.work.direct(memories)[0] for layer in layers)
    least = max(busy, _read_once(program) / memories.stored_rate)
    return least <= (1 - LEAST_GAIN) * program.cycles


def _read_once(program: VelaProgram) -> int:
    """Bytes of constants that every run reads: all but tables of which indices choose some rows."""
    tables = tables_of(actions_of(program.commands))
    return len(program.constants) - sum(end - begin for begin, end in tables.of(CONSTANTS))


def candidate(program: VelaProgram, spec: EthosUOptions, before: Ran | None = None) -> Candidate | None:
    """The program with its weights brought ahead, where that pays; else None.

    Args:
        before: a run of it, if there is one.
    """
    memories = spec.memories
    if memories is None or not may_pay(program, spec):
        return None
    if before is None:
        try:
            before = run(program, spec)
        except MicroNpuError:  # it cannot be run here, which others say
            return None
    found = analysed(program, before.accesses, spec.accelerator.family, memories)
    made = _best(found, _limit(program, spec))
    return None if made is None else Candidate(program, before, made)


@dataclass(frozen=True)
class Resident:
    """What a program would take with its constants in SRAM.

    Attributes:
        cycles: about, by Vela's figures for its operations.
        sram: bytes of SRAM.
    """

    cycles: int
    sram: int


def resident(program: VelaProgram, spec: EthosUOptions, scratch: int) -> Resident | None:
    """The price of a program whose constants are in SRAM; None where they are, or where there is no room for them.

    Args:
        scratch: bytes of scratch memory that it has for weights that are brought ahead, and would not need.
    """
    memories = spec.memories
    if memories is None or not program.places or not spec.max_sram_bytes:
        return None
    cycles = sum(layer.work.near(memories) for layer in program.layers)
    sram = program.sram_bytes - scratch + len(program.constants) + len(program.commands)
    return Resident(cycles, sram) if sram <= spec.max_sram_bytes * PART_OF_MEMORY else None


def could_be_faster(program: VelaProgram, spec: EthosUOptions) -> bool:
    """Whether a program takes notably longer than its arithmetic, and than reading its constants once."""
    memories = spec.memories
    if memories is None or not program.places:
        return False
    busy = sum(layer.work.near(memories) for layer in program.layers)
    return program.cycles > _NEAR_BOUND * max(busy, _read_once(program) / memories.stored_rate)


def _limit(program: VelaProgram, spec: EthosUOptions) -> int:
    """Bytes that the scratch memory may have."""
    room = int(spec.max_sram_bytes * PART_OF_MEMORY) - program.sram_bytes
    return program.scratch_size + max(room, 0)


def _best(found: Analysed, limit: int) -> Prefetched | None:
    """The schedule of the fewest cycles, or one nearly as good that takes less memory; None where it does not pay."""
    # Vela's total does not know that transfers and operations share a port, and ours does: it has to be better by both.
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
    program = prefetched(found, best)
    return program if program.program.cycles <= enough else None


def _rooms(least: int, most: int) -> Iterator[int]:
    """Sizes of the scratch memory to try: the least, and ever larger ones."""
    yield least
    more = _LEAST_ROOM
    while least + more < most:
        yield least + more
        more *= 2
    if most > least:
        yield most


def run(program: VelaProgram, spec: EthosUOptions, inputs: list[Array] | None = None) -> Ran:
    """Runs a program in the simulator, on random integers unless some are given.

    Raises:
        SimulationError: it does what no correct program does, or what the simulator cannot compute.
        RuntimeUnavailableError: there is no simulator here.
    """
    content = content_of(program)
    if inputs is None:
        seed = checksum(program)
        borders = enumerate(content.inputs)
        inputs = [random_integers(b.shape, f"<i{b.element_size}", seed + i, near=bool(i % 2)) for i, b in borders]
    simulator = EthosUSimulator(spec.silicon, weight_limit=WEIGHTS_OF_ONE_RUN)
    footprints: list[Footprint] = []
    return Ran(inputs, simulator.run(content, inputs, footprints=footprints), footprints)


def proved_by(before: Ran | None, program: VelaProgram, graph: Graph, spec: EthosUOptions) -> Ran | None:
    """A run that shows that a program computes what a proved one does; None where it takes a comparison with the graph.

    Of a large network one run is all that a comparison with its graph has, and takes twice the time.

    Args:
        before: a run of the proved program.
        graph: of the program, with the inputs and outputs of the proved one.
    """
    if before is None or not is_large(graph):
        return None
    return same_as(before, program, spec)


def same_as(before: Ran, program: VelaProgram, spec: EthosUOptions) -> Ran | None:
    """A program's run on the inputs of another's, where it gives the same; else None."""
    try:
        ran = run(program, spec, before.inputs)
    except MicroNpuError:  # it begins too early, perhaps, which a comparison with the graph mends
        return None
    same = all(np.array_equal(old, new) for old, new in zip(before.outputs, ran.outputs, strict=True))
    return ran if same else None


def _objection(before: Ran, made: VelaProgram, spec: EthosUOptions) -> str:
    """Why a stream must not be used in the place of another; "" where it may."""
    try:
        after = run(made, spec, before.inputs)
    except MicroNpuError as error:
        return error.what.rstrip(".")
    for number, (old, new) in enumerate(zip(before.outputs, after.outputs, strict=True)):
        if wrong := int(np.count_nonzero(old != new)):
            return f"{wrong:,} of {old.size:,} values of output {number} differ"
    actions = actions_of(made.commands)
    accesses = [(access.reads, access.writes) for access in for_any_data(actions, after.accesses)]
    if missing := missing_waits(actions, accesses, spec.accelerator.family):
        return f"operation {missing[0][0]} may begin before one has ended that it must not overlap"
    return ""
