"""Rewrites that more than one family lists, at the bounds that a family gives them."""

from __future__ import annotations

import pytest
from tests.unit.passes.pass_graphs import Net

from micronpu.ops.tiling import ReflectPad
from micronpu.passes.rewrite import ReflectBySlices


@pytest.mark.parametrize(("most", "offered"), [(3, True), (2, False)])
def test_a_border_of_as_many_rows_as_may_be(most: int, offered: bool) -> None:
    net = Net()
    net.finish(net.builder.emit(ReflectPad((0, 2, 0, 0), (0, 1, 0, 0)), net.input(1, 4, 3, 2)))
    (node,) = net.builder.graph.nodes
    assert (ReflectBySlices(most).apply(node) is not None) == offered
