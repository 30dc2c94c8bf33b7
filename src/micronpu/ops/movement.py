"""Operators that only move values: reshape, transpose, pad, and the ATen operators that do nothing at all."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from micronpu.errors import InternalError, UnsupportedError
from micronpu.ir.types import TensorType
from micronpu.ops.aten import axis_of
from micronpu.ops.base import (
    AtenImport,
    Op,
    Permutation,
    Value,
    add_import,
    from_aten,
    operator,
    shares_qparams,
)

if TYPE_CHECKING:
    from micronpu.emit.litert import LiteRtEmitter
    from micronpu.ir.graph import Tensor
    from micronpu.ops.aten import AtenNode

TO_CHANNELS_LAST: Permutation = (0, 2, 3, 1)
TO_CHANNELS_FIRST: Permutation = (0, 3, 1, 2)


def inverse(permutation: Permutation) -> Permutation:
    """The permutation that undoes another."""
    return tuple(int(i) for i in np.argsort(permutation))


def compose(first: Permutation, second: Permutation) -> Permutation:
    """One permutation for ``transpose(transpose(x, first), second)``."""
    return tuple(first[i] for i in second)


@operator("reshape")
class Reshape(Op):
    """The same elements in the same order under another shape.

    x [any]  ->  y ``shape``, type of x.
    """

    shape: tuple[int, ...]

    quantization = shares_qparams()

    def infer(self, *operands: TensorType) -> TensorType:
        (x,) = operands
        if math.prod(self.shape) != x.size:
            raise InternalError(f"{list(x.shape)} cannot be reshaped to {list(self.shape)}.")
        return x.with_shape(self.shape)

    def reference(self, y: TensorType, *operands: Value) -> npt.NDArray[Any]:
        return operands[0].data.reshape(self.shape)

    @from_aten(
        *(
            f"{name}.default"
            for name in (
                "view",
                "view_copy",
                "reshape",
                "_unsafe_view",
                "squeeze",
                "squeeze_copy",
                "unsqueeze",
                "unsqueeze_copy",
            )
        ),
        "flatten.using_ints",
        "squeeze.dim",
        "squeeze.dims",
        "squeeze_copy.dim",
        "squeeze_copy.dims",
        moves_only=True,
    )
    @classmethod
    def build(cls, node: AtenNode) -> Tensor:
        return node.emit(cls(node.shape), node.tensor("x"))

    def to_litert(self, emit: LiteRtEmitter) -> None:
        shape = emit.int32(self.shape)
        emit.add("RESHAPE", options="ReshapeOptions", fields={"newShape": list(self.shape)}, inputs=[0, shape])


@operator("transpose")
class Transpose(Op):
    """Reorders axes: axis i of the result is axis ``permutation[i]`` of x.

    x [any]  ->  y [permuted], type of x.
    """

    permutation: Permutation

    quantization = shares_qparams()

    def infer(self, *operands: TensorType) -> TensorType:
        (x,) = operands
        if sorted(self.permutation) != list(range(x.rank)):
            raise InternalError(f"{self.permutation} does not permute the axes of {list(x.shape)}.")
        return x.with_shape(tuple(x.shape[i] for i in self.permutation))

    def reference(self, y: TensorType, *operands: Value) -> npt.NDArray[Any]:
        return np.ascontiguousarray(operands[0].data.transpose(self.permutation))

    @from_aten("permute.default", "permute_copy.default", moves_only=True)
    @classmethod
    def build(cls, node: AtenNode) -> Tensor:
        x = node.tensor("x")
        rank = len(x.shape)
        return node.emit(cls(tuple(int(d) % rank for d in node.value("dims"))), x)

    @from_aten("transpose.int", "transpose_copy.int", "t.default", "t_copy.default", moves_only=True)
    @classmethod
    def build_swap(cls, node: AtenNode) -> Tensor:
        x = node.tensor("x")
        order = list(range(len(x.shape)))
        if node.overload.startswith("transpose"):
            a, b = (axis_of(node, name, len(order)) for name in ("dim0", "dim1"))
            order[a], order[b] = b, a
        else:
            order.reverse()
        return node.emit(cls(tuple(order)), x)

    def to_litert(self, emit: LiteRtEmitter) -> None:
        emit.add("TRANSPOSE", options="TransposeOptions", inputs=[0, emit.int32(self.permutation)], version=2)


def transposed(node: AtenNode, x: Tensor, permutation: Permutation) -> Tensor:
    """x with its axes reordered; passes remove what is not needed."""
    return node.emit(Transpose(permutation), x)


def channels_last(node: AtenNode, x: Tensor) -> Tensor:
    """[N, C, H, W] to [N, H, W, C]."""
    return transposed(node, x, TO_CHANNELS_LAST)


def channels_first(node: AtenNode, x: Tensor) -> Tensor:
    """[N, H, W, C] to [N, C, H, W]."""
    return transposed(node, x, TO_CHANNELS_FIRST)


@operator("pad")
class Pad(Op):
    """Adds elements of one value before and after each axis.

    x [any]  ->  y [x.shape + before + after], type of x.  ``value`` is real; it is rounded to the grid of x and
    saturates, so that minus infinity is the lowest element.
    """

    before: tuple[int, ...]
    after: tuple[int, ...]
    value: float = 0.0

    quantization = shares_qparams()

    def infer(self, *operands: TensorType) -> TensorType:
        (x,) = operands
        if len(self.before) != x.rank or len(self.after) != x.rank:
            raise InternalError(f"{self} does not fit rank {x.rank}.")
        return x.with_shape(tuple(b + n + a for b, n, a in zip(self.before, x.shape, self.after, strict=True)))

    def permuted(self, permutation: Permutation, y: TensorType) -> tuple[Op, Permutation] | None:
        back = inverse(permutation)
        return (
            Pad(tuple(self.before[i] for i in back), tuple(self.after[i] for i in back), self.value),
            permutation,
        )

    def integer(self, x: TensorType) -> int:
        """The padding on the grid of x."""
        low, high = x.dtype.limits
        if math.isinf(self.value):
            return low if self.value < 0 else high
        return min(max(round(self.value / x.scale) + x.zero_point, low), high)

    def reference(self, y: TensorType, *operands: Value) -> npt.NDArray[Any]:
        (x,) = operands
        widths = list(zip(self.before, self.after, strict=True))
        return np.pad(x.data, widths, constant_values=self.integer(x.type))

    @from_aten("constant_pad_nd.default", "pad.default", moves_only=True)
    @classmethod
    def build(cls, node: AtenNode) -> Tensor:
        x = node.tensor("x")
        if node.overload == "pad.default" and node.value("mode") != "constant":
            raise UnsupportedError(f"`pad` with mode {node.value('mode')!r} is not imported.")
        amounts = [int(v) for v in node.value("pad")]
        if min(amounts, default=0) < 0:
            raise UnsupportedError(
                f"`pad` removes elements (pad = {amounts}).", hint="slice the tensor instead of padding it negatively"
            )
        rank = len(x.shape)
        before, after = [0] * rank, [0] * rank
        for position in range(len(amounts) // 2):
            before[rank - 1 - position], after[rank - 1 - position] = amounts[2 * position : 2 * position + 2]
        return node.emit(cls(tuple(before), tuple(after), float(node.value("value") or 0.0)), x)

    def to_litert(self, emit: LiteRtEmitter) -> None:
        x = emit.input_type(0)
        amounts = emit.int32(np.array([self.before, self.after]).T)
        if self.integer(x) == x.zero_point:
            emit.add("PAD", options="PadOptions", inputs=[0, amounts], version=2)
        else:
            value = emit.constant(self.integer(x), x.with_shape(()))
            emit.add("PADV2", options="PadV2Options", inputs=[0, amounts, value], version=2)


def _identity(node: AtenNode) -> Tensor:
    """Dropout in evaluation, copies and aliases: nothing is left of them."""
    if node.overload.startswith("dropout") and node.value("train"):
        raise UnsupportedError("`dropout` is in training mode.", hint="call model.eval() before exporting")
    return node.tensor("x")


for _overload in (
    "clone",
    "contiguous",
    "detach",
    "detach_copy",
    "alias",
    "alias_copy",
    "lift_fresh_copy",
    "_clone_dim_order",
):
    add_import(AtenImport(f"{_overload}.default", _identity, shares_qparams(), (("x", "self"),), moves_only=True))
for _overload in ("dropout", "dropout_"):
    add_import(
        AtenImport(
            f"{_overload}.default",
            _identity,
            shares_qparams(),
            (("x", "input" if _overload == "dropout" else "self"),),
            moves_only=True,
        )
    )
