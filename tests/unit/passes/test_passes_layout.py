"""Passes that move, merge and remove transposes: before and after as printed, and the same integers."""

from __future__ import annotations

import numpy as np
import pytest
from tests.unit.passes.pass_graphs import FIRST, LAST, Net, apply, assert_same, count, drawn, picture, q, simplified

from micronpu.ir import DType, QParams, TensorType
from micronpu.ops.activation import Prelu
from micronpu.ops.movement import Transpose
from micronpu.ops.slicing import Slice
from micronpu.passes.layout import (
    FoldTransposeIntoLinear,
    MergeTransposes,
    SinkTransposes,
    TransposeToReshape,
)

C = 8


# ---------------------------------------------------------------- MergeTransposes


def test_two_transposes_in_a_row_become_one():
    net = Net()
    x = net.input(1, 2, 3, 4)
    graph = net.finish(net.transpose(net.transpose(x, 0, 2, 3, 1), 0, 3, 2, 1))
    assert picture(graph) == drawn(
        """
        transpose_0 = transpose{permutation=(0, 2, 3, 1)}(input_0)
        transpose_1 = transpose{permutation=(0, 3, 2, 1)}(transpose_0)
        return transpose_1
        """
    )
    assert picture(apply(MergeTransposes(), graph)) == drawn(
        """
        transpose_0 = transpose{permutation=(0, 1, 3, 2)}(input_0)
        return transpose_0
        """
    )


def test_the_first_of_two_transposes_stays_for_its_other_readers():
    net = Net()
    first = net.last(net.input(1, 2, 3, 4))
    after = apply(MergeTransposes(), net.finish(net.relu(first), net.transpose(first, 0, 3, 2, 1)))
    assert picture(after) == drawn(
        """
        transpose_0 = transpose{permutation=(0, 2, 3, 1)}(input_0)
        relu_0 = relu(transpose_0)
        transpose_1 = transpose{permutation=(0, 1, 3, 2)}(input_0)
        return relu_0, transpose_1
        """
    )


def test_equal_transposes_become_one_even_at_the_boundary():
    net = Net()
    x = net.input(1, 2, 3, 4)
    after = apply(MergeTransposes(), net.finish(net.last(x), net.relu(net.last(x)), net.first(x)))
    assert picture(after) == drawn(
        """
        transpose_0 = transpose{permutation=(0, 2, 3, 1)}(input_0)
        relu_0 = relu(transpose_0)
        transpose_1 = transpose{permutation=(0, 3, 1, 2)}(input_0)
        return transpose_0, relu_0, transpose_1
        """
    )


def test_a_chain_of_transposes_collapses_in_one_walk():
    net = Net()
    x = net.input(1, 2, 3, 4)
    y = x
    for _ in range(7):
        y = net.transpose(y, 1, 2, 3, 0)
    after = apply(MergeTransposes(), net.finish(net.relu(y)))
    assert [n.op for n in after.nodes if n.op.name == "transpose"] == [Transpose((3, 0, 1, 2))]


@pytest.mark.parametrize("slopes", [1, C])
def test_transposes_pass_a_prelu_of_one_slope_only(slopes: int):
    net = Net()
    x = net.first(net.input(1, 4, C, C))
    y = net.builder.emit(Prelu(), x, net.constant(slopes), qparams=q(0.05))
    assert count(simplified(net.finish(net.last(y))), "transpose") == (0 if slopes == 1 else 2)


# ---------------------------------------------------------------- SinkTransposes


def test_a_transpose_moves_behind_an_elementwise_operator():
    net = Net()
    graph = net.finish(net.sigmoid(net.first(net.input(1, 4, 3, 2))))
    assert picture(apply(SinkTransposes(), graph)) == drawn(
        """
        sigmoid_0 = sigmoid(input_0)
        transpose_0 = transpose{permutation=(0, 3, 1, 2)}(sigmoid_0)
        return transpose_0
        """
    )


def test_a_residual_addition_of_two_transposed_values():
    net = Net()
    a, b = net.input(1, 4, 3, 2), net.input(1, 4, 3, 2, scale=0.02)
    after = apply(SinkTransposes(), net.finish(net.add(net.first(a), net.first(b))))
    assert picture(after) == drawn(
        """
        add_0 = add(input_0, input_1)
        transpose_0 = transpose{permutation=(0, 3, 1, 2)}(add_0)
        return transpose_0
        """
    )


def test_a_residual_block_at_the_boundary_of_the_program():
    """x comes as NCHW and is read by the convolution as NHWC, so that the addition can be NHWC too."""
    net = Net()
    x = net.input(1, C, 5, 4)
    graph = net.finish(net.add(net.relu(net.conv(x, C, 3)), x))
    assert picture(simplified(graph)) == drawn(
        """
        transpose_0 = transpose{permutation=(0, 2, 3, 1)}(input_0)
        conv2d_0 = conv2d{padding=(1,1,1,1), activation=relu}(transpose_0)
        add_0 = add(conv2d_0, transpose_0)
        transpose_1 = transpose{permutation=(0, 3, 1, 2)}(add_0)
        return transpose_1
        """
    )


def test_the_inverse_transpose_may_stand_further_down():
    """x is read channels-last, but only after the addition that can use it."""
    net = Net()
    x, y = net.input(1, C, 5, 4), net.input(1, 5, 4, C)
    total = net.add(net.first(y), x)
    graph = net.finish(total, net.conv(x, C))
    after = apply(SinkTransposes(), graph)
    assert count(after, "transpose") == 4
    assert picture(simplified(graph)) == drawn(
        """
        transpose_0 = transpose{permutation=(0, 2, 3, 1)}(input_0)
        add_0 = add(input_1, transpose_0)
        transpose_1 = transpose{permutation=(0, 3, 1, 2)}(add_0)
        conv2d_0 = conv2d(transpose_0)
        transpose_2 = transpose{permutation=(0, 3, 1, 2)}(conv2d_0)
        return transpose_1, transpose_2
        """
    )


def test_an_addition_is_not_turned_back_and_forth():
    """Both operands exist in both layouts, so that either direction could be taken again and again."""
    net = Net()
    x = net.input(1, C, 5, 4)
    features = net.conv(x, C, 3)
    after = simplified(net.finish(features, net.conv(net.add(features, x), C)))
    assert picture(after) == drawn(
        """
        transpose_0 = transpose{permutation=(0, 2, 3, 1)}(input_0)
        conv2d_0 = conv2d{padding=(1,1,1,1)}(transpose_0)
        transpose_1 = transpose{permutation=(0, 3, 1, 2)}(conv2d_0)
        add_0 = add(conv2d_0, transpose_0)
        conv2d_1 = conv2d(add_0)
        transpose_2 = transpose{permutation=(0, 3, 1, 2)}(conv2d_1)
        return transpose_1, transpose_2
        """
    )


def test_a_transpose_that_others_need_is_not_made_twice():
    """The addition can have both operands as the program orders them: the one is an output, the other an input."""
    net = Net()
    x = net.input(1, C, 5, 4)
    features = net.conv(x, C, 3)
    after = simplified(net.finish(features, net.add(features, x)))
    assert picture(after) == drawn(
        """
        transpose_0 = transpose{permutation=(0, 2, 3, 1)}(input_0)
        conv2d_0 = conv2d{padding=(1,1,1,1)}(transpose_0)
        transpose_1 = transpose{permutation=(0, 3, 1, 2)}(conv2d_0)
        add_0 = add(transpose_1, input_0)
        return transpose_1, add_0
        """
    )


def test_a_permutation_that_is_its_own_inverse_is_not_turned_back_and_forth():
    net = Net()
    a, b = net.input(1, 3, 4, 5), net.input(1, 4, 3, 5)
    swapped_a, swapped_b = net.transpose(a, 0, 2, 1, 3), net.transpose(b, 0, 2, 1, 3)
    total = net.add(swapped_a, b)
    simplified(net.finish(total, swapped_a, swapped_b, net.add(a, swapped_b)))

    net = Net()
    a, b = net.input(1, 3, 4, 5), net.input(1, 4, 3, 5)
    total = net.add(net.transpose(a, 0, 2, 1, 3), b)
    after = apply(SinkTransposes(), net.finish(total, net.relu(net.transpose(b, 0, 2, 1, 3))))
    assert picture(after) == drawn(
        """
        transpose_0 = transpose{permutation=(0, 2, 1, 3)}(input_0)
        add_0 = add(transpose_0, input_1)
        relu_0 = relu(input_1)
        transpose_1 = transpose{permutation=(0, 2, 1, 3)}(relu_0)
        return add_0, transpose_1
        """
    )


@pytest.mark.parametrize("axis", [1, 2, -1])
def test_concatenation(axis: int):
    net = Net()
    a, b = net.input(1, 4, 3, 2), net.input(1, 4, 3, 2)
    after = apply(SinkTransposes(), net.finish(net.concat(axis % 4, net.first(a), net.first(b))))
    (concat,) = (n for n in after.nodes if n.op.name == "concat")
    assert after.nodes[-1].op == Transpose(FIRST)
    assert concat.op.axis == {1: 3, 2: 1, 3: 2}[axis % 4]
    assert concat.inputs == after.inputs


def test_concatenation_of_one_transposed_and_one_plain_value_stays():
    net = Net()
    a, b = net.input(1, 4, 3, 2), net.input(1, 2, 4, 3)
    graph = net.finish(net.concat(1, net.first(a), b))
    assert picture(apply(SinkTransposes(), graph)) == picture(graph)


def test_mean_over_height_and_width_drops_the_transpose():
    net = Net()
    x = net.input(1, C, 6, 4)
    after = simplified(net.finish(net.mean(net.conv(x, C), 2, 3)))
    assert picture(after) == drawn(
        """
        transpose_0 = transpose{permutation=(0, 2, 3, 1)}(input_0)
        conv2d_0 = conv2d(transpose_0)
        mean_0 = mean{axes=(1, 2)}(conv2d_0)
        return mean_0
        """
    )


def test_mean_that_keeps_its_axes():
    net = Net()
    after = apply(SinkTransposes(), net.finish(net.mean(net.first(net.input(2, 4, 3, C)), 2, 3, keep=True)))
    assert picture(after) == drawn(
        """
        mean_0 = mean{axes=(1, 2), keep=True}(input_0)
        transpose_0 = transpose{permutation=(0, 3, 1, 2)}(mean_0)
        return transpose_0
        """
    )


@pytest.mark.parametrize("axes", [(0,), (1,), (2,), (3,), (1, 2), (0, 3), (1, 2, 3), (0, 1, 2, 3)])
@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("permutation", [FIRST, (3, 1, 0, 2), (1, 0, 3, 2)])
def test_mean_over_any_axes(axes: tuple[int, ...], keep: bool, permutation: tuple[int, ...]):
    net = Net()
    x = net.transpose(net.input(2, 3, 4, 5), *permutation)
    after = apply(SinkTransposes(), net.finish(net.mean(x, *axes, keep=keep)))
    assert after.nodes[0].op.name == "mean"


def test_a_pad_between_two_convolutions():
    net = Net()
    x = net.conv(net.input(1, C, 6, 6), C)
    y = net.conv(net.pad(x, (0, 0, 2, 0), (0, 0, 1, 3)), C, padding=None)
    assert picture(simplified(net.finish(y))) == drawn(
        """
        transpose_0 = transpose{permutation=(0, 2, 3, 1)}(input_0)
        conv2d_0 = conv2d(transpose_0)
        pad_0 = pad{before=(0, 2, 0, 0), after=(0, 1, 3, 0)}(conv2d_0)
        conv2d_1 = conv2d(pad_0)
        transpose_1 = transpose{permutation=(0, 3, 1, 2)}(conv2d_1)
        return transpose_1
        """
    )


def test_the_channel_pad_of_resnet_20():
    """Option A: the shortcut is pooled and gets channels of zeros."""
    net = Net()
    x = net.relu(net.conv(net.input(1, 3, 8, 8), C, 3))
    shortcut = net.pad(net.avg_pool(x, 1, 2), (0, 4, 0, 0), (0, 4, 0, 0))
    y = net.relu(net.add(net.conv(net.relu(net.conv(x, 2 * C, 3, 2)), 2 * C, 3), shortcut))
    after = simplified(net.finish(net.linear(net.reshape(net.mean(y, 2, 3), 1, 2 * C), 10)))
    assert count(after, "transpose") == 1
    assert "pad{before=(0, 0, 0, 4), after=(0, 0, 0, 4)}" in picture(after)


@pytest.mark.parametrize("shape", [(1, C, 1, 1), (C, 1, 1), (1, 1, 1, 1), (1,), (), (1, C, 5, 4), (4,), (5, 1)])
def test_a_constant_operand_is_reordered(shape: tuple[int, ...]):
    """Whatever its rank: axes that broadcasting adds in front are moved, too."""
    net = Net()
    x = net.first(net.input(1, 5, 4, C))
    after = apply(SinkTransposes(), net.finish(net.add(x, net.constant(*shape))))
    assert picture(after) == drawn(
        """
        add_0 = add(input_0)
        transpose_0 = transpose{permutation=(0, 3, 1, 2)}(add_0)
        return transpose_0
        """
    )


def test_a_constant_that_others_read_keeps_its_order():
    net = Net()
    constant = net.constant(1, C, 5, 4)
    x, z = net.first(net.input(1, 5, 4, C)), net.input(1, C, 5, 4)
    graph = net.finish(net.add(x, constant), net.add(z, constant))
    data = np.array(constant.data)
    after = apply(SinkTransposes(), graph)
    assert count(after, "transpose") == 1
    np.testing.assert_array_equal(constant.data, data)


def test_an_operand_of_lower_rank_stays_where_it_is():
    """[4] is added along the last axis of the program's order; a transpose cannot pass."""
    net = Net()
    x, row = net.first(net.input(1, 5, 4, C)), net.input(4)
    graph = net.finish(net.add(x, row))
    assert picture(apply(SinkTransposes(), graph)) == picture(graph)


def test_a_transposed_operand_of_lower_rank_is_no_reason_to_move():
    net = Net()
    x, z = net.input(2, 3, 4), net.transpose(net.input(4, 3), 1, 0)
    graph = net.finish(net.add(x, z))
    assert picture(apply(SinkTransposes(), graph)) == picture(graph)


def test_the_second_operand_decides_where_the_first_cannot_move():
    net = Net()
    one, x = net.transpose(net.input(1, 1, 1, 1), 0, 1, 3, 2), net.first(net.input(1, 5, 4, C))
    after = apply(SinkTransposes(), net.finish(net.add(one, x)))
    assert picture(after) == drawn(
        """
        transpose_0 = transpose{permutation=(0, 1, 3, 2)}(input_0)
        add_0 = add(transpose_0, input_1)
        transpose_1 = transpose{permutation=(0, 3, 1, 2)}(add_0)
        return transpose_1
        """
    )


def test_an_operand_of_one_element_needs_no_transpose():
    net = Net()
    x, one = net.first(net.input(1, 5, 4, C)), net.input(1, 1, 1, 1)
    after = apply(SinkTransposes(), net.finish(net.add(one, x)))
    assert [n.op.name for n in after.nodes] == ["add", "transpose"]


def test_a_transpose_with_two_readers():
    """Both relu and conv can do without; the transpose goes."""
    net = Net()
    x = net.conv(net.input(1, C, 4, 4), C)
    y = net.conv(net.sigmoid(x), C)
    assert count(simplified(net.finish(net.add(y, net.conv(x, C)))), "transpose") == 2


def test_a_result_that_is_a_transpose_of_a_shared_value():
    net = Net()
    x = net.conv(net.input(1, C, 4, 4), C)
    after = simplified(net.finish(x, net.last(x), net.conv(x, 4)))
    assert picture(after) == drawn(
        """
        transpose_0 = transpose{permutation=(0, 2, 3, 1)}(input_0)
        conv2d_0 = conv2d(transpose_0)
        transpose_1 = transpose{permutation=(0, 3, 1, 2)}(conv2d_0)
        conv2d_1 = conv2d(conv2d_0)
        transpose_2 = transpose{permutation=(0, 3, 1, 2)}(conv2d_1)
        return transpose_1, conv2d_0, transpose_2
        """
    )


def test_softmax_over_the_channels_of_an_image():
    net = Net()
    x = net.conv(net.input(1, 3, 4, 4), C)
    after = simplified(net.finish(net.first(net.softmax(net.last(x)))))
    assert [n.op.name for n in after.nodes] == ["transpose", "conv2d", "softmax", "transpose"]


def test_transposes_that_cannot_cancel_stay():
    """Rows and columns change places between two convolutions: that has to happen somewhere."""
    net = Net()
    x = net.conv(net.input(1, 3, 4, 6), C)
    after = simplified(net.finish(net.conv(net.relu(net.transpose(x, 0, 1, 3, 2)), C)))
    assert picture(after) == drawn(
        """
        transpose_0 = transpose{permutation=(0, 2, 3, 1)}(input_0)
        conv2d_0 = conv2d{activation=relu}(transpose_0)
        transpose_1 = transpose{permutation=(0, 2, 1, 3)}(conv2d_0)
        conv2d_1 = conv2d(transpose_1)
        transpose_2 = transpose{permutation=(0, 3, 1, 2)}(conv2d_1)
        return transpose_2
        """
    )


def test_window_operators_are_not_passed():
    net = Net()
    graph = net.finish(net.max_pool(net.first(net.input(1, 6, 6, C)), 2))
    assert picture(apply(SinkTransposes(), graph)) == picture(graph)


def test_origins_say_which_pass_made_a_node():
    net = Net()
    after = apply(SinkTransposes(), net.finish(net.sigmoid(net.first(net.input(1, 4, 3, 2)))))
    assert [n.origin.passes for n in after.nodes] == [("sink_transposes",), ("sink_transposes",)]


# ---------------------------------------------------------------- TransposeToReshape


@pytest.mark.parametrize(
    ("shape", "permutation", "moves"),
    [
        ((1, 1, 1, 64), FIRST, False),
        ((1, 64, 1, 1), LAST, False),
        ((1, 5, 4, 1), FIRST, False),
        ((1, 5, 1, 8), FIRST, True),
        ((2, 1, 3), (1, 0, 2), False),
        ((2, 1, 3), (2, 1, 0), True),
        ((4,), (0,), False),
    ],
)
def test_transpose_to_reshape(shape: tuple[int, ...], permutation: tuple[int, ...], moves: bool):
    net = Net()
    after = apply(TransposeToReshape(), net.finish(net.relu(net.transpose(net.input(*shape), *permutation))))
    assert after.nodes[0].op.name == ("transpose" if moves else "reshape")


# ---------------------------------------------------------------- FoldTransposeIntoLinear


def flattened(net: Net, rows: int = 1) -> tuple:
    x = net.first(net.input(rows, 3, 2, C))
    return x, net.reshape(x, rows, C * 6)


@pytest.mark.parametrize("rows", [1, 3])
def test_weights_are_reordered_instead_of_activations(rows: int):
    net = Net()
    _, flat = flattened(net, rows)
    graph = net.finish(net.linear(flat, 5))
    assert picture(graph) == drawn(
        f"""
        transpose_0 = transpose{{permutation=(0, 3, 1, 2)}}(input_0)
        reshape_0 = reshape{{shape=({rows}, 48)}}(transpose_0)
        fully_connected_0 = fully_connected(reshape_0)
        return fully_connected_0
        """
    )
    assert picture(apply(FoldTransposeIntoLinear(), graph)) == drawn(
        f"""
        reshape_0 = reshape{{shape=({rows}, 48)}}(input_0)
        fully_connected_0 = fully_connected(reshape_0)
        return fully_connected_0
        """
    )


def test_several_linear_layers_that_read_one_flattened_value():
    net = Net()
    _, flat = flattened(net)
    after = apply(FoldTransposeIntoLinear(), net.finish(net.linear(flat, 5), net.linear(flat, 7)))
    assert count(after, "transpose") == 0


def test_weights_that_two_linear_layers_share():
    """One of them reads a plain value, for which the weights must keep their order."""
    net = Net()
    weight = net.weights(5, 48)
    _, flat = flattened(net)
    after = apply(
        FoldTransposeIntoLinear(), net.finish(net.linear(flat, 5, weight), net.linear(net.input(1, 48), 5, weight))
    )
    assert count(after, "transpose") == 0
    assert len({id(n.inputs[1]) for n in after.nodes if n.op.name == "fully_connected"}) == 2


def test_a_flattened_value_with_another_reader_keeps_its_transpose():
    for read in (lambda net, flat: flat, lambda net, flat: net.sigmoid(flat)):
        net = Net()
        _, flat = flattened(net)
        graph = net.finish(net.linear(flat, 5), read(net, flat))
        assert count(apply(FoldTransposeIntoLinear(), graph), "transpose") == 1


def test_a_transpose_that_moves_the_rows_is_not_folded():
    net = Net()
    x = net.transpose(net.input(4, 3, 2), 1, 0, 2)
    graph = net.finish(net.linear(net.reshape(x, 3, 8), 5))
    assert count(apply(FoldTransposeIntoLinear(), graph), "transpose") == 1


def test_a_reshape_that_does_not_keep_the_rows_is_not_folded():
    net = Net()
    x = net.first(net.input(2, 3, 2, 4))
    graph = net.finish(net.linear(net.reshape(x, 4, 12), 5))
    assert count(apply(FoldTransposeIntoLinear(), graph), "transpose") == 1


def test_a_whole_classifier_has_one_transpose():
    net = Net()
    x = net.relu(net.conv(net.input(1, 3, 8, 8), C, 3))
    x = net.max_pool(net.relu(net.depthwise(x)), 2, 2)
    y = net.relu(net.linear(net.reshape(x, 1, C * 16), 12))
    after = simplified(net.finish(net.softmax(net.linear(y, 10))))
    assert [n.op.name for n in after.nodes] == [
        "transpose",
        "conv2d",
        "depthwise_conv2d",
        "max_pool2d",
        "reshape",
        "fully_connected",
        "fully_connected",
        "softmax",
    ]


def test_per_tensor_weights_are_reordered_too():
    net = Net()
    type = TensorType((5, 48), DType.INT8, QParams.per_tensor(0.02, 0))
    weight = net.builder.constant(net.random.integers(-127, 128, (5, 48)), type)
    _, flat = flattened(net)
    bias = net.builder.constant(np.arange(5), TensorType((5,), DType.INT32, q(0.05 * 0.02)))
    from micronpu.ops.matmul import FullyConnected

    y = net.builder.emit(FullyConnected(), flat, weight, bias, qparams=q(0.1))
    assert count(apply(FoldTransposeIntoLinear(), net.finish(y)), "transpose") == 0


def test_a_slice_behind_a_reduction_has_fewer_axes_than_the_transpose():
    net = Net()
    moved = net.transpose(net.input(4, 3), 1, 0)
    cut = net.builder.emit(Slice((1,), (2,)), net.mean(moved, 1))
    after = apply(SinkTransposes(), net.finish(moved, cut))
    assert picture(after) == drawn(
        """
        transpose_0 = transpose{permutation=(1, 0)}(input_0)
        mean_0 = mean{axes=(1,)}(transpose_0)
        slice_0 = slice{begin=(1,), size=(2,)}(mean_0)
        return transpose_0, slice_0
        """
    )


def test_a_reduction_does_not_need_a_transpose_that_others_read():
    """The transposed tensor is an output of the program too; the mean of it is computed from what was transposed.

    It is an eighth of that, which is small enough for one more transpose.
    """
    net = Net()
    moved = net.first(net.input(1, 4, 2, 8))
    graph = net.finish(moved, net.mean(moved, 2, 3))
    after = apply(SinkTransposes(), graph)
    (reduction,) = [n for n in after.nodes if n.op.name == "mean"]
    assert reduction.inputs[0] is after.inputs[0] and "(1, 2)" in str(reduction.op)
    assert_same(graph, after)
