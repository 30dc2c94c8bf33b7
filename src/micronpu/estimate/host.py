"""Cycles of an operator that stays on the core, in float between a dequantize and a quantize."""

from __future__ import annotations

from micronpu.ir.graph import Node

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
