"""Rewrites for Ethos-U: the same integers, on a chip that refused the operator before."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.cases import Case, all_cases, case, i8, q, w8

from micronpu.ethosu.compile import compile_graph
from micronpu.ethosu.cures import CURES, FlattenSlices, cure_graph
from micronpu.ethosu.options import EthosUCompileSpec
from micronpu.ethosu.rules import judge_of
from micronpu.ir import Graph, GraphBuilder, Stage, interpret, verify
from micronpu.ops.concat import Concat
from micronpu.ops.convolution import DepthwiseConv2d
from micronpu.ops.fused import Padding2d
from micronpu.ops.movement import Reshape
from micronpu.ops.resize import ResizeBilinear, ResizeNearest
from micronpu.ops.slicing import Slice
from micronpu.ops.table import LookupTable

U55, U85 = EthosUCompileSpec("ethos-u55-128"), EthosUCompileSpec("ethos-u85-256")
OPERATORS = {
    "multiply_bilinear": ResizeBilinear,
    "pick_from_depthwise": DepthwiseConv2d,
}


def test_every_cure_is_tested():
    assert set(OPERATORS) == {rewrite.name for rewrite in CURES}


@pytest.mark.parametrize("name", OPERATORS)
def test_a_cure_computes_the_same(name: str):
    """On every row of the operator, whether a chip needs it or not."""
    (rewrite,) = (r for r in CURES if r.name == name)
    changed = 0
    for row in all_cases():
        if not isinstance(row.op, OPERATORS[name]) or row.graph().inputs[0].type.dtype.value != "int8":
            continue
        before, graph = row.graph(), row.graph()
        nodes = rewrite.apply(graph.nodes[0], 1)
        if nodes is None:
            continue
        changed += 1
        graph.nodes = nodes
        verify(graph, Stage.IMPORTED)
        for sample in row.samples:
            (expected,), (got,) = interpret(before, sample), interpret(graph, sample)
            np.testing.assert_array_equal(got, expected, err_msg=str(row))
    assert changed >= 3


def bilinear(factor: int, half: bool = True) -> Case:
    op = ResizeBilinear((5 * factor, 4 * factor), not half, half)
    return case(op, x=i8(1, 5, 4, 3, zero=4), name="bilinear")


def nearest(factor: int) -> Case:
    return case(ResizeNearest((5 * factor, 4 * factor)), x=i8(1, 5, 4, 3), name="nearest")


def depthwise(stride: int) -> Case:
    op = DepthwiseConv2d((stride, stride), Padding2d(1, 1, 1, 1))
    return case(op, x=i8(1, 14, 15, 8), weight=w8(1, 3, 3, 8, axis=3), out=q(0.1), name="depthwise")


# What U55 takes as it is, and what lies just beyond.
LIMITS = {
    "multiply_bilinear": (nearest(2), bilinear(4)),
    "pick_from_depthwise": (depthwise(3), depthwise(4)),
}


@pytest.mark.parametrize("name", LIMITS)
def test_both_sides_of_the_limit(name: str):
    judge = judge_of(U55)
    within, beyond = (replace(row, name=f"{name}-{i}") for i, row in enumerate(LIMITS[name]))
    assert judge.prefers(within.graph().nodes[0])
    assert judge(beyond.graph().nodes[0])
    assert judge_of(U85).prefers(beyond.graph().nodes[0])
    unchanged, cured = within.graph(), beyond.graph()
    cure_graph(unchanged, judge)
    cure_graph(cured, judge)
    assert len(unchanged.nodes) == 1
    assert name in cured.nodes[0].origin.passes
    assert not any(judge(node) for node in cured.nodes)
    reference = beyond.graph()
    compiled = compile_graph(beyond.graph(), U55)
    for sample in beyond.samples:
        (expected,), (got,) = interpret(reference, sample), interpret(compiled.graph, sample)
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("factor", [2, 4])
def test_a_bilinear_resize_stands_beside_a_table(factor: int):
    """U55 takes the one as LiteRT only, if at all, and the other as TOSA only."""
    builder = GraphBuilder()
    x = builder.input(i8(1, 5, 4, 3, zero=4))
    y = builder.emit(ResizeBilinear((5 * factor, 4 * factor), False, True), x)
    graph = builder.finish(builder.emit(LookupTable(tuple(range(127, -129, -1))), y, qparams=q(0.1)))
    reference = graph.clone()
    compiled = compile_graph(graph, U55)
    sample = np.random.default_rng(0).integers(-128, 128, (1, 5, 4, 3)).astype(np.int8)
    np.testing.assert_array_equal(interpret(compiled.graph, [sample])[0], interpret(reference, [sample])[0])


def test_other_resizes_are_left_alone():
    rewrite = next(r for r in CURES if r.name == "multiply_bilinear")
    for row in (bilinear(3), bilinear(8), bilinear(2, half=False)):
        assert rewrite.apply(replace(row, name="other").graph().nodes[0], 1) is None


# ---------------------------------------------------------------- slices of high rank


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
    assert FlattenSlices().run(graph)
    graph.rename()
    verify(graph, Stage.IMPORTED)
    assert all(node.inputs[0].type.rank <= 4 for node in graph.nodes if isinstance(node.op, Slice))
    x = np.random.default_rng(0).integers(-128, 128, shape).astype(np.int8)
    np.testing.assert_array_equal(interpret(graph, [x])[0], interpret(before, [x])[0])
    assert not FlattenSlices().run(graph)
    assert compile_graph(before, U55).payload


def test_slices_of_images_stay():
    graph = pieces((1, 6, 8, 4), (0, 1, 0, 0), (1, 4, 8, 4), (4, 32))
    assert not FlattenSlices().run(graph)
