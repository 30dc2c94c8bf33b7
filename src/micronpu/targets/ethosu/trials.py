"""Variants of a partition's program, each compiled and estimated: in this process, or on a Ray cluster."""

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
        """Vela's options."""
        found = {(_SCHEDULER, "optimize"): "Size"} if self.size else {}
        if self.arena:
            found[_SCHEDULER, "arena_size_limit"] = str(max(int(scratch * self.arena) // 16 * 16, 16))
        if self.without:
            found[_SCHEDULER, "disable_feature"] = self.without
        return found


@dataclass(frozen=True)
class VariantTrial:
    """Result of a variant.

    Attributes:
        cycles: of the estimate; None if there is no program.
        why: reason for that, or "".
        is_lasting: True if the result is reproducible.
    """

    cycles: int | None
    why: str = ""
    is_lasting: bool = True


class Maker:
    """Compiles variants of a partition's program; serializable for other processes.

    Args:
        graphs: by whether operators are rewritten, and by the size of the parts of layers.
        scratch: bytes of scratch memory of the default program.
    """

    def __init__(self, spec: EthosUOptions, graphs: Mapping[tuple[bool, int], Graph], scratch: int) -> None:
        self._spec, self._graphs, self._scratch = spec, dict(graphs), scratch
        self._emitted: dict[tuple[str, bool, int], Emitted] = {}

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_emitted": {}}

    def program(self, variant: Variant) -> tuple[Graph, Emitted, VelaProgram]:
        """Return the program of a variant before prefetching, with its graph and Vela's input.

        Raises:
            UnsupportedError: there is none.
        """
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
            program = program if made is None else made.made.program
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
    """Try variants in this process."""
    for variant in variants:
        if time.monotonic() >= until:
            return
        yield variant, maker.trial(variant)


def on_ray(maker: Maker, variants: Sequence[Variant], until: float) -> Iterator[tuple[Variant, VariantTrial]]:
    """Try variants on a Ray cluster, one per CPU; running ones are abandoned at the deadline.

    Raises:
        RuntimeUnavailableError: Ray is not installed.
    """
    if not variants or time.monotonic() >= until:
        return
    with cluster() as ray:
        there, remote = ray.put(maker), ray.remote(num_cpus=1)(_trial)
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
            variant = running.pop(ready[0])
            yield variant, _answer(ray, ready[0])


def _trial(maker: Maker, variant: Variant) -> VariantTrial:
    return maker.trial(variant)


def _answer(ray: Any, reference: Any) -> VariantTrial:
    try:
        trial: VariantTrial = ray.get(reference)
    except ray.exceptions.WorkerCrashedError:
        return VariantTrial(None, "The process that compiled it has ended.", is_lasting=False)
    return trial
