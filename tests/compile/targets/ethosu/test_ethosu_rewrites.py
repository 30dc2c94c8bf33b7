"""Rewrites for Ethos-U: the same integers, on a chip that refused the operator before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from tests.cases import Case, all_cases, case, i8, i16, q, w8
from tests.rewriting import rewrite_graph

from micronpu.ir import Graph, GraphBuilder, Stage, interpret, verify
from micronpu.ir.types import DType, QParams, TensorType
from micronpu.ir.window import Activation, Padding2d
from micronpu.ops.convolution import Conv2d, DepthwiseConv2d
from micronpu.ops.matmul import BatchMatmul
from micronpu.ops.movement import Reshape, Transpose
from micronpu.ops.reduction import Amin
from micronpu.ops.resize import ResizeBilinear, ResizeNearest
from micronpu.ops.slicing import Concat, Slice
from micronpu.ops.tables.table import LookupTable
from micronpu.passes import run_passes
from micronpu.targets.ethosu.compile import compile_graph
from micronpu.targets.ethosu.legalize import legalize
from micronpu.targets.ethosu.options import EthosUOptions
from micronpu.targets.ethosu.rewrites import TO_FIT
from micronpu.targets.ethosu.rules import ethosu_policy, judge_of

U55, U85 = EthosUOptions("ethos-u55-128"), EthosUOptions("ethos-u85-256")
OPERATORS = {
    "bilinear_by_matrices": ResizeBilinear,
    "multiply_bilinear": ResizeBilinear,
    "multiply_bytes": BatchMatmul,
    "pick_from_depthwise": DepthwiseConv2d,
    "smallest_by_halves": Amin,
}


def test_every_rewrite_is_tested():
    assert set(OPERATORS) == {rewrite.name for rewrite in TO_FIT}


@pytest.mark.parametrize("name", OPERATORS)
def test_a_rewrite_computes_the_same(name: str):
    """On every row of the operator, whether a chip needs it or not."""
    (rewrite,) = (r for r in TO_FIT if r.name == name)
    changed = 0
    for row in all_cases():
        unwanted = {"multiply_bytes": "int8", "smallest_by_halves": "int8", "bilinear_by_matrices": ""}.get(
            name, "int16"
        )
        if not isinstance(row.op, OPERATORS[name]) or row.graph().inputs[0].type.dtype.value == unwanted:
            continue
        before, graph = row.graph(), row.graph()
        nodes = rewrite.apply(graph.nodes[0])
        if nodes is None:
            continue
        changed += 1
        graph.nodes = nodes
        verify(graph, Stage.IMPORTED)
        for sample in row.samples:
            (expected,), (got,) = interpret(before, sample), interpret(graph, sample)
            assert apart(expected, got) <= (rewrite.max_steps or 0), str(row)
    assert changed >= 3


def apart(expected: np.ndarray, got: np.ndarray) -> int:
    return int(np.abs(expected.astype(np.int64) - got).max())


def bilinear(factor: int, half: bool = True) -> Case:
    op = ResizeBilinear((5 * factor, 4 * factor), not half, half)
    return case(op, x=i8(1, 5, 4, 3, zero=4), name="bilinear")


def nearest(factor: int) -> Case:
    return case(ResizeNearest((5 * factor, 4 * factor)), x=i8(1, 5, 4, 3), name="nearest")


def depthwise(stride: int) -> Case:
    op = DepthwiseConv2d((stride, stride), Padding2d(1, 1, 1, 1))
    return case(op, x=i8(1, 14, 15, 8), weight=w8(1, 3, 3, 8, axis=3), out=q(0.1), name="depthwise")


def product(operand: Callable[..., TensorType]) -> Case:
    return case(
        BatchMatmul(), x=operand(2, 5, 8), z=operand(2, 8, 3), out=q(0.1 if operand is i8 else 1e-5), name="product"
    )


def smallest(operand: Callable[..., TensorType]) -> Case:
    return case(Amin((2, 3)), x=operand(1, 4, 5, 6), name="smallest")


# What U55 takes as it is, and what lies just beyond.
LIMITS = {
    "bilinear_by_matrices": (nearest(2), bilinear(8)),
    "multiply_bilinear": (nearest(2), bilinear(4)),
    "multiply_bytes": (product(i8), product(i16)),
    "pick_from_depthwise": (depthwise(3), depthwise(4)),
    "smallest_by_halves": (smallest(i8), smallest(i16)),
}


@pytest.mark.parametrize("name", LIMITS)
def test_both_sides_of_the_limit(name: str):
    judge = judge_of(U55)
    within, beyond = (replace(row, name=f"{name}-{i}") for i, row in enumerate(LIMITS[name]))
    assert judge.prefers(within.graph().nodes[0])
    assert judge(beyond.graph().nodes[0])
    assert judge_of(U85).prefers(beyond.graph().nodes[0])
    decide = ethosu_policy(U55).decide
    unchanged, fitting = rewrite_graph(within.graph(), decide), rewrite_graph(beyond.graph(), decide)
    assert len(unchanged.nodes) == 1
    assert name in fitting.nodes[0].origin.passes
    assert not any(judge(node) for node in fitting.nodes)
    reference = beyond.graph()
    compiled = compile_graph(beyond.graph(), U55)
    (rewrite,) = (r for r in TO_FIT if r.name == name)
    for sample in beyond.samples:
        (expected,), (got,) = interpret(reference, sample), interpret(compiled.graph, sample)
        assert apart(expected, got) <= (rewrite.max_steps or 0)


@pytest.mark.parametrize(("factor", "dtype"), [(2, "int8"), (4, "int8"), (8, "int8"), (2, "int16"), (8, "int16")])
def test_a_bilinear_resize_stands_beside_a_table(factor: int, dtype: str):
    """U55 takes the one as LiteRT only, if at all, and the other as TOSA only."""
    operand, opposite = (i8, range(127, -129, -1)) if dtype == "int8" else (i16, [*range(32767, -32768, -128), -32767])
    builder = GraphBuilder()
    x = builder.input(operand(1, 5, 4, 3))
    y = builder.emit(ResizeBilinear((5 * factor, 4 * factor), False, True), x)
    graph = builder.finish(builder.emit(LookupTable(tuple(opposite)), y, qparams=q(0.1)))
    reference = graph.clone()
    compiled = compile_graph(graph, U55)
    low, high = x.type.dtype.limits
    sample = np.random.default_rng(0).integers(low, high + 1, (1, 5, 4, 3)).astype(dtype)
    exact = factor < 8 and dtype == "int8"
    assert apart(interpret(reference, [sample])[0], interpret(compiled.graph, [sample])[0]) <= (0 if exact else 1)


def test_other_resizes_are_left_alone():
    rewrite = next(r for r in TO_FIT if r.name == "multiply_bilinear")
    for row in (bilinear(3), bilinear(8), bilinear(2, half=False)):
        assert rewrite.apply(replace(row, name="other").graph().nodes[0]) is None


# ---------------------------------------------------------------- slices of high rank


def made_by(graph: Graph) -> set[str]:
    """Names of what made the graph's nodes."""
    return {name for node in graph.nodes for name in node.origin.passes}


def pieces(shape: tuple[int, ...], begin: tuple[int, ...], size: tuple[int, ...], joined: tuple[int, ...]) -> Graph:
    builder = GraphBuilder()
    x = builder.input(i8(*shape))
    parts = [builder.emit(Reshape(joined), builder.emit(Slice(b, size), x)) for b in (begin, (0,) * len(shape))]
    return builder.finish(builder.emit(Concat(len(joined) - 1), *parts))


@pytest.mark.parametrize(
    ("shape", "begin", "size"),
    [
        ((1, 6, 8, 8, 4), (0, 1, 0, 0, 0), (1, 4, 8, 8, 4)),
        ((2, 3, 4, 5, 6), (1, 0, 2, 0, 3), (1, 3, 2, 5, 2)),
        ((2, 3, 2, 3, 2, 3), (0, 1, 0, 0, 1, 1), (2, 2, 2, 3, 1, 2)),
    ],
)
def test_slices_of_high_rank_become_flat(shape: tuple[int, ...], begin: tuple[int, ...], size: tuple[int, ...]):
    """The first of these has ended Vela 5.2's process for U55 as it is."""
    graph = pieces(shape, begin, size, (size[1] * size[0], int(np.prod(size[2:]))))
    before = graph.clone()
    assert "flatten_slices" in made_by(legalize(graph, U55))
    verify(graph, Stage.IMPORTED)
    assert all(node.inputs[0].type.rank <= 4 for node in graph.nodes if isinstance(node.op, Slice))
    x = np.random.default_rng(0).integers(-128, 128, shape).astype(np.int8)
    np.testing.assert_array_equal(interpret(graph, [x])[0], interpret(before, [x])[0])
    assert "flatten_slices" not in made_by(legalize(before.clone(), replace(U55, disabled_passes=("flatten_slices",))))
    assert compile_graph(before, U55).payload


def test_slices_of_images_stay():
    graph = pieces((1, 6, 8, 4), (0, 1, 0, 0), (1, 4, 8, 4), (4, 32))
    assert "flatten_slices" not in made_by(legalize(graph, U55))


@pytest.mark.parametrize(
    ("shape", "order", "ranks"),
    [
        ((1, 196, 3, 12, 32), (2, 0, 3, 1, 4), [3]),  # queries, keys and values; U55 takes no more than 65536 elements
        ((1, 16, 4, 16, 4, 8), (0, 3, 1, 2, 4, 5), [3]),
        ((2, 3, 1, 4, 5), (4, 0, 2, 3, 1), [4]),
        ((2, 300, 150, 3), (0, 2, 1, 3), [3, 3]),  # too many rows
        ((14, 15, 16, 5, 6), (4, 1, 3, 0, 2), [3, 3, 3]),
    ],
)
def test_transposes_have_few_axes(shape: tuple[int, ...], order: tuple[int, ...], ranks: list[int]):
    builder = GraphBuilder()
    graph = builder.finish(builder.emit(Transpose(order), builder.input(i8(*shape))))
    before = graph.clone()
    assert "flatten_transposes" in made_by(legalize(graph, U55))
    verify(graph, Stage.IMPORTED)
    assert [node.inputs[0].type.rank for node in graph.nodes if isinstance(node.op, Transpose)] == ranks
    x = np.random.default_rng(0).integers(-128, 128, shape).astype(np.int8)
    np.testing.assert_array_equal(interpret(graph, [x])[0], x.transpose(order))
    off = replace(U55, disabled_passes=("flatten_transposes",))
    assert "flatten_transposes" not in made_by(legalize(before.clone(), off))
    assert compile_graph(before, U55).payload


@pytest.mark.parametrize(("shape", "order"), [((4, 7, 9, 3), (0, 2, 1, 3)), ((300, 150, 3), (1, 0, 2))])
def test_other_transposes_stay(shape: tuple[int, ...], order: tuple[int, ...]):
    builder = GraphBuilder()
    graph = builder.finish(builder.emit(Transpose(order), builder.input(i8(*shape))))
    assert "flatten_transposes" not in made_by(legalize(graph, U55))


def strided(size: tuple[int, int, int], kernel: tuple[int, int], stride: tuple[int, int], padding: Padding2d) -> Graph:
    """[2, *size] -> conv2d -> y"""
    builder, rng = GraphBuilder(), np.random.default_rng(3)
    weight = TensorType((5, *kernel, size[2]), DType.INT8, QParams.per_channel([0.004, 0.01, 0.02, 0.003, 0.1], 0))
    bias = TensorType((5,), DType.INT32, QParams.per_channel([0.05 * s for s in weight.qparams.scale], 0))
    x = builder.input(TensorType((2, *size), DType.INT8, QParams.per_tensor(0.05, 7)))
    operands = [
        builder.constant(rng.integers(-127, 128, weight.shape), weight),
        builder.constant(rng.integers(-900, 900, 5), bias),
    ]
    op = Conv2d(stride, padding, activation=Activation.RELU)
    return run_passes(builder.finish(builder.emit(op, x, *operands, qparams=QParams.per_tensor(0.3, -100))))


@pytest.mark.parametrize(
    "graph",
    [
        strided((16, 24, 3), (4, 4), (4, 4), Padding2d()),
        strided((33, 30, 3), (7, 7), (4, 4), Padding2d(3, 3, 3, 3)),
        strided((19, 18, 3), (3, 2), (5, 4), Padding2d()),
        strided((1, 40, 8), (1, 10), (1, 5), Padding2d(0, 0, 3, 2)),
        strided((23, 9, 2), (11, 3), (4, 1), Padding2d(2, 2, 1, 1)),
    ],
    ids=["patches", "overlapping", "gaps", "audio", "rows_only"],
)
def test_a_large_stride_becomes_channels(graph: Graph):
    before = graph.clone()
    graph = legalize(graph.clone(), U55)
    assert "strides_into_channels" in made_by(graph)
    verify(graph, Stage.LITERT)
    (convolution,) = (n for n in graph.nodes if isinstance(n.op, Conv2d))
    assert convolution.op.stride == (1, 1)
    x = np.random.default_rng(4).integers(-128, 128, before.inputs[0].shape).astype(np.int8)
    np.testing.assert_array_equal(interpret(graph, [x])[0], interpret(before, [x])[0])
    for spec in (U55, U85):
        assert compile_graph(before.clone(), spec).program.cycles


def test_strides_of_the_hardware_and_groups_stay():
    for graph in (
        strided((16, 24, 3), (4, 4), (3, 3), Padding2d()),
        strided((16, 24, 3), (2, 2), (2, 2), Padding2d()),
    ):
        assert "strides_into_channels" not in made_by(legalize(graph, U55))


@pytest.mark.sweep
@pytest.mark.parametrize(("spec", "most"), [(U55, 700_000), (U85, 1_300_000)], ids=["u55", "u85"])
def test_patches_of_a_picture_cost_a_transpose(spec: EthosUOptions, most: int):
    graph = strided((224, 224, 3), (4, 4), (4, 4), Padding2d())
    assert compile_graph(graph, spec).program.cycles < 2 * most  # two pictures
