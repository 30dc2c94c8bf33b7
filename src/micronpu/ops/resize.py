"""Resizing of height and width, and resizes as products with a matrix per axis.

The products serve any size and filter, if a chip resizes by certain factors only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from micronpu.base.arrays import Array
from micronpu.base.errors import InternalError, UnsupportedError
from micronpu.ir.aten import AtenNode
from micronpu.ir.facts import Facts, keeps
from micronpu.ir.graph import Node, Tensor
from micronpu.ir.lowering import Float, Writer, decomposes, states
from micronpu.ir.op import NewValues, Op, Steps, Value, shares_qparams
from micronpu.ir.registry import MOVES, from_aten, operator
from micronpu.ir.types import TensorType
from micronpu.ir.window import Size2d
from micronpu.ops.indices import slices
from micronpu.ops.movement import from_image, to_image
from micronpu.ops.pooling import MAX_PARTS, adaptive_windows, runs

if TYPE_CHECKING:
    from micronpu.emit.litert import LiteRtEmitter
    from micronpu.emit.tosa import TosaEmitter, TosaTensor


_NEAREST = ("upsample_nearest", "_upsample_nearest_exact")
BILINEAR = ("upsample_bilinear2d.vec",)
_ONE = 1 << 10  # coordinates and weights of the bilinear filter have 10 fractional bits


@dataclass(frozen=True)
class _Resize(Op):
    """Base of both filters."""

    size: Size2d = (1, 1)  # height and width of the result
    align_corners: bool = False  # align the centres of the corner elements
    half_pixel_centers: bool = False  # align the outer edges of the corner elements

    quantization = shares_qparams()

    def infer(self, x: TensorType) -> TensorType:
        if self.align_corners and self.half_pixel_centers:
            raise InternalError(f"{self} aligns corners and borders at once.")
        return x.with_shape((x.shape[0], *self.size, x.channels))

    def litert_fields(self) -> dict[str, object]:
        return {"alignCorners": self.align_corners, "halfPixelCenters": self.half_pixel_centers}


@operator("resize_nearest")
class ResizeNearest(_Resize):
    """Repeats or drops elements: each result is the nearest element of x.

    x [N, H, W, C] int8  ->  y [N, *size, C] int8, qparams of x.
    """

    def sources(self, before: int, after: int) -> Array:
        """Index of the element of x for every element of y along an axis; LiteRT computes it in float32."""
        scale = np.float32(before) / np.float32(after)
        if self.align_corners and after > 1:
            scale = np.float32(before - 1) / np.float32(after - 1)
        offset = np.float32(0.5 if self.half_pixel_centers else 0.0)
        position = (np.arange(after, dtype=np.float32) + offset) * scale
        if self.align_corners:
            position = np.floor(position + np.float32(0.5))  # round half up; positions are not negative
        return np.asarray(np.clip(np.floor(position).astype(np.int64), 0, before - 1))

    def reference(self, y: TensorType, x: Value) -> Array:
        rows, columns = (self.sources(n, m) for n, m in zip(x.type.shape[1:3], self.size, strict=True))
        return np.ascontiguousarray(x.data[:, rows][:, :, columns])

    @from_aten(*(f"{name}{n}d.vec" for name in _NEAREST for n in (1, 2)), x="input")
    @from_aten(*(f"{name}{n}d.default" for name in _NEAREST for n in (1, 2)))
    @classmethod
    def build(cls, node: AtenNode) -> Tensor:
        return _import(node, cls, half_pixel_centers="exact" in node.overload)

    def to_aten(self, emit: Any, node: Node, x: object) -> Any:
        for axis, size in zip((1, 2), self.size, strict=True):
            before = node.inputs[0].shape[axis]
            sources = self.sources(before, size)
            if not np.array_equal(sources, np.arange(before)):
                x = emit.aten("index_select.default", x, axis, emit.constant(sources.astype(np.int64)))
        return x

    def to_litert(self, emit: LiteRtEmitter) -> None:
        size = emit.int32(self.size)
        options, fields = "ResizeNearestNeighborOptions", self.litert_fields()
        emit.add("RESIZE_NEAREST_NEIGHBOR", options=options, fields=fields, inputs=[0, size], version=3)

    def to_tosa(self, emit: TosaEmitter) -> TosaTensor:
        sizes = zip(emit.input_type(0).shape[1:3], self.size, strict=True)
        return nearest(emit, [self.sources(before, after) for before, after in sizes])


@operator("resize_bilinear")
class ResizeBilinear(_Resize):
    """Weighted mean of the four nearest elements of x, in fixed point with 10 fractional bits.

    x [N, H, W, C] int8  ->  y [N, *size, C] int8, qparams of x.
    """

    quantization = shares_qparams(new_values=NewValues.BETWEEN)
    tosa_steps = Steps(int8=1, int16=1)

    def _sampling(self, before: int, after: int) -> tuple[int, int]:
        """Distance of two elements of y, and coordinate of the first, in 1/1024 of an element of x."""
        scale = (_ONE * before + after // 2) // after
        if self.align_corners and after > 1:
            scale = (_ONE * (before - 1) + (after - 1) // 2) // (after - 1)
        return scale, scale // 2 - _ONE // 2 if self.half_pixel_centers else 0

    def _taps(self, before: int, after: int) -> tuple[Array, ...]:
        """Lower and upper neighbour of every element of y along an axis, and the weight of the upper one."""
        scale, offset = self._sampling(before, after)
        position = np.arange(after, dtype=np.int64) * scale + offset
        # C++'s division towards zero and the maximum move coordinates before the first element to it.
        lower = np.maximum(position // _ONE, 0)
        upper = np.minimum((np.maximum(position, 0) + _ONE - 1) // _ONE, before - 1)
        return lower, upper, position - _ONE * lower

    def reference(self, y: TensorType, x: Value) -> Array:
        top, bottom, down = self._taps(x.type.shape[1], self.size[0])
        left, right, across = self._taps(x.type.shape[2], self.size[1])
        data = x.data.astype(np.int64)
        down, across = down[None, :, None, None], across[None, None, :, None]
        total = (
            data[:, top][:, :, left] * (_ONE - down) * (_ONE - across)
            + data[:, bottom][:, :, left] * down * (_ONE - across)
            + data[:, top][:, :, right] * (_ONE - down) * across
            + data[:, bottom][:, :, right] * down * across
        )
        # To nearest, ties away from zero: C++ divides towards zero.
        magnitude = (np.abs(total) + _ONE * _ONE // 2) // (_ONE * _ONE)
        return np.asarray((np.sign(total) * magnitude).astype(y.dtype.value))

    def macs(self, y: TensorType, *operands: TensorType) -> int:
        return 4 * y.size

    @from_aten("upsample_bilinear2d.vec", "upsample_linear1d.vec", x="input")
    @from_aten("upsample_bilinear2d.default", "upsample_linear1d.default")
    @classmethod
    def build(cls, node: AtenNode) -> Tensor:
        aligned = bool(node.value("align_corners"))
        return _import(node, cls, align_corners=aligned, half_pixel_centers=not aligned)

    def to_litert(self, emit: LiteRtEmitter) -> None:
        size = emit.int32(self.size)
        options, fields = "ResizeBilinearOptions", self.litert_fields()
        emit.add("RESIZE_BILINEAR", options=options, fields=fields, inputs=[0, size], version=3)

    def to_tosa(self, emit: TosaEmitter) -> TosaTensor:
        """Differs by 1 LSB at exact ties of negative numbers, which round up here and away from zero in `reference`."""
        samplings = [self._sampling(n, m) for n, m in zip(emit.input_type(0).shape[1:3], self.size, strict=True)]
        return bilinear(emit, self.size, [step for step, _ in samplings], [offset for _, offset in samplings])


def axis_weights(factor: int) -> npt.NDArray[np.int64]:
    """The weights [factor, 3] of the previous, current and next element, in units of ``1 / (2 * factor)``.

    For the bilinear filter along an axis with half-pixel centers, which replaces each element by ``factor`` elements.
    """
    weights = np.zeros((factor, 3), np.int64)
    for phase in range(factor):
        upper = 2 * phase + 1 - factor  # distance of the result from the element
        weights[phase] = [max(-upper, 0), 2 * factor - abs(upper), max(upper, 0)]
    return weights


def _import(
    node: AtenNode, make: type[_Resize], *, align_corners: bool = False, half_pixel_centers: bool = False
) -> Tensor:
    """A resize of [N, C, L] or [N, C, H, W]."""
    spatial = 1 if "1d" in node.overload else 2
    x = to_image(node, node.tensor("x"), spatial)
    before, after = x.shape[1:3], (1, *node.shape[-spatial:])[-2:]
    for given, n, m in zip(_factors(node, spatial), before, after, strict=True):
        # If "nearest" keeps or doubles the size of an image, torch ignores the scale (ExecuTorch's portable kernel does
        # not, so such a non-delegated operator computes something else).
        if make is ResizeNearest and spatial == 2 and not half_pixel_centers and m in (n, 2 * n):
            continue
        if given is not None and not align_corners and abs(given * n - m) > 1e-6 * m:
            # torch then samples at 1 / given, LiteRT at the ratio of the sizes.
            what = f"`{node.overload}` scales {n} elements by {given}, which is not a whole number of elements."
            raise UnsupportedError(what, hint="give `size`, or recompute_scale_factor=True")
    if spatial == 1:  # one row stays one row with any alignment
        align_corners = align_corners and after[1] > 1
    y = node.emit(make((after[0], after[1]), align_corners, half_pixel_centers), x)
    return from_image(node, y)


def _factors(node: AtenNode, spatial: int) -> list[float | None]:
    """Scale factors of height and width; None if the program gives none."""
    given = node.value("scale_factors")
    if given is None:
        names = ("scales",) if spatial == 1 else ("scales_h", "scales_w")
        given = [node.value(name) for name in names]
    factors = [None if v is None else float(v) for v in given]
    return [None, *factors] if spatial == 1 else factors


def to_nearest(write: Writer) -> Float:
    """A resize to the same size by nearest neighbour."""
    given = write.given
    return write("upsample_nearest2d.vec", given["input"], given["output_size"], given["scale_factors"])


def to_transposed_convolution(write: Writer) -> Float:
    """A bilinear resize by 2 as a depthwise transposed convolution; only the outermost elements differ."""
    x = write.given["input"]
    before, after = write.shape(x), write.shape()
    if write.given["align_corners"] or after[2:] != tuple(2 * n for n in before[2:]):
        return None
    row = np.array([0.25, 0.75, 0.75, 0.25], np.float32)
    kernel = write.constant(np.tile(np.outer(row, row), (before[1], 1, 1, 1)))
    return write("conv_transpose2d.input", x, kernel, None, [2, 2], [1, 1], [0, 0], before[1])


# ---------------------------------------------------------------- TOSA forms; resizes as products

# RESIZE if its coordinates are exactly those of the reference, otherwise copies.

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

    def nearest(self) -> Array:
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


def nearest(emit: TosaEmitter, sources: Sequence[Array]) -> TosaTensor:
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
    repeated = all(f is not None for f in factors) and not (factors[0] == factors[1] and factors[0] in emit.ENLARGING)
    if not repeated and not all(s is not None for s in steps) and None not in axes:
        return _resize(emit, [a for a in axes if a is not None], "NEAREST")
    return _picked(emit, _picked(emit, x, 1, sources[0]), 2, sources[1])


def _repeats(before: int, source: Array) -> int | None:
    """Number of repetitions of every element, or None if there are other changes."""
    count, rest = divmod(len(source), before)
    return count if rest == 0 and np.array_equal(source, np.repeat(np.arange(before), count)) else None


def _steps(before: int, source: Array) -> int | None:
    """Stride of the selected elements, or None if there are other changes."""
    count, rest = divmod(before, len(source))
    regular = rest == 0 and np.array_equal(source, source[0] + count * np.arange(len(source)))
    return count if regular else None


def _picked(emit: TosaEmitter, x: TosaTensor, axis: int, source: Array) -> TosaTensor:
    """Select the elements of an axis by index, in any order."""
    # Copies and strides use an additional axis after the selected one, whose elements are adjacent in memory.
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
        what = f"A resize from {rows} to {len(source)} elements has no TOSA form: it is {len(runs)} pieces."
        raise UnsupportedError(what, hint="a whole factor")
    parts = []
    for run in runs:
        begin, size = [0] * x.rank, list(x.shape)
        begin[axis], size[axis] = int(run[0]), len(run)
        parts.append(emit.slice(x, begin, size))
    return emit.concat(parts, axis)


def bilinear(emit: TosaEmitter, sizes: Sequence[int], steps: Sequence[int], offsets: Sequence[int]) -> TosaTensor:
    """The bilinear filter to a height and width; coordinates ``i * step + offset`` in 1/1024 of an element."""
    x = emit.input(0)
    axes = []
    for before, after, step, offset in zip(x.shape[1:3], sizes, steps, offsets, strict=True):
        common = math.gcd(_FINE, step, offset) if step else _FINE
        axis = _Axis(before, after, _FINE // common, max(step // common, 1), offset // common if step else 0)
        if not axis.is_legal:
            what = f"A bilinear resize from {before} to {after} elements has no TOSA form: its step is too long."
            raise UnsupportedError(what, hint="at most 15 times fewer elements")
        axes.append(axis)
    sums = _resize(emit, axes, "BILINEAR")
    shift = round(math.log2(axes[0].scale * axes[1].scale))
    return emit.rescale(sums, x.dtype, [1 << 30], [30 + shift], rounding="SINGLE_ROUND")


def _resize(emit: TosaEmitter, axes: Sequence[_Axis], mode: str) -> TosaTensor:
    scales = [n for axis in axes for n in (axis.scale, axis.step)]
    offsets, borders = [axis.offset for axis in axes], [axis.border for axis in axes]
    return emit.resize(emit.input(0), [axis.after for axis in axes], scales, offsets, borders, mode)


_NATIVE = (1, 2, 4, 8)
"""Factors by which NPUs resize both axes equally."""
_CUBIC = -0.75
"""torch's coefficient of the cubic filter."""
_SMOOTH_CUBIC = -0.5
"""Coefficient for antialiasing, as in Pillow."""
_FILTERS = {"linear": "linear", "bilinear": "linear", "trilinear": "linear", "bicubic": "cubic"}


def positions(before: int, after: int, factor: float | None, aligned: bool) -> Array:
    """Coordinates of the result's elements among those of x."""
    i = np.arange(after, dtype=np.float64)
    if aligned:
        return i * ((before - 1) / (after - 1) if after > 1 else 0.0)
    return (i + 0.5) * (1.0 / factor if factor else before / after) - 0.5


def matrix(before: int, after: int, factor: float | None, aligned: bool, kind: str) -> Array:
    """The weights [after, before] of the elements of x for those of the result, float32; each row sums to 1."""
    found = positions(before, after, factor, aligned)
    weights = np.zeros((after, before))
    if kind == "linear":
        found = np.maximum(found, 0.0)
        lower = np.minimum(np.floor(found).astype(int), before - 1)
        part = found - lower
        taps = {0: 1.0 - part, 1: part}
    else:
        lower = np.floor(found).astype(int)
        part = found - lower
        taps = {n: _cubic(np.abs(part - n)) for n in (-1, 0, 1, 2)}
    for n, weight in taps.items():
        np.add.at(weights, (np.arange(after), np.clip(lower + n, 0, before - 1)), weight)
    return weights.astype(np.float32)


def smooth_matrix(before: int, after: int, factor: float | None, aligned: bool, kind: str) -> Array:
    """The weights, as in `matrix`, of a filter scaled to the size of a result's element on x: "antialias"."""
    scale = (before - 1) / (after - 1) if aligned and after > 1 else 1.0 / factor if factor else before / after
    if aligned and after == 1:
        scale = 0.0
    wide = max(scale, 1.0)
    support = wide * (1.0 if kind == "linear" else 2.0)
    weights = np.zeros((after, before))
    for i in range(after):
        center = scale * (i + 0.5)
        first, last = max(int(center - support + 0.5), 0), min(int(center + support + 0.5), before)
        distance = np.abs((np.arange(first, last) - center + 0.5) / wide)
        near = np.maximum(1.0 - distance, 0.0) if kind == "linear" else _cubic(distance, _SMOOTH_CUBIC)
        weights[i, first:last] = near / near.sum()
    return weights.astype(np.float32)


def _cubic(distance: Array, a: float = _CUBIC) -> Array:
    d = distance
    near = (a + 2) * d**3 - (a + 3) * d**2 + 1
    far = a * d**3 - 5 * a * d**2 + 8 * a * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))


def _names(*kinds: str) -> list[str]:
    dims = {"linear": "1d", "trilinear": "3d"}
    return [f"upsample_{kind}{dims.get(kind, '2d')}.{form}" for kind in kinds for form in ("vec", "default")]


states(*_names("linear", "bilinear", "trilinear"), facts=Facts(range=keeps, degree=1.0))
states(*_names("bicubic"), facts=Facts(degree=1.0))
_SMOOTH = [f"_upsample_{kind}2d_aa.{form}" for kind in ("bilinear", "bicubic") for form in ("vec", "default")]
states(*_SMOOTH, facts=Facts(degree=1.0))


@decomposes(*_names("linear", "bilinear", "bicubic", "trilinear"), *_SMOOTH)
def _resized_by_products(write: Writer) -> Float:
    """upsample(x) -> linear(x, w) along each axis, with the weights of the filter.

    x [.., W] -> linear(w [OW, W]) -> transpose -> linear(w [OH, H]) -> transpose -> y [.., OH, OW]

    Bilinear resizes by 2, 4 or 8 without aligned corners are kept: chips support them. Some also support different
    factors for each axis, and aligned corners.
    """
    given = write.given
    x = given.get("input", given.get("self"))
    kind = write.overload.split(".")[0].strip("_").removeprefix("upsample_").removesuffix("_aa")[:-2]
    shape, result = write.shape(x), write.shape()
    spatial = len(shape) - 2
    sizes = list(zip(shape[2:], result[2:], _given_factors(write, spatial), strict=True))
    aligned, smooth = bool(given["align_corners"]), write.overload.startswith("_")
    resizes = write.capabilities.resizes and all(before > 1 or after == 1 for before, after, _ in sizes)
    resizes |= write.capabilities.resizes_by_axis and _is_by_axis(sizes, aligned)
    if kind == "bilinear" and not smooth and (resizes or _is_native(sizes, aligned)):
        return None
    for axis, (before, after, factor) in reversed(list(enumerate(sizes, 2))):
        weights = (smooth_matrix if smooth else matrix)(before, after, factor, aligned, _FILTERS[kind])
        if before == after and np.array_equal(weights, np.eye(before, dtype=np.float32)):
            continue
        x = along(write, x, axis, weights)
    return x


_Sizes = list[tuple[int, int, float | None]]
"""Elements before and after, and the given factor if any, along each axis."""


def _is_native(sizes: _Sizes, aligned: bool) -> bool:
    ratios = {after / before for before, after, _ in sizes}
    return not aligned and _is_exact(sizes) and len(ratios) == 1 and ratios.issubset(_NATIVE)


def _is_by_axis(sizes: _Sizes, aligned: bool) -> bool:
    """True if chips support the factor of each axis; with aligned corners, factors are ratios of distances."""
    if aligned:
        return all(before > 1 and (after - 1) / (before - 1) in _NATIVE for before, after, _ in sizes)
    return _is_exact(sizes) and all(after / before in _NATIVE for before, after, _ in sizes)


def _is_exact(sizes: _Sizes) -> bool:
    """True if given factors equal the ratios of the sizes."""
    return all(factor is None or abs(factor * before - after) < 1e-6 * after for before, after, factor in sizes)


def along(write: Writer, x: Float, axis: int, weights: Array) -> Float:
    """x [.., n, ..] -> [.., m, ..] by weights [m, n] along an axis."""
    last = len(write.shape(x)) - 1
    moved = x if axis == last else write("transpose.int", x, axis, last)
    y = write("linear.default", moved, write.constant(weights))
    return y if axis == last else write("transpose.int", y, axis, last)


@decomposes("adaptive_avg_pool1d.default", "adaptive_avg_pool2d.default", "_adaptive_avg_pool2d.default")
def _averaged_by_products(write: Writer) -> Float:
    """adaptive_avg_pool(x) with too many kinds of windows, e.g. if it enlarges -> linear(x, w) along each axis"""
    x = write.given["self"]
    spatial = 1 if "pool1d" in write.overload else 2
    shape, result = write.shape(x), write.shape()
    windows = [adaptive_windows(n, m) for n, m in zip(shape[-spatial:], result[-spatial:], strict=True)]
    if len(runs(windows[0])) * (len(runs(windows[1])) if spatial > 1 else 1) <= MAX_PARTS:
        return None
    for axis, found in reversed(list(enumerate(windows, len(shape) - spatial))):
        weights = np.zeros((len(found), shape[axis]), np.float32)
        for row, (start, stop) in zip(weights, found, strict=True):
            row[start:stop] = 1.0 / (stop - start)
        x = along(write, x, axis, weights)
    return x


@decomposes(
    *(
        f"{name}{n}d.{form}"
        for name in ("upsample_nearest", "_upsample_nearest_exact")
        for n in (1, 2, 3)
        for form in ("vec", "default")
    ),
    facts=MOVES,
)
def _repeated(write: Writer) -> Float:
    """upsample_nearest(x) -> slices of x along each axis, or copies; kept for 1, 2, 4 or 8 equally over two axes.

    x [.., W] -> slice 0::2 -> y        half the size
    x [.., W] -> [.., W, 1] -> expand -> [.., 3 * W]        an integer factor
    """
    given = write.given
    x = given.get("input", given.get("self"))
    shape, result = write.shape(x), write.shape()
    spatial = len(shape) - 2
    sizes = list(zip(shape[2:], result[2:], _given_factors(write, spatial), strict=True))
    exact = "exact" in write.overload
    if spatial < 3 and (write.capabilities.resizes or _is_native([(b, a, None) for b, a, _ in sizes], False)):
        return None
    for axis, (before, after, factor) in enumerate(sizes, 2):
        index = _nearest(before, after, factor, exact)
        if index == list(range(before)):
            continue
        times, odd = divmod(after, before)
        if not odd and index == [i // times for i in range(after)]:
            x = _copies(write, x, axis, times)
            continue
        parts = slices(write, x, axis, index)
        if parts is None:
            chosen = np.zeros((after, before), np.float32)
            chosen[np.arange(after), index] = 1.0
            parts = along(write, x, axis, chosen)
        x = parts
    return x


def _nearest(before: int, after: int, factor: float | None, exact: bool) -> list[int]:
    """Source indices; torch computes them in float32."""
    if after == before and not exact:
        return list(range(before))
    scale = np.float32(1.0 / factor) if factor else np.float32(before) / np.float32(after)
    if after == 2 * before and not exact:
        return [i // 2 for i in range(after)]
    i = np.arange(after, dtype=np.float32)
    found = np.floor((i + np.float32(0.5)) * scale if exact else i * scale).astype(int)
    return [int(n) for n in np.clip(found, 0, before - 1)]


def _copies(write: Writer, x: Float, axis: int, times: int) -> Float:
    """Repeat each element along an axis ``times`` times."""
    shape = write.shape(x)
    # Rank 3: the axis, and the merged axes before and after it.
    outer, inner = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    flat = write("reshape.default", x, [outer * shape[axis], 1, inner])
    wide = write("cat.default", [flat] * times, 1)
    return write("reshape.default", wide, [*shape[:axis], shape[axis] * times, *shape[axis + 1 :]])


def _given_factors(write: Writer, spatial: int) -> list[float | None]:
    """Scale factors given by the program; None if it gives a size."""
    given = write.given
    found = given.get("scale_factors")
    if found is None:
        names = ("scales",) if spatial == 1 else ("scales_d", "scales_h", "scales_w")[-spatial:]
        found = [given.get(name) for name in names]
    return [None if f is None else float(f) for f in found]
