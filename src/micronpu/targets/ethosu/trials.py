"""Ways to make the program of a partition, each compiled and priced by itself: here, or on a Ray cluster."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from micronpu.base.cluster import cluster
from micronpu.base.errors import UnsupportedError
from micronpu.ir.graph import Graph
from micronpu.targets.ethosu.emitters import Emitted, emitters_of
from micronpu.targets.ethosu.estimated import estimated
from micronpu.targets.ethosu.faster import candidate
from micronpu.targets.ethosu.options import EthosUOptions
from micronpu.targets.ethosu.plans import compiled, plan_name
from micronpu.targets.ethosu.vela.compiler import VelaEndedError, VelaProgram

_SCHEDULER = "scheduler"


@dataclass(frozen=True)
class Way:
    """How a program of a partition can be made.

    Attributes:
        format: that Vela is given.
        rewrites: operators are what costs the least alone.
        parts: bytes of weights from which on a layer is several of so many; 0 for none.
        size: Vela looks for little memory.
        arena: limit of the scratch memory, as a part of the usual program's; 0 for none.
        without: a feature of Vela that is switched off, or "".
    """

    format: str
    rewrites: bool
    parts: int
    size: bool = False
    arena: float = 0.0
    without: str = ""

    def __str__(self) -> str:
        told = [plan_name(self.format, self.rewrites)]
        told += [f"layers in parts of {self.parts // 1024} KB"] if self.parts else []
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
    """What a way gives.

    Attributes:
        cycles: of the estimate; None where there is no program.
        why: there is none, or "".
        is_lasting: whether the next time gives the same.
    """

    cycles: int | None
    why: str = ""
    is_lasting: bool = True


class Maker:
    """Makes programs of a partition in given ways; all that another process needs for it.

    Args:
        graphs: by whether operators are rewritten and by the parts of its layers.
        scratch: bytes of scratch memory of the usual program.
    """

    def __init__(self, spec: EthosUOptions, graphs: Mapping[tuple[bool, int], Graph], scratch: int) -> None:
        self._spec, self._graphs, self._scratch = spec, dict(graphs), scratch
        self._emitted: dict[tuple[str, bool, int], Emitted] = {}

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_emitted": {}}

    def program(self, way: Way) -> tuple[Graph, Emitted, VelaProgram]:
        """The program of a way, its weights where Vela has them, and what it is made of.

        Raises:
            UnsupportedError: there is none.
        """
        graph = self._graphs[way.rewrites, way.parts]
        key = way.format, way.rewrites, way.parts
        if key not in self._emitted:
            self._emitted[key] = emitters_of(self._spec)[way.format](graph)
        emitted = self._emitted[key]
        return graph, emitted, compiled(graph, emitted, self._spec, way.options(self._scratch))

    def trial(self, way: Way) -> Trial:
        """What a way gives, as far as that is known without a proof."""
        try:
            _, _, program = self.program(way)
            made = candidate(program, self._spec) if self._spec.prefetch else None
            program = program if made is None else made.made.program
            if not self.fits(program):
                return Trial(None, f"it needs {program.sram_bytes:,} bytes of SRAM")
            return Trial(estimated(program, self._spec).cycles)
        except VelaEndedError as error:
            return Trial(None, error.what, is_lasting=False)  # which it need not do the next time
        except UnsupportedError as error:
            return Trial(None, error.what)

    def fits(self, program: VelaProgram) -> bool:
        """Whether there is as much memory as a program needs."""
        return not self._spec.max_sram_bytes or program.sram_bytes <= self._spec.max_sram_bytes


Run = Callable[[Maker, Sequence[Way], float], Iterator[tuple[Way, Trial]]]
"""Tries ways, those that come first first, until a time by `time.monotonic`; each when it is known."""


def one_by_one(maker: Maker, ways: Sequence[Way], until: float) -> Iterator[tuple[Way, Trial]]:
    """In this process."""
    for way in ways:
        if time.monotonic() >= until:
            return
        yield way, maker.trial(way)


def on_ray(maker: Maker, ways: Sequence[Way], until: float) -> Iterator[tuple[Way, Trial]]:
    """On a Ray cluster, one on each of its processors; what is under way when the time is over is left.

    Raises:
        RuntimeUnavailableError: Ray is not installed.
    """
    if not ways or time.monotonic() >= until:
        return
    with cluster() as ray:
        there, remote = ray.put(maker), ray.remote(num_cpus=1)(_trial)
        waiting = list(reversed(ways))
        running: dict[Any, Way] = {}
        while waiting or running:
            while waiting and len(running) < max(int(ray.cluster_resources().get("CPU", 1)), 1):
                way = waiting.pop()
                running[remote.remote(there, way)] = way
            left = until - time.monotonic()
            ready, _ = ray.wait(list(running), num_returns=1, timeout=max(left, 0.0) if math.isfinite(left) else None)
            if not ready:
                return
            way = running.pop(ready[0])
            yield way, _answer(ray, ready[0])


def _trial(maker: Maker, way: Way) -> Trial:
    return maker.trial(way)


def _answer(ray: Any, reference: Any) -> Trial:
    try:
        trial: Trial = ray.get(reference)
    except ray.exceptions.WorkerCrashedError:
        return Trial(None, "The process that compiled it has ended.", is_lasting=False)
    return trial
