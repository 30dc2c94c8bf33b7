"""Activations and pads that go into the operator beside them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from tests.unit.passes.pass_graphs import FIRST, Net, apply, assert_same, count, drawn, picture, q

from micronpu.ir import Graph, Tensor
from micronpu.ir.window import NO_PADDING, Activation, Padding2d
from micronpu.ops.slicing import Concat
from micronpu.passes import run_passes
from micronpu.passes.fusion import ActivationBeforeConcat, FoldPads, FuseActivations, RemoveNoOps
from micronpu.passes.layout import MergeTransposes

C = 4
NONE = NO_PADDING


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
def test_a_clamp_with_the_qparams_of_its_operand_is_fused(name: str, kind: Activation):
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


# ---------------------------------------------------------------- ActivationBeforeConcat

QPARAMS = q(0.07, -5)


def joined(net: Net, *parts: Tensor, kind: Activation = Activation.RELU) -> Tensor:
    return net.relu(net.builder.emit(Concat(3), *parts), kind=kind)


def without_transpose(net: Net, y: Tensor) -> Tensor:
    """The result of a convolution, channels last."""
    return net.builder.graph.producers()[y].inputs[0]


def part(net: Net, x: Tensor, kind: Activation = Activation.NONE) -> Tensor:
    y = without_transpose(net, net.conv(x, C, out=QPARAMS))
    producer = net.builder.graph.producers()[y]
    producer.op = replace(producer.op, activation=kind)
    return y


def test_a_clamp_goes_into_the_operators_before_a_concatenation():
    net = Net()
    x = net.input(1, 3, 5, 5)
    graph = net.finish(joined(net, part(net, x), part(net, x)))
    assert picture(apply(ActivationBeforeConcat(), graph)) == drawn(
        """
        transpose_0 = transpose{permutation=(0, 2, 3, 1)}(input_0)
        conv2d_0 = conv2d(transpose_0)
        transpose_1 = transpose{permutation=(0, 2, 3, 1)}(input_0)
        conv2d_1 = conv2d(transpose_1)
        relu_0 = relu(conv2d_0)
        relu_1 = relu(conv2d_1)
        concat_0 = concat{axis=3}(relu_0, relu_1)
        return concat_0
        """
    )
    everything = run_passes(graph.clone())
    assert count(everything, "relu") == 0
    assert [n.op.activation for n in everything.nodes if n.op.name == "conv2d"] == [Activation.RELU] * 2
    assert_same(graph, everything)


def test_one_part_may_keep_a_clamp_of_its_own():
    net = Net()
    x = net.input(1, 3, 5, 5)
    pooled = net.requantize(net.last(net.max_pool(net.conv(x, C), 1, 1)), QPARAMS)
    after = apply(ActivationBeforeConcat(), net.finish(joined(net, part(net, x), pooled)))
    assert count(after, "relu") == 2
    assert count(apply(FuseActivations(), after), "relu") == 1


def test_a_part_that_has_the_clamp_needs_none():
    net = Net()
    x = net.input(1, 3, 5, 5)
    graph = net.finish(joined(net, part(net, x, Activation.RELU), part(net, x)))
    assert count(apply(ActivationBeforeConcat(), graph), "relu") == 1


def test_a_nested_concatenation():
    net = Net()
    x = net.input(1, 3, 5, 5)
    inner = net.builder.emit(Concat(3), part(net, x), part(net, x))
    graph = net.finish(joined(net, inner, part(net, x)))
    assert count(run_passes(graph.clone()), "relu") == 0
    assert_same(graph, run_passes(graph.clone()))


def kept_clamps(case: str) -> Graph:
    net = Net()
    x = net.input(1, 3, 5, 5)
    a, b = part(net, x), part(net, x)
    still = net.requantize(net.last(x), QPARAMS)
    match case:
        case "two_parts_without_layers":
            return net.finish(joined(net, a, still, still))
        case "a_part_is_read_elsewhere":
            return net.finish(joined(net, a, still), net.sigmoid(a))
        case "a_part_is_an_output":
            return net.finish(joined(net, a, still), a)
        case "the_concatenation_is_read_elsewhere":
            y = net.builder.emit(Concat(3), a, b)
            return net.finish(net.relu(y), net.sigmoid(y))
        case "the_concatenation_is_an_output":
            y = net.builder.emit(Concat(3), a, b)
            return net.finish(net.relu(y), y)
        case "another_grid":
            return net.finish(net.relu(net.builder.emit(Concat(3), a, b), out=q(0.03, -128)))
        case "a_clamp_that_nothing_takes":
            return net.finish(joined(net, a, b, kind=Activation.RELU_0_TO_1))
        case _:
            return net.finish(joined(net, part(net, x, Activation.RELU6), still))


@pytest.mark.parametrize(
    "case",
    [
        "two_parts_without_layers",
        "a_part_is_read_elsewhere",
        "a_part_is_an_output",
        "the_concatenation_is_read_elsewhere",
        "the_concatenation_is_an_output",
        "another_grid",
        "a_clamp_that_nothing_takes",
        "other_clamps",
    ],
)
def test_a_clamp_that_would_not_vanish_stays_behind(case: str):
    graph = kept_clamps(case)
    assert picture(apply(ActivationBeforeConcat(), graph)) == picture(graph)


def test_the_switch():
    net = Net()
    x = net.input(1, 3, 5, 5)
    graph = net.finish(joined(net, part(net, x), part(net, x)))
    assert count(run_passes(graph.clone(), disabled=["activation_before_concat"]), "relu") == 1


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
