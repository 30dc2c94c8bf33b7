"""Every row of the operator tests on a Cortex-M core: rules, legal forms, emitted calls, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.cases import Case, all_cases
from tests.compile.cortexm_programs import run_emitted

from micronpu.chips.core import find_core
from micronpu.ir import DType, interpret
from micronpu.ops.elementwise import Sub
from micronpu.ops.linear import FullyConnected
from micronpu.ops.reduction import Mean
from micronpu.targets.cortexm.emit import emit
from micronpu.targets.cortexm.legalize import legalize
from micronpu.targets.cortexm.rules import check_node
from micronpu.targets.cortexm.table import is_table

ROWS = all_cases()
NO_KERNEL = {"argmax", "prelu", "reflect_pad", "resize_bilinear", "resize_bilinear_products"}
ROUNDS_OTHERWISE = (FullyConnected, Mean, Sub)


def steps_apart(expected: Any, got: Any) -> int:
    return int(np.abs(expected.astype(np.int64) - got).max(initial=0))


@pytest.mark.parametrize("core", ["cortex-m33", "cortex-m55"])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_row(row: Case, core: str) -> None:
    graph = row.graph()
    (node,) = graph.nodes
    reasons = check_node(node)
    if reasons:
        wide = node.inputs[0].type.dtype is not DType.INT8 or node.output.type.dtype is not DType.INT8
        large = row.op.name == "softmax" and node.output.type.channels >= 512
        assert wide or large or row.op.name in NO_KERNEL, reasons
        return
    assert row.op.name not in NO_KERNEL or is_table(node)
    table = is_table(node)
    expected = [interpret(graph, x) for x in row.samples]
    legal = legalize(graph.clone())
    module = emit(legal, find_core(core))
    assert not any("float" in str(n.target) for n in module.graph.nodes)
    for sample, before in zip(row.samples, expected, strict=True):
        defined = interpret(legal, sample)
        got = run_emitted(module, sample)
        assert [g.shape for g in got] == [d.shape for d in defined]
        assert [steps_apart(d, g) for d, g in zip(defined, got, strict=True)] == [0] * len(got)
        bound = 1 if isinstance(row.op, ROUNDS_OTHERWISE) and not table else 0
        assert max(steps_apart(b, d) for b, d in zip(before, defined, strict=True)) <= bound
