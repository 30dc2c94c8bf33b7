"""Reductions over axes; distances, similarities and moments as sums, products and roots."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from micronpu.base.arrays import Array
from micronpu.base.errors import InternalError, UnsupportedError
from micronpu.ir.arithmetic import multiply_by_quantized_multiplier, quantize_multiplier, saturate
from micronpu.ir.aten import AtenNode
from micronpu.ir.facts import POSITIVE, SIGNS, Facts, Form, keeps
from micronpu.ir.graph import Node, Tensor
from micronpu.ir.lowering import Float, Results, Writer, decomposes, states
from micronpu.ir.op import Op, Permutation, Permuted, Value, own_qparams, shares_qparams
from micronpu.ir.registry import from_aten, imports, operator
from micronpu.ir.types import DType, TensorType
from micronpu.ops.bounds import sign_of_operand
from micronpu.ops.elementwise import power, scaled
from micronpu.ops.matmul import FullyConnected
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

    def permuted(self, permutation: Permutation, y: TensorType, *operands: TensorType) -> Permuted:
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
    imprecise = "LiteRT rounds sums twice, that of eight numbers to a quarter of an LSB first"
    litert = "MEAN"

    def macs(self, y: TensorType, x: TensorType) -> int:
        return x.size

    def reference(self, y: TensorType, x: Value) -> Array:
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
        if self.is_product(x, emit.MOST_INPUTS):
            sums = sum_of_last(emit, count)
        else:
            sums = emit.reduce("REDUCE_SUM", emit.centered(0), self.axes)
        return emit.reshape(emit.requantize_by([multiplier], [shift], sums, y.dtype.limits), y.shape)

    @from_aten("mean.dim", "mean.default", facts=Facts(form=Form.ROW_MEAN, range=keeps, degree=1.0, adds=True))
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

    def reference(self, y: TensorType, x: Value) -> Array:
        return np.asarray(self.extreme.reduce(x.data, axis=self.axes, keepdims=self.keep))

    def to_aten(self, emit: Any, node: Node, x: object) -> Any:
        return emit.aten(f"{self.name}.default", x, list(self.axes), self.keep)

    @classmethod
    def build(cls, node: AtenNode) -> Tensor:
        x = node.tensor("x")
        return node.emit(cls(reduced_axes(node, len(x.shape)), _keeps(node)), x)  # type: ignore[call-arg]


@operator("amax")
@from_aten("amax.default", facts=Facts(form=Form.ROW_MAXIMUM, range=keeps, degree=1.0))
class Amax(_Extreme):
    """Largest element along axes.

    x int8 [any]  ->  y int8 [without ``axes``, or with them as size 1 if ``keep``], qparams of x.
    """

    axes: tuple[int, ...]
    keep: bool = False

    litert, extreme = "REDUCE_MAX", np.maximum


@operator("amin")
@from_aten("amin.default", facts=Facts(range=keeps, degree=1.0))
class Amin(_Extreme):
    """Smallest element along axes.

    x int8 [any]  ->  y int8 [without ``axes``, or with them as size 1 if ``keep``], qparams of x.
    """

    axes: tuple[int, ...]
    keep: bool = False

    litert, extreme = "REDUCE_MIN", np.minimum


_SUM = Facts(form=Form.ROW_SUM, range=sign_of_operand, degree=1.0, adds=True)


@imports("sum.dim_IntList", "sum.default", quantization=own_qparams(), moves_only=False, facts=_SUM)
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


@imports("cumsum.default", quantization=own_qparams(), moves_only=False, facts=replace(_SUM, form=None))
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
        what = f"`cumsum` along {count} elements is not imported; at most {LONGEST_CUMSUM} are."
        raise UnsupportedError(what, hint="a sum of pieces, each with the total of those before it")
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


states("max.dim", facts=Facts(form=Form.MAXIMUM_AND_POSITION, range=keeps, degree=1.0))
states("min.dim", "max.default", "min.default", facts=Facts(range=keeps, degree=1.0))
states("topk.default", facts=Facts(range=keeps, degree=1.0, unknown={"form": "it has several elements of each row"}))


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


_FORMS = ("dim", "correction", "default")
_OF_SEVERAL = dict.fromkeys(("range", "degree"), "it differs by result")
states(*(f"std.{form}" for form in _FORMS), facts=Facts(range=POSITIVE, degree=1.0))
states(*(f"std_mean.{form}" for form in _FORMS), facts=Facts(degree=1.0, unknown=_OF_SEVERAL))
states(*(f"var.{form}" for form in _FORMS), facts=Facts(range=POSITIVE, degree=2.0))
states(*(f"var_mean.{form}" for form in _FORMS), facts=Facts(unknown=_OF_SEVERAL))


@decomposes(*(f"{name}.{form}" for name in ("var", "std") for form in _FORMS))
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


@decomposes(*VECTOR_NORMS, facts=Facts(range=POSITIVE, degree=1.0))
def _norm(write: Writer) -> Float:
    """norm of order 2 -> sqrt(sum(x * x)); of order 1 -> sum(|x|)"""
    x, order = write.given["self"], write.given["ord"]
    if order not in (1, 2):
        return None
    terms = write("abs.default", x) if order == 1 else write("mul.Tensor", x, x)
    total = write("sum.dim_IntList", terms, write.given["dim"], write.given["keepdim"])
    return total if order == 1 else power(write, total, 0.5)


def _root_of_sum(write: Writer, terms: Float, axes: list[int], keep: bool) -> Float:
    return power(write, write("sum.dim_IntList", terms, axes, keep), 0.5)


@decomposes("cosine_similarity.default", facts=Facts(range=SIGNS))
def _cosine(write: Writer) -> Float:
    """cosine_similarity(x, z) -> sum(x' * z'), with x' = x * rsqrt(sum(x * x)) and z' alike"""
    given = write.given
    axes = [int(given["dim"])]
    smallest = float(given["eps"]) ** 2

    def normal(x: Float) -> Float:
        total = write("sum.dim_IntList", write("mul.Tensor", x, x), axes, True)
        return write("mul.Tensor", x, write("rsqrt.default", write("clamp.default", total, max(smallest, 1e-12))))

    product = write("mul.Tensor", normal(given["x1"]), normal(given["x2"]))
    return write("sum.dim_IntList", product, axes, False)


@decomposes("hypot.default", "hypot_.default", facts=Facts(form=Form.MAGNITUDE, range=POSITIVE))
def _hypotenuse(write: Writer) -> Float:
    """hypot(x, z) -> sqrt(x * x + z * z)"""
    squares = (write("mul.Tensor", v, v) for v in (write.given["self"], write.given["other"]))
    return power(write, write("add.Tensor", *squares), 0.5)


@decomposes("cross.default", "linalg_cross.default")
def _cross_product(write: Writer) -> Float:
    """cross(x, z) -> x[1, 2, 0] * z[2, 0, 1] - x[2, 0, 1] * z[1, 2, 0]"""
    x, z, axis = write.given["self"], write.given["other"], write.given["dim"]
    shape = write.shape()
    if axis is None:  # the first axis with three elements
        axis = next((i for i, n in enumerate(shape) if n == 3), None)
    if axis is None or len(write.shape(x)) != len(write.shape(z)):
        return None

    def turned(v: Float, by: int) -> Float:
        return write("roll.default", v, [by], [int(axis)])

    positive = write("mul.Tensor", turned(x, 2), turned(z, 1))
    return write("sub.Tensor", positive, write("mul.Tensor", turned(x, 1), turned(z, 2)))


@decomposes("pairwise_distance.default", facts=Facts(range=POSITIVE))
def _distance(write: Writer) -> Float:
    """pairwise_distance(x, z) -> norm(x - z + eps) along the last axis, of order 1 or 2"""
    given = write.given
    order = float(given["p"])
    if order not in (1.0, 2.0):
        return None
    apart = write("add.Tensor", write("sub.Tensor", given["x1"], given["x2"]), write.constant(float(given["eps"])))
    if order == 1.0:
        return write("sum.dim_IntList", write("abs.default", apart), [-1], bool(given["keepdim"]))
    return _root_of_sum(write, write("mul.Tensor", apart, apart), [-1], bool(given["keepdim"]))


@decomposes("cdist.default", "_cdist_forward.default", "_euclidean_dist.default", facts=Facts(range=POSITIVE))
def _distances(write: Writer) -> Float:
    """cdist(x [.., P, M], z [.., R, M]) -> norm of x[.., P, 1, M] - z[.., 1, R, M], of order 1 or 2"""
    given = write.given
    order = float(given.get("p", 2.0))
    if order not in (1.0, 2.0):
        return None
    apart = write(
        "sub.Tensor", write("unsqueeze.default", given["x1"], -2), write("unsqueeze.default", given["x2"], -3)
    )
    if order == 1.0:
        return write("sum.dim_IntList", write("abs.default", apart), [-1], False)
    return _root_of_sum(write, write("mul.Tensor", apart, apart), [-1], False)


@decomposes("logsumexp.default")
def _log_of_sum(write: Writer) -> Float:
    """logsumexp(x) -> m + log(sum(exp(x - m))), m = max(x)"""
    given = write.given
    x, axes, keep = given["self"], [int(d) for d in given["dim"]], bool(given["keepdim"])
    if not axes:
        return None
    largest = write("amax.default", x, axes, True)
    total = write("sum.dim_IntList", write("exp.default", write("sub.Tensor", x, largest)), axes, True)
    y = write("add.Tensor", largest, write("log.default", total))
    return y if keep else write("reshape.default", y, list(write.shape()))


_VARIANCES = {"var": "var.dim", "std": "std.dim"}


@decomposes(*(f"{name}.{form}" for name in ("var_mean", "std_mean") for form in _FORMS))
def _moments(write: Writer) -> Float:
    """var_mean(x) -> var(x), mean(x)"""
    given = write.given
    x, read = given["self"], write.read()
    if read is None:
        return None
    axes = [int(d) for d in given.get("dim") or range(len(write.shape(x)))]
    keep = bool(given.get("keepdim"))
    correction = given.get("correction", 1 if given.get("unbiased", True) else 0)
    if correction not in (None, 0, 1):
        return None
    values: dict[int, Float] = {}
    if 0 in read:
        values[0] = write(_VARIANCES[write.overload[:3]], x, axes, correction != 0, keep)
    if 1 in read:
        values[1] = write("mean.dim", x, axes, keep)
    return Results(values)


@decomposes("addcmul.default", "addcdiv.default")
def _sum_with_product(write: Writer) -> Float:
    """addcmul(x, a, b) -> x + value * (a * b); addcdiv divides"""
    given = write.given
    overload = "mul.Tensor" if "mul" in write.overload else "div.Tensor"
    product = write(overload, given["tensor1"], given["tensor2"])
    return write("add.Tensor", given["self"], scaled(write, product, float(given["value"])))


@decomposes("lerp.Scalar", "lerp.Tensor", facts=Facts(affine_in=("self", "end")))
def _between(write: Writer) -> Float:
    """lerp(x, z, w) -> x + w * (z - x)"""
    given = write.given
    weight = given["weight"]
    apart = write("sub.Tensor", given["end"], given["self"])
    part = (
        scaled(write, apart, float(weight)) if isinstance(weight, (int, float)) else write("mul.Tensor", apart, weight)
    )
    return write("add.Tensor", given["self"], part)


@decomposes("outer.default", "ger.default", early=True)
def _outer(write: Writer) -> Float:
    """outer(x, z) -> x [N, 1] * z [1, M]"""
    given = write.given
    second: object = given["vec2"]
    return write("mul.Tensor", write("unsqueeze.default", given["self"], 1), write("unsqueeze.default", second, 0))


@decomposes("prod.dim_int", "prod.default", facts=Facts(unknown={"degree": "it is the length of a row"}))
def _product_along(write: Writer) -> Float:
    """prod(x) -> products of halves, with powers of two as sizes as far as possible"""
    given = write.given
    x = given["self"]
    if "dim" in given:
        axis, keep = int(given["dim"]) % len(write.shape(x)), bool(given["keepdim"])
    else:
        x, axis, keep = write("reshape.default", x, [-1]), 0, False
    while (size := write.shape(x)[axis]) > 1:
        half = size // 2
        parts = [write("slice.Tensor", x, axis, i * half, (i + 1) * half) for i in (0, 1)]
        product = write("mul.Tensor", *parts)
        if size % 2:
            product = write("cat.default", [product, write("slice.Tensor", x, axis, size - 1, size)], axis)
        x = product
    return x if keep else write("reshape.default", x, list(write.shape()))


@decomposes("clamp.Tensor", "clamp_.Tensor")
def _between_tensors(write: Writer) -> Float:
    """clamp(x, low, high) -> minimum(maximum(x, low), high), of tensors"""
    given = write.given
    x = given["self"]
    for name, overload in (("min", "maximum.default"), ("max", "minimum.default")):
        if given[name] is not None:
            x = write(overload, x, given[name])
    return x


@decomposes("bilinear.default")
def _bilinear(write: Writer) -> Float:
    """bilinear(x, z) -> sum(linear(x, w) * z) + b

    x [N, I] -> linear(w [O * J, I]) -> [N, O, J] -> * z [N, 1, J] -> sum over J -> + b -> y [N, O]
    """
    given = write.given
    weight = write.stored(given["weight"])
    if weight is None or write.is_trained(given["weight"]) or len(write.shape(given["input1"])) != 2:
        return None
    outputs, inner, other = weight.shape
    flat = np.ascontiguousarray(weight.transpose(0, 2, 1).reshape(outputs * other, inner))
    rows = write.shape(given["input1"])[0]
    mixed = write("linear.default", given["input1"], write.constant(flat))
    product = write(
        "mul.Tensor",
        write("reshape.default", mixed, [rows, outputs, other]),
        write("unsqueeze.default", given["input2"], 1),
    )
    y = write("sum.dim_IntList", product, [-1], False)
    return y if given["bias"] is None else write("add.Tensor", y, given["bias"])
