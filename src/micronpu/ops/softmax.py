"""Softmax in fixed point, and attention as products and a softmax.

The decomposition of attention is exact up to float rounding: the replacement of minus infinity is so far below every
score (see `MASKED`) that its weight is zero. `torch.nn.MultiheadAttention` needs no separate decomposition: its
exported form has the projections and either the operator decomposed here or the products themselves. The int8 results
are tested in `tests/compile/ops/test_attention.py`.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from micronpu.base.arrays import Array
from micronpu.base.errors import UnsupportedError
from micronpu.ir.arithmetic import (
    doubling_high_multiply,
    exp_on_negative_values,
    multiply_by_quantized_multiplier,
    quantize_multiplier,
    reciprocal,
    rounding_right_shift,
    saturate,
    wide_lookup,
    wide_lookup_table,
)
from micronpu.ir.aten import AtenNode, axis_of
from micronpu.ir.facts import TRUTHS, Facts
from micronpu.ir.graph import Tensor
from micronpu.ir.lowering import Float, Writer, decomposes
from micronpu.ir.op import Op, Permutation, Permuted, Steps, Value, fixed_qparams
from micronpu.ir.registry import from_aten, operator
from micronpu.ir.types import DType, QParams, TensorType
from micronpu.ops.convolution import Conv2d
from micronpu.ops.elementwise import Add, Maximum, Mul, Sub, scaled
from micronpu.ops.movement import inverse, reshaped, transposed
from micronpu.ops.quantization import Requantize
from micronpu.ops.reduction import Amax
from micronpu.ops.slicing import sliced
from micronpu.ops.tables.table import look_up
from micronpu.ops.truths import number_of, opposite_of

if TYPE_CHECKING:
    from micronpu.emit.litert import LiteRtEmitter
    from micronpu.emit.tosa import TosaEmitter, TosaTensor


_DIFFERENCE_BITS = 5  # integer bits of x - max(x)
_SUM_BITS = 12  # integer bits of the sum of exponentials

SOFTMAX = ("softmax.int", "_softmax.default")
"""Overloads of softmax."""
FINE = 1 / 512
"""Scale below which the result of an int8 softmax is computed in int16: a scale of 1/256 is too large then."""
LONG = 128
"""Minimum row length at which an int8 softmax may have such a scale."""

_EXP_RANGE = 10.0  # exp(-10) is below the LSB of an int16 result


def _wide_multiplier(scale: float) -> tuple[int, int]:
    """Multiplier from the scale of x to the scale in which -65535 is ``-_EXP_RANGE``."""
    return quantize_multiplier(scale / (_EXP_RANGE / 65535.0))


@functools.cache
def _wide_tables() -> tuple[Array, Array]:
    """exp(x) for x in [-10, 0], and 1 / (1 + x) for x in [0, 1], as in LiteRT's tables."""
    exponentials = wide_lookup_table(np.exp, _EXP_RANGE / 65535.0, 32767, 2.0 / 65535.0, 0, np.float64)
    reciprocals = wide_lookup_table(lambda v: 1.0 / (1.0 + v), 1.0 / 65535.0, -32768, 2.0 / 65535.0, 0, np.float64)
    return exponentials, reciprocals


def _wide_softmax(x: Value) -> Array:
    """Softmax of int16 numbers: exponential and reciprocal by tables, sums in Q16.15.

    Source: LiteRT ``reference/softmax.h`` (Apache-2.0), described here by its results.
    """
    exponentials, reciprocals = _wide_tables()
    data = x.data.astype(np.int64)
    difference = data - data.max(axis=-1, keepdims=True)
    position = multiply_by_quantized_multiplier(difference, *_wide_multiplier(x.scale)) + 32767
    exponential = wide_lookup(exponentials, position.clip(-32768, 32767))
    total = exponential.sum(axis=-1, keepdims=True)
    bits = np.array([int(v).bit_length() for v in np.ravel(total)], np.int64).reshape(total.shape)
    # The sum normalized to [1, 2), as 1 + a 16-bit number.
    normalized = ((total << (31 - bits)) + (1 << 13)) >> 14
    reciprocal_sum = wide_lookup(reciprocals, (normalized - (1 << 15) - (1 << 16)).clip(-32768, 32767))
    right = bits - 1
    result = (exponential * reciprocal_sum + (np.int64(1) << (right - 1))) >> right
    return np.asarray(result.clip(0, 32767).astype(np.int16))


def softmax_multiplier(scale: float) -> tuple[int, int, int]:
    """Multiplier and shift from int8 differences to fixed point; smallest difference with a nonzero exponential."""
    real = min(scale * (1 << (31 - _DIFFERENCE_BITS)), (1 << 31) - 1.0)
    multiplier, shift = quantize_multiplier(real)
    lowest = -math.floor(((1 << _DIFFERENCE_BITS) - 1) * (1 << (31 - _DIFFERENCE_BITS)) / (1 << shift))
    return multiplier, shift, lowest


def _exponentials(scale: float, difference: Array) -> tuple[Array, Array, Array]:
    """Exponentials in Q0 of differences to the largest element, their rounded summands, and a mask of nonzero ones."""
    multiplier, shift, lowest = softmax_multiplier(scale)
    counts = difference >= lowest  # smaller differences give zero
    scaled = multiply_by_quantized_multiplier(np.where(counts, difference, 0), multiplier, shift)
    exponential = exp_on_negative_values(scaled, _DIFFERENCE_BITS)
    return exponential, np.where(counts, rounding_right_shift(exponential, _SUM_BITS), 0), counts


@operator("softmax")
class Softmax(Op):
    """exp(x) / sum(exp(x)) along the last axis.

    x int8 [..., C]  ->  y int8 [..., C], scale 1/256, zero point -128, as LiteRT demands; int16 has scale 2**-15.
    """

    quantization = fixed_qparams(1 / 256, -128, int16_scale=2.0**-15)
    tosa_steps = Steps(int8=1)

    def infer(self, x: TensorType) -> TensorType:
        return x.with_qparams(self.quantization.fixed_for(x.dtype))

    def permuted(self, permutation: Permutation, y: TensorType, *operands: TensorType) -> Permuted:
        """Only the other axes may move: the last axis has to stay the last."""
        return (self, permutation) if permutation[-1] == len(permutation) - 1 else None

    def macs(self, y: TensorType, *operands: TensorType) -> int:
        return y.size

    def reference(self, y: TensorType, x: Value) -> Array:
        if x.type.dtype is DType.INT16:
            return _wide_softmax(x)
        data = x.data.astype(np.int64)
        exponential, addends, counts = _exponentials(x.scale, data - data.max(axis=-1, keepdims=True))
        inverse_sum, excess = reciprocal(addends.sum(axis=-1, keepdims=True), _SUM_BITS)
        result = rounding_right_shift(doubling_high_multiply(exponential, inverse_sum), excess + 31 - 8)
        return saturate(np.where(counts, result - 128, -128), *y.dtype.limits, y.dtype.value)

    @from_aten(*SOFTMAX, facts=Facts(range=TRUTHS))
    @classmethod
    def build(cls, node: AtenNode) -> Tensor:
        """Compute in int16 if the scale is smaller than int8's own:

        x -> requantize(int16) -> softmax -> requantize(int8) -> y
        """
        x = node.tensor("x")
        rank = len(x.shape)
        if rank == 0:
            raise UnsupportedError("`softmax` of a tensor without axes is not imported.")
        axis, y = axis_of(node, "dim", rank), node.output
        fine = x.type.dtype is DType.INT8 and y.is_per_tensor and y.scale[0] < FINE
        if fine:
            x = node.emit(Requantize(DType.INT16), x, qparams=QParams.per_tensor(x.type.scale, 0))
        order = (*(i for i in range(rank) if i != axis), axis)
        rows = x if axis == rank - 1 else transposed(node, x, order)
        kind = rows.type
        in_parts = kind.dtype is DType.INT16 and kind.channels > 1 and (kind.channels > _SHORT or kind.size > _SMALL)
        made = of_wide_rows(node, rows) if in_parts else node.emit(cls(), rows)
        made = made if axis == rank - 1 else transposed(node, made, inverse(order))
        return node.emit(Requantize(DType.INT8), made, qparams=y) if fine else made

    def to_litert(self, emit: LiteRtEmitter) -> None:
        emit.add("SOFTMAX", options="SoftmaxOptions", fields={"beta": 1.0}, version=2)

    def to_tosa(self, emit: TosaEmitter) -> TosaTensor:
        """Differs by at most 1 LSB: the exponentials have 20 bits, of which `reference` uses 31 in the quotient.

        Exact for int16.
        """
        x = emit.input_type(0)
        if x.dtype is DType.INT16:
            return _wide_tosa_form(emit, _wide_multiplier(x.scale), *_wide_tables())
        _, addends, _ = _exponentials(x.scale, np.arange(-255, 1))
        return _tosa_form(emit, addends)


_FURTHEST = 12.0
"""Distance from the largest element at which an exponential is negligible at a scale of 2**-15."""
_FEW = 8
"""Number of exponentials whose sum has a sufficiently small scale relative to 1."""
_ROOM = 1.25
"""Largest reciprocal in the qparams of reciprocals of sums, which are at least 1: interpolation up to it does not
saturate."""
_MANY, _BRICK = 64, 16
"""Rows from which on the largest elements are found by halves; channels that are adjacent in an NPU's memory."""
_SHORT, _SMALL = 32, 1024
"""Elements of a row, and of all rows, up to which LiteRT's operator takes fewer cycles and is sufficiently accurate."""


def of_wide_rows(node: AtenNode, x: Tensor) -> Tensor:
    """Softmax of int16 numbers along the last axis, composed of operators.

    x -> z = x - amax(x) -> e = table(exp) -> conv2d(ones) -> table(reciprocal) -> r,  y = e * r

    LiteRT's own softmax uses exp(-10) for all larger distances, an error of 1.5 LSB for each, and interpolates the
    exponential in intervals of 0.02. Sums of many elements have two scales: sums that are small relative to their
    maximum are as precise as others.
    """
    count = x.shape[-1]
    largest = _largest(node, x)
    qparams = QParams.per_tensor(min(2 * x.type.scale, _FURTHEST / 2**15), 0)
    apart = node.emit(Sub(), x, largest, qparams=qparams)
    e = look_up(node, apart, np.exp, QParams.per_tensor(1 / DType.INT16.limits[1], 0))
    # Sum rows in their original shape: for a matrix the NPU would copy all of them.
    ones = node.constant(
        np.ones((1, 1, 1, count)), TensorType((1, 1, 1, count), DType.INT8, QParams.per_tensor(1.0, 0))
    )
    zero = node.constant(np.zeros(1), TensorType((1,), DType.INT64, QParams.per_tensor(e.type.scale, 0)))
    *outer, width, count = (1, 1, *x.shape)
    rows = reshaped(node, e, (1, math.prod(outer), width, count))
    unit = QParams.per_tensor(_ROOM / DType.INT16.limits[1], 0)

    def total(most: float) -> Tensor:
        return node.emit(Conv2d(), rows, ones, zero, qparams=QParams.per_tensor(most / DType.INT16.limits[1], 0))

    if count <= _FEW:
        r = look_up(node, total(count), np.reciprocal, unit)
    else:
        bend = math.sqrt(count)
        small, large = total(bend), total(count)
        scalar = large.type.with_shape((1, 1, 1, 1))
        least = node.constant(np.full((1, 1, 1, 1), round(bend / large.type.scale)), scalar)
        beyond = node.emit(Maximum(), large, least, qparams=large.type.qparams)
        offset = node.constant(np.full((1, 1, 1, 1), round(1 / bend / unit.scale[0])), scalar.with_qparams(unit))
        rest = node.emit(Sub(), look_up(node, beyond, np.reciprocal, unit), offset, qparams=unit)
        r = node.emit(Add(), look_up(node, small, np.reciprocal, unit), rest, qparams=unit)
    back = reshaped(node, r, (*x.shape[:-1], 1))
    return node.emit(Mul(), e, back, qparams=Softmax.quantization.fixed_for(DType.INT16))


def _largest(node: AtenNode, x: Tensor) -> Tensor:
    """The largest element of each row; for many rows, first the larger elements of both halves, repeatedly.

    [.., 256] -> [.., 128] -> .. -> [.., 16] -> amax
    """
    axis, outer = len(x.shape) - 1, x.type.size // x.shape[-1]
    while outer >= _MANY and x.shape[axis] % (2 * _BRICK) == 0:
        half = x.shape[axis] // 2
        x = node.emit(Maximum(), *(sliced(node, x, axis, at, at + half) for at in (0, half)), qparams=x.type.qparams)
    return node.emit(Amax((axis,), True), x)


@decomposes("log_softmax.int", "_log_softmax.default", facts=Facts(range=(-math.inf, 0.0)))
def _log_softmax(write: Writer) -> Float:
    """log_softmax(x) -> z - log(sum(exp(z))), z = x - max(x)"""
    x, axis = write.given["self"], write.given["dim"]
    z = write("sub.Tensor", x, write("amax.default", x, [axis], True))
    total = write("sum.dim_IntList", write("exp.default", z), [axis], True)
    return write("sub.Tensor", z, write("log.default", total))


# ---------------------------------------------------------------- TOSA forms; attention

EXPONENTIAL_BITS = 20
"""Bits of an exponential; the largest is ``2**19``."""

MOST_CHANNELS = 4096

_48_OVER_17, _32_OVER_17 = 1515870810, 1010580540
_NEWTON_STEPS = 3


def _tosa_form(emit: TosaEmitter, exponentials: npt.NDArray[np.int64]) -> TosaTensor:
    """Softmax along the last axis with a scale of 1/256 and a zero point of -128.

    The exponentials come from tables of bytes, and the division is Newton and Raphson's method:

    x -> x - max -> table (three bytes of the exponential) -> e [.., C], 20 bits
    e -> sum -> count of leading zeros, reciprocal
    e * reciprocal, shifted back by the leading zeros -> y

    Args:
        exponentials: [256] of the differences -255 to 0 to the largest element, as `EXPONENTIAL_BITS` numbers.
    """
    x, y = emit.input(0), emit.output_type
    if y.channels >= MOST_CHANNELS:
        what = f"`softmax` of {y.channels} elements has no TOSA form: their sum may leave int32."
        raise UnsupportedError(what, hint=f"fewer than {MOST_CHANNELS} elements")
    rows = emit.reshape(x, (y.size // y.channels, y.channels))
    largest = emit.reduce("REDUCE_MAX", rows, [1])
    difference = emit.elementwise("SUB", emit.wide(rows, 0), emit.wide(largest, 0), "INT32")
    # 0 is the table's last index.
    index = emit.rescale(difference, "INT8", [1 << 30], [30], zeros=(0, 127), rounding="SINGLE_ROUND")
    numbers = _numbers(emit, index, exponentials)
    total = emit.reduce("REDUCE_SUM", numbers, [1])
    headroom = emit.elementwise("SUB", emit.add("CLZ", [total], total.shape, "INT32"), _number(emit, 1), "INT32")
    # In [1/2, 1) with 31 fraction bits; its reciprocal in [1, 2] with 30 - 1.
    half = emit.elementwise("LOGICAL_LEFT_SHIFT", total, headroom, "INT32")
    inverse = _reciprocal(emit, half)
    quotients = emit.multiply(numbers, inverse, shift=31)
    back = emit.elementwise("SUB", _number(emit, EXPONENTIAL_BITS + 1), headroom, "INT32")
    result = emit.elementwise("ARITHMETIC_RIGHT_SHIFT", quotients, back, "INT32", True)
    return emit.reshape(emit.result(result), y.shape)


def _wide_tosa_form(
    emit: TosaEmitter, multiplier: tuple[int, int], exponentials: Array, reciprocals: Array
) -> TosaTensor:
    """Softmax of int16 numbers along the last axis, with a scale of 2**-15 and LiteRT's two tables.

    Args:
        multiplier: from differences to the largest element to numbers from -65535 to 0, and its shift.
        exponentials: int16 [513].
        reciprocals: int16 [513], of 1 + x for x in [0, 1].
    """
    x, y = emit.input(0), emit.output_type
    rows = emit.reshape(x, (y.size // y.channels, y.channels))
    largest = emit.reduce("REDUCE_MAX", rows, [1])
    difference = emit.elementwise("SUB", emit.wide(rows, 0), emit.wide(largest, 0), "INT32")
    factor = multiplier[0] * 2.0 ** (multiplier[1] - 31)
    if factor > 2**12:
        # TOSA requires products inside of int32; larger distances from the largest element saturate anyway.
        lowest = _number(emit, -math.ceil(2**16 / factor) - 1)
        difference = emit.elementwise("MAXIMUM", difference, lowest, "INT32", emit.IGNORE_NAN)
    scaled = emit.rescale(difference, "INT32", [multiplier[0]], [31 - multiplier[1]])
    position = emit.elementwise("ADD", scaled, _number(emit, 32767), "INT32")
    numbers = emit.wide(emit.table(emit.result(position), exponentials), 0)
    total = emit.reduce("REDUCE_SUM", numbers, [1])
    zeros = emit.add("CLZ", [total], total.shape, "INT32")
    normalized = emit.elementwise(
        "LOGICAL_LEFT_SHIFT", total, emit.elementwise("SUB", zeros, _number(emit, 1), "INT32"), "INT32"
    )
    fraction = emit.elementwise("ARITHMETIC_RIGHT_SHIFT", normalized, _number(emit, 14), "INT32", True)
    centered = emit.elementwise("SUB", fraction, _number(emit, (1 << 15) + (1 << 16)), "INT32")
    inverse = emit.wide(emit.table(emit.result(centered), reciprocals), 0)
    back = emit.elementwise("SUB", _number(emit, 31), zeros, "INT32")
    quotients = emit.elementwise("ARITHMETIC_RIGHT_SHIFT", emit.multiply(numbers, inverse), back, "INT32", True)
    return emit.reshape(emit.result(quotients), y.shape)


def _number(emit: TosaEmitter, value: int) -> TosaTensor:
    return emit.constant([[value]], "INT32")


def _numbers(emit: TosaEmitter, index: TosaTensor, values: npt.NDArray[np.int64]) -> TosaTensor:
    """A table of numbers of up to 23 bits: the sum of tables of their base-256 digits, from -128 to 127."""
    total = None
    for place in range(0, 24, 8):
        digits = ((values + 128) & 0xFF) - 128
        values = (values - digits) >> 8
        part = emit.rescale(emit.table(index, digits), "INT32", [1 << 30], [30 - place], rounding="SINGLE_ROUND")
        total = part if total is None else emit.elementwise("ADD", total, part, "INT32")
    assert total is not None
    return total


def _reciprocal(emit: TosaEmitter, half: TosaTensor) -> TosaTensor:
    """1 / (2 * half) of numbers in [1/2, 1) with 31 fraction bits, with 30 - 1 of them."""
    x = emit.elementwise(
        "ADD", emit.multiply(half, _number(emit, -_32_OVER_17), shift=31), _number(emit, _48_OVER_17), "INT32"
    )
    for _ in range(_NEWTON_STEPS):
        error = emit.elementwise("SUB", _number(emit, 1 << 29), emit.multiply(half, x, shift=31), "INT32")
        x = emit.elementwise("ADD", x, emit.multiply(x, error, shift=29), "INT32")
    return x


MASKED = -8192.0
"""Replacement of minus infinity in a mask. The sum of score and mask saturates at the end of its range, which
calibration does not extend for it (`micronpu.quantize.solver.neighbours`)."""
HIDDEN = fixed_qparams(-MASKED / 128, 0, int16_scale=-MASKED / 2**15)
"""Qparams for `MASKED` and zero: calibration without masked keys must not exclude masks in later inputs."""
ATTENTION = "scaled_dot_product_attention.default"


@decomposes("scaled_dot_product_attention.default")
def _attention(write: Writer) -> Float:
    """attention(q, k, v) -> softmax((q * scale) @ k' + mask) @ v

    The scale is applied to q, where the next qparams absorb it without rounding. A mask of numbers computed by the
    program is added as it is; a mask of booleans becomes `MASKED` at masked keys.
    """
    given = write.given
    query, key, value = given["query"], given["key"], given["value"]
    if given["dropout_p"]:
        return None
    rows, width = write.shape(query)[-2:]
    columns = write.shape(key)[-2]
    mask = given["attn_mask"]
    if given["is_causal"]:
        mask = np.tril(np.ones((rows, columns), bool))
    elif mask is not None:
        known = write.stored(mask)
        if known is None and write.dtype(mask) not in (DType.FLOAT32, DType.BOOL):
            return None
        mask = mask if known is None else known
    if given.get("enable_gqa"):
        key, value = (_repeated_heads(write, x, write.shape(query)[-3]) for x in (key, value))
    scale = given.get("scale")
    query = scaled(write, query, 1.0 / math.sqrt(width) if scale is None else float(scale))
    scores = write("matmul.default", query, write("transpose.int", key, -2, -1))
    if mask is not None:
        is_boolean = not isinstance(mask, np.ndarray) and write.dtype(mask) is DType.BOOL  # False masks the key
        addend = _hiding(write, opposite_of(write, mask)) if is_boolean else mask
        if addend is None:
            return None
        scores = _masked(write, scores, addend)
    return write("matmul.default", write("softmax.int", scores, -1), value)


def _hiding(write: Writer, hidden: Float | None, sign: int = -1) -> Float:
    """`MASKED` where the number of a truth value is 1, and zero elsewhere; None without a truth value."""
    return None if hidden is None else write.with_qparams(write("mul.Tensor", hidden, -sign * MASKED), HIDDEN)


def _masked(write: Writer, scores: Float, mask: Float | Array, sign: int = -1) -> Float:
    """Add a mask to scores; a constant mask that also has other numbers is added in two parts.

    The scale of `MASKED` is too large for other numbers.

    Args:
        sign: of the infinity that masks.
    """
    if not isinstance(mask, np.ndarray):
        return write("add.Tensor", scores, mask)
    if mask.dtype == np.bool_:
        hidden, rest = ~mask, np.zeros(mask.shape, np.float32)
    else:
        hidden = mask < MASKED
        rest = np.where(hidden, 0.0, mask).astype(np.float32)
    if rest.any() or not hidden.any():
        scores = write("add.Tensor", scores, write.constant(rest))
    if hidden.any():
        addend = write.constant(np.where(hidden, -sign * MASKED, 0.0).astype(np.float32))
        scores = write("add.Tensor", scores, write.with_qparams(addend, HIDDEN))
    return scores


def _repeated_heads(write: Writer, x: Float, heads: int) -> Float:
    """Repeat every head of [.., G, S, E]: [.., heads, S, E]."""
    shape = list(write.shape(x))
    groups = shape[-3]
    if groups == heads:
        return x
    wide = write("unsqueeze.default", x, -3)
    wide = write("expand.default", wide, [*shape[:-2], heads // groups, *shape[-2:]])
    return write("reshape.default", wide, [*shape[:-3], heads, *shape[-2:]])


@decomposes("masked_fill.Scalar", "masked_fill_.Scalar")
def _masked_scores(write: Writer) -> Float:
    """softmax(masked_fill(x, mask, -inf)) -> softmax(x + mask'), where nothing but attention, a softmax, a logsumexp
    or a maximum reads it

    A mask that is given or computed by the program becomes `MASKED` times its truth values. It may be moved, and added
    to others, before its readers: `torch.nn.MultiheadAttention` converts its `key_padding_mask` to zeros and
    infinities. The same holds for a minimum, with plus infinity.
    """
    x, hidden = write.given["self"], write.given["mask"]
    sign = _hides(write, float(write.given["value"]))
    if not sign:
        return None
    mask = write.stored(hidden)
    if mask is not None:
        return _masked(write, x, ~mask, sign)
    addend = _hiding(write, number_of(write, hidden), sign)
    if addend is None:
        return None
    made = write.call(x)
    if made is not None and made.overload.startswith(("zeros", "new_zeros")) and write.shape(addend) == write.shape():
        return addend
    return write("add.Tensor", x, addend)


def chosen_scores(write: Writer) -> Float:
    """softmax(where(mask, x, -inf)) -> softmax(x + mask'), like `masked_fill`; None if it has other readers."""
    mask, yes, no = (write.given[name] for name in ("condition", "self", "other"))
    known = write.stored(mask)
    if known is None and write.dtype(mask) is not DType.BOOL:
        return None
    for scores, other, shows in ((yes, no, True), (no, yes, False)):
        if isinstance(scores, (int, float)) or write.dtype(scores) is not DType.FLOAT32:
            continue
        sign = _hides(write, *_ends_of(write, other))
        if not sign:
            continue
        if known is not None:
            return _masked(write, scores, known if shows else ~known, sign)
        addend = _hiding(write, opposite_of(write, mask) if shows else number_of(write, mask), sign)
        return None if addend is None else write("add.Tensor", scores, addend)
    return None


@decomposes("add.Tensor", "add_.Tensor")
def _added_mask(write: Writer) -> Float:
    """softmax(x + mask) -> softmax(x + mask'), for a constant mask with values that represent minus infinity"""
    x, z = write.given["self"], write.given["other"]
    if write.given["alpha"] != 1:
        return None
    for scores, mask in ((x, z), (z, x)):
        known = None if isinstance(mask, (int, float)) or write.is_trained(mask) else write.stored(mask)
        if known is None or known.dtype.kind != "f" or not (known < MASKED).any() or isinstance(scores, (int, float)):
            continue
        if write.dtype(scores) is DType.FLOAT32 and write.stored(scores) is None and _is_for_softmax(write):
            return _masked(write, scores, known)
    return None


_FAR = -1e3
"""Constants up to this value before a softmax represent minus infinity."""


MAXIMA = (
    *("amax.default", "argmax.default", "max.default", "max.dim"),
    *(f"max_pool{n}d{form}.default" for n in (1, 2) for form in ("", "_with_indices")),
)
"""Overloads that compute the largest of some values."""
MINIMA = ("amin.default", "argmin.default", "min.default", "min.dim")
"""Overloads that compute the smallest of some values."""


def _is_for_softmax(write: Writer) -> bool:
    return write.ends() <= {*SOFTMAX, ATTENTION, "logsumexp.default"}


def _hides(write: Writer, least: float, most: float | None = None) -> int:
    """Sign of the infinity that constants from ``least`` to ``most`` are to readers that depend on it alone; else 0."""
    most = least if most is None else most
    if most <= _FAR:
        return -1 if _is_for_softmax(write) or write.ends(added=False) <= {*SOFTMAX, *MAXIMA} else 0
    return 1 if least >= -_FAR and write.ends(added=False) <= {*MINIMA} else 0


def _ends_of(write: Writer, x: Float) -> tuple[float, float]:
    """The smallest and the largest value of a constant; two zeros for other values."""
    if isinstance(x, (int, float)):
        return float(x), float(x)
    known = None if write.is_trained(x) else write.stored(x)
    if known is None or known.dtype.kind != "f" or not known.size:
        return 0.0, 0.0
    return float(known.min()), float(known.max())
