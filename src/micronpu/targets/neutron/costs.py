"""Cycles of a graph on a Neutron, and the partitioning policy, which compares them with those of the core.

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
from dataclasses import replace
from typing import Any

from micronpu.chips.core import Core
from micronpu.container.payload import MOST_TENSORS
from micronpu.frontend.program import written_names
from micronpu.ir.graph import Graph, Node
from micronpu.ir.window import Activation
from micronpu.ops.convolution import Conv2d, DepthwiseConv2d
from micronpu.ops.elementwise import Add
from micronpu.ops.matmul import FullyConnected
from micronpu.ops.movement import Reshape
from micronpu.partition.device import CompiledPartition
from micronpu.partition.partition import Decide, Policy, reason_at
from micronpu.passes import Pipeline, run_passes
from micronpu.passes.rewrite import Choice, choose
from micronpu.report.operations import Cost, Latency
from micronpu.report.verdict import Reason
from micronpu.targets.cortexm.costs import host_cycles, leftover_cycles
from micronpu.targets.neutron.options import CustomDelegationOptions, NeutronOptions
from micronpu.targets.neutron.rewrites import REWRITES
from micronpu.targets.neutron.rules import check_node
from micronpu.targets.neutron.target_spec import NeutronNpu
from micronpu.targets.options import Checks, refusal

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


_FLASH_BYTES_PER_CYCLE = 1  # an assumption: order of magnitude of an octal flash beside a core of 200 to 300 MHz


def neutron_policy(
    options: NeutronOptions,
    name: str = "",
    delegation: CustomDelegationOptions | None = None,
    core: Core | None = None,
    checks: Checks = (),
) -> Policy:
    """Return the partitioning policy of a Neutron; the report states its assumptions.

    Args:
        name: of the target in the report; default: derived from the chip.
        delegation: delegation policy; default: defensive.
        core: computes unsupported operators in int8; None: the core computes them in float.
        checks: user-defined; operators that one of them refuses are not delegated.
    """

    def exclude(node: Any) -> Reason | None:
        operator = options.excluded(written_names(node))
        if operator is None:
            return refusal(node, checks)
        detail = f"aten.{operator} is in operators_not_to_delegate"
        return reason_at(node, "is_wanted", "The user wants the operator on the NPU.", detail)

    def finish(graph: Graph, pipeline: Pipeline) -> Graph:
        return run_passes(graph, disabled=options.disabled_graph_passes, pipeline=pipeline)

    return Policy(
        name=name or f"{options.target_spec.chip.name}-neutron",
        decide=decide_for(options, core),
        exclude=exclude,
        finish=finish,
        # Without int8 kernels on the core, each move is a float operator between quantizes.
        allow_moves=core is None,
        allow_no_op_partitions=(delegation or CustomDelegationOptions()).allow_no_op_partitions,
        notes=options.target_spec.notes,
        most_tensors=MOST_TENSORS,
    )


def decide_for(options: NeutronOptions, core: Core | None = None) -> Decide:
    """Decide for the node itself if it satisfies every rule; else for the cheapest rewrites, if they cost less than the
    core."""
    target = options.target_spec
    # If a clock is unknown, cycles of both count the same.
    clocks = (target.npu.clock_mhz, target.core_clock_mhz)
    ratio = clocks[0] / clocks[1] if clocks[0] and clocks[1] else 1.0

    def decide(node: Node) -> Choice | list[Reason]:
        reasons = check_node(node, target)
        if not reasons:
            return Choice((node,))
        found = cheapest(node, options)
        if found is None:
            return reasons
        cycles = ratio * (host_cycles(node) if core is None else leftover_cycles(node, core))
        if found.cost < cycles:
            return found
        dearer = f"{', '.join(found.rewrites)} would take {found.cost:,.0f} cycles of the NPU, the core {cycles:,.0f}"
        return [replace(reason, detail=f"{reason.detail}; {dearer}") for reason in reasons]

    return decide


def cheapest(node: Node, options: NeutronOptions) -> Choice | None:
    """Return the cheapest nodes that satisfy every rule, including cycles to load added constants from flash."""
    target = options.target_spec

    def estimate(nodes: Sequence[Node], instead: Node) -> float:
        known = {id(t.data) for t in instead.inputs}
        return sum(operation_cycles(n, target.npu) + _added(n, known) for n in nodes)

    return choose(
        node, lambda n: not check_node(n, target), estimate, REWRITES, disabled=options.disabled_node_rewrites
    )


def _added(node: Node, known: set[int]) -> int:
    """Cycles to load added constants from flash."""
    added = sum(t.type.bytes for t in node.inputs if t.is_constant and id(t.data) not in known)
    return added // _FLASH_BYTES_PER_CYCLE
