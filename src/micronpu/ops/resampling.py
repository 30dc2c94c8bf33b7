"""Resizes as products with a matrix per axis: any size and filter, if a chip resizes by certain factors only."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from micronpu.ir.lowering import Float, Writer, decomposes
from micronpu.ops.indices import slices
from micronpu.ops.pooling import MAX_PARTS, adaptive_windows, runs

_NATIVE = (1, 2, 4, 8)
"""Factors by which NPUs resize both axes equally."""
_CUBIC = -0.75
"""torch's coefficient of the cubic filter."""
_SMOOTH_CUBIC = -0.5
"""Coefficient for antialiasing, as in Pillow."""
_FILTERS = {"linear": "linear", "bilinear": "linear", "trilinear": "linear", "bicubic": "cubic"}


def positions(before: int, after: int, factor: float | None, aligned: bool) -> npt.NDArray[Any]:
    """Coordinates of the result's elements among those of x."""
    i = np.arange(after, dtype=np.float64)
    if aligned:
        return i * ((before - 1) / (after - 1) if after > 1 else 0.0)
    return (i + 0.5) * (1.0 / factor if factor else before / after) - 0.5


def matrix(before: int, after: int, factor: float | None, aligned: bool, kind: str) -> npt.NDArray[Any]:
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


def smooth_matrix(before: int, after: int, factor: float | None, aligned: bool, kind: str) -> npt.NDArray[Any]:
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


def _cubic(distance: npt.NDArray[Any], a: float = _CUBIC) -> npt.NDArray[Any]:
    d = distance
    near = (a + 2) * d**3 - (a + 3) * d**2 + 1
    far = a * d**3 - 5 * a * d**2 + 8 * a * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))


def _names(*kinds: str) -> list[str]:
    dims = {"linear": "1d", "trilinear": "3d"}
    return [f"upsample_{kind}{dims.get(kind, '2d')}.{form}" for kind in kinds for form in ("vec", "default")]


_SMOOTH = [f"_upsample_{kind}2d_aa.{form}" for kind in ("bilinear", "bicubic") for form in ("vec", "default")]


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
    sizes = list(zip(shape[2:], result[2:], _factors(write, spatial), strict=True))
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


def along(write: Writer, x: Float, axis: int, weights: npt.NDArray[Any]) -> Float:
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
    )
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
    sizes = list(zip(shape[2:], result[2:], _factors(write, spatial), strict=True))
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


def _factors(write: Writer, spatial: int) -> list[float | None]:
    """Scale factors given by the program; None if it gives a size."""
    given = write.given
    found = given.get("scale_factors")
    if found is None:
        names = ("scales",) if spatial == 1 else ("scales_d", "scales_h", "scales_w")[-spatial:]
        found = [given.get(name) for name in names]
    return [None if f is None else float(f) for f in found]
