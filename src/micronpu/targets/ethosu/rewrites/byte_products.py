"""Products of int16 matrices from products of their bytes, for Ethos-U variants that multiply int8 matrices only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from micronpu.base.errors import UnsupportedError
from micronpu.ir.arithmetic import quantize_multiplier, short_multiplier
from micronpu.ir.registry import operator
from micronpu.ops.matmul import BatchMatmul

if TYPE_CHECKING:
    from micronpu.emit.tosa import TosaEmitter, TosaTensor

LONGEST_SUM = 32_000
"""Maximum products in a sum, so that two sums of a signed with an unsigned byte stay within 32 bits."""
_FREE_BITS = 13
"""Bits left in 32 by a 15-bit multiplier and a number of four times the saturation limit."""
_MOST_ELEMENTS = 65_536
"""Maximum elements of a result that is computed at once: seven int32 tensors of its size are then in memory."""
_MOST_PIECES = 16
"""Maximum number of pieces; more would increase the program by more than its memory shrinks."""

Byte = tuple["TosaTensor", int]
"""int8 numbers, and the zero point with which they represent one signed or unsigned byte of a number."""


@operator("batch_matmul_bytes")
class BytesBatchMatmul(BatchMatmul):
    """`BatchMatmul` of int16 matrices as four products of int8 matrices, combined in 32 bits.

    x int16 [B, M, K], z int16 [B, K, N]  ->  y int16 [B, M, N]

    Computes the same integers, including saturated ones, with another TOSA form. With ``x = 256 * xh + xl``, the upper
    byte signed and the lower one unsigned, the sum of products is ``65536 * xh zh + 256 * (xh zl + xl zh) + xl zl``. It
    is computed in base-256 digits from the lowest on; products of digits that the shift drops are carried too, so that
    nothing is rounded before the end.
    """

    def to_tosa(self, emit: TosaEmitter) -> TosaTensor:
        """MATMUL of bytes, one batch at a time for large results."""
        x, z, y = emit.input_type(0), emit.input_type(1), emit.output_type
        multiplier, shift = quantize_multiplier(x.scale * z.scale / y.scale)
        right = 15 - shift
        if x.zero_point or z.zero_point or y.zero_point or x.shape[2] > LONGEST_SUM or right < 1:
            raise UnsupportedError(
                f"`{self.name}` multiplies {x} and {z} to {y}; it needs zero points of 0, sums of at most "
                f"{LONGEST_SUM:,} products and a result whose step is not below 2**-14 of the product of theirs."
            )
        bytes = [_bytes_of(emit, emit.input(i)) for i in (0, 1)]
        batches = y.shape[0]
        # One by one: for slices of several batches Vela's program multiplies wrong matrices.
        alone = y.size > _MOST_ELEMENTS and batches <= _MOST_PIECES
        made = []
        for first in range(batches if alone else 1):
            part = [[_batch(emit, b, first) for b in pair] for pair in bytes] if alone else bytes
            digits, rest = _digits(emit, *part)
            made.append(_requantized(emit, digits, rest, int(short_multiplier(multiplier)), right))
        return emit.rescale(emit.concat(made, 0), "INT16", [1 << 30], [30], rounding="SINGLE_ROUND")


def _batch(emit: TosaEmitter, byte: Byte, number: int) -> Byte:
    x, zero = byte
    return emit.slice(x, (number, 0, 0), (1, *x.shape[1:])), zero


def _bytes_of(emit: TosaEmitter, x: TosaTensor) -> list[Byte]:
    """The upper, signed byte of int16 numbers and the lower, unsigned one."""
    wide = emit.wide(x, 0)
    high = _floored(emit, wide)
    low = _rest(emit, wide, high)
    return [(_narrow(emit, high, 0), 0), (_narrow(emit, low, -128), -128)]


def _narrow(emit: TosaEmitter, x: TosaTensor, zero: int) -> TosaTensor:
    return emit.rescale(x, "INT8", [1 << 30], [30], zeros=(0, zero), rounding="SINGLE_ROUND")


def _digits(emit: TosaEmitter, x: list[Byte], z: list[Byte]) -> tuple[list[TosaTensor], TosaTensor]:
    """The sums of products as two digits, the lowest first, and the rest: ``d0 + 256 d1 + 65536 rest``.

    Digits are from -128 to 127.
    """
    (xh, xl), (zh, zl) = x, z
    digits, carry = [], _product(emit, xl, zl)
    for more in (_sum(emit, _product(emit, xh, zl), _product(emit, xl, zh)), _product(emit, xh, zh)):
        upper = _halved(emit, carry, 8)
        digits.append(_rest(emit, carry, upper))
        carry = _sum(emit, more, upper)
    return digits, carry


def _requantized(
    emit: TosaEmitter, digits: list[TosaTensor], rest: TosaTensor, multiplier: int, right: int
) -> TosaTensor:
    """``(sum * multiplier + 2**(right - 1)) >> right`` as int32; values beyond int16 saturate later.

    After the lowest ``dropped`` bits of the sums have been multiplied and carried, ``right - dropped`` bits, 1 to 13,
    remain to shift by.
    """
    dropped = max(0, -(-(right - _FREE_BITS) // 8)) * 8
    upper = _bounded(emit, rest, 1 << 14) if dropped < 16 else rest
    for digit in reversed(digits[dropped // 8 :]):
        upper = _sum(emit, emit.multiply(upper, emit.number(256, "INT32")), digit)
    low = digits[: dropped // 8]
    for _ in range(2, dropped // 8):
        shifted = _halved(emit, upper, 8)
        low.append(_rest(emit, upper, shifted))
        upper = shifted
    upper = _bounded(emit, upper, 4 << (right - dropped))
    product = emit.multiply(upper, emit.number(multiplier, "INT32"))
    if carry := list(_carries(emit, low, multiplier)):
        product = _sum(emit, product, carry[-1])
    return _halved(emit, product, right - dropped)


def _carries(emit: TosaEmitter, digits: list[TosaTensor], multiplier: int) -> Iterator[TosaTensor]:
    carry = None
    for digit in digits:
        product = emit.multiply(digit, emit.number(multiplier, "INT32"))
        carry = _floored(emit, product if carry is None else _sum(emit, product, carry))
        yield carry


def _product(emit: TosaEmitter, x: Byte, z: Byte) -> TosaTensor:
    shape = (x[0].shape[0], x[0].shape[1], z[0].shape[2])
    operands = (x[0], z[0], emit.number(x[1]), emit.number(z[1]))
    return emit.add("MATMUL", operands, shape, "INT32")


def _sum(emit: TosaEmitter, x: TosaTensor, z: TosaTensor) -> TosaTensor:
    return emit.elementwise("ADD", x, z, "INT32")


def _halved(emit: TosaEmitter, x: TosaTensor, bits: int) -> TosaTensor:
    """x divided by a power of two, rounded to nearest with ties up.

    Vela's program for U55 and U65 also rounds like this for a shift without rounding.
    """
    return emit.elementwise("ARITHMETIC_RIGHT_SHIFT", x, emit.number(bits, "INT32"), "INT32", True)


def _floored(emit: TosaEmitter, x: TosaTensor) -> TosaTensor:
    """``x / 256`` rounded down."""
    return _halved(emit, emit.elementwise("SUB", x, emit.number(128, "INT32"), "INT32"), 8)


def _rest(emit: TosaEmitter, x: TosaTensor, high: TosaTensor) -> TosaTensor:
    """``x - 256 * high``; U55 has no bitwise and."""
    return emit.elementwise("SUB", x, emit.multiply(high, emit.number(256, "INT32")), "INT32")


def _bounded(emit: TosaEmitter, x: TosaTensor, most: int) -> TosaTensor:
    """Clamp x between ``-most`` and ``most``; Vela does not support CLAMP of int32."""
    for name, bound in (("MINIMUM", most), ("MAXIMUM", -most)):
        x = emit.elementwise(name, x, emit.number(bound, "INT32"), "INT32", emit.IGNORE_NAN)
    return x
