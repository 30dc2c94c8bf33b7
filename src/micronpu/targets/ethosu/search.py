"""Search for a faster program of a partition than the default plans find, within a time limit.

The default plans are those that usually pay. Whether others do is not known in advance: a smaller arena leaves memory
for prefetched weights, split layers need less of it, and a program without cascades may wait less. So variants are
tried, those with the fewest differences from the default plan first, each with prefetched weights, and compared by the
estimate in reports. The best one is verified like any program. The order of branches is not varied: Vela chooses it
independently of the order of its input.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any

from micronpu.base.cache import in_short
from micronpu.base.errors import RuntimeUnavailableError, UnsupportedError
from micronpu.base.leaving import ended_early
from micronpu.base.parsing import parse_json
from micronpu.emit.written import WrittenModel
from micronpu.ir.graph import Graph
from micronpu.partition.partition import Partition
from micronpu.targets.ethosu.costs import estimated
from micronpu.targets.ethosu.faster import candidate
from micronpu.targets.ethosu.host.prove import checked
from micronpu.targets.ethosu.legalize import emitters_of
from micronpu.targets.ethosu.options import EthosUOptions
from micronpu.targets.ethosu.plans import Bench, Planned, Searched, VelaPlan, compiled, plan_name, use_cheapest
from micronpu.targets.ethosu.recall import ReplayedOffers, described
from micronpu.targets.ethosu.rewrites import PARTS, TO_COME_EARLIER, in_parts
from micronpu.targets.ethosu.vela.compiler import VelaEndedError, VelaProgram, entry_of, options_of

_SCHEDULER = "scheduler"


@dataclass(frozen=True)
class Variant:
    """A variant of compiling a partition.

    Attributes:
        format: of Vela's input.
        rewrites: use cost-saving rewrites.
        parts: maximum bytes of weights of a part when layers are split; 0 disables splitting.
        size: optimize for memory.
        arena: limit of the scratch memory, relative to the default program's; 0 for none.
        without: a disabled feature of Vela, or "".
    """

    format: str
    rewrites: bool
    parts: int
    size: bool = False
    arena: float = 0.0
    without: str = ""

    def __str__(self) -> str:
        words = [plan_name(self.format, self.rewrites)]
        words += [f"layers in parts of {self.parts // 1024} KB"] if self.parts else []
        words += ["optimised for size"] if self.size else []
        words += [f"an arena of {self.arena:.0%}"] if self.arena else []
        words += [f"without {self.without}"] if self.without else []
        return ", ".join(words)

    def departures(self, usual: Variant) -> int:
        """Number of fields that differ from another variant."""
        return sum(getattr(self, f.name) != getattr(usual, f.name) for f in fields(self))

    def options(self, scratch: int) -> dict[tuple[str, str], str]:
        found = {(_SCHEDULER, "optimize"): "Size"} if self.size else {}
        if self.arena:
            found[_SCHEDULER, "arena_size_limit"] = str(max(int(scratch * self.arena) // 16 * 16, 16))
        if self.without:
            found[_SCHEDULER, "disable_feature"] = self.without
        return found


@dataclass(frozen=True)
class VariantTrial:
    """Estimated cycles of a variant, or the reason why there is no program; reproducible if it is lasting."""

    cycles: int | None
    why: str = ""
    is_lasting: bool = True


class Maker:
    """Compiles variants of a partition's program, from graphs by whether operators are rewritten and by the size of the
    parts of layers; serializable for other processes."""

    def __init__(self, spec: EthosUOptions, graphs: Mapping[tuple[bool, int], Graph], scratch: int) -> None:
        self._spec, self._graphs, self._scratch = spec, dict(graphs), scratch
        self._emitted: dict[tuple[str, bool, int], WrittenModel] = {}

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_emitted": {}}

    def program(self, variant: Variant) -> tuple[Graph, WrittenModel, VelaProgram]:
        """Return the program of a variant before prefetching, with its graph and Vela's input."""
        graph = self._graphs[variant.rewrites, variant.parts]
        key = variant.format, variant.rewrites, variant.parts
        if key not in self._emitted:
            self._emitted[key] = emitters_of(self._spec)[variant.format](graph)
        emitted = self._emitted[key]
        return graph, emitted, compiled(graph, emitted, self._spec, variant.options(self._scratch))

    def trial(self, variant: Variant) -> VariantTrial:
        """Compile and estimate a variant without verifying it."""
        try:
            _, _, program = self.program(variant)
            made = candidate(program, self._spec) if self._spec.prefetch else None
            program = program if made is None else made.program
            if not self.fits(program):
                return VariantTrial(None, f"it needs {program.sram_bytes:,} bytes of SRAM")
            return VariantTrial(estimated(program, self._spec).cycles)
        except VelaEndedError as error:
            return VariantTrial(None, error.what, is_lasting=False)  # the next attempt may succeed
        except UnsupportedError as error:
            return VariantTrial(None, error.what)

    def fits(self, program: VelaProgram) -> bool:
        """True if a program fits the available memory."""
        return not self._spec.max_sram_bytes or program.sram_bytes <= self._spec.max_sram_bytes


Run = Callable[[Maker, Sequence[Variant], float], Iterator[tuple[Variant, VariantTrial]]]
"""Tries variants in order until a `time.monotonic` deadline; yields each as soon as it is known."""


def one_by_one(maker: Maker, variants: Sequence[Variant], until: float) -> Iterator[tuple[Variant, VariantTrial]]:
    for variant in variants:
        if time.monotonic() >= until:
            return
        yield variant, maker.trial(variant)


def on_ray(maker: Maker, variants: Sequence[Variant], until: float) -> Iterator[tuple[Variant, VariantTrial]]:
    """Try variants on a Ray cluster, one per CPU; running ones are abandoned at the deadline."""
    if not variants or time.monotonic() >= until:
        return
    with _cluster() as ray:
        there, remote = ray.put(maker), ray.remote(num_cpus=1)(Maker.trial)
        waiting = list(reversed(variants))
        running: dict[Any, Variant] = {}
        while waiting or running:
            while waiting and len(running) < max(int(ray.cluster_resources().get("CPU", 1)), 1):
                variant = waiting.pop()
                running[remote.remote(there, variant)] = variant
            left = until - time.monotonic()
            ready, _ = ray.wait(list(running), num_returns=1, timeout=max(left, 0.0) if math.isfinite(left) else None)
            if not ready:
                return
            try:
                trial: VariantTrial = ray.get(ready[0])
            except ray.exceptions.WorkerCrashedError:
                trial = VariantTrial(None, "The process that compiled it has ended.", is_lasting=False)
            yield running.pop(ready[0]), trial


@contextmanager
def _cluster() -> Iterator[Any]:
    """Return the module `ray`, connected to the cluster that the environment names, or else to this machine."""
    try:
        import ray
    except ImportError as error:
        hint = 'pip install "micronpu[ray]"'
        raise RuntimeUnavailableError(f"Ray cannot be imported: {error}.", hint=hint) from error
    ray.init(ignore_reinit_error=True, log_to_driver=False, include_dashboard=False)
    try:
        yield ray
    finally:
        ray.shutdown()


_LEAST_GAIN = 0.005
"""Minimum fraction of the cycles that a variant must save."""
_ARENAS = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3)
_FEATURES = ("Cascading", "Grouping", "WeightBuffering")
_PARTS = (PARTS // 2, PARTS, 2 * PARTS)

INTERRUPTED = "it was interrupted"

Notify = Callable[[float], None]


def search(parts: Sequence[Partition], spec: EthosUOptions, notify: Notify) -> None:
    """Replace the plans of partitions by better ones, if the search finds any.

    Each partition gets a share of the time in proportion to its cycles; unused time is passed to the next ones.

    Args:
        parts: with a `Planned` each.
        notify: progress callback; called with the elapsed fraction of the time.
    """
    plans = [(part, part.plan) for part in parts if isinstance(part.plan, Planned)]
    left = sum(plan.program.cycles for _, plan in plans)
    start, seconds = time.monotonic(), spec.search or 0.0

    def passed() -> None:
        notify(min((time.monotonic() - start) / seconds, 1.0))

    for part, plan in sorted(plans, key=lambda entry: entry[1].program.cycles):
        now, cycles = time.monotonic(), plan.program.cycles
        until = now + (start + seconds - now) * cycles / max(left, 1)
        left -= cycles
        part.plan = found = _Search(part.graph, spec, plan).run(until, passed)
        if found.searched is not None and found.searched.ended == INTERRUPTED:
            return


class _Search:
    def __init__(self, graph: Graph, spec: EthosUOptions, usual: Planned) -> None:
        self._spec, self._usual = spec, usual
        self._emitters = emitters_of(spec)
        self._scratch = usual.program.scratch_size - (usual.prefetch.scratch if usual.prefetch is not None else 0)
        self._used: dict[tuple[bool, int], dict[str, int]] = {(False, 0): {}}
        names = {rewrite.name for rewrite in TO_COME_EARLIER}
        self._own = Variant(usual.plan.format, usual.plan.rewrites, 0 if names.isdisjoint(usual.rewrites) else PARTS)
        self._maker = Maker(spec, self._graphs_of(graph, usual), self._scratch)
        self._key = in_short(described(graph))

    def _graphs_of(self, graph: Graph, usual: Planned) -> dict[tuple[bool, int], Graph]:
        graphs = {(False, 0): graph}
        cheapest = graph.clone()
        chooser = (
            ReplayedOffers(list(usual.offers))
            if usual.plan.rewrites
            else Bench(self._spec, self._emitters[self._own.format])
        )
        if used := dict(use_cheapest(cheapest, chooser).used):
            graphs[True, 0], self._used[True, 0] = cheapest, used
        for (rewrites, _), made in list(graphs.items()):
            counts = set[tuple[int, ...]]()
            for most in sorted(_PARTS, key=lambda most: most != self._own.parts):
                divided = made.clone()
                more = in_parts(divided, self._spec.disabled_passes, most)
                sizes = tuple(t.data.nbytes for t in divided.constants() if t.data is not None)
                if more and sizes not in counts:
                    counts.add(sizes)
                    graphs[rewrites, most], self._used[rewrites, most] = divided, {**self._used[rewrites, 0], **more}
        return graphs

    def run(self, until: float, notify: Callable[[], None]) -> Planned:
        """Return the best program found until a `time.monotonic` deadline, or the default one."""
        start = time.monotonic()
        variants = sorted(self._variants(), key=lambda variant: variant.departures(self._own))
        before = estimated(self._usual.program, self._spec).cycles
        known: dict[Variant, int] = {}
        tried, ended, made = 0, "", self._usual
        try:
            with ended_early():
                for variant, trial in self._trials(variants, until):
                    if trial.cycles is not None and trial.cycles < (1 - _LEAST_GAIN) * before:
                        known[variant] = trial.cycles
                    tried += 1
                    notify()
            ended = "the time was over" if tried < len(variants) else ""
        except KeyboardInterrupt:
            ended = INTERRUPTED
        best, cycles = "", before
        for variant in sorted(known, key=lambda variant: known[variant]):
            found = self._carried_out(variant)
            if found is not None and (reached := estimated(found.program, self._spec).cycles) < before:
                made, best, cycles = found, str(variant), reached
                break
        searched = Searched(tried, len(variants), time.monotonic() - start, before, cycles, best, ended)
        return replace(made, searched=searched)

    def _variants(self) -> Iterator[Variant]:
        formats = [f for f in self._emitters if self._spec.via in ("auto", f)]
        refused = {(p.format, p.rewrites) for p in self._usual.plans if p.cycles is None and not p.options}
        rest = itertools.product(formats, self._used, (False, True), (0.0, *_ARENAS), ("", *_FEATURES))
        for format, (rewrites, parts), size, arena, without in rest:
            variant = Variant(format, rewrites, parts, size, arena, without)
            if (format, rewrites) not in refused and variant != self._own:
                yield variant

    def _trials(self, variants: Sequence[Variant], until: float) -> Iterator[tuple[Variant, VariantTrial]]:
        """Yield results of variants: cached ones first, then others within the time limit."""
        options = options_of(self._spec)
        entries = {v: entry_of("search", options, self._key, self._scratch, v) for v in variants}
        rest = []
        for variant in variants:
            data = entries[variant].read()
            if data is None:
                rest.append(variant)
            else:
                yield variant, VariantTrial(*parse_json(data))
        run: Run = on_ray if self._spec.ray else one_by_one
        for variant, trial in run(self._maker, rest, until):
            if trial.is_lasting:
                entries[variant].write(json.dumps(dataclasses.astuple(trial)).encode())
            yield variant, trial

    def _carried_out(self, variant: Variant) -> Planned | None:
        """Return the verified program of a variant; None if it differs from the trial's result."""
        try:
            graph, emitted, program = self._maker.program(variant)
            found = checked(graph, emitted, program, self._spec)
        except UnsupportedError:
            return None
        if found.objection or not self._maker.fits(found.program):
            return None
        options = tuple(variant.options(self._scratch).items())
        plan = VelaPlan(str(variant), variant.format, variant.rewrites, options)
        used = self._used[variant.rewrites, variant.parts]
        planned = Planned(graph, emitted, found.program, plan, (), used, found.unproved, found.waiting)
        if self._spec.prefetch and (faster := candidate(found.program, self._spec, found.ran)) is not None:
            planned = planned.scheduled(faster, self._spec)
            if planned.prefetch is not None and planned.prefetch.objection:
                return None
        plan = replace(plan, cycles=planned.program.cycles, memory=planned.program.sram_bytes)
        return replace(planned, plan=plan, plans=(*self._usual.plans, plan))
