"""Costs per operation of the graph for the common report, and their error bands relative to silicon.

Cycles are those of `estimated`. The cost of an NPU invocation is added: the driver, the interrupt and cache
maintenance. Both have error bands, from the chip's file if there are published times; see
`benchmarks/ethosu_latency.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from micronpu.report.operations import BusTraffic, Cost, Latency, together
from micronpu.report.texts import plural
from micronpu.targets.ethosu.accelerators import Accelerator
from micronpu.targets.ethosu.estimated import Estimated
from micronpu.targets.ethosu.timing import Timing
from micronpu.targets.ethosu.vela.compiler import LayerEstimate

CALLS = "Calls of the NPU"
"""A separate processor in reports."""


def costs_of(estimate: Estimated, nodes: Sequence[int], accelerator: Accelerator, clock_mhz: float) -> dict[int, Cost]:
    """Cost by index of the graph's node; nodes that Vela fused into others have none.

    Args:
        nodes: the node of every operator of Vela's input.
    """
    layers: dict[int, list[tuple[LayerEstimate, Mapping[str, BusTraffic]]]] = {}
    for layer, moved in zip(estimate.layers, estimate.traffic, strict=True):
        if 0 <= layer.source < len(nodes):
            layers.setdefault(nodes[layer.source], []).append((layer, moved))
    return {
        node: _cost([layer for layer, _ in found], [moved for _, moved in found], accelerator, clock_mhz)
        for node, found in layers.items()
        if any(layer.cycles for layer, _ in found)
    }


def _cost(
    layers: Sequence[LayerEstimate],
    traffic: Sequence[Mapping[str, BusTraffic]],
    accelerator: Accelerator,
    clock_mhz: float,
) -> Cost:
    cycles = sum(layer.cycles for layer in layers)
    memory: Counter[str] = Counter()
    for layer in layers:
        memory.update(layer.memory_cycles)
    macs = sum(layer.macs for layer in layers)
    return Cost(
        cycles=cycles,
        arithmetic_cycles=sum(layer.npu_cycles for layer in layers),
        memory_cycles={name: count for name, count in memory.items() if count},
        memory_bytes=max(layer.staging_bytes for layer in layers),
        utilisation=min(macs / (cycles * accelerator.macs * accelerator.cores), 1.0),
        clock_mhz=clock_mhz,
        bus=together(traffic),
    )


def npu_latency(cycles: Sequence[int], clock: float, source: str, timing: Timing) -> tuple[Latency, ...]:
    """Estimated time of programs that run one after the other, and of their invocations.

    Args:
        cycles: of each program.
        clock: in MHz.
        source: origin of the memory data.
    """
    if not cycles:
        return ()
    what = f"Vela's arithmetic and the bytes on the bus with {source}"
    what += f"; {timing.measured}" if timing.measured else ""
    busy = Latency("NPU", sum(cycles), clock, timing.low, timing.high, what)
    least, usual, most = timing.call_us
    calls = round(len(cycles) * usual * clock)
    if not calls:
        return (busy,)
    around = f"call overhead (driver, interrupt, caches), {plural(len(cycles), 'call')}; {timing.basis}"
    return busy, Latency(CALLS, calls, clock, least / usual, most / usual, around)
