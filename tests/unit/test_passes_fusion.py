"""Activations and pads that go into the operator beside them."""

from __future__ import annotations

import math

import pytest
from tests.unit.pass_graphs import FIRST, Net, apply, count, drawn, picture, q

from micronpu.ir import Tensor
from micronpu.ops.fused import Activation, Padding2d
from micronpu.passes.cleanup import RemoveNoOps
from micronpu.passes.fusion import FoldPads, FuseActivations
from micronpu.passes.layout import MergeTransposes

C = 4
NONE = Padding2d.none()


def convolution(net: Net) -> Tensor:
    """Without the transpose behind it."""
    return net.conv(net.input(1, 3, 5, 5), C)


PRODUCERS = {
    "conv2d": lambda net: convolution(net),
    "depthwise_conv2d": lambda net: net.depthwise(net.input(1, C, 5, 5)),
    "fully_connected": lambda net: net.linear(net.input(2, 7), C),
    "add": lambda net: net.add(net.input(2, 7), net.input(1, 7)),
}


# ---------------------------------------------------------------- FuseActivations


@pytest.mark.parametrize("kind", [Activation.RELU, Activation.RELU6, Activation.RELU_N1_TO_1])
@pytest.mark.parametrize("name", PRODUCERS)
def test_a_clamp_on_the_grid_of_its_operand_is_fused(name: str, kind: Activation):
    net = Net()
    y = PRODUCERS[name](net)
    producer = net.builder.graph.producers()
    if producer[y].op.name == "transpose":  # the layout passes have removed it by then
        y = producer[y].inputs[0]
    after = apply(FuseActivations(), net.finish(net.relu(y, kind=kind)))
    assert count(after, "relu") == 0
    assert after.nodes[-1].op.activation is kind


def test_the_picture():
    net = Net()
    graph = net.finish(net.relu(net.add(net.input(2, 7), net.input(1, 7))))
    assert picture(graph) == drawn(
        """
        add_0 = add(input_0, input_1)
        relu_0 = relu(add_0)
        return relu_0
        """
    )
    assert picture(apply(FuseActivations(), graph)) == drawn(
        """
        add_0 = add{activation=relu}(input_0, input_1)
        return add_0
        """
    )


@pytest.mark.parametrize(
    "change",
    [
        lambda net, y: [net.relu(y, out=q(0.05, -128))],  # rescales
        lambda net, y: [net.relu(y, kind=Activation.RELU_0_TO_1)],  # LiteRT has no code for it
        lambda net, y: [net.relu(y), y],  # the plain value is a result
        lambda net, y: [net.relu(y), net.sigmoid(y)],  # the plain value is read
        lambda net, y: [net.clamp(y, 0.0, 3.0)],
        lambda net, y: [net.relu(net.sigmoid(y))],
    ],
)
def test_what_is_not_fused(change):
    net = Net()
    graph = net.finish(*change(net, net.add(net.input(2, 7), net.input(1, 7))))
    assert picture(apply(FuseActivations(), graph)) == picture(graph)


def test_two_readers_that_are_both_clamps():
    """Either could be fused, but the other one reads the plain value."""
    net = Net()
    y = net.add(net.input(2, 7), net.input(1, 7))
    graph = net.finish(net.relu(y), net.relu(y, kind=Activation.RELU6))
    assert count(apply(FuseActivations(), graph), "relu") == 2


def test_only_the_first_of_two_clamps_is_fused():
    net = Net()
    y = net.relu(net.relu(net.add(net.input(2, 7), net.input(1, 7))), kind=Activation.RELU6)
    assert picture(apply(FuseActivations(), net.finish(y))) == drawn(
        """
        add_0 = add{activation=relu}(input_0, input_1)
        relu_0 = relu{kind=relu6}(add_0)
        return relu_0
        """
    )


def test_a_fused_operator_remembers_both_origins():
    net = Net()
    graph = net.finish(net.relu(net.add(net.input(2, 7), net.input(1, 7))))
    for node, name in zip(graph.nodes, ("sum", "relu"), strict=True):
        node.origin = type(node.origin)(nodes=(name,), debug_handles=(len(name),))
    (node,) = apply(FuseActivations(), graph).nodes
    assert (node.origin.nodes, node.origin.debug_handles) == (("sum", "relu"), (3, 4))


# ---------------------------------------------------------------- FoldPads

SIDES = ((0, 0, 1, 0), (0, 0, 2, 3))  # height 1/2, width 0/3, as the program pads


def test_a_pad_goes_through_the_transpose_into_the_convolution():
    net = Net()
    graph = net.finish(net.conv(net.pad(net.input(1, 3, 6, 5), *SIDES), C, 3, 2, NONE))
    assert picture(graph) == drawn(
        """
        pad_0 = pad{before=(0, 0, 1, 0), after=(0, 0, 2, 3)}(input_0)
        transpose_0 = transpose{permutation=(0, 2, 3, 1)}(pad_0)
        conv2d_0 = conv2d{stride=(2, 2)}(transpose_0)
        transpose_1 = transpose{permutation=(0, 3, 1, 2)}(conv2d_0)
        return transpose_1
        """
    )
    assert picture(apply(FoldPads(), graph)) == drawn(
        """
        transpose_0 = transpose{permutation=(0, 2, 3, 1)}(input_0)
        conv2d_0 = conv2d{stride=(2, 2), padding=(1,2,0,3)}(transpose_0)
        transpose_1 = transpose{permutation=(0, 3, 1, 2)}(conv2d_0)
        return transpose_1
        """
    )


def test_paddings_add_up():
    net = Net()
    x = net.pad(net.pad(net.input(1, 3, 6, 5), *SIDES), (0, 0, 0, 1), (0, 0, 0, 1))
    after = apply(FoldPads(), net.finish(net.conv(x, C, 3, 1, Padding2d(1, 1, 1, 1))))
    assert count(after, "pad") == 0
    assert next(n.op for n in after.nodes if n.op.name == "conv2d").padding == Padding2d(2, 3, 2, 5)


def test_a_depthwise_convolution_takes_a_pad_too():
    net = Net()
    after = apply(FoldPads(), net.finish(net.depthwise(net.pad(net.input(1, C, 6, 5), *SIDES))))
    assert count(after, "pad") == 0


def test_a_pad_without_a_transpose_between():
    net = Net()
    x = net.pad(net.input(1, 6, 5, 3), (0, 1, 0, 0), (0, 2, 3, 0))
    y = net.conv(net.transpose(x, *FIRST), C, 3, 1, NONE)
    graph = apply(RemoveNoOps(), apply(MergeTransposes(), net.finish(y)))
    assert picture(apply(FoldPads(), graph)).startswith("conv2d_0 = conv2d{padding=(1,2,0,3)}(input_0)")


@pytest.mark.parametrize("count_padding", [True, False])
@pytest.mark.parametrize("padding", [0, 1])
def test_an_average_pool_takes_a_pad_where_it_counts_it(padding: int, count_padding: bool):
    net = Net()
    x = net.pad(net.input(1, C, 6, 5), *SIDES)
    after = apply(FoldPads(), net.finish(net.avg_pool(x, 3, 1, padding, count_padding)))
    takes = count_padding or not padding
    assert count(after, "pad") == (0 if takes else 1)


@pytest.mark.parametrize(
    "change",
    [
        lambda net, x: net.conv(net.pad(x, *SIDES, value=0.5), C, 3, 1, NONE),
        lambda net, x: net.conv(net.pad(x, *SIDES, value=-math.inf), C, 3, 1, NONE),
        lambda net, x: net.conv(net.pad(x, (0, 1, 0, 0), (0, 0, 0, 0)), C, 3, 1, NONE),
        lambda net, x: net.conv(net.pad(x, (1, 0, 0, 0), (0, 0, 0, 0)), C, 3, 1, NONE),
        lambda net, x: net.max_pool(net.pad(x, *SIDES), 2),
        lambda net, x: net.max_pool(net.pad(x, *SIDES, value=-math.inf), 2),
        lambda net, x: net.sigmoid(net.pad(x, *SIDES)),
    ],
)
def test_pads_that_stay(change):
    net = Net()
    graph = net.finish(change(net, net.input(1, 3, 6, 5)))
    assert picture(apply(FoldPads(), graph)) == picture(graph)


def test_a_value_that_rounds_to_zero_is_zero():
    net = Net()
    after = apply(FoldPads(), net.finish(net.conv(net.pad(net.input(1, 3, 6, 5), *SIDES, value=0.02), C, 3, 1, NONE)))
    assert count(after, "pad") == 0


def test_a_pad_with_another_reader_stays_for_that_one():
    net = Net()
    padded = net.pad(net.input(1, 3, 6, 5), *SIDES)
    after = apply(FoldPads(), net.finish(net.conv(padded, C, 3, 1, NONE), net.conv(padded, C, 1, 1, NONE), padded))
    assert count(after, "pad") == 1
    assert [n.op.padding for n in after.nodes if n.op.name == "conv2d"] == [Padding2d(1, 2, 0, 3)] * 2


def test_a_pad_behind_another_order_of_axes():
    """Rows and columns change places between pad and convolution."""
    net = Net()
    x = net.transpose(net.pad(net.input(1, 3, 6, 5), *SIDES), 0, 3, 2, 1)
    y = net.conv(net.transpose(x, *FIRST), C, 3, 1, NONE)
    graph = apply(MergeTransposes(), net.finish(y))
    after = apply(FoldPads(), graph)
    assert next(n.op for n in after.nodes if n.op.name == "conv2d").padding == Padding2d(0, 3, 1, 2)
