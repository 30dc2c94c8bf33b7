"""Vela's figures per operation of the graph, for the common report, and how far they are from what silicon took.

Vela counts cycles of the arithmetic and of each memory at the bandwidth that the chip's file gives.  What it does not
know is added: a call of the NPU, which is the driver, the interrupt and the maintenance of caches around it.  Both have
bands, which chips with published times have in their files; see `benchmarks/ethosu_latency.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from micronpu.report.delegation import Cost
from micronpu.report.estimate import Latency
from micronpu.report.texts import plural
from micronpu.targets.ethosu.accelerators import Accelerator
from micronpu.targets.ethosu.timing import Timing
from micronpu.targets.ethosu.vela.compiler import LayerEstimate, VelaProgram

CALLS = "Calls of the NPU"
"""As a processor of its own in reports."""


def costs_of(program: VelaProgram, nodes: Sequence[int], accelerator: Accelerator) -> dict[int, Cost]:
    """Cost by index of the graph's node; nodes that Vela made part of others have none.

    Args:
        nodes: for every operator of the flatbuffer that Vela was given, the node that it stems from.
    """
    layers: dict[int, list[LayerEstimate]] = {}
    for layer in program.layers:
        if 0 <= layer.source < len(nodes):
            layers.setdefault(nodes[layer.source], []).append(layer)
    clock = program.clock_hz / 1e6
    return {node: _cost(found, accelerator, clock) for node, found in layers.items() if any(x.cycles for x in found)}


def _cost(layers: Sequence[LayerEstimate], accelerator: Accelerator, clock_mhz: float) -> Cost:
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
    )


def npu_latency(programs: Sequence[VelaProgram], source: str, timing: Timing) -> tuple[Latency, ...]:
    """How long the NPU is busy with programs that run one after the other, and how long calling it takes.

    Args:
        source: what Vela was told about the chip.
    """
    if not programs:
        return ()
    clock = programs[0].clock_hz / 1e6
    busy = Latency("NPU", sum(p.cycles for p in programs), clock, timing.low, timing.high, f"Vela with {source}")
    least, usual, most = timing.call_us
    cycles = round(len(programs) * usual * clock)
    if not cycles:
        return (busy,)
    around = f"driver, interrupt and caches around {plural(len(programs), 'call')}; {timing.basis}"
    return busy, Latency(CALLS, cycles, clock, least / usual, most / usual, around)
