"""A faster program for a partition than the usual plans give, looked for while there is time.

The usual plans are those that mostly pay.  Whether others do nobody knows before: a smaller arena leaves room for
weights that come early, layers in parts need less of it, and a cascade less makes a program that waits less.  So ways
are tried one by one, those with the fewest departures from the usual plan first, each with its weights brought ahead,
and compared by the estimate that reports give.  The best is proved as any program is.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from micronpu.base.cache import in_short
from micronpu.base.errors import UnsupportedError
from micronpu.base.parsing import parse_json
from micronpu.ir.graph import Graph
from micronpu.partition.partition import Partition
from micronpu.targets.ethosu.emitters import emitters_of
from micronpu.targets.ethosu.estimated import estimated
from micronpu.targets.ethosu.faster import candidate
from micronpu.targets.ethosu.host.prove import Check, Checked, check_of
from micronpu.targets.ethosu.kept import entry_of, options_of
from micronpu.targets.ethosu.options import EthosUOptions
from micronpu.targets.ethosu.parts import in_parts
from micronpu.targets.ethosu.plans import (
    Bench,
    Plan,
    Planned,
    Searched,
    compiled,
    plan_name,
    use_cheapest,
)
from micronpu.targets.ethosu.recall import Told, described
from micronpu.targets.ethosu.rewrites import TO_COME_EARLIER
from micronpu.targets.ethosu.vela.compiler import VelaEndedError, VelaProgram

_LEAST_GAIN = 0.005
"""Part of the cycles that another way must save to be used."""
_ARENAS = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3)
_FEATURES = ("Cascading", "Grouping", "WeightBuffering")
_SCHEDULER = "scheduler"

INTERRUPTED = "it was interrupted"

Tell = Callable[[float], None]


@dataclass(frozen=True)
class Way:
    """How a program of a partition can be made.

    Attributes:
        format: that Vela is given.
        rewrites: operators are what costs the least alone.
        parts: large layers are several.
        size: Vela looks for little memory.
        arena: limit of the scratch memory, as a part of the usual program's; 0 for none.
        without: a feature of Vela that is switched off, or "".
    """

    format: str
    rewrites: bool
    parts: bool
    size: bool = False
    arena: float = 0.0
    without: str = ""

    def __str__(self) -> str:
        told = [plan_name(self.format, self.rewrites)]
        told += ["large layers in parts"] if self.parts else []
        told += ["optimised for size"] if self.size else []
        told += [f"an arena of {self.arena:.0%}"] if self.arena else []
        told += [f"without {self.without}"] if self.without else []
        return ", ".join(told)

    def departures(self, usual: Way) -> int:
        """In how much it differs from another."""
        return sum(getattr(self, f.name) != getattr(usual, f.name) for f in fields(self))

    def options(self, scratch: int) -> dict[tuple[str, str], str]:
        """What Vela is told."""
        found = {(_SCHEDULER, "optimize"): "Size"} if self.size else {}
        if self.arena:
            found[_SCHEDULER, "arena_size_limit"] = str(max(int(scratch * self.arena) // 16 * 16, 16))
        if self.without:
            found[_SCHEDULER, "disable_feature"] = self.without
        return found


@dataclass(frozen=True)
class Trial:
    """What a way gives: cycles of the estimate, or why there is no program."""

    cycles: int | None
    why: str = ""


def search(parts: Sequence[Partition], spec: EthosUOptions, tell: Tell) -> None:
    """Gives partitions better plans than they have, where there are any.

    Each has as much of the time as it has of the cycles; what one leaves the next ones have.

    Args:
        parts: with a `Planned` each.
        tell: called with the part of the time that has passed.
    """
    check = check_of(spec) if spec.verify_streams else None
    plans = [(part, part.plan) for part in parts if isinstance(part.plan, Planned)]
    left = sum(plan.program.cycles for _, plan in plans)
    start, seconds = time.monotonic(), spec.search or 0.0

    def passed() -> None:
        tell(min((time.monotonic() - start) / seconds, 1.0))

    for part, plan in sorted(plans, key=lambda entry: entry[1].program.cycles):
        now, cycles = time.monotonic(), plan.program.cycles
        until = now + (start + seconds - now) * cycles / max(left, 1)
        left -= cycles
        part.plan = found = _Search(part.graph, spec, plan, check).run(until, passed)
        if found.searched is not None and found.searched.ended == INTERRUPTED:
            return


class _Search:
    def __init__(self, graph: Graph, spec: EthosUOptions, usual: Planned, check: Check | None) -> None:
        self._spec, self._usual, self._check = spec, usual, check
        self._emitters = emitters_of(spec)
        self._scratch = usual.program.scratch_size - (usual.ahead.scratch if usual.ahead is not None else 0)
        self._graphs: dict[tuple[bool, bool], tuple[Graph, dict[str, int]]] = {(False, False): (graph, {})}
        self._emitted: dict[tuple[str, bool, bool], Any] = {}
        names = {rewrite.name for rewrite in TO_COME_EARLIER}
        parts = not names.isdisjoint(usual.rewrites)
        self._own = Way(usual.plan.format, usual.plan.rewrites, parts)
        self._add_graphs(graph, usual)
        self._key = in_short(described(graph))

    def _add_graphs(self, graph: Graph, usual: Planned) -> None:
        cheapest = graph.clone()
        chooser = (
            Told(list(usual.offers)) if usual.plan.rewrites else Bench(self._spec, self._emitters[self._own.format])
        )
        rewritten = use_cheapest(cheapest, chooser)
        if rewritten.used:
            self._graphs[True, False] = cheapest, dict(rewritten.used)
        for (rewrites, _), (made, used) in list(self._graphs.items()):
            divided = made.clone()
            if more := in_parts(divided, self._spec):
                self._graphs[rewrites, True] = divided, {**used, **more}

    def run(self, until: float, tell: Callable[[], None]) -> Planned:
        """The best program that is found before a time, by `time.monotonic`, or the usual one."""
        start = time.monotonic()
        ways = sorted(self._ways(), key=lambda way: way.departures(self._own))
        before = estimated(self._usual.program, self._spec).cycles
        known: dict[Way, int] = {}
        tried, ended, made = 0, "", self._usual
        try:
            for way in ways:
                if time.monotonic() >= until:
                    ended = "the time was over"
                    break
                trial = self._trial(way)
                if trial.cycles is not None and trial.cycles < (1 - _LEAST_GAIN) * before:
                    known[way] = trial.cycles
                tried += 1
                tell()
        except KeyboardInterrupt:
            ended = INTERRUPTED
        best, cycles = "", before
        for way in sorted(known, key=lambda way: known[way]):
            found = self._carried_out(way)
            if found is not None and (reached := estimated(found.program, self._spec).cycles) < before:
                made, best, cycles = found, str(way), reached
                break
        told = Searched(tried, len(ways), time.monotonic() - start, before, cycles, best, ended)
        return replace(made, searched=told)

    def _ways(self) -> Iterator[Way]:
        formats = [f for f in self._emitters if self._spec.via in ("auto", f)]
        refused = {(p.format, p.rewrites) for p in self._usual.plans if p.cycles is None and not p.options}
        rest = itertools.product(formats, self._graphs, (False, True), (0.0, *_ARENAS), ("", *_FEATURES))
        for format, (rewrites, parts), size, arena, without in rest:
            way = Way(format, rewrites, parts, size, arena, without)
            if (format, rewrites) not in refused and way != self._own:
                yield way

    def _program(self, way: Way) -> tuple[Graph, Any, VelaProgram]:
        graph, _ = self._graphs[way.rewrites, way.parts]
        key = way.format, way.rewrites, way.parts
        if key not in self._emitted:
            self._emitted[key] = self._emitters[way.format](graph)
        emitted = self._emitted[key]
        return graph, emitted, compiled(graph, emitted, self._spec, way.options(self._scratch))

    def _trial(self, way: Way) -> Trial:
        """What a way gives, as far as that is known without a proof."""
        entry = entry_of("search", options_of(self._spec), self._key, self._scratch, way)
        if (data := entry.read()) is not None:
            return Trial(*parse_json(data))
        try:
            _, _, program = self._program(way)
            made = candidate(program, self._spec) if self._spec.prefetch else None
            program = program if made is None else made.made.program
            trial = Trial(estimated(program, self._spec).cycles)
            if not self._fits(program):
                trial = Trial(None, f"it needs {program.sram_bytes:,} bytes of SRAM")
        except VelaEndedError as error:
            return Trial(None, error.what)  # which it need not do the next time
        except UnsupportedError as error:
            trial = Trial(None, error.what)
        entry.write(json.dumps([trial.cycles, trial.why]).encode())
        return trial

    def _fits(self, program: VelaProgram) -> bool:
        return not self._spec.max_sram_bytes or program.sram_bytes <= self._spec.max_sram_bytes

    def _carried_out(self, way: Way) -> Planned | None:
        """The program of a way, proved; None where it is not what the trial promised."""
        try:
            graph, emitted, program = self._program(way)
            checked = Checked(program)
            if self._check is not None:
                checked = self._check(graph, emitted, program)
        except UnsupportedError:
            return None
        if checked.objection or checked.unproved or not self._fits(checked.program):
            return None
        program, ahead = checked.program, None
        if self._spec.prefetch and (found := candidate(program, self._spec, checked.ran)) is not None:
            program, ahead = found.proved(self._spec)
            if ahead.objection:
                return None
        options = tuple(way.options(self._scratch).items())
        plan = Plan(str(way), way.format, way.rewrites, options, program.cycles, program.sram_bytes)
        used = self._graphs[way.rewrites, way.parts][1]
        others: Sequence[Plan] = self._usual.plans
        return Planned(
            *(graph, emitted, program, plan, (*others, plan), used),
            waiting=checked.waiting,
            ahead=ahead,
        )
