"""Reductions over axes."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from micronpu.base.errors import InternalError, UnsupportedError
from micronpu.ir.arithmetic import multiply_by_quantized_multiplier, quantize_multiplier, saturate
from micronpu.ir.aten import AtenNode
from micronpu.ir.graph import Node, Tensor
from micronpu.ir.lowering import Float, Results, Writer, decomposes
from micronpu.ir.op import Op, Permutation, Value, own_qparams, shares_qparams
from micronpu.ir.registry import from_aten, imports, operator
from micronpu.ir.types import DType, TensorType
from micronpu.ops.elementwise import power, scaled
from micronpu.ops.linear import FullyConnected
from micronpu.ops.movement import Reshape, inverse, transposed
from micronpu.ops.pooling import AVERAGE, averaged, is_finer, weighted_sum, weights
from micronpu.ops.tosa_windows import sum_of_last

if TYPE_CHECKING:
    from micronpu.emit.litert import LiteRtEmitter
    from micronpu.emit.tosa import TosaEmitter, TosaTensor


class Reduction(Op):
    """Base of operators that reduce all elements along some axes to one.

    x [any]  ->  y [without ``axes``, or with them as size 1 if ``keep``].
    """

    axes: tuple[int, ...]
    keep: bool

    litert: ClassVar[str]

    def reduced(self, x: TensorType) -> TensorType:
        """Type of x without the reduced axes."""
        if not set(self.axes) <= set(range(x.rank)):
            raise InternalError(f"{list(x.shape)} has no axes {self.axes}.")
        if self.keep:
            return x.with_shape(tuple(1 if i in self.axes else n for i, n in enumerate(x.shape)))
        return x.with_shape(tuple(n for i, n in enumerate(x.shape) if i not in self.axes))

    def infer(self, x: TensorType) -> TensorType:
        return self.reduced(x)

    def permuted(self, permutation: Permutation, y: TensorType) -> tuple[Op, Permutation] | None:
        moved: Any = self
        axes = tuple(sorted(permutation[i] for i in self.axes))
        if self.keep:
            return replace(moved, axes=axes), permutation
        kept = [permutation[i] for i in range(len(permutation)) if i not in self.axes]
        order = sorted(kept)
        return replace(moved, axes=axes), tuple(order.index(i) for i in kept)

    def to_litert(self, emit: LiteRtEmitter) -> None:
        axes = emit.int32(self.axes)
        emit.add(self.litert, options="ReducerOptions", fields={"keepDims": self.keep}, inputs=[0, axes], version=2)

    def to_tosa(self, emit: TosaEmitter) -> TosaTensor:
        made = emit.reduce(self.litert, emit.input(0), self.axes)
        return emit.reshape(made, emit.output_type.shape)


def reduced_axes(node: AtenNode, rank: int) -> tuple[int, ...]:
    """The axes of an ATen reduction; none means all."""
    given = [] if node.overload.endswith(".default") and not node.overload.startswith("am") else node.value("dim")
    dims = [given] if isinstance(given, int) else given or range(rank)
    return tuple(sorted({int(d) % rank for d in dims})) if rank else ()


def _keeps(node: AtenNode) -> bool:
    return node.overload not in ("mean.default", "sum.default") and bool(node.value("keepdim"))


@operator("mean")
class Mean(Reduction):
    """Mean over axes.

    x int8 [any]  ->  y int8 [without ``axes``, or with them as size 1 if ``keep``], qparams of x.
    """

    axes: tuple[int, ...]
    keep: bool = False

    quantization = AVERAGE
    litert = "MEAN"

    def macs(self, y: TensorType, x: TensorType) -> int:
        return x.size

    def reference(self, y: TensorType, x: Value) -> npt.NDArray[Any]:
        total = x.centered.sum(axis=self.axes, keepdims=self.keep)
        scaled = multiply_by_quantized_multiplier(total, *self._multiplier(x.type, y))
        return saturate(scaled + y.zero_point, *y.dtype.limits, y.dtype.value)

    def _multiplier(self, x: TensorType, y: TensorType) -> tuple[int, int]:
        """Multiplier and shift from the sum to the mean in the qparams of y."""
        count = math.prod(x.shape[i] for i in self.axes)
        multiplier, shift = quantize_multiplier(x.scale / y.scale)
        # The multiplier includes the division, with as many extra bits as the count has.
        extra = min(count.bit_length() - 1, 32, 31 + shift)
        return (multiplier << extra) // count, shift - extra

    def is_product(self, x: TensorType, most: int) -> bool:
        """True if the sum is of at most ``most`` adjacent int8 numbers, which is a product with ones."""
        last = self.axes == tuple(range(x.rank - len(self.axes), x.rank))
        return last and x.dtype is DType.INT8 and math.prod(x.shape[i] for i in self.axes) <= most

    def to_tosa(self, emit: TosaEmitter) -> TosaTensor:
        """A convolution with ones over the last axes, otherwise a sum."""
        x, y = emit.input_type(0), emit.output_type
        count = math.prod(x.shape[i] for i in self.axes)
        multiplier, shift = self._multiplier(x, y)
        if self.is_product(x, emit.prefers.most_inputs):
            sums = sum_of_last(emit, count)
        else:
            sums = emit.reduce("REDUCE_SUM", emit.centered(0), self.axes)
        return emit.reshape(emit.requantize_by([multiplier], [shift], sums, y.dtype.limits), y.shape)

    @from_aten("mean.dim", "mean.default")
    @classmethod
    def build(cls, node: AtenNode) -> Tensor:
        x = node.tensor("x")
        axes = reduced_axes(node, len(x.shape))
        if is_finer(node, x):
            return node.emit(Reshape(node.shape), averaged(node, x, axes))
        return node.emit(cls(axes, _keeps(node)), x)


class _Extreme(Reduction):
    """Base of the largest and the smallest element along axes."""

    quantization = shares_qparams()
    extreme: ClassVar[np.ufunc]

    def reference(self, y: TensorType, x: Value) -> npt.NDArray[Any]:
        return np.asarray(self.extreme.reduce(x.data, axis=self.axes, keepdims=self.keep))

    def to_aten(self, emit: Any, node: Node, x: Any) -> Any:
        return emit.aten(f"{self.name}.default", x, list(self.axes), self.keep)

    @classmethod
    def build(cls, node: AtenNode) -> Tensor:
        x = node.tensor("x")
        return node.emit(cls(reduced_axes(node, len(x.shape)), _keeps(node)), x)  # type: ignore[call-arg]


@operator("amax")
@from_aten("amax.default")
class Amax(_Extreme):
    """Largest element along axes.

    x int8 [any]  ->  y int8 [without ``axes``, or with them as size 1 if ``keep``], qparams of x.
    """

    axes: tuple[int, ...]
    keep: bool = False

    litert, extreme = "REDUCE_MAX", np.maximum


@operator("amin")
@from_aten("amin.default")
class Amin(_Extreme):
    """Smallest element along axes.

    x int8 [any]  ->  y int8 [without ``axes``, or with them as size 1 if ``keep``], qparams of x.
    """

    axes: tuple[int, ...]
    keep: bool = False

    litert, extreme = "REDUCE_MIN", np.minimum


@imports("sum.dim_IntList", "sum.default", quantization=own_qparams(), moves_only=False)
def _sum(node: AtenNode) -> Tensor:
    """Sum over axes, as a product with ones.

    LiteRT's SUM is unsuitable: its reference kernel reads int8 as uint8 (ai-edge-litert 2.3), and Neutron requires
    equal scales of operand and result, which a sum of many elements exceeds. The product has the same accumulator and
    one rounding.
    """
    x = node.tensor("x")
    axes = reduced_axes(node, len(x.shape))
    if math.prod(x.shape[i] for i in axes) == 1:
        return node.emit(Reshape(node.shape), x)
    return node.emit(Reshape(node.shape), weighted_sum(node, x, axes, 1.0))


LONGEST_CUMSUM = 512
"""Longest axis of a running sum; the weights of its product have the square of this size."""


@imports("cumsum.default", quantization=own_qparams(), moves_only=False)
def build_cumsum(node: AtenNode) -> Tensor:
    """Cumulative sum along an axis, as a product with a triangle of ones.

    x [a, b, c] -> cumsum(1) -> y        x -> transpose(0, 2, 1) -> fully_connected(ones below the diagonal [b, b])
                                           -> transpose -> y
    """
    x = node.tensor("x")
    rank = len(x.shape)
    axis = int(node.value("dim")) % rank if rank else 0
    count = x.shape[axis] if rank else 1
    if count > LONGEST_CUMSUM:
        raise UnsupportedError(
            f"`cumsum` along {count} elements is not imported; at most {LONGEST_CUMSUM} are.",
            hint="a sum of pieces, each with the total of those before it",
        )
    order = (*(i for i in range(rank) if i != axis), axis)
    moved = x if axis == rank - 1 or rank == 0 else transposed(node, x, order)
    rows = node.emit(Reshape((x.type.size // count, count)), moved)
    ones, bias = weights(node, x, np.tril(np.ones((count, count))), count)
    y = node.emit(Reshape(moved.shape), node.emit(FullyConnected(), rows, ones, bias, qparams=node.output))
    return y if moved is x else transposed(node, y, inverse(order))


# ---------------------------------------------------------------- decompositions


@decomposes("cumprod.default")
def _running_product(write: Writer) -> Float:
    """cumprod(x) -> x times x shifted by 1, the result times itself shifted by 2, by 4 and so on"""
    x, axis = write.given["self"], int(write.given["dim"])
    count = write.shape(x)[axis] if write.shape(x) else 1
    step = 1
    while step < count:
        moved = write("slice.Tensor", x, axis, 0, count - step)
        products = write("mul.Tensor", write("slice.Tensor", x, axis, step, count), moved)
        x = write("cat.default", [write("slice.Tensor", x, axis, 0, step), products], axis)
        step *= 2
    return x if step > 1 else None


@decomposes("max.default", "min.default", "max.dim", "min.dim")
def _extremum(write: Writer) -> Float:
    """max(x), max(x, dim)[0] -> amax; max(x, dim)[1] -> argmax, which also returns the first of equal ones"""
    value, position = ("amax", "argmax") if write.overload.startswith("max") else ("amin", "argmin")
    x = write.given["self"]
    if write.overload.endswith(".default"):
        return write("amax.default" if value == "amax" else "amin.default", x, [])
    return _value_and_position(write, x, (value, position), write.given["dim"], write.given["keepdim"])


@decomposes("topk.default")
def _largest(write: Writer) -> Float:
    """topk(x, 1) -> amax and argmax; kept for more than one"""
    x, given = write.given["self"], write.given
    if given["k"] != 1 or not write.shape(x):
        return None
    return _value_and_position(write, x, ("amax", "argmax") if given["largest"] else ("amin", "argmin"), given["dim"])


def _value_and_position(
    write: Writer, x: Float, names: tuple[str, str], axis: int, keepdim: bool = True
) -> Results | None:
    """The used results of an extremum along an axis: its value and its index."""
    read = write.read()
    if read is None or not read <= {0, 1}:
        return None
    value, position = (f"{name}.default" for name in names)
    made: dict[int, Float] = {}
    if 0 in read:
        made[0] = write(value, x, [axis], keepdim)
    if 1 in read:
        made[1] = write(position, x, axis, keepdim)
    return Results(made)


@decomposes("var.dim", "var.correction", "var.default", "std.dim", "std.correction", "std.default")
def _variance(write: Writer) -> Float:
    """var(x) -> sum((x - mean(x))^2) / (n - 1); std is its root"""
    given = write.given
    x = given["self"]
    shape = write.shape(x)
    axes = given.get("dim") or list(range(len(shape)))
    count = math.prod(shape[a] for a in axes)
    correction = given.get("correction", 1.0 if given.get("unbiased", True) else 0.0)
    correction = 1.0 if correction is None else float(correction)
    if count <= correction:
        return None
    centered = write("sub.Tensor", x, write("mean.dim", x, axes, True))
    square = write("mul.Tensor", centered, centered)
    # A sum has its own qparams, while a mean has those of the squares, whose largest value is irrelevant.
    total = write("sum.dim_IntList", square, axes, bool(given.get("keepdim")))
    variance = scaled(write, total, 1.0 / (count - correction))
    return power(write, variance, 0.5) if write.overload.startswith("std") else variance


VECTOR_NORMS = ("linalg_vector_norm.default",)


@decomposes(*VECTOR_NORMS)
def _norm(write: Writer) -> Float:
    """norm of order 2 -> sqrt(sum(x * x)); of order 1 -> sum(|x|)"""
    x, order = write.given["self"], write.given["ord"]
    if order not in (1, 2):
        return None
    terms = write("abs.default", x) if order == 1 else write("mul.Tensor", x, x)
    total = write("sum.dim_IntList", terms, write.given["dim"], write.given["keepdim"])
    return total if order == 1 else power(write, total, 0.5)
