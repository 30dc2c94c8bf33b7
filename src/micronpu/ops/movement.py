"""Operators that only move values: reshape, transpose, pad, and ATen operators without effect."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from micronpu.base.arrays import Array
from micronpu.base.errors import InternalError, UnsupportedError
from micronpu.ir.aten import AtenNode, axis_of
from micronpu.ir.facts import Facts, Given
from micronpu.ir.graph import Tensor
from micronpu.ir.lowering import Float, Results, Writer, decomposes
from micronpu.ir.op import NewValues, Op, Permutation, Permuted, Value, shares_qparams
from micronpu.ir.registry import MOVES, from_aten, imports, operator
from micronpu.ir.types import TensorType
from micronpu.ops.bounds import with_zeros

if TYPE_CHECKING:
    from micronpu.emit.litert import LiteRtEmitter
    from micronpu.emit.tosa import TosaEmitter, TosaTensor

VIEW, VIEW_COPY, RESHAPE = "view.default", "view_copy.default", "reshape.default"
"""Overloads that take a shape: a view, a copy, and a copy where strides allow no view."""
VIEWS = (
    *(f"{name}.default" for name in ("view", "view_copy", "reshape", "_reshape_copy", "_unsafe_view", "ravel")),
    "flatten.using_ints",
    "unflatten.int",
)
"""Overloads that only change the shape."""
SQUEEZES = tuple(f"squeeze{copy}.{form}" for copy in ("", "_", "_copy") for form in ("default", "dim", "dims"))
RESHAPES = (*VIEWS, *SQUEEZES, *(f"unsqueeze{copy}.default" for copy in ("", "_", "_copy")))
"""Overloads that change the shape and keep the order of the elements."""
TO_CHANNELS_LAST: Permutation = (0, 2, 3, 1)
TO_CHANNELS_FIRST: Permutation = (0, 3, 1, 2)


def inverse(permutation: Permutation) -> Permutation:
    """The inverse of a permutation."""
    return tuple(int(i) for i in np.argsort(permutation))


def compose(first: Permutation, second: Permutation) -> Permutation:
    """One permutation for ``transpose(transpose(x, first), second)``."""
    return tuple(first[i] for i in second)


@operator("reshape")
class Reshape(Op):
    """The same elements in the same order with another shape.

    x [any]  ->  y ``shape``, type of x.
    """

    shape: tuple[int, ...]

    quantization = shares_qparams()

    def infer(self, x: TensorType) -> TensorType:
        if math.prod(self.shape) != x.size:
            raise InternalError(f"{list(x.shape)} cannot be reshaped to {list(self.shape)}.")
        return x.with_shape(self.shape)

    def reference(self, y: TensorType, x: Value) -> Array:
        return x.data.reshape(self.shape)

    @from_aten(*RESHAPES, moves_only=True)
    @classmethod
    def build(cls, node: AtenNode) -> Tensor:
        return node.emit(cls(node.shape), node.tensor("x"))

    def to_litert(self, emit: LiteRtEmitter) -> None:
        shape = emit.int32(self.shape)
        emit.add("RESHAPE", options="ReshapeOptions", fields={"newShape": list(self.shape)}, inputs=[0, shape])

    def to_tosa(self, emit: TosaEmitter) -> TosaTensor:
        return emit.reshape(emit.input(0), self.shape)


_REVERSALS = ("t", "t_", "t_copy", "numpy_T")


def _order(node: AtenNode, rank: int) -> Permutation:
    """The axes of the operand of an operator that permutes them, in the order of the result."""
    name, order = node.overload.split(".")[0], list(range(rank))
    if name.startswith("permute"):
        return tuple(int(d) % rank for d in node.value("dims"))
    if name in _REVERSALS:
        return tuple(reversed(order))
    if name.startswith("move"):
        given = (node.value("source"), node.value("destination"))
        source, destination = ([int(d) % rank for d in (v if isinstance(v, list) else [v])] for v in given)
        placed = dict(zip(destination, source, strict=True))
        rest = iter(i for i in order if i not in source)
        return tuple(placed[i] if i in placed else next(rest) for i in order)
    a, b = rank - 2, rank - 1
    if name.startswith(("transpose", "swap")):
        names = ("axis0", "axis1") if name.startswith("swapaxes") else ("dim0", "dim1")
        a, b = (axis_of(node, name, rank) for name in names)
    order[a], order[b] = order[b], order[a]
    return tuple(order)


@operator("transpose")
class Transpose(Op):
    """Reorders axes: axis i of the result is axis ``permutation[i]`` of x.

    x [any]  ->  y [permuted], type of x.
    """

    permutation: Permutation

    quantization = shares_qparams()

    def infer(self, x: TensorType) -> TensorType:
        if sorted(self.permutation) != list(range(x.rank)):
            raise InternalError(f"{self.permutation} does not permute the axes of {list(x.shape)}.")
        return x.with_shape(tuple(x.shape[i] for i in self.permutation))

    def reference(self, y: TensorType, x: Value) -> Array:
        return x.data.transpose(self.permutation).copy()

    @from_aten(
        *("permute.default", "permute_copy.default", "transpose.int", "transpose_copy.int", "transpose_.default"),
        *(f"{name}{place}.default" for name in ("swapaxes", "swapdims") for place in ("", "_")),
        *(f"{name}.default" for name in (*_REVERSALS, "mT", "adjoint", "mH", "matrix_H")),
        *(f"{name}.{form}" for name in ("movedim", "moveaxis") for form in ("int", "intlist")),
        moves_only=True,
    )
    @classmethod
    def build(cls, node: AtenNode) -> Tensor:
        x = node.tensor("x")
        return node.emit(cls(_order(node, len(x.shape))), x)

    def to_litert(self, emit: LiteRtEmitter) -> None:
        emit.add("TRANSPOSE", options="TransposeOptions", inputs=[0, emit.int32(self.permutation)], version=2)

    def to_tosa(self, emit: TosaEmitter) -> TosaTensor:
        return emit.transpose(emit.input(0), self.permutation)


def transposed(node: AtenNode, x: Tensor, permutation: Permutation) -> Tensor:
    """x with its axes reordered; passes remove redundant transposes."""
    return node.emit(Transpose(permutation), x)


def reshaped(node: AtenNode, x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """x with another shape; x itself if it has that shape."""
    return x if x.shape == shape else node.emit(Reshape(shape), x)


def channels_last(node: AtenNode, x: Tensor) -> Tensor:
    """[N, C, H, W] to [N, H, W, C]."""
    return transposed(node, x, TO_CHANNELS_LAST)


def channels_first(node: AtenNode, x: Tensor) -> Tensor:
    """[N, H, W, C] to [N, C, H, W]."""
    return transposed(node, x, TO_CHANNELS_FIRST)


def to_image(node: AtenNode, x: Tensor, spatial: int) -> Tensor:
    """The operand of a window over 1 or 2 axes as [N, H, W, C]: [N, C, L] has height 1, and a missing N counts as 1."""
    if len(x.shape) not in (spatial + 1, spatial + 2):
        raise UnsupportedError(
            f"`{node.overload}` of a tensor of rank {len(x.shape)} is not imported; it works on rank {spatial + 1} and "
            f"{spatial + 2}."
        )
    if len(x.shape) == spatial + 1:
        x = reshaped(node, x, (1, *x.shape))
    if spatial == 1:
        x = reshaped(node, x, (*x.shape[:2], 1, x.shape[2]))
    return channels_last(node, x)


def from_image(node: AtenNode, y: Tensor) -> Tensor:
    """A result [N, H, W, C] in the program's axis order and rank; undoes `to_image`."""
    return reshaped(node, channels_first(node, y), node.shape)


@dataclass(frozen=True)
class Padding(Op):
    """Base of operators that add elements before and after each axis."""

    before: tuple[int, ...]
    after: tuple[int, ...]

    quantization = shares_qparams()

    @property
    def sides(self) -> Array:
        """Elements before and after each axis, [rank, 2]."""
        return np.array([self.before, self.after]).T

    def infer(self, x: TensorType) -> TensorType:
        if len(self.before) != x.rank or len(self.after) != x.rank:
            raise InternalError(f"{self} does not fit rank {x.rank}.")
        return x.with_shape(tuple(b + n + a for b, n, a in zip(self.before, x.shape, self.after, strict=True)))

    def permuted(self, permutation: Permutation, y: TensorType, *operands: TensorType) -> Permuted:
        before, after = (tuple(sides[i] for i in inverse(permutation)) for sides in (self.before, self.after))
        return replace(self, before=before, after=after), permutation


@operator("pad")
class Pad(Padding):
    """Adds elements of one value before and after each axis.

    x [any]  ->  y [x.shape + before + after], type of x. ``value`` is real; it is quantized with the qparams of x and
    saturates, so that minus infinity is the lowest element.
    """

    value: float = 0.0

    def __post_init__(self) -> None:
        # The value may not be whole, while some operands represent whole numbers only.
        rule = shares_qparams(new_values=NewValues.NONE if self.value.is_integer() else NewValues.ANY)
        object.__setattr__(self, "quantization", replace(rule, padding=self.value))

    def integer(self, x: TensorType) -> int:
        """The padding value in the qparams of x."""
        low, high = x.dtype.limits
        if math.isinf(self.value):
            return low if self.value < 0 else high
        return min(max(round(self.value / x.scale) + x.zero_point, low), high)

    def reference(self, y: TensorType, x: Value) -> Array:
        return np.pad(x.data, self.sides, constant_values=self.integer(x.type))

    def to_litert(self, emit: LiteRtEmitter) -> None:
        x = emit.input_type(0)
        amounts = emit.int32(self.sides)
        if self.integer(x) == x.zero_point:
            emit.add("PAD", options="PadOptions", inputs=[0, amounts], version=2)
        else:
            value = emit.constant(self.integer(x), x.with_shape(()))
            emit.add("PADV2", options="PadV2Options", inputs=[0, amounts, value], version=2)

    def to_tosa(self, emit: TosaEmitter) -> TosaTensor:
        return emit.pad(emit.input(0), self.before, self.after, self.integer(emit.input_type(0)))


_IDENTITIES = (
    *(f"{name}.default" for name in ("clone", "contiguous", "alias", "alias_copy", "lift_fresh_copy", "lift_fresh")),
    *(f"detach{copy}.default" for copy in ("", "_", "_copy")),
    *("_clone_dim_order.default", "_to_dim_order_copy.default"),
    *("nan_to_num.default", "nan_to_num_.default"),
    *("to.device", "resolve_conj.default", "resolve_neg.default", "positive.default"),
    *(f"{name}.default" for name in ("dropout_", "alpha_dropout_", "feature_dropout_", "feature_alpha_dropout_")),
)
CASTS = ("to.dtype", "_to_copy.default", "to.dtype_layout")
_CAST = Facts(range=with_zeros, unknown=dict.fromkeys(("degree", "elementwise", "whole"), "it depends on the types"))
DROPOUTS = tuple(f"{name}dropout.default" for name in ("", "alpha_", "feature_", "feature_alpha_"))


@imports(*_IDENTITIES, quantization=shares_qparams())
@imports(*CASTS, quantization=shares_qparams(), facts=_CAST)
@imports(*DROPOUTS, x="input", quantization=shares_qparams(), facts=replace(MOVES, by_channel=True))
def _identity(node: AtenNode) -> Tensor:
    """Dropout in evaluation mode, copies, aliases, conversions to float, replacement of NaNs: return the operand."""
    if "dropout" in node.overload and node.value("train"):
        raise UnsupportedError("`dropout` is in training mode.", hint="call model.eval() before exporting")
    dtype = node.value("dtype")
    if dtype is not None and str(dtype) != "torch.float32":
        raise UnsupportedError(f"`{node.overload}` converts to {dtype}.", hint="keep activations in float32")
    return node.tensor("x")


# ---------------------------------------------------------------- decompositions

_PERMUTATIONS = (("t", "default"), ("transpose", "int"), ("permute", "default"))
TRANSPOSES = tuple(f"{name}{copy}.{form}" for name, form in _PERMUTATIONS for copy in ("", "_copy"))
"""Overloads that permute axes."""


def order_of(given: Given, rank: int) -> list[int]:
    """Return the axes of the operand of one of `TRANSPOSES` in the order of the result."""
    if "dims" in given:
        return [int(d) % rank for d in given["dims"]]
    order = list(range(rank))
    one, other = (int(given.get(name, place)) for place, name in enumerate(("dim0", "dim1")))
    if rank > 1:
        order[one], order[other] = order[other], order[one]
    return order


@decomposes("expand_as.default", "view_as.default", "reshape_as.default", early=True, facts=MOVES)
@decomposes("type_as.default", early=True)
def _drop_pattern(write: Writer) -> Float:
    """An operand used for its shape or type only is replaced by it.

    x, pattern -> expand_as -> y        x -> expand(shape) -> y
    x, pattern -> type_as -> y          y = x, where both are float32
    """
    x = write.given["self"]
    if write.overload == "type_as.default":
        return x if write.dtype(x) is write.dtype() else None
    overload = "expand.default" if write.overload.startswith("expand") else "reshape.default"
    return write(overload, x, list(write.shape()))


def under_shape(write: Writer, x: Float, shape: Sequence[int]) -> Float:
    """A value of the float program with another shape; itself if it has that shape; constants remain constants."""
    if write.shape(x) == tuple(shape):
        return x
    value = write.stored(x)
    if value is None or write.is_trained(x):
        return write("reshape.default", x, list(shape))
    return write.constant(value.reshape(shape))


COPIES = tuple(f"{n}.default" for n in ("lift_fresh_copy", "clone", "contiguous", "detach", "detach_", "alias"))


def behind_copies(write: Writer, x: Float) -> Float:
    """The value before copies, which `torch.tensor([..])` in a model creates."""
    while (copied := write.call(x)) is not None and copied.overload in COPIES:
        x = copied.given["self"]
    return x


@decomposes("_assert_tensor_metadata.default", early=True)
def _drop_check(write: Writer) -> Float:
    """Checks of shape and type, which hold for an exported program, and would make the core read a float value."""
    return Results({})
