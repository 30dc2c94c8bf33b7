"""TOSA forms of window operators.

TOSA requires that the last window ends exactly at the end of the padded operand, so elements that no window covers are
removed first. The strengths in `TosaEmitter` select among alternatives.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from micronpu.ir.window import NO_PADDING, Activation, Padding2d, Size2d, windows

if TYPE_CHECKING:
    from micronpu.emit.tosa import TosaEmitter, TosaTensor


class Window(NamedTuple):
    """An operand and the geometry of the windows over it for TOSA; padding is top, bottom, left, right."""

    x: TosaTensor
    stride: Size2d
    padding: tuple[int, int, int, int]


def fitted(
    emit: TosaEmitter,
    x: TosaTensor,
    kernel: Size2d,
    stride: Size2d,
    padding: Padding2d,
    dilation: Size2d = (1, 1),
    *,
    fill: int | None = None,
) -> Window:
    """x [N, H, W, C] without the elements that no window covers.

    Args:
        fill: padding value, for long strides with explicit padding; None if padding is excluded.
    """
    if padding and max(stride) > emit.LONGEST_STRIDE and fill is not None:
        p = padding
        x = emit.pad(x, (0, p.top, p.left, 0), (0, p.bottom, p.right, 0), fill)
        padding = NO_PADDING
    size, sides, strides = list(x.shape), list[int](), list[int]()
    for axis, (before, after) in ((1, padding.rows), (2, padding.columns)):
        k, s, d = kernel[axis - 1], stride[axis - 1], dilation[axis - 1]
        count = windows(size[axis], k, s, (before, after), d)
        s = s if count > 1 else 1
        unread = size[axis] + before + after - ((count - 1) * s + (k - 1) * d + 1)
        size[axis] -= max(unread - after, 0)
        sides += [before, max(after - unread, 0)]
        strides.append(s)
    top, bottom, left, right = sides
    return Window(emit.slice(x, (0, 0, 0, 0), size), (strides[0], strides[1]), (top, bottom, left, right))


def spread(emit: TosaEmitter, weight: TosaTensor, dilation: Size2d, axes: Size2d) -> tuple[TosaTensor, Size2d]:
    """Dilate constant weights explicitly, and return the remaining dilation.

    For a dilation that kernels do not support, a compiler would split the operand, which is slower.

    Args:
        axes: indices of the kernel's height and width in ``weight``.
    """
    factors = [d // emit.LONGEST_DILATION if d % emit.LONGEST_DILATION == 0 else d for d in dilation]
    shape = list(weight.shape)
    for axis, factor in zip(axes, factors, strict=True):
        shape[axis] = (shape[axis] - 1) * factor + 1
    high, wide = (shape[axis] for axis in axes)
    if weight.data is None or factors == [1, 1] or high > emit.LARGEST_KERNEL or high * wide > emit.LARGEST_KERNEL**2:
        return weight, dilation
    apart = np.zeros(shape, weight.data.dtype)
    every = [slice(None)] * len(shape)
    for axis, factor in zip(axes, factors, strict=True):
        every[axis] = slice(None, None, factor)
    apart[tuple(every)] = weight.data
    left = [d // factor for d, factor in zip(dilation, factors, strict=True)]
    return emit.constant(apart, weight.dtype), (left[0], left[1])


def covering(
    emit: TosaEmitter, x: TosaTensor, weight: TosaTensor, axes: Size2d, stride: Size2d, padding: Padding2d
) -> TosaTensor:
    """Extend constant weights by zeros, so that the windows cover all of x, if that is cheap."""
    # Removing uncovered elements would copy x.
    if weight.data is None:
        return weight
    grown, results = list(weight.shape), 1
    for axis, spatial, s, sides in zip(axes, (1, 2), stride, (padding.rows, padding.columns), strict=True):
        size, kernel = x.shape[spatial], weight.shape[axis]
        count = windows(size, kernel, s, sides)
        results *= count
        if count > 1:
            grown[axis] += max(size + sides[0] - ((count - 1) * s + kernel), 0)
    added = results * (math.prod(grown) - math.prod(weight.shape))
    if max(grown[axis] for axis in axes) > emit.LARGEST_KERNEL or added > emit.PRODUCTS_PER_COPY * math.prod(
        x.shape[1:]
    ):
        return weight
    behind = [(0, new - old) for new, old in zip(grown, weight.shape, strict=True)]
    return emit.constant(np.pad(weight.data, behind), weight.dtype)


def requantized(
    emit: TosaEmitter, accumulators: TosaTensor, scales: tuple[float, ...], activation: Activation
) -> TosaTensor:
    """Requantize accumulators of x and weights with the given scales, and apply the fused clamp.

    Bit-exact to `requantize_accumulators`.
    """
    x, y = emit.input_type(0), emit.output_type
    own, wanted = x.scale, y.scale  # once: there are as many scales as channels
    return emit.requantize(accumulators, [own * scale / wanted for scale in scales], activation.limits(y))


def transposed(
    emit: TosaEmitter, stride: Size2d, crop: Padding2d, scales: tuple[float, ...], activation: Activation
) -> TosaTensor:
    """A transposed convolution of the current node: one convolution for each phase of the stride.

    Result ``stride * q + r`` reads the weights ``p, p + stride, ..`` for ``p = (r + crop) % stride``, in reverse order.

        x -> conv2d(w[::2]) ┐
          -> conv2d(w[1::2])┴ concat over channels -> reshape [.., width, 2 * channels] to [.., 2 * width, channels]
    """
    weight = emit.constant_input(1)
    _, rows, columns, channels = emit.output_type.shape
    sides = ((1, rows, stride[0], crop.top), (2, columns, stride[1], crop.left))
    high, wide = ([_Phase.of(emit, axis, n, s, c, r) for r in range(s)] for axis, n, s, c in sides)
    bands = []
    for down in high:
        parts = []
        for across in wide:
            taps = weight[:, down.first :: stride[0], across.first :: stride[1]][:, ::-1, ::-1]
            if 0 in taps.shape:  # no weight reaches these elements: they are the bias
                taps = np.zeros((weight.shape[0], max(taps.shape[1], 1), max(taps.shape[2], 1), weight.shape[3]))
            x = emit.input(0)
            begin = (0, down.begin, across.begin, 0)
            x = emit.slice(x, begin, (x.shape[0], down.end - down.begin, across.end - across.begin, x.shape[3]))
            shape = (x.shape[0], down.results, across.results, channels)
            kernel = emit.constant(taps)
            sums = emit.convolution("CONV2D", x, kernel, shape, (*down.padding, *across.padding), (1, 1), (1, 1))
            parts.append(requantized(emit, sums, scales, activation))
        bands.append(emit.concat(parts, 3))
    if len(bands) > 1:
        bands = [emit.reshape(b, (b.shape[0], b.shape[1], 1, b.shape[2] * b.shape[3])) for b in bands]
    joined = emit.concat(bands, 3)
    count = joined.shape[0]
    image = emit.reshape(joined, (count, high[0].results * stride[0], wide[0].results * stride[1], channels))
    return emit.slice(image, (0, 0, 0, 0), (count, rows, columns, channels))


class _Phase(NamedTuple):
    """The results at one phase of the stride along one axis, and the part of the operand that they read."""

    first: int  # the first weight that they use
    begin: int
    end: int
    padding: Size2d  # before and after the part
    results: int  # their number

    @classmethod
    def of(cls, emit: TosaEmitter, axis: int, size: int, stride: int, crop: int, offset: int) -> _Phase:
        given, kernel = emit.input(0).shape[axis], emit.input(1).shape[axis]
        first, whole = (offset + crop) % stride, (offset + crop) // stride
        taps = max(-(-(kernel - first) // stride), 1)
        results = -(-size // stride)
        before, behind = taps - 1 - whole, results + whole - given
        return cls(first, max(-before, 0), given - max(-behind, 0), (max(before, 0), max(behind, 0)), results)


def sum_of_last(emit: TosaEmitter, count: int) -> TosaTensor:
    """Sums [rows] over the last elements of the operand minus its zero point: a convolution with ones."""
    x = emit.input(0)
    rows = math.prod(x.shape) // count
    image, ones = emit.reshape(x, (1, 1, rows, count)), emit.constant(np.ones((1, 1, 1, count)))
    return emit.plain_convolution(image, ones, (1, 1, rows, 1), (emit.input_type(0).zero_point, 0))
