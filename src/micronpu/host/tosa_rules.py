"""Types, shapes and attribute ranges of TOSA's operators, and the kernel of each.

The tables are those of the specification (https://www.mlplatform.org/tosa/tosa_spec_1_0_1.html: "Supported Data Types"
and the `ERROR_IF` of each operator), for integers. An operator, an attribute or a type that is missing here is refused.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np

from micronpu.base.arrays import Array
from micronpu.base.flatbuffer import need
from micronpu.emit.tosa_file import NUMPY
from micronpu.emit.tosa_schema import DType, ResizeMode, RoundingMode
from micronpu.host import tosa_run as run
from micronpu.host.tosa_run import LARGEST, TosaCall, pairs
from micronpu.ir.types import Shape

_MOST_SCALE, _MOST_SIDE = 1 << 11, 1 << 14  # of RESIZE


def check_call(name: str, call: TosaCall) -> None:
    """Check one operator, and that its result is declared with the right type and shape; the error is a clause."""
    need(name in OPERATORS, "no program has it")
    rule, types, _ = OPERATORS[name]
    given, made = tuple(o.dtype for o in call.operands), call.result.dtype
    if name == "CONCAT" and len(set(given)) == 1:
        given = given[:1]
    need((given, made) in types, f"it makes {made} of {', '.join(given) or 'nothing'}")
    shape = rule(call)
    call.end()
    need(call.result.shape == tuple(shape), f"it makes {list(shape)}, which is declared as {call.result}")


# --- types of operands and results ---


def _types(forms: str, kinds: str = "") -> frozenset[tuple[tuple[str, ...], str]]:
    """Expand a table: in "T,INT8>T", T is replaced by each of the kinds."""
    rows = set()
    for form in forms.split():
        for kind in kinds.split() or ["-"]:
            given, made = ([kind if t == "T" else t for t in part.split(",") if t] for part in form.split(">"))
            rows.add((tuple(given), made[0]))
    return frozenset(rows)


_INTEGERS = "INT8 INT16 INT32"
_ANY = f"BOOL {_INTEGERS}"
_BINARY, _UNARY, _TEST = "T,T>T", "T>T", "T,T>BOOL"
_SUMS = "INT8,INT8,INT32,INT8,INT8>INT32 INT16,INT8,INT48,INT16,INT8>INT48"
_SCALED = (("INT8", "INT8"), ("INT8", "INT32"), ("INT16", "INT16"), ("INT16", "INT48"))
_RESIZED = " ".join(f"{x},SHAPE,SHAPE,SHAPE>{y}" for x, y in _SCALED)
_CASTS = " ".join(f"{x}>{y}" for x, y in itertools.permutations(_ANY.split(), 2))
_MULTIPLIED = itertools.product((*_INTEGERS.split(), "INT48"), ("INT16", "INT32"), _INTEGERS.split())
_RESCALED = " ".join(f"{x},{m},INT8,{x},{y}>{y}" for x, m, y in _MULTIPLIED)
# --- element-wise ---


def _same(call: TosaCall) -> Shape:
    return call.shape(0)


def _joint(shapes: Sequence[Shape]) -> Shape:
    """Broadcast shapes of one rank; axes of size 1 are repeated."""
    need(len({len(shape) for shape in shapes}) == 1, "its operands have different numbers of axes")
    for sides in zip(*shapes, strict=True):
        need(len(set(sides) - {1}) <= 1, f"sides of {' and '.join(map(str, sorted(set(sides) - {1})))} meet")
    return tuple(map(max, zip(*shapes, strict=True)))


def _broadcast(call: TosaCall) -> Shape:
    return _joint([o.shape for o in call.operands])


def _shifted(call: TosaCall) -> Shape:
    call.flag(0, "the rounding")
    return _broadcast(call)


def _compared(call: TosaCall) -> Shape:
    call.nan(0)
    return _broadcast(call)


def _product(call: TosaCall) -> Shape:
    (shift,) = call.values(2, 1)
    need(0 <= shift <= (63 if call.operands[0].dtype == "INT32" else 0), f"the shift is {shift}")
    return _joint([call.shape(0), call.shape(1)])


def _negated(call: TosaCall) -> Shape:
    call.zero(1)
    call.zero(2)
    return call.shape(0)


def _clamped(call: TosaCall) -> Shape:
    low, high = call.scalar(0, "the lower bound"), call.scalar(1, "the upper bound")
    need(low <= high, f"the bounds are {low} and {high}")
    call.nan(2)
    return call.shape(0)


def _looked_up(call: TosaCall) -> Shape:
    call.values(1, 256 if call.operands[0].dtype == "INT8" else 513)
    return call.shape(0)


def _rescaled(call: TosaCall) -> Shape:
    x, multipliers = call.operands[0], call.operands[1]
    wide, rounding = call.flag(0, "the width of the multipliers"), call.number(1, 1, max(RoundingMode), "the rounding")
    per_channel = call.flag(2, "the scaling by channel")
    unsigned = [call.flag(field, "the sign") for field in (3, 4)]
    need(wide == (multipliers.dtype == "INT32"), f"the multipliers are {multipliers.dtype}")
    need(wide or rounding != RoundingMode.DOUBLE_ROUND, "multipliers of 16 bits are rounded twice")
    need(not (wide and x.dtype == "INT48"), "48 bits are multiplied by 32")
    need(x.shape or not per_channel, "a scalar is scaled by channel")
    count = x.shape[-1] if per_channel else 1
    need(all(n >= 0 for n in call.values(1, count)), "a multiplier is negative")
    need(all(2 <= n <= 62 for n in call.values(2, count)), f"the shifts are {sorted(set(call.values(2, count)))}")
    need(not all(unsigned), "neither side is signed")
    for index, is_unsigned in zip((3, 4), unsigned, strict=True):
        dtype = call.operands[index].dtype
        need(not is_unsigned or dtype in ("INT8", "INT16"), f"{dtype} is marked as unsigned")
        call.zero(index, word=is_unsigned and dtype == "INT16")
    return x.shape


# --- along an axis ---


def _position(call: TosaCall) -> Shape:
    axis = call.axis()
    call.nan(1)
    shape = call.shape(0)
    return (*shape[:axis], *shape[axis + 1 :])


def _reduced(call: TosaCall) -> Shape:
    axis = call.axis()
    return tuple(1 if i == axis else n for i, n in enumerate(call.shape(0)))


def _extreme(call: TosaCall) -> Shape:
    call.nan(1)
    return _reduced(call)


def _reversed(call: TosaCall) -> Shape:
    call.axis()
    return call.shape(0)


def _joined(call: TosaCall) -> Shape:
    axis = call.axis()
    shapes = [o.shape for o in call.operands]
    rest = {(*shape[:axis], *shape[axis + 1 :]) for shape in shapes}
    need(len(rest) == 1 and len({len(shape) for shape in shapes}) == 1, "its operands have sides that do not fit")
    return (*shapes[0][:axis], sum(shape[axis] for shape in shapes), *shapes[0][axis + 1 :])


# --- movement ---


def _padded(call: TosaCall) -> Shape:
    shape = call.shape(0)
    pads = call.values(1, 2 * len(shape))
    need(all(n >= 0 for n in pads), f"the padding is {list(pads)}")
    call.values(2, 1)
    return tuple(n + before + after for n, (before, after) in zip(shape, pairs(pads), strict=True))


def _reshaped(call: TosaCall) -> Shape:
    shape = call.values(1, math.prod(call.shape(1)))
    fits = all(n > 0 for n in shape) and math.prod(shape) == math.prod(call.shape(0))
    need(fits, f"{call.operands[0]} becomes {list(shape)}")
    return shape


def _sliced(call: TosaCall) -> Shape:
    shape = call.shape(0)
    starts, sizes = call.values(1, len(shape)), call.values(2, len(shape))
    inside = all(a >= 0 and n > 0 and a + n <= side for a, n, side in zip(starts, sizes, shape, strict=True))
    need(inside, f"{list(sizes)} elements from {list(starts)} on leave {list(shape)}")
    return sizes


def _tiled(call: TosaCall) -> Shape:
    times = call.values(1, len(call.shape(0)))
    need(all(n > 0 for n in times), f"it is repeated {list(times)} times")
    return tuple(n * count for n, count in zip(call.shape(0), times, strict=True))


def _transposed(call: TosaCall) -> Shape:
    shape = call.shape(0)
    order = call.numbers(0, len(shape), 0, "the order of axes")
    need(sorted(order) == list(range(len(shape))), f"the order of axes is {list(order)}")
    return tuple(shape[axis] for axis in order)


def _gathered(call: TosaCall) -> Shape:
    (batch, _, channels), (other, count) = call.shape(0, 3), call.shape(1, 2)
    need(batch == other, f"{call.operands[0]} is read at {call.operands[1]}")
    return (batch, count, channels)


def _scattered(call: TosaCall) -> Shape:
    (batch, rows, channels), (other, count), rest = call.shape(0, 3), call.shape(1, 2), call.shape(2, 3)
    need(batch == other and rest == (batch, count, channels), f"{call.operands[2]} is written at {call.operands[1]}")
    need(rows >= count, f"{count} rows are written into {rows}")
    return call.shape(0)


# --- windows ---


def _steps(size: int, before: int, after: int, window: int, stride: int) -> int:
    """Number of positions of a window; TOSA requires the last one to end where the tensor ends."""
    room = size + before + after - window
    fits = room >= 0 and room % stride == 0
    need(fits, f"windows of {window} with stride {stride} do not fit into {size} padded by {before} and {after}")
    return room // stride + 1


def _pooled(call: TosaCall) -> Shape:
    batch, *sides, channels = call.shape(0, 4)
    kernel, stride = call.numbers(0, 2, 1, "the window"), call.numbers(1, 2, 1, "the stride")
    pads = pairs(call.numbers(2, 4, 0, "the padding"))
    need(all(max(pad) < k for pad, k in zip(pads, kernel, strict=True)), f"the padding is {pads}")
    far = [_steps(n, *pad, k, s) for n, pad, k, s in zip(sides, pads, kernel, stride, strict=True)]
    return (batch, *far, channels)


def _averaged(call: TosaCall) -> Shape:
    call.zero(1)
    call.zero(2)
    call.number(3, DType.INT32, DType.INT32, "the type of the sums")
    return _pooled(call)


def _greatest(call: TosaCall) -> Shape:
    call.nan(3)
    return _pooled(call)


def _check_sums(call: TosaCall, channels: int, bound: int) -> None:
    """Check bias, zero points, and the attributes from ``bound`` on, which all convolutions have."""
    (biases,) = call.shape(2, 1)
    need(biases in (1, channels), f"there are {biases} biases for {channels} channels")
    call.zero(3)
    call.zero(4)
    call.flag(bound, "the bound")
    kind = DType[call.result.dtype]
    call.number(bound + 1, kind, kind, "the type of the sums")


def _far(call: TosaCall, sides: Sequence[int], kernel: Sequence[int]) -> list[int]:
    pads = pairs(call.numbers(0, 2 * len(sides), 0, "the padding"))
    stride, dilation = (call.numbers(i, len(sides), 1, what) for i, what in ((1, "the stride"), (2, "the dilation")))
    windows = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    need(max(windows) <= LARGEST, f"the windows have sides of {windows}")
    return [_steps(n, *pad, k, s) for n, pad, k, s in zip(sides, pads, windows, stride, strict=True)]


def _convolution(axes: int) -> Callable[[TosaCall], Shape]:
    def shape(call: TosaCall) -> Shape:
        batch, *sides, depth = call.shape(0, axes + 2)
        channels, *kernel, inner = call.shape(1, axes + 2)
        need(inner == depth, f"weights for {inner} channels meet {depth}")
        _check_sums(call, channels, 3)
        return (batch, *_far(call, sides, kernel), channels)

    return shape


def _depthwise(call: TosaCall) -> Shape:
    batch, *sides, depth = call.shape(0, 4)
    *kernel, inner, multiplier = call.shape(1, 4)
    need(inner == depth, f"weights for {inner} channels meet {depth}")
    _check_sums(call, depth * multiplier, 3)
    return (batch, *_far(call, sides, kernel), depth * multiplier)


def _spread(call: TosaCall) -> Shape:
    batch, *sides, depth = call.shape(0, 4)
    channels, *kernel, inner = call.shape(1, 4)
    need(inner == depth, f"weights for {inner} channels meet {depth}")
    _check_sums(call, channels, 2)
    pads, stride = pairs(call.numbers(0, 4, -LARGEST, "the padding")), call.numbers(1, 2, 1, "the stride")
    need(max(kernel) <= LARGEST, f"the windows have sides of {kernel}")
    need(all(min(pad) > -k for pad, k in zip(pads, kernel, strict=True)), f"the padding is {pads}")
    return (
        batch,
        *((n - 1) * s + sum(pad) + k for n, s, pad, k in zip(sides, stride, pads, kernel, strict=True)),
        channels,
    )


def _multiplied(call: TosaCall) -> Shape:
    (batch, rows, inner), (other, depth, columns) = call.shape(0, 3), call.shape(1, 3)
    need((batch, inner) == (other, depth), f"{call.operands[0]} meets {call.operands[1]}")
    call.zero(2)
    call.zero(3)
    return (batch, rows, columns)


def _resized(call: TosaCall) -> Shape:
    batch, *sides, channels = call.shape(0, 4)
    mode = call.number(0, min(ResizeMode), max(ResizeMode), "the mode")
    is_sum = call.result.dtype in ("INT32", "INT48")
    need(is_sum == (mode == ResizeMode.BILINEAR), f"mode {mode} makes {call.result.dtype}")
    scales, offsets, borders = pairs(call.values(1, 4)), call.values(2, 2), call.values(3, 2)
    far = []
    for side, (over, under), offset, border in zip(sides, scales, offsets, borders, strict=True):
        need(0 < over <= _MOST_SCALE and 0 < under < 16 * over, f"the scale is {over} / {under}")
        need(-over <= offset < 16 * over, f"the offset is {offset}")
        need(-16 * over <= border < over, f"the border is {border}")
        far.append(_steps((side - 1) * over + 1, -offset, border, 1, under))
        need(max(side, far[-1]) < _MOST_SIDE, f"sides of {side} become {far[-1]}")
    return (batch, *far, channels)


OPERATORS: dict[str, tuple[Callable[[TosaCall], Shape], frozenset[tuple[tuple[str, ...], str]], run.Compute]] = {
    "ARGMAX": (_position, _types("T>INT32", "INT8 INT16"), lambda c, x: np.argmax(x[0], axis=c.axis())),
    "AVG_POOL2D": (_averaged, _types("T,T,T>T", "INT8 INT16"), run.average),
    "CONV2D": (_convolution(2), _types(_SUMS), run.convolve),
    "CONV3D": (_convolution(3), _types(_SUMS), run.convolve),
    "DEPTHWISE_CONV2D": (_depthwise, _types(_SUMS), run.convolve_depthwise),
    "TRANSPOSE_CONV2D": (_spread, _types(_SUMS), run.convolve_transposed),
    "MATMUL": (_multiplied, _types("INT8,INT8,INT8,INT8>INT32 INT16,INT16,INT16,INT16>INT48"), run.matmul),
    "MAX_POOL2D": (_greatest, _types(_UNARY, "INT8 INT16"), run.greatest),
    "CLAMP": (_clamped, _types(_UNARY, "INT8 INT16"), run.clamp),
    "ADD": (_broadcast, _types(_BINARY, "INT32"), run.each(np.add, wide=True)),
    "SUB": (_broadcast, _types(_BINARY, "INT32"), run.each(np.subtract, wide=True)),
    "INTDIV": (_broadcast, _types(_BINARY, "INT32"), run.divide),
    "MAXIMUM": (_compared, _types(_BINARY, "INT32"), run.each(np.maximum)),
    "MINIMUM": (_compared, _types(_BINARY, "INT32"), run.each(np.minimum)),
    "EQUAL": (_broadcast, _types(_TEST, "INT32"), run.each(np.equal)),
    "GREATER": (_broadcast, _types(_TEST, "INT32"), run.each(np.greater)),
    "GREATER_EQUAL": (_broadcast, _types(_TEST, "INT32"), run.each(np.greater_equal)),
    "ABS": (_same, _types(_UNARY, "INT32"), run.each(np.abs, wide=True)),
    "CLZ": (_same, _types(_UNARY, "INT32"), run.leading_zeros),
    "LOGICAL_LEFT_SHIFT": (_broadcast, _types(_BINARY, _INTEGERS), run.left),
    "LOGICAL_RIGHT_SHIFT": (_broadcast, _types(_BINARY, _INTEGERS), run.right),
    "ARITHMETIC_RIGHT_SHIFT": (_shifted, _types(_BINARY, _INTEGERS), run.right_signed),
    "BITWISE_AND": (_broadcast, _types(_BINARY, _INTEGERS), run.each(np.bitwise_and)),
    "BITWISE_OR": (_broadcast, _types(_BINARY, _INTEGERS), run.each(np.bitwise_or)),
    "BITWISE_XOR": (_broadcast, _types(_BINARY, _INTEGERS), run.each(np.bitwise_xor)),
    "BITWISE_NOT": (_same, _types(_UNARY, _INTEGERS), run.each(np.invert)),
    "LOGICAL_AND": (_broadcast, _types(_BINARY, "BOOL"), run.each(np.logical_and)),
    "LOGICAL_OR": (_broadcast, _types(_BINARY, "BOOL"), run.each(np.logical_or)),
    "LOGICAL_XOR": (_broadcast, _types(_BINARY, "BOOL"), run.each(np.logical_xor)),
    "LOGICAL_NOT": (_same, _types(_UNARY, "BOOL"), run.each(np.logical_not)),
    "REDUCE_SUM": (_reduced, _types(_UNARY, "INT32"), run.along_axis(np.sum, wide=True)),
    "REDUCE_ALL": (_reduced, _types(_UNARY, "BOOL"), run.along_axis(np.all)),
    "REDUCE_ANY": (_reduced, _types(_UNARY, "BOOL"), run.along_axis(np.any)),
    "REDUCE_MAX": (_extreme, _types(_UNARY, _INTEGERS), run.along_axis(np.max)),
    "REDUCE_MIN": (_extreme, _types(_UNARY, _INTEGERS), run.along_axis(np.min)),
    "CONCAT": (_joined, _types(_UNARY, _ANY), lambda c, x: np.concatenate(x, c.axis())),
    "REVERSE": (_reversed, _types(_UNARY, _ANY), lambda c, x: np.flip(x[0], c.axis())),
    "TRANSPOSE": (_transposed, _types(_UNARY, _ANY), lambda c, x: x[0].transpose(run.list_of(c, 0))),
    "RESHAPE": (_reshaped, _types("T,SHAPE>T", _ANY), lambda c, x: x[0].reshape(c.result.shape)),
    "TILE": (_tiled, _types("T,SHAPE>T", _ANY), lambda c, x: np.tile(x[0], x[1].tolist())),
    "MUL": (_product, _types("T,T,INT8>INT32", _INTEGERS), run.multiply),
    "TABLE": (_looked_up, _types("INT8,INT8>INT8 INT16,INT16>INT32"), run.look_up),
    "NEGATE": (_negated, _types("T,T,T>T", _INTEGERS), run.negate),
    "SELECT": (_broadcast, _types("BOOL,T,T>T", _ANY), run.each(np.where)),
    "PAD": (_padded, _types("T,SHAPE,T>T", _ANY), run.pad),
    "SLICE": (_sliced, _types("T,SHAPE,SHAPE>T", _ANY), run.cut_out),
    "GATHER": (_gathered, _types("T,INT32>T", _INTEGERS), run.gather),
    "SCATTER": (_scattered, _types("T,INT32,T>T", _INTEGERS), run.scatter),
    "RESIZE": (_resized, _types(_RESIZED), run.resize),
    "CAST": (_same, _types(_CASTS), run.cast),
    "RESCALE": (_rescaled, _types(_RESCALED), run.rescale),
    "IDENTITY": (_same, _types(_UNARY, f"{_ANY} INT48"), lambda c, x: x[0]),
}
"""Operators by name: a function that returns the shape of the result after checking all requirements besides types, the
types of the operands and of the result, and the kernel. A concatenation's first operand gives the type of all."""


def computed(name: str, call: TosaCall, operands: Sequence[Array]) -> Array:
    """Return the result of an operator; raise `PayloadError` if it is undefined for these operands."""
    made = np.asarray(OPERATORS[name][2](call, operands))
    kind = NUMPY[call.result.dtype]
    if made.dtype != kind or call.result.dtype == "INT48":
        low, high = run.limits(call.result.dtype)
        if not low <= int(made.min()) <= int(made.max()) <= high:
            raise run.undefined(f"the result of {name} leaves {call.result.dtype}")
        made = made.astype(kind)
    return made
