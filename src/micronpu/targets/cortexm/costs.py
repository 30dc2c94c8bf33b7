"""Cycles of an operator that stays on the core: in float between a dequantize and a quantize, or in int8."""

from __future__ import annotations

from collections.abc import Iterable

from micronpu.chips.core import Core, InstructionSet
from micronpu.ir.graph import Node
from micronpu.ops.movement import Reshape
from micronpu.ops.softmax import Softmax

# Assumptions, not measurements: NXP's published CPU latencies of the MLPerf Tiny networks give a Cortex-M33 0.26 to
# 0.31 MAC per cycle in int8, of which portable float kernels are taken to reach two thirds.  The cost of an element
# between its dequantize and its quantize, and of a kernel call, are round numbers of the same order.
CYCLES_PER_MAC = 5
CYCLES_PER_ELEMENT = 40
CYCLES_PER_CALL = 20_000
CALLS = 4  # dequantize, the operator, quantize, and a second delegate call behind it


def host_cycles(node: Node) -> int:
    """Estimated cycles of the core, the way to it and back included."""
    y = node.output.type
    elements = y.size + sum(t.type.size for t in node.inputs if not t.is_constant)
    macs = node.op.macs(y, *node.input_types)
    return CALLS * CYCLES_PER_CALL + elements * CYCLES_PER_ELEMENT + macs * CYCLES_PER_MAC


# The same latencies, in int8 with DSP instructions.  The other two are assumed: a core without them computes one
# product at a time, and one with MVE four times as many as with DSP.
INT8_CYCLES_PER_MAC = {InstructionSet.SCALAR: 7.0, InstructionSet.DSP: 3.5, InstructionSet.MVE: 0.9}
# What is no product reads, requantizes and writes an element at a time; an exponential in fixed point takes longer.
INT8_CYCLES_PER_ELEMENT = {InstructionSet.SCALAR: 20, InstructionSet.DSP: 10, InstructionSet.MVE: 3}
SOFTMAX_CYCLES_PER_ELEMENT = 150
INT8_CYCLES_PER_CALL = 2_000  # of a kernel that needs no delegate and no float


def core_cycles(node: Node, core: Core) -> int:
    """Estimated cycles of a core that computes an operator in int8; a reshape is free."""
    if isinstance(node.op, Reshape):
        return 0
    y = node.output.type
    elements = y.size + sum(t.type.size for t in node.inputs if not t.is_constant)
    each = SOFTMAX_CYCLES_PER_ELEMENT if isinstance(node.op, Softmax) else INT8_CYCLES_PER_ELEMENT[core.instructions]
    macs = node.op.macs(y, *node.input_types)
    return INT8_CYCLES_PER_CALL + elements * each + round(macs * INT8_CYCLES_PER_MAC[core.instructions])


def leftover_cycles(node: Node, core: Core) -> int:
    """Estimated cycles of an operator that a core computes in int8, and of the call of the NPU behind it."""
    return CYCLES_PER_CALL + core_cycles(node, core)


def core_note(nodes: Iterable[Node], core: Core) -> str:
    """What the report says about the time of the core's part."""
    cycles = sum(core_cycles(node, core) for node in nodes)
    return f"{core.title} computes its part in about {cycles:,} cycles: an estimate, not a measurement."
