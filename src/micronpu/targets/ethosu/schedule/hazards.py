"""Waits: operations that must have finished before another one may start, for any speed of the engines.

Transfers finish in order, and so do computations; the relative progress of the two engines is unknown except at waits.
Computations wait for each other as `BLOCKDEP` specifies, which the simulator checks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from micronpu.targets.ethosu.schedule.engines import DEPTHS
from micronpu.targets.ethosu.schedule.operations import COUNT
from micronpu.targets.ethosu.schedule.ranges import Ranges
from micronpu.targets.ethosu.schedule.stream import KERNEL_WAIT, TRANSFER_WAIT, Action


@dataclass
class _Engine:
    """The operations queued in one engine.

    Attributes:
        jobs: number in the stream, bytes read, bytes written.
        done: number of those that have certainly finished.
    """

    jobs: list[tuple[int, Ranges, Ranges]] = field(default_factory=list)
    done: int = 0

    def last_against(self, reads: Ranges, writes: Ranges) -> int:
        """Number of them that must have finished before an operation of the other engine may start."""
        for at in range(len(self.jobs), self.done, -1):
            _, read, written = self.jobs[at - 1]
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
        self._count = 0

    @property
    def transfers(self) -> int:
        """Number of transfers so far."""
        return len(self._transfers.jobs)

    def waited(self, action: Action) -> None:
        """Process a command that is not an operation."""
        if action.code == TRANSFER_WAIT:
            self._transfers.ended(action.parameter & COUNT)
        elif action.code == KERNEL_WAIT:
            self._kernels.ended(action.parameter & COUNT)

    def waits_for(self, is_transfer: bool, reads: Ranges, writes: Ranges, transfers: int = 0) -> list[Action]:
        """Return the waits that are missing before an operation.

        Args:
            transfers: minimum number of transfers that must have finished.
        """
        found = []
        if is_transfer:
            kernels = self._kernels.last_against(reads, writes)
            if kernels > self._kernels.done:
                found.append(Action(KERNEL_WAIT, len(self._kernels.jobs) - kernels))
        transfers = max(transfers, self._transfers.last_against(reads, writes))
        if transfers > self._transfers.done:
            found.append(Action(TRANSFER_WAIT, min(len(self._transfers.jobs) - transfers, COUNT)))
        return found

    def add(self, is_transfer: bool, reads: Ranges, writes: Ranges) -> None:
        """Add an operation when it is queued."""
        if is_transfer:
            self._transfers.jobs.append((self._count, reads, writes))
        else:
            self._kernels.ended(self._most_kernels - 1)
            self._kernels.jobs.append((self._count, reads, writes))
        self._count += 1


def missing_waits(
    actions: Sequence[Action], accesses: Sequence[tuple[Ranges, Ranges]], family: str
) -> list[tuple[int, Action]]:
    """Return missing waits for operations that must not overlap: number of the operation, and the wait before it.

    Args:
        actions: of the whole stream.
        accesses: bytes that each operation reads and writes, including transfers.
    """
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
