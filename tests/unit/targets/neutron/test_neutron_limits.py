"""Where rewrites for Neutron end: what each makes of an operator at its limit, and what it leaves alone behind it."""

from __future__ import annotations

import pytest
from tests.cases import Case, c8, case, i8, q, w8

from micronpu.ir.graph import Node
from micronpu.ir.window import Padding2d
from micronpu.ops.activation import Prelu
from micronpu.ops.clamps import Clamp
from micronpu.ops.convolution import DepthwiseConv2d, TransposeConv2d
from micronpu.ops.elementwise import Add, Mul
from micronpu.ops.indices import MOST_POSITIONS, ArgMax
from micronpu.ops.matmul import BatchMatmul, FullyConnected
from micronpu.ops.movement import Pad
from micronpu.ops.pooling import AvgPool2d, MaxPool2d
from micronpu.ops.reduction import Amax, Mean
from micronpu.ops.resize import ResizeNearest
from micronpu.ops.slicing import Concat
from micronpu.ops.softmax import Softmax
from micronpu.passes.rewrite import Rewrite
from micronpu.targets.neutron.rewrites import REWRITES

OUT, SAME = q(0.1), Padding2d(1, 1, 1, 1)
BY_NAME: dict[str, Rewrite] = {rewrite.name: rewrite for rewrite in REWRITES}


def softmax(*shape: int, scale: float = 0.1) -> Case:
    return case(Softmax(), x=i8(*shape, scale=scale))


def total(*x: int, z: tuple[int, ...]) -> Case:
    return case(Add(), x=i8(*x), z=i8(*z), out=OUT)


def product(*x: int, z: tuple[int, ...]) -> Case:
    return case(Mul(), x=i8(*x), z=i8(*z), out=OUT)


def layer(*x: int) -> Case:
    return case(FullyConnected(), x=i8(*x), weight=w8(3, x[-1]), out=OUT)


def pool(*x: int, kernel: int, stride: int, padding: Padding2d = Padding2d()) -> Case:  # noqa: B008  (frozen)
    return case(MaxPool2d((kernel, kernel), (stride, stride), padding), x=i8(*x))


def depthwise(channels: int, results: int, dilation: int = 1) -> Case:
    op = DepthwiseConv2d(dilation=(1, dilation))
    return case(op, x=i8(1, 6, 6, channels), weight=w8(1, 3, 3, results, axis=3), out=OUT)


def transposed(*stride: int) -> Case:
    return case(TransposeConv2d(stride), x=i8(1, 4, 4, 8), weight=w8(2, 2, 2, 8, axis=0), out=OUT)


def average(padding: Padding2d, count: bool) -> Case:
    return case(AvgPool2d((3, 3), (1, 1), padding, count), x=i8(1, 6, 6, 8))


def resize(rows: int, columns: int) -> Case:
    return case(ResizeNearest((rows, columns)), x=i8(1, 4, 4, 8))


def prelu(*shape: int, slopes: int) -> Case:
    return case(Prelu(), x=i8(*shape), slope=c8(slopes), out=OUT)


def parts(*sizes: int, axis: int = 0, rank: int = 2) -> Case:
    return case(Concat(axis), tensors=[i8(*(n if i == axis else 2 for i in range(rank))) for n in sizes])


# Rewrite, operator, and the operators that are made of it in their order; None where it is left alone.
LIMITS: list[tuple[str, Case, str | None]] = [
    ("pad_channels", softmax(4, 9), "reshape pad reshape softmax slice"),
    ("pad_channels", softmax(4, 8), None),
    ("pad_channels", softmax(9), None),
    ("pad_channels", softmax(4, 9, scale=16 / 255), "reshape pad reshape softmax slice"),
    ("pad_channels", softmax(4, 9, scale=15.9 / 255), "requantize reshape pad reshape softmax slice"),
    ("fill_product", product(3, 3, z=(3, 3)), "reshape pad reshape pad mul slice reshape"),
    ("fill_product", product(4, 4, z=(4, 4)), None),
    ("fill_product", product(3, 3, z=(1, 3)), None),
    ("expand_operand", total(4, 8, z=(1, 8)), "reshape resize_nearest reshape reshape add"),
    ("expand_operand", total(8, 1, z=(8, 4)), "reshape resize_nearest reshape transpose reshape reshape add"),
    ("expand_operand", total(4, 8, z=(4, 8)), None),
    ("expand_operand", total(2, 8, z=(1, 8)), "reshape resize_nearest reshape slice reshape add"),
    ("expand_operand", total(2, 1, z=(2, 4)), "reshape resize_nearest reshape transpose reshape reshape add"),
    ("expand_operand", total(1, 1, z=(1, 4)), "reshape resize_nearest reshape reshape add"),
    ("expand_operand", total(16, 8, z=(1, 8)), "reshape resize_nearest reshape reshape add"),
    ("expand_operand", total(3, 2, 2, z=(3, 1, 2)), "reshape resize_nearest reshape slice add"),
    ("expand_operand", case(Add(), x=i8(4, 8), z=c8(1, 8), out=OUT), "add"),
    ("expand_by_product", total(4, 8, z=(1, 8)), "mul add"),
    ("expand_by_product", total(4, 8, z=(4, 8)), None),
    ("expand_by_product", product(4, 8, z=(1, 8)), None),
    ("expand_by_product", product(4, 1, z=(1, 8)), "mul mul mul"),
    ("expand_by_product", case(Add(), x=i8(4, 8), z=c8(1, 8), out=OUT), None),
    ("shift_and_back", case(Clamp(-1.0, 2.0), x=i8(4, 8)), "requantize requantize requantize"),
    ("shift_and_back", case(Clamp(-99.0, 99.0), x=i8(4, 8)), None),
    ("shift_and_back", case(Clamp(1.0, 2.0), x=i8(4, 8)), None),
    ("shift_and_back", case(Clamp(-1.0, 99.0), x=i8(4, 8)), "requantize requantize"),
    ("fill_matrices", case(BatchMatmul(), x=i8(1, 8, 8), z=i8(1, 8, 8), out=OUT), None),
    (
        "fill_matrices",
        case(BatchMatmul(), x=i8(1, 8, 8), z=i8(1, 8, 9), out=OUT),
        "reshape pad reshape batch_matmul slice reshape",
    ),
    ("position_by_score", case(ArgMax(), x=i8(9)), "amax sub add amax reshape mul reshape"),
    ("position_by_score", case(ArgMax(), x=i8(2, 9)), "amax sub add amax mul"),
    ("position_by_score", case(ArgMax(), x=i8(2, 9, scale=MOST_POSITIONS * 1e-30)), "amax sub add amax mul"),
    ("position_by_score", case(ArgMax(), x=i8(2, 9, scale=MOST_POSITIONS * 0.99e-30)), None),
    ("flatten_rows", layer(8), "reshape fully_connected reshape"),
    ("flatten_rows", layer(4, 8), None),
    ("flatten_rows", layer(1, 4, 8), "reshape fully_connected reshape"),
    ("add_row", softmax(8), "reshape softmax reshape"),
    ("add_row", softmax(1, 8), None),
    ("halve_rows", softmax(2, 8), "slice slice softmax softmax concat reshape"),
    ("halve_rows", softmax(1, 8), None),
    ("pad_as_picture", case(Pad((0, 1, 0, 0), (0, 0, 0, 0)), x=i8(1, 3, 4, 4)), "reshape pad reshape"),
    ("pad_as_picture", case(Pad((0, 0, 0, 1), (0, 0, 0, 0)), x=i8(1, 1, 4, 4)), None),
    ("join_rows", parts(1, 2), "reshape concat reshape"),
    ("join_rows", case(Concat(0), tensors=[i8(2, 2), c8(2, 2)]), "reshape concat reshape"),
    ("join_rows", parts(1, 2, axis=1), None),
    ("join_rows", parts(1, 2, axis=1, rank=3), "reshape reshape concat reshape"),
    ("join_rows", parts(1, 2, axis=2, rank=3), "reshape reshape concat reshape"),
    ("add_parts", parts(1, 2), "reshape pad reshape pad add reshape"),
    ("add_parts", parts(*[1] * 64), "reshape pad" + 63 * " reshape pad add" + " reshape"),
    ("add_parts", parts(*[1] * 65), None),
    ("mean_of_rows", case(Mean((1, 2)), x=i8(2, 3, 4, 5)), "reshape transpose reshape mean reshape"),
    ("mean_of_rows", case(Mean((2, 3)), x=i8(2, 3, 4, 5)), None),
    ("mean_of_rows", case(Mean((2, 3)), x=i8(2, 3, 4, 5, 6)), "reshape transpose reshape mean reshape"),
    ("mean_of_rows", case(Mean((1, 3)), x=i8(2, 3, 4, 5)), None),
    ("mean_of_rows", case(Mean((1,)), x=i8(2, 3)), "reshape mean reshape"),
    ("mean_of_rows", case(Mean((1,)), x=i8(2, 3, 2)), "transpose reshape mean reshape"),
    ("mean_of_rows", case(Mean((1,)), x=i8(2, 1, 3)), "reshape mean reshape"),
    ("mean_of_rows", case(Mean((1,)), x=i8(2, 2, 3)), "transpose reshape mean reshape"),
    ("maximum_of_windows", case(Amax((1,)), x=i8(4, 6)), "reshape transpose reshape max_pool2d reshape"),
    ("maximum_of_windows", case(Amax((1,)), x=i8(2, 6)), "reshape transpose reshape max_pool2d reshape"),
    ("maximum_of_windows", case(Amax((1,)), x=i8(1, 6)), "reshape max_pool2d reshape"),
    ("maximum_of_windows", case(Amax((1,)), x=i8(3, 6, 2)), "reshape max_pool2d reshape"),
    ("maximum_of_windows", case(Amax((0, 2)), x=i8(3, 6, 2)), None),
    ("prelu_as_picture", prelu(1, 4, 4, 8, slopes=8), None),
    ("prelu_as_picture", prelu(1, 4, 4, 9, slopes=9), "reshape pad prelu slice reshape"),
    ("prelu_as_picture", prelu(4, 4, 8, slopes=8), "reshape prelu reshape"),
    ("prelu_as_picture", prelu(4, 4, 8, slopes=1), "reshape prelu reshape"),
    ("prelu_as_picture", prelu(1, 1, 4, 4, 8, slopes=8), "reshape prelu reshape"),
    ("prelu_as_picture", prelu(1, 4, 4, 2, slopes=2), "reshape pad prelu slice reshape"),
    ("dense_kernel", depthwise(8, 8, dilation=2), "depthwise_conv2d"),
    ("dense_kernel", depthwise(8, 8), None),
    ("split_multiplier", depthwise(1, 64), 64 * "depthwise_conv2d reshape " + "concat reshape transpose reshape"),
    ("split_multiplier", depthwise(1, 65), None),
    ("split_multiplier", depthwise(8, 8), None),
    (
        "split_multiplier",
        depthwise(4, 8),
        "depthwise_conv2d reshape depthwise_conv2d reshape concat reshape transpose reshape",
    ),
    ("dense_depthwise", depthwise(4, 8), "conv2d"),
    ("dense_depthwise", depthwise(8, 8), None),
    ("pad_before_pool", average(SAME, True), "transpose pad transpose avg_pool2d"),
    ("pad_before_pool", average(SAME, False), None),
    ("pad_before_pool", average(Padding2d(), True), None),
    ("pool_one_by_one", pool(2, 6, 6, 8, kernel=2, stride=2), "reshape max_pool2d reshape"),
    ("pool_one_by_one", pool(2, 5, 6, 8, kernel=2, stride=2), "slice max_pool2d slice max_pool2d concat reshape"),
    ("pool_one_by_one", pool(2, 6, 6, 8, kernel=3, stride=2), "slice max_pool2d slice max_pool2d concat reshape"),
    ("pool_one_by_one", pool(1, 6, 6, 8, kernel=2, stride=2), None),
    ("pool_one_by_one", pool(65, 2, 2, 8, kernel=2, stride=2), None),
    ("pool_one_by_one", pool(64, 2, 2, 8, kernel=2, stride=2), "reshape max_pool2d reshape"),
    ("pick_rows", pool(1, 9, 9, 8, kernel=3, stride=3), "max_pool2d reshape reshape pad reshape reshape slice reshape"),
    ("pick_rows", pool(1, 11, 9, 8, kernel=3, stride=3), "max_pool2d reshape reshape slice reshape"),
    ("pick_rows", pool(1, 9, 9, 8, kernel=2, stride=2), None),
    ("repeat_elements", resize(12, 4), "reshape resize_nearest reshape slice reshape reshape"),
    ("repeat_elements", resize(8, 8), None),
    ("repeat_elements", resize(16, 16), None),
    ("repeat_elements", resize(6, 8), None),
    ("repeat_elements", resize(8, 4), "reshape resize_nearest reshape slice reshape reshape"),
    ("transposed_by_phases", transposed(1, 2), "conv2d reshape"),
    ("transposed_by_phases", transposed(2, 1), "conv2d reshape transpose reshape"),
    ("transposed_by_phases", transposed(1, 1), None),
    ("transposed_by_phases", transposed(3, 3), "conv2d reshape transpose reshape slice slice"),
]


def made(name: str, node: Node) -> str | None:
    nodes = BY_NAME[name].apply(node)
    return None if nodes is None else " ".join(n.op.name for n in nodes)


@pytest.mark.parametrize(("name", "row", "operators"), LIMITS)
def test_what_is_made_at_a_limit(name: str, row: Case, operators: str | None) -> None:
    (node,) = row.graph().nodes
    assert made(name, node) == operators


def test_parts_with_other_qparams_are_not_added() -> None:
    (node,) = parts(1, 2).graph().nodes
    node.inputs[1].type = i8(2, 2, zero=5)
    assert made("add_parts", node) is None
