"""Forms that LiteRT has words for; the results are run by LiteRT's own reference kernels."""

from __future__ import annotations

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter, OpResolverType
from tests.unit.passes.pass_graphs import Net, apply, count, drawn, picture, random_inputs

from micronpu.base.errors import InternalError
from micronpu.emit.litert import to_litert
from micronpu.ir import DType, Graph, GraphBuilder, QParams, Stage, Tensor, TensorType, interpret, verify
from micronpu.ir.window import NO_PADDING, Padding2d
from micronpu.ops.pooling import AvgPool2d
from micronpu.passes import run_passes
from micronpu.passes.legalize import CopyOutputs, SplitPads

C = 4


def assert_litert_agrees(graph: Graph) -> None:
    """The whole pipeline, LiteRT's reference kernels and the interpreter compute the same."""
    after = run_passes(graph.clone())
    loaded = Interpreter(model_content=to_litert(after).data, experimental_op_resolver_type=OpResolverType.BUILTIN_REF)
    loaded.allocate_tensors()
    inputs = random_inputs(graph)
    for detail, value in zip(loaded.get_input_details(), inputs, strict=True):
        loaded.set_tensor(detail["index"], value)
    loaded.invoke()
    details = loaded.get_output_details()
    assert len({d["index"] for d in details}) == len(graph.outputs), "two outputs share a buffer"
    for detail, expected in zip(details, interpret(graph, inputs), strict=True):
        np.testing.assert_array_equal(loaded.get_tensor(detail["index"]), expected)


# ---------------------------------------------------------------- SplitPads


def test_a_convolution_with_padding_of_its_own():
    net = Net()
    graph = net.finish(net.conv(net.input(1, 3, 8, 7), C, 3, 1, Padding2d(5, 5, 1, 1)))
    assert picture(apply(SplitPads(), graph)) == drawn(
        """
        transpose_0 = transpose{permutation=(0, 2, 3, 1)}(input_0)
        pad_0 = pad{before=(0, 5, 1, 0), after=(0, 5, 1, 0)}(transpose_0)
        conv2d_0 = conv2d(pad_0)
        transpose_1 = transpose{permutation=(0, 3, 1, 2)}(conv2d_0)
        return transpose_1
        """
    )
    assert_litert_agrees(graph)


def test_a_padding_that_an_average_leaves_out_is_not_filled_with_zeros():
    builder = GraphBuilder()
    x = builder.input(TensorType((1, 8, 8, C), DType.INT8, QParams.per_tensor(0.1, 3)))
    graph = builder.finish(builder.emit(AvgPool2d((3, 3), (1, 1), Padding2d(2, 0, 0, 0)), x))
    with pytest.raises(InternalError, match="leaves out a padding"):
        SplitPads().run(graph)


def test_a_max_pool_is_padded_with_the_lowest_value():
    net = Net()
    graph = net.finish(net.max_pool(net.input(1, C, 8, 8, zero=100), 3, 2, 1))
    assert picture(apply(SplitPads(), graph)) == drawn(
        """
        transpose_0 = transpose{permutation=(0, 2, 3, 1)}(input_0)
        pad_0 = pad{before=(0, 1, 1, 0), after=(0, 1, 1, 0), value=-inf}(transpose_0)
        max_pool2d_0 = max_pool2d{kernel=(3, 3), stride=(2, 2)}(pad_0)
        transpose_1 = transpose{permutation=(0, 3, 1, 2)}(max_pool2d_0)
        return transpose_1
        """
    )
    assert_litert_agrees(graph)


@pytest.mark.parametrize("zero", [-128, 3, 127])
def test_an_average_pool_that_counts_its_padding(zero: int):
    """LiteRT's does not, so that even SAME padding is split off, with zeros on the grid."""
    net = Net()
    graph = net.finish(net.avg_pool(net.input(1, C, 6, 6, zero=zero), 3, 1, 1, count=True))
    after = apply(SplitPads(), graph)
    assert [n.op.name for n in after.nodes] == ["transpose", "pad", "avg_pool2d", "transpose"]
    assert_litert_agrees(graph)


@pytest.mark.parametrize(
    "make",
    [
        lambda net, x: net.conv(x, C, 3),  # SAME
        lambda net, x: net.conv(x, C, 3, 1, NO_PADDING),
        lambda net, x: net.depthwise(x),
        lambda net, x: net.max_pool(x, 3, 1, 1),
        lambda net, x: net.avg_pool(x, 3, 1, 1),
        lambda net, x: net.avg_pool(x, 2, 2, count=True),
    ],
)
def test_paddings_that_litert_has_a_word_for_stay(make):
    net = Net()
    graph = net.finish(make(net, net.input(1, C, 6, 6)))
    assert picture(apply(SplitPads(), graph)) == picture(graph)
    assert_litert_agrees(graph)


def test_an_average_pool_with_padding_that_does_not_count_and_is_not_same_is_refused_by_verify():
    """No importer makes this form; verification would show if one did."""
    net = Net()
    graph = net.finish(net.avg_pool(net.input(1, C, 8, 8), 3, 2, 1))
    with pytest.raises(InternalError, match="a padding that LiteRT cannot express"):
        verify(graph, Stage.LITERT)


def test_operators_that_need_the_same_padding_share_it():
    net = Net()
    x, own = net.input(1, 3, 8, 8), Padding2d(2, 2, 2, 2)
    graph = net.finish(net.conv(x, C, 3, 1, own), net.conv(x, 2, 3, 2, own))
    after = run_passes(graph.clone())
    assert count(after, "pad") == 1
    assert_litert_agrees(graph)


# ---------------------------------------------------------------- CopyOutputs


def _input_as_output(net: Net) -> list[Tensor]:
    x = net.input(2, 3)
    return [net.sigmoid(x), x]


def _only_an_input(net: Net) -> list[Tensor]:
    return [net.input(1, 2, 3)]


def _inputs_swapped(net: Net) -> list[Tensor]:
    x, y = net.input(2, 3), net.input(3)
    return [y, x]


def _twice(net: Net) -> list[Tensor]:
    y = net.sigmoid(net.input(2, 3))
    return [y, y, y]


def _input_twice(net: Net) -> list[Tensor]:
    x = net.input(2, 3)
    return [x, net.sigmoid(x), x]


def _constant(net: Net) -> list[Tensor]:
    return [net.sigmoid(net.input(2, 3)), net.constant(4, 1)]


def _constant_twice(net: Net) -> list[Tensor]:
    constant = net.constant(2, 3)
    return [constant, net.add(net.input(2, 3), constant), constant]


def _scalar(net: Net) -> list[Tensor]:
    x = net.mean(net.input(2, 3), 0, 1)
    return [x, x, net.constant()]


def _no_op(net: Net) -> list[Tensor]:
    """The operator goes and leaves an output that is an input."""
    x = net.input(2, 3)
    return [net.sigmoid(x), net.reshape(x, 2, 3)]


def _two_no_ops(net: Net) -> list[Tensor]:
    y = net.sigmoid(net.input(2, 3))
    return [net.reshape(y, 2, 3), net.reshape(y, 2, 3), net.reshape(y, 6)]


ALIASES = [
    _input_as_output,
    _only_an_input,
    _inputs_swapped,
    _twice,
    _input_twice,
    _constant,
    _constant_twice,
    _scalar,
    _no_op,
    _two_no_ops,
]


def test_the_picture():
    net = Net()
    graph = net.finish(*_input_as_output(net), *_constant(net))
    assert picture(apply(CopyOutputs(), graph)) == drawn(
        """
        sigmoid_0 = sigmoid(input_0)
        sigmoid_1 = sigmoid(input_1)
        reshape_0 = reshape{shape=(2, 3)}(input_0)
        reshape_1 = reshape{shape=(4, 1)}()
        return sigmoid_0, reshape_0, sigmoid_1, reshape_1
        """
    )


@pytest.mark.parametrize("make", ALIASES, ids=lambda make: make.__name__.strip("_"))
def test_every_output_has_a_value_of_its_own(make):
    net = Net()
    graph = net.finish(*make(net))
    after = apply(CopyOutputs(), graph)
    computed = [t for n in after.nodes for t in n.outputs]
    assert len(set(after.outputs)) == len(after.outputs)
    assert all(t in computed for t in after.outputs)
    assert_litert_agrees(graph)


def test_outputs_that_are_distinct_results_are_not_copied():
    net = Net()
    x = net.input(2, 3)
    graph = net.finish(net.sigmoid(x), net.softmax(x))
    assert picture(apply(CopyOutputs(), graph)) == picture(graph)


def test_a_copy_points_at_the_operator_that_it_copies():
    net = Net()
    graph = net.finish(*_twice(net))
    graph.nodes[0].origin = type(graph.nodes[0].origin)(nodes=("sigmoid",), debug_handles=(7,))
    after = apply(CopyOutputs(), graph)
    assert [n.origin.debug_handles for n in after.nodes] == [(7,), (7,), (7,)]
    assert after.nodes[1].origin.passes == ("copy_outputs",)
