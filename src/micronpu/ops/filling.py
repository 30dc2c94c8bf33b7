"""Constants created from shapes, and assignments to parts of a tensor: slices, or constant indices.

Exact up to float rounding: concatenated slices with shared qparams, or products with zeros and ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from micronpu.ir.lowering import Float, Writer, decomposes
from micronpu.ir.types import DType
from micronpu.ops.movement import behind_copies

MOST_PIECES = 64
"""Maximum number of slices that a tensor is assembled from; beyond that, the operator is kept."""


@decomposes(
    *(f"{kind}_like.default" for kind in ("zeros", "ones", "full")),
    *(f"new_{kind}.default" for kind in ("zeros", "ones", "full")),
    *(f"fill.{form}" for form in ("Scalar", "Tensor")),
    early=True,
)
def _constant_of_a_shape(write: Writer) -> Float:
    """zeros_like(x) -> a constant, and so on: an operand used for its shape only is not read."""
    given, dtype = write.given, write.dtype()
    value = given.get("fill_value", given.get("value", 1.0 if "ones" in write.overload else 0.0))
    if not isinstance(value, (int, float)):
        stored = write.stored(behind_copies(write, value))
        if stored is None or stored.size != 1:
            return None
        value = stored.reshape(()).item()
    if dtype is None or 0 in write.shape():
        return None
    return write.constant(np.full(write.shape(), value, dtype.numpy))


@decomposes("tril.default", "triu.default", early=True)
def _triangle(write: Writer) -> Float:
    """tril(x) -> x * zeros and ones"""
    x, dtype = write.given["self"], write.dtype()
    made = write.call(x)
    filled = made is not None and made.overload.split(".")[0] in ("full", "ones", "zeros", "new_full", "new_ones")
    if dtype is not DType.FLOAT32 or write.is_constant(x) or filled:  # a constant may hold infinities
        return None
    cut = np.tril if write.overload.startswith("tril") else np.triu
    mask = cut(np.ones(write.shape()[-2:], np.float32), int(write.given["diagonal"]))
    return write("mul.Tensor", x, write.constant(np.ascontiguousarray(mask)))


@decomposes("index_copy.default", early=True)
def _index_copy(write: Writer) -> Float:
    """x[:, [0, 3]] = z -> cat(z[:, 0:1], x[:, 1:3], z[:, 1:2], x[:, 4:]), for known indices."""
    given = write.given
    axis = int(given["dim"]) % len(write.shape())
    index = write.stored(behind_copies(write, given["index"]))
    return None if index is None else replaced(write, given["self"], given["source"], axis, index.reshape(-1).tolist())


@decomposes("index_put.default", early=True)
def _index_put(write: Writer) -> Float:
    """x[:, [0, 3]] = z as `index_copy`; x[mask] = 0 -> where(mask, 0, x)."""
    given = write.given
    x, z, indices = given["self"], given["values"], list(given["indices"])
    places = [a for a, index in enumerate(indices) if index is not None]
    if len(places) != 1 or given["accumulate"]:
        return None
    (axis,) = places
    if write.dtype(indices[axis]) is DType.BOOL:
        mask, shape = indices[axis], write.shape(indices[axis])
        if axis or write.shape(z) not in ((), (1,)):
            return None
        if len(shape) < len(write.shape()):
            mask = write("reshape.default", mask, [*shape, *[1] * (len(write.shape()) - len(shape))])
        return write("where.self", mask, z, x)
    index = write.stored(behind_copies(write, indices[axis]))
    if index is None or index.ndim != 1:
        return None
    shape = write.shape()
    wanted = (*shape[:axis], index.size, *shape[axis + 1 :])
    if write.shape(z) != wanted:
        z = write("expand.default", z, list(wanted))
    return replaced(write, x, z, axis, index.tolist())


def replaced(write: Writer, x: Float, z: Float, axis: int, places: Sequence[int], most: int = MOST_PIECES) -> Float:
    """x with ``z[i]`` instead of ``x[places[i]]`` along an axis, by slices; None if there are more than ``most``.

    The last one of duplicate indices is used.
    """
    size = write.shape(x)[axis]
    sources: list[tuple[bool, int]] = [(False, i) for i in range(size)]
    for number, place in enumerate(places):
        sources[int(place) % size] = (True, number)
    runs: list[tuple[bool, int, int]] = []
    for new, i in sources:
        if runs and runs[-1][0] == new and runs[-1][2] == i:
            runs[-1] = (new, runs[-1][1], i + 1)
        else:
            runs.append((new, i, i + 1))
    if len(runs) > most:
        return None
    pieces = [_slice(write, z if new else x, axis, start, stop) for new, start, stop in runs]
    return pieces[0] if len(pieces) == 1 else write("cat.default", pieces, axis)


def _slice(write: Writer, x: Float, axis: int, start: int, stop: int) -> Float:
    return x if (start, stop) == (0, write.shape(x)[axis]) else write("slice.Tensor", x, axis, start, stop)


@decomposes("diagonal.default", early=True)
def _diagonal(write: Writer) -> Float:
    """The diagonal of two axes -> every (n + 1)-th element of their flattened matrices."""
    given = write.given
    if not write.shape()[-1]:
        return None
    return diagonal_of(write, given["self"], int(given["dim1"]), int(given["dim2"]), int(given["offset"]))


def diagonal_of(write: Writer, x: Float, first: int, second: int, offset: int = 0) -> Float:
    """The elements whose indices along two axes differ by ``offset``, as a new last axis."""
    shape = write.shape(x)
    rank = len(shape)
    first, second = first % rank, second % rank
    rest = [a for a in range(rank) if a not in (first, second)]
    rows, columns = shape[first], shape[second]
    count = min(rows + min(offset, 0), columns - max(offset, 0))
    order = [*rest, first, second]
    moved = x if order == list(range(rank)) else write("permute.default", x, order)
    flat = write("reshape.default", moved, [*(shape[a] for a in rest), rows * columns])
    start = offset if offset >= 0 else -offset * columns
    last = start + (count - 1) * (columns + 1) + 1
    return write("slice.Tensor", flat, len(rest), start, last, columns + 1)


@decomposes("rot90.default", early=True)
def _quarter_turns(write: Writer) -> Float:
    """rot90(x) -> flip and transpose"""
    x, (a, b) = write.given["self"], (int(d) for d in write.given["dims"])
    turns = int(write.given["k"]) % 4
    if turns == 0:
        return x
    if turns == 2:
        return write("flip.default", x, [a, b])
    return write("transpose.int", write("flip.default", x, [b if turns == 1 else a]), a, b)


@decomposes("diff.default", early=True)
def _difference(write: Writer) -> Float:
    """diff(x) -> x[1:] - x[:-1], as often as requested"""
    given = write.given
    x = given["self"]
    if given["prepend"] is not None or given["append"] is not None:
        x = write("cat.default", [p for p in (given["prepend"], x, given["append"]) if p is not None], given["dim"])
    axis = int(given["dim"]) % len(write.shape(x))
    for _ in range(int(given["n"])):
        size = write.shape(x)[axis]
        later, earlier = (write("slice.Tensor", x, axis, i, size - 1 + i) for i in (1, 0))
        x = write("sub.Tensor", later, earlier)
    return x


_MOST_STRIDED = 64
"""Maximum elements of a strided assignment, which alternate between the two tensors; longer ones are kept."""


@decomposes("copy.default", early=True)
def _copied(write: Writer) -> Float:
    """Overwriting x with z -> z, expanded to the shape of x."""
    source = write.given["src"]
    if write.dtype() is None or write.dtype(source) is not write.dtype():
        return None
    shape = write.shape()
    return source if write.shape(source) == shape else write("expand.default", source, list(shape))


@decomposes("slice_scatter.default", early=True)
def _slice_scatter(write: Writer) -> Float:
    """x[.., a:b, ..] = z -> cat(x[.., :a, ..], z, x[.., b:, ..]); with a step, elements of x and z alternate."""
    given = write.given
    x, z, shape = given["self"], given["src"], write.shape()
    axis = int(given["dim"]) % len(shape)
    places = range(*slice(given["start"], given["end"], int(given["step"])).indices(shape[axis]))
    if len(places) != write.shape(z)[axis]:
        return None
    if places.step > 1 and len(places) > _MOST_STRIDED:
        return None
    return replaced(write, x, z, axis, places, most=shape[axis])


@decomposes("select_scatter.default", early=True)
def _select_scatter(write: Writer) -> Float:
    """x[.., i, ..] = z -> cat(x[.., :i, ..], z, x[.., i + 1:, ..])"""
    given = write.given
    shape = write.shape()
    axis = int(given["dim"]) % len(shape)
    place = int(given["index"]) % shape[axis]
    return replaced(write, given["self"], write("unsqueeze.default", given["src"], axis), axis, (place,))
