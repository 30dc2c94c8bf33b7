"""Rewrites that bring an operator into the published table: exact, within every rule, and paid for."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from tests.rewriting import PUBLISHED, neutron_choice, neutron_graph, without
from torch import nn

import micronpu
from micronpu.ir import DType, Graph, GraphBuilder, QParams, TensorType, interpret, verify
from micronpu.ir.op import Op
from micronpu.ir.window import Activation, Padding2d
from micronpu.ops.activation import Prelu
from micronpu.ops.clamps import Clamp
from micronpu.ops.convolution import Conv2d, DepthwiseConv2d, TransposeConv2d
from micronpu.ops.elementwise import Add, Mul, Sub
from micronpu.ops.indices import ArgMax
from micronpu.ops.matmul import BatchMatmul, FullyConnected
from micronpu.ops.movement import Pad
from micronpu.ops.pooling import AvgPool2d, MaxPool2d
from micronpu.ops.reduction import Amax, Amin, Mean
from micronpu.ops.resize import ResizeNearest
from micronpu.ops.slicing import Concat
from micronpu.ops.softmax import Softmax
from micronpu.ops.tiling import ReflectPad
from micronpu.passes import run_passes
from micronpu.targets.neutron.costs import cheapest
from micronpu.targets.neutron.options import NeutronOptions
from micronpu.targets.neutron.rewrites import REWRITES
from micronpu.targets.neutron.rules import check_node

OUT = QParams.per_tensor(0.11, 3)
Shape = tuple[int, ...]


def i8(shape: Shape, scale: float = 0.1, zero: int = -5) -> TensorType:
    return TensorType(shape, DType.INT8, QParams.per_tensor(scale, zero))


def graph_of(
    op: Op, *shapes: Shape, zero: int = -5, scales: tuple[float, ...] = (0.1, 0.07), same: bool = False
) -> Graph:
    builder = GraphBuilder()
    inputs = [builder.input(i8(s, scales[0 if same else min(n, 1)], zero)) for n, s in enumerate(shapes)]
    return builder.finish(builder.emit(op, *inputs, qparams=OUT))


def layer(op: Op, x: Shape, weight: Shape, axis: int) -> Graph:
    builder, random = GraphBuilder(), np.random.default_rng(1)
    count = weight[axis]
    scales = [0.004 + 0.001 * (i % 7) for i in range(count)]
    weights = builder.constant(
        random.integers(-127, 128, weight), TensorType(weight, DType.INT8, QParams.per_channel(scales, axis))
    )
    biases = TensorType((count,), DType.INT32, QParams.per_channel([0.1 * s for s in scales], 0))
    bias = builder.constant(random.integers(-900, 900, count), biases)
    return builder.finish(builder.emit(op, builder.input(i8(x)), weights, bias, qparams=OUT))


def with_constant(op: Op, x: Shape, constant: Shape, first: bool = False) -> Graph:
    builder = GraphBuilder()
    data = np.random.default_rng(2).integers(-128, 128, constant)
    operands = [builder.input(i8(x)), builder.constant(data, i8(constant, 0.03, 7))]
    return builder.finish(builder.emit(op, *(operands[::-1] if first else operands), qparams=OUT))


ONE, SAME = (1, 1), Padding2d(1, 1, 1, 1)

# name of a rewrite that takes part -> graphs of one operator that the table refuses
ROWS: dict[str, list[Graph]] = {
    "flatten_rows": [
        layer(FullyConnected(), (1, 6, 16), (8, 16), 0),
        layer(FullyConnected(Activation.RELU), (2, 3, 4, 5), (7, 5), 0),
        layer(FullyConnected(), (12,), (5, 12), 0),
    ],
    "add_row": [graph_of(Softmax(), (16,))],
    "halve_rows": [graph_of(Softmax(), (6000, 16)), graph_of(Softmax(), (3, 4099, 8))],
    "pad_as_picture": [
        graph_of(Pad((0, 2, 0, 0), (0, 3, 0, 0)), (1, 3, 4, 5)),
        graph_of(Pad((1, 2, 0, 1), (0, 3, 2, 1), -math.inf), (2, 3, 4, 5)),
        graph_of(Pad((1, 0), (0, 3), 1.5), (3, 7)),
    ],
    "reflect_by_slices": [
        graph_of(ReflectPad((0, 0, 1, 2), (0, 0, 2, 1)), (1, 8, 8, 8)),
        graph_of(ReflectPad((0, 0, 1), (0, 0, 1)), (1, 64, 64)),
    ],
    "join_rows": [
        graph_of(Concat(1), (1, 3, 8, 8), (1, 5, 8, 8), same=True),
        graph_of(Concat(2), (1, 6, 4, 16), (1, 6, 2, 16), (1, 6, 4, 16), same=True),
    ],
    "add_parts": [
        graph_of(Concat(1), (40, 3), (40, 5), same=True),
        graph_of(Concat(3), (1, 6, 8, 3), (1, 6, 8, 5), (1, 6, 8, 1), same=True, zero=-128),
    ],
    "mean_of_rows": [
        graph_of(Mean((1,)), (2, 20, 8)),
        graph_of(Mean((2,), True), (2, 20, 8)),
        graph_of(Mean((1,), True), (1, 6, 8, 8)),
        graph_of(Mean((0, 1, 2, 3)), (1, 6, 8, 8)),
        graph_of(Mean((3,)), (1, 6, 8, 8)),
    ],
    "maximum_of_windows": [
        graph_of(Amax((1,)), (4, 20, 8)),
        graph_of(Amax((2,), True), (1, 16, 20)),
        graph_of(Amin((2, 3)), (1, 16, 8, 8)),
        graph_of(Amin((0, 1), True), (8, 20, 16), zero=127),
        graph_of(Amax((1, 2)), (1, 8, 20), zero=-128),
    ],
    "prelu_as_picture": [
        with_constant(Prelu(), (40, 10), (10,)),
        with_constant(Prelu(), (1, 6, 6, 10), (10,)),
        with_constant(Prelu(), (3, 4, 16), (1,)),
    ],
    "prelu_of_one_slope": [with_constant(Prelu(), (40, 10), (1,)), with_constant(Prelu(), (1, 64, 65, 8), (1,))],
    "expand_operand": [
        with_constant(Add(), (1, 8, 8, 8), (1, 8, 1, 1)),
        with_constant(Add(), (1, 8, 8, 8), (8, 1), first=True),
        graph_of(Add(), (1, 3, 8, 8), (1, 8, 8)),
        graph_of(Add(), (1, 8, 8, 16), (1, 1, 8, 16)),
        graph_of(Mul(), (1, 1, 8, 8), (6, 1, 1, 8)),
    ],
    "expand_by_product": [graph_of(Add(), (1, 8, 8, 8), (1, 8, 1, 1)), graph_of(Add(), (40, 1), (1, 24))],
    "add_negative": [
        graph_of(Sub(), (1, 8, 8, 8), (1, 8, 8, 8)),
        graph_of(Sub(Activation.RELU), (40, 8), (40, 8), scales=(0.02, 0.3), zero=-128),
        with_constant(Sub(), (1, 8, 8, 8), (1, 8, 8, 8)),
        with_constant(Sub(), (1, 8, 8, 8), (1,), first=True),
    ],
    "shift_and_back": [
        graph_of(Clamp(-1.0, 2.0), (1, 8, 8, 8)),
        graph_of(Clamp(None, 2.0), (40, 7)),
        graph_of(Clamp(-3.0, None), (40, 7), zero=127),
        graph_of(Clamp(0.0, 3.0), (40, 7), zero=-128),
        graph_of(Clamp(-99.0, 0.0), (40, 7)),
    ],
    "fill_matrices": [
        graph_of(BatchMatmul(), (2, 9, 7), (2, 7, 11), zero=0),
        graph_of(BatchMatmul(), (1, 16, 16), (1, 16, 3), zero=0),
    ],
    "fill_product": [graph_of(Mul(), (1, 3, 7, 7), (1, 3, 7, 7)), with_constant(Mul(), (1, 3, 7, 7), (3, 1, 1))],
    "dense_kernel": [
        layer(Conv2d(padding=Padding2d(2, 2, 2, 2), dilation=(2, 2)), (1, 8, 8, 8), (8, 3, 3, 8), 0),
        layer(Conv2d(dilation=(1, 3), activation=Activation.RELU), (1, 8, 12, 3), (5, 2, 3, 3), 0),
        layer(DepthwiseConv2d(dilation=(2, 1)), (1, 8, 8, 6), (1, 3, 3, 6), 3),
    ],
    "split_multiplier": [layer(DepthwiseConv2d(padding=SAME), (1, 8, 8, 32), (1, 3, 3, 64), 3)],
    "dense_depthwise": [layer(DepthwiseConv2d(ONE, SAME, activation=Activation.RELU6), (1, 8, 8, 2), (1, 3, 3, 6), 3)],
    "pad_before_pool": [graph_of(AvgPool2d((3, 3), (1, 1), SAME, True), (1, 8, 8, 8), zero=7)],
    "pool_one_by_one": [
        graph_of(MaxPool2d((2, 2), (2, 2)), (4, 8, 8, 16)),
        graph_of(MaxPool2d((3, 3), (1, 1), SAME), (2, 8, 8, 16)),
    ],
    "pick_rows": [
        graph_of(MaxPool2d((3, 3), (3, 3)), (1, 9, 9, 16)),
        graph_of(MaxPool2d((2, 2), (4, 1)), (1, 13, 8, 8)),
        graph_of(MaxPool2d((5, 5), (3, 2), Padding2d(2, 1, 2, 0)), (1, 12, 8, 8)),
    ],
    "repeat_elements": [
        graph_of(ResizeNearest((12, 4)), (1, 4, 4, 8)),
        graph_of(ResizeNearest((32, 16), half_pixel_centers=True), (1, 4, 4, 8)),
        graph_of(ResizeNearest((4, 8)), (2, 4, 4, 16)),
    ],
    "position_by_score": [
        graph_of(ArgMax(smallest), (1, 25, 40, 24), zero=zero) for smallest in (False, True) for zero in (-128, 127)
    ],
    "transposed_by_phases": [
        layer(TransposeConv2d((1, 4), Padding2d(0, 0, 1, 2)), (1, 1, 15, 8), (3, 1, 8, 8), 0),
        layer(TransposeConv2d((1, 3), activation=Activation.RELU), (2, 5, 4, 8), (5, 2, 3, 8), 0),
    ],
    "pad_channels": [graph_of(Softmax(), (10,)), graph_of(MaxPool2d((2, 2), (2, 2)), (4, 8, 8, 10))],
}
CASES = [(name, graph) for name, graphs in ROWS.items() for graph in graphs]


# Rewrites that serve as well, and better where the tensors are as small as here.
BETTER = {"expand_operand": ("expand_by_product",), "split_multiplier": ("dense_depthwise",)}
# Largest changes of results that rewrites state, in LSB.
STEPS = {rewrite.name: rewrite.max_steps or 0 for rewrite in REWRITES}


def data_for(graph: Graph, seed: int) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    inputs = [random.integers(-128, 128, t.shape).astype(np.int8) for t in graph.inputs]
    if isinstance(graph.nodes[0].op, Softmax):
        inputs[0][..., 0] = 100  # so that added lanes weigh nothing
    return inputs


@pytest.mark.sweep
@pytest.mark.parametrize(("name", "graph"), CASES, ids=lambda v: v if isinstance(v, str) else str(v.nodes[0].op))
def test_a_rewrite_keeps_every_rule_and_the_result(name: str, graph: Graph) -> None:
    assert check_node(graph.nodes[0], PUBLISHED.target_spec)
    options = without(PUBLISHED, *BETTER.get(name, ()))
    found = neutron_choice(graph.nodes[0], options)
    assert found is not None and name in found.rewrites
    fitting = neutron_graph(graph, options)
    verify(fitting)
    assert [check_node(node, PUBLISHED.target_spec) for node in fitting.nodes] == [[]] * len(fitting.nodes)
    finished = run_passes(fitting.clone())
    for seed in range(3):
        inputs = data_for(graph, seed)
        (expected,) = interpret(graph, inputs)
        for rewritten in (fitting, finished):
            (y,) = interpret(rewritten, inputs)
            np.testing.assert_allclose(y.astype(int), expected.astype(int), rtol=0, atol=STEPS[name])


def test_every_rewrite_is_tested() -> None:
    assert set(ROWS) == {rewrite.name for rewrite in REWRITES}


@pytest.mark.parametrize(("name", "graph"), CASES, ids=lambda v: v if isinstance(v, str) else str(v.nodes[0].op))
def test_a_rewrite_that_is_left_out_is_not_taken(name: str, graph: Graph) -> None:
    found = neutron_choice(graph.nodes[0], without(PUBLISHED, name))
    assert found is None or name not in found.rewrites


def test_a_rewrite_that_costs_more_than_the_host_is_not_taken() -> None:
    graph = graph_of(ReflectPad((0, 0, 2), (0, 0, 3)), (1, 4, 9))
    assert neutron_choice(graph.nodes[0], PUBLISHED) is None
    assert cheapest(graph.nodes[0], PUBLISHED) is not None


def test_a_difference_that_rounds_otherwise_is_left_alone() -> None:
    """The multiplier of z is 2^10 times an odd number, so that an odd z lands half way between two integers."""
    for scales, expected in (((0.9, 0.7), True), ((1.0, 1.0 - 2.0**-21), False)):
        graph = graph_of(Sub(), (1, 8, 8, 8), (1, 8, 8, 8), scales=scales)
        assert (neutron_choice(graph.nodes[0], PUBLISHED) is not None) == expected


def test_constants_that_a_rewrite_adds_count() -> None:
    """Ones for a product are cheap for a small tensor and dear for a large one."""
    small, large = (graph_of(Add(), (1, n, 32, 32), (1, n, 1, 1)).nodes[0] for n in (8, 64))
    names = [found.rewrites for node in (small, large) if (found := neutron_choice(node, PUBLISHED)) is not None]
    assert names == [("expand_by_product",), ("expand_operand",)]


class Transformerish(nn.Module):
    """What the published table refuses at nearly every step."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.outside = nn.Linear(16, 24), nn.Linear(24, 16)
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x + self.outside(torch.relu(self.inside(x))) * self.scale
        z = torch.cat([y, x[:, :3]], 1)
        return (z - z.mean(1, keepdim=True)).amax(1)


def test_a_program_of_refused_operators_runs_whole() -> None:
    torch.manual_seed(0)
    model, x = Transformerish().eval(), torch.randn(1, 20, 16) + 2
    batches = [torch.randn(1, 20, 16) + 2 for _ in range(8)]
    options = NeutronOptions(converter_flavor="SDK_25_12")
    program = micronpu.compile(model, x, "imxrt700-neutron", calibration=batches, options=options)
    assert not program.report.host, program.report
    assert program.report.partitions == 1
    rewrites = {name for v in program.report.verdicts for name in v.rewrites}
    assert {"flatten_rows", "mean_of_rows", "add_negative", "maximum_of_windows"} <= rewrites
    newest = micronpu.compile(model, x, "imxrt700-neutron", calibration=batches)
    assert torch.equal(program.run(x), newest.run(x))
