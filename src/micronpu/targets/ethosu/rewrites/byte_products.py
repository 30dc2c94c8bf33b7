"""Products of int16 numbers from products of their bytes, where an Ethos-U multiplies int8 only, or much faster."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from micronpu.base.arrays import Array
from micronpu.base.errors import UnsupportedError
from micronpu.ir.arithmetic import per_channel_multipliers, quantize_multiplier, short_multiplier
from micronpu.ir.registry import operator
from micronpu.ir.types import TensorType
from micronpu.ops.convolution import Conv2d
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
        # One by one: for slices of several batches Vela's program multiplies wrong matrices.
        batches = y.shape[0]
        size = 1 if y.size > _MOST_ELEMENTS and batches <= _MOST_PIECES else batches
        made = []
        for first in range(0, batches, size):
            part = [[(emit.slice(b, (first, 0, 0), (size, *b.shape[1:])), zero) for b, zero in pair] for pair in bytes]
            digits, rest = _digits(emit, *part)
            made.append(_requantized(emit, digits, rest, int(short_multiplier(multiplier)), right))
        return emit.rescale(emit.concat(made, 0), "INT16", [1 << 30], [30], rounding="SINGLE_ROUND")


@operator("conv2d_bytes")
class BytesConv2d(Conv2d):
    """`Conv2d` with a kernel of one, as a convolution of the upper and lower bytes of int16 pixels as int8 pixels.

    x int16 [N, H, W, C], weight int8 [O, 1, 1, C], bias int64 [O]  ->  y [N, H, W, O], int16 or int8

    Computes the same integers. With ``x = 256 * xh + xl``, the upper byte signed and the lower one unsigned, the sums
    are ``256 * xh w + (xl - 128) w + (bias + 128 * w)``. ``dtype`` is set, since LiteRT has no such form.
    """

    def to_tosa(self, emit: TosaEmitter) -> TosaTensor:
        """ARITHMETIC_RIGHT_SHIFT and BITWISE_AND -> CONV2D of twice the pixels -> 256 * upper + lower -> MUL."""
        y, x, weight, bias = emit.output_type, emit.image(emit.input(0)), emit.constant_input(1), emit.constant_input(2)
        if (found := byte_factors(emit.input_type(0), emit.input_type(1), y, weight, bias)) is None:
            raise UnsupportedError(f"`{self.name}` needs sums within 32 bits, and results that are not larger.")
        high = emit.elementwise("ARITHMETIC_RIGHT_SHIFT", x, emit.number(8, "INT16"), "INT16", False)
        low = emit.elementwise("BITWISE_AND", x, emit.number(255, "INT16"), "INT16")
        rows = emit.concat([_narrow(emit, high, 0), _narrow(emit, low, -128)], 2)
        sums = emit.plain_convolution(rows, emit.input(1), (1, 1, rows.shape[2], y.channels), (0, 0))
        upper, lower = (emit.slice(sums, (0, 0, i, 0), (1, 1, x.shape[2], y.channels)) for i in (0, x.shape[2]))
        addend = emit.constant(bias + 128 * weight.sum((1, 2, 3), np.int64), "INT32")
        total = _sum(emit, _sum(emit, emit.multiply(upper, emit.number(256, "INT32")), lower), addend)
        scaled = emit.multiply(total, emit.constant(found[0], "INT32"), found[1])
        return emit.reshape(emit.clamp(emit.result(scaled), *self.activation.limits(y)), y.shape)


def byte_factors(x: TensorType, weight: TensorType, y: TensorType, w: Array, bias: Array) -> tuple[Array, int] | None:
    """Factors of each channel's sums and their common shift to the right, which scale like `multiply_wide`.

    None if a sum of products with any int16 numbers, or its scaled result, might exceed 32 bits, or if the shift does:
    Vela's program rounds a product that is shifted by more than 31 bits twice.
    """
    assert weight.qparams is not None
    multipliers, shifts = per_channel_multipliers(x.scale, weight.qparams.scale, y.scale)
    factors, right = np.ldexp(short_multiplier(multipliers), shifts - shifts.min()), 15 - int(shifts.min())
    sums = (2**15 + 2**7) * np.abs(w.astype(np.int64)).sum((1, 2, 3)) + np.abs(bias)
    fits = max(sums.max(), factors.max()) < 2**31 and factors.max() <= 2**right and right < 32
    return (factors, right) if fits else None


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
    product, carry = emit.multiply(upper, emit.number(multiplier, "INT32")), None
    for digit in low:
        part = emit.multiply(digit, emit.number(multiplier, "INT32"))
        carry = _floored(emit, part if carry is None else _sum(emit, part, carry))
    return _halved(emit, product if carry is None else _sum(emit, product, carry), right - dropped)


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
