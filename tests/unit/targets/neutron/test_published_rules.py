"""The published support table as rules: both sides of every limit, in the published flavors and in the newest."""

from __future__ import annotations

import pytest
from tests.cases import Case, all_cases, c8, case, i8, q, w8

from micronpu.ir.window import Activation, Padding2d
from micronpu.ops import OPERATORS
from micronpu.ops.activation import HardSwish, LeakyRelu, Prelu
from micronpu.ops.clamps import Clamp, Relu
from micronpu.ops.convolution import Conv2d, DepthwiseConv2d
from micronpu.ops.elementwise import Add, Maximum, Mul, Sub
from micronpu.ops.matmul import BatchMatmul, FullyConnected
from micronpu.ops.movement import Pad, Reshape, Transpose
from micronpu.ops.pooling import AvgPool2d, MaxPool2d
from micronpu.ops.reduction import Mean
from micronpu.ops.resize import ResizeBilinear, ResizeNearest
from micronpu.ops.slicing import Concat
from micronpu.ops.softmax import Softmax
from micronpu.targets.neutron.rules import PUBLISHED, RULES, SUPPORTED, SUPPORTED_RULE, check_node, is_supported
from micronpu.targets.neutron.target_spec import FLAVORS, LATEST, PUBLISHED_FLAVORS, NeutronTargetSpec

ALL_SIDES = Padding2d.symmetric(1, 1)
OUT = q(0.1)

# Rule, a row that keeps it, a row that breaks it and nothing else that the published flavors ask for.
LIMITS = [
    (
        "addends_have_equal_shape",
        case(Add(), x=i8(2, 8), z=i8(2, 8), out=OUT),
        case(Add(), x=i8(2, 8), z=i8(1, 8), out=OUT),
    ),
    (
        "average_skips_padding",
        case(AvgPool2d((3, 3), padding=ALL_SIDES), x=i8(1, 6, 6, 8)),
        case(AvgPool2d((3, 3), padding=ALL_SIDES, count_padding=True), x=i8(1, 6, 6, 8)),
    ),
    (
        "matrix_product_is_2d",
        case(FullyConnected(), x=i8(4, 8), weight=w8(3, 8), out=OUT),
        case(FullyConnected(), x=i8(1, 4, 8), weight=w8(3, 8), out=OUT),
    ),
    (
        "concat_fills_lanes",
        case(Concat(1), tensors=[i8(1, 8), i8(1, 16)]),
        case(Concat(1), tensors=[i8(1, 8), i8(1, 9)]),
    ),
    (
        "concat_fills_lanes",
        case(Concat(2), tensors=[i8(1, 8, 3, 5), i8(1, 8, 2, 5)]),
        case(Concat(2), tensors=[i8(1, 7, 3, 8), i8(1, 7, 2, 8)]),
    ),
    (
        "concat_fills_lanes",
        case(Concat(1), tensors=[i8(1, 8, 3, 3), i8(1, 8, 3, 3)]),
        case(Concat(1), tensors=[i8(1, 4, 3, 3), i8(1, 4, 3, 3)]),
    ),
    (
        "pad_is_spatial",
        case(Pad((0, 0, 1, 2), (0, 0, 0, 3)), x=i8(1, 8, 3, 3)),
        case(Pad((0, 1, 0, 0), (0, 0, 0, 0)), x=i8(1, 8, 3, 3)),
    ),
    ("pad_is_spatial", case(Pad((0, 0, 1), (0, 0, 0)), x=i8(1, 8, 3)), case(Pad((0, 1), (0, 0)), x=i8(1, 8))),
    (
        "convolution_is_dense",
        case(Conv2d(), x=i8(1, 7, 7, 8), weight=w8(4, 3, 3, 8), out=OUT),
        case(Conv2d(dilation=(1, 2)), x=i8(1, 7, 7, 8), weight=w8(4, 3, 3, 8), out=OUT),
    ),
    (
        "convolution_is_dense",
        case(DepthwiseConv2d(), x=i8(1, 7, 7, 8), weight=w8(1, 3, 3, 8), out=OUT),
        case(DepthwiseConv2d(dilation=(2, 1)), x=i8(1, 7, 7, 8), weight=w8(1, 3, 3, 8), out=OUT),
    ),
    ("max_pool_fills_lanes", case(MaxPool2d((2, 2)), x=i8(1, 4, 4, 16)), case(MaxPool2d((2, 2)), x=i8(1, 4, 4, 15))),
    ("max_pool_batch_is_one", case(MaxPool2d((2, 2)), x=i8(1, 4, 4, 8)), case(MaxPool2d((2, 2)), x=i8(2, 4, 4, 8))),
    (
        "max_pool_stride_is_listed",
        case(MaxPool2d((2, 2), stride=(2, 3)), x=i8(1, 8, 8, 8)),
        case(MaxPool2d((2, 2), stride=(3, 2)), x=i8(1, 8, 8, 8)),
    ),
    ("mean_is_spatial", case(Mean((2, 3), True), x=i8(1, 8, 4, 4)), case(Mean((1, 2), True), x=i8(1, 8, 4, 4))),
    ("mean_is_spatial", case(Mean((2, 3)), x=i8(1, 8, 4, 4)), case(Mean((2,)), x=i8(1, 8, 4))),
    ("product_fills_lanes", case(Mul(), x=i8(4, 6), z=i8(4, 6), out=OUT), case(Mul(), x=i8(4, 5), z=i8(4, 5), out=OUT)),
    (
        "matrices_fill_lanes",
        case(BatchMatmul(), x=i8(3, 8, 16), z=i8(3, 16, 24), out=OUT),
        case(BatchMatmul(), x=i8(3, 8, 16), z=i8(3, 16, 12), out=OUT),
    ),
    (
        "prelu_is_an_image",
        case(Prelu(), x=i8(1, 64, 64, 8), slope=c8(8), out=OUT),
        case(Prelu(), x=i8(1, 64, 65, 8), slope=c8(8), out=OUT),
    ),
    (
        "prelu_is_an_image",
        case(Prelu(), x=i8(1, 4, 4, 8), slope=c8(8), out=OUT),
        case(Prelu(), x=i8(1, 4, 4, 9), slope=c8(9), out=OUT),
    ),
    (
        "prelu_is_an_image",
        case(Prelu(), x=i8(1, 4, 4, 8), slope=c8(1), out=OUT),
        case(Prelu(), x=i8(4, 4, 8), slope=c8(1), out=OUT),
    ),
    (
        "resize_fills_lanes",
        case(ResizeNearest((8, 6)), x=i8(1, 4, 3, 8)),
        case(ResizeNearest((8, 6)), x=i8(1, 4, 3, 12)),
    ),
    (
        "resize_doubles",
        case(ResizeBilinear((16, 12)), x=i8(1, 4, 3, 8)),
        case(ResizeBilinear((32, 24)), x=i8(1, 4, 3, 8)),
    ),
    ("resize_doubles", case(ResizeNearest((8, 6)), x=i8(1, 4, 3, 8)), case(ResizeNearest((8, 12)), x=i8(1, 4, 3, 8))),
    ("softmax_fills_lanes", case(Softmax(), x=i8(1, 16)), case(Softmax(), x=i8(1, 10))),
    ("softmax_has_rows", case(Softmax(), x=i8(1, 8)), case(Softmax(), x=i8(8))),
    (
        "transposition_is_listed",
        case(Transpose((0, 2, 3, 1)), x=i8(1, 8, 3, 5)),
        case(Transpose((0, 1, 3, 2)), x=i8(1, 8, 3, 5)),
    ),
    ("transposition_is_listed", case(Transpose((1, 0, 2)), x=i8(1, 8, 3)), case(Transpose((1, 0, 2)), x=i8(2, 8, 3))),
    ("transposition_is_listed", case(Transpose((0, 2, 1)), x=i8(2, 8, 3)), case(Transpose((1, 0)), x=i8(2, 8))),
]


def reasons(row: Case, flavor: str) -> list[str]:
    """Names of the rules that a row breaks."""
    (node,) = row.graph().nodes
    return [r.rule for r in check_node(node, NeutronTargetSpec("imxrt700", flavor))]


@pytest.mark.parametrize(("rule", "kept", "broken"), LIMITS)
def test_both_sides_of_a_limit(rule, kept, broken):
    for flavor in PUBLISHED_FLAVORS:
        assert reasons(kept, flavor) == []
        assert reasons(broken, flavor) == [rule]
    assert reasons(kept, LATEST) == []
    assert reasons(broken, LATEST) == []


def test_clamps():
    """The four listed pairs of bounds are operators of their own; any other is a minimum and a maximum."""
    for kind in (Activation.RELU, Activation.RELU6, Activation.RELU_N1_TO_1, Activation.RELU_0_TO_1):
        row = case(Relu(kind), x=i8(1, 8), out=OUT)
        assert all(reasons(row, flavor) == [] for flavor in FLAVORS)
    other = case(Clamp(-0.5, 2.0), x=i8(1, 8))
    assert reasons(other, LATEST) == []
    for flavor in PUBLISHED_FLAVORS:
        (reason,) = check_node(other.graph().nodes[0], NeutronTargetSpec("imxrt700", flavor))
        assert reason.rule == "clamp_bounds_are_listed"
        assert "(-0.5, 2.0)" in str(reason) and "(0, 6)" in reason.sentence


@pytest.mark.parametrize(
    "row",
    [
        case(Sub(), x=i8(1, 8), z=i8(1, 8), out=OUT),
        case(Maximum(), x=i8(1, 8), z=i8(1, 8)),
        case(HardSwish(), x=i8(1, 8), out=OUT),
    ],
)
def test_operators_that_came_later(row):
    assert reasons(row, LATEST) == []
    for flavor in PUBLISHED_FLAVORS:
        (reason,) = check_node(row.graph().nodes[0], NeutronTargetSpec("imxrt700", flavor))
        assert reason.rule == SUPPORTED_RULE and flavor in reason.detail and "latest" in reason.hint


def test_operators_that_were_always_there():
    rows = [case(LeakyRelu(0.1), x=i8(3, 5), out=OUT), case(Reshape((15,)), x=i8(3, 5))]
    assert all(reasons(row, flavor) == [] for row in rows for flavor in FLAVORS)


def test_the_operators_of_the_published_table_exist():
    """Its operators that are no single operator here: clamp (four kinds of relu), clone, div (mul), split (slice)."""
    later = {"amax", "amin", "exp", "hard_swish", "log", "maximum", "minimum", "reflect_pad", "rsqrt", "sub", "sum",
             "transpose_conv2d"}  # fmt: skip
    assert set(OPERATORS) >= PUBLISHED, PUBLISHED - set(OPERATORS)
    assert not PUBLISHED & later
    assert PUBLISHED <= SUPPORTED, PUBLISHED - SUPPORTED
    for flavor in PUBLISHED_FLAVORS:
        assert {o for o in OPERATORS if is_supported(o, flavor)} == PUBLISHED
    assert {o for o in OPERATORS if is_supported(o, LATEST)} == SUPPORTED
    assert not is_supported("no_such_operator", LATEST)


def test_every_published_rule_is_in_this_table():
    published = {r.name for r in RULES if r.flavors == PUBLISHED_FLAVORS}
    assert published == {rule for rule, _, _ in LIMITS} | {"clamp_bounds_are_listed"}


def test_a_newer_converter_never_takes_less():
    """Whatever row of the operator tests a published flavor takes, the newest takes."""
    for row in all_cases():
        for flavor in PUBLISHED_FLAVORS[:1]:
            if not reasons(row, flavor):
                assert not reasons(row, LATEST), str(row)
