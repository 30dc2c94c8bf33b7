"""Cycles of a Cortex-M core: what must hold of an estimate whatever its rates are."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.cases import case, i8, q, w8

from micronpu.chips.core import find_core
from micronpu.ir.graph import Node
from micronpu.ops.convolution import Conv2d
from micronpu.ops.elementwise import Mul
from micronpu.ops.movement import Reshape
from micronpu.ops.softmax import Softmax
from micronpu.targets.cortexm.costs import (
    BANDS,
    INT8_CYCLES_PER_CALL,
    RATES,
    core_costs,
    core_cycles,
    core_latency,
    host_cycles,
    leftover_cycles,
)

M0, M33, M55 = (find_core(f"cortex-{name}") for name in ("m0", "m33", "m55"))


def convolution(channels: int) -> Node:
    (node,) = case(Conv2d(), x=i8(1, 8, 8, 16), weight=w8(channels, 3, 3, 16), out=q(0.1)).graph().nodes
    return node


def test_more_work_takes_longer_and_a_better_core_less_long() -> None:
    assert core_cycles(convolution(8), M33) < core_cycles(convolution(16), M33)
    assert core_cycles(convolution(8), M55) < core_cycles(convolution(8), M33) < core_cycles(convolution(8), M0)


def test_int8_is_cheaper_than_float_with_its_conversions() -> None:
    (softmax,) = case(Softmax(), x=i8(1, 10)).graph().nodes
    for node in (convolution(8), softmax):
        assert core_cycles(node, M33) < leftover_cycles(node, M33) < host_cycles(node)


def test_a_reshape_is_free() -> None:
    (node,) = case(Reshape((2, 5)), x=i8(1, 10)).graph().nodes
    assert core_cycles(node, M33) == 0


def test_numbers_without_axes_have_a_price() -> None:
    (node,) = case(Mul(), x=i8(), z=i8(), out=q(0.1)).graph().nodes
    assert INT8_CYCLES_PER_CALL < core_cycles(node, M55) < INT8_CYCLES_PER_CALL + 50


def test_the_time_is_the_sum_of_the_kernels_at_the_clock_of_the_chip() -> None:
    graphs = [case(Conv2d(), x=i8(1, 8, 8, 16), weight=w8(c, 3, 3, 16), out=q(0.1)).graph() for c in (8, 16)]
    assert core_latency(graphs, M33) == ()
    core = replace(M33, clock_mhz=150.0)
    (time,) = core_latency(graphs, core)
    costs = [cost for graph in graphs for cost in core_costs(graph, core).values()]
    assert time.cycles == sum(cost.cycles for cost in costs)
    assert time.milliseconds * 1000 == pytest.approx(sum(cost.microseconds for cost in costs))
    assert all(cost.bound_by == "arithmetic" for cost in costs)


@pytest.mark.parametrize("core", ["cortex-m33", "cortex-m55"])
def test_the_rates_are_those_of_the_fit(core) -> None:
    """Of all four networks; the numbers come from `python -m benchmarks.cortexm_latency`."""
    fit = json.loads((Path(__file__).parents[4] / "benchmarks/results/cortexm_latency.json").read_text())["figures"]
    rates = RATES[find_core(core).instructions]
    fitted = (fit["product"][core], fit["product"][core] * fit["single"], fit["result"])
    assert (rates.product, rates.single, rates.result) == pytest.approx(fitted, rel=0.005)
    assert max(abs(a["leave_one_out"]) for a in fit["anchors"] if "leave_one_out" in a) <= 0.3
    low, high = fit["bands"][find_core(core).instructions.value]
    assert BANDS[find_core(core).instructions] == pytest.approx((low, high), rel=0.02)
