"""Every row of the operator tests on a Cortex-M core: rules, legal forms, emitted calls, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from tests.cases import Case, all_cases
from tests.compile.cortexm_programs import run_emitted
from torch import fx

from micronpu.chips.core import find_core
from micronpu.ir import DType, Graph, interpret
from micronpu.ir.graph import Node
from micronpu.ops.activation import Prelu
from micronpu.ops.elementwise import Sub
from micronpu.ops.matmul import FullyConnected
from micronpu.ops.reduction import Mean
from micronpu.ops.resize import ResizeBilinear
from micronpu.targets.cortexm.emit import emit, is_table
from micronpu.targets.cortexm.rules import check_node, legalize

ROWS = all_cases()
ROUNDS_OTHERWISE = (FullyConnected, Mean, Prelu, ResizeBilinear, Sub)
CORES = ("cortex-m33", "cortex-m55")


def steps_apart(expected: Any, got: Any) -> int:
    return int(np.abs(expected.astype(np.int64) - got).max(initial=0))


def programs(legal: Graph) -> Iterator[fx.GraphModule]:
    """What cores without and with Helium are given; once where both are given the same."""
    first, second = (emit(legal.clone(), find_core(core)) for core in CORES)
    yield first
    same = all(torch.equal(a, b) for a, b in zip(first.buffers(), second.buffers(), strict=False))
    if str(first.graph) != str(second.graph) or not same:
        yield second


def has_no_kernel(node: Node) -> bool:
    """Whether nothing computes an operator of int8; resizes by other factors are products before they are quantized."""
    op = node.op
    if isinstance(op, ResizeBilinear):
        sizes = zip(node.inputs[0].shape[1:3], op.size, strict=True)
        factors = {after / before for before, after in sizes}
        return not op.half_pixel_centers or len(factors) > 1 or not factors <= {1, 2, 4, 8}
    if isinstance(op, Prelu):
        return node.inputs[1].type.zero_point != 0 and not is_table(node)
    return op.name == "scatter_rows"


@pytest.mark.sweep
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_row(row: Case) -> None:
    graph = row.graph()
    (node,) = graph.nodes
    reasons = check_node(node)
    if reasons:
        wide = node.inputs[0].type.dtype is not DType.INT8 or node.output.type.dtype is not DType.INT8
        large = row.op.name == "softmax" and node.output.type.channels >= 512
        assert wide or large or has_no_kernel(node), reasons
        return
    assert not has_no_kernel(node)
    bound = 1 if isinstance(row.op, ROUNDS_OTHERWISE) and not is_table(node) else 0
    legal = legalize(graph.clone())
    samples = [(sample, interpret(legal, sample)) for sample in row.samples]
    for sample, defined in samples:
        assert max(steps_apart(b, d) for b, d in zip(interpret(graph, sample), defined, strict=True)) <= bound
    for module in programs(legal):
        assert not any("float" in str(n.target) for n in module.graph.nodes)
        for sample, defined in samples:
            got = run_emitted(module, sample)
            assert [g.shape for g in got] == [d.shape for d in defined]
            assert [steps_apart(d, g) for d, g in zip(defined, got, strict=True)] == [0] * len(got)
