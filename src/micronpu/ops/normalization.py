"""Normalization as decompositions: by the values' own statistics, or by known statistics.

Applied before annotation, so that the mean, the centred values, their variance and its root have separate qparams.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from micronpu.ir.facts import Facts
from micronpu.ir.lowering import Float, Results, Writer, decomposes
from micronpu.ops.convolution import into_layer
from micronpu.ops.elementwise import scaled
from micronpu.ops.movement import VIEWS, under_shape

BATCH_NORM = "batch_norm.default"
BATCH_NORMS = (BATCH_NORM, "_native_batch_norm_legit_no_training.default", "cudnn_batch_norm.default")

_LONGEST_MEAN = 1 << 15
"""Maximum elements of a mean as a product with 1/n: 2**15 * 127 * 255 < 2**30, half of the accumulator's range."""

_COLUMNS = 4.0
"""Factor by which a batch norm may make the columns of the weights behind it more uneven: two of their eight bits."""
RMS_NORM = "rms_norm.default"
NORMS = ("layer_norm.default", RMS_NORM, "group_norm.default", "instance_norm.default")
"""Norms that are one operator; others are composed of squares, their mean and a power of it."""

BY_CHANNEL = ("layer_norm.default", "group_norm.default")
"""Norms that a batch norm may replace."""

UNEQUAL = 1.7
"""Minimum ratio of the sizes of large and small rows at which an int8 norm equalizes rows first."""
SMALLEST_ROW = 1.0 / 16
"""Minimum size of a row relative to the largest for equalization; smaller rows are scaled as if they had this size."""


@decomposes(*BATCH_NORMS, early=True, facts=Facts(affine_in=("input",)))
def _fold_batch_norms(write: Writer) -> Float | None:
    """batch_norm(conv(x, w, b)) -> conv(x, w', b'); after anything else a depthwise 1x1 convolution

    Uses the statistics of evaluation mode. The folded weights are new constants: weights that another layer reads are
    unchanged. Reshapes that keep the last axis of a linear layer may be in between. A batch norm of [N, C] with no
    preceding layer is folded into the linear layer that reads it.
    """
    given = write.given
    mean, variance = write.stored(given["running_mean"]), write.stored(given["running_var"])
    if given.get("training") or mean is None or variance is None:
        return None
    weight, bias = write.stored(given.get("weight")), write.stored(given.get("bias"))
    scale = 1.0 / np.sqrt(variance.astype(np.float64) + given["eps"])
    if weight is not None:
        scale = scale * weight.astype(np.float64)
    shift = -mean.astype(np.float64) * scale
    if bias is not None:
        shift = shift + bias.astype(np.float64)
    made: Float = None
    for fold in (_into_layer_before, _into_layer_behind, _as_depthwise):
        made = fold(write, given["input"], scale, shift) if made is None else made
    return made if made is None or len(write.shapes()) == 1 else Results({0: made})


Row = npt.NDArray[np.float64]


def _layer_before(write: Writer, x: Float) -> Float:
    """The input of a batch norm, or the linear layer whose rows it reads after a reshape."""
    layer, call = x, write.call(x)
    while call is not None and call.overload in VIEWS and call.readers == 1 and len(write.shape(x)) == 2:
        before = call.given["self"]
        if write.shape(before)[-1] != write.shape(layer)[-1]:
            break
        layer, call = before, write.call(before)
    return layer if layer is not x and call is not None and call.overload == "linear.default" else x


def _into_layer_before(write: Writer, x: Float, scale: Row, shift: Row) -> Float:
    source = _layer_before(write, x)
    layer = write.call(source)
    if layer is not None and layer.overload == "linear.default" and source is x and len(write.shape(x)) != 2:
        return None  # batch norm's channels are axis 1, linear's the last
    return x if into_layer(write, source, scale, shift) else None


def _into_layer_behind(write: Writer, x: Float, scale: Row, shift: Row) -> Float:
    """linear(batch_norm(x), w, b) -> linear(x, w * scale, b + w @ shift), if the batch norm has no other reader."""
    readers = write.readers()
    layer = write.call(readers[0]) if len(readers) == 1 and len(write.shape(x)) == 2 else None
    if layer is None or layer.overload != "linear.default":
        return None
    weight, bias = write.stored(layer.given["weight"]), write.stored(layer.given["bias"])
    is_trained = any(write.is_trained(layer.given[name]) for name in ("weight", "bias"))
    if weight is None or (layer.given["bias"] is not None and bias is None) or is_trained:
        return None
    matrix = weight.astype(np.float64)
    if _unevenness(matrix * scale) > _COLUMNS * _unevenness(matrix):
        return None
    total = matrix @ shift if bias is None else matrix @ shift + bias.astype(np.float64)
    write.change(readers[0], input=x, weight=(matrix * scale).astype(np.float32), bias=total.astype(np.float32))
    return x


def _unevenness(matrix: npt.NDArray[np.float64]) -> float:
    """Ratio of the largest column to the smallest that is not zero; a row of weights has one scale for all of them."""
    columns = np.abs(matrix).max(0)
    columns = columns[columns > 0]
    return float(columns.max() / columns.min()) if columns.size else 1.0


def _as_depthwise(write: Writer, x: Float, scale: Row, shift: Row) -> Float:
    """x [N, C, ..] -> reshape [N, C, H, W] -> depthwise 1x1 convolution -> reshape -> y [N, C, ..]"""
    shape = list(write.shape(x))
    if len(shape) < 2:
        return None
    if len(shape) != 4:
        image = [*shape[:2], math.prod(shape[2:-1]), shape[-1] if len(shape) > 2 else 1]
        x = write("reshape.default", x, image)
    weight = write.constant(scale.astype(np.float32).reshape(-1, 1, 1, 1))
    bias = write.constant(shift.astype(np.float32))
    made = write("conv2d.default", x, weight, bias, [1, 1], [0, 0], [1, 1], scale.size)
    return made if len(shape) == 4 else write("reshape.default", made, shape)


@decomposes("layer_norm.default", "rms_norm.default")
def _layer_norm(write: Writer) -> Float:
    """layer_norm(x) -> c * rsqrt(mean(c * c) + eps) * w + b, c = x - mean(x); rms_norm(x) has c = x and no b."""
    given = write.given
    axes = range(-len(given["normalized_shape"]), 0)
    eps = float(np.finfo(np.float32).eps) if given["eps"] is None else float(given["eps"])
    normalized = _normalized(write, given["input"], axes, eps, write.overload.startswith("layer"))
    return _affine(write, normalized, given.get("weight"), given.get("bias"), None)


@decomposes("group_norm.default", "instance_norm.default")
def _group_norm(write: Writer) -> Float:
    """Like `layer_norm` over groups of channels; an instance norm has a group per channel.

    x [N, C, H, W] -> reshape [N, G, C * H * W / G] -> normalized over the last axis -> reshape -> * w + b -> y

    An instance norm with running statistics is a product and a sum with constants.
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
    """x divided by its root mean square, or the same for x - mean(x)."""
    # The variance is computed from the centred values: mean(x^2) - mean(x)^2 is a small difference of large numbers
    # with large scales. Its scale is smaller than that of the squares, as the accumulator is rounded once, after the
    # mean.
    if write.unevenness >= UNEQUAL and not write.capabilities.has_int16:
        return _normalized_by_row(write, x, axes, eps, centred)
    if centred:
        x = write("sub.Tensor", x, _mean(write, x, axes))
    variance = _mean(write, write("mul.Tensor", x, x), axes, eps)
    return write("mul.Tensor", x, write("rsqrt.default", variance))


def _normalized_by_row(write: Writer, x: Float, axes: Sequence[int], eps: float, centred: bool) -> Float:
    """Same, with rows scaled to equal size: each times g = 1 / (max(|x|) + e), which cancels out.

    x / sqrt(mean(x * x) + eps) = x * g / sqrt(mean(x * g * x * g) + eps * g * g)

    e is a fraction of the largest row, so that g of a row of zeros does not dominate the scale.
    """
    largest = write("amax.default", write("abs.default", x), list(axes), True)
    gain = write("reciprocal.default", write("add.Tensor", largest, write.constant(SMALLEST_ROW * write.row_size)))
    x = write("mul.Tensor", x, gain)
    if centred:
        x = write("sub.Tensor", x, _mean(write, x, axes))
    variance = _mean(write, write("mul.Tensor", x, x), axes)
    least = write("mul.Tensor", gain, write("mul.Tensor", gain, write.constant(eps)))
    return write("mul.Tensor", x, write("rsqrt.default", write("add.Tensor", variance, least)))


def _mean(write: Writer, x: Float, axes: Sequence[int], shift: float = 0.0) -> Float:
    """mean(x) + shift over axes, which keep size 1, with its own qparams; `mean` has those of x.

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


def _affine(write: Writer, x: Float, weight: object, bias: object, shape: list[int] | None) -> Float:
    """x * weight + bias, both reshaped if a shape is given."""
    for overload, operand in (("mul.Tensor", weight), ("add.Tensor", bias)):
        if operand is not None:
            x = write(overload, x, operand if shape is None else under_shape(write, operand, shape))
    return x


def with_fixed_statistics(write: Writer) -> Float:
    """A norm that measures each input -> a factor and a summand per channel, like a folded batch norm."""
    shape, given = write.shape(), write.given
    size = tuple(given.get("normalized_shape", (shape[1], *(1 for _ in shape[2:]))))
    factor, summand = (write.stored(given[name]) for name in ("weight", "bias"))
    scale = np.ones(size, np.float32) if factor is None else factor.reshape(size)
    shift = np.zeros(size, np.float32) if summand is None else summand.reshape(size)
    return write("add.Tensor", write("mul.Tensor", given["input"], write.constant(scale)), write.constant(shift))
