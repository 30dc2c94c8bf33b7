"""Windows that reduce height and width, also of unequal size, and averages as products with ones.

A product has its own qparams. A pool with windows of unequal size is composed of few pools with equal windows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from micronpu.base.arrays import Array
from micronpu.base.errors import UnsupportedError
from micronpu.ir.aten import AtenArguments, AtenNode, spatial_pair
from micronpu.ir.graph import Tensor
from micronpu.ir.lowering import Float, Results, Writer, decomposes
from micronpu.ir.op import NewValues, Op, QuantizationRule, Value, shares_qparams
from micronpu.ir.registry import from_aten, imports, operator
from micronpu.ir.types import DType, QParams, TensorType
from micronpu.ir.window import NO_PADDING, Padding2d, Size2d, litert_padding, windows
from micronpu.ops.bounds import AMONG_WINDOW, MEAN_WITH_PADDING
from micronpu.ops.constants import BIAS_TYPE
from micronpu.ops.convolution import DepthwiseConv2d, window_elements
from micronpu.ops.matmul import FullyConnected
from micronpu.ops.movement import Pad, Reshape, from_image, reshaped, to_image, transposed
from micronpu.ops.slicing import Concat, Slice, sliced
from micronpu.ops.tosa_windows import fitted

if TYPE_CHECKING:
    from micronpu.emit.litert import LiteRtEmitter
    from micronpu.emit.tosa import TosaEmitter, TosaTensor

Window = tuple[int, int]
"""First element of a window along one axis, and the one after its last."""
Pool: TypeAlias = "Callable[[Tensor, Size2d, Size2d], Tensor]"

MAX_PARTS = 64
"""Maximum number of pools that one pool is split into."""


class WindowRun(NamedTuple):
    """Adjacent windows of one size, at equal distances."""

    start: int  # first element of the first window
    stop: int  # the one after the last element of the last window
    size: int  # elements of a window
    stride: int  # distance between windows


def adaptive_windows(size: int, count: int) -> list[Window]:
    """The windows of an adaptive pool along an axis of ``size`` elements."""
    return [(i * size // count, -(-(i + 1) * size // count)) for i in range(count)]


def clipped_windows(size: int, kernel: int, stride: int, padding: tuple[int, int]) -> list[Window]:
    """The windows of an ordinary pool, without padding."""
    count = (size + sum(padding) - kernel) // stride + 1
    starts = [i * stride - padding[0] for i in range(count)]
    return [(max(s, 0), min(s + kernel, size)) for s in starts]


def runs(windows: Sequence[Window]) -> list[WindowRun]:
    """Group the windows into few runs, in order."""
    found: list[WindowRun] = []
    position = 0
    while position < len(windows):
        start, stop = windows[position]
        size, stride, last = stop - start, 0, position
        while last + 1 < len(windows):
            following = windows[last + 1]
            step = following[0] - windows[last][0]
            if following[1] - following[0] != size or step < 1 or (stride and step != stride):
                break
            stride, last = step, last + 1
        found.append(WindowRun(start, windows[last][1], size, stride or size))
        position = last + 1
    return found


def by_parts(
    emit: Callable[..., Tensor], x: Tensor, rows: Sequence[Window], columns: Sequence[Window], pool: Pool
) -> Tensor:
    """A pool over arbitrary windows: one pool for each run of rows and run of columns, concatenated.

    x [N, H, W, C] -> slice -> pool ┐
                   -> slice -> pool ┴ concat -> y [N, len(rows), len(columns), C]

    Args:
        emit: appends an operator to the graph.
        pool: appends the pool of a part with a kernel and a stride; see `pools`.
    """
    bands, pieces = runs(rows), runs(columns)
    if len(bands) * len(pieces) > MAX_PARTS:
        raise UnsupportedError(
            f"A pool with windows of unequal size from {list(x.shape[1:3])} to {[len(rows), len(columns)]} needs "
            f"{len(bands) * len(pieces)} parts; at most {MAX_PARTS} are made.",
            hint="choose an output size that divides the input size",
        )
    joined = []
    for band in bands:
        parts = []
        for piece in pieces:
            size = (x.shape[0], band.stop - band.start, piece.stop - piece.start, x.shape[3])
            part = x if size == x.shape else emit(Slice((0, band.start, piece.start, 0), size), x)
            parts.append(pool(part, (band.size, piece.size), (band.stride, piece.stride)))
        joined.append(emit(Concat(2), *parts) if len(parts) > 1 else parts[0])
    return emit(Concat(1), *joined) if len(joined) > 1 else joined[0]


AVERAGE = shares_qparams(new_values=NewValues.BETWEEN, finer=(5.0, 8.0))
"""Rule for the average of a whole image, which is transposed for the product: with its operand's qparams it has 32 or
more distinct values. Peaks after a ReLU are three to five times as high as the averages."""
WINDOWS = shares_qparams(new_values=NewValues.BETWEEN, finer=(3.0, 3.0))
"""Rule for averages of windows, whose products with ones take no longer than a pool."""
UNEVEN = shares_qparams(new_values=NewValues.BETWEEN, finer=(3.0, 8.0))
"""Rule for averages of windows of several sizes, each of which needs a product."""
_TALLEST, _WIDEST = 64, 64
"""Rows that a kernel sums, a limit of every NPU, and channels of the image."""


def is_finer(node: AtenNode, x: Tensor) -> bool:
    """True if the result of an average has its own qparams with at most half the scale of its operand.

    An average with its operand's qparams has few distinct values if the values cancel out; see `AVERAGE`.
    """
    return 2 * node.output.scale[0] <= x.type.scale


def averaged(node: AtenNode, x: Tensor, axes: tuple[int, ...]) -> Tensor:
    """Mean over axes; its elements are in an order that a reshape converts to the result."""
    return weighted_sum(node, x, axes, 1.0 / math.prod(x.shape[i] for i in axes))


def windows_averaged(node: AtenNode, x: Tensor, kernel: Size2d, stride: Size2d, padding: Padding2d) -> Tensor:
    """Means of windows over x [N, H, W, C], with padding counted as zeros.

    x -> avg_pool2d -> y        x -> depthwise_conv2d(1 / n) -> y
    """
    if kernel == x.shape[1:3] and not padding:
        return node.emit(Reshape((x.shape[0], 1, 1, x.shape[3])), averaged(node, x, (1, 2)))
    ones, bias = weights(node, x, np.ones((1, *kernel, x.shape[3])), x.shape[3], 1.0 / math.prod(kernel))
    return node.emit(DepthwiseConv2d(stride, padding), x, ones, bias, qparams=node.output)


def weighted_sum(node: AtenNode, x: Tensor, axes: tuple[int, ...], weight: float) -> Tensor:
    """Sum over axes times a number; its elements are in an order that a reshape converts to the result.

    x [a, b, c] -> sum(1) -> y [a, c]        x -> transpose(0, 2, 1) -> fully_connected(ones [1, b]) -> reshape
    x [1, b, c] -> sum(1) -> y [1, c]        x -> reshape [1, b, c / k, k] -> depthwise_conv2d(ones) -> reshape
    """
    rank = len(x.shape)
    count = math.prod(x.shape[i] for i in axes)
    real = [i for i in range(rank) if x.shape[i] > 1]
    first = [i for i in axes if x.shape[i] > 1]
    inner = x.type.size // count
    if first == real[: len(first)] and count <= _TALLEST and inner > 2 * count:  # a small matrix is cheap to transpose
        channels = max(k for k in range(1, _WIDEST + 1) if inner % k == 0)
        picture = node.emit(Reshape((1, count, inner // channels, channels)), x)
        ones, bias = weights(node, x, np.ones((1, count, 1, channels)), channels, weight)
        return node.emit(DepthwiseConv2d(), picture, ones, bias, qparams=node.output)
    order = (*(i for i in range(rank) if i not in axes), *axes)
    if order != tuple(range(rank)):
        x = transposed(node, x, order)
    rows = node.emit(Reshape((x.type.size // count, count)), x)
    ones, bias = weights(node, x, np.ones((1, count)), 1, weight)
    return node.emit(FullyConnected(), rows, ones, bias, qparams=node.output)


def weights(node: AtenNode, x: Tensor, data: Array, outputs: int, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    """Weights of ones, which represent ``scale``, and of zeros, which only add, and their zero bias."""
    kernel = TensorType(data.shape, DType.INT8, QParams.per_tensor(scale, 0))
    bias = TensorType((outputs,), BIAS_TYPE[x.type.dtype], QParams.per_tensor(x.type.scale * scale, 0))
    return node.constant(data, kernel), node.constant(np.zeros(outputs), bias)


_AVERAGE_POOLS = ("avg_pool1d.default", "avg_pool2d.default")
_MAX_POOLS = ("max_pool1d.default", "max_pool2d.default")
POOLS = (*_AVERAGE_POOLS, *_MAX_POOLS)
"""Overloads with windows and one result."""


@dataclass(frozen=True)
class _Pool(Op):
    kernel: Size2d = (1, 1)
    stride: Size2d = (1, 1)
    padding: Padding2d = NO_PADDING

    quantization = shares_qparams()

    def infer(self, x: TensorType) -> TensorType:
        rows = windows(x.shape[1], self.kernel[0], self.stride[0], self.padding.rows)
        columns = windows(x.shape[2], self.kernel[1], self.stride[1], self.padding.columns)
        return x.with_shape((x.shape[0], rows, columns, x.channels))

    def taps(self, x: Array, y: TensorType, fill: int) -> Iterator[Array]:
        """Yield the elements [N, OH, OW, C] at every position in the window."""
        window = window_elements(x, y, self.kernel, self.stride, self.padding, fill=fill)
        return (elements for _, _, elements in window)

    def litert_fields(self, emit: LiteRtEmitter) -> dict[str, object]:
        padding = litert_padding(emit.input_type(0).shape[1:3], self.kernel, self.stride, self.padding)
        return {
            "padding": emit.padding(padding, self.padding),
            "strideH": self.stride[0],
            "strideW": self.stride[1],
            "filterHeight": self.kernel[0],
            "filterWidth": self.kernel[1],
        }


@dataclass(frozen=True)
class _Window:
    """A pool's window over an image, as PyTorch describes it."""

    x: Tensor  # [N, H, W, C]
    spatial: int  # number of spatial axes of the program's pool, 1 or 2
    kernel: Size2d
    stride: Size2d
    padding: Padding2d
    overhang: Size2d  # elements of height and width by which the last windows exceed the padding (ceil_mode)


def _window(node: AtenNode) -> _Window:
    spatial = 1 if "pool1d" in node.overload else 2
    x = to_image(node, node.tensor("x"), spatial)
    kernel = spatial_pair(node, "kernel_size", spatial, 1)
    stride = spatial_pair(node, "stride", spatial, 1) if node.value("stride") else kernel
    sides = spatial_pair(node, "padding", spatial, 0)
    overhang = (0, 0)
    if node.value("ceil_mode"):
        gaps = spatial_pair(node, "dilation", spatial, 1) if node.overload.startswith("max") else (1, 1)
        reach = (d * (k - 1) + 1 for k, d in zip(kernel, gaps, strict=True))
        high, wide = (_overhang(n, k, s, p) for n, k, s, p in zip(x.shape[1:3], reach, stride, sides, strict=True))
        overhang = (high, wide)
    return _Window(x, spatial, kernel, stride, Padding2d.symmetric(*sides), overhang)


def _overhang(size: int, kernel: int, stride: int, padding: int) -> int:
    """Elements of the last ceil_mode window beyond the padding; it starts inside the input or its left padding."""
    count = -(-(size + 2 * padding - kernel) // stride) + 1
    if (count - 1) * stride >= size + padding:
        count -= 1
    return max((count - 1) * stride + kernel - size - 2 * padding, 0)


def _dilated_max_pool(node: AtenNode, window: _Window, dilation: Size2d) -> Tensor:
    """A max pool with dilated windows: the maximum of shifted slices, first of rows, then of columns.

    x -> pad(lowest) -> slice at every row of the window -> maximum of all -> the same for columns
      -> max_pool2d{1x1, stride} -> y
    """
    from micronpu.ops.elementwise import Maximum

    x, pad = window.x, window.padding + Padding2d(0, window.overhang[0], 0, window.overhang[1])
    if pad:
        x = node.emit(Pad((0, pad.top, pad.left, 0), (0, pad.bottom, pad.right, 0), -math.inf), x)
    for axis, (count, gap) in enumerate(zip(window.kernel, dilation, strict=True), 1):
        length = x.shape[axis] - gap * (count - 1)
        taps = [sliced(node, x, axis, i * gap, i * gap + length) for i in range(count)]
        x = taps[0]
        for tap in taps[1:]:
            x = node.emit(Maximum(), x, tap, qparams=x.type.qparams)
    return x if window.stride == (1, 1) else node.emit(MaxPool2d((1, 1), window.stride), x)


@operator("max_pool2d")
class MaxPool2d(_Pool):
    """Largest element of each window; padding is never selected.

    x [N, H, W, C] int8  ->  y [N, OH, OW, C] int8, qparams of x.
    """

    def reference(self, y: TensorType, x: Value) -> Array:
        result = np.full(y.shape, x.type.dtype.limits[0], y.dtype.value)
        for taps in self.taps(x.data, y, x.type.dtype.limits[0]):
            result = np.maximum(result, taps)
        return result

    @from_aten(*_MAX_POOLS, *(f"max_pool{n}d_with_indices.default" for n in (1, 2)), facts=AMONG_WINDOW)
    @classmethod
    def build(cls, node: AtenNode) -> Tensor:
        window = _window(node)
        if (dilation := spatial_pair(node, "dilation", window.spatial, 1)) != (1, 1):
            return from_image(node, _dilated_max_pool(node, window, dilation))
        padding = window.padding + Padding2d(0, window.overhang[0], 0, window.overhang[1])
        return from_image(node, node.emit(cls(window.kernel, window.stride, padding), window.x))

    def to_litert(self, emit: LiteRtEmitter) -> None:
        emit.add("MAX_POOL_2D", options="Pool2DOptions", fields=self.litert_fields(emit), version=2)

    def to_tosa(self, emit: TosaEmitter) -> TosaTensor:
        lowest = emit.input_type(0).dtype.limits[0]
        w = fitted(emit, emit.input(0), self.kernel, self.stride, self.padding, fill=lowest)
        return emit.max_pool(w.x, emit.output_type.shape, self.kernel, w.stride, w.padding)


_MANY = 9
"""Number of elements from which on a window is likely to be the whole image."""


def _averages(node: AtenArguments) -> QuantizationRule:
    """One product with ones suffices if all windows have the same number of elements; otherwise it takes several."""
    spatial = 1 if "pool1d" in node.overload else 2
    many = math.prod(spatial_pair(node, "kernel_size", spatial, 1)) >= _MANY
    padded = any(spatial_pair(node, "padding", spatial, 0)) and not node.value("count_include_pad")
    if padded or node.value("ceil_mode"):
        return UNEVEN
    return AVERAGE if many else WINDOWS


def _averaged_by_parts(node: AtenNode, x: Tensor, window: _Window, padding: Padding2d) -> Tensor | None:
    """Means of windows of unequal size, excluding padding, with their own qparams; None for too many sizes."""
    sizes = zip(x.shape[1:3], window.kernel, window.stride, (padding.rows, padding.columns), strict=True)
    rows, columns = (clipped_windows(n, k, s, p) for n, k, s, p in sizes)
    if len(runs(rows)) * len(runs(columns)) > MAX_PARTS:
        return None

    def pool(part: Tensor, kernel: Size2d, stride: Size2d) -> Tensor:
        return windows_averaged(node, part, kernel, stride, NO_PADDING)

    return by_parts(node.emit, x, rows, columns, pool)


@operator("avg_pool2d")
class AvgPool2d(_Pool):
    """Mean of each window, rounded to nearest with ties away from zero.

    x [N, H, W, C] int8  ->  y [N, OH, OW, C] int8, qparams of x. With ``count_padding``, padding counts as zeros;
    otherwise it is excluded (False if there is none).
    """

    count_padding: bool = False

    quantization = AVERAGE
    imprecise = "LiteRT rounds ties away from zero, and averages of few numbers are often ties"

    def __post_init__(self) -> None:
        object.__setattr__(self, "count_padding", self.count_padding and bool(self.padding))

    def reference(self, y: TensorType, x: Value) -> Array:
        fill = x.zero_point if self.count_padding else 0
        total = np.zeros(y.shape, np.int64)
        for taps in self.taps(x.data.astype(np.int64), y, fill):
            total += taps
        count = np.zeros(y.shape, np.int64)
        for taps in self.taps(np.ones(x.type.shape, np.int64), y, int(self.count_padding)):
            count += taps
        # Division as in C++, towards zero, after adding half a divisor away from zero.
        magnitude = (np.abs(total) + count // 2) // count
        return np.asarray((np.sign(total) * magnitude).clip(*y.dtype.limits).astype(y.dtype.value))

    @from_aten(*_AVERAGE_POOLS, quantization=_averages, facts=MEAN_WITH_PADDING)
    @classmethod
    def build(cls, node: AtenNode) -> Tensor:
        window = _window(node)
        if node.value("divisor_override"):
            what = f"`avg_pool2d` with divisor_override = {node.value('divisor_override')} is not imported."
            raise UnsupportedError(what, hint="multiply the result of an ordinary average pool")
        x, padding = window.x, window.padding
        count_padding = bool(node.value("count_include_pad")) and bool(padding)
        if any(window.overhang):
            if count_padding:  # padding counts, elements beyond it do not
                p = padding
                x = node.emit(Pad((0, p.top, p.left, 0), (0, p.bottom, p.right, 0)), x)
                padding, count_padding = NO_PADDING, False
            padding += Padding2d(0, window.overhang[0], 0, window.overhang[1])
        if is_finer(node, x):
            alike = not any(window.overhang) and (count_padding or not padding)
            if alike:
                return from_image(node, windows_averaged(node, x, window.kernel, window.stride, padding))
            made = _averaged_by_parts(node, x, window, padding)
            if made is not None:
                return from_image(node, made)
        y = node.emit(cls(window.kernel, window.stride, padding, count_padding), x)
        return from_image(node, y)

    def to_litert(self, emit: LiteRtEmitter) -> None:
        emit.add("AVERAGE_POOL_2D", options="Pool2DOptions", fields=self.litert_fields(emit), version=2)

    def to_tosa(self, emit: TosaEmitter) -> TosaTensor:
        # Both zero points are 0, so that the mean of integers is rounded like here, with ties away from zero.
        x, p = emit.input(0), self.padding
        if self.count_padding:
            x = emit.pad(x, (0, p.top, p.left, 0), (0, p.bottom, p.right, 0), emit.input_type(0).zero_point)
            p = NO_PADDING
        w = fitted(emit, x, self.kernel, self.stride, p)
        return emit.average_pool(w.x, emit.output_type.shape, self.kernel, w.stride, w.padding)


def pools(emit: Callable[..., Tensor], kind: type[AvgPool2d] | type[MaxPool2d]) -> Pool:
    """Return a function that appends pools with their operand's qparams, for `by_parts`."""
    return lambda part, kernel, stride: emit(kind(kernel, stride), part)


def _adaptive(node: AtenArguments) -> QuantizationRule:
    if "max" in node.overload:
        return shares_qparams()
    sizes = node.value("output_size")
    whole = all(n == 1 for n in (sizes if isinstance(sizes, (list, tuple)) else [sizes]))
    return AVERAGE if whole else WINDOWS


@imports(
    "adaptive_avg_pool1d.default",
    "adaptive_avg_pool2d.default",
    "_adaptive_avg_pool2d.default",
    "adaptive_max_pool1d.default",
    "adaptive_max_pool2d.default",
    quantization=_adaptive,
    moves_only=False,
    facts=replace(AMONG_WINDOW, by_channel=False),
)
def build_adaptive(node: AtenNode) -> Tensor:
    """Pool to an output size: element i of n covers the input from i / n to (i + 1) / n, rounded outwards."""
    spatial = 1 if "pool1d" in node.overload else 2
    x = to_image(node, node.tensor("x"), spatial)
    counts = (1, *node.shape[-spatial:])[-2:]
    finer = "max" not in node.overload and is_finer(node, x)
    if finer and counts == (1, 1):
        return reshaped(node, averaged(node, x, (1, 2)), node.shape)

    rows, columns = (adaptive_windows(n, m) for n, m in zip(x.shape[1:3], counts, strict=True))
    pool = pools(node.emit, MaxPool2d if "max" in node.overload else AvgPool2d)
    if finer:

        def pool(part: Tensor, kernel: Size2d, stride: Size2d) -> Tensor:
            return windows_averaged(node, part, kernel, stride, NO_PADDING)

    return from_image(node, by_parts(node.emit, x, rows, columns, pool))


@decomposes("adaptive_max_pool1d.default", "adaptive_max_pool2d.default", early=True)
def _adaptive_max_to_pools(write: Writer) -> Float:
    """An adaptive max pool, which has indices for a second result, as ordinary ones.

    x -> adaptive_max_pool2d -> y, _        x -> max_pool2d -> y
                                            x -> slices -> max_pool2d each -> cat -> y, for windows of unequal size
    """
    read, x = write.read(), write.given["self"]
    spatial = 1 if "pool1d" in write.overload else 2
    if read is None or not read <= {0}:
        return None
    shape, result = write.shape(x), write.shape()
    plans = [runs(adaptive_windows(n, m)) for n, m in zip(shape[-spatial:], result[-spatial:], strict=True)]
    if len(plans[0]) * len(plans[-1]) > MAX_PARTS:
        return None
    pool = "max_pool1d.default" if spatial == 1 else "max_pool2d.default"

    def build(part: Float, axes: Sequence[int], kernel: list[int], stride: list[int]) -> Float:
        if not axes:
            return write(pool, part, kernel, stride)
        axis, rest = axes[0], axes[1:]
        pieces = []
        for run in plans[axis]:
            whole = (run.start, run.stop) == (0, shape[axis - spatial])
            cut = part if whole else write("slice.Tensor", part, axis - spatial, run.start, run.stop)
            pieces.append(build(cut, rest, [*kernel, run.size], [*stride, run.stride]))
        return pieces[0] if len(pieces) == 1 else write("cat.default", pieces, axis - spatial)

    return Results({0: build(x, range(spatial), [], [])})


@decomposes("max_pool1d_with_indices.default", "max_pool2d_with_indices.default", early=True)
def _drop_indices(write: Writer) -> Float:
    """A max pool whose indices are unused.

    x -> max_pool2d_with_indices -> y, _        x -> max_pool2d -> y
    """
    read = write.read()
    if read is None or not read <= {0}:
        return None
    pool = "max_pool1d.default" if "pool1d" in write.overload else "max_pool2d.default"
    names = ("self", "kernel_size", "stride", "padding", "dilation", "ceil_mode")
    return Results({0: write(pool, *(write.given[name] for name in names))})
