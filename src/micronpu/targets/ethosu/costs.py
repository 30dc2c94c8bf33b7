"""Vela's figures per operation of the graph, for the common report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from micronpu.report.delegation import Cost
from micronpu.report.estimate import Latency
from micronpu.targets.ethosu.accelerators import Accelerator
from micronpu.targets.ethosu.vela.compiler import LayerEstimate, VelaProgram

BAND = (0.7, 1.4)
"""Measured over estimated time of programs of `LEAST_MILLISECONDS` and more: the ends of what is published, see
`benchmarks/ethosu_latency.py`."""
LEAST_MILLISECONDS = 0.2
CALL_MILLISECONDS = (0.07, 0.35)
"""What calls of shorter programs took beyond the estimate, on i.MX 93 under Linux; nothing is published without it."""


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


def npu_latency(programs: Sequence[VelaProgram], source: str) -> tuple[Latency, ...]:
    """How long the NPU is busy with programs that run one after the other.

    Args:
        source: what Vela was told about the chip.
    """
    if not programs:
        return ()
    cycles = sum(p.cycles for p in programs)
    clock = programs[0].clock_hz / 1e6
    source = f"Vela with {source}"
    if cycles / clock / 1000 < LEAST_MILLISECONDS:
        low, high = CALL_MILLISECONDS
        source += f"; so short a call took {low:g} to {high:g} ms more on i.MX 93, Linux included"
    return (Latency("NPU", cycles, clock, *BAND, source),)
