"""Placement of a program's weights: in flash, or in SRAM from the start, by estimated cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from micronpu.base.errors import UnsupportedError
from micronpu.partition.partition import Partition
from micronpu.report.operations import ResidentPrice
from micronpu.targets.ethosu.compile import EthosUPartition
from micronpu.targets.ethosu.costs import estimated
from micronpu.targets.ethosu.faster import LEAST_GAIN, PART_OF_MEMORY, resident
from micronpu.targets.ethosu.options import EthosUOptions
from micronpu.targets.ethosu.plans import Planned

_FLASH: dict[str, Any] = {"weights": "flash"}
_SRAM: dict[str, Any] = {"weights": "sram", "memory_mode": ""}
"""The two placements, as options."""


@dataclass(frozen=True)
class Placed:
    """A placement, and the cost of both.

    Attributes:
        options: of the placement.
        flash, sram: cycles of either placement; None for SRAM if nothing was compiled for it.
        flash_bytes, sram_bytes: bytes of SRAM.
        why: reason why the weights are not in SRAM, or "".
    """

    options: dict[str, Any]
    flash: int
    flash_bytes: int
    sram: int | None = None
    sram_bytes: int = 0
    why: str = ""

    def __str__(self) -> str:
        both = f"{self.flash:,} cycles and {self.flash_bytes:,} bytes of SRAM with the weights in flash"
        if self.sram is not None:
            part, more = self.sram / max(self.flash, 1), max(self.sram_bytes - self.flash_bytes, 0)
            both = f"{part:.2f} of the time for {more:,} bytes of SRAM more: {both}, {self.sram:,} and "
            both += f"{self.sram_bytes:,} with the weights in SRAM from the start"
        place = "in flash" if self.options is _FLASH else "in SRAM"
        return f'`weights="auto"` puts them {place}{f", since {self.why}" if self.why else ""}; {both}.'


def placed(
    parts: Sequence[Partition], spec: EthosUOptions, plan: Callable[[Partition, EthosUOptions], Planned]
) -> Placed | None:
    """Plan partitions again with all weights in SRAM; keep these plans if they fit and pay.

    Args:
        parts: with a `Planned` each, for flash.
        plan: plans a partition.
    """
    plans = [part.plan for part in parts if isinstance(part.plan, Planned)]
    if not plans:
        return None
    cycles, size = _cycles(plans, spec), max(p.program.sram_bytes for p in plans)
    found = Placed(_FLASH, cycles, size)
    if spec.memories is None:
        return replace(found, why=f"the memory mode {spec.memory_mode} has one memory for them and the tensors")
    if not spec.max_sram_bytes:
        return replace(found, why="the size of the SRAM is unknown (`max_sram_bytes`)")
    scratches = [p.prefetch.scratch if p.prefetch is not None else 0 for p in plans]
    prices = [resident(p.program, spec, scratch) for p, scratch in zip(plans, scratches, strict=True)]
    if None in prices:
        return replace(found, why=f"they do not fit {PART_OF_MEMORY:.0%} of {spec.max_sram_bytes:,} bytes")
    there = replace(spec, **_SRAM)
    try:
        moved = [plan(part, there) for part in parts]
    except UnsupportedError as error:
        return replace(found, why=f"there is no program for that: {error.what.rstrip('.')}")
    faster, whole = _cycles(moved, there), _bytes_of_all(moved)
    found = replace(found, sram=faster, sram_bytes=whole)
    if whole > PART_OF_MEMORY * spec.max_sram_bytes:
        return replace(found, why=f"they do not fit {PART_OF_MEMORY:.0%} of {spec.max_sram_bytes:,} bytes")
    if faster > (1 - LEAST_GAIN) * cycles:
        return replace(found, why=f"less than {LEAST_GAIN:.0%} would be saved")
    for part, own in zip(parts, moved, strict=True):
        part.plan = own
    return replace(found, options=_SRAM)


def resident_price(parts: Sequence[EthosUPartition], spec: EthosUOptions) -> ResidentPrice | None:
    """Estimate programs with all weights in SRAM; None if they do not fit or save less than 3 %."""
    scratches = [part.prefetch.scratch if part.prefetch is not None else 0 for part in parts]
    prices = [resident(part.program, spec, scratch) for part, scratch in zip(parts, scratches, strict=True)]
    known = [price for price in prices if price is not None]
    now = sum(part.program.cycles for part in parts)
    if not known or len(known) < len(prices) or sum(p.cycles for p in known) > (1 - LEAST_GAIN) * now:
        return None
    stands = [len(part.program.constants) + len(part.program.commands) for part in parts]
    whole = sum(stands) + max(p.sram - own for p, own in zip(known, stands, strict=True))
    if whole > PART_OF_MEMORY * spec.max_sram_bytes:
        return None
    here = max(part.program.sram_bytes for part in parts)
    return ResidentPrice(sum(p.cycles for p in known) / now, max(whole - here, 0))


def _cycles(plans: Sequence[Planned], spec: EthosUOptions) -> int:
    return sum(estimated(plan.program, spec).cycles for plan in plans)


def _bytes_of_all(plans: Sequence[Planned]) -> int:
    """Bytes of SRAM of programs that are all resident, one of which runs at a time."""
    stands = [len(plan.program.constants) + len(plan.program.commands) for plan in plans]
    works = [max(plan.program.sram_bytes - len(plan.program.constants), 0) for plan in plans]
    return sum(stands) + max(works)
