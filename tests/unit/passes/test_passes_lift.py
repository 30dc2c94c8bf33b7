"""Transposes that go up to serve several readers, and those that lead back and go down."""

from __future__ import annotations

import pytest
from tests.unit.passes.pass_graphs import Net, apply, count, drawn, picture, q, simplified

from micronpu.ir import DType, TensorType
from micronpu.passes.layout import GatherTransposes, LiftTransposes, MergeTransposes

C = 8


def test_a_transpose_moves_up_to_where_it_serves_two():
    net = Net()
    x = net.input(1, C, 5, 4)
    graph = net.finish(net.softmax(net.last(net.clamp(x, -1.0, 1.0))), net.last(x))
    assert picture(graph) == drawn(
        """
        clamp_0 = clamp{low=-1.0, high=1.0}(input_0)
        transpose_0 = transpose{permutation=(0, 2, 3, 1)}(clamp_0)
        softmax_0 = softmax(transpose_0)
        transpose_1 = transpose{permutation=(0, 2, 3, 1)}(input_0)
        return softmax_0, transpose_1
        """
    )
    assert picture(apply(MergeTransposes(), apply(LiftTransposes(), graph))) == drawn(
        """
        transpose_0 = transpose{permutation=(0, 2, 3, 1)}(input_0)
        clamp_0 = clamp{low=-1.0, high=1.0}(transpose_0)
        softmax_0 = softmax(clamp_0)
        return softmax_0, transpose_0
        """
    )


def test_a_transpose_moves_up_through_a_reduction_where_it_exists_already():
    net = Net()
    x = net.input(1, C, 5, 4)
    graph = net.finish(net.softmax(net.last(net.mean(x, 2, 3, keep=True))), net.last(x))
    after = apply(MergeTransposes(), apply(LiftTransposes(), graph))
    assert [n.op.name for n in after.nodes] == ["transpose", "mean", "softmax"]


@pytest.mark.parametrize(
    "make",
    [
        lambda net, x: net.mean(x, 2, 3, keep=True),  # there is less to move behind it
        lambda net, x: net.max_pool(x, 2),
        lambda net, x: net.add(x, net.input(1, C, 5, 4)),
        lambda net, x: net.reshape(x, 1, 4, 10, 4),
    ],
)
def test_transposes_that_are_not_lifted(make):
    net = Net()
    graph = net.finish(net.softmax(net.last(make(net, net.input(1, C, 5, 4)))))
    assert picture(apply(LiftTransposes(), graph)) == picture(graph)


@pytest.mark.parametrize("read", [lambda net, y: y, lambda net, y: net.softmax(y)])
def test_a_value_that_is_read_otherwise_keeps_its_order(read):
    net = Net()
    y = net.sigmoid(net.input(1, C, 5, 4))
    graph = net.finish(net.last(y), read(net, y))
    assert picture(apply(LiftTransposes(), graph)) == picture(graph)


@pytest.mark.parametrize("dtype", [DType.UINT8, DType.INT8])
def test_unsigned_bytes_are_not_transposed(dtype):
    net = Net()
    x = net.builder.input(TensorType((1, C, 5, 4), dtype, q(0.05, 3)))
    graph = net.finish(net.softmax(net.last(net.requantize(x, q(0.06)))))
    after = [n.op.name for n in apply(LiftTransposes(), graph).nodes]
    is_lifted = ["transpose", "requantize", "softmax"]
    assert after == (["requantize", "transpose", "softmax"] if dtype is DType.UINT8 else is_lifted)


def test_a_transpose_that_leads_back_is_not_lifted():
    net = Net()
    graph = net.finish(net.softmax(net.first(net.sigmoid(net.input(1, 5, 4, C)))))
    assert picture(apply(LiftTransposes(), graph)) == picture(graph)


def test_only_transposes_that_lead_back_are_gathered():
    net = Net()
    graph = net.finish(net.sigmoid(net.last(net.input(1, C, 5, 4))), net.sigmoid(net.first(net.input(1, 5, 4, C))))
    assert [n.op.name for n in apply(GatherTransposes(), graph).nodes] == [
        "transpose",
        "sigmoid",
        "sigmoid",
        "transpose",
    ]


@pytest.mark.parametrize("shape", [(C, 1, 1), (1, C, 5, 4), (), (4,)])
def test_constants_are_reordered_on_the_way_up(shape: tuple[int, ...]):
    net = Net()
    total = net.add(net.input(1, C, 5, 4), net.constant(*shape))
    after = apply(LiftTransposes(), net.finish(net.softmax(net.last(total))))
    assert [n.op.name for n in after.nodes] == ["transpose", "add", "softmax"]


@pytest.mark.parametrize("blocks", [1, 5])
@pytest.mark.parametrize("first", ["input", "sum"])
def test_blocks_whose_activation_comes_first(blocks: int, first: str):
    """Nothing but activations and sums reads the input, and still all of the network is channels-last."""
    net = Net()
    x = net.input(1, C, 6, 6)
    if first == "sum":
        x = net.add(x, net.input(1, C, 6, 6))
    for _ in range(blocks):
        x = net.add(net.conv(net.relu(net.conv(net.relu(x), C, 3)), C, 3), x)
    assert count(simplified(net.finish(x)), "transpose") == 2


def test_concatenations_whose_activation_comes_first():
    net = Net()
    x = net.input(1, C, 6, 6)
    for _ in range(4):
        x = net.concat(1, x, net.conv(net.relu(x), 4, 3))
    assert count(simplified(net.finish(x)), "transpose") == 2
