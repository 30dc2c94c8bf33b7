"""Rewrites of operators whose command streams do not compute the graph's definition.

Found by running the streams of Vela 5.2 in models of U55 and U85, for every row of the operator tests. Vela accepts
these operators silently, so no rule refuses them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from micronpu.emit.tosa import TosaEmitter
from micronpu.ir.graph import Node, Tensor
from micronpu.ir.types import DType
from micronpu.ops.convolution import Conv2d
from micronpu.ops.matmul import FullyConnected
from micronpu.ops.movement import Reshape, Transpose
from micronpu.ops.pooling import AvgPool2d, MaxPool2d
from micronpu.ops.reduction import Amax, Amin, Mean
from micronpu.ops.unary import Neg
from micronpu.passes.rewrite import Chain, ReflectBySlices, Rewrite, RewriteOf, block, mirrored

_LONGEST_WINDOW = 256
_WIDEST_POOL, _LARGEST_POOL = 8192, 65536
"""Width, and number of elements, of the largest window of an average pool."""


class LinearAsConvolution(RewriteOf[FullyConnected]):
    """A fully connected layer as a convolution of one pixel, which is what the chip computes.

    x [N, I] -> fully_connected(w [O, I]) -> y [N, O]
    x -> reshape [1, 1, N, I] -> conv2d(w [O, 1, 1, I]) -> reshape [N, O] -> y

    LiteRT rounds a fully connected layer once and a convolution twice, and so do their TOSA forms. The chip has
    convolutions only: Vela's command stream for either operator rounds twice. As a convolution, the layer has the same
    arithmetic in the graph, on the host and on the chip. Not exact: a sum whose scaled value is within a relative
    2**-30 of a tie changes by one LSB, to the chip's result.

    More inputs than an image has channels become a column of pixels, of which the kernel covers all:

    x [1, 2 * 51200] -> fully_connected -> y        x -> reshape [1, 2, 1, 51200] -> conv2d{2x1} -> reshape -> y
    """

    name = "linear_as_convolution"
    max_steps = 1

    def replaced(self, node: Node, op: FullyConnected, chain: Chain) -> list[Node] | None:
        x, weight, bias = node.inputs
        outputs, inputs = weight.shape
        rows, pixels = x.type.size // inputs, _pixels(inputs)
        depth = inputs // pixels
        kernel = chain.reshape(weight, outputs, pixels, 1, depth)
        image = chain.reshape(x, *((1, 1, rows, depth) if pixels == 1 else (1, rows * pixels, 1, depth)))
        made = Conv2d(stride=(pixels if rows > 1 else 1, 1), activation=op.activation, dtype=op.dtype)
        return chain.result(chain.add(made, image, kernel, bias, qparams=node.output.type.qparams), node.output)


def _pixels(inputs: int) -> int:
    """The fewest pixels into which the inputs of a layer are divided so that each has at most Vela's most channels."""
    counts = range(1, TosaEmitter.LARGEST_KERNEL + 1)
    return next((n for n in counts if inputs % n == 0 and inputs // n <= TosaEmitter.MOST_INPUTS), 1)


class ExtremesAsPools(RewriteOf[Amax | Amin]):
    """A maximum along axes as max pools, a minimum as max pools of negated values. Exact.

    x[4,6,8] -> amax(axis 1) -> y[4,8]      x -> reshape [1,4,6,8] -> max_pool2d{1x6} -> reshape -> y
    x[4,6]   -> amax(axis 1) -> y[4]        x -> transpose [6,4] -> reshape [1,1,6,4] -> max_pool2d{1x6} -> reshape -> y
    x -> amin -> y                          x -> neg (q -> -1 - q) -> amax -> neg -> y

    Vela's stream of LiteRT's REDUCE_MAX and REDUCE_MIN reads one row only if the last axis is reduced, and that of
    TOSA's REDUCE_MIN does so on U55.
    """

    name = "extremes_as_pools"

    def replaced(self, node: Node, op: Amax | Amin, chain: Chain) -> list[Node] | None:
        x, y = node.inputs[0], node.output
        smallest = isinstance(op, Amin)
        if x.type.qparams is None or (smallest and x.type.dtype is not DType.INT8):
            return None  # the smallest int16 number has no negative
        qparams = x.type.qparams
        if smallest:
            x = chain.add(Neg(), x, qparams=mirrored(qparams))
        for first, last in reversed(list(_runs(op.axes))):
            x = _largest(chain, x, first, last)
        if smallest:
            x = chain.add(Neg(), x, qparams=qparams)
        return chain.finish(Reshape(y.shape), x, y)


def _runs(axes: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """First and last axis of each run of consecutive axes."""
    for _, run in itertools.groupby(enumerate(sorted(axes)), lambda pair: pair[1] - pair[0]):
        consecutive = [axis for _, axis in run]
        yield consecutive[0], consecutive[-1]


def _largest(chain: Chain, x: Tensor, first: int, last: int) -> Tensor:
    """The largest element along consecutive axes, which keep size 1."""
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


class MeanAsPool(RewriteOf[Mean]):
    """A mean over adjacent axes as an average pool of one window.

    x [2, 7, 7, C] -> mean(axes 1, 2) -> y      x -> avg_pool2d{7x7} -> reshape -> y
    x [A, 12, C] -> mean(axis 1) -> y           x -> reshape [A, 12, 1, C] -> avg_pool2d{12x1} -> reshape -> y

    LiteRT rounds a mean twice, and a pool once. As a pool, which is the chip's form, it has the same arithmetic in the
    graph, on the host and on the chip: if the two differed by one LSB, a layer norm after the mean amplified it. Not
    exact: a result may differ by one LSB, towards the exact mean. A mean over the last axes is a product with ones,
    which rounds like LiteRT.
    """

    name = "mean_as_pool"
    max_steps = 1

    def replaced(self, node: Node, op: Mean, chain: Chain) -> list[Node] | None:
        if (found := pool_of_mean(node)) is None:
            return None
        (outer, high, wide, inner), x, y = found, node.inputs[0], node.output
        picture = chain.reshape(x, outer, high, wide, inner)
        return chain.result(chain.add(AvgPool2d((high, wide)), picture), y)


def pool_of_mean(node: Node) -> tuple[int, int, int, int] | None:
    """Shape [N, H, W, C] of the image whose average over height and width is the mean; None if there is none."""
    op, x = node.op, node.inputs[0].type
    if not isinstance(op, Mean) or x.qparams != node.output.type.qparams or op.is_product(x, TosaEmitter.MOST_INPUTS):
        return None
    reduced = [i for i in op.axes if x.shape[i] > 1]
    if not reduced or any(n > 1 for i, n in enumerate(x.shape) if reduced[0] < i < reduced[-1] and i not in reduced):
        return None
    outer, _, inner = block(x.shape, reduced[0], reduced[-1])
    sizes = [x.shape[i] for i in reduced]
    count = math.prod(sizes)
    high = sizes[0] if len(sizes) == 2 else max(n for n in range(1, _LONGEST_WINDOW + 1) if count % n == 0)
    if high > _LONGEST_WINDOW or count // high > _WIDEST_POOL or count > _LARGEST_POOL:
        return None
    return outer, high, count // high, inner


TO_BE_SOUND: tuple[Rewrite, ...] = (LinearAsConvolution(), ExtremesAsPools(), MeanAsPool(), ReflectBySlices())
"""Required for operators that Vela accepts but compiles wrongly; they cannot be disabled."""
