"""Find the weights that each operation of a stream reads, at any location."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from micronpu.targets.ethosu.schedule.operations import (
    CONSTANTS,
    LENGTH,
    SCRATCH,
    SOURCE,
    TARGET,
    ConstantStream,
    brings_constants,
    parts_of,
    region_of,
)
from micronpu.targets.ethosu.stream import Action

_ALIGNMENT = 16
_NEAR = 64
"""Maximum gap in bytes between two parts that are transferred together."""


@dataclass(frozen=True)
class Weights:
    """Constants that an operation reads.

    Attributes:
        segments: first byte and number of bytes of each range of constants, both multiples of 16, sorted.
        origins: location of each part among the constants.
    """

    segments: tuple[tuple[int, int], ...]
    origins: tuple[tuple[ConstantStream, int], ...]

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return sum(length for _, length in self.segments)

    def offset(self, origin: int) -> int:
        """Offset of a byte of the constants in the concatenated segments."""
        before = 0
        for begin, length in self.segments:
            if begin <= origin < begin + length:
                return before + origin - begin
            before += length
        raise ValueError(origin)


@dataclass(frozen=True)
class StreamWeights:
    """The weights of a stream's operations.

    Attributes:
        weights: by number of the action.
        bringing: numbers of the actions that only transfer them.
    """

    weights: dict[int, Weights]
    bringing: frozenset[int]


def weights_of(actions: Sequence[Action], family: str) -> StreamWeights:
    """Find the origin of the weights of every operation.

    Excludes operations whose weights do not come from contiguous constants, and the transfers that they need.
    """
    brought: list[tuple[int, int, int, int]] = []  # of each transfer: its number, target, source and length
    found: dict[int, Weights] = {}
    users: dict[int, list[int]] = {}
    for number, action in enumerate(actions):
        if brings_constants(action):
            brought.append((number, action.address(TARGET), action.address(SOURCE), action.address(LENGTH)))
        parts = parts_of(action, family)
        origins = [_origin(action, part, brought) for part in parts]
        known = [o for o in origins if o is not None]
        if not parts or len(known) < len(parts):
            for o in known:
                users.setdefault(o[1], []).append(-1)
            continue
        found[number] = Weights(
            _segments([(o, part.length) for part, (o, _) in zip(parts, known, strict=True)]),
            tuple((part, o) for part, (o, _) in zip(parts, known, strict=True)),
        )
        for _, transfer in known:
            users.setdefault(transfer, []).append(number)
    users.pop(-1, None)
    fixed = {number for numbers in users.values() if -1 in numbers for number in numbers}
    return StreamWeights(
        {number: weights for number, weights in found.items() if number not in fixed},
        frozenset(t for t, numbers in users.items() if not fixed.intersection(numbers)),
    )


def _origin(
    action: Action, part: ConstantStream, brought: Sequence[tuple[int, int, int, int]]
) -> tuple[int, int] | None:
    """Offset of a part among the constants, and the transfer that copies it, -1 for none."""
    region = region_of(action, part.region)
    if region == CONSTANTS:
        return part.address, -1
    if region != SCRATCH:
        return None
    for number, target, source, length in reversed(brought):
        if target <= part.address and part.address + part.length <= target + length:
            return source + part.address - target, number
        if target < part.address + part.length and part.address < target + length:
            return None
    return None


def _segments(parts: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    found: list[tuple[int, int]] = []
    for begin, length in sorted(parts):
        first, end = begin // _ALIGNMENT * _ALIGNMENT, -(-(begin + length) // _ALIGNMENT) * _ALIGNMENT
        if found and first <= found[-1][1] + _NEAR:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((first, end))
    return tuple((begin, end - begin) for begin, end in found)
