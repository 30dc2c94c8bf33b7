"""Model of the two engines of an Ethos-U over time: computation, and the channel that moves bytes in parallel.

The cost of an operation is Vela's estimate. The order is that of the stream: the command processor queues as many
operations as each engine can hold, and blocks if a queue is full, and at the waits of the stream.

    commands   conv 0 | transfer for 2 | conv 1 | wait for transfers | conv 2
    computes   [ conv 0      ][ conv 1    ]      [ conv 2 ]
    moves           [ transfer for 2       ]

An operation that reads its weights where they are stored, or a transfer, occupies the port of that memory: later ones
get the remaining cycles. Vela's own total ignores this.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field

DEPTHS: Mapping[str, tuple[int, int]] = {"u55": (2, 1), "u65": (2, 2), "u85": (2, 4)}
"""Queue lengths of operations and transfers, including the running one."""


@dataclass(frozen=True)
class Memories:
    """Cost of moving bytes.

    Attributes:
        stored: Vela's name of the memory of the constants.
        near: Vela's name of the memory of everything else.
        stored_rate, near_rate: bytes per cycle of each.
        stored_latency, near_latency: cycles before the first byte that is read, and written.
    """

    stored: str
    near: str
    stored_rate: float
    near_rate: float
    stored_latency: int
    near_latency: int

    def transfer(self, size: int) -> int:
        """Cycles of a transfer from the stored to the near memory, as Vela counts them."""
        reading = int(size / self.stored_rate) + self.stored_latency
        return max(reading, int(size / self.near_rate) + self.near_latency)


@dataclass(frozen=True)
class Port:
    """Port of a region of a stream, such as "AXI0", the memory behind it, bytes per cycle of the NPU, and bytes of a
    beat."""

    name: str
    memory: str
    rate: float
    width: int


@dataclass(frozen=True)
class EngineWork:
    """Cost of an operation by part of the machine, in cycles.

    Attributes:
        arithmetic: of the computation alone.
        feature_maps: of reading and writing feature maps.
        weight_bytes: bytes of weights and scales that it reads, including repeated reads.
    """

    arithmetic: float = 0
    feature_maps: float = 0
    weight_bytes: float = 0

    def near(self, memories: Memories) -> int:
        """Cycles with the weights in the near memory."""
        return math.ceil(max(self.arithmetic, self.feature_maps + self.weight_bytes / memories.near_rate))

    def direct(self, memories: Memories) -> tuple[int, int]:
        """Cycles with the weights where they are stored, without waiting for them; and cycles of that memory."""
        return math.ceil(max(self.arithmetic, self.feature_maps)), math.ceil(self.weight_bytes / memories.stored_rate)

    def least(self, memories: Memories) -> int:
        """Cycles with the weights in the memory from which they come faster, and no one else waiting for it."""
        return min(self.near(memories), max(self.direct(memories)))


NOTHING = EngineWork()


@dataclass
class _Port:
    """A memory that serves one reader at a time: sorted, non-adjacent spans of occupied cycles."""

    begins: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)

    def take(self, start: int, cycles: int) -> int:
        """Occupy ``cycles`` free cycles from `start` on; return the first cycle after them."""
        if cycles <= 0:
            return start
        at = bisect_right(self.ends, start)
        first, begin, time = at, start, start
        while at < len(self.begins):
            if self.begins[at] <= time:  # occupied
                begin, time = (min(begin, self.begins[at]) if at == first else begin), max(time, self.ends[at])
            elif self.begins[at] - time < cycles:
                cycles -= self.begins[at] - time
                time = self.ends[at]
            else:
                break
            at += 1
        time += cycles
        if at < len(self.begins) and self.begins[at] == time:
            end, at = self.ends[at], at + 1
        else:
            end = time
        self.begins[first:at], self.ends[first:at] = [begin], [end]
        return time


class Engines:
    """Simulated time of a stream: each method is the next command; kernels and transfers have a start and an end in
    cycles."""

    def __init__(self, family: str) -> None:
        self._most_kernels, self._most_transfers = DEPTHS[family]
        self._now = 0
        self._port = _Port()
        self.kernels: list[tuple[int, int]] = []
        self.transfers: list[tuple[int, int]] = []

    @property
    def end(self) -> int:
        """Time when everything has finished."""
        return max(self._now, self._last(self.kernels), self._last(self.transfers))

    @staticmethod
    def _last(jobs: list[tuple[int, int]]) -> int:
        return jobs[-1][1] if jobs else 0

    def idle_from(self) -> int:
        """Time when the channel has finished all queued transfers."""
        return self._last(self.transfers)

    def kernel_end(self, back: int) -> int:
        """End of an operation, counted from the last one; 0 if there is none."""
        return self.kernels[-1 - back][1] if back < len(self.kernels) else 0

    def _wait(self, jobs: list[tuple[int, int]], count: int) -> None:
        if len(jobs) > count:
            self._now = max(self._now, jobs[-1 - count][1])

    def wait_for_kernels(self, count: int) -> None:
        """Wait until at most ``count`` remain."""
        self._wait(self.kernels, count)

    def wait_for_transfers(self, count: int) -> None:
        """Wait until at most ``count`` remain."""
        self._wait(self.transfers, count)

    def kernel(self, cycles: int, stored: int = 0) -> tuple[int, int]:
        """Add an operation of so many cycles, which also occupies the memory of the constants; return its start and
        end."""
        self.wait_for_kernels(self._most_kernels - 1)
        begin = max(self._now, self._last(self.kernels))
        self.kernels.append((begin, max(begin + cycles, self._port.take(begin, stored))))
        return self.kernels[-1]

    def transfer(self, cycles: int, stored: int = True) -> tuple[int, int]:
        """Add a transfer, which may read the constants' memory; return its start and end."""
        self.wait_for_transfers(self._most_transfers - 1)
        begin = max(self._now, self._last(self.transfers))
        self.transfers.append((begin, self._port.take(begin, cycles) if stored else begin + cycles))
        return self.transfers[-1]
