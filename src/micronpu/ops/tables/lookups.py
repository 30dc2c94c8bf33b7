"""Gather and scatter at indices known at run time only.

An NPU with row lookups does both on a matrix whose rows are the elements along the indexed axes. The core computes the
indices: its arithmetic is exact in int64, while NPUs use int32 row indices.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from micronpu.base.errors import InternalError, UnsupportedError
from micronpu.ir.aten import AtenArguments, AtenNode
from micronpu.ir.graph import Graph, Tensor
from micronpu.ir.lowering import Float, Writer, decomposes
from micronpu.ir.op import Op, OutputQuantization, QuantizationRule, Value, shares_qparams
from micronpu.ir.registry import from_aten, imports, operator
from micronpu.ir.types import DType, TensorType
from micronpu.ops.indices import LOOKUP_HINT, GatherRows
from micronpu.ops.movement import under_shape

if TYPE_CHECKING:
    from micronpu.emit.litert import LiteRtEmitter
    from micronpu.emit.tosa import TosaEmitter, TosaTensor

_INTEGERS = (DType.INT32, DType.INT64)

_SHARED = QuantizationRule(("table", "rows"), OutputQuantization.SHARED)


def _quantization(node: AtenArguments) -> QuantizationRule:
    """Old and new values share qparams; accumulated sums have none yet."""
    return QuantizationRule(activations=()) if node.value("accumulate") else _SHARED


@operator("scatter_rows")
class ScatterRows(Op):
    """A table with some rows replaced, by index.

    table int8 or int16 [V, E], indices int32 [W], rows [W, E]  ->  y [V, E], qparams of the table. Indices are unique
    and from 0 to V - 1.
    """

    quantization = _SHARED

    def infer(self, table: TensorType, indices: TensorType, rows: TensorType) -> TensorType:
        if indices.dtype is not DType.INT32 or table.rank != 2 or rows.shape != (*indices.shape, table.channels):
            raise InternalError(f"{rows} does not replace rows {indices} of {table}.")
        if table.qparams != rows.qparams:
            raise InternalError(f"{rows} and {table} differ in what their integers mean.")
        return table

    def reference(self, y: TensorType, table: Value, indices: Value, rows: Value) -> npt.NDArray[Any]:
        replaced = np.array(table.data)
        replaced[indices.data] = rows.data
        return replaced

    @from_aten(
        "index_put.default", x="indices", table="self", rows="values", moves_only=True, quantization=_quantization
    )
    @classmethod
    def build(cls, node: AtenNode) -> Tensor:
        table, rows = node.tensor("table"), node.tensor("rows")
        if len(table.shape) != 2 or len(rows.shape) != 2 or rows.shape[1] != table.shape[1] or node.value("accumulate"):
            raise UnsupportedError(
                "`index_put` replaces elements at positions that are known at run time only.", hint=LOOKUP_HINT
            )
        if rows.shape[0] > table.shape[0]:
            raise UnsupportedError(
                f"`index_put` replaces {rows.shape[0]} of {table.shape[0]} rows, some more than once."
            )
        if table.type.qparams != rows.type.qparams:
            raise UnsupportedError(
                f"`index_put` writes values with {rows.type.qparams} among others with {table.type.qparams}.",
                hint="quantize with the quantizer of the target, which lets them share qparams",
            )
        return node.emit(cls(), table, node.integers("x"), rows)

    def to_tosa(self, emit: TosaEmitter) -> TosaTensor:
        table, indices, rows = emit.operands
        (height, width), count = table.shape, rows.shape[0]
        operands = (
            emit.reshape(table, (1, height, width)),
            emit.reshape(indices, (1, count)),
            emit.reshape(rows, (1, count, width)),
        )
        return emit.reshape(emit.add("SCATTER", operands, (1, height, width), table.dtype), table.shape)

    def to_litert(self, emit: LiteRtEmitter) -> None:
        """One row at a time, by slices: LiteRT's scatter starts with zeros."""
        table, indices, rows = (emit.input_type(i) for i in range(3))
        column = emit.constant(0, TensorType((1,), DType.INT32))
        last: Any = 0
        for number in range(indices.size):
            row = emit.intermediate(rows.with_shape((1, rows.channels)))
            place = emit.intermediate(TensorType((1,), DType.INT32))
            corner = emit.intermediate(TensorType((2,), DType.INT32))
            _litert_slice(emit, 2, (number, 0), (1, rows.channels), row)
            _litert_slice(emit, 1, (number,), (1,), place)
            emit.add("CONCATENATION", options="ConcatenationOptions", inputs=[place, column], outputs=[corner])
            made = None if number == indices.size - 1 else emit.intermediate(table)
            emit.add("DYNAMIC_UPDATE_SLICE", inputs=[last, row, corner], outputs=None if made is None else [made])
            last = made


def _litert_slice(emit: LiteRtEmitter, x: int, begin: tuple[int, ...], size: tuple[int, ...], out: Any) -> None:
    corner, extent = (emit.constant(v, TensorType((len(v),), DType.INT32)) for v in (begin, size))
    emit.add("SLICE", options="SliceOptions", inputs=[x, corner, extent], outputs=[out], version=2)


def rows_numbered(graph: Graph, indices: Tensor) -> int:
    """Number of rows of the smallest table that a tensor indexes; 1 if it indexes none."""
    tables = [
        node.inputs[node.op.operand_names.index("table")].shape[0]
        for node in graph.nodes
        if isinstance(node.op, (GatherRows, ScatterRows)) and indices in node.inputs[:2]
    ]
    return min(tables, default=1)


@imports("index.Tensor", "gather.default", "take_along_dim.default", quantization=shares_qparams())
@imports("index_copy.default", rows="source", quantization=QuantizationRule(("x", "rows"), OutputQuantization.SHARED))
def _on_the_host(node: AtenNode) -> Tensor:
    """Annotated so that old and new values share qparams, and the core moves integers."""
    raise UnsupportedError(
        f"`{node.overload}` picks or replaces elements at positions that are known at run time only.", hint=LOOKUP_HINT
    )


# ---------------------------------------------------------------- decompositions


@decomposes("index_select.default")
def _select_to_rows(write: Writer) -> Float:
    """index_select(x, dim, i) -> rows i of x as a matrix, for indices known at run time"""
    x, axis, index = write.given["self"], write.given["dim"], write.given["index"]
    shape = write.shape(x)
    is_done = (len(shape), axis) == (2, 0) and write.dtype(index) is DType.INT32
    return None if is_done or not shape or not _looks_up(write, index) else _rows(write, x, [axis % len(shape)], index)


@decomposes("index.Tensor")
def _index_to_rows(write: Writer) -> Float:
    """x[:, i, j] -> rows of x as a matrix, for indices of adjacent axes known at run time"""
    x, indices = write.given["self"], list(write.given["indices"])
    axes = [axis for axis, index in enumerate(indices) if index is not None]
    if not axes or axes != list(range(axes[0], axes[-1] + 1)) or not _looks_up(write, *(indices[a] for a in axes)):
        return None
    return _rows(write, x, axes, _place(write, write.shape(x), axes, [indices[a] for a in axes]))


@decomposes("gather.default", "take_along_dim.default")
def _gather_to_rows(write: Writer) -> Float:
    """gather(x, dim, i) -> rows of x as a matrix: single elements, unless i is expanded along the other axes"""
    given = write.given
    x, axis, index = given["self"], given["dim"], given.get("index", given.get("indices"))
    shape = write.shape(x)
    if axis is None or not shape or not _looks_up(write, index) or len(write.shape(index)) != len(shape):
        return None
    axis, wanted = int(axis) % len(shape), write.shape(index)
    others = [a for a in range(len(shape)) if a != axis]
    alike = all(wanted[a] == shape[a] for a in others)
    made = write.call(index)
    if alike and made is not None and made.overload.startswith("expand"):
        before = write.shape(made.given["self"])
        if math.prod(before) == before[axis - len(shape)]:
            return _rows(write, x, [axis], under_shape(write, made.given["self"], (wanted[axis],)))
    if not alike and "index" not in given:
        return None
    strides = [math.prod(shape[a + 1 :]) for a in range(len(shape))]
    offsets = np.zeros(wanted, np.int64)
    for a in others:
        steps = np.arange(wanted[a]) * strides[a]
        offsets += steps.reshape([-1 if b == a else 1 for b in range(len(shape))])
    place = index if strides[axis] == 1 else write("mul.Tensor", index, _integer(write, strides[axis]))
    if offsets.any():
        place = write("add.Tensor", place, write.constant(offsets))
    return under_shape(write, _row(write, under_shape(write, x, (math.prod(shape), 1)), place), wanted)


@decomposes("index_put.default")
def _put_to_rows(write: Writer) -> Float:
    """x[:, i] = z -> new rows of x as a matrix, for indices known at run time"""
    given = write.given
    x, z, indices = given["self"], given["values"], list(given["indices"])
    shape = write.shape(x)
    axes = [axis for axis, index in enumerate(indices) if index is not None]
    if given["accumulate"] or not axes or axes != list(range(axes[0], axes[-1] + 1)):
        return None
    chosen = [indices[a] for a in axes]
    if not _looks_up(write, *chosen):
        return None
    picked = np.broadcast_shapes(*(write.shape(i) for i in chosen))
    if (len(shape), axes, write.shape(z)) == (2, [0], (*picked, shape[1])) and _are_rows(write, chosen[0]):
        return None
    return _replaced(write, x, axes, _place(write, shape, axes, chosen), picked, z)


def _are_rows(write: Writer, index: Float) -> bool:
    """True if indices are a vector of int32 numbers without negative ones."""
    if write.dtype(index) is not DType.INT32 or len(write.shape(index)) != 1:
        return False
    made = write.call(index)
    while made is not None and made.overload in ("to.dtype", "reshape.default"):
        made = write.call(made.given["self"])
    return write.stored(index) is not None if made is None else made.overload == "where.self"


@decomposes("index_copy.default")
def _copy_to_rows(write: Writer) -> Float:
    """index_copy(x, dim, i, z) -> new rows of x as a matrix, for indices known at run time"""
    given = write.given
    x, axis, index = given["self"], given["dim"], given["index"]
    if not write.shape(x) or not _looks_up(write, index):
        return None
    return _replaced(write, x, [int(axis) % len(write.shape(x))], index, write.shape(index), given["source"])


def _looks_up(write: Writer, *indices: Float) -> bool:
    """True if the device supports row lookups by such indices."""
    return write.capabilities.lookups and all(write.dtype(i) in _INTEGERS for i in indices)


def _integer(write: Writer, value: int) -> Float:
    return write.constant(np.array(value, np.int64))


def _place(write: Writer, shape: tuple[int, ...], axes: list[int], indices: list[Float]) -> Float:
    """Flattened row index over several axes; negative indices count from the end."""
    place: Float = None
    for axis, index in zip(axes, indices, strict=True):
        known = write.stored(index)
        if known is None:
            behind = write("add.Tensor", index, _integer(write, shape[axis]))
            own = write("where.self", write("lt.Scalar", index, 0), behind, index)
        else:
            own = write.constant(np.where(known < 0, known + shape[axis], known).astype(np.int64))
        if place is not None:
            own = write("add.Tensor", write("mul.Tensor", place, _integer(write, shape[axis])), own)
        place = own
    return place


def _front(write: Writer, x: Float, axes: list[int]) -> tuple[Float, list[int] | None]:
    """x with some adjacent axes as the rows of a matrix, and the permutation that this needs."""
    shape = write.shape(x)
    before = list(range(axes[0]))
    order = None
    if math.prod(shape[: axes[0]]) != 1:
        order = [*axes, *before, *range(axes[-1] + 1, len(shape))]
        x = write("permute.default", x, order)
    rows = math.prod(shape[a] for a in axes)
    return under_shape(write, x, (rows, math.prod(shape) // rows)), order


def _row(write: Writer, matrix: Float, index: Float) -> Float:
    return write("index_select.default", matrix, 0, _numbers(write, index))


def _numbers(write: Writer, index: Float) -> Float:
    """Indices as a vector of int32 numbers."""
    known = write.stored(index)
    if known is not None:
        return write.constant(known.reshape(-1).astype(np.int32))
    flat = under_shape(write, index, (math.prod(write.shape(index)),))
    return flat if write.dtype(flat) is DType.INT32 else write("to.dtype", flat, DType.INT32)


def _rows(write: Writer, x: Float, axes: list[int], index: Float) -> Float:
    """The elements of several axes at some indices, as in advanced indexing."""
    shape, picked = write.shape(x), write.shape(index)
    matrix, order = _front(write, x, axes)
    rest = [n for a, n in enumerate(shape) if a not in axes]
    rows = _row(write, matrix, index)
    if order is None:
        return under_shape(write, rows, write.shape())
    y = under_shape(write, rows, (*picked, *rest))
    first, count = axes[0], len(picked)
    back = [*range(count, count + first), *range(count), *range(count + first, count + len(rest))]
    return write("permute.default", y, back)


def _replaced(write: Writer, x: Float, axes: list[int], index: Float, picked: tuple[int, ...], z: Float) -> Float:
    """x with z at some indices of several axes."""
    shape, first = write.shape(x), axes[0]
    wanted = (*shape[:first], *picked, *shape[axes[-1] + 1 :])
    if write.shape(z) != wanted:
        z = write("expand.default", z, list(wanted))
    matrix, order = _front(write, x, axes)
    width = write.shape(matrix)[1]
    if order is not None:
        count = len(picked)
        z = write(
            "permute.default", z, [*range(first, first + count), *range(first), *range(first + count, len(wanted))]
        )
    if write.shape(index) != picked:
        index = write("expand.default", index, list(picked))
    rows = under_shape(write, z, (math.prod(picked), width))
    new = write("index_put.default", matrix, [_numbers(write, index)], rows)
    if order is None:
        return under_shape(write, new, shape)
    return write("permute.default", under_shape(write, new, [shape[a] for a in order]), np.argsort(order).tolist())
