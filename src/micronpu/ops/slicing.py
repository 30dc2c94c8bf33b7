"""Parts of a tensor: slices and single indices."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from micronpu.base.errors import InternalError, UnsupportedError
from micronpu.ir.aten import AtenNode, axis_of
from micronpu.ir.graph import Node, Tensor
from micronpu.ir.lowering import Float, Results, Writer, decomposes
from micronpu.ir.op import Op, Permutation, Value, shares_qparams
from micronpu.ir.registry import from_aten, operator
from micronpu.ir.types import TensorType
from micronpu.ops.concat import CONCATENATIONS
from micronpu.ops.movement import inverse, order_of, reshaped

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

    def permuted(self, permutation: Permutation, y: TensorType) -> tuple[Op, Permutation] | None:
        back = inverse(permutation)
        return Slice(tuple(self.begin[i] for i in back), tuple(self.size[i] for i in back)), permutation

    def reference(self, y: TensorType, x: Value) -> npt.NDArray[Any]:
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

    def to_aten(self, emit: Any, node: Node, x: Any) -> Any:
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


# ---------------------------------------------------------------- decompositions

SPLITS = (
    *(f"{name}.Tensor" for name in ("split", "split_copy", "unsafe_split")),
    "split.sizes",
    *(f"{name}.default" for name in ("split_with_sizes", "split_with_sizes_copy", "unsafe_split_with_sizes")),
    *(f"{name}.default" for name in ("chunk", "unsafe_chunk")),
    *(f"tensor_split.{form}" for form in ("sections", "indices")),
)
"""Overloads whose results are the parts of a tensor along an axis."""


@decomposes(*SPLITS, "unbind.int", "unbind_copy.int", early=True)
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
    made = write.call(x)
    if made is None:
        return None
    given, rank = made.given, len(write.shape(x))
    if made.overload in CONCATENATIONS and int(given["dim"]) % rank == axis:
        return _of_parts(write, list(given["tensors"]), axis, begin, end)
    if made.overload == "stack.default" and int(given["dim"]) % rank == axis:
        wide = [write("unsqueeze.default", part, axis) for part in given["tensors"][begin:end]]
        return wide[0] if len(wide) == 1 else write("cat.default", wide, axis)
    if made.overload == "slice.Tensor" and int(given["dim"]) % rank != axis:
        part = _part(write, given["self"], axis, begin, end)
        others = [given[name] for name in ("dim", "start", "end", "step")]
        return None if part is None else write("slice.Tensor", part, *others)
    if made.overload not in ("permute.default", "transpose.int"):
        return None
    dims = order_of(given, rank)
    part = _part(write, given["self"], dims[axis], begin, end)
    return None if part is None else write("permute.default", part, dims)


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
