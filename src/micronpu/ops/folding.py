"""Constant factors and addends behind convolutions and linear layers, as weights and biases."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from micronpu.ir.lowering import Float, Writer
from micronpu.ops.convolution import CONVOLUTIONS
from micronpu.ops.transposed import TRANSPOSED

_LAYERS = (*CONVOLUTIONS, "conv3d.default", *TRANSPOSED, "linear.default")
_SMALLEST = 127 * 2.0**-24
"""Smallest size of weights: their scale is at least 2^-24."""
Row = npt.NDArray[np.float64]


def into_layer(write: Writer, x: Float, scale: Row, shift: Row) -> bool:
    """Change the weights and the bias of a layer so that its result x becomes ``x * scale + shift``.

    Args:
        scale, shift: one number for all output channels, or one for each.

    Returns:
        Whether x is the result of a layer with stored weights that has no other reader.
    """
    layer = write.call(x)
    if layer is None or layer.readers != 1 or layer.overload not in _LAYERS:
        return False
    weight, bias = write.stored(layer.given["weight"]), write.stored(layer.given.get("bias"))
    weight = write.known(layer.given["weight"]) if weight is None else weight  # stored transposed
    if weight is None or (layer.given.get("bias") is not None and bias is None):
        return False
    # Weights of a transposed convolution are [C, O / groups, ..]; the groups are blocks of C.
    groups = layer.given["groups"] if layer.overload in TRANSPOSED else 1
    outputs = groups * weight.shape[1] if layer.overload in TRANSPOSED else weight.shape[0]
    if not {scale.size, shift.size} <= {1, outputs}:
        return False
    scale, shift = np.broadcast_to(scale, (outputs,)), np.broadcast_to(shift, (outputs,))
    matrix, ones = weight.astype(np.float64), [1] * (weight.ndim - 2)
    factors = scale[:, None]
    if layer.overload in TRANSPOSED:
        factors = np.repeat(scale.reshape(groups, -1), len(weight) // groups, axis=0)
    folded = matrix * factors.reshape(*factors.shape, *ones)
    total = shift if bias is None else shift + bias.astype(np.float64) * scale
    weights = {} if (scale == 1).all() else {"weight": folded.astype(np.float32)}  # others may share these
    write.change(x, **weights, bias=total.astype(np.float32))
    return True


def line_of_layer(write: Writer, x: Float, scale: Any, shift: Any) -> Float:
    """layer(x, w, b) * scale + shift -> layer(x, w', b'), for constants of one element or one for each channel"""
    layer = write.call(x)
    if layer is None or layer.overload not in _LAYERS:
        return None
    if any(write.is_trained(layer.given.get(name)) for name in ("weight", "bias")):
        return None
    weight, shape, rows = write.known(layer.given["weight"]), write.shape(x), []
    for values in map(np.asarray, (scale, shift)):
        axes = (1,) * (len(shape) - values.ndim) + values.shape
        # The channels are before the axes of the window, which a linear layer does not have.
        is_row = weight is not None and len(axes) == len(shape) and values.size in (1, axes[1 - weight.ndim])
        if not is_row or not np.isfinite(values).all():
            return None
        rows.append(values.reshape(-1).astype(np.float64))
    assert weight is not None
    is_small = np.abs(weight).max(initial=0.0) * np.abs(rows[0]).min() < _SMALLEST
    # Others may read the weights, of which these would be another copy in the program: for them a product is smaller.
    is_copy = len(write.readers(layer.given["weight"])) > 1 and (rows[0] != 1).any() and weight.size > prod(shape)
    return x if not is_small and not is_copy and into_layer(write, x, *rows) else None
