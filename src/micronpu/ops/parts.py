"""Split the windows of an image into few parts with equal windows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from micronpu.base.errors import UnsupportedError
from micronpu.ir.graph import Tensor
from micronpu.ir.window import Size2d
from micronpu.ops.concat import Concat
from micronpu.ops.slicing import Slice

Window = tuple[int, int]
"""First element of a window along one axis, and the one after its last."""
Pool: TypeAlias = "Callable[[Tensor, Size2d, Size2d], Tensor]"

MAX_PARTS = 64
"""Maximum number of pools that one pool is split into."""


class WindowRun(NamedTuple):
    """Adjacent windows of one size, at equal distances.

    Attributes:
        start: first element of the first window.
        stop: the one after the last element of the last window.
        size: elements of a window.
        stride: distance between windows.
    """

    start: int
    stop: int
    size: int
    stride: int


def adaptive_windows(size: int, count: int) -> list[Window]:
    """The windows of an adaptive pool along an axis of ``size`` elements."""
    return [(i * size // count, -(-(i + 1) * size // count)) for i in range(count)]


def clipped_windows(size: int, kernel: int, stride: int, padding: tuple[int, int]) -> list[Window]:
    """The windows of an ordinary pool, without padding."""
    count = (size + sum(padding) - kernel) // stride + 1
    starts = [i * stride - padding[0] for i in range(count)]
    return [(max(s, 0), min(s + kernel, size)) for s in starts]


def runs(windows: Sequence[Window]) -> list[WindowRun]:
    """Group the windows into few runs, in order."""
    found: list[WindowRun] = []
    position = 0
    while position < len(windows):
        start, stop = windows[position]
        size, stride, last = stop - start, 0, position
        while last + 1 < len(windows):
            following = windows[last + 1]
            step = following[0] - windows[last][0]
            if following[1] - following[0] != size or step < 1 or (stride and step != stride):
                break
            stride, last = step, last + 1
        found.append(WindowRun(start, windows[last][1], size, stride or size))
        position = last + 1
    return found


def by_parts(
    emit: Callable[..., Tensor], x: Tensor, rows: Sequence[Window], columns: Sequence[Window], pool: Pool
) -> Tensor:
    """A pool over arbitrary windows: one pool for each run of rows and run of columns, concatenated.

    x [N, H, W, C] -> slice -> pool ┐
                   -> slice -> pool ┴ concat -> y [N, len(rows), len(columns), C]

    Args:
        emit: appends an operator to the graph.
        pool: appends the pool of a part with a kernel and a stride; see `pools`.
    """
    bands, pieces = runs(rows), runs(columns)
    if len(bands) * len(pieces) > MAX_PARTS:
        raise UnsupportedError(
            f"A pool with windows of unequal size from {list(x.shape[1:3])} to {[len(rows), len(columns)]} needs "
            f"{len(bands) * len(pieces)} parts; at most {MAX_PARTS} are made.",
            hint="choose an output size that divides the input size",
        )
    joined = []
    for band in bands:
        parts = []
        for piece in pieces:
            size = (x.shape[0], band.stop - band.start, piece.stop - piece.start, x.shape[3])
            part = x if size == x.shape else emit(Slice((0, band.start, piece.start, 0), size), x)
            parts.append(pool(part, (band.size, piece.size), (band.stride, piece.stride)))
        joined.append(emit(Concat(2), *parts) if len(parts) > 1 else parts[0])
    return emit(Concat(1), *joined) if len(joined) > 1 else joined[0]
