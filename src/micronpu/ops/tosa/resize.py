"""TOSA forms of resizing: RESIZE if its coordinates are exactly those of the reference, otherwise copies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from micronpu.base.errors import UnsupportedError

if TYPE_CHECKING:
    from micronpu.emit.tosa import TosaEmitter, TosaTensor

_LARGEST_SCALE = 2048
"""Largest numerator of a scale in TOSA."""
_FINE = 1024
"""Positions of the bilinear filter per element of the operand."""
_MOST_PARTS = 64


class _Axis:
    """Coordinates along one axis: result i is at ``(i * step + offset) / scale`` of the operand."""

    def __init__(self, before: int, after: int, scale: int, step: int, offset: int) -> None:
        self.before, self.after = before, after
        self.scale, self.step, self.offset = scale, step, offset
        self.border = (after - 1) * step - (before - 1) * scale + offset

    @property
    def is_legal(self) -> bool:
        within = -self.scale <= self.offset < 16 * self.scale and -16 * self.scale <= self.border < self.scale
        return within and 0 < self.step < 16 * self.scale and self.scale <= _LARGEST_SCALE

    def nearest(self) -> npt.NDArray[Any]:
        """Index of the operand's element that RESIZE selects for each result."""
        position = np.arange(self.after) * self.step + self.offset
        index, rest = position // self.scale, position % self.scale
        return np.clip(index + (2 * rest >= self.scale), 0, self.before - 1)


def _candidates(before: int, after: int) -> list[_Axis]:
    """Forms of the nearest filter; those that more NPUs support are first."""
    common = math.gcd(before, after)
    n, d = after // common, before // common
    found = [_Axis(before, after, 2 * n, 2 * d, d - n), _Axis(before, after, 2 * n, 2 * d, -n)]
    if before > 1 and after > 1:
        common = math.gcd(before - 1, after - 1)
        found.append(_Axis(before, after, (after - 1) // common, (before - 1) // common, 0))
    return [axis for axis in found if axis.is_legal]


def nearest(emit: TosaEmitter, sources: Sequence[npt.NDArray[Any]]) -> TosaTensor:
    """Rows and columns of an image by their indices.

    Args:
        sources: the row of x for every row of the result, and the same for columns.
    """
    x = emit.input(0)
    axes = [
        next((a for a in _candidates(n, len(s)) if np.array_equal(a.nearest(), s)), None)
        for n, s in zip(x.shape[1:3], sources, strict=True)
    ]
    factors = [_repeats(n, s) for n, s in zip(x.shape[1:3], sources, strict=True)]
    steps = [_steps(n, s) for n, s in zip(x.shape[1:3], sources, strict=True)]
    repeated = all(f is not None for f in factors) and not (
        factors[0] == factors[1] and factors[0] in emit.prefers.enlarging
    )
    if not repeated and not all(s is not None for s in steps) and None not in axes:
        return _resize(emit, [a for a in axes if a is not None], "NEAREST")
    return _picked(emit, _picked(emit, x, 1, sources[0]), 2, sources[1])


def _repeats(before: int, source: npt.NDArray[Any]) -> int | None:
    """Number of repetitions of every element, or None if there are other changes."""
    count, rest = divmod(len(source), before)
    return count if rest == 0 and np.array_equal(source, np.repeat(np.arange(before), count)) else None


def _steps(before: int, source: npt.NDArray[Any]) -> int | None:
    """Stride of the selected elements, or None if there are other changes."""
    count, rest = divmod(before, len(source))
    regular = rest == 0 and np.array_equal(source, source[0] + count * np.arange(len(source)))
    return count if regular else None


def _picked(emit: TosaEmitter, x: TosaTensor, axis: int, source: npt.NDArray[Any]) -> TosaTensor:
    """Select the elements of an axis by index, in any order.

    Copies and strides use an additional axis after the selected one, whose elements are adjacent in memory.
    """
    before, behind = x.shape[:axis], math.prod(x.shape[axis + 1 :])
    rows, outer = x.shape[axis], math.prod(before)
    shape = (*before, len(source), *x.shape[axis + 1 :])
    repeats, step = _repeats(rows, source), _steps(rows, source)
    if np.array_equal(source, np.arange(rows)):
        return x
    if repeats is not None:
        flat = emit.reshape(x, (1, outer * rows, 1, behind))
        return emit.reshape(emit.concat([flat] * repeats, 3), shape)
    if step is not None:
        flat = emit.reshape(x, (1, outer * len(source), 1, step * behind))
        kept = emit.slice(flat, (0, 0, 0, int(source[0]) * behind), (1, outer * len(source), 1, behind))
        return emit.reshape(kept, shape)
    runs = np.split(source, np.flatnonzero(np.diff(source) != 1) + 1)
    if len(runs) > _MOST_PARTS:
        raise UnsupportedError(
            f"A resize from {rows} to {len(source)} elements has no TOSA form: it is {len(runs)} pieces.",
            hint="a whole factor",
        )
    parts = []
    for run in runs:
        begin, size = [0] * x.rank, list(x.shape)
        begin[axis], size[axis] = int(run[0]), len(run)
        parts.append(emit.slice(x, begin, size))
    return emit.concat(parts, axis)


def bilinear(emit: TosaEmitter, sizes: Sequence[int], steps: Sequence[int], offsets: Sequence[int]) -> TosaTensor:
    """The bilinear filter with coordinates ``i * step + offset`` in units of 1/1024 of an element.

    Args:
        sizes: height and width of the result.
    """
    x = emit.input(0)
    axes = []
    for before, after, step, offset in zip(x.shape[1:3], sizes, steps, offsets, strict=True):
        common = math.gcd(_FINE, step, offset) if step else _FINE
        axis = _Axis(before, after, _FINE // common, max(step // common, 1), offset // common if step else 0)
        if not axis.is_legal:
            raise UnsupportedError(
                f"A bilinear resize from {before} to {after} elements has no TOSA form: its step is too long.",
                hint="at most 15 times fewer elements",
            )
        axes.append(axis)
    sums = _resize(emit, axes, "BILINEAR")
    shift = round(math.log2(axes[0].scale * axes[1].scale))
    return emit.rescale(sums, x.dtype, [1 << 30], [30 + shift], rounding="SINGLE_ROUND")


def _resize(emit: TosaEmitter, axes: Sequence[_Axis], mode: str) -> TosaTensor:
    scales = [n for axis in axes for n in (axis.scale, axis.step)]
    offsets, borders = [axis.offset for axis in axes], [axis.border for axis in axes]
    return emit.resize(emit.input(0), [axis.after for axis in axes], scales, offsets, borders, mode)
