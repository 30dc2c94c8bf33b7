"""Sums and means as products with ones, which have their own qparams and a single rounding."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from micronpu.ir.aten import AtenNode
from micronpu.ir.graph import Tensor
from micronpu.ir.op import NewValues, shares_qparams
from micronpu.ir.types import DType, QParams, TensorType
from micronpu.ir.window import Padding2d, Size2d
from micronpu.ops.constants import BIAS_TYPE
from micronpu.ops.convolution import DepthwiseConv2d
from micronpu.ops.linear import FullyConnected
from micronpu.ops.movement import Reshape, transposed

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


def weights(
    node: AtenNode, x: Tensor, data: npt.NDArray[Any], outputs: int, scale: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Weights of ones and zeros, which only add, and their zero bias.

    Args:
        scale: value that a one represents.
    """
    kernel = TensorType(data.shape, DType.INT8, QParams.per_tensor(scale, 0))
    bias = TensorType((outputs,), BIAS_TYPE[x.type.dtype], QParams.per_tensor(x.type.scale * scale, 0))
    return node.constant(data, kernel), node.constant(np.zeros(outputs), bias)
