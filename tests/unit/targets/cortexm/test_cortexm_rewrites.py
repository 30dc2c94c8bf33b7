"""What CMSIS-NN has an argument for stays as it is."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from tests.cases import all_cases, case, i8

from micronpu.ir import DType
from micronpu.ops.convolution import TransposeConv2d
from micronpu.ops.reduction import Mean
from micronpu.ops.resize import ResizeBilinear
from micronpu.targets.cortexm.rewrites import BilinearByPhases, MeanAsColumn
from micronpu.targets.cortexm.rules import choose_kernels

WINDOWS = ("conv2d", "depthwise_conv2d", "max_pool2d", "avg_pool2d", "transpose_conv2d")


def test_only_windows_that_differ_from_side_to_side_are_rewritten() -> None:
    seen: Counter[tuple[str, bool]] = Counter()
    for row in all_cases():
        op: Any = row.op
        graph = row.graph()
        if op.name not in WINDOWS or {t.type.dtype for t in graph.inputs} != {DType.INT8}:
            continue
        sides = op.crop if isinstance(op, TransposeConv2d) else op.padding
        even = (sides.top, sides.left) == (sides.bottom, sides.right)
        stays = even and not (getattr(op, "count_padding", False) and sides)
        choice = choose_kernels(graph.nodes[-1])
        assert choice is not None and bool(choice.rewrites) != stays, row.name
        seen[op.name, stays] += 1
    assert set(seen) == {(name, stays) for name in WINDOWS for stays in (True, False)}


def test_a_mean_of_one_number_is_the_number() -> None:
    (node,) = case(Mean(()), x=i8()).graph().nodes
    made = MeanAsColumn().apply(node)
    assert made is not None and [n.op.name for n in made] == ["reshape"]


@pytest.mark.parametrize(("factor", "layers", "joined"), [(1, 0, 0), (2, 4, 9), (4, 16, 15), (8, 16, 6)])
def test_a_bilinear_resize_is_no_more_than_the_layers_it_takes(factor: int, layers: int, joined: int) -> None:
    """By up to 4 one for each place in an element, by 8 along one axis after the other, and none for the same size."""
    op = ResizeBilinear((4 * factor, 3 * factor), half_pixel_centers=True)
    (node,) = case(op, x=i8(1, 4, 3, 2)).graph().nodes
    made = Counter(n.op.name for n in BilinearByPhases().apply(node) or ())
    assert (made["depthwise_conv2d"], made["concat"]) == (layers, joined)
