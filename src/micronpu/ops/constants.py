"""Constant operands: quantized weights and biases."""

from __future__ import annotations

import numpy as np

from micronpu.base.arrays import Array
from micronpu.base.errors import UnsupportedError
from micronpu.base.texts import plural
from micronpu.ir.aten import AtenNode
from micronpu.ir.graph import Tensor
from micronpu.ir.types import DType, QParams, TensorType
from micronpu.ir.window import Activation

# Half of the accumulator is left for the products: it has 32 bits for int8 activations, and 40 on NPUs for int16.
LARGEST_BIAS = {DType.INT8: 2**30, DType.INT16: 2**38}
BIAS_TYPE = {DType.INT8: DType.INT32, DType.INT16: DType.INT64}


def fused_activation(node: AtenNode) -> Activation:
    """The clamp that follows the node directly, without requantization."""
    return Activation[node.activation.upper()] if node.activation else Activation.NONE


def constant_like(node: AtenNode, values: Array, x: TensorType) -> Tensor:
    """Quantize a real constant symmetrically with the smallest possible scale, in the element type of an activation."""
    largest = x.dtype.limits[1]
    scale = max(float(np.abs(values).max()) / largest, float(np.finfo(np.float32).tiny))
    type = TensorType(values.shape, x.dtype, QParams.per_tensor(scale, 0))
    return node.constant(np.clip(np.rint(values / type.scale), -largest, largest), type)


def int8_weights(node: AtenNode, channel_axis: int) -> tuple[Array, QParams]:
    """Weights with one scale, or one for each index of the axis of the output channels."""
    weight, qparams = node.weight("weight")
    if qparams.axis not in (None, channel_axis) and len(qparams.scale) > 1:
        raise UnsupportedError(f"The weights have a scale per index of axis {qparams.axis}, not per output channel.")
    return weight, qparams if qparams.axis == channel_axis else QParams(qparams.scale, qparams.zero_point)


def quantized_weights(node: AtenNode, x: TensorType, channel_axis: int = 0) -> tuple[Array, QParams, Tensor]:
    """Weights, their qparams, and the bias with scale ``s_x * s_weight`` (zero if there is none)."""
    weight, qparams = int8_weights(node, channel_axis)
    return with_bias(node, x, weight, qparams, channel_axis)


def with_bias(
    node: AtenNode, x: TensorType, weight: Array, qparams: QParams, channel_axis: int = 0
) -> tuple[Array, QParams, Tensor]:
    """int8 weights, their qparams, and the corresponding bias."""
    # A channel whose weights are so small that its bias would not fit gets a larger scale: its weights lose bits that
    # are insignificant beside the bias, while a saturated bias would be a wrong constant in every output.
    channels = weight.shape[channel_axis]
    scale = np.array(qparams.scale, np.float64)
    bias = node.float_constant("bias").astype(np.float64) if node.has("bias") else np.zeros(channels)
    if bias.size != channels:
        raise UnsupportedError(f"The bias has {plural(bias.size, 'element')} for {plural(channels, 'output channel')}.")
    bias = bias.reshape(channels)
    if any(qparams.zero_point):
        what = "The weights are quantized with a zero point; weights are symmetric."
        raise UnsupportedError(what, hint="quantize weights symmetrically (zero point 0)")
    needed = np.abs(bias) / (x.scale * LARGEST_BIAS[x.dtype])
    if qparams.axis is None:
        needed = needed.max(keepdims=True)
    coarse = needed > scale
    if coarse.any():
        wider = np.where(coarse, needed, scale)
        shape = [1] * weight.ndim
        if qparams.axis is not None:
            shape[channel_axis] = channels
        weight = np.rint(weight * (scale / wider).reshape(shape)).astype(np.int8)
        qparams = QParams(tuple(wider), qparams.zero_point, qparams.axis)
    step = x.scale
    bias_scale = QParams(
        tuple(step * s for s in qparams.scale), qparams.zero_point, None if qparams.axis is None else 0
    )
    scales = np.broadcast_to(step * np.array(qparams.scale), (channels,))
    type = TensorType((channels,), BIAS_TYPE[x.dtype], bias_scale)
    largest = 2 * LARGEST_BIAS[x.dtype]
    return weight, qparams, node.constant(np.clip(np.rint(bias / scales), -largest, largest - 1), type)
