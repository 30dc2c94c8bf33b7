"""How long an Ethos-U is busy with a stream, from what crosses the bus and how fast each memory of the chip is.

Vela's own figure takes a memory's share of an operation from the sizes of its maps and from bursts that it assumes: a
picture of three channels is taken to cost a burst for each pixel.  Here the bytes are those of `traffic_of`, and the
rest is as Vela has it: arithmetic and every memory work at once, and the slowest of them decides.

    arithmetic  Vela's cycles of the operation
    a memory    bytes that cross its port / bytes per cycle

Transfers go on beside what computes, as far as the waits of the stream let them; see `engines.py`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from micronpu.targets.ethosu.schedule.engines import Engines, Port
from micronpu.targets.ethosu.schedule.operations import CONSTANTS, COUNT, SOURCE_REGION, region_of
from micronpu.targets.ethosu.schedule.stream import KERNEL_WAIT, TRANSFER_WAIT, Action
from micronpu.targets.ethosu.schedule.traffic import Traffic


@dataclass(frozen=True)
class Busy:
    """A stream over time.

    Attributes:
        cycles: of the whole.
        ends: when each operation ends, in order, transfers included.
        memories: cycles of each memory that each of them takes.
    """

    cycles: int
    ends: tuple[int, ...] = field(repr=False)
    memories: tuple[Mapping[str, float], ...] = field(repr=False)


def arithmetic_of(traffic: Sequence[Traffic], places: Sequence[int], layers: Sequence[int]) -> list[float]:
    """Cycles of the arithmetic of each operation: its part of its layer's, by products; 0 of a transfer.

    Args:
        places: number of the layer of each operation, transfers included.
        layers: cycles of each layer.
    """
    work: Counter[int] = Counter()
    for one, place in zip(traffic, places, strict=True):
        work[place] += one.work
    return [
        layers[place] * one.work / work[place] if place >= 0 and work[place] else 0.0
        for one, place in zip(traffic, places, strict=True)
    ]


def busy(
    actions: Sequence[Action],
    traffic: Sequence[Traffic],
    arithmetic: Sequence[float],
    ports: Mapping[int, Port],
    family: str,
) -> Busy:
    """How long the NPU takes for a stream.

    Args:
        traffic, arithmetic: of each operation, transfers included.
        ports: by number of the region.
    """
    engines, found, ends = Engines(family), list[Mapping[str, float]](), list[int]()
    stored = ports[CONSTANTS].memory
    for action in actions:
        if action.code == TRANSFER_WAIT:
            engines.wait_for_transfers(action.parameter & COUNT)
        elif action.code == KERNEL_WAIT:
            engines.wait_for_kernels(action.parameter & COUNT)
        elif action.is_operation:
            number = len(found)
            cycles = _waits(traffic[number], ports)
            if action.is_transfer:
                reads = ports[region_of(action, SOURCE_REGION)].memory
                engines.transfer(math.ceil(max(cycles.values(), default=0)), reads == stored)
                ends.append(engines.transfers[-1][1])
            else:
                near = max([arithmetic[number], *(n for name, n in cycles.items() if name != stored)])
                engines.kernel(math.ceil(near), math.ceil(cycles.get(stored, 0)))
                ends.append(engines.kernels[-1][1])
            found.append(cycles)
    return Busy(engines.end, tuple(ends), tuple(found))


def _waits(traffic: Traffic, ports: Mapping[int, Port]) -> dict[str, float]:
    """Cycles of each memory."""
    cycles: dict[str, float] = {}
    for region, moved in traffic.regions.items():
        if region in ports:
            memory = ports[region].memory
            cycles[memory] = cycles.get(memory, 0) + moved.bytes / ports[region].rate
    return cycles
