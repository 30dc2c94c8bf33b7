"""Operators that compute indices, and those that select by indices.

An NPU with row lookups gathers and scatters at indices known at run time only, on a matrix whose rows are the elements
along the indexed axes. The core computes the indices: its arithmetic is exact in int64, NPUs use int32 row indices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from micronpu.base.arrays import Array
from micronpu.base.errors import InternalError, UnsupportedError
from micronpu.ir.aten import AtenArguments, AtenNode
from micronpu.ir.graph import Graph, Node, Tensor
from micronpu.ir.lowering import Float, Writer, decomposes
from micronpu.ir.op import Op, OutputQuantization, Permutation, Permuted, QuantizationRule, Value, shares_qparams
from micronpu.ir.registry import from_aten, imports, operator
from micronpu.ir.types import DType, QParams, TensorType
from micronpu.ops.movement import behind_copies, reshaped, transposed, under_shape
from micronpu.ops.pooling import MAX_PARTS
from micronpu.ops.truths import TRUTH, WHOLE

if TYPE_CHECKING:
    from micronpu.emit.litert import LiteRtEmitter
    from micronpu.emit.tosa import TosaEmitter, TosaTensor


POSITIONS = ("argmax.default", "argmin.default")
"""The overloads of `ArgMax`."""
LOWEST = -128
LOOKUP_HINT = "an NPU that looks rows up, see the support table, or positions that are constants"
MOST_POSITIONS = 256
"""Maximum number of indices in an int8 number."""
_POSITION = WHOLE


@operator("argmax")
class ArgMax(Op):
    """Index of the largest element along the last axis, or of the smallest; the first of equal ones.

    x int8 [.., C]  ->  y int8 [..], scale 1, zero point -128.  C is at most 256.
    """

    smallest: bool = False

    quantization = _POSITION

    def infer(self, x: TensorType) -> TensorType:
        if x.rank == 0 or x.channels > MOST_POSITIONS or x.dtype is not DType.INT8:
            raise InternalError(f"{self} of {x} does not give an int8 position.")
        return TensorType(x.shape[:-1], DType.INT8, QParams.per_tensor(1.0, LOWEST))

    def permuted(self, permutation: Permutation, y: TensorType, *operands: TensorType) -> Permuted:
        last = len(permutation) - 1
        return (self, permutation[:-1]) if permutation[-1] == last else None

    def reference(self, y: TensorType, x: Value) -> Array:
        find = np.argmin if self.smallest else np.argmax
        return np.asarray(find(x.data, axis=-1) + LOWEST).astype(np.int8)

    @from_aten(*POSITIONS)
    @classmethod
    def build(cls, node: AtenNode) -> Tensor:
        x = node.tensor("x")
        if x.type.dtype is not DType.INT8:
            what = f"`{node.overload}` takes no {x.type.dtype.value} values; positions are found among int8 ones."
            raise UnsupportedError(what, hint="leave it to the application")
        rank = len(x.shape)
        given = node.value("dim")
        if given is None or rank == 0:
            x, axis, rank = reshaped(node, x, (math.prod(x.shape),)), 0, 1
        else:
            axis = int(given) % rank
        if x.shape[axis] > MOST_POSITIONS:
            what = f"`{node.overload}` among {x.shape[axis]} elements is not imported; at most {MOST_POSITIONS} are."
            raise UnsupportedError(what, hint="leave it to the application")
        if axis != rank - 1:
            x = transposed(node, x, (*(i for i in range(rank) if i != axis), axis))
        return reshaped(node, node.emit(cls(node.overload.startswith("argmin")), x), node.shape)

    def to_aten(self, emit: Any, node: Node, x: object) -> Any:
        """The index has its own type there, and is moved to the range of int8."""
        found = emit.aten("argmin.default" if self.smallest else "argmax.default", x, -1, False)
        moved = emit.aten("add.Tensor", found, emit.constant(np.array(DType.INT8.limits[0], np.int64)))
        return emit.aten("_to_copy.default", moved, dtype=DType.INT8)

    def to_tosa(self, emit: TosaEmitter) -> TosaTensor:
        x = emit.input(0)
        if self.smallest:  # TOSA finds only the largest, which is the smallest in reverse order
            x = emit.table(x, np.arange(127, -129, -1))
        # Rows of one batch, the form that every Ethos-U supports.
        rows = emit.arg_max(emit.reshape(x, (1, math.prod(x.shape[:-1]), x.shape[-1])))
        return emit.reshape(emit.result(rows), x.shape[:-1])

    def to_litert(self, emit: LiteRtEmitter) -> None:
        """LiteRT computes an int32 index, which is moved to the range of int8."""
        integers = TensorType(emit.output_type.shape, DType.INT32)
        found, moved = emit.intermediate(integers), emit.intermediate(integers)
        lowest = emit.constant(LOWEST, TensorType((), DType.INT32))
        axis = emit.constant(emit.input_type(0).rank - 1, TensorType((), DType.INT32))
        name = "ARG_MIN" if self.smallest else "ARG_MAX"
        options = "ArgMinOptions" if self.smallest else "ArgMaxOptions"
        fields = {"outputType": emit.code(DType.INT32)}
        emit.add(name, options=options, fields=fields, inputs=[0, axis], outputs=[found])
        emit.add("ADD", options="AddOptions", inputs=[found, lowest], outputs=[moved])
        emit.add("CAST", options="CastOptions", inputs=[moved])


@operator("gather_rows")
class GatherRows(Op):
    """Rows of a table selected by index.

    indices int32 [..], table int8 or int16 [V, E]  ->  y [.., E], type and qparams of the table.
    Indices are from 0 to V - 1.
    """

    quantization = QuantizationRule(activations=())

    def infer(self, indices: TensorType, table: TensorType) -> TensorType:
        if indices.dtype is not DType.INT32 or table.rank != 2:
            raise InternalError(f"{indices} does not pick rows of {table}.")
        return table.with_shape((*indices.shape, table.shape[1]))

    def reference(self, y: TensorType, indices: Value, table: Value) -> Array:
        return np.asarray(table.data[indices.data])

    @from_aten("embedding.default", x="indices", table="weight")
    @classmethod
    def build(cls, node: AtenNode) -> Tensor:
        rows, y, dtype = node.float_constant("table"), node.output, node.output_dtype
        low, high = dtype.limits
        stored = np.clip(np.rint(rows.astype(np.float64) / y.scale[0]) + y.zero_point[0], low, high)
        return node.emit(cls(), node.integers("x"), node.constant(stored, TensorType(rows.shape, dtype, y)))

    @from_aten(
        "index_select.default", x="index", table="self", quantization=shares_qparams(of="table"), moves_only=True
    )
    @classmethod
    def build_selection(cls, node: AtenNode) -> Tensor:
        if len(node.shape) != 2 or node.value("dim") != 0:
            what = f"`index_select` picks positions known at run time only, or over {MAX_PARTS} ranges."
            raise UnsupportedError(what, hint=LOOKUP_HINT)
        return node.emit(cls(), node.integers("x"), node.tensor("table"))

    def to_aten(self, emit: Any, node: Node, indices: object, table: object) -> Any:
        return emit.aten("embedding.default", table, indices)

    def to_tosa(self, emit: TosaEmitter) -> TosaTensor:
        indices, table = emit.operands
        count, (rows, width) = math.prod(indices.shape), table.shape
        operands = (emit.reshape(table, (1, rows, width)), emit.reshape(indices, (1, count)))
        return emit.reshape(emit.add("GATHER", operands, (1, count, width), table.dtype), (*indices.shape, width))

    def to_litert(self, emit: LiteRtEmitter) -> None:
        emit.add("GATHER", options="GatherOptions", inputs=[1, 0], version=2)


# ---------------------------------------------------------------- decompositions


@decomposes(*POSITIONS, decides=True)
def _position_to_number(write: Writer) -> Float:
    """argmax(x) -> the index as a number, of at most 256, which int8 can represent

    x -> argmax -> y        x -> argmax -> to(float32) -> to(int64) -> y
    """
    x, axis = write.given["self"], write.given["dim"]
    shape = write.shape(x) or (1,)
    positions = math.prod(shape) if axis is None else shape[axis]
    if not write.capabilities.positions or write.dtype(x) is not DType.FLOAT32 or positions > MOST_POSITIONS:
        return None
    if positions == 1:
        return write.constant(np.zeros(write.shape(), np.int64))
    return write.decided(write.with_qparams(write("to.dtype", write.kept(), DType.FLOAT32), _POSITION))


@decomposes("one_hot.default", decides=True)
def _one_hot(write: Writer) -> Float:
    """one_hot(argmax(x)) -> relu(1 - |p - [0, 1, ..]|), for the index p as a number

    Exact: all values are whole numbers, and a difference that saturates is not zero.
    """
    number, count = write.number(write.given["self"]), int(write.given["num_classes"])
    if number is None or not 0 < count <= MOST_POSITIONS:
        return None
    ramp = write.with_qparams(write.constant(np.arange(count, dtype=np.float32)), _POSITION)
    apart = write.with_qparams(write("sub.Tensor", write("unsqueeze.default", number, -1), ramp), TRUTH)
    near = write("rsub.Scalar", write.with_qparams(write("abs.default", apart), TRUTH), 1.0)
    return write.decided(write.with_qparams(write("relu.default", write.with_qparams(near, TRUTH)), TRUTH))


@decomposes("embedding.default")
def _rows_by_int32(write: Writer) -> Float:
    """embedding(w, i) -> embedding(w, int32(i)): NPUs that look up rows use int32 indices."""
    index = write.given["indices"]
    if DType.INT32 not in write.capabilities.index_types or write.dtype(index) is not DType.INT64:
        return None
    return write("embedding.default", write.given["weight"], write("to.dtype", index, DType.INT32))


@decomposes("gather.default", "take_along_dim.default")
def _gather(write: Writer) -> Float:
    """gather(x, dim, [[5, 6, 9]]) -> slices of x in one row -> cat -> reshape, for constant indices.

    Every run of adjacent or evenly spaced elements is a slice; operators with more than `MAX_PARTS` of them are kept.
    """
    x, axis = write.given["self"], write.given["dim"]
    index = write.stored(write.given.get("index", write.given.get("indices")))
    shape = write.shape(x)
    if index is None or axis is None or not index.size or index.ndim == 0 or index.ndim != len(shape):
        return None
    places = np.arange(math.prod(shape)).reshape(shape)
    if "index" in write.given:  # it may be shorter than x along the other axes
        places = places[tuple(slice(None) if a == axis % len(shape) else slice(n) for a, n in enumerate(index.shape))]
    picked = np.take_along_axis(places, index, axis)
    order = picked.reshape(-1).tolist()
    if len(ranges(order)) > MAX_PARTS:
        return None
    return write("reshape.default", slices(write, write("reshape.default", x, [-1]), 0, order), list(picked.shape))


@decomposes("index_select.default", "index.Tensor", early=True)
def _index_to_slices(write: Writer) -> Float:
    """Constant indices along one axis become slices.

    x, [0, 1, 2, 6] -> index_select -> y        x -> slice 0:3, x -> slice 6:7 -> cat -> y
    """
    x, given = write.given["self"], write.given
    if write.overload == "index.Tensor":
        places = [axis for axis, index in enumerate(given["indices"]) if index is not None]
        if len(places) != 1:
            return None
        axis, source = places[0], given["indices"][places[0]]
    else:
        axis, source = int(given["dim"]) % len(write.shape(x)), given["index"]
    index = write.stored(behind_copies(write, source))
    if index is None or index.ndim != 1 or index.dtype not in (np.int64, np.int32) or not index.size:
        return None
    size = write.shape(x)[axis]
    return slices(write, x, axis, [int(i) % size for i in index.tolist()])


def slices(write: Writer, x: Float, axis: int, indices: Sequence[int]) -> Float:
    """The elements along an axis as concatenated slices; None for more than `MAX_PARTS`."""
    found = ranges(indices)
    if len(found) > MAX_PARTS:
        return None
    parts = [
        write("slice.Tensor", x, axis, first, first + (count - 1) * step + 1, step) for first, count, step in found
    ]
    return parts[0] if len(parts) == 1 else write("cat.default", parts, axis)


def ranges(indices: Sequence[int]) -> list[tuple[int, int, int]]:
    """Split indices into few ranges (first, count, step), with positive steps."""
    found: list[tuple[int, int, int]] = []
    position = 0
    while position < len(indices):
        last, step = position, 0
        while last + 1 < len(indices):
            difference = indices[last + 1] - indices[last]
            if difference < 1 or (step and difference != step):
                break
            step, last = difference, last + 1
        if last == position + 1 and step > 1:  # a pair is cheaper as two elements than as a slice with a step
            last, step = position, 0
        found.append((indices[position], last - position + 1, step or 1))
        position = last + 1
    return found


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

    def reference(self, y: TensorType, table: Value, indices: Value, rows: Value) -> Array:
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
            what = "`index_put` replaces elements at positions that are known at run time only."
            raise UnsupportedError(what, hint=LOOKUP_HINT)
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
        node.inputs[op.operand_names.index("table")].shape[0]
        for node, op in graph.of(GatherRows, ScatterRows)
        if indices in node.inputs[:2]
    ]
    return min(tables, default=1)


@imports("index.Tensor", "gather.default", "take_along_dim.default", quantization=shares_qparams())
@imports("index_copy.default", rows="source", quantization=QuantizationRule(("x", "rows"), OutputQuantization.SHARED))
def _on_the_host(node: AtenNode) -> Tensor:
    """Annotated so that old and new values share qparams, and the core moves integers."""
    what = f"`{node.overload}` picks or replaces elements at positions that are known at run time only."
    raise UnsupportedError(what, hint=LOOKUP_HINT)


# ---------------------------------------------------------------- decompositions for indices known at run time


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
