"""Bytes and beats that a command stream moves over the bus, per operation and region.

An operation computes its result block by block, and reads the inputs of each block: rows that two blocks share are read
twice, a map is read again for every block of channels of a convolution, and weights for every block of rows and
columns, since an Ethos-U does not cache weights. All of it follows from the registers:

    block        rows and columns of the input       channels            weights
    convolution  those that its window covers        all                 those of its channels
    depthwise    those that its window covers        those of the block  those of its channels
    element-wise those of the block                  those of the block  none

`accesses_of` returns the distinct bytes that an operation accesses, `traffic_of` the bytes on the bus, and `busy` the
time of a stream from these and the speed of each memory of the chip. Schedules depend on the accesses, and not on a run
in the simulator, so they are the same if no simulator is available.

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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from micronpu.targets.ethosu import registers as reg
from micronpu.targets.ethosu.schedule.engines import Port
from micronpu.targets.ethosu.schedule.operations import (
    CONSTANTS,
    OperationAccess,
    Timed,
    is_indexed,
    parts_of,
    region_of,
    simulated,
    with_all_rows,
)
from micronpu.targets.ethosu.schedule.ranges import Ranges
from micronpu.targets.ethosu.stream import Action

_TABLE_MEMORY = 0x100
"""Flag in the target of a transfer: a table inside the NPU, which the bus does not see."""
_REDUCE_SUM = 2
"""Parameter of a pool that sums channels."""
_NO_POOL = 4
"""Parameter of a U85 pool that reads only accumulators."""
_FROM_SECOND_INPUT = 2
"""Upper bits of the format of accumulators."""
_UNARY = {"u55": (5, 6, 7), "u65": (5, 6, 7), "u85": (5, 6, 7, 36)}
"""Parameters of element-wise operations with one input: leaky ReLU, absolute value, leading zeros, not."""
BRICK = 16
"""Adjacent channels in the format NHCWB16."""
_INSIDE = 2
"""U85: upper bits of a precision from this value on: the map stays inside the NPU, or is a scalar."""
_ALONG_ROWS, _ALONG_COLUMNS, _ALONG_CHANNELS = 1, 2, 4
_SCALARS = {"u55": 0x80, "u65": 0x80, "u85": 0x08}
"""Flags for a scalar operand."""


@dataclass(frozen=True)
class RegionTraffic:
    """Bytes and beats on the bus between the NPU and one region; a beat has at most the port's width."""

    read: int = 0
    written: int = 0
    read_beats: int = 0
    written_beats: int = 0

    @property
    def bytes(self) -> int:
        return self.read + self.written


@dataclass(frozen=True)
class Traffic:
    """Traffic of one operation or transfer by number of the region; its work is products, or elements if it computes
    none."""

    regions: Mapping[int, RegionTraffic] = field(default_factory=dict)
    work: int = 0


def traffic_of(actions: Sequence[Action], family: str, port_bytes: int) -> list[Traffic]:
    """Traffic of each operation of a stream in order, including transfers; a beat of a port has so many bytes."""
    return [_moved(action, family, port_bytes) for action in actions if action.is_operation]


def _moved(action: Action, family: str, port: int) -> Traffic:
    if action.is_transfer:
        return _transfer(action, port)
    counts: Counter[tuple[int, str]] = Counter()
    result = Result.of(action, family)
    for read in inputs_of(action, family, result):
        region = region_of(action, reg.REGION + read.base)
        for count, size in read.segments():
            counts[region, "read"] += count * size
            counts[region, "read_beats"] += count * -(-size // port)
    times = len(result.rows) * len(result.columns)
    for part in parts_of(action, family):
        counts[region_of(action, part.region), "read"] += part.length * times
        counts[region_of(action, part.region), "read_beats"] += -(-part.length // port) * times
    if result.region >= 0:
        for count, size in result.map.segments():
            counts[result.region, "written"] += count * size
            counts[result.region, "written_beats"] += count * -(-size // port)
    return Traffic(_by_region(counts), result.work(action))


def copies_constants(action: Action) -> bool:
    """Return True for a transfer of constants into a memory other than the NPU's tables."""
    is_table = bool(action.number(reg.TARGET_REGION) & _TABLE_MEMORY)
    return action.is_transfer and region_of(action, reg.SOURCE_REGION) == CONSTANTS and not is_table


def _by_region(counts: Mapping[tuple[int, str], int]) -> dict[int, RegionTraffic]:
    regions = dict.fromkeys(region for region, _ in counts)
    return {r: RegionTraffic(**{kind: n for (region, kind), n in counts.items() if region == r}) for r in regions}


def _transfer(action: Action, port: int) -> Traffic:
    into = action.number(reg.TARGET_REGION)
    rows = max(action.number(reg.ROWS), 1) * max(action.number(reg.PLANES), 1) if into >> 9 else 1
    size, beats = action.address(reg.LENGTH) * rows, -(-action.address(reg.LENGTH) // port) * rows
    counts = Counter({(region_of(action, reg.SOURCE_REGION), "read"): size})
    counts[region_of(action, reg.SOURCE_REGION), "read_beats"] += beats
    if not into & _TABLE_MEMORY:
        counts[into & 7, "written"] += size
        counts[into & 7, "written_beats"] += beats
    return Traffic(_by_region(counts), size)


Segments = Iterator[tuple[int, int]]
"""Number of pieces, and their contiguous bytes."""
Blocks = Sequence[tuple[int, int]]
"""First and last + 1 of each block along an axis."""


@dataclass(frozen=True)
class Map:
    """The part of a feature map that the blocks of an operation read or write.

    Attributes:
        base: offset of its registers.
        rows: of all blocks.
        columns: of each column of blocks.
        channels: of each layer of blocks.
        depth: number of channels that are adjacent in memory.
        element_bytes: of an element.
        bricks: True if it is stored as NHCWB16.
    """

    base: int
    rows: int
    columns: Sequence[int]
    channels: Blocks
    depth: int
    element_bytes: int
    bricks: bool

    def segments(self) -> Segments:
        """Contiguous pieces: rows of bricks, whole pixels of a row, or the channels of one pixel."""
        rows, size = self.rows, self.element_bytes
        for columns in filter(None, self.columns):
            for begin, end in self.channels:
                if self.bricks:
                    full, rest = divmod(end - begin, BRICK)
                    yield rows * full, columns * BRICK * size
                    if rest:
                        yield rows * columns, rest * size
                elif end - begin == self.depth:
                    yield rows, columns * self.depth * size
                else:
                    yield rows * columns, (end - begin) * size


@dataclass(frozen=True)
class Result:
    """The blocks of an operation's result.

    Attributes:
        region: -1 if it stays inside the NPU.
        rows, columns, channels: first and last + 1 of each block.
        element_bytes: of an element.
        bricks: True if it is stored as NHCWB16.
    """

    region: int
    rows: Blocks
    columns: Blocks
    channels: Blocks
    element_bytes: int
    bricks: bool

    @classmethod
    def of(cls, action: Action, family: str) -> Result:
        number = action.number
        precision = number(reg.OFM_PRECISION)
        height, width, depth = (number(code) + 1 for code in (reg.OFM_HEIGHT, reg.OFM_WIDTH, reg.OFM_DEPTH))
        blocks = reg.OFM_BLOCK_HEIGHT, reg.OFM_BLOCK_WIDTH, reg.OFM_BLOCK_DEPTH
        block_height, block_width, block_depth = (number(code) + 1 for code in blocks)
        kept = family == "u85" and precision >> 14 >= _INSIDE
        return cls(
            -1 if kept else region_of(action, reg.REGION + reg.OUTPUT),
            _parts(height, block_height),
            _parts(width, block_width),
            _parts(depth, block_depth),
            1 << (precision >> 1 & 3),
            bool(precision >> 6 & 3),
        )

    @property
    def depth(self) -> int:
        return self.channels[-1][1]

    @property
    def shape(self) -> tuple[int, int, int]:
        """Rows, columns and channels."""
        return self.rows[-1][1], self.columns[-1][1], self.depth

    @property
    def whole(self) -> Result:
        """The same with a single block."""
        height, width, depth = self.shape
        return replace(self, rows=[(0, height)], columns=[(0, width)], channels=[(0, depth)])

    @property
    def map(self) -> Map:
        columns = [end - begin for begin, end in self.columns]
        return Map(reg.OUTPUT, self.shape[0], columns, self.channels, self.depth, self.element_bytes, self.bricks)

    def work(self, action: Action) -> int:
        made = self.rows[-1][1] * self.columns[-1][1] * self.depth
        if action.code not in (reg.CONVOLUTION, reg.DEPTHWISE, reg.POOL):
            return made
        stride = action.number(reg.KERNEL_STRIDE)
        sides = (reg.KERNEL_WIDTH, stride >> 3 & 1), (reg.KERNEL_HEIGHT, stride >> 4 & 1)  # of the dilated window
        taps = math.prod(action.number(code) // (dilation + 1) + 1 for code, dilation in sides)
        return made * taps * (action.number(reg.IFM_DEPTH) + 1 if action.code == reg.CONVOLUTION else 1)


def _parts(size: int, part: int) -> list[tuple[int, int]]:
    return [(begin, min(begin + part, size)) for begin in range(0, size, part)]


def inputs_of(action: Action, family: str, result: Result) -> Iterator[Map]:
    """The feature maps in memory that the blocks of an operation read."""
    number, own = action.number, action.number(reg.IFM_DEPTH) + 1
    height, _, depth = result.shape
    found: list[tuple[int, int, Sequence[int], Blocks, int]] = []
    if action.code in (reg.CONVOLUTION, reg.DEPTHWISE, reg.POOL):
        if not (family == "u85" and action.code == reg.POOL and action.parameter == _NO_POOL):
            rows, columns = (
                _covered(blocks, *axis)
                for blocks, axis in zip((result.rows, result.columns), _axes(action), strict=True)
            )
            whole = action.code == reg.CONVOLUTION or (action.code == reg.POOL and action.parameter == _REDUCE_SUM)
            channels = [(0, own)] * len(result.channels) if whole else result.channels
            found.append((reg.INPUT, sum(rows), columns, channels, own if whole else depth))
        if action.code == reg.CONVOLUTION and not parts_of(action, family):  # its weights
            found.append((reg.SECOND_INPUT, len(result.rows), [depth] * len(result.columns), [(0, own)], own))
        elif family == "u85" and number(reg.ACCUMULATORS) >> 4 & 3 == _FROM_SECOND_INPUT:
            widths = [end - begin for begin, end in result.columns]
            found.append((reg.SECOND_INPUT, height, widths, result.channels, depth))
    elif action.code == reg.RESIZE:
        found.append((reg.INPUT, number(reg.HEIGHT) + 1, [number(reg.WIDTH) + 1], [(0, own)], own))
    else:
        spreads = {reg.INPUT: number(reg.IFM_BROADCAST) if family == "u85" else 0}
        if action.parameter not in _UNARY[family]:
            spreads[reg.SECOND_INPUT] = number(reg.IFM2_BROADCAST)
        # Along a broadcast axis, each block reads one element.
        for base, spread in spreads.items():
            if not spread & _SCALARS[family]:
                columns = [1 if spread & _ALONG_COLUMNS else end - begin for begin, end in result.columns]
                channels = [(0, 1)] * len(result.channels) if spread & _ALONG_CHANNELS else result.channels
                rows_read = len(result.rows) if spread & _ALONG_ROWS else height
                found.append((base, rows_read, columns, channels, 1 if spread & _ALONG_CHANNELS else depth))
    for one in found:
        precision = number(reg.IFM_PRECISION + one[0])
        if family != "u85" or precision >> 14 < _INSIDE:
            yield Map(*one, 1 << (precision >> 2 & 3), bool(precision >> 6 & 3))


def _axes(action: Action) -> Iterator[tuple[int, int, int, int, int]]:
    """Stride, size of the dilated window, padding before and after, and upscaling of rows, then of columns."""
    number, stride = action.number, action.number(reg.KERNEL_STRIDE)
    upscaled = 2 if number(reg.IFM_UPSCALE) & 3 else 1
    rows = 1, 9, reg.KERNEL_HEIGHT, reg.PAD_TOP, reg.PAD_BOTTOM
    columns = 0, 6, reg.KERNEL_WIDTH, reg.PAD_LEFT, reg.PAD_RIGHT
    for low, high, reach, before, after in (rows, columns):
        step = (stride >> low & 1) + 1 + (stride >> high & 7) * 2
        yield step, number(reach) + 1, number(before) & 0x7F, number(after) & 0xFF, upscaled


def _covered(
    blocks: Sequence[tuple[int, int]], step: int, reach: int, pad: int, after: int, upscaled: int
) -> list[int]:
    size = (blocks[-1][1] - 1) * step + reach - pad - after
    found = []
    for begin, end in blocks:
        first = min(max(begin * step - pad, 0), size)
        last = min(max((end - 1) * step + reach - pad, 0), size)
        found.append(-(-last // upscaled) - first // upscaled)
    return found


def arithmetic_of(traffic: Sequence[Traffic], places: Sequence[int], layers: Sequence[int]) -> list[float]:
    """Arithmetic cycles of each operation: its share of its layer's cycles, by products; 0 for a transfer."""
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
) -> tuple[Timed, list[Mapping[str, float]]]:
    """Estimate the time of a stream, and the cycles of each memory for each operation, including transfers."""
    waits, costs, stored = list[Mapping[str, float]](), list[tuple[int, int]](), ports[CONSTANTS].memory
    for number, action in enumerate(action for action in actions if action.is_operation):
        cycles = _waits(traffic[number], ports)
        if action.is_transfer:
            reads = ports[region_of(action, reg.SOURCE_REGION)].memory
            costs.append((math.ceil(max(cycles.values(), default=0)), reads == stored))
        else:
            near = max([arithmetic[number], *(n for name, n in cycles.items() if name != stored)])
            costs.append((math.ceil(near), math.ceil(cycles.get(stored, 0))))
        waits.append(cycles)
    return simulated(actions, costs, family), waits


def _waits(traffic: Traffic, ports: Mapping[int, Port]) -> dict[str, float]:
    cycles: dict[str, float] = {}
    for region, moved in traffic.regions.items():
        if region in ports:
            memory = ports[region].memory
            cycles[memory] = cycles.get(memory, 0) + moved.bytes / ports[region].rate
    return cycles


_Rows = npt.NDArray[np.int64]
"""Region, first byte and number of bytes of each range."""
_INSIDE_NPU, _TABLES, _TABLE_BYTES = 0x100, 8, 2048
"""Flag in the region of a transfer for the table memory; number of that region, and its size."""
_FIRST_TABLE = {"u55": 16, "u65": 16, "u85": 1}
"""First activation that is a table."""
_TABLE_SIZES, _SLOT = {1: 256, 2: 2048, 4: 1024}, 256
"""U55 and U65: bytes of a table by bytes of an output element; alignment of tables."""
_TABLE_SIZES_U85, _WIDE_TABLE = {1: 256, 4: 256, 5: 512, 7: 1024}, 2048
"""U85: bytes of a table by activation; of all other activations."""
_AXES = ((0, 1, 2), (1, 0, 2), (0, 2, 1), (1, 2, 0), (0, 1, 2), (0, 1, 2), (2, 0, 1), (2, 1, 0))
"""U85: axes of the result that are rows, columns and channels of the stored map, by transposition."""
_INDEX_BYTES = 4


def accesses_of(actions: Sequence[Action], family: str) -> list[OperationAccess]:
    """Accesses of each operation of a stream in order, transfers included, for any input data."""
    return [
        with_all_rows(action, _transferred(action, family) if action.is_transfer else _computed(action, family))
        for action in actions
        if action.is_operation
    ]


def _computed(action: Action, family: str) -> OperationAccess:
    result = Result.of(action, family)
    reads = [_bytes_of(action, m, family) for m in inputs_of(action, family, result.whole)]
    parts = [(region_of(action, p.region), p.address, p.length) for p in parts_of(action, family)]
    if action.code == reg.POOL and not action.number(reg.OFM_PRECISION) >> 8 & 1:  # scales per channel
        scales, length = action.address(reg.SCALES), action.address(reg.SCALES_LENGTH)
        parts.append((region_of(action, reg.SCALE_REGION), scales, length))
    reads.append(np.array([*parts, *_table(action, result, family)], np.int64).reshape(-1, 3))
    writes = np.zeros((0, 3), np.int64)
    if result.region >= 0:
        axes = _AXES[action.number(reg.OFM_PRECISION) >> 11 & 7] if family == "u85" else _AXES[0]
        height, width, depth = (result.shape[axis] for axis in axes)
        stored = replace(result.map, rows=height, columns=[width], channels=[(0, depth)], depth=depth)
        writes = _bytes_of(action, stored, family)
    return OperationAccess(result.work(action), Ranges.of_rows(np.concatenate(reads)), Ranges.of_rows(writes))


def _bytes_of(action: Action, area: Map, family: str) -> _Rows:
    """Ranges of a feature map of a single block, which consists of up to two by two tiles."""
    base, size, (width,), ((_, depth),) = area.base, area.element_bytes, area.columns, area.channels
    across, down, deep = (_signed(action.address(base + reg.STRIDES + i), family) for i in range(3))
    left = min(width, action.number(reg.WIDTH + base) + 1)
    y = np.arange(area.rows, dtype=np.int64)
    found = [np.zeros((0, 2), np.int64)]
    for tile, columns in ((0, left), (1, width - left)):
        tall = action.number(reg.HEIGHT + base + tile) + 1
        above, below = action.address(base + tile), action.address(base + tile + 2)
        rows = np.where(y < tall, above + y * down, below + (y - tall) * down)
        x = np.arange(columns, dtype=np.int64)
        if area.bricks:
            full, rest = divmod(depth, BRICK)
            found.append(_each(rows, deep * np.arange(full, dtype=np.int64), columns * BRICK * size))
            if rest:
                found.append(_each(rows, deep * full + x * BRICK * size, rest * size))
        elif across == depth * size:
            found.append(_each(rows, x[:1], columns * depth * size))
        else:
            found.append(_each(rows, across * x, depth * size))
    spans = np.concatenate(found)
    return np.column_stack((np.full(len(spans), region_of(action, reg.REGION + base)), spans))


def _each(begins: _Rows, offsets: _Rows, size: int) -> _Rows:
    first = (begins[:, None] + offsets).reshape(-1)
    return np.column_stack((first, np.full(len(first), size, np.int64)))


def _signed(stride: int, family: str) -> int:
    bits = 40 if family == "u85" else 32
    stride &= (1 << bits) - 1
    return stride - (stride >> bits - 1 << bits)


def _table(action: Action, result: Result, family: str) -> Iterator[tuple[int, int, int]]:
    activation = action.number(reg.ACTIVATION)
    kind = activation & 31
    if kind < _FIRST_TABLE[family]:
        return
    if family == "u85":
        size = _TABLE_SIZES_U85.get(kind, _WIDE_TABLE)
        yield _TABLES, (activation >> 5 & 7) * size, size
    else:
        yield _TABLES, (kind - 16) * _SLOT, _TABLE_SIZES[result.element_bytes]


def _transferred(action: Action, family: str) -> OperationAccess:
    codes = reg.SOURCE_REGION, reg.TARGET_REGION
    modes = [action.number(code) >> 9 & 3 for code in codes]
    mode = modes[0] if family == "u85" else max(modes)
    rows, planes = action.number(reg.ROWS) if mode >= 1 else 1, action.number(reg.PLANES) if mode >= 2 else 1
    length = action.address(reg.LENGTH)
    found = []
    for side, (code, base) in enumerate(zip(codes, (reg.SOURCE, reg.TARGET), strict=True)):
        region, begin = action.number(code), action.address(base)
        first, second = (_signed(action.address(code), family) for code in (reg.SOURCE_ROW, reg.SOURCE_PLANE))
        row, plane = length + first * (modes[side] >= 1), length * rows + second * (modes[side] >= 2)
        if family == "u85":
            row, plane = (_signed(action.address(reg.SOURCE_ROW + 2 * side + i), family) for i in (0, 1))
        if region & _INSIDE_NPU:
            begin, region = begin % _TABLE_BYTES if family != "u85" else begin, _TABLES
        else:
            region &= 7
        spans = [(region, begin + j * plane + i * row, length) for j in range(planes) for i in range(rows)]
        found.append([] if action.number(code) >> 11 & 1 else spans)  # indexed: any row, see with_all_rows
    if is_indexed(action):
        skip = _signed(action.address(reg.INDEX_SKIP), family) if mode >= 2 else 0
        at, region = action.address(reg.INDICES), region_of(action, reg.INDEX_REGION)
        size = rows * _INDEX_BYTES
        found[0] += [(region, at + j * (size + skip), size) for j in range(planes)]
    reads, writes = (Ranges.of_rows(np.array(spans, np.int64).reshape(-1, 3)) for spans in found)
    return OperationAccess(length * rows * planes, reads, writes)
