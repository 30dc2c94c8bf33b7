"""Matrix products: of two activations, and with constant weights."""

from __future__ import annotations

import math
import string
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from micronpu.base.arrays import Array
from micronpu.base.errors import InternalError, UnsupportedError
from micronpu.ir.arithmetic import (
    multiply_by_quantized_multiplier,
    multiply_wide,
    quantize_multiplier,
    round_scaled,
    saturate,
)
from micronpu.ir.aten import AtenNode
from micronpu.ir.graph import Tensor
from micronpu.ir.lowering import Float, FloatCall, Writer, decomposes
from micronpu.ir.op import Op, QuantizationRule, Rescaling, Steps, Value, weighted
from micronpu.ir.registry import from_aten, operator
from micronpu.ir.types import DType, QParams, TensorType
from micronpu.ir.window import Activation
from micronpu.ops.bounds import PRODUCT
from micronpu.ops.constants import fused_activation, quantized_weights
from micronpu.ops.elementwise import is_row, scaled
from micronpu.ops.movement import TRANSPOSES, inverse, order_of, reshaped, transposed
from micronpu.ops.slicing import diagonal_of

if TYPE_CHECKING:
    from micronpu.emit.litert import LiteRtEmitter
    from micronpu.emit.tosa import TosaEmitter, TosaTensor


@operator("batch_matmul")
class BatchMatmul(Op):
    """Batched matrix product.

    x int8 [B, M, K], z int8 [B, K, N]  ->  y int8 [B, M, N], own qparams.
    """

    quantization = QuantizationRule(("x", "z"), symmetric=True)

    def infer(self, x: TensorType, z: TensorType) -> TensorType:
        if x.rank != 3 or z.rank != 3 or x.shape[0] != z.shape[0] or x.shape[2] != z.shape[1]:
            raise InternalError(f"Matrices {list(x.shape)} and {list(z.shape)} cannot be multiplied.")
        return TensorType((x.shape[0], x.shape[1], z.shape[2]), x.dtype)

    def macs(self, y: TensorType, x: TensorType, z: TensorType) -> int:
        return y.size * x.shape[2]

    def reference(self, y: TensorType, x: Value, z: Value) -> Array:
        multiplier = quantize_multiplier(x.scale * z.scale / y.scale)
        multiply = multiply_wide if x.type.dtype is DType.INT16 else multiply_by_quantized_multiplier
        scaled = multiply(x.centered @ z.centered, *multiplier) + y.zero_point
        return saturate(scaled, *y.dtype.limits, y.dtype.value)

    @from_aten("bmm.default", z="mat2", facts=PRODUCT)
    @from_aten("matmul.default", z="other", facts=PRODUCT)
    @from_aten("mv.default", z="vec", facts=PRODUCT)
    @from_aten("dot.default", z="tensor", facts=PRODUCT)
    @classmethod
    def build(cls, node: AtenNode) -> Tensor:
        x, z = node.tensor("x"), node.tensor("z")
        rows = x.shape if len(x.shape) > 1 else (1, *x.shape)
        columns = z.shape if len(z.shape) > 1 else (*z.shape, 1)
        return reshaped(node, _product(node, cls(), reshaped(node, x, rows), reshaped(node, z, columns)), node.shape)

    def to_litert(self, emit: LiteRtEmitter) -> None:
        emit.add("BATCH_MATMUL", options="BatchMatMulOptions", version=2)

    def to_tosa(self, emit: TosaEmitter) -> TosaTensor:
        x, z, y = emit.input_type(0), emit.input_type(1), emit.output_type
        return emit.requantize(emit.matmul(), [x.scale * z.scale / y.scale], y.dtype.limits)


def _product(node: AtenNode, op: BatchMatmul, x: Tensor, z: Tensor) -> Tensor:
    """x [..., M, K] times z [..., K, N] as one product of rank 3, which a reshape converts to the result."""
    # If z is a single matrix, the batches become rows: [5, M, K] x [K, N] is [1, 5 * M, K] x [1, K, N].
    (m, k), n = x.shape[-2:], z.shape[-1]
    left, right = math.prod(x.shape[:-2]), math.prod(z.shape[:-2])
    if right == 1:
        return node.emit(op, reshaped(node, x, (1, left * m, k)), reshaped(node, z, (1, k, n)), qparams=node.output)
    if left == 1:
        # The product of the transposes in reverse order: z' [B * N, K] x x' [K, M].
        columns = reshaped(node, _swapped(node, reshaped(node, z, (right, k, n))), (1, right * n, k))
        rows = _swapped(node, reshaped(node, x, (1, m, k)))
        y = node.emit(op, columns, rows, qparams=node.output)
        return _swapped(node, reshaped(node, y, (right, n, m)))
    lefts, rights = _padded(x.shape[:-2], z), _padded(z.shape[:-2], x)
    if lefts != rights:
        return _of_other_batches(node, op, x, z, lefts, rights)
    return node.emit(op, reshaped(node, x, (left, m, k)), reshaped(node, z, (right, k, n)), qparams=node.output)


def _of_other_batches(
    node: AtenNode, op: BatchMatmul, x: Tensor, z: Tensor, lefts: tuple[int, ...], rights: tuple[int, ...]
) -> Tensor:
    """The product for broadcast batches: batches of x alone become its rows, batches of z alone its columns."""
    # [4, 9, M, K] x [1, 9, K, N] is [9, 4 * M, K] x [9, K, N], with the result's axes in the original order.
    (m, k), n, rank = x.shape[-2:], z.shape[-1], len(lefts)
    common = [i for i in range(rank) if lefts[i] == rights[i]]
    rows, columns = ([i for i in range(rank) if i not in common and b[i] != 1] for b in (lefts, rights))
    count = math.prod(lefts[i] for i in common)
    across, along = [lefts[i] for i in rows], [rights[i] for i in columns]
    order = (*common, *rows, rank, *columns, rank + 1)
    x = transposed(node, reshaped(node, x, (*lefts, m, k)), (*common, *rows, *columns, rank, rank + 1))
    z = transposed(node, reshaped(node, z, (*rights, k, n)), order)
    x = reshaped(node, x, (count, math.prod(across) * m, k))
    z = reshaped(node, z, (count, k, math.prod(along) * n))
    y = node.emit(op, x, z, qparams=node.output)
    y = reshaped(node, y, (*(lefts[i] for i in common), *across, m, *along, n))
    return transposed(node, y, inverse(order))


def _padded(batch: tuple[int, ...], other: Tensor) -> tuple[int, ...]:
    return (1,) * (len(other.shape) - 2 - len(batch)) + batch


def _swapped(node: AtenNode, x: Tensor) -> Tensor:
    """[B, M, N] to [B, N, M]."""
    return transposed(node, x, (0, 2, 1))


# ---------------------------------------------------------------- decompositions


@decomposes("addmv.default", "addmv_.default")
def _added_to_vector(write: Writer) -> Float:
    """addmv(b, w, x) -> beta b + alpha (w @ x)"""
    given = write.given
    product = scaled(write, write("mv.default", given["mat"], given["vec"]), float(given["alpha"]))
    return write("add.Tensor", product, scaled(write, given["self"], float(given["beta"])))


@decomposes("matmul.default")
def _queries_side_by_side(write: Writer) -> Float:
    """matmul(q, repeat(k)) -> matmul(q', k), where q' has the rows of all heads that share a matrix of k

    q [.., G * R, M, K], k [.., G, K, N], every matrix R times -> [.., G, R * M, K] x [.., G, K, N]
    """
    x, z = write.given["self"], write.given["other"]
    if len(write.shape(x)) < 3 or len(write.shape(z)) != len(write.shape(x)):
        return None
    swaps, source = 0, z
    while (made := write.call(source)) is not None and _swaps_last(write, made, source):
        swaps, source = swaps + 1, made.given["self"]
    once = _without_repeats(write, source)
    if once is None:
        return None
    shape, groups = write.shape(x), write.shape(once)
    if shape[:-3] != groups[:-3] or shape[-3] != write.shape(z)[-3]:
        return None
    if swaps % 2:
        once = write("transpose.int", once, -1, -2)
    rows = shape[-3] // groups[-3] * shape[-2]
    q = write("reshape.default", x, [*shape[:-3], groups[-3], rows, shape[-1]])
    return write("reshape.default", write("matmul.default", q, once), list(write.shape()))


def _swaps_last(write: Writer, made: FloatCall, x: Float) -> bool:
    """True if an operator only swaps the last two axes."""
    rank = len(write.shape(x))
    is_swap = made.overload in ("transpose.int", "permute.default")
    return is_swap and order_of(made.given, rank) == [*range(rank - 2), rank - 1, rank - 2]


def _without_repeats(write: Writer, x: Float) -> Float | None:
    """The tensor that is repeated along the third axis from the end, in either of two forms; else None.

    repeat_interleave(k, r, -3)        reshape(expand(unsqueeze(k, -3)))
    """
    made, shape = write.call(x), write.shape(x)
    if made is not None and made.overload == "repeat_interleave.self_int":
        axis = made.given["dim"]
        return made.given["self"] if axis is not None and int(axis) % len(shape) == len(shape) - 3 else None
    if made is None or made.overload not in ("reshape.default", "view.default", "_unsafe_view.default"):
        return None
    wide = made.given["self"]
    inner = write.call(wide)
    while inner is not None and inner.overload in ("clone.default", "contiguous.default"):
        wide = inner.given["self"]
        inner = write.call(wide)
    if inner is None or inner.overload != "expand.default":
        return None
    narrow, five = inner.given["self"], write.shape(wide)
    four = write.shape(narrow)
    if len(five) != len(shape) + 1 or len(four) != len(five) or four[-3] != 1 or five[-2:] != shape[-2:]:
        return None
    if (*four[:-3], five[-3], *four[-2:]) != five or (*five[:-4], five[-4] * five[-3], *five[-2:]) != shape:
        return None
    return write("squeeze.dim", narrow, -3)


@decomposes("matmul.default", "mm.default", "linear.default", "addmm.default", "baddbmm.default", "baddbmm_.default")
def _matrix_product(write: Writer) -> Float:
    """x @ w -> `linear` if the weights are constant, otherwise `matmul` and an addition

    x @ w -> linear(x, w')                          w [K, N] constant, w' [N, K]
    linear(x, z, b) -> matmul(x, z') + b            z computed
    addmm(b, x, z) -> beta b + alpha (x @ z)
    """
    given = write.given
    name = write.overload.split(".")[0].rstrip("_")
    if name == "linear":
        return _computed_weights(write)
    x = given.get("batch1", given.get("mat1", given["self"]))
    z: object = given.get("batch2", given.get("mat2", given.get("other")))
    alpha, beta = float(given.get("alpha", 1)), float(given.get("beta", 1))
    weight, bias = write.known(z), None
    if "mm" in name and name != "mm":
        bias = given["self"]
    vector = write.known(bias) if bias is not None else None
    if weight is not None and weight.ndim == 2 and write.known(x) is None and (bias is None or is_row(vector)):
        if bias is not None and vector is not None and (beta != 1 or write.shape(bias) != weight.shape[1:]):
            row = (beta * vector).astype(np.float32).reshape(-1)
            bias = write.constant(np.broadcast_to(row, (weight.shape[1],)).copy())
        return write("linear.default", x, _turned(write, z, alpha, weight), bias)
    if name == "matmul":
        return None
    product = scaled(write, write("matmul.default", x, z), alpha)
    return product if bias is None else write("add.Tensor", product, scaled(write, bias, beta))


def _turned(write: Writer, weight: Float, factor: float, value: Array) -> Float:
    """Transpose a constant matrix; a parameter remains a parameter, so that it can be trained."""
    source = write.call(weight)
    if factor == 1 and source is not None and source.overload in TRANSPOSES:
        return source.given["self"]
    if factor == 1 and write.is_parameter(weight):
        return write("t.default", weight)
    return write.constant(np.ascontiguousarray((factor * value).astype(np.float32).T))


def _computed_weights(write: Writer) -> Float:
    """`linear` with weights that the program computes."""
    given = write.given
    if write.is_constant(given["weight"]):
        return None
    product = write("matmul.default", given["input"], write("transpose.int", given["weight"], -1, -2))
    return product if given["bias"] is None else write("add.Tensor", product, given["bias"])


@decomposes("einsum.default")
def _einsum(write: Writer) -> Float:
    """A sum of products of two operands as a matrix product; more operands pairwise, from the left.

    einsum("bhid,bhjd->bhij", x, z) -> matmul(x, z')        [batch, M, K] x [batch, K, N], between reshapes

    Axes of one operand that the result lacks are summed first, and repeated letters select the diagonal.
    """
    operands = list(write.given["tensors"])
    labels, result = _explicit(str(write.given["equation"]), [len(write.shape(x)) for x in operands])
    if len(set(result)) != len(result):
        return None
    if len(operands) > 2:
        needed = {*result, *"".join(labels[2:])}
        kept = "".join(dict.fromkeys(c for c in labels[0] + labels[1] if c in needed))
        product = write("einsum.default", f"{labels[0]},{labels[1]}->{kept}", operands[:2])
        return write("einsum.default", f"{','.join([kept, *labels[2:]])}->{result}", [product, *operands[2:]])
    for i, term in enumerate(labels):
        own = _with_diagonals(write, operands[i], term)
        if own is None:
            return None
        elsewhere = result + "".join(labels[:i] + labels[i + 1 :])
        operands[i], labels[i] = _without_sums(write, *own, elsewhere)
    if len(operands) == 1:
        return _permuted(write, operands[0], [labels[0].index(label) for label in result])
    return _as_matrices(write, operands, labels, result)


def _permuted(write: Writer, x: Float, order: list[int]) -> Float:
    return x if order == list(range(len(order))) else write("permute.default", x, order)


def _with_diagonals(write: Writer, x: Float, term: str) -> tuple[Float, str] | None:
    """An operand without repeated letters, and its letters; None if axes with equal letters differ in size."""
    for label in dict.fromkeys(term):
        while term.count(label) > 1:
            a, b = term.index(label), term.rindex(label)
            if len({write.shape(x)[axis] for axis in (a, b)}) > 1:
                return None
            x = diagonal_of(write, x, a, b)  # it becomes the last axis
            term = term[:a] + term[a + 1 : b] + term[b + 1 :] + label
    return x, term


def _without_sums(write: Writer, x: Float, term: str, elsewhere: str) -> tuple[Float, str]:
    """An operand summed over axes that occur nowhere else, and the remaining letters."""
    alone = [axis for axis, label in enumerate(term) if label not in elsewhere]
    if not alone:
        return x, term
    return write("sum.dim_IntList", x, alone), "".join(label for label in term if label in elsewhere)


def _as_matrices(write: Writer, operands: Sequence[Float], labels: Sequence[str], result: str) -> Float:
    """A product of two operands, all of whose axes are in the other one or in the result."""
    first, second = labels
    pairs = [(c, n) for t, x in zip(labels, operands, strict=True) for c, n in zip(t, write.shape(x), strict=True)]
    sizes = dict(pairs)
    if any(sizes[label] != n for label, n in pairs):
        return None  # an axis of size 1 against a longer one
    batch = [c for c in first if c in second and c in result]
    inner = [c for c in first if c in second and c not in result]
    rows, columns = ([c for c in term if c not in other] for term, other in ((first, second), (second, first)))

    def matrix(x: Float, term: str, *groups: list[str]) -> Float:
        x = _permuted(write, x, [term.index(c) for group in groups for c in group])
        return write("reshape.default", x, [math.prod(sizes[c] for c in group) for group in groups])

    x, z = matrix(operands[0], first, batch, rows, inner), matrix(operands[1], second, batch, inner, columns)
    found = [*batch, *rows, *columns]
    y = write("reshape.default", write("matmul.default", x, z), [sizes[c] for c in found])
    return _permuted(write, y, [found.index(c) for c in result])


def _explicit(equation: str, ranks: Sequence[int]) -> tuple[list[str], str]:
    """Letters of the axes of each operand and of the result, with letters for ellipses, as in torch."""
    given, arrow, result = equation.replace(" ", "").partition("->")
    terms = given.split(",")
    lengths = [rank - len(term) + 3 if "." in term else 0 for term, rank in zip(terms, ranks, strict=True)]
    spare = [c for c in string.ascii_letters if c not in equation]
    others = "".join(spare[: max(lengths)])
    letters = given.replace(".", "").replace(",", "")
    if not arrow:
        result = "..." + "".join(sorted(c for c in letters if letters.count(c) == 1))
    terms = [term.replace("...", others[len(others) - length :]) for term, length in zip(terms, lengths, strict=True)]
    return terms, result.replace("...", others)


@decomposes("inner.default")
def _inner(write: Writer) -> Float:
    """inner(x, z) -> tensordot over the last axes"""
    return write("tensordot.default", write.given["self"], write.given["other"], [-1], [-1])


@decomposes("tensordot.default")
def _tensordot(write: Writer) -> Float:
    """tensordot(x, z, dims) -> einsum, with a letter for each axis"""
    x, z = write.given["self"], write.given["other"]
    ranks = [len(write.shape(v)) for v in (x, z)]
    if sum(ranks) > len(string.ascii_lowercase):
        return None
    first, second = string.ascii_lowercase[: ranks[0]], list(string.ascii_lowercase[ranks[0] : sum(ranks)])
    pairs = zip(write.given["dims_self"], write.given["dims_other"], strict=True)
    joined = {int(b) % ranks[1]: first[int(a) % ranks[0]] for a, b in pairs}
    own = [c for c in first if c not in joined.values()]
    own += [c for i, c in enumerate(second) if i not in joined]
    labels = "".join(joined.get(i, c) for i, c in enumerate(second))
    return write("einsum.default", f"{first},{labels}->{''.join(own)}", [x, z])


LINEAR = ("linear.default",)


@operator("fully_connected")
class FullyConnected(Rescaling):
    """Product with a constant matrix, plus bias.

    x [..., I] int8, weight [O, I] int8 symmetric (one scale, or one per O), bias [O] int32 at scale
    ``s_x * s_weight``  ->  y [..., O] int8.
    """

    activation: Activation = Activation.NONE

    quantization = weighted()
    tosa_steps = Steps(int8=1, int16=1)

    def infer(self, x: TensorType, weight: TensorType, bias: TensorType) -> TensorType:
        return TensorType((*x.shape[:-1], weight.shape[0]), self.dtype or x.dtype)

    def macs(self, y: TensorType, x: TensorType, weight: TensorType, bias: TensorType) -> int:
        return y.size * weight.shape[1]

    def reference(self, y: TensorType, x: Value, weight: Value, bias: Value) -> Array:
        accumulators = x.centered @ weight.data.T.astype(np.int64) + bias.data
        assert weight.type.qparams is not None
        # Unlike its convolution, LiteRT's reference kernel uses a float64 factor here, with a single rounding.
        scaled = round_scaled(accumulators, x.scale * np.array(weight.type.qparams.scale) / y.scale)
        return saturate(scaled + y.zero_point, *self.activation.limits(y), y.dtype.value)

    @from_aten(*LINEAR, x="input", fuses=True, facts=PRODUCT)
    @from_aten(
        "addmm.default", x="mat1", weight="mat2", bias="self", quantization=weighted(axis=1), fuses=True, facts=PRODUCT
    )
    @from_aten("mm.default", x="self", weight="mat2", quantization=weighted(axis=1), fuses=True, facts=PRODUCT)
    @classmethod
    def build(cls, node: AtenNode) -> Tensor:
        output_axis = 0 if node.overload.startswith("linear") else 1
        if output_axis and any(node.value(name) != 1 for name in ("alpha", "beta") if node.overload == "addmm.default"):
            raise UnsupportedError("addmm with alpha or beta other than 1 is not imported.")
        x = node.tensor("x")
        weight, qparams, bias = quantized_weights(node, x.type, output_axis)
        if output_axis:
            weight = weight.T
        if qparams.axis is not None:
            qparams = QParams.per_channel(qparams.scale, 0)
        constant = node.constant(weight, TensorType(weight.shape, DType.INT8, qparams))
        return node.emit(cls(fused_activation(node)), x, constant, bias, qparams=node.output)

    def to_litert(self, emit: LiteRtEmitter) -> None:
        fields = {
            "keepNumDims": emit.input_type(0).rank != 2,
            "fusedActivationFunction": emit.activation(self.activation),
        }
        emit.add("FULLY_CONNECTED", options="FullyConnectedOptions", fields=fields, version=12)

    def to_tosa(self, emit: TosaEmitter) -> TosaTensor:
        """A convolution of one element per row.

        Differs by at most 1 LSB, if the float64 result is closer to a tie than a relative 2**-30.
        """
        x, weight, y = emit.input_type(0), emit.input_type(1), emit.output_type
        assert weight.qparams is not None
        outputs, inputs = weight.shape
        rows = emit.reshape(emit.input(0), (1, 1, x.size // inputs, inputs))
        kernel = emit.reshape(emit.input(1), (outputs, 1, 1, inputs))
        shape = (1, 1, x.size // inputs, outputs)
        sums = emit.convolution("CONV2D", rows, kernel, shape, (0, 0, 0, 0), (1, 1), (1, 1))
        factors = [x.scale * scale / y.scale for scale in weight.qparams.scale]
        return emit.reshape(emit.requantize_once(sums, factors, self.activation.limits(y)), y.shape)
