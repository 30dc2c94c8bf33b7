"""The operations of a finished program with their cost, reads and writes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from micronpu.targets.ethosu import registers as reg
from micronpu.targets.ethosu.schedule.engines import NOTHING, Engines, EngineWork, Memories
from micronpu.targets.ethosu.schedule.ranges import Ranges
from micronpu.targets.ethosu.stream import Action

CONSTANTS, SCRATCH = 0, 1
"""Numbers of the regions."""
_REGION = 7
_INDEXED = 1 << 11
"""Flag in the region of a U85 transfer: an index table selects its rows."""
_SOURCE_ROWS = reg.SOURCE_REGION, reg.SOURCE, reg.SOURCE_ROW, reg.SOURCE_PLANE
_TARGET_ROWS = reg.TARGET_REGION, reg.TARGET, reg.TARGET_ROW, reg.TARGET_PLANE
_OF_IFM2 = 1
"""Parameter of a U85 convolution whose weights are its second input."""
COUNT = 15
"""Largest count of a wait."""


@dataclass(frozen=True)
class ConstantStream:
    """A stream of weights or scales that an operation reads: codes of the registers of its address and region; address
    and length."""

    base: int
    region: int
    address: int
    length: int


@dataclass(frozen=True)
class OperationAccess:
    """Every byte, by region, that an operation accesses; its work is multiplications, or elements if it has none, or
    bytes of a transfer."""

    work: int
    reads: Ranges
    writes: Ranges


_FIRST = (reg.WEIGHTS, reg.WEIGHTS_LENGTH, reg.WEIGHT_REGION), (reg.SCALES, reg.SCALES_LENGTH, reg.SCALE_REGION)
_PARTS = {
    "u55": _FIRST,
    "u65": (*_FIRST, (0x90, 0x91, reg.WEIGHT_REGION), (0x92, 0x93, reg.SCALE_REGION)),
    "u85": (*_FIRST, *((base, base + 1, reg.WEIGHT_REGION) for base in (0x90, 0x92, 0x94))),
}
"""Codes of the registers of address, length and region of the weights and scales of an operation, by core."""


def parts_of(action: Action, family: str) -> tuple[ConstantStream, ...]:
    """The weights and scales of an operation; () if it has none."""
    if action.code not in (reg.CONVOLUTION, reg.DEPTHWISE):
        return ()
    if family == "u85" and action.code == reg.CONVOLUTION and action.parameter & _OF_IFM2:
        return ()
    found = (
        ConstantStream(base, region, action.address(base), action.address(length))
        for base, length, region in _PARTS[family]
    )
    return tuple(part for part in found if part.length)


def region_of(action: Action, code: int) -> int:
    """Number of the region in a register of an operation."""
    return action.number(code) & _REGION


def brings_constants(action: Action) -> bool:
    """True if a transfer copies a range of constants into the scratch memory."""
    source, target = action.number(reg.SOURCE_REGION), action.number(reg.TARGET_REGION)
    plain = source & ~_REGION == 0 and target & ~_REGION == 0
    return action.is_transfer and plain and source & _REGION == CONSTANTS and target & _REGION == SCRATCH


def is_indexed(action: Action) -> bool:
    """True if the addresses that a transfer reads or writes depend on data."""
    return action.is_transfer and bool((action.number(reg.SOURCE_REGION) | action.number(reg.TARGET_REGION)) & _INDEXED)


def tables_of(actions: Sequence[Action]) -> Ranges:
    """Tables of a stream's row lookups."""
    return Ranges(span for action in actions if is_indexed(action) for span in _rows(action, *_SOURCE_ROWS))


def with_all_rows(action: Action, access: OperationAccess) -> OperationAccess:
    """Bytes that an operation may read and write for any data: an indexed transfer may access any row of its table."""
    if not is_indexed(action):
        return access
    source, target = (_rows(action, *codes) for codes in (_SOURCE_ROWS, _TARGET_ROWS))
    return OperationAccess(access.work, access.reads | source, access.writes | target)


def _rows(action: Action, region: int, base: int, stride: int, plane: int) -> Ranges:
    """Every row that an index may select, if a side of a transfer is indexed; otherwise empty."""
    number = action.number(region)
    if not number & _INDEXED:
        return Ranges()
    planes = action.number(reg.PLANES) - 1 if number >> 9 & 3 == 2 else 0
    size = action.address(reg.LARGEST_INDEX) * action.address(stride) + planes * action.address(plane)
    begin = action.address(base)
    return Ranges([(number & _REGION, begin, begin + size + action.address(reg.LENGTH))])


def shares(actions: Sequence[Action], places: Sequence[int], accesses: Sequence[OperationAccess]) -> list[float]:
    """Share of its layer's work for each operation; 0 for a transfer."""
    total: Counter[int] = Counter()
    operations = [a for a in actions if a.is_operation]
    for action, place, access in zip(operations, places, accesses, strict=True):
        if action.is_kernel:
            total[place] += access.work
    return [
        access.work / total[place] if action.is_kernel and total[place] else 0.0
        for action, place, access in zip(operations, places, accesses, strict=True)
    ]


def part_of(work: EngineWork, share: float) -> EngineWork:
    """Cost of a share of a layer."""
    return EngineWork(work.arithmetic * share, work.feature_maps * share, work.weight_bytes * share)


@dataclass(frozen=True)
class Timed:
    """Simulated cycles of a stream; start and end of each operation, including transfers, in its order."""

    cycles: int
    spans: tuple[tuple[int, int], ...]


def simulated(actions: Sequence[Action], costs: Sequence[tuple[int, int]], family: str) -> Timed:
    """Simulate when each operation of a stream starts and ends, given the arguments of `Engines.kernel` or `transfer`
    for each."""
    engines, spans = Engines(family), list[tuple[int, int]]()
    for action in actions:
        if action.code == reg.TRANSFER_WAIT:
            engines.wait_for_transfers(action.parameter & COUNT)
        elif action.code == reg.KERNEL_WAIT:
            engines.wait_for_kernels(action.parameter & COUNT)
        elif action.is_operation:
            add = engines.transfer if action.is_transfer else engines.kernel
            spans.append(add(*costs[len(spans)]))
    return Timed(engines.end, tuple(spans))


def timed(actions: Sequence[Action], works: Mapping[int, EngineWork], memories: Memories, family: str) -> Timed:
    """Simulate a stream with Vela's costs of operations, by number in the stream, including transfers."""
    costs: list[tuple[int, int]] = []
    for action in filter(lambda action: action.is_operation, actions):
        work = works.get(len(costs), NOTHING)
        if action.is_transfer:
            costs.append(cycles_of(action, memories))
        elif parts_of(action, family) and region_of(action, reg.WEIGHT_REGION) == CONSTANTS:
            costs.append(work.direct(memories))
        else:
            costs.append((work.near(memories), 0))
    return simulated(actions, costs, family)


def cycles_of(action: Action, memories: Memories) -> tuple[int, bool]:
    """Cycles of a transfer; True if it reads constants."""
    dimensions = (action.number(reg.SOURCE_REGION) | action.number(reg.TARGET_REGION)) >> 9 & 3
    rows = max(action.number(reg.ROWS), 1) if dimensions else 1
    rows *= max(action.number(reg.PLANES), 1) if dimensions == 2 else 1
    size = action.address(reg.LENGTH) * rows
    if region_of(action, reg.SOURCE_REGION) == CONSTANTS:
        return memories.transfer(size), True
    return int(size / memories.near_rate) + memories.near_latency, False
