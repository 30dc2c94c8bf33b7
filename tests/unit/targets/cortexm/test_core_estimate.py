"""Cycles of a Cortex-M core: what must hold of an estimate whatever its rates are."""

from __future__ import annotations

from tests.cases import case, i8, q, w8

from micronpu.chips.core import find_core
from micronpu.ir.graph import Node
from micronpu.ops.convolution import Conv2d
from micronpu.ops.movement import Reshape
from micronpu.ops.softmax import Softmax
from micronpu.targets.cortexm.costs import core_cycles, core_note, host_cycles, leftover_cycles

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


def test_the_note_adds_up() -> None:
    nodes = [convolution(8), convolution(16)]
    total = sum(core_cycles(node, M33) for node in nodes)
    assert core_note(nodes, M33).startswith(f"Cortex-M33 (CMSIS-NN) computes its part in about {total:,} cycles")
