"""Rewrites of operators whose command streams compute something else than the graph says.

Found by running the streams of Vela 5.2 in models of U55 and U85, for every row of the operator tests.  Vela takes
these operators without a word, so that no rule speaks against them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from micronpu.ir.graph import Node, Tensor
from micronpu.ir.types import DType
from micronpu.ops.convolution import Conv2d
from micronpu.ops.linear import FullyConnected
from micronpu.ops.movement import Reshape, Transpose
from micronpu.ops.pooling import MaxPool2d
from micronpu.ops.reduction import Amax, Amin
from micronpu.ops.unary import Neg
from micronpu.passes.rewrite import Chain, Rewrite, block, mirrored
from micronpu.passes.rewrites import ReflectBySlices

_LONGEST_WINDOW = 256


class LinearAsConvolution(Rewrite):
    """A fully connected layer is the convolution of one pixel that the chip computes.

    x [N, I] -> fully_connected(w [O, I]) -> y [N, O]
    x -> reshape [1, 1, N, I] -> conv2d(w [O, 1, 1, I]) -> reshape [N, O] -> y

    LiteRT rounds a fully connected layer once and a convolution twice, and so do the two forms in TOSA.  The chip has
    convolutions only: the command stream that Vela makes of either operator rounds twice.  Written as what it is, the
    layer has one arithmetic in the graph, on the host and on the chip.  Not exact: a sum whose scaled value is within
    2**-30 of itself of a tie moves by one step, to where the chip has it.
    """

    name = "linear_as_convolution"
    max_steps = 1

    def apply(self, node: Node) -> list[Node] | None:
        if not isinstance(node.op, FullyConnected):
            return None
        x, weight, bias = node.inputs
        outputs, inputs = weight.shape
        assert weight.data is not None
        chain = Chain(self.name, node)
        shape = (outputs, 1, 1, inputs)
        kernel = Tensor(weight.name, weight.type.with_shape(shape), weight.data.reshape(shape))
        rows = chain.reshape(x, 1, 1, x.type.size // inputs, inputs)
        op = Conv2d(activation=node.op.activation)
        return chain.result(chain.add(op, rows, kernel, bias, qparams=node.output.type.qparams), node.output)


class ExtremesAsPools(Rewrite):
    """The largest element along axes by max pools, the smallest by those of the opposite values.  Exact.

    x[4,6,8] -> amax(axis 1) -> y[4,8]      x -> reshape [1,4,6,8] -> max_pool2d{1x6} -> reshape -> y
    x[4,6]   -> amax(axis 1) -> y[4]        x -> transpose [6,4] -> reshape [1,1,6,4] -> max_pool2d{1x6} -> reshape -> y
    x -> amin -> y                          x -> neg (q -> -1 - q) -> amax -> neg -> y

    Vela's stream of LiteRT's REDUCE_MAX and REDUCE_MIN reads one row where the last axis goes, and that of TOSA's
    REDUCE_MIN does so on U55.
    """

    name = "extremes_as_pools"

    def apply(self, node: Node) -> list[Node] | None:
        op, x, y = node.op, node.inputs[0], node.output
        if not isinstance(op, (Amax, Amin)) or x.type.qparams is None:
            return None
        smallest = isinstance(op, Amin)
        if smallest and x.type.dtype is not DType.INT8:
            return None  # the opposite of the smallest int16 number is none
        chain, grid = Chain(self.name, node), x.type.qparams
        if smallest:
            x = chain.add(Neg(), x, qparams=mirrored(grid))
        for first, last in reversed(list(_runs(op.axes))):
            x = _largest(chain, x, first, last)
        if smallest:
            x = chain.add(Neg(), x, qparams=grid)
        return chain.finish(Reshape(y.shape), x, y)


def _runs(axes: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """First and last of the axes that follow each other."""
    start = previous = None
    for axis in sorted(axes):
        if previous is not None and start is not None and axis != previous + 1:
            yield start, previous
            start = axis
        start, previous = axis if start is None else start, axis
    if start is not None and previous is not None:
        yield start, previous


def _largest(chain: Chain, x: Tensor, first: int, last: int) -> Tensor:
    """The largest element along axes that follow each other, which stay with the size 1."""
    shape = (*x.shape[:first], *(1,) * (last - first + 1), *x.shape[last + 1 :])
    outer, size, inner = block(x.shape, first, last)
    if inner == 1 and outer > 1:
        x = chain.add(Transpose((1, 0)), chain.reshape(x, outer, size))
        outer, inner = 1, outer
    while size > 1:
        window = min(size, _LONGEST_WINDOW)
        x = chain.reshape(x, 1, outer, size, inner)
        if size % window:
            x = chain.padded(x, 2, 0, -size % window, -math.inf)
        size = -(-size // window)
        x = chain.add(MaxPool2d((1, window), (1, 1)), chain.reshape(x, 1, outer * size, window, inner))
    return chain.reshape(x, *shape)


TO_BE_SOUND: tuple[Rewrite, ...] = (LinearAsConvolution(), ExtremesAsPools(), ReflectBySlices())
"""Of what Vela takes, and whose command stream computes something else; none of them can be left out."""
