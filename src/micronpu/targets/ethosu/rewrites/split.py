"""Rewrites that split an operator, so that the weights of one part are transferred while another is computed."""

from __future__ import annotations

import math

import numpy as np

from micronpu.ir.graph import Node, Tensor
from micronpu.ir.types import QParams
from micronpu.ops.concat import Concat
from micronpu.ops.convolution import Conv2d
from micronpu.ops.linear import FullyConnected
from micronpu.passes.rewrite import Chain, Rewrite, RewriteOf

_LANES = 16
"""Channels that are adjacent in memory; the channels of a part are a multiple."""
PARTS = 64 * 1024
"""Default size of the weights of a part in bytes."""


class SplitChannels(RewriteOf[Conv2d | FullyConnected]):
    """Splits a convolution or a linear layer with many weights by output channels.

        x [1, 7, 7, 320] -> conv2d(w [1280, 1, 1, 320]) -> y [1, 7, 7, 1280]
        x -> conv2d(w[0:432]) , x -> conv2d(w[432:864]) , x -> conv2d(w[864:1280]) -> concat -> y

    A prefetch needs memory for all weights of an operation, and the operation waits for the last of them. Exact.

    Args:
        most: maximum bytes of weights of a part.
    """

    name = "split_channels"

    def __init__(self, most: int = PARTS) -> None:
        self.most = most

    def replaced(self, node: Node, op: Conv2d | FullyConnected, chain: Chain) -> list[Node] | None:
        x, weight, bias = node.inputs
        if weight.data is None or bias.data is None or (isinstance(op, Conv2d) and weight.shape[3] != x.shape[3]):
            return None
        channels = weight.shape[0]
        count = min(-(-weight.data.nbytes // self.most), channels // _LANES)
        if count < 2:
            return None
        step = -(-math.ceil(channels / count) // _LANES) * _LANES
        qparams, firsts = node.output.type.qparams, range(0, channels, step)
        parts = [chain.add(op, x, _rows(weight, n, step), _rows(bias, n, step), qparams=qparams) for n in firsts]
        y = chain.add(Concat(node.output.type.rank - 1), *parts)
        return chain.result(y, node.output)


def _rows(constant: Tensor, first: int, count: int) -> Tensor:
    """A slice of a constant's first axis, with its scales."""
    assert constant.data is not None
    data = np.ascontiguousarray(constant.data[first : first + count])
    qparams = constant.type.qparams
    if qparams is not None and qparams.axis is not None:
        rows = slice(first, first + count)
        qparams = QParams.per_channel(qparams.scale[rows], qparams.axis, qparams.zero_point[rows])
    return Tensor(constant.name, constant.type.with_shape(data.shape).with_qparams(qparams), data)


TO_COME_EARLIER: tuple[Rewrite, ...] = (SplitChannels(),)
