"""The core part of a program: the operators around the NPU's compiled parts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias
from weakref import WeakKeyDictionary

import torch
from torch import nn

from micronpu.base.quiet import quiet
from micronpu.base.texts import plural
from micronpu.chips import Chip, with_clock
from micronpu.chips.core import CORES, InstructionSet
from micronpu.compiler import thresholds as at
from micronpu.compiler.clock import Clock
from micronpu.compiler.etrecord import number_nodes
from micronpu.frontend.graphs import GraphModule, by_name, operand
from micronpu.frontend.integers import IntegerIO, separate_clamps
from micronpu.frontend.program import ProgramView, value_of
from micronpu.frontend.units import macs_of
from micronpu.ir.graph import Graph
from micronpu.partition.device import CompiledPartition, Device, NamedData
from micronpu.partition.notes import coarse_notes, pattern_notes
from micronpu.partition.outline import DelegateCall, boundary, compute_contiguously, outline, pass_on_integers, scan
from micronpu.partition.partition import Partitioning
from micronpu.program.io import packed
from micronpu.quantize.loops import loops_of
from micronpu.report.delegation import DelegationReport
from micronpu.report.operations import Latency, Operation, together

ENERGY = "not published for this chip"


@dataclass(frozen=True)
class HostPart:
    """A quantized program in which the NPU's parts are calls of finished payloads, before lowering."""

    # Calls ``delegate_0`` and so on for the NPU, each a `DelegateCall`, and ``core_0`` and so on for the core's int8
    # parts.
    module: GraphModule
    report: DelegationReport  # the delegation report
    partitions: tuple[CompiledPartition, ...]  # compiled partitions, in the order of the calls
    # For each partition, the nodes of the quantized module whose integers it reads.
    reads: tuple[tuple[str, ...], ...] = ()
    core_graphs: tuple[Graph, ...] = ()  # graphs of the core's int8 parts, in the order of the calls


Compiled: TypeAlias = WeakKeyDictionary[GraphModule, tuple[GraphModule, HostPart]]
"""Copies of quantized modules that a search has compiled, with their core parts."""
_Loops: TypeAlias = list[tuple[HostPart, int]]
"""The compiled steps of a program's loops, and the number of calls of each."""


def with_parts(host: HostPart, changed: Callable[[CompiledPartition], CompiledPartition]) -> HostPart:
    """Return the core part with other compiled partitions, which its calls get too."""
    for call in host.module.modules():
        if isinstance(call, DelegateCall):
            call.part = changed(call.part)
    return replace(host, partitions=tuple(map(changed, host.partitions)))


def host_part(
    quantized: GraphModule,
    device: Device,
    clock: Clock | None = None,
    integer_io: IntegerIO | None = None,
    method: str = "",
    first_handle: int = 1,
) -> HostPart:
    """Partition a quantized module and compile the partitions.

    Args:
        integer_io: meaning of integer inputs and outputs, which is stored with the first partition.
        method: name of the module in a program with several methods.
        first_handle: debug handle of its first operator; its loops continue the numbers.
    """
    clock = clock or Clock(None)
    separate_clamps(quantized, device.excludes)
    number_nodes(quantized, first_handle)
    view = ProgramView(quantized)
    with clock.step("partition"):
        decisions = device.decisions(view)
        partitioning = decisions.partitioning()
    with clock.step("compile") as progress, quiet():
        partitioning = device.settle(decisions, partitioning, progress)
        device.improve(partitioning, progress)
        compiled = [device.compile(partition) for partition in partitioning.partitions]
        if compiled and integer_io is not None:
            known = packed(method, (integer_io.inputs, integer_io.outputs))
            io = {key: NamedData(data) for key, data in known.items()}
            compiled[0] = replace(compiled[0], named_data={**compiled[0].named_data, **io})
        specs = device.specs()
        calls: list[tuple[str, nn.Module]] = [
            (f"delegate_{i}", DelegateCall(device.backend, part, specs, *boundary(partition, view)))
            for i, (part, partition) in enumerate(zip(compiled, partitioning.partitions, strict=True))
        ]
        graphs = tuple(partition.graph for partition in partitioning.core)
        core = device.beside if graphs else None
        if core is not None:
            calls += [(f"core_{i}", core.module(graph)) for i, graph in enumerate(graphs)]
        module = outline(quantized, (*partitioning.partitions, *partitioning.core), calls)
        pass_on_integers(module)
        compute_contiguously(module)
        loops = _scans(module, device, first_handle + len(quantized.graph.nodes))
        if core is not None:
            core.adapt(module)
    partitioning = replace(partitioning, report=_with_prices(partitioning.report, quantized, device))
    report = _report(device, partitioning, compiled, graphs, loops)
    reads = tuple(tuple(n.name for n in partition.inputs) for partition in partitioning.partitions)
    if loops:
        report = _with_loops(report, len(compiled), len(graphs), loops)
        compiled = [*compiled, *(part for step, _ in loops for part in step.partitions)]
        reads += tuple(("",) for step, _ in loops for _ in step.partitions)
        graphs += tuple(graph for step, _ in loops for graph in step.core_graphs)
    return HostPart(module, report, tuple(compiled), reads, graphs)


def _with_prices(report: DelegationReport, quantized: GraphModule, device: Device) -> DelegationReport:
    nodes, verdicts = by_name(quantized), list(report.verdicts)
    for index, verdict in enumerate(verdicts):
        node = nodes.get(verdict.node)
        if node is not None and not verdict.delegated and not verdict.core:
            macs = verdict.macs or macs_of(quantized, node)
            values = [value_of(n) for n in (node, *node.all_input_nodes)]
            elements = sum(v.numel() for v in values if isinstance(v, torch.Tensor))
            verdicts[index] = replace(verdict, macs=macs, cycles=float_cycles(macs, elements, device.chip))
    return replace(report, verdicts=tuple(verdicts))


def float_cycles(macs: int, elements: int, chip: Chip | None) -> int:
    """Estimated cycles of an operator in a portable float kernel that reads and writes so many elements."""
    core = CORES.get(chip.core) if chip is not None else None
    slower = at.SOFT_FLOAT if core is not None and core.instructions is InstructionSet.SCALAR else 1.0
    return round(at.FLOAT_CALL + slower * (elements * at.FLOAT_ELEMENT + macs * at.FLOAT_MAC))


def float_latency(cycles: int, chip: Chip | None) -> tuple[Latency, ...]:
    """Estimated time of operators in float; empty if there are none, or the clock is unknown."""
    clock_mhz = None if chip is None else chip.core_clock_mhz
    if not cycles or clock_mhz is None:
        return ()
    return (Latency("core in float", cycles, clock_mhz, *at.FLOAT_BAND, "assumed cycles of an element and of a MAC"),)


def _report(
    device: Device,
    partitioning: Partitioning,
    compiled: Sequence[CompiledPartition],
    graphs: Sequence[Graph],
    loops: _Loops,
) -> DelegationReport:
    """Return the verdicts with operations, costs, time and notes of compiled partitions and of the core's graphs."""
    beside = device.beside
    called = [*compiled, *(part for step, count in loops for part in step.partitions * count)]
    latency = device.latency(called)
    if beside is not None:
        on_core = [*graphs, *(graph for step, count in loops for graph in step.core_graphs * count)]
        latency = (*latency, *beside.latency(on_core))
    cycles = sum(v.cycles for v in partitioning.report.verdicts)
    cycles += sum(v.cycles * count for step, count in loops for v in step.report.verdicts)
    latency = (*latency, *float_latency(cycles, device.chip))
    core_costs = [beside.costs(graph) for graph in graphs] if beside is not None else []
    return replace(
        partitioning.report,
        notes=(
            *partitioning.report.notes,
            *device.notes(compiled),
            *coarse_notes([part.graph for part in compiled]),
            *pattern_notes(device, partitioning.partitions, compiled),
        ),
        details=device.details(compiled),
        warnings=device.cautions(),
        missing=_missing_figures(device, compiled, graphs, partitioning.report),
        latency=latency,
        bus=together(part.bus for part in called),
        resident=device.resident(called),
        core_operations=tuple(
            Operation.of(i, node, costs.get(index))
            for i, (graph, costs) in enumerate(zip(graphs, core_costs, strict=True))
            for index, node in enumerate(graph.nodes)
        ),
        operations=tuple(
            Operation.of(i, node, part.costs.get(index), index in part.sparse)
            for i, part in enumerate(compiled)
            for index, node in enumerate(part.graph.nodes)
        ),
    )


def _missing_figures(
    device: Device, parts: Sequence[CompiledPartition], graphs: Sequence[Graph], report: DelegationReport
) -> dict[str, str]:
    """Return figures that the report of a partitioning cannot give, with the reason, a clause each."""
    missing = {}
    if parts and (why := device.no_latency()):
        missing["time of the NPU"] = why
    if graphs and device.beside is not None and device.core is not None and device.core.clock_mhz is None:
        cycles = sum(cost.cycles for graph in graphs for cost in device.beside.costs(graph).values())
        why = "the chip's file has no clock_mhz in [core]"
        if device.chip is None:
            why = f"a core without a chip has no clock; as the target, take {with_clock(device.core.name)}"
        missing["time of the core"] = f"{cycles:,} cycles estimated, and {why}"
    if report.in_float and (device.chip is None or device.chip.core_clock_mhz is None):
        count = plural(len(report.in_float), "operator")
        missing["time of the host"] = f"{count} in portable float kernels on a core without a known clock"
    return missing | {"energy": ENERGY}


def _scans(module: GraphModule, device: Device, handle: int) -> _Loops:
    """Compile each loop's step, with debug handles from ``handle`` on, and write the loop as ExecuTorch's, in place."""
    found = []
    for node, loop in list(loops_of(module)):
        value = operand(node).meta["val"]
        made = host_part(loop.body, device, first_handle=handle)
        handle += len(loop.body.graph.nodes)
        scan(module, node, made.module, loop.body)
        found.append((made, int(value.shape[0])))
    return found


def _with_loops(report: DelegationReport, first: int, first_core: int, loops: _Loops) -> DelegationReport:
    """Return the report with the operators of the loops' steps.

    Args:
        first: number of the first partition of a step.
        first_core: number of its first part on the core.
    """
    verdicts, operations = list(report.verdicts), list(report.operations)
    on_core, layers, notes = list(report.core_operations), Counter[str](), dict.fromkeys(report.notes)
    for step, count in loops:
        for v in step.report.verdicts:
            number = None if v.partition is None else v.partition + first
            verdicts.append(replace(v, partition=number, macs=v.macs * count, cycles=v.cycles * count))
        operations += [replace(o, partition=o.partition + first) for o in step.report.operations]
        on_core += [replace(o, partition=o.partition + first_core) for o in step.report.core_operations]
        parts = [(step.report.partitions, "partition"), (len(step.core_graphs), "part on the core")]
        text = (
            f"A recurrent layer of {count:,} steps is one step of {step.report.macs:,} MACs in the tables, whose "
            f"{' and '.join(plural(n, what) for n, what in parts if n)} the runtime calls {count:,} times."
        )
        layers[text] += 1
        notes |= dict.fromkeys(step.report.notes)
        first, first_core = first + len(step.partitions), first_core + len(step.core_graphs)
    return replace(
        report,
        verdicts=tuple(verdicts),
        operations=tuple(operations),
        core_operations=tuple(on_core),
        notes=(*(f"{n} layers: {text}" if n > 1 else text for text, n in layers.items()), *notes),
    )
