"""Estimate a finished program on its chip: Vela's arithmetic, the bytes of its stream, the chip's memories.

Vela's own cycles select plans; these cycles are reported. `benchmarks/ethosu_latency.py` compares them with published
times.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from micronpu.report.operations import BusTraffic
from micronpu.targets.ethosu.accelerators import ports_of
from micronpu.targets.ethosu.options import EthosUOptions
from micronpu.targets.ethosu.schedule.engines import Port
from micronpu.targets.ethosu.schedule.traffic import Traffic, arithmetic_of, busy, traffic_of
from micronpu.targets.ethosu.stream import actions_of
from micronpu.targets.ethosu.vela.compiler import LayerEstimate, VelaProgram


@dataclass(frozen=True)
class Estimated:
    """Estimated times of a program.

    Attributes:
        cycles: of the whole program.
        layers: Vela's rows with the cycles of this estimate.
        traffic: of each layer, by port.
        bus: total by port, including operations without layer.
    """

    cycles: int
    layers: tuple[LayerEstimate, ...]
    traffic: tuple[Mapping[str, BusTraffic], ...]
    bus: Mapping[str, BusTraffic]


def estimated(program: VelaProgram, spec: EthosUOptions, slower: Mapping[str, float] | None = None) -> Estimated:
    """Estimate a program without running it.

    Args:
        slower: factors by which memories are slower than configured, by Vela's name.
    """
    accelerator = spec.accelerator
    ports = ports_of(spec.ini, spec.system_config, spec.memory_mode, accelerator)
    if slower:
        ports = {n: replace(port, rate=port.rate / slower.get(port.memory, 1.0)) for n, port in ports.items()}
    actions = actions_of(program.commands)
    traffic = traffic_of(actions, accelerator.family, accelerator.port_bytes)
    places = program.places or (-1,) * len(traffic)
    arithmetic = arithmetic_of(traffic, places, [layer.npu_cycles for layer in program.layers])
    found = busy(actions, traffic, arithmetic, ports, accelerator.family)
    bus = _by_port(traffic, ports)
    if not program.layers:
        return Estimated(found.cycles, (), (), bus)
    cycles, ended = [0] * len(program.layers), 0
    waits: list[dict[str, float]] = [{} for _ in program.layers]
    own: list[list[Traffic]] = [[] for _ in program.layers]
    for place, end, memories, moved in zip(places, found.ends, found.memories, traffic, strict=True):
        if place < 0:
            continue
        cycles[place] += max(end - ended, 0)
        ended = max(end, ended)
        own[place].append(moved)
        for memory, count in memories.items():
            waits[place][memory] = waits[place].get(memory, 0) + count
    layers = tuple(
        replace(layer, cycles=count, memory_cycles={name: round(n) for name, n in waiting.items()})
        for layer, count, waiting in zip(program.layers, cycles, waits, strict=True)
    )
    return Estimated(found.cycles, layers, tuple(_by_port(x, ports) for x in own), bus)


def _by_port(traffic: list[Traffic], ports: Mapping[int, Port]) -> dict[str, BusTraffic]:
    found: dict[str, BusTraffic] = {}
    for one in traffic:
        for region, moved in one.regions.items():
            if region in ports:
                port = ports[region]
                more = BusTraffic(port.memory, moved.read, moved.written, moved.read_beats, moved.written_beats)
                found[port.name] = found[port.name] + more if port.name in found else more
    return dict(sorted(found.items()))
