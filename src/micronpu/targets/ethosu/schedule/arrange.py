"""Schedule transfers of weights: as early as the channel is idle and memory is free.

    computes   [ conv 0 ][ conv 1, waits for flash      ][ conv 2 ..
    moves                                                            (Vela)

    computes   [ conv 0 ][ conv 1 ][ conv 2 ..
    moves      [ weights of 1 ][ weights of 2 ]..                    (prefetched)

A single pass over the operations tracks the time of both engines. Before each operation the next weights are started if
the channel is idle by then and memory is free until they are read; a large transfer is split, so that urgent transfers
are not delayed. Weights without free memory are read where they are stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from micronpu.targets.ethosu.schedule.constants import Weights
from micronpu.targets.ethosu.schedule.engines import Engines, EngineWork, Memories
from micronpu.targets.ethosu.schedule.operations import cycles_of
from micronpu.targets.ethosu.schedule.ranges import GRAIN, Ranges, Space
from micronpu.targets.ethosu.stream import Action

_LEAST_PIECE = 4096
"""Minimum size in bytes of a part of a transfer."""
_LOOKAHEAD = 8
"""Number of waiting weights, for lack of memory, that later ones may overtake."""
_LONGEST_PAUSE = 64
"""Distance between two operations with the same weights above which the weights are transferred twice."""


@dataclass(frozen=True)
class Slot:
    """An operation that keeps its position: a computation, or a transfer of other data than weights.

    Attributes:
        action: the command of the stream.
        before: commands to keep before it, such as waits for computations.
        work: its cost.
        place, source: see `VelaProgram`.
        reads, writes: excluding weights, if those are known.
        weights: that it reads, if known.
        settled: number of transfers among the slots that Vela waits for before it.
    """

    action: Action
    before: tuple[Action, ...]
    work: EngineWork
    place: int
    source: int
    reads: Ranges
    writes: Ranges
    weights: Weights | None = None
    settled: int = 0


@dataclass
class Load:
    """Weights that are transferred once, for one operation or several.

    Attributes:
        weights: their ranges of constants.
        users: numbers of the slots that read them.
        address: destination; None if they are read where they are stored.
        free: number of the slot from which on the destination is free.
        begins: number of the slot before which the transfer may start.
        moved: bytes transferred so far.
        done: number of transfers up to the last one for these weights.
    """

    weights: Weights
    users: list[int]
    address: int | None = None
    free: int = -1
    begins: int = -1
    moved: int = 0
    done: int = 0

    @property
    def left(self) -> int:
        """Bytes still to be transferred."""
        return self.weights.size - self.moved


@dataclass(frozen=True)
class Transfer:
    """A transfer of weights from a first byte among the constants to one in the scratch memory; the length is in
    bytes."""

    load: Load = field(repr=False)
    source: int
    target: int
    length: int


@dataclass(frozen=True)
class Arrangement:
    """A schedule of transfers.

    Attributes:
        pieces: by the slot before which they start.
        loads: by slot, of those with prefetched weights.
        cycles: of the whole, without waits that are unknown until the commands are written.
    """

    pieces: dict[int, list[Transfer]]
    loads: dict[int, Load]
    cycles: int = 0

    @property
    def top(self) -> int:
        """Bytes of the scratch memory up to the last one used for weights."""
        return max((x.address + x.weights.size for x in self.loads.values() if x.address is not None), default=0)


def arranged(slots: Sequence[Slot], space: Space, memories: Memories, family: str) -> Arrangement:
    """Schedule the transfers of all weights in free memory, which is modified."""
    return _Arranging(slots, space, memories, family).run()


class _Arranging:
    def __init__(self, slots: Sequence[Slot], space: Space, memories: Memories, family: str) -> None:
        self._slots, self._space, self._memories = slots, space, memories
        self._engines = Engines(family)
        self._waiting = _loads(slots)
        self._placed: list[Load] = []
        self._found = Arrangement({}, {})

    def run(self) -> Arrangement:
        for now, slot in enumerate(self._slots):
            self._begin(now)
            if slot.action.is_transfer:
                self._engines.transfer(*cycles_of(slot.action, self._memories))
                continue
            load = self._found.loads.get(now)
            if load is not None:
                self._engines.wait_for_transfers(len(self._engines.transfers) - load.done)
            if load is None and slot.weights is not None:
                self._engines.kernel(*slot.work.direct(self._memories))
            else:
                self._engines.kernel(slot.work.near(self._memories))
        return replace(self._found, cycles=self._engines.end)

    def _begin(self, now: int) -> None:
        """Start transfers that can start before a slot, and finish those that it reads."""
        while (load := self._next(now)) is not None:
            urgent = load.users[0] == now
            # The command processor is two operations ahead and blocks until the channel is idle; that must be while the
            # last operation but one runs, so that the last one has not ended when the next is queued.
            if not urgent and self._engines.idle_from() > self._engines.kernel_end(1):
                return
            if urgent and not load.moved and not self._pays(load):
                self._leave(load)
            else:
                self._move(load, now, load.left if urgent else self._piece(load))
            if not load.left or load.address is None:
                self._placed.remove(load)

    def _next(self, now: int) -> Load | None:
        """The weights that are read first of those that may start; allocates memory until there are some."""
        while self._waiting:
            able = any(x.begins <= now for x in self._placed)
            if self._waiting[0].users[0] > now and (able or len(self._placed) >= _LOOKAHEAD):
                break
            self._place(self._waiting.pop(0), now)
        return min((x for x in self._placed if x.begins <= now), key=lambda x: x.users[0], default=None)

    def _place(self, load: Load, now: int) -> None:
        first, last, size = load.users[0], load.users[-1], load.weights.size
        # The first operation that it must not disturb is not the one before which it starts: two earlier ones are
        # running.
        free = self._space.earliest(size, now - 2, first, last)
        if free is None:
            return
        address = self._space.find(size, free, last)
        assert address is not None
        load.address, load.free = address, free
        load.begins = max(min(free + 1, first), now) if free else now
        self._space.take(address, size, free, last)
        self._placed.append(load)
        self._found.loads.update((user, load) for user in load.users)

    def _leave(self, load: Load) -> None:
        assert load.address is not None
        self._space.give(load.address, load.weights.size, load.free, load.users[-1])
        load.address = None
        for user in load.users:
            del self._found.loads[user]

    def _pays(self, load: Load) -> bool:
        """True if it pays to wait for weights of which nothing has been transferred."""
        works = [self._slots[user].work for user in load.users]
        brought = self._memories.transfer(load.weights.size) + sum(work.near(self._memories) for work in works)
        return brought < sum(max(work.direct(self._memories)) for work in works)

    def _piece(self, load: Load) -> int:
        """Bytes that are transferred before the next operation starts."""
        begin = max(self._engines.idle_from(), self._engines.kernel_end(1))
        cycles = self._engines.kernel_end(0) - begin - self._memories.stored_latency
        size = max(int(cycles * self._memories.stored_rate) // GRAIN * GRAIN, _LEAST_PIECE)
        return load.left if load.left < size + _LEAST_PIECE else size

    def _move(self, load: Load, now: int, size: int) -> None:
        assert load.address is not None
        if load.free > now - 2 and now:
            self._engines.wait_for_kernels(now - load.free)
        end, before = load.moved + size, 0
        for begin, length in load.weights.segments:
            first, last = max(load.moved, before), min(end, before + length)
            if first < last:
                piece = Transfer(load, begin + first - before, load.address + first, last - first)
                self._found.pieces.setdefault(now, []).append(piece)
                self._engines.transfer(self._memories.transfer(piece.length))
            before += length
        load.moved, load.done = end, len(self._engines.transfers)


def _loads(slots: Sequence[Slot]) -> list[Load]:
    """Weights to transfer, ordered by the first operation that reads them."""
    found: list[Load] = []
    latest: dict[tuple[tuple[int, int], ...], Load] = {}
    for number, slot in enumerate(slots):
        if slot.weights is None:
            continue
        load = latest.get(slot.weights.segments)
        if load is None or number - load.users[-1] > _LONGEST_PAUSE:
            load = latest[slot.weights.segments] = Load(slot.weights, [])
            found.append(load)
        load.users.append(number)
    return found
