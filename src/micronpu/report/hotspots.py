"""Operations of a program that take the most time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from micronpu.report.operations import Operation
from micronpu.report.texts import file_name, plural

_LARGE, _IDLE = 0.25, 0.15
"""Minimum share of the cycles, and maximum use of the multipliers, of operations that `idle_hotspot` reports."""


@dataclass(frozen=True)
class Hotspot:
    """Cost of all operations of one name.

    Attributes:
        name: of the operation, such as "resize_bilinear".
        count: number of operations.
        processor: "NPU", or "core".
        cycles: of its clock.
        share: of the cycles of all operations on this processor, 0 to 1.
        use: share of the multipliers' cycles that their MACs fill, 0 to 1; None if unknown.
        sources: source lines of the model, or modules if the line is torch's, most expensive first.
    """

    name: str
    count: int
    processor: str
    cycles: int
    share: float
    use: float | None
    sources: tuple[str, ...]

    def __str__(self) -> str:
        use = "" if self.use is None else f", with {100 * self.use:.0f} % of the multipliers in use"
        times = f" ({plural(self.count, 'operation')})" if self.count > 1 else ""
        where = f"; {file_name(self.sources[0])}" if self.sources else ""
        return f"`{self.name}`{times} takes {100 * self.share:.0f} % of the {self.processor}'s cycles{use}{where}"


def hotspots(npu: Iterable[Operation], core: Iterable[Operation]) -> tuple[Hotspot, ...]:
    """Return operations by name and processor, most expensive first."""
    found = [*_grouped("NPU", npu, whole_array=True), *_grouped("core", core, whole_array=False)]
    return tuple(sorted(found, key=lambda spot: (spot.processor != "NPU", -spot.cycles)))


def idle_hotspot(npu: Iterable[Operation]) -> Hotspot | None:
    """Return the most expensive operations that take much of the NPU's time and hardly use its multipliers, or None."""
    return next((s for s in hotspots(npu, ()) if s.share >= _LARGE and s.use is not None and s.use < _IDLE), None)


def _grouped(processor: str, operations: Iterable[Operation], *, whole_array: bool) -> list[Hotspot]:
    groups: dict[str, list[Operation]] = {}
    for operation in operations:
        if operation.cost is not None:
            groups.setdefault(operation.name.split(" + ")[0], []).append(operation)
    total = sum(_cycles(group) for group in groups.values())
    return [
        Hotspot(
            name=name,
            count=len(group),
            processor=processor,
            cycles=_cycles(group),
            share=_cycles(group) / total if total else 0.0,
            use=_use(group) if whole_array else None,
            sources=_sources(group),
        )
        for name, group in groups.items()
    ]


def _cycles(group: Iterable[Operation]) -> int:
    return sum(o.cost.cycles for o in group if o.cost is not None)


def _use(group: Sequence[Operation]) -> float | None:
    """Return the use of the multipliers, weighted by cycles; None if no operation has a MAC."""
    cycles = _cycles(group)
    if not cycles or not any(o.macs for o in group):
        return None
    return sum(o.cost.cycles * o.cost.utilisation for o in group if o.cost is not None) / cycles


def _sources(group: Iterable[Operation]) -> tuple[str, ...]:
    found: dict[str, int] = {}
    for operation in group:
        place = operation.origin.source or operation.origin.module
        if place and operation.cost is not None:
            found[place] = found.get(place, 0) + operation.cost.cycles
    return tuple(sorted(found, key=lambda source: -found[source]))
