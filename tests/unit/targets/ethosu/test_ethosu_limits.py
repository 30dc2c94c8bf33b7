"""Where rewrites for Ethos-U end: both sides of every limit, and no operator more than is needed."""

from __future__ import annotations

import numpy as np
import pytest
from tests.cases import Case, case, i8, i16, q, w8
from tests.unit.targets.ethosu.test_ethosu_offers import convolution, offers

from micronpu.ir.graph import Graph, Node
from micronpu.ir.interpreter import interpret
from micronpu.ir.types import DType
from micronpu.ir.window import Padding2d
from micronpu.ops.convolution import Conv2d, DepthwiseConv2d
from micronpu.ops.matmul import BatchMatmul
from micronpu.ops.movement import Transpose
from micronpu.ops.reduction import Amax, Amin, Mean
from micronpu.ops.resize import ResizeBilinear
from micronpu.ops.slicing import Slice
from micronpu.passes.rewrite import Rewrite
from micronpu.targets.ethosu.rewrites import cheaper as less
from micronpu.targets.ethosu.rewrites import fit, sound, spare
from micronpu.targets.ethosu.rewrites.byte_products import LONGEST_SUM

OUT = q(0.1)


def node_of(row: Case) -> Node:
    (node,) = row.graph().nodes
    return node


def words(inner: int) -> Case:
    return case(BatchMatmul(), x=i16(1, 1, inner), z=i16(1, inner, 1), out=q(0.0003))


def strided(*stride: int, depth: int = 4) -> Case:
    return case(Conv2d(stride), x=i8(1, 12, 12, 4), weight=w8(4, 3, 3, depth), out=OUT)


LIMITS: list[tuple[Rewrite, Case, Case]] = [
    (fit.MultiplyBytes(), words(LONGEST_SUM), words(LONGEST_SUM + 1)),
    (fit.MultiplyBytes(), words(4), case(BatchMatmul(), x=i8(1, 1, 4), z=i8(1, 4, 1), out=OUT)),
    (
        fit.MultiplyBilinear(),
        case(ResizeBilinear((8, 12), half_pixel_centers=True), x=i8(1, 4, 6, 8)),
        case(ResizeBilinear((12, 18), half_pixel_centers=True), x=i8(1, 4, 6, 8)),
    ),
    (
        fit.MultiplyBilinear(),
        case(ResizeBilinear((16, 24), half_pixel_centers=True), x=i8(1, 4, 6, 8)),
        case(ResizeBilinear((16, 24), half_pixel_centers=True), x=i16(1, 4, 6, 8)),
    ),
    (
        fit.BilinearByMatrices(),
        case(ResizeBilinear((32, 48), half_pixel_centers=True), x=i8(1, 4, 6, 8)),
        case(ResizeBilinear((32, 24), half_pixel_centers=True), x=i8(1, 4, 6, 8)),
    ),
    (fit.SmallestByHalves(), case(Amin((1,)), x=i16(3, 5)), case(Amin((1,)), x=i8(3, 5))),
    (
        fit.PickFromDepthwise(),
        case(DepthwiseConv2d((1, 2)), x=i8(1, 7, 7, 8), weight=w8(1, 3, 3, 8), out=OUT),
        case(DepthwiseConv2d((1, 1)), x=i8(1, 7, 7, 8), weight=w8(1, 3, 3, 8), out=OUT),
    ),
    (spare.StridesIntoChannels(), strided(1, 4), strided(1, 3)),
    (spare.StridesIntoChannels(), strided(4, 4), strided(4, 4, depth=2)),
    (
        spare.FlattenSlices(),
        case(Slice((0, 1, 0, 0, 0), (1, 2, 2, 2, 2)), x=i8(1, 3, 2, 2, 2)),
        case(Slice((1, 0, 0, 0), (2, 2, 2, 2)), x=i8(3, 2, 2, 2)),
    ),
    (sound.ExtremesAsPools(), case(Amax((1,)), x=i16(3, 4)), case(Amin((1,)), x=i16(3, 4))),
]


@pytest.mark.parametrize(("rewrite", "inside", "outside"), LIMITS)
def test_both_sides_of_a_limit(rewrite: Rewrite, inside: Case, outside: Case) -> None:
    assert rewrite.apply(node_of(inside)) is not None
    assert rewrite.apply(node_of(outside)) is None


def names(rewrite: Rewrite, row: Case) -> list[str]:
    return [node.op.name for node in rewrite.apply(node_of(row)) or []]


# Shape and permutation -> those of as few axes as do the same.
MERGED = [
    ((1, 196, 3, 12, 32), (2, 0, 3, 1, 4), (196, 36, 32), (1, 0, 2)),
    ((2, 1, 3), (0, 1, 2), (6,), (0,)),
    ((3, 2, 4), (0, 2, 1), (3, 2, 4), (0, 2, 1)),
    ((3, 1, 4), (2, 1, 0), (3, 4), (1, 0)),
]


@pytest.mark.parametrize(("shape", "permutation", "sizes", "order"), MERGED)
def test_axes_that_stay_together_are_one(
    shape: tuple[int, ...], permutation: tuple[int, ...], sizes: tuple[int, ...], order: tuple[int, ...]
) -> None:
    assert spare.merged(shape, permutation) == (sizes, order)


SWAP = "reshape transpose reshape"
# Shape, permutation, and the operators that are made of the transpose; none where it stays.
TRANSPOSES = [
    ((2, 3, 8, 8), (0, 2, 3, 1), ""),
    ((300, 300, 16), (1, 0, 2), ""),
    ((4, 128, 128, 3), (0, 2, 1, 3), ""),
    ((4, 128, 129, 3), (0, 2, 1, 3), f"{SWAP} transpose reshape"),
    ((4, 8, 8, 16, 16), (0, 4, 3, 2, 1), ""),
    ((4, 8, 8, 16, 17), (0, 4, 3, 2, 1), f"{SWAP} transpose {SWAP} transpose reshape"),
    ((1, 1, 3, 4, 5), (0, 1, 4, 3, 2), SWAP),
    ((1, 2, 3, 1, 5), (3, 0, 1, 2, 4), "reshape reshape"),
]


@pytest.mark.parametrize(("shape", "permutation", "operators"), TRANSPOSES)
def test_transposes_that_vela_takes_stay(shape: tuple[int, ...], permutation: tuple[int, ...], operators: str) -> None:
    assert " ".join(names(spare.FlattenTransposes(), case(Transpose(permutation), x=i8(*shape)))) == operators


def test_an_axis_that_is_whole_is_not_cut() -> None:
    row = case(Slice((0, 1, 0, 0, 1), (1, 2, 2, 2, 1)), x=i8(1, 3, 2, 2, 2))
    assert names(spare.FlattenSlices(), row).count("slice") == 2


def test_blocks_of_one_row_are_not_transposed() -> None:
    """The same integers come of both, of which one moves them in vain."""
    assert "transpose" not in names(spare.StridesIntoChannels(), strided(1, 4))
    for stride in ((2, 4), (4, 2)):
        row = strided(*stride)
        assert "transpose" in names(spare.StridesIntoChannels(), row)
        graph = row.graph()
        graph.nodes = spare.StridesIntoChannels().apply(graph.nodes[0]) or []
        for sample in row.samples:
            np.testing.assert_array_equal(interpret(graph, sample)[0], interpret(row.graph(), sample)[0])


@pytest.mark.parametrize(
    ("shape", "axes", "transposed"),
    [((4, 6), (1,), True), ((2, 6), (1,), True), ((1, 6), (1,), False), ((3, 6, 2), (1,), False)],
)
def test_what_lies_behind_the_largest_element_are_channels(
    shape: tuple[int, ...], axes: tuple[int, ...], transposed: bool
) -> None:
    """Rows whose last axis is reduced become the channels, so that a pool fills the lanes."""
    made = names(sound.ExtremesAsPools(), case(Amax(axes), x=i8(*shape)))
    assert ("transpose" in made) == transposed and made.count("max_pool2d") == 1


# Shape and axes of a mean -> the picture of which it is the average over height and width.
PICTURES = [
    ((2, 7, 9, 8), (1, 2), (2, 7, 9, 8)),
    ((3, 12, 8), (1,), (3, 12, 1, 8)),
    ((3, 2, 5, 4), (1, 2), (3, 2, 5, 4)),
    ((2, 3, 4, 5, 6), (1, 2, 3), (2, 60, 1, 6)),
    ((2, 3, 1, 5, 6), (1, 2, 3), (2, 3, 5, 6)),
    ((2, 3, 1, 5, 6), (1, 3), (2, 3, 5, 6)),
    ((2, 3, 2, 5, 6), (1, 3), None),
    ((2, 1, 5), (1,), None),
    ((4, 7), (1,), None),  # a product with ones
    ((256, 2, 5), (0, 1), (1, 256, 2, 5)),
    ((257, 2, 5), (0, 1), None),
    ((2, 8192, 5), (0, 1), (1, 2, 8192, 5)),
    ((2, 8193, 5), (0, 1), None),
    ((8, 8192, 5), (0, 1), (1, 8, 8192, 5)),
    ((9, 8192, 5), (0, 1), None),
    ((256, 2), (0,), (1, 256, 1, 2)),
    ((257, 2), (0,), (1, 1, 257, 2)),
]


@pytest.mark.parametrize(("shape", "axes", "picture"), PICTURES)
def test_the_picture_of_a_mean(
    shape: tuple[int, ...], axes: tuple[int, ...], picture: tuple[int, int, int, int] | None
) -> None:
    assert sound.pool_of_mean(node_of(case(Mean(axes), x=i8(*shape)))) == picture


def test_a_mean_with_its_own_qparams_is_no_pool() -> None:
    node = node_of(case(Mean((1, 2)), x=i8(2, 7, 9, 8)))
    node.output.type = node.output.type.with_qparams(q(0.3))
    assert sound.pool_of_mean(node) is None


SAME = Padding2d(1, 1, 1, 1)
OFFERED: list[tuple[Rewrite, Graph, int]] = [
    (less.PixelsIntoChannels(), convolution((9, 12, 8), (5, 3, 3), (2, 2), SAME), 1),
    (less.PixelsIntoChannels(), convolution((9, 12, 9), (5, 3, 3), (2, 2), SAME), 0),
    (less.PixelsIntoChannels(), convolution((9, 12, 3), (5, 3, 3), (2, 1), SAME), 0),
    (less.ChannelsIntoKernel(), convolution((6, 5, 64), (7, 1, 1)), 1),
    (less.ChannelsIntoKernel(), convolution((6, 5, 80), (7, 1, 1)), 0),
    (less.ChannelsIntoKernel(), convolution((6, 5, 24), (7, 1, 1)), 1),  # a stride of 3, the largest
    (less.ChannelsIntoKernel(), convolution((6, 8, 16), (7, 1, 1), (2, 2)), 0),  # a stride of 4
    (less.FlatPixels(), convolution((2, 7, 24), (5, 1, 1)), 1),
    (less.FlatPixels(), convolution((1, 7, 24), (5, 1, 1)), 0),
    (less.FlatPixels(), convolution((7, 5, 24), (5, 1, 1)), 1),
    (less.FlatPixels(), convolution((7, 4, 24), (5, 1, 1)), 0),
]


@pytest.mark.parametrize(("rewrite", "graph", "count"), OFFERED)
def test_what_is_offered_ends_at_the_limit(rewrite: Rewrite, graph: Graph, count: int) -> None:
    assert len(offers(rewrite, graph)) == count
    assert (rewrite.apply(graph.nodes[-1]) is not None) == (count > 0)


@pytest.mark.parametrize(("depth", "offered"), [(16, True), (17, False)])
def test_the_widest_diagonal(depth: int, offered: bool) -> None:
    row = case(DepthwiseConv2d(), x=i8(1, 4, 4, depth), weight=w8(1, 3, 3, depth, axis=3), out=OUT)
    assert (less.DiagonalConvolution().apply(node_of(row)) is not None) == offered


def test_an_int16_convolution_stays_as_it_is() -> None:
    row = case(DepthwiseConv2d(), x=i16(1, 4, 4, 8), weight=w8(1, 3, 3, 8), out=q(0.001))
    assert node_of(row).output.type.dtype is DType.INT16
    assert less.DiagonalConvolution().apply(node_of(row)) is None
