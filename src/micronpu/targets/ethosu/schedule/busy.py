"""Estimate the time of a stream from its bus traffic and the speed of each memory of the chip.

Vela's own estimate derives the memory time of an operation from the sizes of its maps and from assumed bursts: an image
of three channels is assumed to cost a burst for each pixel. Here the bytes are those of `traffic_of`, and the rest is
as in Vela: arithmetic and all memories work in parallel, and the slowest one decides.

    arithmetic  Vela's cycles of the operation
    a memory    bytes that cross its port / bytes per cycle

Transfers overlap with computation as far as the waits of the stream allow; see `engines.py`.
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
    """Estimated times of a stream.

    Attributes:
        cycles: of the whole.
        ends: end of each operation in order, including transfers.
        memories: cycles of each memory for each operation.
    """

    cycles: int
    ends: tuple[int, ...] = field(repr=False)
    memories: tuple[Mapping[str, float], ...] = field(repr=False)


def arithmetic_of(traffic: Sequence[Traffic], places: Sequence[int], layers: Sequence[int]) -> list[float]:
    """Arithmetic cycles of each operation: its share of its layer's cycles, by products; 0 for a transfer.

    Args:
        places: number of the layer of each operation, including transfers.
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
    """Estimate the time of a stream.

    Args:
        traffic, arithmetic: of each operation, including transfers.
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
