"""Cycles of a graph on a Neutron.

The dot-product array has M units (pipelines) that each multiply N channels per cycle, so a convolution takes ``OH x OW
x KH x KW x ceil(C / N) x ceil(O / M)`` cycles and a depthwise one uses a single lane of each unit. Other operators move
bytes, M per cycle. Each operation has a fixed start cost, and if the NPU cannot read the flash, weights are copied
first, while the NPU waits.

Sources: the paper "eIQ Neutron" (arXiv 2509.14388) for the array. Two constants are fitted to the published latencies:
`START_CYCLES`, and the bandwidth of the copy, which is in the chip's file. `benchmarks/neutron_latency.py` makes the
fit and compares each latency with its prediction.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from micronpu.ir.graph import Graph, Node
from micronpu.ir.window import Activation
from micronpu.ops.convolution import Conv2d, DepthwiseConv2d
from micronpu.ops.elementwise import Add
from micronpu.ops.linear import FullyConnected
from micronpu.ops.movement import Reshape
from micronpu.partition.device import CompiledPartition
from micronpu.report.operations import Cost, Latency
from micronpu.targets.neutron.target_spec import NeutronNpu

START_CYCLES = 10_400
"""Cycles per operation for driver, descriptors and filling the pipeline; fitted."""
BAND = (0.8, 1.25)
"""Largest errors of predictions, as factors of the time, in leave-one-out fits of the published latencies."""


def work_cycles(node: Node, npu: NeutronNpu) -> int:
    """Cycles of the array, or of moving bytes, without the start of the operation and the copy of weights."""
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


def kernels(node: Node) -> int:
    """Number of kernels of the NPU's library for an operation: a clamp after an addition is a separate kernel.

    Source: the kernel lists in ExecuTorch's public profiling tests for this NPU (`Add`, then `GlobalBiasScale`).
    """
    if isinstance(node.op, Reshape):
        return 0
    return 2 if isinstance(node.op, Add) and node.op.activation is not Activation.NONE else 1


def operation_cycles(node: Node, npu: NeutronNpu) -> int:
    """Cycles of one operation, including its start; a reshape is free."""
    return work_cycles(node, npu) + kernels(node) * START_CYCLES


def weight_copy_cycles(count: int, npu: NeutronNpu) -> float:
    """Cycles to copy weights to memory that the NPU can read.

    0 if it reads the flash in place, or if clock or bandwidth are unknown.
    """
    return count * npu.clock_mhz * 1e6 / npu.weight_bandwidth if npu.weight_bandwidth and npu.clock_mhz else 0.0


def costs_of(graph: Graph, npu: NeutronNpu) -> Mapping[int, Cost]:
    """Cost of every operation, by index of the graph's node."""
    costs = {}
    for index, node in enumerate(graph.nodes):
        work = work_cycles(node, npu)
        copy = round(weight_copy_cycles(sum(t.type.bytes for t in node.inputs if t.is_constant), npu))
        cycles = operation_cycles(node, npu) + copy
        macs = node.op.macs(node.output.type, *node.input_types)
        costs[index] = Cost(
            cycles=cycles,
            arithmetic_cycles=work,
            memory_cycles={"flash": copy} if copy else {},
            memory_bytes=sum(t.type.bytes for t in (*node.inputs, *node.outputs) if not t.is_constant),
            utilisation=min(macs / (cycles * npu.macs * npu.pipelines), 1.0) if cycles else 0.0,
            start_cycles=kernels(node) * START_CYCLES,
            clock_mhz=npu.clock_mhz if npu.fitted else None,
        )
    return costs


def no_latency(npu: NeutronNpu) -> str:
    """Reason why there is no time estimate, as a clause; "" if there is one."""
    if npu.clock_mhz is None:
        return "the chip's file has no clock_mhz in [npu]"
    return "" if npu.fitted else f"nothing is published of a Neutron {npu.variant} that a model could be fitted to"


def npu_latency(parts: Sequence[CompiledPartition], npu: NeutronNpu) -> tuple[Latency, ...]:
    """Estimated time of the NPU; empty if `no_latency` returns a reason."""
    if no_latency(npu) or npu.clock_mhz is None or not parts:
        return ()
    cycles = sum(cost.cycles for part in parts for cost in part.costs.values())
    source = "geometry, with two constants fitted to published latencies of eight networks"
    return (Latency("NPU", cycles, npu.clock_mhz, *BAND, source),)
