"""Axes of operands whose indices an operator does not combine."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from micronpu.ops.linear import LINEAR
from micronpu.ops.movement import COPIES, DROPOUTS, TRANSPOSES, order_of
from micronpu.ops.normalization import BATCH_NORMS
from micronpu.ops.softmax import SOFTMAX
from micronpu.ops.transposed import TRANSPOSED

Given = Mapping[str, Any]
Shape = Callable[[Any], Sequence[int]]

SAME_AXES = ("expand_as.default", *DROPOUTS, *COPIES)
"""Overloads without the tag `pointwise` whose result has the axes of the operand."""

_ALONG_GIVEN = {
    *("chunk", "split", "split_with_sizes", "tensor_split", "unbind"),
    *("glu", "cumsum", "roll", "flip", "log_softmax", "max", "min", "topk", "sort"),
    *("mean", "sum", "amax", "amin", "prod", "argmax", "argmin", "var", "std", "logsumexp", "linalg_vector_norm"),
    *("norm", "any", "all"),
    *(overload.split(".")[0] for overload in SOFTMAX),
}
"""Operators that compute along the axes in `dim` or `dims`, and have `keepdim` if they remove these axes."""


def axis_behind(
    overload: str, given: Given, varying: Sequence[Any], axis: int, result: Sequence[int], shape: Shape
) -> int | None:
    """Return the axis of the result of which each index depends on the same index of an operand's axis alone.

    Args:
        varying: the operands in question; all others are constants.
        axis: of each of these operands.
        result: shape of the result, or of the first of several.

    Returns:
        None if an index of the result depends on several of the operand, or the operator is not known.
    """
    name = overload.split(".")[0]
    first = next(iter(given.values()), None)
    if name == "stack":
        dim = int(given["dim"]) % len(result)
        return axis + (dim <= axis) if all(x in varying for x in first or ()) else None
    if len(varying) != 1:
        return None
    (x,) = varying
    if name == "einsum":
        return _einsum(given, x, axis)
    if name in ("matmul", "mm", "bmm"):
        return _product(given, x, axis, len(result), shape)
    if first is not x:
        return None
    before = shape(x)
    if overload in TRANSPOSES:
        return order_of(given, len(before)).index(axis)
    if name == "unsqueeze":
        return axis + (int(given["dim"]) % len(result) <= axis)
    if name in ("expand", "repeat"):
        behind = axis + len(result) - len(before)
        return behind if result[behind] == before[axis] else None
    if name in ("upsample_nearest2d", "upsample_bilinear2d"):
        return axis if axis < 2 or result[axis] == before[axis] else None
    if overload in TRANSPOSED:
        return axis if _is_by_index(given, axis, len(result) - 2, shape) else None
    along = _along(overload, given, before, shape)
    if along is None or axis in along:
        return None
    removes = not given.get("keepdim", name != "unbind")
    return axis - sum(a < axis for a in along) if removes else axis


def _along(overload: str, given: Given, before: Sequence[int], shape: Shape) -> set[int] | None:
    """Return the axes that an operator computes along, all if it names none; None if they are not known."""
    rank, name = len(before), overload.split(".")[0]
    if overload in LINEAR:
        return {rank - 1}
    if overload in BATCH_NORMS:
        return {1}
    if name in ("layer_norm", "rms_norm"):
        return set(range(rank - len(given["normalized_shape"]), rank))
    if name == "prelu":
        return {1} if math.prod(shape(given["weight"])) > 1 else set()
    if name not in _ALONG_GIVEN or not {"dim", "dims"} & given.keys():
        return None
    found = given["dim"] if "dim" in given else given["dims"]
    if found is None or (isinstance(found, (list, tuple)) and not found):
        return set(range(rank))
    return {int(d) % rank for d in (found if isinstance(found, (list, tuple)) else [found])}


def _product(given: Given, x: Any, axis: int, rank: int, shape: Shape) -> int | None:
    """A product with a matrix that is the same for all indices of the axis."""
    one, other = list(given.values())[:2]
    before, matrix = shape(x), shape(other if x is one else one)
    summed = len(before) - (1 if x is one else 2)
    is_shared = 2 <= len(matrix) <= len(before) and math.prod(matrix[:-2]) == 1 and one is not other
    return axis if is_shared and axis != summed and rank == len(before) else None


def _einsum(given: Given, x: Any, axis: int) -> int | None:
    before, _, after = str(given["equation"]).replace(" ", "").partition("->")
    places = [i for i, operand in enumerate(given["tensors"]) if operand is x]
    if len(places) != 1 or not after or "." in before:
        return None
    names = before.split(",")
    letter = names.pop(places[0])[axis]
    return after.index(letter) if letter in after and not any(letter in name for name in names) else None


def _is_by_index(given: Given, axis: int, sides: int, shape: Shape) -> bool:
    """Return whether a transposed convolution has windows of one element along an axis."""
    place = axis - 2

    def along(name: str) -> int:
        value = given[name]
        values = list(value) if isinstance(value, (list, tuple)) else [value]
        return int(values[place] if len(values) == sides else values[0])

    is_one = place >= 0 and shape(given["weight"])[axis] == 1 and along("stride") == 1
    return is_one and not along("padding") and not along("output_padding")
