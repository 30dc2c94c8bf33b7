"""Removal of operators that do nothing, and merging of reshapes."""

from __future__ import annotations

import math

import pytest
from tests.unit.passes.pass_graphs import Net, apply, drawn, picture, q

from micronpu.ir import DType, QParams, Tensor, TensorType
from micronpu.ir.op import Op
from micronpu.ir.window import Activation
from micronpu.ops.elementwise import Add, Mul, Sub
from micronpu.ops.quantization import Requantize
from micronpu.ops.resize import ResizeBilinear, ResizeNearest
from micronpu.ops.slicing import Concat
from micronpu.passes.fusion import MergeReshapes, RemoveNoOps


def with_number(
    net: Net, op: Op, x: Tensor, value: float, *, first: bool = False, out: QParams | None = None
) -> Tensor:
    """An operator on x and a constant of one element that is exactly the number."""
    number = net.builder.constant([int(value) + 7], TensorType((1,), DType.INT8, q(1.0, 7)))
    operands = (number, x) if first else (x, number)
    return net.builder.emit(op, *operands, qparams=out or x.type.qparams)


NO_OPS = {
    "reshape": lambda net, x: net.reshape(x, *x.shape),
    "transpose": lambda net, x: net.transpose(x, 0, 1, 2, 3),
    "pad": lambda net, x: net.pad(x, (0,) * 4, (0,) * 4),
    "pad_with_lowest": lambda net, x: net.pad(x, (0,) * 4, (0,) * 4, -math.inf),
    "concat": lambda net, x: net.builder.emit(Concat(1), x),
    "requantize": lambda net, x: net.builder.emit(Requantize(), x, qparams=x.type.qparams),
    "clamp_beyond_the_grid": lambda net, x: net.clamp(x, -100.0, 100.0),
    "clamp_without_bounds": lambda net, x: net.clamp(x, None, None),
    "add_zero": lambda net, x: with_number(net, Add(), x, 0.0),
    "zero_add": lambda net, x: with_number(net, Add(), x, 0.0, first=True),
    "sub_zero": lambda net, x: with_number(net, Sub(), x, 0.0),
    "mul_one": lambda net, x: with_number(net, Mul(), x, 1.0),
    "resize_nearest": lambda net, x: net.builder.emit(ResizeNearest((4, 5)), x),
    "resize_bilinear": lambda net, x: net.builder.emit(ResizeBilinear((4, 5)), x),
}

OPERATORS = {
    "reshape": lambda net, x: net.reshape(x, *x.shape[:-1], x.shape[-1], 1),
    "transpose": lambda net, x: net.transpose(x, 0, 1, 3, 2),
    "pad": lambda net, x: net.pad(x, (0,) * 4, (0, 0, 0, 1)),
    "concat": lambda net, x: net.concat(1, x, x),
    "requantize": lambda net, x: net.requantize(x, q(0.04, 3)),
    "clamp": lambda net, x: net.clamp(x, -100.0, 6.0),
    "relu": lambda net, x: net.relu(x),
    "rescaling_relu": lambda net, x: net.relu(x, out=q(0.02, -128)),
    "sigmoid": lambda net, x: net.sigmoid(x),
    "add_one": lambda net, x: with_number(net, Add(), x, 1.0),
    "add_zero_and_clamp": lambda net, x: with_number(net, Add(Activation.RELU), x, 0.0),
    "add_zero_on_another_grid": lambda net, x: with_number(net, Add(), x, 0.0, out=q(0.04, 3)),
    "zero_sub": lambda net, x: with_number(net, Sub(), x, 0.0, first=True),
    "mul_zero": lambda net, x: with_number(net, Mul(), x, 0.0),
    "mul_of_two_values": lambda net, x: net.builder.emit(Mul(), x, x, qparams=x.type.qparams),
    "resize": lambda net, x: net.builder.emit(ResizeNearest((8, 5)), x),
}


@pytest.mark.parametrize("name", NO_OPS)
def test_an_operator_that_returns_its_operand_goes(name: str):
    net = Net()
    x = net.input(1, 4, 5, 6)
    after = apply(RemoveNoOps(), net.finish(net.sigmoid(NO_OPS[name](net, x))))
    assert picture(after) == drawn(
        """
        sigmoid_0 = sigmoid(input_0)
        return sigmoid_0
        """
    )


@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_that_does_something_stays(name: str):
    net = Net()
    x = net.input(1, 4, 5, 6)
    graph = net.finish(OPERATORS[name](net, x))
    assert picture(apply(RemoveNoOps(), graph)) == picture(graph)


@pytest.mark.parametrize("pool", ["max_pool", "avg_pool"])
def test_a_pool_of_one_element_goes(pool: str):
    net = Net()
    after = apply(RemoveNoOps(), net.finish(getattr(net, pool)(net.input(1, 4, 5, 6), 1)))
    assert [n.op.name for n in after.nodes] == ["transpose", "transpose"]


@pytest.mark.parametrize("pool", ["max_pool", "avg_pool"])
@pytest.mark.parametrize("change", [{"stride": 2}, {"kernel": 2}, {"kernel": 3, "padding": 1}])
def test_a_pool_that_selects_stays(pool: str, change: dict):
    net = Net()
    graph = net.finish(getattr(net, pool)(net.input(1, 4, 5, 6), **({"kernel": 1} | change)))
    assert picture(apply(RemoveNoOps(), graph)) == picture(graph)


@pytest.mark.parametrize(
    ("scale", "zero", "kind", "stays"),
    [
        (0.05, -128, Activation.RELU, False),  # the grid begins at 0
        (0.05, -127, Activation.RELU, True),
        (6 / 255, -128, Activation.RELU6, False),
        (6 / 254, -128, Activation.RELU6, True),
        (0.007, 0, Activation.RELU_N1_TO_1, False),  # the grid ends at -0.9 and 0.9
        (0.05, 127, Activation.RELU, True),
    ],
)
def test_a_relu_whose_range_lies_between_its_bounds_goes(scale: float, zero: int, kind: Activation, stays: bool):
    net = Net()
    x = net.input(2, 9, scale=scale, zero=zero)
    after = apply(RemoveNoOps(), net.finish(net.relu(x, kind=kind), net.sigmoid(x)))
    assert [n.op.name for n in after.nodes] == (["relu", "sigmoid"] if stays else ["sigmoid"])


def test_a_chain_of_no_ops_goes_in_one_walk():
    net = Net()
    x: Tensor = net.input(1, 4, 5, 6)
    y = x
    for _ in range(5):
        for change in NO_OPS.values():
            y = change(net, y)
    after = apply(RemoveNoOps(), net.finish(y, net.sigmoid(y)))
    assert picture(after) == drawn(
        """
        sigmoid_0 = sigmoid(input_0)
        return input_0, sigmoid_0
        """
    )


# ---------------------------------------------------------------- MergeReshapes


def test_two_reshapes_become_one():
    net = Net()
    graph = net.finish(net.reshape(net.reshape(net.input(2, 3, 4), 6, 4), 24))
    assert picture(graph) == drawn(
        """
        reshape_0 = reshape{shape=(6, 4)}(input_0)
        reshape_1 = reshape{shape=(24,)}(reshape_0)
        return reshape_1
        """
    )
    assert picture(apply(MergeReshapes(), graph)) == drawn(
        """
        reshape_0 = reshape{shape=(24,)}(input_0)
        return reshape_0
        """
    )


@pytest.mark.parametrize("is_output", [True, False])
def test_the_first_reshape_stays_for_its_other_readers(is_output: bool):
    net = Net()
    first = net.reshape(net.input(2, 3, 4), 6, 4)
    other = first if is_output else net.softmax(first)
    after = apply(MergeReshapes(), net.finish(net.sigmoid(net.reshape(first, 24)), other))
    assert [(n.op.name, n.inputs[0] is after.inputs[0]) for n in after.nodes if n.op.name == "reshape"] == [
        ("reshape", True),
        ("reshape", True),
    ]


def test_many_reshapes_become_one_in_one_walk():
    net = Net()
    y = net.input(2, 3, 4)
    for shape in ((6, 4), (4, 6), (24,), (1, 24), (3, 8)):
        y = net.reshape(y, *shape)
    after = apply(MergeReshapes(), net.finish(y))
    assert picture(after) == drawn(
        """
        reshape_0 = reshape{shape=(3, 8)}(input_0)
        return reshape_0
        """
    )


def test_a_merged_reshape_remembers_both_origins():
    net = Net()
    graph = net.finish(net.reshape(net.reshape(net.input(2, 3, 4), 6, 4), 24))
    for node, name in zip(graph.nodes, ("view", "flatten"), strict=True):
        node.origin = type(node.origin)(nodes=(name,), debug_handles=(len(name),))
    (node,) = apply(MergeReshapes(), graph).nodes
    assert (node.origin.nodes, node.origin.debug_handles) == (("flatten", "view"), (7, 4))
    assert node.origin.passes == ("merge_reshapes",)
