"""Vela's figures per operation of the graph, for the common report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from micronpu.report.delegation import Cost
from micronpu.targets.ethosu.accelerators import Accelerator
from micronpu.targets.ethosu.vela import LayerEstimate, VelaProgram


def costs_of(program: VelaProgram, nodes: Sequence[int], accelerator: Accelerator) -> dict[int, Cost]:
    """Cost by index of the graph's node; nodes that Vela made part of others have none.

    Args:
        nodes: for every operator of the flatbuffer that Vela was given, the node that it stems from.
    """
    layers: dict[int, list[LayerEstimate]] = {}
    for layer in program.layers:
        if 0 <= layer.source < len(nodes):
            layers.setdefault(nodes[layer.source], []).append(layer)
    return {node: _cost(found, accelerator) for node, found in layers.items() if any(x.cycles for x in found)}


def _cost(layers: Sequence[LayerEstimate], accelerator: Accelerator) -> Cost:
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
    )
