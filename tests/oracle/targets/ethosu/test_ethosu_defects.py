"""Defects of Vela 5.2 that the simulator found: the smallest program of each, whose stream computes something else.

They are here so that a cured Vela is noticed; docs/ethosu-simulator.md describes them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from micronpu.host.litert_executor import Mode
from micronpu.host.tosa_executor import TosaProgram
from micronpu.ir import DType, Graph, GraphBuilder, QParams, Tensor, TensorType, interpret
from micronpu.ir.window import Padding2d
from micronpu.ops.convolution import Conv2d, TransposeConv2d
from micronpu.ops.elementwise import Add, Sub
from micronpu.ops.matmul import BatchMatmul
from micronpu.ops.movement import Pad, Reshape
from micronpu.ops.slicing import Concat, Slice
from micronpu.targets.ethosu.compile import compile_graph
from micronpu.targets.ethosu.host.simulator import EthosUSimulator
from micronpu.targets.ethosu.options import EthosUOptions

RNG = np.random.default_rng(0)
IN, OUT = QParams.per_tensor(0.05, 0), QParams.per_tensor(0.1, 3)
U55, U65, U85 = "ethos-u55-128", "ethos-u65-512", "ethos-u85-256"


def image(b: GraphBuilder, *shape: int) -> Tensor:
    return b.input(TensorType(shape, DType.INT8, IN))


def part(b: GraphBuilder, x: Tensor, begin: tuple[int, ...], size: tuple[int, ...]) -> Tensor:
    return b.emit(Slice(begin, size), x)


def convolved(b: GraphBuilder, op: Any, x: Tensor, kernel: tuple[int, int]) -> Tensor:
    channels = 4
    per_channel = QParams.per_channel([0.01] * channels, 0)
    weight = TensorType((channels, *kernel, x.shape[-1]), DType.INT8, per_channel)
    bias = TensorType((channels,), DType.INT32, QParams.per_channel([0.0005] * channels, 0))
    constants = (RNG.integers(-127, 128, weight.shape), weight), (RNG.integers(-500, 500, channels), bias)
    return b.emit(op, x, *(b.constant(*c) for c in constants), qparams=OUT)


def transposed_convolution_of_a_slice(b: GraphBuilder) -> Tensor:
    return convolved(b, TransposeConv2d(), part(b, image(b, 1, 11, 2, 5), (0, 0, 0, 1), (1, 11, 2, 1)), (5, 2))


def padded_convolution_of_a_slice_of_a_batch(b: GraphBuilder) -> Tensor:
    some = part(b, image(b, 3, 8, 6, 4), (0, 0, 0, 0), (3, 8, 6, 2))
    padded = b.emit(Pad((0, 1, 1, 0), (0, 1, 1, 0)), some)
    return convolved(b, Conv2d(stride=(2, 1)), padded, (3, 3))


def sum_of_ranks_5_and_4(b: GraphBuilder) -> Tensor:
    return b.emit(Add(), image(b, 2, 1, 8, 9, 11), image(b, 1, 8, 9, 11), qparams=OUT)


def differences_of_all_pairs(b: GraphBuilder) -> Tensor:
    x = image(b, 1, 8)
    return b.emit(Sub(), x, b.emit(Reshape((1, 8, 1)), x), qparams=OUT)


def concatenation_of_convolutions(b: GraphBuilder) -> Tensor:
    """Nothing is wrong with this one: what the others would be like."""
    x = image(b, 1, 8, 6, 4)
    op = Conv2d(padding=Padding2d.symmetric(1, 1))
    return b.emit(Concat(3), convolved(b, op, x, (3, 3)), convolved(b, op, x, (3, 3)))


def product_of_a_slice(b: GraphBuilder) -> Tensor:
    """As in a dot product of rows; micronpu copies the slice."""
    row = part(b, image(b, 1, 4, 8), (0, 1, 0), (1, 1, 8))
    return b.emit(BatchMatmul(), row, image(b, 1, 8, 3), qparams=OUT)


def padded_product(b: GraphBuilder) -> Tensor:
    """As in relative positions; micronpu pads the rows of all matrices at once."""
    product = b.emit(BatchMatmul(), image(b, 2, 12, 8), image(b, 2, 8, 23), qparams=OUT)
    padded = b.emit(Pad((0, 0, 0, 1), (0, 0, 0, 0)), b.emit(Reshape((1, 2, 12, 23)), product))
    return b.emit(Reshape((1, 2, 24, 12)), padded)


Build = Callable[[GraphBuilder], Tensor]
RIGHT: dict[Build, dict[tuple[str, str], bool]] = {
    concatenation_of_convolutions: {(U55, "litert"): True},
    padded_product: {(U55, "litert"): True, (U65, "tosa"): True},
    product_of_a_slice: {(U55, "litert"): True, (U65, "litert"): True, (U55, "tosa"): True, (U85, "tosa"): True},
    transposed_convolution_of_a_slice: {(U55, "litert"): False, (U65, "litert"): False, (U55, "tosa"): True},
    padded_convolution_of_a_slice_of_a_batch: {(U55, "litert"): False, (U55, "tosa"): False, (U85, "tosa"): False},
    sum_of_ranks_5_and_4: {(U55, "litert"): False, (U85, "litert"): False, (U55, "tosa"): True},
    differences_of_all_pairs: {(U55, "litert"): False, (U55, "tosa"): False, (U85, "tosa"): True},
}
"""Whether Vela's stream computes the graph, by target and way."""

ROWS = [(build, *where, right) for build, found in RIGHT.items() for where, right in found.items()]


@pytest.mark.parametrize(
    ("build", "target", "via", "right"), ROWS, ids=[f"{r[0].__name__}-{r[1]}-{r[2]}" for r in ROWS]
)
def test_stream_is_its_graph(build: Build, target: str, via: str, right: bool) -> None:
    builder = GraphBuilder()
    graph: Graph = builder.finish(build(builder))
    compiled = compile_graph(graph, EthosUOptions(target, via=via, verify_streams=False))
    inputs = [RNG.integers(-128, 128, t.shape).astype(np.int8) for t in compiled.graph.inputs]
    if via == "tosa":
        program = TosaProgram(bytes(compiled.model.data), Mode.REFERENCE)
        (expected,) = program.call(*inputs)
    else:
        (expected,) = interpret(compiled.graph, inputs)
    simulator = EthosUSimulator(target, fast_scratch_bytes=compiled.program.fast_scratch_size)
    (got,) = simulator.run(compiled.payload, inputs)
    share = float((got.reshape(-1) == expected.reshape(-1)).mean())
    assert share == 1.0 if right else share < 0.6
