"""Rewrites that cost less on Ethos-U: every offer computes the same integers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from micronpu.ir.graph import Graph, GraphBuilder, Node, Tensor
from micronpu.ir.interpreter import interpret
from micronpu.ir.types import DType, QParams, TensorType
from micronpu.ir.window import Activation, Padding2d
from micronpu.ops.activation import Prelu
from micronpu.ops.convolution import Conv2d, DepthwiseConv2d
from micronpu.ops.movement import TO_CHANNELS_FIRST, TO_CHANNELS_LAST, Pad, Reshape, Transpose
from micronpu.ops.reduction import Mean
from micronpu.ops.slicing import Slice
from micronpu.passes.rewrite import Rewrite
from micronpu.targets.ethosu.rewrites import REWRITES
from micronpu.targets.ethosu.rewrites import cheaper as less
from micronpu.targets.ethosu.rewrites.sound import MeanAsPool

QPARAMS, OTHER = QParams.per_tensor(0.02, -7), QParams.per_tensor(0.05, 11)


WIDE, WIDE_OTHER = QParams.per_tensor(0.0001, 0), QParams.per_tensor(0.0002, 0)


def picture(builder: GraphBuilder, *shape: int, is_wide: bool = False) -> Tensor:
    dtype, qparams = (DType.INT16, WIDE) if is_wide else (DType.INT8, QPARAMS)
    return builder.input(TensorType(shape, dtype, qparams))


def weights(
    builder: GraphBuilder, shape: tuple[int, ...], axis: int, qparams: str, is_wide: bool = False
) -> tuple[Tensor, Tensor]:
    """Random weights and biases, per channel or per tensor."""
    step, dtype = (WIDE.scale[0], DType.INT64) if is_wide else (QPARAMS.scale[0], DType.INT32)
    rng, count = np.random.default_rng(shape), shape[axis]
    scales = [float(s) for s in rng.uniform(0.001, 0.02, count)] if qparams == "channel" else [0.01]
    make = (
        QParams.per_channel(scales, axis) if qparams == "channel" else QParams.per_tensor(scales[0], 0),
        QParams.per_channel([s * step for s in scales], 0)
        if qparams == "channel"
        else QParams.per_tensor(scales[0] * step, 0),
    )
    weight = builder.constant(rng.integers(-127, 128, shape), TensorType(shape, DType.INT8, make[0]))
    return weight, builder.constant(rng.integers(-900, 900, count), TensorType((count,), dtype, make[1]))


def convolution(
    size: tuple[int, int, int],
    kernel: tuple[int, int, int],
    stride: tuple[int, int] = (1, 1),
    padding: Padding2d = Padding2d(),  # noqa: B008  (frozen)
    qparams: str = "channel",
    planes: bool = False,
    is_wide: bool = False,
) -> Graph:
    builder = GraphBuilder()
    high, wide, depth = size
    shape = (1, depth, high, wide) if planes else (1, high, wide, depth)
    x = picture(builder, *shape, is_wide=is_wide)
    x = builder.emit(Transpose(TO_CHANNELS_LAST), x) if planes else x
    operands = weights(builder, (*kernel, depth), 0, qparams, is_wide)
    op = Conv2d(stride, padding, activation=Activation.RELU)
    return builder.finish(builder.emit(op, x, *operands, qparams=WIDE_OTHER if is_wide else OTHER))


def padded(shape: tuple[int, ...], before: tuple[int, ...], after: tuple[int, ...], is_wide: bool = False) -> Graph:
    builder = GraphBuilder()
    return builder.finish(builder.emit(Pad(before, after), picture(builder, *shape, is_wide=is_wide)))


def reshaped(shape: tuple[int, ...], new: tuple[int, ...]) -> Graph:
    builder = GraphBuilder()
    return builder.finish(builder.emit(Reshape(new), picture(builder, *shape)))


def sliced(shape: tuple[int, ...], begin: tuple[int, ...], size: tuple[int, ...]) -> Graph:
    builder = GraphBuilder()
    return builder.finish(builder.emit(Slice(begin, size), picture(builder, *shape)))


def depthwise(depth: int, qparams: str, stride: int) -> Graph:
    builder = GraphBuilder()
    operands = weights(builder, (1, 3, 3, depth), 3, qparams)
    op = DepthwiseConv2d((stride, stride), Padding2d(1, 1, 1, 0))
    return builder.finish(builder.emit(op, picture(builder, 1, 9, 7, depth), *operands, qparams=OTHER))


def transpose(permutation: tuple[int, ...], *shape: int) -> Graph:
    builder = GraphBuilder()
    return builder.finish(builder.emit(Transpose(permutation), picture(builder, *shape)))


def prelu(depth: int, wide: int = 9) -> Graph:
    builder = GraphBuilder()
    slopes = np.random.default_rng(depth).integers(-127, 128, depth)
    slope = builder.constant(slopes, TensorType((depth,), DType.INT8, QParams.per_tensor(0.01, 0)))
    return builder.finish(builder.emit(Prelu(), picture(builder, 1, 5, wide, depth), slope, qparams=OTHER))


def offers(rewrite: Rewrite, graph: Graph) -> list[Graph]:
    """The graph with everything that is offered for its last node."""
    node = graph.nodes[-1]
    before = next((n for n in graph.nodes[:-1] if isinstance(n.op, Transpose)), None)
    found = []
    for nodes in rewrite.offers(node, before):
        kept: list[Node] = [*graph.nodes[:-1], *nodes]
        changed = Graph(list(graph.inputs), list(graph.outputs), kept)
        changed.remove_dead()
        found.append(changed)
    return found


SYMMETRIC = Padding2d(1, 1, 1, 1)
CASES: list[tuple[Rewrite, Callable[[], Graph], int]] = [
    (less.TransposeAsMatrix(), lambda: transpose(TO_CHANNELS_LAST, 1, 3, 8, 10), 1),
    (less.TransposeAsMatrix(), lambda: transpose(TO_CHANNELS_FIRST, 1, 8, 10, 3), 1),
    (less.PlanesIntoConvolution(), lambda: convolution((8, 12, 3), (5, 3, 3), (2, 2), SYMMETRIC, planes=True), 12),
    (less.PlanesIntoConvolution(), lambda: convolution((8, 8, 3), (5, 3, 3), (1, 1), SYMMETRIC, "tensor", True), 6),
    (
        less.PlanesIntoConvolution(),
        lambda: convolution((8, 8, 3), (4, 5, 4), (2, 2), Padding2d(2, 1, 2, 1), planes=True),
        12,
    ),
    (less.PlanesIntoConvolution(), lambda: convolution((8, 8, 3), (5, 3, 3), (2, 2), SYMMETRIC), 0),
    (less.PlanesIntoConvolution(), lambda: convolution((4, 4, 16), (5, 3, 3), (1, 1), SYMMETRIC, planes=True), 2),
    (less.PlanesIntoConvolution(), lambda: convolution((4, 4, 17), (5, 3, 3), (1, 1), SYMMETRIC, planes=True), 0),
    (less.PixelsIntoChannels(), lambda: convolution((9, 12, 3), (5, 3, 3), (2, 2), SYMMETRIC), 1),
    (
        less.PixelsIntoChannels(),
        lambda: convolution((9, 12, 3), (5, 3, 3), (2, 2), Padding2d(0, 1, 0, 1), "tensor"),
        1,
    ),
    (less.PixelsIntoChannels(), lambda: convolution((9, 12, 1), (5, 10, 4), (2, 2), Padding2d(5, 5, 1, 1)), 1),
    (less.PixelsIntoChannels(), lambda: convolution((9, 12, 2), (5, 3, 5), (1, 3), Padding2d(1, 1, 2, 2)), 1),
    (less.PixelsIntoChannels(), lambda: convolution((9, 12, 2), (5, 1, 1), (2, 2)), 1),
    (less.PixelsIntoChannels(), lambda: convolution((9, 13, 3), (5, 3, 3), (2, 2), SYMMETRIC), 0),
    (less.PixelsIntoChannels(), lambda: convolution((1, 301, 1), (1, 1, 64), (1, 2)), 3),
    (less.PixelsIntoChannels(), lambda: convolution((1, 301, 1), (1, 1, 64), (1, 2), is_wide=True), 3),
    (less.PixelsIntoChannels(), lambda: convolution((1, 700, 1), (36, 1, 256), (1, 256), is_wide=True), 1),
    (less.PixelsIntoChannels(), lambda: convolution((1, 300, 1), (6, 1, 32), (1, 8), Padding2d(0, 0, 5, 9)), 1),
    (less.PixelsIntoChannels(), lambda: convolution((3, 200, 2), (3, 2, 64), (2, 1), Padding2d(1, 0, 20, 3)), 2),
    (
        less.PixelsIntoChannels(),
        lambda: convolution((1, 257, 3), (4, 1, 31), (1, 3), Padding2d(0, 0, 15, 15), "tensor", is_wide=True),
        2,
    ),
    (less.PixelsIntoChannels(), lambda: convolution((1, 301, 1), (80, 1, 40), (1, 2)), 0),
    (less.ChannelsIntoKernel(), lambda: convolution((6, 5, 32), (7, 1, 1)), 1),
    (less.ChannelsIntoKernel(), lambda: convolution((6, 5, 24), (7, 1, 1), qparams="tensor"), 1),
    (less.ChannelsIntoKernel(), lambda: convolution((6, 5, 48), (7, 3, 3), padding=SYMMETRIC), 2),
    (less.ChannelsIntoKernel(), lambda: convolution((6, 5, 32), (7, 3, 3), (2, 2), SYMMETRIC), 0),
    (less.ChannelsIntoKernel(), lambda: convolution((6, 5, 20), (7, 1, 1)), 0),
    (less.FlatPixels(), lambda: convolution((7, 7, 24), (5, 1, 1)), 1),
    (less.FlatPixels(), lambda: convolution((8, 8, 24), (5, 1, 1)), 0),
    (less.FlatPixels(), lambda: convolution((7, 7, 24), (5, 3, 3)), 0),
    (less.DiagonalConvolution(), lambda: depthwise(8, "channel", 1), 1),
    (less.DiagonalConvolution(), lambda: depthwise(5, "tensor", 2), 1),
    (less.DiagonalConvolution(), lambda: depthwise(24, "channel", 1), 0),
    (less.RowsOfBytes(), lambda: convolution((1, 1, 40), (9, 1, 1), is_wide=True), 1),
    (less.RowsOfBytes(), lambda: convolution((4, 4, 24), (9, 1, 1), qparams="tensor", is_wide=True), 1),
    (less.RowsOfBytes(), lambda: convolution((1, 17, 24), (9, 1, 1), is_wide=True), 0),
    (less.RowsOfBytes(), lambda: convolution((1, 1, 40), (9, 1, 1)), 0),
    (less.RowsOfBytes(), lambda: convolution((2, 4, 24), (9, 1, 1), (2, 1), is_wide=True), 0),
    (less.RowsOfBytes(), lambda: convolution((2, 4, 24), (9, 1, 1), padding=SYMMETRIC, is_wide=True), 0),
    (less.RowsOfBytes(), lambda: convolution((3, 3, 24), (9, 3, 1), is_wide=True), 0),
    (less.RowsOfBytes(), lambda: convolution((1, 1, 1200), (9, 1, 1), is_wide=True), 0),  # sums exceed 32 bits
    (less.RowsIntoChannels(), lambda: prelu(10), 1),
    (less.RowsIntoChannels(), lambda: prelu(32), 1),
    (less.RowsIntoChannels(), lambda: prelu(10, 1000), 0),
    (less.RowsIntoChannels(), lambda: padded((2, 5, 9, 3), (0, 1, 4, 0), (0, 0, 2, 0)), 1),
    (less.RowsIntoChannels(), lambda: padded((1, 5, 9, 1), (0, 0, 0, 0), (0, 2, 7, 0), is_wide=True), 1),
    (less.RowsIntoChannels(), lambda: padded((1, 5, 9, 3), (0, 1, 4, 0), (0, 0, 2, 1)), 0),
    (less.RowsIntoChannels(), lambda: padded((1, 5, 9, 3), (0, 1, 0, 0), (0, 1, 0, 0)), 0),
    (less.RowsIntoChannels(), lambda: padded((1, 5, 9, 8), (0, 0, 1, 0), (0, 0, 1, 0)), 0),
    (less.RowsIntoChannels(), lambda: reshaped((1, 5, 9, 1), (5, 9)), 0),
    (less.RowsIntoChannels(), lambda: sliced((2, 9, 30, 2), (1, 2, 3, 0), (1, 7, 8, 2)), 1),
    (less.RowsIntoChannels(), lambda: sliced((1, 9, 30, 2), (0, 2, 3, 1), (1, 7, 8, 1)), 0),
]


@pytest.mark.parametrize(("rewrite", "make", "count"), CASES)
def test_every_offer_computes_the_same(rewrite: Rewrite, make: Callable[[], Graph], count: int) -> None:
    graph = make()
    made = offers(rewrite, make())
    assert len(made) == count
    rng = np.random.default_rng(3)
    low, high = graph.inputs[0].type.dtype.limits
    x = rng.integers(low, high, graph.inputs[0].shape, graph.inputs[0].type.dtype.numpy, endpoint=True)
    expected = interpret(graph, [x])[0]
    for other in made:
        assert any(rewrite.name in n.origin.passes for n in other.nodes)
        assert other.outputs[0].type == graph.outputs[0].type
        assert np.array_equal(interpret(other, [x])[0], expected)


@pytest.mark.parametrize("size", [3, 7, 8])
@pytest.mark.parametrize("zero_point", [-128, 0])
def test_a_pool_is_the_mean_rounded_once(size: int, zero_point: int) -> None:
    def mean() -> Graph:
        builder = GraphBuilder()
        x = builder.input(TensorType((1, size, size, 64), DType.INT8, QParams.per_tensor(0.02, zero_point)))
        return builder.finish(builder.emit(Mean((1, 2)), x))

    graph, (pooled,) = mean(), offers(MeanAsPool(), mean())
    x = np.random.default_rng(size).integers(-128, 128, (1, size, size, 64)).astype(np.int8)
    real = x.astype(np.float64).mean(axis=(1, 2))
    ours, twice = (interpret(g, [x])[0].astype(np.float64) for g in (pooled, graph))
    assert np.abs(ours - real).max() <= 0.5
    assert np.abs(ours - twice).max() <= 1


@pytest.mark.parametrize("rewrite", REWRITES, ids=lambda r: r.name)
@pytest.mark.parametrize("make", [make for _, make, _ in CASES])
def test_a_rewrite_of_one_operator_leaves_others(rewrite: Rewrite, make: Callable[[], Graph]) -> None:
    graph = make()
    for nodes in rewrite.offers(graph.nodes[-1]):
        assert nodes[-1].output.type == graph.outputs[0].type


def test_names_of_rewrites_differ() -> None:
    assert len({rewrite.name for rewrite in REWRITES}) == len(REWRITES)
