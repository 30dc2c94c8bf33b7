"""ATen operators that repeat, concatenate or reorder slices, and all kinds of padding."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from micronpu.base.arrays import Array
from micronpu.base.errors import InternalError, UnsupportedError
from micronpu.ir.aten import AtenArguments, AtenNode, axis_of, pair
from micronpu.ir.facts import Facts, Given, Interval, IntervalOf, joined, keeps
from micronpu.ir.graph import Tensor
from micronpu.ir.lowering import Float, Writer, decomposes
from micronpu.ir.op import QuantizationRule, Value, shares_qparams
from micronpu.ir.registry import MOVES, imports, operator
from micronpu.ir.types import DType, TensorType
from micronpu.ops.bounds import with_zeros
from micronpu.ops.movement import Pad, Padding, channels_first, channels_last, reshaped, transposed
from micronpu.ops.pooling import MaxPool2d
from micronpu.ops.slicing import SLICES, STACKS, Concat, Slice, sliced

if TYPE_CHECKING:
    from micronpu.emit.litert import LiteRtEmitter
    from micronpu.emit.tosa import TosaEmitter, TosaTensor


@imports(*SLICES, quantization=Slice.quantization)
def _slice(node: AtenNode) -> Tensor:
    x = node.tensor("x")
    axis = axis_of(node, "dim", len(x.shape))
    size = x.shape[axis]
    # Python clips bounds and counts negative ones from the end; torch supports positive steps only.
    start, stop, step = slice(node.value("start"), node.value("end"), node.value("step")).indices(size)
    return strided(node, x, axis, start, stop, step)


def strided(node: AtenNode, x: Tensor, axis: int, start: int, stop: int, step: int) -> Tensor:
    """Every ``step``-th element from ``start`` up to ``stop`` along an axis, without a strided slice.

    Height and width of an image: a max pool with a window of 1x1 and this stride. Any other axis is split into pieces
        of ``step`` elements, and one of each is selected:

    x [.., n, ..] -> slice [.., count * step, ..] -> reshape [.., count, step, ..]
                  -> slice [.., count, 1, ..] -> reshape [.., count, ..]
    """
    if step == 1 or stop - start <= step:
        return sliced(node, x, axis, start, stop if step == 1 else min(stop, start + 1))
    if len(x.shape) == 4 and axis >= 2:
        part = channels_last(node, sliced(node, x, axis, start, stop))
        stride = (step, 1) if axis == 2 else (1, step)
        return channels_first(node, node.emit(MaxPool2d((1, 1), stride), part))
    count = -(-(stop - start) // step)
    shape = list(x.shape)
    length = count * step
    if length > shape[axis]:
        after = tuple(length - n if i == axis else 0 for i, n in enumerate(shape))
        x = node.emit(Pad((0,) * len(shape), after), x)
        shape[axis] = length
    # The pieces may start before `start`, which is then not their first element.
    first = min(start, shape[axis] - length)
    x = sliced(node, x, axis, first, first + length)
    before, behind = tuple(shape[:axis]), tuple(shape[axis + 1 :])
    pieces = reshaped(node, x, (*before, count, step, *behind))
    return reshaped(node, sliced(node, pieces, axis + 1, start - first, start - first + 1), (*before, count, *behind))


MOST_AT_ONCE = 16
"""Maximum operands of one concatenation that copies; more copies are made from copies."""
MAX_FLIPPED = 64
"""Longest axis to reverse, and largest window to unfold; every element takes a slice."""


def tiled(node: AtenNode, x: Tensor, axis: int, count: int) -> Tensor:
    """``count`` copies of x along an axis."""
    if count == 0:
        raise UnsupportedError(f"`{node.overload}` has a result without elements.")
    rest: list[Tensor] = []
    while count > MOST_AT_ONCE:
        count, odd = divmod(count, MOST_AT_ONCE)
        rest += [x] * odd
        x = node.emit(Concat(axis), *[x] * MOST_AT_ONCE)
    parts = [x] * count + rest
    return node.emit(Concat(axis), *parts) if len(parts) > 1 else x


@imports(*STACKS, quantization=shares_qparams(of="tensors"), tensors="tensors")
def build_stack(node: AtenNode) -> Tensor:
    """Stack tensors along a new axis."""
    axis = axis_of(node, "dim", len(node.shape))
    shape = (*node.shape[:axis], 1, *node.shape[axis + 1 :])
    parts = [reshaped(node, t, shape) for t in node.tensors("tensors")]
    return node.emit(Concat(axis), *parts)


@imports("hstack.default", "vstack.default", "dstack.default", quantization=shares_qparams(of="tensors"))
def build_named_stack(node: AtenNode) -> Tensor:
    """Concatenate tensors: hstack along axis 1 (0 for vectors), vstack along axis 0 and dstack along axis 2."""
    tensors = node.tensors("tensors")
    kind = node.overload.split(".")[0]
    axis = {"hstack": 1, "vstack": 0, "dstack": 2}[kind]
    if kind == "hstack" and len(node.shape) == 1:
        axis = 0
    shapes = []
    for tensor in tensors:
        shape = tensor.shape
        if kind != "hstack" and len(shape) < 2:
            shape = (1, *(shape or (1,)))
        shapes.append((*shape, 1) if kind == "dstack" and len(shape) == 2 else shape or (1,))
    parts = [reshaped(node, t, s) for t, s in zip(tensors, shapes, strict=True)]
    return node.emit(Concat(axis), *parts)


@imports(
    *("expand.default", "expand_copy.default", "broadcast_to.default", "repeat.default", "tile.default"),
    quantization=shares_qparams(),
)
def build_copies(node: AtenNode) -> Tensor:
    """Repeat the whole tensor along each axis, up to the size of the result."""
    x = node.tensor("x")
    shape = node.shape
    x = reshaped(node, x, (1,) * (len(shape) - len(x.shape)) + x.shape)
    # Inner axes first, so that copies of outer axes are copies of whole blocks.
    for axis in reversed(range(len(shape))):
        if x.shape[axis] != shape[axis]:
            x = tiled(node, x, axis, shape[axis] // x.shape[axis])
    return x


@imports("repeat_interleave.self_int", quantization=shares_qparams())
def build_repeat_interleave(node: AtenNode) -> Tensor:
    """Repeat every element along an axis in place."""
    x = node.tensor("x")
    if node.value("dim") is None:
        x, axis = reshaped(node, x, (math.prod(x.shape),)), 0
    else:
        axis = axis_of(node, "dim", len(x.shape))
    apart = reshaped(node, x, (*x.shape[: axis + 1], 1, *x.shape[axis + 1 :]))
    return reshaped(node, tiled(node, apart, axis + 1, int(node.value("repeats"))), node.shape)


@imports("flip.default", quantization=shares_qparams())
def build_flip(node: AtenNode) -> Tensor:
    """Axes in reverse order."""
    x = node.tensor("x")
    for dim in node.value("dims"):
        axis = int(dim) % len(x.shape)
        size = x.shape[axis]
        if size > MAX_FLIPPED:
            raise UnsupportedError(
                f"`flip` reverses an axis of {size} elements; each costs a slice, and at most {MAX_FLIPPED} are taken.",
                hint="flip the data before it enters the model, or the weights that read it",
            )
        if size > 1:
            x = node.emit(Concat(axis), *(sliced(node, x, axis, i, i + 1) for i in reversed(range(size))))
    return x


@imports("roll.default", quantization=shares_qparams())
def build_roll(node: AtenNode) -> Tensor:
    """Rotate axes; without axes, rotate all elements in their order."""
    x = node.tensor("x")
    dims = [int(d) % len(x.shape) for d in node.value("dims") or []]
    given = node.value("shifts")
    shifts = [int(s) for s in (given if isinstance(given, list) else [given])]
    if not dims:
        x, dims = reshaped(node, x, (math.prod(x.shape),)), [0]
    for axis, shift in zip(dims, shifts, strict=True):
        size = x.shape[axis]
        cut = -shift % size
        if cut:
            x = node.emit(Concat(axis), sliced(node, x, axis, cut, size), sliced(node, x, axis, 0, cut))
    return reshaped(node, x, node.shape)


@imports("pixel_shuffle.default", "pixel_unshuffle.default", quantization=shares_qparams())
def build_pixel_shuffle(node: AtenNode) -> Tensor:
    """Channels to blocks of pixels, [N, C * r * r, H, W] to [N, C, H * r, W * r], or the reverse."""
    x, is_reverse = node.tensor("x"), node.overload.startswith("pixel_unshuffle")
    r = int(node.value("downscale_factor" if is_reverse else "upscale_factor"))
    batch, (channels, height, width) = math.prod(x.shape[:-3]), x.shape[-3:]
    image = channels_last(node, reshaped(node, x, (batch, channels, height, width)))
    if is_reverse:
        apart = reshaped(node, image, (batch * height // r, r, width // r, r, channels))
        moved = transposed(node, apart, (0, 2, 4, 1, 3))
    else:
        apart = reshaped(node, image, (batch * height, width, channels // (r * r), r, r))
        moved = transposed(node, apart, (0, 3, 1, 4, 2))
    channels, height, width = node.shape[-3:]
    return reshaped(node, channels_first(node, reshaped(node, moved, (batch, height, width, channels))), node.shape)


@imports("channel_shuffle.default", "native_channel_shuffle.default", quantization=shares_qparams())
def build_channel_shuffle(node: AtenNode) -> Tensor:
    """Interleave the channels of g groups: channel ``i * (C / g) + j`` moves to ``j * g + i``."""
    x = node.tensor("x")
    groups = int(node.value("groups"))
    batch, channels = x.shape[:2]
    pixels = math.prod(x.shape[2:])
    is_image = len(x.shape) == 4
    rows = (
        channels_last(node, x)
        if is_image
        else transposed(node, reshaped(node, x, (batch, channels, pixels)), (0, 2, 1))
    )
    apart = reshaped(node, rows, (batch * pixels, groups, channels // groups))
    joined = reshaped(node, transposed(node, apart, (0, 2, 1)), rows.shape)
    if is_image:
        return channels_first(node, joined)
    return reshaped(node, transposed(node, joined, (0, 2, 1)), node.shape)


@imports("unfold.default", "unfold_copy.default", quantization=shares_qparams())
def build_unfold(node: AtenNode) -> Tensor:
    """Windows along one axis, which become a new last axis.

    x [.., N] -> [.., N / block, block] -> slices -> concat -> y [.., windows, size]

    The size of a block divides window and step, so that frames of 400 with steps of 160 have five parts.
    """
    x = node.tensor("x")
    axis = int(node.value("dimension")) % len(x.shape)
    size, step = int(node.value("size")), int(node.value("step"))
    block = math.gcd(size, step)
    if size > MAX_FLIPPED * block:
        raise UnsupportedError(
            f"`unfold` with windows of {size} elements and steps of {step} needs {size // block} slices; at most "
            f"{MAX_FLIPPED} are made.",
            hint="a size and a step with a large common divisor, or a convolution",
        )
    before, after, windows = x.shape[:axis], x.shape[axis + 1 :], node.shape[axis]
    x = strided(node, x, axis, 0, (windows - 1) * step + size, 1)
    x = reshaped(node, x, (math.prod(before), x.shape[axis] // block, block * math.prod(after)))
    reach, stride = (windows - 1) * step // block + 1, step // block
    parts = [strided(node, x, 1, i, i + reach, stride) for i in range(size // block)]
    joined = node.emit(Concat(2), *parts) if len(parts) > 1 else parts[0]
    if math.prod(after) != 1:
        joined = reshaped(node, joined, (math.prod(before) * windows, size, math.prod(after)))
        joined = transposed(node, joined, (0, 2, 1))
    return reshaped(node, joined, node.shape)


@imports("im2col.default", quantization=shares_qparams(), facts=replace(MOVES, range=with_zeros))
def build_columns(node: AtenNode) -> Tensor:
    """`torch.nn.Unfold`: for every channel and kernel position, the elements of all windows at this position.

    [N, C, H, W] to [N, C * KH * KW, windows]
    """
    x = node.tensor("x")
    (high, wide), (down, across) = pair(node, "kernel_size"), pair(node, "stride")
    (rows, columns), (spread, reach) = pair(node, "padding"), pair(node, "dilation")
    if high * wide > MAX_FLIPPED:
        what = f"`im2col` with a kernel of {high} x {wide} is not imported; at most {MAX_FLIPPED} positions are."
        raise UnsupportedError(what, hint="a convolution in place of unfold and matrix product")
    x = reshaped(node, x, (math.prod(x.shape[:-3]), *x.shape[-3:]))
    if rows or columns:
        sides = (0, 0, rows, columns)
        x = node.emit(Pad(sides, sides), x)
    batch, channels, height, width = x.shape
    last_row, last_column = height - spread * (high - 1), width - reach * (wide - 1)
    parts = []
    for i in range(high):
        band = strided(node, x, 2, i * spread, i * spread + last_row, down)
        for j in range(wide):
            part = strided(node, band, 3, j * reach, j * reach + last_column, across)
            parts.append(reshaped(node, part, (batch, channels, 1, part.shape[2] * part.shape[3])))
    joined = node.emit(Concat(2), *parts) if len(parts) > 1 else parts[0]
    return reshaped(node, joined, node.shape)


# ---------------------------------------------------------------- weights that the program computes; padding


@decomposes("conv2d.default", "conv1d.default")
def _computed_weights(write: Writer) -> Float:
    """conv2d(x, w) -> w as rows @ im2col(x), for weights that the program computes

    x [N, C, H, W], w [O, C / groups, KH, KW] -> rows [O, C / groups * KH * KW] @ columns [.., windows]
    """
    given = write.given
    x, weight, bias, groups = given["input"], given["weight"], given["bias"], int(given["groups"])
    if write.is_constant(weight) or write.dtype(weight) is not DType.FLOAT32:
        return None
    lists = [list(given[name]) for name in ("dilation", "padding", "stride")]
    if write.overload == "conv1d.default":
        x, weight = write("unsqueeze.default", x, 2), write("unsqueeze.default", weight, 2)
        lists = [[neutral, *values] for neutral, values in zip((1, 0, 1), lists, strict=True)]
    outputs, depth, *kernel = write.shape(weight)
    if math.prod(kernel) > MAX_FLIPPED or len(write.shape(x)) != 4:
        return None
    batch, taps = write.shape(x)[0], depth * math.prod(kernel)
    columns = write("im2col.default", x, kernel, *lists)
    windows = write("reshape.default", columns, [batch, groups, taps, -1])
    y = write("matmul.default", write("reshape.default", weight, [1, groups, outputs // groups, taps]), windows)
    y = write("reshape.default", y, list(write.shape()))
    if bias is None:
        return y
    return write("add.Tensor", y, write("reshape.default", bias, [outputs, *(1 for _ in write.shape()[2:])]))


@operator("reflect_pad")
class ReflectPad(Padding):
    """Extends each axis by its mirror image, without repeating the edge elements.

    x [any]  ->  y [x.shape + before + after], type of x. An axis of n elements can be padded by at most n - 1 on each
    side.
    """

    def infer(self, x: TensorType) -> TensorType:
        y = super().infer(x)
        if any(not 0 <= side < n for sides, n in zip(self.sides, x.shape, strict=True) for side in sides):
            raise InternalError(f"{self} needs more elements than {list(x.shape)} has to mirror.")
        return y

    def reference(self, y: TensorType, x: Value) -> Array:
        return np.pad(x.data, self.sides, mode="reflect")

    def to_litert(self, emit: LiteRtEmitter) -> None:
        amounts = emit.int32(self.sides)
        # Mode 0 is REFLECT.
        emit.add("MIRROR_PAD", options="MirrorPadOptions", fields={"mode": 0}, inputs=[0, amounts], version=2)

    def to_tosa(self, emit: TosaEmitter) -> TosaTensor:
        """Axis by axis: concatenate all elements with the reversed elements next to each edge."""
        x = emit.input(0)
        for axis, (before, after) in enumerate(zip(self.before, self.after, strict=True)):
            count = x.shape[axis]
            left = [_element(emit, x, axis, i) for i in range(before, 0, -1)]
            right = [_element(emit, x, axis, count - 2 - i) for i in range(after)]
            x = emit.concat([*left, x, *right], axis)
        return x


def _element(emit: TosaEmitter, x: TosaTensor, axis: int, index: int) -> TosaTensor:
    """One index of an axis, which keeps size 1."""
    begin, size = [0] * x.rank, list(x.shape)
    begin[axis], size[axis] = index, 1
    return emit.slice(x, begin, size)


def _pad_quantization(node: AtenArguments) -> QuantizationRule:
    return Pad((), (), float(node.value("value") or 0.0) if node.overload in PADS else 0.0).quantization


PADS = ("pad.default", "constant_pad_nd.default")
"""Overloads that pad with a constant, the first one possibly with others."""


def _padded(given: Given, of: IntervalOf) -> Interval:
    value = float(given.get("value") or 0)
    mode = given.get("mode", "constant" if "pad" in given else "")
    return joined([keeps(given, of), (value, value)]) if mode == "constant" else keeps(given, of)


@imports(
    *PADS,
    *(f"{kind}_pad{n}d.default" for kind in ("reflection", "replication") for n in (1, 2, 3)),
    "_pad_circular.default",
    quantization=_pad_quantization,
    facts=Facts(moves=True, range=_padded, unknown={"degree": "a padding may be another number than 0"}),
)
def build_pad(node: AtenNode) -> Tensor:
    """All modes of padding; negative amounts remove elements."""
    x = node.tensor("x")
    name = node.overload.split(".")[0]
    amounts = [int(v) for v in node.value("pad" if node.value("pad") is not None else "padding")]
    rank = len(x.shape)
    before, after = [0] * rank, [0] * rank
    for position in range(len(amounts) // 2):
        before[rank - 1 - position], after[rank - 1 - position] = amounts[2 * position : 2 * position + 2]
    for axis in range(rank):
        cut = max(-before[axis], 0), x.shape[axis] - max(-after[axis], 0)
        x = sliced(node, x, axis, *cut)
    low, high = [max(b, 0) for b in before], [max(a, 0) for a in after]
    if not any((*low, *high)):
        return x
    mode = {"pad": node.value("mode"), "constant_pad_nd": "constant", "_pad_circular": "circular"}.get(name)
    mode = mode or ("reflect" if name.startswith("reflection") else "replicate")
    if mode == "constant":
        return node.emit(Pad(tuple(low), tuple(high), _pad_quantization(node).padding), x)
    if mode == "reflect":
        return node.emit(ReflectPad(tuple(low), tuple(high)), x)
    if mode not in ("replicate", "circular"):
        raise UnsupportedError(f"`{name}` with mode {mode!r} is not imported.")
    for axis in range(rank):
        x = _continued(node, x, axis, low[axis], high[axis], circular=mode == "circular")
    return x


def _continued(node: AtenNode, x: Tensor, axis: int, before: int, after: int, *, circular: bool) -> Tensor:
    """Extend x on both sides of an axis by copies of its slices.

    replicate: x -> concat(first, first, x, last)
    circular:  x -> concat(end of x, x, beginning of x)
    """
    size = x.shape[axis]
    parts = [x]
    if circular:
        if before:
            parts.insert(0, sliced(node, x, axis, size - before, size))
        if after:
            parts.append(sliced(node, x, axis, 0, after))
    else:
        if before:
            parts[:0] = [sliced(node, x, axis, 0, 1)] * before
        if after:
            parts += [sliced(node, x, axis, size - 1, size)] * after
    return node.emit(Concat(axis), *parts) if len(parts) > 1 else x
