"""Both sides of every limit of a Cortex-M core."""

from __future__ import annotations

import pytest
from tests.cases import Case, case, i8, i16, q, w8

from micronpu.ir.window import Padding2d
from micronpu.ops.convolution import Conv2d
from micronpu.ops.movement import Reshape
from micronpu.ops.resize import ResizeBilinear
from micronpu.ops.softmax import Softmax
from micronpu.targets.cortexm.rules import RULES, check_node

ROWS = [
    ("core_activations_are_int8", case(Reshape((8,)), x=i8(2, 4)), case(Reshape((8,)), x=i16(2, 4))),
    (
        "core_has_kernel",
        case(Conv2d(), x=i8(1, 3, 3, 8), weight=w8(4, 3, 3, 8), out=q(0.1)),
        case(ResizeBilinear((7, 5), half_pixel_centers=True), x=i8(1, 3, 3, 8)),
    ),
    ("core_softmax_sum_fits", case(Softmax(), x=i8(2, 511)), case(Softmax(), x=i8(2, 512))),
]


def broken(row: Case, *disabled: str) -> list[str]:
    (node,) = row.graph().nodes
    return [reason.rule for reason in check_node(node, disabled)]


@pytest.mark.parametrize(("rule", "inside", "outside"), ROWS)
def test_both_sides_of_a_limit(rule: str, inside: Case, outside: Case) -> None:
    assert broken(inside) == []
    assert broken(outside) == [rule]


def test_every_limit_has_rows() -> None:
    assert [row[0] for row in ROWS] == [rule.name for rule in RULES]


def test_an_operator_that_a_rewrite_fits_is_refused_without_it() -> None:
    row = case(Conv2d(padding=Padding2d(0, 1, 0, 1)), x=i8(1, 3, 3, 8), weight=w8(4, 3, 3, 8), out=q(0.1))
    assert broken(row) == []
    assert broken(row, "pad_before_window") == ["core_has_kernel"]
