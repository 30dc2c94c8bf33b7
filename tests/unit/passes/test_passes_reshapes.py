"""Passes over reshapes, slices and pools that pick: before and after as printed, and the same integers."""

from __future__ import annotations

import pytest
from tests.unit.passes.pass_graphs import Net, apply, assert_same, count, drawn, picture

from micronpu.ir import Stage, Tensor, verify
from micronpu.ir.op import Op
from micronpu.ir.window import Padding2d
from micronpu.ops.movement import Reshape, Transpose
from micronpu.ops.pooling import AvgPool2d, MaxPool2d
from micronpu.ops.slicing import Slice
from micronpu.passes import run_passes
from micronpu.passes.layout import HoistTransposes, MergeSlices, SinkThroughReshapes, blocks
from micronpu.passes.legalize import MergePicks, SplitAveragePools


def emit(net: Net, op: Op, *inputs: Tensor) -> Tensor:
    return net.builder.emit(op, *inputs)


def cut(net: Net, x: Tensor, axis: int, start: int, stop: int) -> Tensor:
    begin = tuple(start if i == axis else 0 for i in range(len(x.shape)))
    size = tuple(stop - start if i == axis else n for i, n in enumerate(x.shape))
    return emit(net, Slice(begin, size), x)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ((2, 3, 4), (6, 4), [((0, 1), (0,)), ((2,), (1,))]),
        ((6, 4), (2, 3, 4), [((0,), (0, 1)), ((1,), (2,))]),
        ((1, 8, 4, 4), (1, 2, 4, 4, 4), [((), (0,)), ((1,), (1, 2)), ((2,), (3,)), ((3,), (4,))]),
        ((2, 1, 3), (2, 3, 1), [((0,), (0,)), ((2,), (1, 2))]),
        ((4, 6), (6, 4), [((0, 1), (0, 1))]),
        ((1, 1), (1,), []),
    ],
)
def test_blocks_are_the_smallest_equal_products(old: tuple[int, ...], new: tuple[int, ...], expected: object):
    assert [(b.before, b.after) for b in blocks(old, new)] == expected


def test_a_transpose_moves_behind_a_reshape_that_joins_neighbours():
    net = Net()
    x = net.first(net.input(2, 3, 4, 5))
    graph = net.finish(net.reshape(x, 2, 5, 12))
    assert picture(apply(SinkThroughReshapes(), graph)) == drawn(
        """
        reshape_0 = reshape{shape=(2, 12, 5)}(input_0)
        transpose_0 = transpose{permutation=(0, 2, 1)}(reshape_0)
        return transpose_0
        """
    )


def test_a_reshape_of_one_element_stays_behind_its_transpose():
    net = Net()
    graph = net.finish(net.reshape(net.first(net.input(1, 1, 1, 1)), 1, 1))
    assert picture(apply(SinkThroughReshapes(), graph)) == picture(graph)


def test_a_transpose_moves_behind_a_reshape_that_splits():
    net = Net()
    x = net.first(net.input(1, 3, 4, 6))
    graph = net.finish(net.reshape(x, 1, 2, 3, 3, 4))
    assert picture(apply(SinkThroughReshapes(), graph)) == drawn(
        """
        reshape_0 = reshape{shape=(1, 3, 4, 2, 3)}(input_0)
        transpose_0 = transpose{permutation=(0, 3, 4, 1, 2)}(reshape_0)
        return transpose_0
        """
    )


def test_a_flattened_image_keeps_its_transpose():
    net = Net()
    graph = net.finish(net.reshape(net.first(net.input(1, 3, 4, 6)), 1, 72))
    assert picture(apply(SinkThroughReshapes(), graph)) == picture(graph)


def test_axes_joined_in_another_order_pay_where_the_inverse_follows():
    net = Net()
    mixed = net.transpose(net.input(1, 3, 4, 2, 5), 0, 4, 3, 1, 2)
    joined = net.reshape(mixed, 1, 10, 3, 4)
    graph = net.finish(net.last(net.relu(cut(net, joined, 1, 2, 9))))
    assert picture(apply(SinkThroughReshapes(), graph)) == drawn(
        """
        transpose_0 = transpose{permutation=(0, 1, 2, 4, 3)}(input_0)
        reshape_0 = reshape{shape=(1, 3, 4, 10)}(transpose_0)
        transpose_1 = transpose{permutation=(0, 3, 1, 2)}(reshape_0)
        slice_0 = slice{begin=(0, 2, 0, 0), size=(1, 7, 3, 4)}(transpose_1)
        relu_0 = relu(slice_0)
        transpose_2 = transpose{permutation=(0, 2, 3, 1)}(relu_0)
        return transpose_2
        """
    )


def test_axes_joined_in_another_order_stay_where_nothing_follows():
    net = Net()
    mixed = net.transpose(net.input(1, 3, 4, 2, 5), 0, 4, 3, 1, 2)
    graph = net.finish(net.relu(net.reshape(mixed, 1, 10, 3, 4)))
    assert picture(apply(SinkThroughReshapes(), graph)) == picture(graph)


def test_slices_of_slices_become_one():
    net = Net()
    first = cut(net, net.input(1, 8, 6), 1, 2, 7)
    graph = net.finish(cut(net, cut(net, first, 2, 1, 5), 1, 1, 3))
    assert picture(apply(MergeSlices(), graph)) == drawn(
        """
        slice_0 = slice{begin=(0, 3, 1), size=(1, 2, 4)}(input_0)
        return slice_0
        """
    )


def test_one_transpose_in_front_of_slices():
    net = Net()
    x = net.input(1, 8, 3, 4)
    graph = net.finish(net.relu(net.last(cut(net, x, 1, 0, 4))), net.relu(net.last(cut(net, x, 1, 4, 8))))
    after = apply(HoistTransposes(), graph)
    assert picture(after) == drawn(
        """
        transpose_0 = transpose{permutation=(0, 2, 3, 1)}(input_0)
        slice_0 = slice{begin=(0, 0, 0, 0), size=(1, 3, 4, 4)}(transpose_0)
        relu_0 = relu(slice_0)
        slice_1 = slice{begin=(0, 0, 0, 4), size=(1, 3, 4, 4)}(transpose_0)
        relu_1 = relu(slice_1)
        return relu_0, relu_1
        """
    )


def test_slices_in_two_orders_keep_their_transposes():
    net = Net()
    x = net.input(1, 8, 3, 4)
    parts = cut(net, x, 1, 0, 4), cut(net, x, 1, 4, 8)
    graph = net.finish(net.relu(net.last(parts[0])), net.relu(net.transpose(parts[1], 0, 3, 2, 1)))
    assert picture(apply(HoistTransposes(), graph)) == picture(graph)


def test_a_small_part_is_transposed_alone():
    net = Net()
    graph = net.finish(net.relu(net.last(cut(net, net.input(1, 8, 3, 4), 1, 0, 1))))
    assert picture(apply(HoistTransposes(), graph)) == picture(graph)


def test_slices_that_are_results_keep_their_transposes():
    net = Net()
    x = net.input(1, 8, 3, 4)
    part = net.last(cut(net, x, 1, 0, 8))
    graph = net.finish(part, net.relu(part))
    assert picture(apply(HoistTransposes(), graph)) == picture(graph)


def test_two_picks_become_one():
    net = Net()
    x = net.input(1, 8, 6, 3)
    graph = net.finish(emit(net, MaxPool2d((1, 1), (1, 3)), emit(net, MaxPool2d((1, 1), (2, 1)), x)))
    after = apply(MergePicks(), graph)
    assert [n.op for n in after.nodes if n.output in after.outputs] == [MaxPool2d((1, 1), (2, 3))]
    assert count(after, "max_pool2d") == 1


def test_a_pool_with_a_window_is_no_pick():
    net = Net()
    x = net.input(1, 8, 6, 3)
    graph = net.finish(emit(net, MaxPool2d((1, 2), (1, 2)), emit(net, MaxPool2d((1, 1), (2, 1)), x)))
    assert picture(apply(MergePicks(), graph)) == picture(graph)


@pytest.mark.parametrize(
    ("op", "size", "pools"),
    [
        (AvgPool2d((3, 3), (2, 2), Padding2d.symmetric(1, 1)), (8, 8), 4),
        (AvgPool2d((3, 1), (2, 1), Padding2d(1, 1, 0, 0)), (8, 8), 2),
        (AvgPool2d((3, 3), (1, 1), Padding2d.symmetric(1, 1)), (8, 8), 1),
        (AvgPool2d((3, 3), (2, 2), Padding2d.symmetric(1, 1), True), (8, 8), 1),
        (AvgPool2d((3, 3), (2, 2)), (9, 9), 1),
    ],
)
def test_average_pools_are_split_where_their_padding_has_no_word(op: AvgPool2d, size: tuple[int, int], pools: int):
    net = Net()
    graph = net.finish(net.relu(emit(net, op, net.input(1, *size, 3))))
    after = apply(SplitAveragePools(), graph)
    assert count(after, "avg_pool2d") == pools
    if pools > 1:
        verify(after, Stage.LITERT)


def test_a_shuffle_between_two_images_needs_one_transpose():
    net = Net()
    x = net.max_pool(net.input(1, 6, 5, 4))
    apart = emit(net, Transpose((0, 2, 1, 3, 4)), emit(net, Reshape((1, 2, 3, *x.shape[2:])), x))
    graph = net.finish(net.max_pool(emit(net, Reshape(x.shape), apart)))
    after = run_passes(graph.clone(), after=lambda step, changed: verify(changed))
    assert_same(graph, after)
    # Two more stand at the border of the program.
    assert [n.op.name for n in after.nodes] == [
        *("transpose", "max_pool2d", "reshape", "transpose", "reshape", "max_pool2d", "transpose")
    ]
