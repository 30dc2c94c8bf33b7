"""Waits: what must have ended before an operation may begin, whatever the engines are faster at.

Transfers are done in order, and so are operations that compute; how far the one engine is when the other begins nobody
knows but for the waits.  Operations that compute wait for each other as `BLOCKDEP` says, which the simulator checks.
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
    """The operations that one engine was given.

    Attributes:
        jobs: number in the stream, bytes read, bytes written.
        done: how many have ended for certain.
    """

    jobs: list[tuple[int, Ranges, Ranges]] = field(default_factory=list)
    done: int = 0

    def last_against(self, reads: Ranges, writes: Ranges) -> int:
        """How many of them must have ended before an operation of the other engine may begin."""
        for at in range(len(self.jobs), self.done, -1):
            _, read, written = self.jobs[at - 1]
            if writes.meets(read) or writes.meets(written) or reads.meets(written):
                return at
        return 0

    def ended(self, left: int) -> None:
        """A wait, or the engine's own limit, says that at most so many are left."""
        self.done = max(self.done, len(self.jobs) - left)


class Order:
    """What is known of a stream's operations as its commands go by.

    Args:
        family: "u55", "u65" or "u85".
        strict: the engine that moves bytes may hold any number of transfers, so that waits alone count.
    """

    def __init__(self, family: str, *, strict: bool = True) -> None:
        self._most_kernels, self._most_transfers = DEPTHS[family]
        self._strict = strict
        self._kernels, self._transfers = _Engine(), _Engine()
        self._count = 0

    @property
    def transfers(self) -> int:
        """How many there have been."""
        return len(self._transfers.jobs)

    def waited(self, action: Action) -> None:
        """A command that is no operation."""
        if action.code == TRANSFER_WAIT:
            self._transfers.ended(action.parameter & COUNT)
        elif action.code == KERNEL_WAIT:
            self._kernels.ended(action.parameter & COUNT)

    def waits_for(self, is_transfer: bool, reads: Ranges, writes: Ranges, transfers: int = 0) -> list[Action]:
        """The waits that are missing in front of an operation.

        Args:
            transfers: how many of them must have ended in any case.
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
        """An operation, as it is handed over."""
        if is_transfer:
            if not self._strict:
                self._transfers.ended(self._most_transfers - 1)
            self._transfers.jobs.append((self._count, reads, writes))
        else:
            self._kernels.ended(self._most_kernels - 1)
            self._kernels.jobs.append((self._count, reads, writes))
        self._count += 1


def missing_waits(
    actions: Sequence[Action], accesses: Sequence[tuple[Ranges, Ranges]], family: str, *, strict: bool = True
) -> list[tuple[int, Action]]:
    """Where a stream's operations may overlap that must not: number of the operation, and the wait in front of it.

    Args:
        actions: of the whole stream.
        accesses: bytes that each operation reads and writes, transfers included.
        strict: see `Order`.
    """
    order, found, number = Order(family, strict=strict), [], 0
    for action in actions:
        if not action.is_operation:
            order.waited(action)
            continue
        reads, writes = accesses[number]
        found += [(number, wait) for wait in order.waits_for(action.is_transfer, reads, writes)]
        order.add(action.is_transfer, reads, writes)
        number += 1
    return found
