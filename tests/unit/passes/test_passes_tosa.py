"""Padding that goes into the max pool behind it, and padding that TOSA's max pool does not take."""

from __future__ import annotations

import math

import numpy as np
import pytest

from micronpu.ir import DType, Graph, GraphBuilder, QParams, TensorType, interpret
from micronpu.ir.op import Op
from micronpu.ops.movement import Pad
from micronpu.ops.pooling import AvgPool2d, MaxPool2d
from micronpu.passes.legalize import FoldLowestPads

POOL = MaxPool2d((3, 3))


def padded(op: Op, pad: Pad) -> Graph:
    builder = GraphBuilder()
    x = builder.input(TensorType((2, 5, 6, 4), DType.INT8, QParams.per_tensor(0.1, 3)))
    return builder.finish(builder.emit(op, builder.emit(pad, x)))


def lowest(before: tuple[int, ...], after: tuple[int, ...] = (0, 0, 0, 0)) -> Pad:
    return Pad(before, after, -math.inf)


ROWS = [
    (POOL, lowest((0, 1, 1, 0), (0, 2, 1, 0)), True),
    (POOL, lowest((0, 2, 0, 0)), True),
    (POOL, lowest((0, 3, 0, 0)), False),
    (POOL, lowest((0, 0, 2, 0)), True),
    (POOL, lowest((0, 0, 3, 0)), False),
    (POOL, lowest((1, 1, 1, 0)), False),
    (POOL, lowest((0, 1, 1, 0), (0, 0, 0, 1)), False),
    (POOL, Pad((0, 1, 1, 0), (0, 0, 0, 0)), False),
    (AvgPool2d((3, 3)), lowest((0, 1, 1, 0)), False),
]


@pytest.mark.parametrize(("op", "pad", "folds"), ROWS)
def test_what_folds(op: Op, pad: Pad, folds: bool) -> None:
    graph, changed = padded(op, pad), padded(op, pad)
    assert FoldLowestPads().run(changed) == folds
    changed.remove_dead()
    assert len(changed.nodes) == (1 if folds else 2)
    x = np.random.default_rng(0).integers(-128, 128, (2, 5, 6, 4)).astype(np.int8)
    np.testing.assert_array_equal(interpret(changed, [x])[0], interpret(graph, [x])[0])
