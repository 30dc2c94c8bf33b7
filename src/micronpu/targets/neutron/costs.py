"""Cycles of a graph on a Neutron.

The dot-product array has M units (pipelines) that each multiply N channels per cycle, so a convolution walks
``OH x OW x KH x KW x ceil(C / N) x ceil(O / M)`` steps and a depthwise one uses a single lane of each unit.  Everything
else moves bytes, M per cycle.  Each operation costs a fixed start.

Source: the paper "eIQ Neutron" (arXiv 2509.14388) for the array; the start cost is fitted to the latencies that NXP
published for the MLPerf Tiny networks on MCX N947 (the four give 8.7 to 16.9 thousand cycles per kernel).  The terms
were never measured one by one, and what they leave out shows in the error: see `tests/unit/test_estimate.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from micronpu.chips import NeutronNpu
from micronpu.ir.graph import Graph, Node
from micronpu.ops.convolution import Conv2d, DepthwiseConv2d
from micronpu.ops.linear import FullyConnected
from micronpu.ops.movement import Reshape

START_CYCLES = 10_000
"""Cycles per operation for driver, descriptors and filling the pipeline; the middle of the fitted range."""


@dataclass(frozen=True)
class OperationEstimate:
    """One NPU operation.

    Attributes:
        name: result of the operation in the graph.
        cycles: estimated cycles, the start included.
        macs: multiply-accumulate operations.
        utilization: part of the array's multiplications that are useful, 0 to 1.
    """

    name: str
    cycles: int
    macs: int
    utilization: float


@dataclass(frozen=True)
class NeutronEstimate:
    """A whole graph.

    Attributes:
        operations: one per node of the graph.
        clock_mhz: clock that turns cycles into time.
        weight_bytes: constants that must reach the NPU.
    """

    operations: tuple[OperationEstimate, ...]
    clock_mhz: float
    weight_bytes: int

    @property
    def cycles(self) -> int:
        return sum(o.cycles for o in self.operations)

    @property
    def milliseconds(self) -> float:
        """Time in which the NPU computes; fetching weights from flash comes on top."""
        return self.cycles / self.clock_mhz / 1000


def array_cycles(node: Node, npu: NeutronNpu) -> int:
    """Cycles without the start of the operation."""
    y = node.output.type
    if isinstance(node.op, Reshape):
        return 0
    if isinstance(node.op, Conv2d):
        _, height, width, depth = node.inputs[1].shape
        blocks = math.ceil(depth / npu.macs) * math.ceil(y.channels / npu.pipelines)
        return y.size // y.channels * height * width * blocks
    if isinstance(node.op, DepthwiseConv2d):
        _, height, width, _ = node.inputs[1].shape
        return y.size // y.channels * height * width * math.ceil(y.channels / npu.pipelines)
    if isinstance(node.op, FullyConnected):
        outputs, inputs = node.inputs[1].shape
        return y.size // outputs * math.ceil(inputs / npu.macs) * math.ceil(outputs / npu.pipelines)
    moved = y.bytes + sum(t.type.bytes for t in node.inputs)
    macs = node.op.macs(y, *node.input_types)
    return math.ceil(max(moved, macs) / npu.pipelines)


def operation_cycles(node: Node, npu: NeutronNpu) -> int:
    """Cycles of one operation, its start included; a reshape is free."""
    return array_cycles(node, npu) + (0 if isinstance(node.op, Reshape) else START_CYCLES)


def estimate_neutron(graph: Graph, npu: NeutronNpu) -> NeutronEstimate:
    """Cycles of every operation of a graph."""
    operations = []
    for node in graph.nodes:
        busy = array_cycles(node, npu)
        macs = node.op.macs(node.output.type, *node.input_types)
        useful = macs / (busy * npu.macs * npu.pipelines) if busy else 0.0
        cycles = operation_cycles(node, npu)
        operations.append(OperationEstimate(node.output.name, cycles, macs, min(useful, 1.0)))
    return NeutronEstimate(tuple(operations), npu.clock_mhz, sum(t.type.bytes for t in graph.constants()))
