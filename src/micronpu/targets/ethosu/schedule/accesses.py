"""Every byte that the operations of a stream read and write, computed from their registers.

Schedules depend on this, and not on a run in the simulator, so they are the same if no simulator is available.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from micronpu.targets.ethosu.schedule.operations import (
    LENGTH,
    PLANES,
    ROWS,
    SCALE_REGION,
    SOURCE,
    SOURCE_REGION,
    TARGET,
    TARGET_REGION,
    OperationAccess,
    is_indexed,
    parts_of,
    region_of,
    with_all_rows,
)
from micronpu.targets.ethosu.schedule.ranges import Ranges
from micronpu.targets.ethosu.schedule.traffic import BRICK, POOL, Map, Result, inputs_of
from micronpu.targets.ethosu.stream import Action

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
_INDICES, _INDEX_REGION, _INDEX_BYTES, _INDEX_SKIP = 0x37, 0x134, 4, 0x39


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
    if action.code == POOL and not action.number(0x114) >> 8 & 1:  # scales per channel
        parts.append((region_of(action, SCALE_REGION), action.address(0x22), action.address(0x23)))
    reads.append(np.array([*parts, *_table(action, result, family)], np.int64).reshape(-1, 3))
    writes = np.zeros((0, 3), np.int64)
    if result.region >= 0:
        axes = _AXES[action.number(0x114) >> 11 & 7] if family == "u85" else _AXES[0]
        height, width, depth = (result.shape[axis] for axis in axes)
        stored = replace(result.map, rows=height, columns=[width], channels=[(0, depth)], depth=depth)
        writes = _bytes_of(action, stored, family)
    return OperationAccess(result.work(action), Ranges.of_rows(np.concatenate(reads)), Ranges.of_rows(writes))


def _bytes_of(action: Action, area: Map, family: str) -> _Rows:
    """Ranges of a feature map of a single block, which consists of up to two by two tiles."""
    base, size, (width,), ((_, depth),) = area.base, area.element_bytes, area.columns, area.channels
    across, down, deep = (_signed(action.address(base + 4 + i), family) for i in range(3))
    left = min(width, action.number(0x10A + base) + 1)
    y = np.arange(area.rows, dtype=np.int64)
    found = [np.zeros((0, 2), np.int64)]
    for tile, columns in ((0, left), (1, width - left)):
        tall = action.number(0x10B + base + tile) + 1
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
    return np.column_stack((np.full(len(spans), region_of(action, 0x10F + base)), spans))


def _each(begins: _Rows, offsets: _Rows, size: int) -> _Rows:
    first = (begins[:, None] + offsets).reshape(-1)
    return np.column_stack((first, np.full(len(first), size, np.int64)))


def _signed(stride: int, family: str) -> int:
    bits = 40 if family == "u85" else 32
    stride &= (1 << bits) - 1
    return stride - (stride >> bits - 1 << bits)


def _table(action: Action, result: Result, family: str) -> Iterator[tuple[int, int, int]]:
    """The lookup table that the operation reads."""
    activation = action.number(0x125)
    kind = activation & 31
    if kind < _FIRST_TABLE[family]:
        return
    if family == "u85":
        size = _TABLE_SIZES_U85.get(kind, _WIDE_TABLE)
        yield _TABLES, (activation >> 5 & 7) * size, size
    else:
        yield _TABLES, (kind - 16) * _SLOT, _TABLE_SIZES[result.element_bytes]


def _transferred(action: Action, family: str) -> OperationAccess:
    codes = SOURCE_REGION, TARGET_REGION
    modes = [action.number(code) >> 9 & 3 for code in codes]
    mode = modes[0] if family == "u85" else max(modes)
    rows, planes = action.number(ROWS) if mode >= 1 else 1, action.number(PLANES) if mode >= 2 else 1
    length = action.address(LENGTH)
    found = []
    for side, (code, base) in enumerate(zip(codes, (SOURCE, TARGET), strict=True)):
        region, begin = action.number(code), action.address(base)
        first, second = (_signed(action.address(0x33 + i), family) for i in (0, 1))  # skips of one side or both
        row, plane = length + first * (modes[side] >= 1), length * rows + second * (modes[side] >= 2)
        if family == "u85":
            row, plane = (_signed(action.address(0x33 + 2 * side + i), family) for i in (0, 1))
        if region & _INSIDE_NPU:
            begin, region = begin % _TABLE_BYTES if family != "u85" else begin, _TABLES
        else:
            region &= 7
        spans = [(region, begin + j * plane + i * row, length) for j in range(planes) for i in range(rows)]
        found.append([] if action.number(code) >> 11 & 1 else spans)  # indexed: any row, see with_all_rows
    if is_indexed(action):
        skip = _signed(action.address(_INDEX_SKIP), family) if mode >= 2 else 0
        at, region = action.address(_INDICES), region_of(action, _INDEX_REGION)
        size = rows * _INDEX_BYTES
        found[0] += [(region, at + j * (size + skip), size) for j in range(planes)]
    reads, writes = (Ranges.of_rows(np.array(spans, np.int64).reshape(-1, 3)) for spans in found)
    return OperationAccess(length * rows * planes, reads, writes)
