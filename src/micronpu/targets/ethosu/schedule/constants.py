"""Find the weights and other constants that a stream reads, at any location, and relocate them.

constants  [ table | bias | weights | table ]     [ .. weights .. table, bias .. table ]
stream       DMA 0   SCALE   WEIGHT   DMA 1    ->   the same with other addresses
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from micronpu.targets.ethosu import registers as reg
from micronpu.targets.ethosu.schedule.operations import (
    CONSTANTS,
    SCRATCH,
    ConstantStream,
    brings_constants,
    is_indexed,
    parts_of,
    region_of,
)
from micronpu.targets.ethosu.schedule.ranges import Ranges
from micronpu.targets.ethosu.schedule.traffic import accesses_of
from micronpu.targets.ethosu.stream import Action, large, small

_ALIGNMENT = 16
_NEAR = 64
"""Maximum gap in bytes between two parts that are transferred together."""


@dataclass(frozen=True)
class Weights:
    """Constants that an operation reads: first byte and number of bytes of each range, both multiples of 16, sorted;
    and the location of each part among the constants."""

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
    """The weights of a stream's operations by number of the action, and the numbers of the actions that only transfer
    them."""

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
            brought.append((number, action.address(reg.TARGET), action.address(reg.SOURCE), action.address(reg.LENGTH)))
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


_INTERNAL = 0x100
"""Flag in the region of a transfer: the memory inside the NPU."""
_MAPS = (reg.INPUT, reg.SECOND_INPUT)
_STORAGE, _CHAINED = 14, 2
"""U85: upper bits of a precision, which contain the storage mode; the mode of a map that stays inside the NPU."""
_ORDER = (
    *(reg.IFM_DEPTH, reg.IFM_PRECISION, reg.OFM_DEPTH, reg.OFM_PRECISION),
    *(reg.KERNEL_WIDTH, reg.KERNEL_HEIGHT, reg.KERNEL_STRIDE, reg.ACCUMULATORS, reg.WEIGHT_FORMAT),
)
"""Registers, other than the block depth, that the order of weights may depend on."""


@dataclass(frozen=True)
class Read:
    """Constants that an action reads from the address in one of its registers, which has a second word: first byte, and
    the one after the last."""

    action: int
    code: int
    begin: int
    end: int


def reads_of(actions: Sequence[Action], family: str) -> list[Read] | None:
    """Return every address of constants in a stream; None if one cannot be determined."""
    found: list[Read] = []
    operations = [number for number, action in enumerate(actions) if action.is_operation]
    for number, access in zip(operations, accesses_of(actions, family), strict=True):
        own = _reads(number, actions[number], access.reads, family)
        if own is None:
            return None
        found += own
    return found


def _reads(number: int, action: Action, reads: Ranges, family: str) -> list[Read] | None:
    found = [
        Read(number, part.base, part.address, part.address + part.length)
        for part in parts_of(action, family)
        if region_of(action, part.region) == CONSTANTS
    ]
    bases: list[int] = []
    if action.is_transfer:
        source = action.number(reg.SOURCE_REGION)
        if source & (_INTERNAL | 7) == CONSTANTS:
            bases.append(reg.SOURCE)
        if is_indexed(action) and action.number(reg.INDEX_REGION) & 7 == CONSTANTS:
            bases.append(reg.INDICES)
    else:
        bases += [m + tile for m in _MAPS if region_of(action, reg.REGION + m) == CONSTANTS for tile in range(4)]
    rest = reads - Ranges((CONSTANTS, read.begin, read.end) for read in found)
    for begin, end in rest.of(CONSTANTS):
        known = [code for code in bases if action.address(code) <= begin]
        if not known:
            return None
        base = max(map(action.address, known))
        found += [Read(number, code, base, end) for code in known if action.address(code) == base]
    return found


def pieces_of(reads: Iterable[Read]) -> list[tuple[int, int]]:
    """Ranges of constants that must not be split: first bytes, and those after the last; sorted."""
    found: list[tuple[int, int]] = []
    for begin, end in sorted((read.begin, read.end) for read in reads):
        if found and begin < found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((begin, end))
    return found


def moved(actions: Sequence[Action], reads: Iterable[Read], places: Mapping[tuple[int, int], int]) -> list[Action]:
    """Return a stream with relocated constants: each piece at a new address."""
    made = list(actions)
    for read in reads:
        begin, place = next((p[0], to) for p, to in places.items() if p[0] <= read.begin and read.end <= p[1])
        registers = dict(made[read.action].registers)
        address = read.begin - begin + place
        registers[large(read.code)] = address >> 32, address & 0xFFFFFFFF
        made[read.action] = replace(made[read.action], registers=registers)
    return made


def place_in(data: bytearray, piece: bytes, begin: int) -> int:
    """Return the address of a piece among other constants, with its alignment; append it if it is missing."""
    at = data.find(piece)
    while at >= 0 and (at - begin) % _ALIGNMENT:
        at = data.find(piece, at + 1)
    if at < 0:
        data += bytes((begin - len(data)) % _ALIGNMENT)
        at = len(data)
        data += piece
    return at


@dataclass(frozen=True)
class Ordered:
    """Streams of weights in the order of a block depth, as in its register."""

    weights: tuple[bytes, ...]
    depth: int


Layer = tuple[int, int, tuple[int, ...], tuple[bytes, ...], tuple[int, ...]]
"""Command and parameter, registers of `_ORDER`, scales, and bytes of each stream of weights."""


def layers_of(
    actions: Sequence[Action], constants: bytes, family: str
) -> Iterator[tuple[int, Layer, Ordered, list[tuple[ConstantStream, int]]]]:
    """Operations with weights: number, key of equal weights, the weights, and their addresses."""
    for number, weights in sorted(weights_of(actions, family).weights.items()):
        action = actions[number]
        if action.code in (reg.CONVOLUTION, reg.DEPTHWISE):
            own = [(part, origin) for part, origin in weights.origins if part.region != reg.SCALE_REGION]
            scales = tuple(constants[o : o + p.length] for p, o in weights.origins if p.region == reg.SCALE_REGION)
            order = tuple(action.number(code) for code in _ORDER)
            layer = action.code, action.parameter, order, scales, tuple(part.length for part, _ in own)
            streams = tuple(constants[o : o + p.length] for p, o in own)
            yield number, layer, Ordered(streams, action.number(reg.OFM_BLOCK_DEPTH)), own


def reordered(
    actions: Sequence[Action], constants: bytes, orders: Mapping[Layer, Ordered], family: str
) -> tuple[list[Action], bytes] | None:
    """Return a stream with its weights in other orders; None if all have the order already.

    The order of weights follows the depth of the output's blocks. An operation adopts the smaller depth of another one
    with the same weights: a smaller block fits wherever a larger one did. The simulator compares the results.
    """
    made, data, changed = list(actions), bytearray(constants), False
    for number, layer, own, places in layers_of(actions, constants, family):
        other = orders.get(layer, own)
        chain = _chain(made, number, family)
        if other.weights == own.weights or other.depth >= own.depth or chain is None:
            continue
        for (part, origin), weights in zip(places, other.weights, strict=True):
            data[origin : origin + part.length] = weights
        for member in chain:
            made[member] = _with(made[member], reg.OFM_BLOCK_DEPTH, other.depth)
        # The overlap of operations was computed for the old blocks.
        behind = next((n for n in range(chain[-1] + 1, len(made)) if made[n].is_kernel), None)
        for member in chain if behind is None else [*chain, behind]:
            made[member] = _with(made[member], reg.BLOCKDEP, 0)
        changed = True
    return (made, bytes(data)) if changed else None


def _with(action: Action, code: int, value: int) -> Action:
    return replace(action, registers={**action.registers, small(code): (value, None)})


def _chain(actions: Sequence[Action], first: int, family: str) -> list[int] | None:
    """An operation and those that read its blocks inside the NPU, all of one depth.

    None if it reads such blocks itself, or if another one has weights, whose order would have to change as well.
    """
    found, depth = [first], actions[first].number(reg.OFM_BLOCK_DEPTH)
    if family != "u85":
        return found
    if _is_inside(actions[first], reg.IFM_PRECISION):
        return None
    kernels = (n for n in range(first + 1, len(actions)) if actions[n].is_kernel)
    while _is_inside(actions[found[-1]], reg.OFM_PRECISION):
        after = next(kernels, None)
        if after is None or actions[after].code in (reg.CONVOLUTION, reg.DEPTHWISE):
            return None
        if actions[after].number(reg.OFM_BLOCK_DEPTH) != depth:
            return None
        found.append(after)
    return found


def _is_inside(action: Action, precision: int) -> bool:
    """True if an input or output of U85 stays inside the NPU."""
    return action.number(precision) >> _STORAGE == _CHAINED
