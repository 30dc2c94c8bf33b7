"""Estimates of a finished program on its chip, and costs per operation of the graph for the common report.

Cycles come from Vela's arithmetic, the bytes of the stream and the chip's memories; Vela's own cycles select plans. The
cost of an NPU invocation is added: the driver, the interrupt and cache maintenance. Both have error bands relative to
silicon, from the chip's file if there are published times; `benchmarks/ethosu_latency.py` compares them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from micronpu.base.texts import plural
from micronpu.report.operations import BusTraffic, Cost, Latency, together
from micronpu.targets.ethosu.accelerators import Accelerator, Timing, ports_of
from micronpu.targets.ethosu.options import EthosUOptions
from micronpu.targets.ethosu.schedule.engines import Port
from micronpu.targets.ethosu.schedule.traffic import Traffic, arithmetic_of, busy, copies_constants, traffic_of
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


def estimated(
    program: VelaProgram,
    spec: EthosUOptions,
    slower: Mapping[str, float] | None = None,
    *,
    with_copies: bool = True,
) -> Estimated:
    """Estimate a program without running it.

    Args:
        slower: factors by which memories, by Vela's name, are slower than configured.
        with_copies: False to leave out copies of constants into another memory, as if they were there.
    """
    accelerator = spec.accelerator
    ports = ports_of(spec.ini, spec.system_config, spec.memory_mode, accelerator)
    if slower:
        ports = {n: replace(port, rate=port.rate / slower.get(port.memory, 1.0)) for n, port in ports.items()}
    actions = actions_of(program.commands)
    operations = [action for action in actions if action.is_operation]
    placed = zip(program.places or (-1,) * len(operations), operations, strict=True)
    places = [place for place, action in placed if with_copies or not copies_constants(action)]
    actions = [action for action in actions if with_copies or not copies_constants(action)]
    traffic = traffic_of(actions, accelerator.family, accelerator.port_bytes)
    arithmetic = arithmetic_of(traffic, places, [layer.npu_cycles for layer in program.layers])
    found, memories_used = busy(actions, traffic, arithmetic, ports, accelerator.family)
    bus = _by_port(traffic, ports)
    if not program.layers:
        return Estimated(found.cycles, (), (), bus)
    cycles, ended = [0] * len(program.layers), 0
    waits: list[dict[str, float]] = [{} for _ in program.layers]
    own: list[list[Traffic]] = [[] for _ in program.layers]
    for place, (_, end), memories, moved in zip(places, found.spans, memories_used, traffic, strict=True):
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


CALLS = "Calls of the NPU"
"""A separate processor in reports."""


def costs_of(estimate: Estimated, nodes: Sequence[int], accelerator: Accelerator, clock_mhz: float) -> dict[int, Cost]:
    """Cost by index of the graph's node, given the node of every operator of Vela's input; nodes fused into others have
    none."""
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
    """Estimated time of programs of so many cycles each, one after the other, with a clock in MHz, and of their
    invocations; ``source`` is the origin of the memory data."""
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
