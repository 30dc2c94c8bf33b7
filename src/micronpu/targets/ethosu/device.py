"""Ethos-U as a compilation target."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from micronpu.base.texts import plural
from micronpu.chips import load_measured
from micronpu.chips.core import Core
from micronpu.ir.graph import Graph
from micronpu.partition.device import CompiledPartition, Device
from micronpu.partition.partition import Partition, Partitioning, Policy
from micronpu.report.operations import Latency, ResidentPrice
from micronpu.targets.cortexm.device import CortexMPart
from micronpu.targets.ethosu import BACKEND
from micronpu.targets.ethosu.accelerators import timing_of
from micronpu.targets.ethosu.compile import (
    EthosUPartition,
    accept_partition,
    compile_graph,
    plan_partition,
    write_partition,
)
from micronpu.targets.ethosu.costs import npu_latency
from micronpu.targets.ethosu.options import WHERE_IT_PAYS, EthosUOptions
from micronpu.targets.ethosu.placement import Placed, placed, resident_price, with_shared_weights
from micronpu.targets.ethosu.plans import Planned
from micronpu.targets.ethosu.recall import simulator_hash
from micronpu.targets.ethosu.rules import capabilities_of, ethosu_policy
from micronpu.targets.ethosu.search import search
from micronpu.targets.ethosu.vela.compiler import VelaProgram
from micronpu.targets.options import Checks

_ARITHMETIC = {"litert": "LiteRT's reference kernels", "tosa": "TOSA's specification"}


class EthosUDevice(Device):
    """An Ethos-U with its options; the core computes unsupported operators in int8, and operators that one of the
    user's checks refuses are not delegated. `placed` is the decision on weights in SRAM, once it is made."""

    backend = BACKEND

    def __init__(self, spec: EthosUOptions, target: str = "", checks: Checks = (), core: Core | None = None) -> None:
        self.spec = spec
        self.placed: Placed | None = None
        self.target = target or spec.silicon
        self.capabilities, self.disabled_rewrites = capabilities_of(spec), spec.disabled_rewrites
        self.checks = checks
        self.beside = CortexMPart(core, self.spec.disabled_passes) if core is not None else None

    def policy(self) -> Policy:
        return ethosu_policy(self.spec, self.target, self.checks)

    def improve(self, partitioning: Partitioning, progress: Callable[[float], None]) -> None:
        parts = [p for p in partitioning.partitions if isinstance(p.plan, Planned)]
        if self.spec.weights == WHERE_IT_PAYS:
            self.placed = placed(parts, self.spec, self._plan)
            self.spec = replace(self.spec, **self.placed.options) if self.placed is not None else self.spec
        if self.spec.search is not None:
            search(parts, self.spec, progress)

    def plan(self, partition: Partition) -> Planned:
        return self._plan(partition, self.spec)

    def _plan(self, partition: Partition, spec: EthosUOptions) -> Planned:
        return plan_partition(partition.graph, spec, partition.chosen, self.pipeline)

    def probe(self, partition: Partition) -> None:
        accept_partition(partition.graph, replace(self.spec, intermediates_dir=""))

    def compile(self, partition: Partition) -> EthosUPartition:
        planned = partition.plan if isinstance(partition.plan, Planned) else self.plan(partition)
        return write_partition(planned, self.spec, partition.chosen.first_operator())

    def unverified(self) -> EthosUDevice:
        device = copy.copy(self)
        device.spec = replace(self.spec, verify_streams=False)
        return device

    @property
    def dense_only(self) -> str:
        accelerator = self.spec.accelerator
        if accelerator.skips_zeros:
            return ""
        title = f"Ethos-{accelerator.family.upper()}"
        return f"{title} takes as many cycles for weights that are zero as for others; only their bytes are fewer."

    def compile_program(self, graph: Graph) -> EthosUPartition:
        return compile_graph(graph, self.spec)

    def specs(self) -> list[tuple[str, bytes]]:
        return self.spec.to_pairs(for_program=True)

    def latency(self, parts: Sequence[CompiledPartition]) -> tuple[Latency, ...]:
        if self.no_latency():
            return ()
        spec, measured = self.spec.for_estimates, self.spec.measurements
        source = f"{spec.system_config} and {spec.memory_mode}"
        source += f", but {', '.join(spec.system_entries)}" if spec.system_entries else ""
        own = [p for p in parts if isinstance(p, EthosUPartition)]
        clock = own[0].program.clock_hz / 1e6 if own else 0.0
        return npu_latency(
            [p.cycles for p in own], clock, source, timing_of(load_measured(measured) if measured else self.chip)
        )

    def resident(self, parts: Sequence[CompiledPartition]) -> ResidentPrice | None:
        return resident_price([p for p in parts if isinstance(p, EthosUPartition)], self.spec)

    def no_latency(self) -> str:
        lacks = self.chip is not None and self.chip.npu is not None and self.chip.npu.clock_mhz is None
        given = any(entry.startswith("core_clock=") for entry in self.spec.system_entries)
        return "the chip's file has no clock_mhz in [npu]" if lacks and not given else ""

    def shared(self, parts: Sequence[CompiledPartition]) -> Sequence[CompiledPartition]:
        return with_shared_weights(parts)

    def notes(self, parts: Sequence[CompiledPartition]) -> tuple[str, ...]:
        own = [p for p in parts if isinstance(p, EthosUPartition)]
        notes = ["There is no simulator on this machine: the command stream is not proved."]
        notes = [] if simulator_hash() or not own else notes
        notes += [
            f"Vela starts {plural(p.waiting, 'operation')} of partition `{p.name}` before the inputs are "
            "written; micronpu adds a wait."
            for p in own
            if p.waiting
        ]
        notes += [
            f"Partition `{p.name}` keeps Vela's schedule: with its weights prefetched {p.prefetch.objection}. "
            "Please report it."
            for p in own
            if p.prefetch is not None and p.prefetch.objection
        ]
        notes += [note for p in own for note in _searched(p)]
        notes += [str(self.placed)] if self.placed is not None else []
        return tuple(notes)

    def details(self, parts: Sequence[CompiledPartition]) -> tuple[str, ...]:
        own = [p for p in parts if isinstance(p, EthosUPartition)]
        if not own:
            return ()
        arithmetic = " and ".join(dict.fromkeys(_ARITHMETIC[p.plan.format] for p in own))
        run = "the simulator here runs the command stream of the board" if simulator_hash() else "no simulator here"
        return (
            f"The command stream computes with the arithmetic of {arithmetic}; {run}.",
            *dict.fromkeys(_plan(p) for p in own if p.others),
            *(note for p in own for note in _prefetch_notes(p)),
            _memory_note([p.program for p in own], self.spec.max_sram_bytes),
        )


def _plan(part: EthosUPartition) -> str:
    """Report note: the chosen plan, its rewrites, and the cost of the others."""
    cycles = part.plan.cycles or part.program.cycles
    others = "; ".join(
        f"{o.name} refused ({o.objection.rstrip('.') or 'without a reason'})"
        if o.cycles is None
        else f"{o.name} {o.cycles:,} ({(o.cycles - cycles) / max(cycles, 1):+.1%})"
        for o in part.others
    )
    names = ", ".join(f"{count} x {name}" for name, count in part.rewrites.items())
    made = f" ({names})" if names else ""
    return (
        f"Partition `{part.name}`: {part.plan.name}{made}, {cycles:,} cycles as Vela counts them. Other plans: "
        f"{others}. The time above also counts the bytes on the bus."
    )


def _prefetch_notes(part: EthosUPartition) -> Iterator[str]:
    """Report note: gain and memory of prefetched weights."""
    prefetch = part.prefetch
    if prefetch is None or prefetch.objection:
        return
    cycles = part.program.cycles
    more = f" and {prefetch.scratch:,} bytes more of scratch memory" if prefetch.scratch else " and no more memory"
    yield (
        f"Partition `{part.name}`: the weights of {prefetch.brought} of {plural(prefetch.with_weights, 'operation')}, "
        f"{prefetch.size:,} bytes, are in SRAM when they are read (`prefetch`): {cycles:,} cycles "
        f"({cycles / prefetch.cycles - 1:+.1%}){more}."
    )


def _searched(part: EthosUPartition) -> Iterator[str]:
    """Report note: result of the search for a faster program."""
    found = part.searched
    if found is None:
        return
    better = f"nothing better than the usual program of {found.before:,} cycles"
    if found.variant:
        change = found.cycles / max(found.before, 1) - 1
        better = f"{found.cycles:,} cycles instead of {found.before:,} ({change:+.1%}): {found.variant}"
    ended = f"; {found.ended}, and the same command goes on from here" if found.ended else ""
    tried = f"{found.tried} of {plural(found.variants, 'variant')} in {found.seconds:.0f} s"
    yield f"Search for partition `{part.name}`, {tried}: {better}{ended}."


def _memory_note(programs: Sequence[VelaProgram], there: int) -> str:
    """Report note: the NPU's SRAM, and the memory that firmware must reserve; partitions run one after the other."""
    needed = max(p.sram_bytes for p in programs)
    scratch, fast = max(p.scratch_size for p in programs), max(p.fast_scratch_size for p in programs)
    of = f" of the {there:,} ({needed / there:.0%})" if there else ""
    text = f"The NPU needs {needed:,} bytes{of} of SRAM at the peak. "
    text += f"The runtime's temporary pool holds {scratch:,} bytes of scratch memory"
    return text + (f", and the firmware's fast scratch memory {fast:,} bytes." if fast else ".")
