"""Assignments to a part of a tensor.

Exact: concatenated slices with shared qparams.
"""

from __future__ import annotations

from micronpu.ir.lowering import Float, Writer, decomposes

_MOST_PIECES = 64
"""Maximum slices of strided assignments, which alternate between the two tensors; longer ones are kept."""


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
    return _pasted(write, x, z, axis, places)


@decomposes("select_scatter.default", early=True)
def _select_scatter(write: Writer) -> Float:
    """x[.., i, ..] = z -> cat(x[.., :i, ..], z, x[.., i + 1:, ..])"""
    given = write.given
    shape = write.shape()
    axis = int(given["dim"]) % len(shape)
    place = int(given["index"]) % shape[axis]
    return _pasted(write, given["self"], write("unsqueeze.default", given["src"], axis), axis, range(place, place + 1))


def _pasted(write: Writer, x: Float, z: Float, axis: int, places: range) -> Float:
    """``z[i]`` instead of ``x[places[i]]``."""
    size, pieces = write.shape()[axis], []
    if not places:
        return x
    count = len(places) if places.step > 1 else 1
    if count > _MOST_PIECES:
        return None
    last = 0
    for number in range(count):
        begin = places[number]
        end = begin + 1 if count > 1 else places[-1] + 1
        if begin > last:
            pieces.append(write("slice.Tensor", x, axis, last, begin))
        pieces.append(write("slice.Tensor", z, axis, number, number + 1) if count > 1 else z)
        last = end
    if last < size:
        pieces.append(write("slice.Tensor", x, axis, last, size))
    return pieces[0] if len(pieces) == 1 else write("cat.default", pieces, axis)
