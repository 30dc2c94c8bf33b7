"""Answers that follow from the facts of ATen operators and from their arguments: lines, indices and axes.

An operator is given by its overload and by its arguments under the names of the schema, as `FloatCall` has them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from micronpu.ir.facts import Form, Given
from micronpu.ir.lowering import facts_of
from micronpu.ops.convolution import CONVOLUTIONS, TRANSPOSED
from micronpu.ops.matmul import LINEAR
from micronpu.ops.movement import CASTS, COPIES, DROPOUTS, RESHAPE, RESHAPES, TRANSPOSES, VIEW_COPY, order_of
from micronpu.ops.normalization import BATCH_NORMS
from micronpu.ops.recurrent import CELLS, RECURRENT
from micronpu.ops.softmax import SOFTMAX

COPY, WRITE = "copy.default", "copy_.default"
"""Overloads that return the second operand in the shape and type of the first, or write it into the first."""
OF_NUMBERS = ("lift_fresh.default", "detach_.default")
"""Overloads that `torch.tensor` calls with the tensor that it returns."""
EMBEDDING = "embedding.default"
MOVES = ("expand.default", "repeat.default", *RESHAPES, *TRANSPOSES, *COPIES)
"""Overloads that move or repeat elements."""
ROW_SUMS = ("mean.dim", "sum.dim_IntList")
"""Overloads that add up elements along axes, up to a factor."""
NUMBERED = tuple(f"{name}.Tensor" for plain in ("add", "sub", "mul") for name in (plain, f"{plain}_"))
"""Overloads whose operand ``other`` may be a number, for which a constant tensor can stand."""


RESHAPED = (RESHAPE, VIEW_COPY, "_unsafe_view.default")
"""Overloads whose result has another shape, and is a copy where strides allow no view."""
CONTIGUOUS = ("_adaptive_avg_pool2d.default", "avg_pool2d.default", "expand_copy.default", *ROW_SUMS)
"""Overloads whose kernels in ExecuTorch need a contiguous first operand."""
SCATTERS = ("index_copy", "index_put", "scatter", "scatter_add", "slice_scatter", "index_add", "masked_scatter")
"""Operators that write a part of their first operand, and return it unchanged if that part is empty."""
VIEWS = {"expand.default", "alias.default", "detach.default", *RESHAPES}
HANDING_ON = {*VIEWS, *COPIES, *CASTS}
"""Overloads whose result has the numbers of the first operand in their order, in another shape or type."""
EXPANSIONS = ("expand.default", "expand_as.default", "expand_copy.default")
LAYERS = (*CONVOLUTIONS, *LINEAR)
_LINEAR = (Form.SUM, Form.DIFFERENCE, Form.REVERSED_DIFFERENCE, Form.PRODUCT, Form.QUOTIENT)
SIZES = {"linalg_vector_norm": 1, "std": 1, "var": 2}
"""Operators whose results are sizes of rows, up to a factor, or powers of them, with the exponent."""
FIRST_MATRIX = {"linear": "input", "matmul": "self", "mm": "self", "bmm": "self", "addmm": "mat1", "baddbmm": "batch1"}
"""The first operand of a product of matrices, by operator."""


def matrices_of(overload: str, given: Given) -> list[object]:
    """Return the weights [O, K] with whose columns an operator multiplies the last axis of its first operand."""
    if overload in (*LINEAR, *CELLS):
        return [given["weight" if overload in LINEAR else "w_ih"]]
    directions = range((2 if given["bidirectional"] else 1) if overload in RECURRENT else 0)
    return [given["params"][len(given["params"]) // given["num_layers"] // len(directions) * i] for i in directions]


def name_of(overload: str) -> str:
    """Return the name of an operator without its overload, the same in place: "add" for "add_.Tensor"."""
    return overload.split(".")[0].rstrip("_")


def form_of(overload: str, given: Given) -> Form | None:
    """Return the function that an operator computes for its arguments."""
    return facts_of(overload).form if given.get("alpha", 1) == 1 else None


def is_transposed(overload: str, given: Given) -> bool | None:
    """Return whether a convolution is a transposed one; None for other operators."""
    name = overload.split(".")[0]
    if name.startswith(("conv1", "conv2", "conv3", "conv_transpose", "convolution")):
        return name.startswith("conv_transpose") or bool(given.get("transposed"))
    return None


def line_of(overload: str, given: Given, number: Callable[[Any], float | None]) -> tuple[Any, float, float] | None:
    """Return (x, factor, addend) of a result that is ``factor * x + addend``.

    Args:
        number: the number that an operand is everywhere; None where it is none.
    """
    form = form_of(overload, given)
    if form is Form.NEGATIVE:
        return given["self"], -1.0, 0.0
    if form not in _LINEAR:
        return None
    x, other = given["self"], given["other"]
    numbers = number(x), number(other)
    if (numbers[0] is None) == (numbers[1] is None):
        return None
    is_first = numbers[0] is None
    x, c = (x, numbers[1]) if is_first else (other, numbers[0])
    assert c is not None
    if form is Form.PRODUCT:
        return (x, c, 0.0) if c else None
    if form is Form.QUOTIENT:
        return (x, 1.0 / c, 0.0) if c and is_first else None
    if form is Form.SUM:
        return x, 1.0, c
    is_minuend = is_first != (form is Form.REVERSED_DIFFERENCE)
    return (x, 1.0, -c) if is_minuend else (x, -1.0, c)


def is_sum(overload: str, given: Given) -> bool:
    """Return whether the result is ``self + other``."""
    return form_of(overload, given) is Form.SUM


def addends_of(overload: str, given: Given) -> tuple[object, ...]:
    """Return the operands that are added to others, up to a factor, in a result of their shape."""
    if overload == "add.Tensor":
        return given["self"], given["other"]
    return (given["self"],) if overload == "baddbmm.default" else ()


def least_of(overload: str, given: Given) -> float | None:
    """Return the lower end of a clamp that has no upper end."""
    if overload not in ("clamp.default", "clamp_min.default"):
        return None
    least = given.get("min", 0.0)
    return float(least) if isinstance(least, (int, float)) and given.get("max") is None else None


def replaced_in(overload: str, given: Given) -> tuple[list[tuple[int, Any]], Any] | None:
    """Return the (axis, index) pairs at which rows of ``self`` are replaced, and the new rows; None if they are not."""
    if overload == "index_copy.default":
        return [(int(given["dim"]), given["index"])], given["source"]
    if overload != "index_put.default" or given["accumulate"]:
        return None
    return [(axis, index) for axis, index in enumerate(given["indices"]) if index is not None], given["values"]


def counts_from(overload: str, given: Given) -> object:
    """Return the first number of a result that counts up; None of any other operator."""
    return given.get("start", 0) if name_of(overload) == "arange" else None


def indices_of(overload: str, given: Given) -> list[tuple[Any, Any, int]]:
    """Return (table, index, axis) of each index by which an operator reads or replaces rows."""
    name = name_of(overload)
    if name in ("index", "index_put"):
        return [(given["self"], index, axis) for axis, index in enumerate(given["indices"])]
    if name in ("index_select", "index_copy", "scatter", "gather"):
        return [(given["self"], given["index"], int(given["dim"]))]
    return [(given["weight"], given["indices"], 0)] if name == "embedding" else []


def table_of(overload: str, args: Sequence[object]) -> object:
    """Return the tensor of which an operator picks rows by one index of any shape; None for other operators."""
    indices = args[1] if overload == "index.Tensor" else None
    return args[0] if isinstance(indices, Sequence) and len(indices) == 1 else None


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
    overload: str, given: Given, varying: Sequence[object], axis: int, result: Sequence[int], shape: Shape
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


def _product(given: Given, x: object, axis: int, rank: int, shape: Shape) -> int | None:
    """A product with a matrix that is the same for all indices of the axis."""
    one, other = list(given.values())[:2]
    before, matrix = shape(x), shape(other if x is one else one)
    summed = len(before) - (1 if x is one else 2)
    is_shared = 2 <= len(matrix) <= len(before) and math.prod(matrix[:-2]) == 1 and one is not other
    return axis if is_shared and axis != summed and rank == len(before) else None


def _einsum(given: Given, x: object, axis: int) -> int | None:
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
