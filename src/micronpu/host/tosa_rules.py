"""Types, shapes and attribute ranges of TOSA's operators.

The tables are those of the specification (https://www.mlplatform.org/tosa/tosa_spec_1_0_1.html: "Supported Data Types"
and the `ERROR_IF` of each operator), for integers. An operator, an attribute or a type that is missing here is refused.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from micronpu.base.flatbuffer import CorruptFlatbufferError, Table
from micronpu.ir.types import Shape

SIZES = "SHAPE"
"""The type of an operand that is a list of sizes, which is not a tensor."""
WIDTHS = {"BOOL": 1, "INT8": 1, "INT16": 2, "INT32": 4, "INT48": 6, SIZES: 8}
"""Bytes of an element in the file."""
_LARGEST = 1 << 13
"""Maximum kernel, stride or padding: MAX_KERNEL and MAX_STRIDE of the specification's level 8K."""
_MOST_SCALE, _MOST_SIDE = 1 << 11, 1 << 14  # of RESIZE
_DOUBLE_ROUND, _MOST_ROUNDING = 3, 3  # RoundingMode
_NEAREST, _BILINEAR = 1, 2  # ResizeMode
_MOST_NAN = 2  # NanPropagationMode
_NUMBERS = {"INT32": 5, "INT48": 6}  # DType, of sums


@dataclass(frozen=True)
class Operand:
    """An operand or result of an operator.

    Attributes:
        shape: of a list of sizes: its length.
        data: of a constant, as stored in the file.
    """

    dtype: str
    shape: Shape
    data: bytes | None = None

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


class TosaCall:
    """An operator with its operands and its result.

    Args:
        attributes: those of the operator; its rule has to read each of them.
    """

    def __init__(self, operands: Sequence[Operand], result: Operand, attributes: Table) -> None:
        self.operands, self.result = tuple(operands), result
        self.attributes, self._unread = attributes, set(attributes.fields())

    def shape(self, index: int, rank: int | None = None) -> Shape:
        """The shape of an operand; checks its rank."""
        found = self.operands[index].shape
        need(rank in (None, len(found)), f"operand {index} has the shape {list(found)} instead of {rank} axes")
        return found

    def values(self, index: int, count: int) -> tuple[int, ...]:
        """The numbers of an operand that must be a one-dimensional constant."""
        operand = self.operands[index]
        need(operand.data is not None, f"operand {index} is computed, where a constant belongs")
        need(operand.shape == (count,), f"operand {index} has the shape {list(operand.shape)} instead of [{count}]")
        width, data = WIDTHS[operand.dtype], operand.data or b""
        return tuple(int.from_bytes(data[i : i + width], "little", signed=True) for i in range(0, len(data), width))

    def zero(self, index: int, *, word: bool = False) -> None:
        """Check a zero point: 0 unless the type has 8 bits; ``word``: 32768 is allowed for an unsigned 16-bit type."""
        (value,) = self.values(index, 1)
        fits = self.operands[index].dtype == "INT8" or value == 0 or (word and value == -(1 << 15))
        need(fits, f"operand {index} is the zero point {value}")

    def number(self, field: int, least: int, most: int, what: str) -> int:
        """Return an attribute that is a number."""
        self._unread.discard(field)
        value = self.attributes.integer(field)
        need(least <= value <= most, f"{what} is {value}")
        return value

    def flag(self, field: int, what: str) -> bool:
        """Return an attribute that is a truth value."""
        self._unread.discard(field)
        value = self.attributes.integer(field, "<B")
        need(value <= 1, f"{what} is {value}")
        return bool(value)

    def numbers(self, field: int, count: int, least: int, what: str) -> tuple[int, ...]:
        """Return an attribute that is a list of numbers."""
        self._unread.discard(field)
        found = self.attributes.vector(field).integers()
        need(self.attributes.offset(field), f"{what} is missing")  # readers require even an empty list
        need(len(found) == count and all(least <= n <= _LARGEST for n in found), f"{what} is {list(found)}")
        return found

    def scalar(self, field: int, what: str) -> int:
        """Return an attribute with the bytes of one element of the first operand's type."""
        self._unread.discard(field)
        found = self.attributes.vector(field).integers("<B")
        need(len(found) == WIDTHS[self.operands[0].dtype], f"{what} has {len(found)} bytes")
        return int.from_bytes(bytes(found), "little", signed=True)

    def axis(self) -> int:
        """Return the attribute that is an axis of the first operand."""
        return self.number(0, 0, len(self.operands[0].shape) - 1, "the axis")

    def nan(self, field: int) -> None:
        """Check the NaN mode, which has no effect on integers."""
        self.number(field, 0, _MOST_NAN, "the treatment of NaN")

    def end(self) -> None:
        """Check that every attribute has been read."""
        need(not self._unread, f"it has the unknown attribute {min(self._unread, default=0)}")


def need(holds: object, what: str) -> None:
    """Raise `CorruptFlatbufferError` unless ``holds``."""
    if not holds:
        raise CorruptFlatbufferError(what)


def check_call(name: str, call: TosaCall) -> None:
    """Check one operator, and that its result is declared with the right type and shape.

    Args:
        name: of the operator.

    Raises:
        CorruptFlatbufferError: the defect, as a clause.
    """
    need(name in RULES, "no program has it")
    shape_of, types = RULES[name]
    given, made = tuple(o.dtype for o in call.operands), call.result.dtype
    if name == "CONCAT" and len(set(given)) == 1:
        given = given[:1]
    need((given, made) in types, f"it makes {made} of {', '.join(given) or 'nothing'}")
    shape = shape_of(call)
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
_RESIZED = (("INT8", "INT8"), ("INT8", "INT32"), ("INT16", "INT16"), ("INT16", "INT48"))
_RESCALED = itertools.product((*_INTEGERS.split(), "INT48"), ("INT16", "INT32"), _INTEGERS.split())
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
    wide, rounding = call.flag(0, "the width of the multipliers"), call.number(1, 1, _MOST_ROUNDING, "the rounding")
    per_channel = call.flag(2, "the scaling by channel")
    unsigned = [call.flag(field, "the sign") for field in (3, 4)]
    need(wide == (multipliers.dtype == "INT32"), f"the multipliers are {multipliers.dtype}")
    need(wide or rounding != _DOUBLE_ROUND, "multipliers of 16 bits are rounded twice")
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
    return tuple(n + before + after for n, (before, after) in zip(shape, _pairs(pads), strict=True))


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


def _pairs(values: Sequence[int]) -> list[tuple[int, int]]:
    return [(values[i], values[i + 1]) for i in range(0, len(values), 2)]


def _pooled(call: TosaCall) -> Shape:
    batch, *sides, channels = call.shape(0, 4)
    kernel, stride = call.numbers(0, 2, 1, "the window"), call.numbers(1, 2, 1, "the stride")
    pads = _pairs(call.numbers(2, 4, 0, "the padding"))
    need(all(max(pad) < k for pad, k in zip(pads, kernel, strict=True)), f"the padding is {pads}")
    far = [_steps(n, *pad, k, s) for n, pad, k, s in zip(sides, pads, kernel, stride, strict=True)]
    return (batch, *far, channels)


def _averaged(call: TosaCall) -> Shape:
    call.zero(1)
    call.zero(2)
    call.number(3, _NUMBERS["INT32"], _NUMBERS["INT32"], "the type of the sums")
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
    kind = _NUMBERS[call.result.dtype]
    call.number(bound + 1, kind, kind, "the type of the sums")


def _far(call: TosaCall, sides: Sequence[int], kernel: Sequence[int]) -> list[int]:
    """Spatial shape of a convolution's result."""
    pads = _pairs(call.numbers(0, 2 * len(sides), 0, "the padding"))
    stride, dilation = (call.numbers(i, len(sides), 1, what) for i, what in ((1, "the stride"), (2, "the dilation")))
    windows = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    need(max(windows) <= _LARGEST, f"the windows have sides of {windows}")
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
    pads, stride = _pairs(call.numbers(0, 4, -_LARGEST, "the padding")), call.numbers(1, 2, 1, "the stride")
    need(max(kernel) <= _LARGEST, f"the windows have sides of {kernel}")
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
    mode = call.number(0, _NEAREST, _BILINEAR, "the mode")
    is_sum = call.result.dtype in _NUMBERS
    need(is_sum == (mode == _BILINEAR), f"mode {mode} makes {call.result.dtype}")
    scales, offsets, borders = _pairs(call.values(1, 4)), call.values(2, 2), call.values(3, 2)
    far = []
    for side, (over, under), offset, border in zip(sides, scales, offsets, borders, strict=True):
        need(0 < over <= _MOST_SCALE and 0 < under < 16 * over, f"the scale is {over} / {under}")
        need(-over <= offset < 16 * over, f"the offset is {offset}")
        need(-16 * over <= border < over, f"the border is {border}")
        far.append(_steps((side - 1) * over + 1, -offset, border, 1, under))
        need(max(side, far[-1]) < _MOST_SIDE, f"sides of {side} become {far[-1]}")
    return (batch, *far, channels)


RULES: dict[str, tuple[Callable[[TosaCall], Shape], frozenset[tuple[tuple[str, ...], str]]]] = {
    "ARGMAX": (_position, _types("T>INT32", "INT8 INT16")),
    "AVG_POOL2D": (_averaged, _types("T,T,T>T", "INT8 INT16")),
    "CONV2D": (_convolution(2), _types(_SUMS)),
    "CONV3D": (_convolution(3), _types(_SUMS)),
    "DEPTHWISE_CONV2D": (_depthwise, _types(_SUMS)),
    "TRANSPOSE_CONV2D": (_spread, _types(_SUMS)),
    "MATMUL": (_multiplied, _types("INT8,INT8,INT8,INT8>INT32 INT16,INT16,INT16,INT16>INT48")),
    "MAX_POOL2D": (_greatest, _types(_UNARY, "INT8 INT16")),
    "CLAMP": (_clamped, _types(_UNARY, "INT8 INT16")),
    **dict.fromkeys(("ADD", "SUB", "INTDIV"), (_broadcast, _types(_BINARY, "INT32"))),
    **dict.fromkeys(("MAXIMUM", "MINIMUM"), (_compared, _types(_BINARY, "INT32"))),
    **dict.fromkeys(("EQUAL", "GREATER", "GREATER_EQUAL"), (_broadcast, _types(_TEST, "INT32"))),
    **dict.fromkeys(("ABS", "CLZ"), (_same, _types(_UNARY, "INT32"))),
    **dict.fromkeys(("LOGICAL_LEFT_SHIFT", "LOGICAL_RIGHT_SHIFT"), (_broadcast, _types(_BINARY, _INTEGERS))),
    "ARITHMETIC_RIGHT_SHIFT": (_shifted, _types(_BINARY, _INTEGERS)),
    **dict.fromkeys(("BITWISE_AND", "BITWISE_OR", "BITWISE_XOR"), (_broadcast, _types(_BINARY, _INTEGERS))),
    "BITWISE_NOT": (_same, _types(_UNARY, _INTEGERS)),
    **dict.fromkeys(("LOGICAL_AND", "LOGICAL_OR", "LOGICAL_XOR"), (_broadcast, _types(_BINARY, "BOOL"))),
    "LOGICAL_NOT": (_same, _types(_UNARY, "BOOL")),
    "REDUCE_SUM": (_reduced, _types(_UNARY, "INT32")),
    **dict.fromkeys(("REDUCE_ALL", "REDUCE_ANY"), (_reduced, _types(_UNARY, "BOOL"))),
    **dict.fromkeys(("REDUCE_MAX", "REDUCE_MIN"), (_extreme, _types(_UNARY, _INTEGERS))),
    "CONCAT": (_joined, _types(_UNARY, _ANY)),
    "REVERSE": (_reversed, _types(_UNARY, _ANY)),
    "TRANSPOSE": (_transposed, _types(_UNARY, _ANY)),
    "RESHAPE": (_reshaped, _types(f"T,{SIZES}>T", _ANY)),
    "TILE": (_tiled, _types(f"T,{SIZES}>T", _ANY)),
    "MUL": (_product, _types("T,T,INT8>INT32", _INTEGERS)),
    "TABLE": (_looked_up, _types("INT8,INT8>INT8 INT16,INT16>INT32")),
    "NEGATE": (_negated, _types("T,T,T>T", _INTEGERS)),
    "SELECT": (_broadcast, _types("BOOL,T,T>T", _ANY)),
    "PAD": (_padded, _types(f"T,{SIZES},T>T", _ANY)),
    "SLICE": (_sliced, _types(f"T,{SIZES},{SIZES}>T", _ANY)),
    "GATHER": (_gathered, _types("T,INT32>T", _INTEGERS)),
    "SCATTER": (_scattered, _types("T,INT32,T>T", _INTEGERS)),
    "RESIZE": (_resized, _types(" ".join(f"{x},{SIZES},{SIZES},{SIZES}>{y}" for x, y in _RESIZED))),
    "CAST": (_same, _types(" ".join(f"{x}>{y}" for x, y in itertools.permutations(_ANY.split(), 2)))),
    "RESCALE": (_rescaled, _types(" ".join(f"{x},{m},INT8,{x},{y}>{y}" for x, m, y in _RESCALED))),
    "IDENTITY": (_same, _types(_UNARY, f"{_ANY} INT48")),
}
"""Rules by operator: a function that returns the shape of the result after checking all requirements besides types, and
the types of the operands and of the result; a concatenation's first operand gives the type of all."""
