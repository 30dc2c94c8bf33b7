"""Comparisons, which chips with lookup tables compute, and selections by their result.

Quantization requires floats: a truth value becomes the number 0 or 1, with qparams that represent both exactly, and
operators that use it become arithmetic.
"""

from __future__ import annotations

import math
import operator
from dataclasses import replace

import numpy as np

from micronpu.base.arrays import Array
from micronpu.ir.aten import AtenArguments, AtenNode
from micronpu.ir.facts import TRUTHS, Facts, joined
from micronpu.ir.graph import Tensor
from micronpu.ir.lowering import Float, Writer, decomposes
from micronpu.ir.registry import ATEN_IMPORTS, imports
from micronpu.ir.types import DType, QParams
from micronpu.ops import softmax  # registers masks of attention before other selections
from micronpu.ops.bounds import jumps_at
from micronpu.ops.elementwise import Sub, emit_binary
from micronpu.ops.movement import CASTS
from micronpu.ops.tables.table import RealFunction, in_lines, in_steps, unary
from micronpu.ops.truths import GIVEN, LOGIC, TRUTH, WHOLE, is_made_of_others, number_of, opposite

COMPARISONS = {name: getattr(operator, name) for name in ("gt", "ge", "lt", "le", "eq", "ne")}

OPPOSITES = {"gt": "le", "ge": "lt", "lt": "ge", "le": "gt", "eq": "ne", "ne": "eq"}

CHOICES = ("where.self", "where.ScalarSelf", "where.ScalarOther", "where.Scalar")
FILLS = ("masked_fill.Scalar", "masked_fill.Tensor", "masked_fill_.Scalar", "masked_fill_.Tensor")
_ANY_ALL = tuple(f"{name}.{form}" for name in ("any", "all") for form in ("default", "dim", "dims"))
_SUMS = ("sum.default", "sum.dim_IntList")
_ARITHMETIC = ("mul.Tensor", "add.Tensor")

STEEPNESS = 4096.0
"""Without a table, the difference of the compared numbers is multiplied by this and clamped to 0 and 1."""

_MOST_COUNTED = 255
"""Maximum count in qparams of whole numbers, in which a count is never truncated to the next smaller integer."""

_FINER = 4
"""Divisor of the smaller scale for the difference. It may saturate, since only its sign matters."""


_AT_NUMBER = Facts(range=TRUTHS, jumps=lambda given: jumps_at(given["other"]))
_EQUAL = Facts(range=TRUTHS, unknown={"jumps": "the results on both sides of the number are the same"})


@unary("gt.Scalar", "ge.Scalar", "lt.Scalar", "le.Scalar", quantization=TRUTH, steps=in_steps, facts=_AT_NUMBER)
@unary("eq.Scalar", "ne.Scalar", quantization=TRUTH, steps=in_steps, facts=_EQUAL)
def _compare_number(node: AtenArguments) -> RealFunction:
    compare, number = COMPARISONS[node.overload.split(".")[0]], np.float32(node.value("other"))
    return lambda x: compare(x, number)


@imports(
    *(f"{_name}.Tensor" for _name in COMPARISONS),
    z="other",
    quantization=replace(TRUTH, activations=("x", "z")),
    moves_only=False,
    is_table=True,
    facts=Facts(range=TRUTHS),
)
def _compare_tensors(node: AtenNode) -> Tensor:
    """x > z -> table(x - z), where the difference has a smaller scale than both."""
    x, z = node.tensor("x"), node.tensor("z")
    scale = x.type.scale if x.type.qparams == z.type.qparams else min(x.type.scale, z.type.scale) / _FINER
    difference = emit_binary(node, Sub(), x, z, QParams.per_tensor(scale, 0))
    compare = COMPARISONS[node.overload.split(".")[0]]
    decide = in_steps if x.type.dtype is DType.INT16 else in_lines
    return decide(node, difference, lambda d: compare(d, 0.0))


# ---------------------------------------------------------------- decompositions


@decomposes(*(f"{_name}.{_form}" for _name in COMPARISONS for _form in ("Scalar", "Tensor")), decides=True)
def _decisions_to_numbers(write: Writer) -> Float:
    """x > z -> the number 0 or 1: by a table, or clamp(steep * (x - z), 0, 1) if it selects values

    x, z -> gt -> y         x, z -> gt -> to(float32) -> to(bool) -> y
    x, z -> eq -> y         x, z -> sub -> eq(0) -> to(float32) -> to(bool) -> y

    Without a table, numbers that differ by less than 1 / `STEEPNESS` give values between 0 and 1.
    """
    x, z = write.given["self"], write.given["other"]
    if not _is_float(write, x) or not (_is_float(write, z) or isinstance(z, (int, float))):
        return None
    readers = [call.overload for call in map(write.call, write.readers()) if call is not None]
    if write.capabilities.computes(write.overload):
        if write.overload in ("eq.Tensor", "ne.Tensor") and not _selects(write, x, z) and not _selects(write, z, x):
            # Equal numbers with different qparams differ by up to half an LSB of each: zero in the result's qparams.
            is_equality = write.overload == "eq.Tensor"
            compared = write("eq.Scalar" if is_equality else "ne.Scalar", write("sub.Tensor", x, z), 0.0)
        else:
            compared = write.kept()
        return write.decided(write.with_qparams(write("to.dtype", compared, DType.FLOAT32), TRUTH))
    if not any(name in (*CHOICES, *FILLS, *CASTS, *LOGIC, *_ANY_ALL, *_SUMS, *_ARITHMETIC) for name in readers):
        return None
    name = write.overload.split(".")[0]

    def above(strictly: bool) -> Float:
        """x > z, or z > x."""
        difference, steepness = write("sub.Tensor", x, z), STEEPNESS if strictly else -STEEPNESS
        if name in ("eq", "ne"):  # with a small scale no two numbers would be equal
            steep = write("mul.Tensor", difference, steepness)
        else:  # one LSB of the difference is one of the product, too
            steep = write.only_sign(write("mul.Tensor", write.only_sign(difference), steepness))
        return write.with_qparams(write("clamp.default", steep, 0.0, 1.0), TRUTH)

    if name in ("gt", "lt"):
        number = above(name == "gt")
    elif name in ("ge", "le"):
        number = write("rsub.Scalar", above(name == "le"), 1.0)
    else:
        number = write.with_qparams(write("add.Tensor", above(True), above(False)), TRUTH)
        number = number if name == "ne" else write("rsub.Scalar", number, 1.0)
    return write.decided(write.with_qparams(number, TRUTH))


def _selects(write: Writer, x: Float, z: Float) -> bool:
    """True if x contains only values of z, with its qparams, such as the largest of a row."""
    while x is not z:
        made = write.call(x)
        entry = None if made is None else ATEN_IMPORTS.get(made.overload)
        if made is None or entry is None or callable(entry.quantization) or not entry.quantization.selects:
            return False
        x = made.given.get("self")
    return True


@decomposes(*CASTS)
def _number_of_decision(write: Writer) -> Float:
    """float(x > z) -> the number of the comparison, with qparams for 0 and 1 regardless of calibration"""
    x = write.given["self"]
    number = write.number(x)
    if number is not None or write.dtype(x) is not DType.BOOL:
        return number
    if is_made_of_others(write, x):
        return number_of(write, x)
    made = write.call(x)
    if made is None or not _is_float(write, made.given.get("self", 0.0)):  # and not a comparison on the NPU
        write.with_qparams(write.kept(), GIVEN)
    return None


@decomposes(*_ARITHMETIC)
def _number_in_arithmetic(write: Writer) -> Float:
    """a * (x > z) -> a * the number of the comparison; the same for a sum"""
    given = [write.given["self"], write.given["other"]]
    numbers = [number_of(write, x) for x in given]
    if all(number is None for number in numbers) or write.given.get("alpha", 1) != 1:
        return None
    a, b = (x if number is None else number for x, number in zip(given, numbers, strict=True))
    if write.overload == "mul.Tensor" and None in numbers:
        value, number = (b, a) if numbers[0] is not None else (a, b)
        if _is_float(write, value) and write.shape(value) == write.shape():
            return write.kept_or_zero(number, value)
    return write(write.overload, a, b)


@decomposes(*LOGIC, decides=True)
def _logic(write: Writer) -> Float:
    """a and b -> a * b, a or b -> maximum(a, b), not a -> 1 - a, of the numbers 0 and 1"""
    operands = [write.given[name] for name in ("self", "other") if name in write.given]
    if all(write.number(x) is None for x in operands):
        return None  # the core's own decisions, and ours if they were converted to numbers
    number = number_of(write, write.kept())
    return None if number is None else write.decided(number)


@decomposes(*_ANY_ALL, decides=True)
def _any_or_all(write: Writer) -> Float:
    """any(a) -> amax(a), all(a) -> amin(a), of the numbers 0 and 1"""
    number = write.number(write.given["self"])
    if number is None:
        return None
    reduce = "amax.default" if write.overload.startswith("any") else "amin.default"
    return write.decided(write(reduce, number, *_axes(write, number)))


@decomposes(*_SUMS, decides=True)
def _count(write: Writer) -> Float:
    """sum(x > z) -> sum of the numbers 0 and 1, as whole numbers for up to 255 of them"""
    number = write.number(write.given["self"])
    if number is None:
        return None
    axes, keeps = _axes(write, number)
    count = write("sum.dim_IntList", number, axes, keeps)
    if math.prod(write.shape(number)[axis] for axis in axes) <= _MOST_COUNTED:
        count = write.with_qparams(count, WHOLE)
    return write.decided(count)


def _axes(write: Writer, number: Float) -> tuple[list[int], bool]:
    """Axes that an operator reduces; True if it keeps them."""
    given = write.given.get("dim")
    axes = list(range(len(write.shape(number)))) if given is None else given
    return list(axes) if isinstance(axes, (list, tuple)) else [axes], bool(write.given.get("keepdim"))


_CHOICE = Facts(unknown={"affine_in": "a choice is no standardization"})


@decomposes(*CHOICES, facts=replace(_CHOICE, range=lambda given, of: joined([of(given["self"]), of(given["other"])])))
def _choice(write: Writer) -> Float:
    """where(x > z, a, b) -> (x > z) * a + (x <= z) * b, for any truth value, and finite a, b"""
    given, scores = write.given, softmax.chosen_scores(write)
    return _chosen(write, given["condition"], given["self"], given["other"]) if scores is None else scores


@decomposes(*FILLS, facts=replace(_CHOICE, range=lambda given, of: joined([of(given["self"]), of(given["value"])])))
def _filled(write: Writer) -> Float:
    """masked_fill(a, x > z, b) -> (x > z) * b + (x <= z) * a, for any truth value, and finite b"""
    given = write.given
    return _chosen(write, given["mask"], given["value"], given["self"])


_LARGEST = 1e3
"""Larger constants before a softmax represent minus infinity, see `micronpu.ops.softmax`."""


def _chosen(write: Writer, mask: Float, yes: Float, no: Float) -> Float:
    """One value where a mask is true, and the other elsewhere; exact up to float rounding."""
    # A value that is neither a float nor finite has no result.
    known, number = write.stored(mask), number_of(write, mask)
    terms: list[tuple[bool, Float, Array | None]] = []
    for truth, value in ((True, yes), (False, no)):
        constant = _constant(write, value)
        if constant is None and not _is_float(write, value):
            return None
        if constant is not None and not np.isfinite(constant).all():
            return None
        terms.append((truth, value, constant))
    if known is not None:
        made = _by_known_mask(write, known.astype(bool), terms)
    elif number is not None:
        made = _by_number(write, number, terms)
    else:
        return None
    if made is None or write.shape(made) == write.shape():
        return made
    return write("expand.default", made, list(write.shape()))


def _by_known_mask(write: Writer, mask: Array, terms: list[tuple[bool, Float, Array | None]]) -> Float:
    if all(constant is not None for _, _, constant in terms):
        return None
    if any(constant is not None and (np.abs(constant) >= _LARGEST).any() for _, _, constant in terms):
        return None
    made = []
    for truth, value, constant in terms:
        factor = mask if truth else ~mask
        if constant is None:
            made.append(write("mul.Tensor", value, write.constant(factor.astype(np.float32))))
        elif constant.any() and factor.any():
            made.append(write.constant(np.where(factor, constant, 0.0).astype(np.float32)))
    return made[0] if len(made) == 1 else write("add.Tensor", *made)


def _by_number(write: Writer, number: Float, terms: list[tuple[bool, Float, Array | None]]) -> Float:
    wanted = [(truth, value, constant) for truth, value, constant in terms if constant is None or constant.any()]
    factors = [number if truth else _opposite(write, number) for truth, _, _ in wanted]
    made = []
    for factor, (_, value, constant) in zip(factors, wanted, strict=True):
        operand = value
        if constant is not None and not _is_float(write, value):
            operand = float(constant) if constant.size == 1 else write.constant(constant.astype(np.float32))
        made.append(write.kept_or_zero(factor, operand))
    if not made:
        return None
    return made[0] if len(made) == 1 else write("add.Tensor", *made)


def _opposite(write: Writer, number: Float) -> Float:
    """The number of the opposite decision: of the opposite comparison if it uses a table, otherwise 1 - number."""
    cast = write.call(number)
    compared = cast.given.get("self") if cast is not None and cast.overload in CASTS else None
    comparison = write.call(compared) if compared is not None else None
    if comparison is None or comparison.overload.split(".")[0] not in OPPOSITES:
        return opposite(write, number, number)
    name, form = comparison.overload.split(".")
    given = comparison.given
    reverse = write.beside(compared, f"{OPPOSITES[name]}.{form}", given["self"], given["other"])
    return write.with_qparams(write.beside(reverse, "to.dtype", reverse, DType.FLOAT32), TRUTH)


def _is_float(write: Writer, x: Float) -> bool:
    return not isinstance(x, (int, float)) and write.dtype(x) is DType.FLOAT32


def _constant(write: Writer, x: Float) -> Array | None:
    """Value of a number or of a constant that is not trained."""
    if isinstance(x, (int, float)):
        return np.array(float(x))
    return None if write.is_trained(x) else write.stored(x)
