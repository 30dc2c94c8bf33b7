"""Integer kernels of TOSA's operators: the specification's pseudocode, a whole tensor at a time.

A result that the specification leaves undefined (its ``REQUIRE``: a sum that exceeds its type, an index out of range)
raises `PayloadError`. The results equal those of TOSA's reference model, with which tests compare them. NumPy reads and
writes nothing outside of its arrays for any operands.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import EllipsisType
from typing import Any

import numpy as np

from micronpu.base.arrays import Array
from micronpu.base.errors import PayloadError, first_line
from micronpu.base.flatbuffer import CorruptFlatbufferError, Table, need
from micronpu.emit.tosa_file import NUMPY
from micronpu.emit.tosa_schema import ResizeMode, RoundingMode
from micronpu.ir.types import Shape

_EXACT = {np.float32: 1 << 24, np.float64: 1 << 53}
"""Largest magnitude up to which a float holds every integer: float matrix products are exact below it."""
_MOST_BYTES = 1 << 25
"""Maximum bytes of a convolution's windows in memory at a time."""
_BITS_48 = 48
_LARGEST = 1 << 13
"""Maximum window, stride or padding: MAX_KERNEL and MAX_STRIDE of the specification's level 8K."""


@dataclass(frozen=True)
class TosaCall:
    """An operator with the names of its operands, and with name, declared element type and shape of its result."""

    operator: str
    inputs: tuple[str, ...]
    output: str
    dtype: str
    shape: Shape
    attributes: Table

    def axis(self) -> int:
        """Return the attribute that is an axis of the first operand."""
        return self.attributes.integer(0)

    def flag(self, field: int) -> bool:
        """Return an attribute that is a truth value."""
        return bool(self.attributes.integer(field, "<B"))

    def numbers(self, field: int) -> tuple[int, ...]:
        """Return an attribute that is a list of numbers."""
        found = self.attributes.vector(field).integers()
        need(all(abs(n) <= _LARGEST for n in found), f"{self.operator} has the sizes {list(found)}")
        return found

    def scalar(self, field: int) -> int:
        """Return an attribute with the bytes of one element."""
        return int.from_bytes(bytes(self.attributes.vector(field).integers("<B")), "little", signed=True)

    def check(self, shape: Sequence[int]) -> None:
        """Refuse a result of another shape than declared."""
        need(
            tuple(shape) == self.shape, f"{self.operator} makes {list(shape)}, which is declared as {list(self.shape)}"
        )


Compute = Callable[[TosaCall, Sequence[Array]], Array]


def undefined(what: str) -> PayloadError:
    """The error of a result that the specification does not define."""
    return PayloadError(
        f"The TOSA program has no defined result for these inputs: {what}.",
        hint="calibrate with data that covers the values that occur",
    )


def limits(dtype: str) -> tuple[int, int]:
    bits = {"BOOL": 1, "INT48": _BITS_48}.get(dtype) or 8 * NUMPY[dtype].itemsize
    return (0, 1) if dtype == "BOOL" else (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)


def _require(holds: Any, what: str) -> None:
    if not np.all(holds):
        raise undefined(what)


def _saturated(x: Array, dtype: str) -> Array:
    return x.clip(*limits(dtype)).astype(NUMPY[dtype])


def _wide(x: Array) -> Array:
    return x.astype(np.int64)


# --- changes of scale ---


def _scaled(x: Array, multiplier: Array, shift: Array | int, *, double: bool = False) -> Array:
    """``x * multiplier * 2**-shift`` to nearest with ties up; ``double`` rounds twice: ties of large shifts away from
    zero."""
    half = np.int64(1) << (shift - 1)
    if double:
        half = half + np.where(shift > 31, np.where(x >= 0, 1 << 30, -(1 << 30)), 0)
    return np.asarray((x * multiplier + half) >> shift)


def rescale(call: TosaCall, operands: Sequence[Array]) -> Array:
    x, multiplier, shift, zero_in, zero_out = operands
    if call.flag(3):
        x, zero_in = (a.view(f"u{a.dtype.itemsize}") for a in (x, zero_in))
    double = call.attributes.integer(1) == RoundingMode.DOUBLE_ROUND
    multiplier, shift = (_wide(a if a.size > 1 else a.reshape(())) for a in (multiplier, shift))
    made = _scaled(_wide(x) - int(zero_in[0]), multiplier, shift, double=double)
    low, high = limits("INT32")
    _require(made.min() >= low and made.max() <= high, "RESCALE leaves INT32")
    dtype = call.dtype
    if not call.flag(4):
        return _saturated(made + int(zero_out[0]), dtype)
    kind = np.dtype(f"u{NUMPY[dtype].itemsize}")
    made = (made + int(zero_out.view(kind)[0])).clip(0, np.iinfo(kind).max)
    return made.astype(kind).view(NUMPY[dtype])


def multiply(call: TosaCall, operands: Sequence[Array]) -> Array:
    x, z, shift = _wide(operands[0]), _wide(operands[1]), int(operands[2][0])
    if shift:
        return _scaled(x, z, shift)
    return np.multiply(x, z).astype(np.int32)  # wraps silently, like the reference model


def look_up(call: TosaCall, operands: Sequence[Array]) -> Array:
    x, entries = operands
    if entries.size == 256:
        return np.asarray(entries[x.astype(np.int16) + 128])
    place, entries = x.astype(np.int32) + (1 << 15), entries.astype(np.int32)
    first = entries[place >> 7]
    slope = entries[(place >> 7) + 1] - first
    _require(abs(slope) <= np.iinfo(np.int16).max + (slope < 0), "a TABLE rises too steeply")
    return np.asarray((first << 7) + slope * (place & 127))


def negate(call: TosaCall, operands: Sequence[Array]) -> Array:
    x, zero_in, zero_out = operands
    return _saturated(int(zero_in[0]) - _wide(x) + int(zero_out[0]), call.dtype)


def clamp(call: TosaCall, operands: Sequence[Array]) -> Array:
    return operands[0].clip(call.scalar(0), call.scalar(1))


def cast(call: TosaCall, operands: Sequence[Array]) -> Array:
    return operands[0].astype(NUMPY[call.dtype])


# --- element-wise ---


def _shift_count(z: Array, most: int) -> Array:
    _require((z >= 0) & (z <= most), f"a shift is beyond 0 to {most}")
    return z


def left(call: TosaCall, operands: Sequence[Array]) -> Array:
    x, z = operands
    return (_wide(x) << _wide(_shift_count(z, 31))).astype(x.dtype)


def right(call: TosaCall, operands: Sequence[Array]) -> Array:
    x, z = operands
    return (_wide(x.view(f"u{x.dtype.itemsize}")) >> _wide(_shift_count(z, 31))).astype(x.dtype)


def right_signed(call: TosaCall, operands: Sequence[Array]) -> Array:
    x, z = _wide(operands[0]), _wide(_shift_count(operands[1], 8 * operands[0].dtype.itemsize - 1))
    made = x >> z
    if call.flag(0):
        made += np.where(z > 0, (x >> np.maximum(z - 1, 0)) & 1, 0)
    return made


def divide(call: TosaCall, operands: Sequence[Array]) -> Array:
    x, z = (_wide(a) for a in operands)
    _require(z != 0, "INTDIV divides by zero")
    return np.asarray(np.sign(x) * np.sign(z) * (abs(x) // abs(z)))


def leading_zeros(call: TosaCall, operands: Sequence[Array]) -> Array:
    _, exponent = np.frexp(operands[0].view(np.uint32).astype(np.float64))
    return 32 - exponent


def each(compute: Callable[..., Array], *, wide: bool = False) -> Compute:
    """Apply a NumPy function to each element; ``wide``: in 64 bits."""
    return lambda call, operands: compute(*(_wide(a) if wide else a for a in operands))


def along_axis(compute: Callable[..., object], *, wide: bool = False) -> Compute:
    """Apply a NumPy function along an axis, keeping it with size 1."""

    def along(call: TosaCall, operands: Sequence[Array]) -> Array:
        x = _wide(operands[0]) if wide else operands[0]
        return np.asarray(compute(x, axis=call.axis(), keepdims=True))

    return along


# --- movement ---


def pairs(numbers: Sequence[int]) -> list[tuple[int, int]]:
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def pad(call: TosaCall, operands: Sequence[Array]) -> Array:
    x, amounts, value = operands
    pads = pairs(amounts.tolist())
    call.check([n + before + after for n, (before, after) in zip(x.shape, pads, strict=True)])
    return np.pad(x, pads, constant_values=value[0]) if x.ndim else x


def tile(call: TosaCall, operands: Sequence[Array]) -> Array:
    x, times = operands
    call.check([n * count for n, count in zip(x.shape, times.tolist(), strict=True)])
    return np.tile(x, times.tolist())


def cut_out(call: TosaCall, operands: Sequence[Array]) -> Array:
    x, begin, size = operands
    return x[tuple(slice(b, b + n) for b, n in zip(begin.tolist(), size.tolist(), strict=True))]


def _rows(indices: Array, count: int) -> Array:
    _require((indices >= 0) & (indices < count), f"a row is looked up that is none of 0 to {count - 1}")
    return indices


def gather(call: TosaCall, operands: Sequence[Array]) -> Array:
    x, indices = operands
    return np.take_along_axis(x, _rows(indices, x.shape[1])[..., None], 1)


def scatter(call: TosaCall, operands: Sequence[Array]) -> Array:
    x, indices, rows = operands
    _require([len(np.unique(row)) == row.size for row in _rows(indices, x.shape[1])], "a row is written twice")
    made = x.copy()
    np.put_along_axis(made, indices[..., None], rows, 1)
    return made


# --- windows ---


def _windows(x: Array, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]) -> Array:
    """View [N, *sides, C] as [N, *sides of the result, *kernel, C], without a copy."""
    axes = range(1, len(kernel) + 1)
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    view: Array = np.lib.stride_tricks.sliding_window_view(x, spans, axis=[*axes])  # type: ignore[call-overload]
    steps: list[slice] = [slice(None), *(slice(None, None, s) for s in stride)]
    taps: list[slice | EllipsisType] = [..., *(slice(None, None, d) for d in dilation), slice(None)]
    return np.asarray(np.moveaxis(view[tuple(steps)], len(kernel) + 1, -1)[tuple(taps)])


def _factors(x: Array, weight: Array, zeros: Sequence[Array], products: int) -> tuple[Array, Array]:
    """Both factors minus their zero points, in floats that hold every sum of ``products`` products."""
    a, b = (np.subtract(t, int(zero[0]), dtype=np.int32) for t, zero in zip((x, weight), zeros, strict=True))
    most = products * int(abs(a).max()) * int(abs(b).max())
    kind = next((kind for kind, limit in _EXACT.items() if most <= limit), None)
    if kind is None:
        raise undefined("sums of products leave 53 bits")
    return a.astype(kind), b.astype(kind)


def _padded(x: Array, pads: Sequence[int]) -> Array:
    return np.pad(x, [(0, 0), *pairs(pads), (0, 0)]) if any(pads) else x


def convolve(call: TosaCall, operands: Sequence[Array]) -> Array:
    x, weight = _factors(operands[0], operands[1], operands[3:], math.prod(operands[1].shape[1:]))
    pads, stride, dilation = (call.numbers(field) for field in range(3))
    kernel, size = weight.shape[1:-1], math.prod(weight.shape[1:])
    windows, flat = _windows(_padded(x, pads), kernel, stride, dilation), weight.reshape(len(weight), size).T
    made = np.empty(call.shape, np.int64)
    most = max(_MOST_BYTES // (size * x.itemsize * math.prod(made.shape[3:-1])), 1)
    height, width = max(most // made.shape[2], 1), min(most, made.shape[2])
    ranges = (range(len(made)), range(0, made.shape[1], height), range(0, made.shape[2], width))
    for batch, top, left in itertools.product(*ranges):
        box = (batch, slice(top, top + height), slice(left, left + width))
        part = windows[box]
        made[box] = (part.reshape(-1, size) @ flat).reshape(*part.shape[: len(kernel)], -1)
    return made + operands[2]


def convolve_depthwise(call: TosaCall, operands: Sequence[Array]) -> Array:
    x, weight = _factors(operands[0], operands[1], operands[3:], math.prod(operands[1].shape[:2]))
    pads, stride, dilation = (call.numbers(field) for field in range(3))
    windows = _windows(_padded(x, pads), weight.shape[:2], stride, dilation)
    made = np.zeros((*windows.shape[:3], *weight.shape[2:]), x.dtype)
    for i, j in np.ndindex(*weight.shape[:2]):
        made += windows[:, :, :, i, j, :, None] * weight[i, j]
    return made.reshape(call.shape).astype(np.int64) + operands[2]


def convolve_transposed(call: TosaCall, operands: Sequence[Array]) -> Array:
    x, weight = _factors(operands[0], operands[1], operands[3:], math.prod(operands[1].shape[1:]))
    pads, stride = pairs(call.numbers(0)), call.numbers(1)
    sides = [(n - 1) * s + k for n, s, k in zip(x.shape[1:3], stride, weight.shape[1:3], strict=True)]
    made = np.zeros((len(x), *sides, len(weight)), x.dtype)
    for i, j in np.ndindex(*weight.shape[1:3]):
        spot = made[:, i :: stride[0], j :: stride[1]][:, : x.shape[1], : x.shape[2]]
        spot += x @ weight[:, i, j].T
    inside = (slice(max(-a, 0), n - max(-b, 0)) for n, (a, b) in zip(sides, pads, strict=True))
    kept = (slice(None), *inside)  # not in the brackets: mypy takes that for syntax of Python 3.11
    cut = made[kept].astype(np.int64)
    return _padded(cut, [max(side, 0) for pad in pads for side in pad]) + operands[2]


def matmul(call: TosaCall, operands: Sequence[Array]) -> Array:
    a, b = _factors(operands[0], operands[1], operands[2:], operands[0].shape[-1])
    return (a @ b).astype(np.int64)


def greatest(call: TosaCall, operands: Sequence[Array]) -> Array:
    kernel, stride, pads = (call.numbers(field) for field in range(3))
    lowest = np.iinfo(operands[0].dtype).min
    x = np.pad(operands[0], [(0, 0), *pairs(pads), (0, 0)], constant_values=lowest)
    windows = _windows(x, kernel, stride, (1, 1))
    made = np.full(call.shape, lowest, x.dtype)
    for i, j in np.ndindex(*kernel):
        np.maximum(made, windows[:, :, :, i, j], out=made)
    return made


def average(call: TosaCall, operands: Sequence[Array]) -> Array:
    kernel, stride, pads = (call.numbers(field) for field in range(3))
    x, (zero_in, zero_out) = operands[0], (int(zero[0]) for zero in operands[1:])
    sums = np.zeros(call.shape, np.int64)
    count = np.zeros((*call.shape[1:3], 1), np.int64)
    inside = _padded(np.ones((1, *x.shape[1:3], 1), np.int64), pads)
    windows, there = (_windows(a, kernel, stride, (1, 1)) for a in (_padded(_wide(x) - zero_in, pads), inside))
    for i, j in np.ndindex(*kernel):
        sums += windows[:, :, :, i, j]
        count += there[0, :, :, i, j]
    _, exponent = np.frexp((count - 1).astype(np.float64))
    multiplier = (np.int64((1 << 30) + 1) << exponent.astype(np.int64)) // count
    return _saturated(_scaled(sums, multiplier, 30 + exponent.astype(np.int64)) + zero_out, call.dtype)


def resize(call: TosaCall, operands: Sequence[Array]) -> Array:
    x, scales, offsets, _ = operands
    places = []
    for axis in (0, 1):
        over, under = scales.tolist()[2 * axis : 2 * axis + 2]
        far = np.arange(call.shape[1 + axis], dtype=np.int64) * under + int(offsets[axis])
        last = x.shape[1 + axis] - 1
        place = far // over
        rest = far - place * over
        places.append((place.clip(0, last), (place + 1).clip(0, last), rest, over))
    (y0, y1, ry, sy), (x0, x1, rx, sx) = places
    if call.attributes.integer(0) == ResizeMode.NEAREST:
        rows, columns = (np.where(2 * r >= s, b, a) for a, b, r, s in places)
        return x[:, rows][:, :, columns]
    wide = _wide(x)
    ry, rx = ry[:, None, None], rx[:, None]
    upper, lower = (wide[:, y][:, :, x0] * (sx - rx) + wide[:, y][:, :, x1] * rx for y in (y0, y1))
    return np.asarray(upper * (sy - ry) + lower * ry)


OPERATORS: dict[str, Compute] = {
    "ARGMAX": lambda c, x: np.argmax(x[0], axis=c.axis()),
    "AVG_POOL2D": average,
    "CONV2D": convolve,
    "CONV3D": convolve,
    "DEPTHWISE_CONV2D": convolve_depthwise,
    "TRANSPOSE_CONV2D": convolve_transposed,
    "MATMUL": matmul,
    "MAX_POOL2D": greatest,
    "CLAMP": clamp,
    "ADD": each(np.add, wide=True),
    "SUB": each(np.subtract, wide=True),
    "INTDIV": divide,
    "MAXIMUM": each(np.maximum),
    "MINIMUM": each(np.minimum),
    "EQUAL": each(np.equal),
    "GREATER": each(np.greater),
    "GREATER_EQUAL": each(np.greater_equal),
    "ABS": each(np.abs, wide=True),
    "CLZ": leading_zeros,
    "LOGICAL_LEFT_SHIFT": left,
    "LOGICAL_RIGHT_SHIFT": right,
    "ARITHMETIC_RIGHT_SHIFT": right_signed,
    "BITWISE_AND": each(np.bitwise_and),
    "BITWISE_OR": each(np.bitwise_or),
    "BITWISE_XOR": each(np.bitwise_xor),
    "BITWISE_NOT": each(np.invert),
    "LOGICAL_AND": each(np.logical_and),
    "LOGICAL_OR": each(np.logical_or),
    "LOGICAL_XOR": each(np.logical_xor),
    "LOGICAL_NOT": each(np.logical_not),
    "REDUCE_SUM": along_axis(np.sum, wide=True),
    "REDUCE_ALL": along_axis(np.all),
    "REDUCE_ANY": along_axis(np.any),
    "REDUCE_MAX": along_axis(np.max),
    "REDUCE_MIN": along_axis(np.min),
    "CONCAT": lambda c, x: np.concatenate(x, c.axis()),
    "REVERSE": lambda c, x: np.flip(x[0], c.axis()),
    "TRANSPOSE": lambda c, x: x[0].transpose(c.numbers(0)),
    "RESHAPE": lambda c, x: x[0].reshape(x[1].tolist()),
    "TILE": tile,
    "MUL": multiply,
    "TABLE": look_up,
    "NEGATE": negate,
    "SELECT": each(np.where),
    "PAD": pad,
    "SLICE": cut_out,
    "GATHER": gather,
    "SCATTER": scatter,
    "RESIZE": resize,
    "CAST": cast,
    "RESCALE": rescale,
    "IDENTITY": lambda c, x: x[0],
}
"""Operators of our programs, by name."""


def computed(call: TosaCall, operands: Sequence[Array]) -> Array:
    """Return the result of an operator, as it is declared.

    Raises:
        PayloadError: the result is undefined for these operands.
        CorruptFlatbufferError: there is no result, or another one than declared.
    """
    try:
        with np.errstate(divide="raise"):
            made = np.asarray(OPERATORS[call.operator](call, operands))
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise CorruptFlatbufferError(f"{call.operator} of these operands has no result: {first_line(error)}") from None
    call.check(made.shape)
    kind = NUMPY[call.dtype]
    if made.dtype != kind or call.dtype == "INT48":
        low, high = limits(call.dtype)
        if not low <= int(made.min()) <= int(made.max()) <= high:
            raise undefined(f"the result of {call.operator} leaves {call.dtype}")
        made = made.astype(kind)
    return made
