"""Parts of a tensor, concatenations, assignments to parts (slices or constant indices), and constants of a shape.

Assignments are exact up to float rounding: concatenated slices with shared qparams, or products with zeros and ones.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from micronpu.base.arrays import Array
from micronpu.base.errors import InternalError, UnsupportedError
from micronpu.ir.aten import AtenNode, axis_of
from micronpu.ir.facts import Facts
from micronpu.ir.graph import Node, Tensor
from micronpu.ir.lowering import Float, Results, Writer, decomposes
from micronpu.ir.op import Op, Permutation, Permuted, Value, shares_qparams
from micronpu.ir.registry import MOVES, from_aten, operator
from micronpu.ir.types import DType, TensorType
from micronpu.ops.bounds import with_zeros
from micronpu.ops.calls import CONCATENATION
from micronpu.ops.movement import behind_copies, inverse, order_of, reshaped

if TYPE_CHECKING:
    from micronpu.emit.litert import LiteRtEmitter
    from micronpu.emit.tosa import TosaEmitter, TosaTensor


SLICES = ("slice.Tensor", "slice_copy.Tensor")
SELECTIONS = ("select.int", "select_copy.int")
MAX_LITERT_RANK = 5
"""Maximum rank of tensors that LiteRT slices."""


@operator("slice")
class Slice(Op):
    """A rectangular slice of a tensor.

    x [any]  ->  y ``size``, the elements from ``begin`` on, type of x.
    """

    begin: tuple[int, ...]
    size: tuple[int, ...]

    quantization = shares_qparams()

    def infer(self, x: TensorType) -> TensorType:
        if len(self.begin) != x.rank or len(self.size) != x.rank:
            raise InternalError(f"{self} does not fit rank {x.rank}.")
        if any(b < 0 or s < 1 or b + s > n for b, s, n in zip(self.begin, self.size, x.shape, strict=True)):
            raise InternalError(f"{self} is not inside {list(x.shape)}.")
        return x.with_shape(self.size)

    def permuted(self, permutation: Permutation, y: TensorType, *operands: TensorType) -> Permuted:
        back = inverse(permutation)
        return Slice(tuple(self.begin[i] for i in back), tuple(self.size[i] for i in back)), permutation

    def reference(self, y: TensorType, x: Value) -> Array:
        box = tuple(slice(b, b + s) for b, s in zip(self.begin, self.size, strict=True))
        return np.ascontiguousarray(x.data[box])

    @from_aten("narrow.default", "narrow_copy.default", moves_only=True)
    @classmethod
    def build_narrow(cls, node: AtenNode) -> Tensor:
        return _from(node, "start", int(node.value("length")))

    @from_aten(*SELECTIONS, moves_only=True)
    @classmethod
    def build_select(cls, node: AtenNode) -> Tensor:
        return reshaped(node, _from(node, "index", 1), node.shape)

    def to_aten(self, emit: Any, node: Node, x: object) -> Any:
        for axis, (begin, size, whole) in enumerate(zip(self.begin, self.size, node.inputs[0].shape, strict=True)):
            if size != whole:
                x = emit.aten("slice_copy.Tensor", x, axis, begin, begin + size)
        return x

    def to_litert(self, emit: LiteRtEmitter) -> None:
        emit.add("SLICE", options="SliceOptions", inputs=[0, emit.int32(self.begin), emit.int32(self.size)], version=2)

    def to_tosa(self, emit: TosaEmitter) -> TosaTensor:
        return emit.slice(emit.input(0), self.begin, self.size)


def sliced(node: AtenNode, x: Tensor, axis: int, start: int, stop: int) -> Tensor:
    """The elements from ``start`` up to ``stop`` along an axis; x itself if these are all."""
    shape = list(x.shape)
    if not 0 <= start < stop <= shape[axis]:
        raise UnsupportedError(f"The slice {start}:{stop} of an axis of {shape[axis]} elements is empty.")
    if (start, stop) == (0, shape[axis]):
        return x
    shape[axis] = stop - start
    if len(shape) > MAX_LITERT_RANK:
        outer, inner = math.prod(x.shape[:axis]), math.prod(x.shape[axis + 1 :])
        flat = reshaped(node, x, (outer, x.shape[axis], inner))
        return reshaped(node, sliced(node, flat, 1, start, stop), tuple(shape))
    begin = [0] * len(shape)
    begin[axis] = start
    return node.emit(Slice(tuple(begin), tuple(shape)), x)


def _from(node: AtenNode, argument: str, length: int) -> Tensor:
    """``length`` elements along the axis `dim`, from the argument's index on; a negative index counts from the end."""
    x = node.tensor("x")
    axis = axis_of(node, "dim", len(x.shape))
    start = int(node.value(argument)) % x.shape[axis]
    return sliced(node, x, axis, start, start + length)


# ---------------------------------------------------------------- decompositions, concatenation, and assignments

SPLITS = (
    *(f"{name}.Tensor" for name in ("split", "split_copy", "unsafe_split")),
    "split.sizes",
    *(f"{name}.default" for name in ("split_with_sizes", "split_with_sizes_copy", "unsafe_split_with_sizes")),
    *(f"{name}.default" for name in ("chunk", "unsafe_chunk")),
    *(f"tensor_split.{form}" for form in ("sections", "indices")),
)
"""Overloads whose results are the parts of a tensor along an axis."""


@decomposes(*SPLITS, "unbind.int", "unbind_copy.int", early=True, facts=MOVES)
def _split_to_slices(write: Writer) -> Float:
    """Used parts become slices; unused parts are removed.

    x -> split(sizes) -> a, b        x -> slice -> a;  x -> slice -> b
    x -> unbind -> a, b              x -> select -> a;  x -> select -> b
    """
    read = write.read()
    if read is None:
        return None
    x, axis = write.given["self"], int(write.given["dim"])
    axis %= len(write.shape(x))
    if write.overload.startswith("unbind"):
        return Results({i: write("select.int", x, axis, i) for i in sorted(read)})
    ends = list(itertools.accumulate((shape[axis] for shape in write.shapes()), initial=0))
    return Results({i: write("slice.Tensor", x, axis, ends[i], ends[i + 1]) for i in sorted(read)})


@decomposes("slice.Tensor", "select.int", "narrow.default", early=True)
def _slice_of_parts(write: Writer) -> Float:
    """cat(a, b)[part of a] -> a[part], so that temporarily concatenated values keep their original qparams.

    cat(a [.., m, ..], b) -> slice(0:m) -> y        a -> y
    stack(a, b) -> select(1) -> y                   b -> y

    Assignments to parts of a tensor are written as concatenations. A transpose may be in between.
    """
    given, x = write.given, write.given["self"]
    shape = write.shape(x)
    axis = int(given["dim"]) % len(shape) if shape else 0
    if not shape or not all(isinstance(n, int) for n in shape):
        return None
    if write.overload == "slice.Tensor":
        if not all(given[name] is None or isinstance(given[name], int) for name in ("start", "end", "step")):
            return None
        places = range(*slice(given["start"], given["end"], given["step"]).indices(shape[axis]))
    else:
        name, length = ("index", 1) if write.overload == "select.int" else ("start", given.get("length"))
        if not isinstance(given[name], int) or not isinstance(length, int):
            return None
        start = given[name] % shape[axis]
        places = range(start, start + length)
    if not places or (places[0], places[-1] + 1) == (0, shape[axis]):
        return None
    part = _part(write, x, axis, places[0], places[-1] + 1)
    if part is None:
        return None
    if places.step > 1:
        # Cut at the first and the last element, so that this slice of parts covers all of them, and is kept.
        part = write("slice.Tensor", part, axis, 0, write.shape(part)[axis], places.step)
    return write("squeeze.dim", part, axis) if write.overload == "select.int" else part


def _part(write: Writer, x: Float, axis: int, begin: int, end: int) -> Float:
    """The elements from ``begin`` up to ``end`` along an axis, from the tensors concatenated to x; else None."""
    between: list[tuple[str, list[object]]] = []
    while (made := write.call(x)) is not None:
        given, rank = made.given, len(write.shape(x))
        joins = made.overload in (*CONCATENATIONS, *STACKS) and int(given["dim"]) % rank == axis
        if joins:
            tensors = list(given["tensors"])
            if made.overload in STACKS:
                wide = [write("unsqueeze.default", part, axis) for part in tensors[begin:end]]
                part = wide[0] if len(wide) == 1 else write("cat.default", wide, axis)
            else:
                part = _of_parts(write, tensors, axis, begin, end)
            for overload, others in reversed(between):
                part = write(overload, part, *others)
            return part
        if made.overload == "slice.Tensor" and int(given["dim"]) % rank != axis:
            between.append((made.overload, [given[name] for name in ("dim", "start", "end", "step")]))
        elif made.overload in ("permute.default", "transpose.int"):
            dims = order_of(given, rank)
            between.append(("permute.default", [dims]))
            axis = dims[axis]
        else:
            return None
        x = given["self"]
    return None


def _of_parts(write: Writer, parts: list[Float], axis: int, begin: int, end: int) -> Float:
    """Elements from concatenated parts, reading only those that are needed."""
    pieces, first = [], 0
    for part in parts:
        shape = write.shape(part)
        size = shape[axis] if len(shape) > axis else 0  # torch allows concatenating an empty vector with anything
        low, high = max(begin - first, 0), min(end - first, size)
        if low < high:
            pieces.append(part if (low, high) == (0, size) else write("slice.Tensor", part, axis, low, high))
        first += size
    return pieces[0] if len(pieces) == 1 else write("cat.default", pieces, axis)


STACKS = ("stack.default",)
CONCATENATIONS = (CONCATENATION, "concat.default", "concatenate.default")


@operator("concat")
class Concat(Op):
    """Tensors concatenated along an axis; all share scale and zero point.

    tensors int8 [.., n_i, ..]  ->  y int8 [.., sum n_i, ..], qparams of the first.
    """

    axis: int = 0

    quantization = shares_qparams(of="tensors")

    def infer(self, *tensors: TensorType) -> TensorType:
        first = tensors[0]
        for other in tensors[1:]:
            rest = [n for i, n in enumerate(other.shape) if i != self.axis]
            if rest != [n for i, n in enumerate(first.shape) if i != self.axis]:
                raise InternalError(f"{list(first.shape)} and {list(other.shape)} cannot be joined along {self.axis}.")
        shape = list(first.shape)
        shape[self.axis] = sum(t.shape[self.axis] for t in tensors)
        return first.with_shape(shape)

    def permuted(self, permutation: Permutation, y: TensorType, *operands: TensorType) -> Permuted:
        return Concat(permutation[self.axis]), permutation

    def reference(self, y: TensorType, *tensors: Value) -> Array:
        return np.concatenate([v.data for v in tensors], axis=self.axis)

    @from_aten(*CONCATENATIONS, tensors="tensors", moves_only=True)
    @classmethod
    def build(cls, node: AtenNode) -> Tensor:
        tensors = node.tensors("tensors")
        return node.emit(cls(axis_of(node, "dim", len(node.shape))), *tensors)

    def to_aten(self, emit: Any, node: Node, *operands: object) -> Any:
        return emit.aten(CONCATENATION, list(operands), self.axis)

    def to_litert(self, emit: LiteRtEmitter) -> None:
        emit.add("CONCATENATION", options="ConcatenationOptions", fields={"axis": self.axis}, version=2)

    def to_tosa(self, emit: TosaEmitter) -> TosaTensor:
        return emit.concat(emit.operands, self.axis)


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


@decomposes("tril.default", "triu.default", early=True, facts=replace(MOVES, range=with_zeros))
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


@decomposes("diagonal.default", early=True, facts=MOVES)
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


@decomposes("rot90.default", early=True, facts=MOVES)
def _quarter_turns(write: Writer) -> Float:
    """rot90(x) -> flip and transpose"""
    x, (a, b) = write.given["self"], (int(d) for d in write.given["dims"])
    turns = int(write.given["k"]) % 4
    if turns == 0:
        return x
    if turns == 2:
        return write("flip.default", x, [a, b])
    return write("transpose.int", write("flip.default", x, [b if turns == 1 else a]), a, b)


@decomposes("diff.default", early=True, facts=Facts(degree=1.0))
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
