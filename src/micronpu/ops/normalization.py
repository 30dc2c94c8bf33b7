"""Normalization, as compositions: by the values themselves, or by statistics that are known.

Written before annotation, so that the mean, the centred values, their variance and its root have a grid of their own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from micronpu.ir.way import Float, Writer, composed_by, composes
from micronpu.ops.elementwise import scaled

BATCH_NORMS = ("batch_norm.default", "_native_batch_norm_legit_no_training.default", "cudnn_batch_norm.default")

composed_by(
    "fold_batch_norms",
    "batch_norm(conv(x, w, b)) -> conv(x, w', b'); behind anything else a depthwise 1x1 convolution",
    *BATCH_NORMS,
    into=("conv2d.default",),
)

_LONGEST_MEAN = 1 << 15
"""Elements of a mean as a product with 1/n: 2**15 * 127 * 255 < 2**30, half of what an accumulator holds."""


@composes("layer_norm.default", "rms_norm.default")
def _layer_norm(write: Writer) -> Float:
    """layer_norm(x) -> c * rsqrt(mean(c * c) + eps) * w + b, c = x - mean(x); rms_norm(x) has c = x and no b."""
    given = write.given
    axes = range(-len(given["normalized_shape"]), 0)
    eps = float(np.finfo(np.float32).eps) if given["eps"] is None else float(given["eps"])
    normalized = _normalized(write, given["input"], axes, eps, write.overload.startswith("layer"))
    return _affine(write, normalized, given.get("weight"), given.get("bias"), None)


@composes("group_norm.default", "instance_norm.default")
def _group_norm(write: Writer) -> Float:
    """As `layer_norm` over groups of channels; an instance norm is one with a group per channel.

    x [N, C, H, W] -> reshape [N, G, C * H * W / G] -> normalized over the last axis -> reshape -> * w + b -> y

    An instance norm by running statistics is a product and a sum with constants.
    """
    given = write.given
    x = given["input"]
    shape = list(write.shape(x))
    channels = [shape[1], *[1] * (len(shape) - 2)]
    if given.get("use_input_stats") is False:
        mean, variance = write.known(given["running_mean"]), write.known(given["running_var"])
        if mean is None or variance is None:
            return None
        scale = 1.0 / np.sqrt(variance + given["eps"])
        product = write("mul.Tensor", x, write.constant(scale.astype(np.float32).reshape(channels)))
        shift = write.constant((mean * scale).astype(np.float32).reshape(channels))
        normalized = write("sub.Tensor", product, shift)
    else:
        groups = given.get("num_groups", shape[1])
        rows = write("reshape.default", x, [shape[0], groups, -1])
        rows = _normalized(write, rows, (-1,), float(given["eps"]), True)
        normalized = write("reshape.default", rows, shape)
    return _affine(write, normalized, given["weight"], given["bias"], channels)


def _normalized(write: Writer, x: Float, axes: Sequence[int], eps: float, centred: bool) -> Float:
    """x over its root mean square, or the same of x - mean(x).

    The variance comes from the centred values: mean(x^2) - mean(x)^2 is a small difference of large numbers on coarse
    grids.  Its grid is finer than that of the squares, as the accumulator is rounded once, behind the mean.
    """
    if centred:
        x = write("sub.Tensor", x, _mean(write, x, axes))
    variance = _mean(write, write("mul.Tensor", x, x), axes, eps)
    return write("mul.Tensor", x, write("rsqrt.default", variance))


def _mean(write: Writer, x: Float, axes: Sequence[int], shift: float = 0.0) -> Float:
    """mean(x) + shift over axes, which stay with size 1, on a grid of its own; `mean` has that of x.

    x [.., n] -> linear(w [1, n] = 1 / n, b = shift) -> y [.., 1]; over several axes or many elements a sum, scaled
    """
    shape = write.shape(x)
    count = math.prod(shape[a] for a in axes)
    if count == 1:
        return x if shift == 0 else write("add.Tensor", x, write.constant(shift))
    if len(axes) == 1 and count <= _LONGEST_MEAN and axes[0] in (-1, len(shape) - 1):
        weight = write.constant(np.full((1, count), 1.0 / count, np.float32))
        return write("linear.default", x, weight, write.constant(shift) if shift else None)
    mean = scaled(write, write("sum.dim_IntList", x, list(axes), True), 1.0 / count)
    return write("add.Tensor", mean, write.constant(shift)) if shift else mean


def _affine(write: Writer, x: Float, weight: Any, bias: Any, shape: list[int] | None) -> Float:
    """x * weight + bias, both of them reshaped where a shape is given."""
    for overload, operand in (("mul.Tensor", weight), ("add.Tensor", bias)):
        if operand is not None:
            x = write(overload, x, operand if shape is None else _reshaped(write, operand, shape))
    return x


def _reshaped(write: Writer, operand: Float, shape: list[int]) -> Float:
    """A constant of another shape; a parameter stays one while it is trained."""
    value = write.stored(operand)
    if value is None or write.is_trained(operand):
        return write("reshape.default", operand, shape)
    return write.constant(value.reshape(shape))
