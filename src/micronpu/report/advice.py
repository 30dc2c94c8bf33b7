"""Where a program's time goes, and what the network could be written as instead, with what it saves."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from micronpu.report.codec import encode
from micronpu.report.delegation import DelegationReport, Operation
from micronpu.report.shown import rendered, short
from micronpu.report.texts import plural

if TYPE_CHECKING:
    from rich.console import RenderableType

FORMAT, VERSION = "micronpu advice", 1
"""Of the JSON form."""
WORTH = 0.02
"""Share of the time that a change must save to be advised."""
_LARGE, _IDLE = 0.25, 0.15
"""From this share of the cycles on, and below this use of the multipliers, operations of one name are worth a word."""


@dataclass(frozen=True)
class Hotspot:
    """What all operations of one name take.

    Attributes:
        name: of the operation, such as "resize_bilinear".
        count: how many of them.
        processor: "NPU", or "core".
        cycles: of its clock.
        share: of the cycles of all operations on this processor, 0 to 1.
        use: share of the multipliers' cycles that their MACs fill, 0 to 1; None where nothing is known of multipliers.
        sources: lines of the model, or modules where torch wrote the line, the costliest first.
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
        where = f"; {self.sources[0]}" if self.sources else ""
        return f"`{self.name}`{times} takes {100 * self.share:.0f} % of the {self.processor}'s cycles{use}{where}"


def hotspots(report: DelegationReport) -> tuple[Hotspot, ...]:
    """What takes the time, by the name of the operation and the processor, the costliest first."""
    found = [
        *_grouped("NPU", report.operations, whole_array=True),
        *_grouped("core", report.core_operations, whole_array=False),
    ]
    return tuple(sorted(found, key=lambda spot: (spot.processor != "NPU", -spot.cycles)))


def idle_hotspot(report: DelegationReport) -> Hotspot | None:
    """The costliest operations that take much of the NPU's time and hardly use its multipliers; None for none."""
    spots = (spot for spot in hotspots(report) if spot.processor == "NPU")
    return next((s for s in spots if s.share >= _LARGE and s.use is not None and s.use < _IDLE), None)


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
    """Of the multipliers, weighted by cycles; operations without a MAC have no use of them."""
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


@dataclass(frozen=True)
class Price:
    """What a program costs, as its report estimates it.

    Attributes:
        milliseconds: of all processors together; None where there is no estimate or no clock.
        cycles: of all processors together; None where there is no estimate.
        sram_bytes: of working memory on the chip; None where the target is no chip.
        program_bytes: of the ``.pte``.
        operators, delegated: how many operators there are, and on the NPU.
    """

    milliseconds: float | None
    cycles: int | None
    sram_bytes: int | None
    program_bytes: int
    operators: int
    delegated: int

    @classmethod
    def of(cls, report: DelegationReport) -> Price:
        """From the report of a finished program."""
        costs = [o.cost.cycles for o in (*report.operations, *report.core_operations) if o.cost is not None]
        regions = report.memory.regions if report.memory is not None else ()
        return cls(
            milliseconds=sum(t.milliseconds for t in report.latency) if report.latency else None,
            cycles=(sum(t.cycles for t in report.latency) if report.latency else sum(costs)) or None,
            sram_bytes=sum(r.bytes for r in regions if r.kind == "sram") if regions else None,
            program_bytes=report.program_bytes,
            operators=report.operators,
            delegated=report.delegated,
        )

    def beside(self, other: Price) -> float | None:
        """The time as a multiple of another one's; the cycles where there is no time."""
        for own, its in ((self.milliseconds, other.milliseconds), (self.cycles, other.cycles)):
            if own is not None and its:
                return own / its
        return None


SAME, NEAR, TRAIN = "same results", "nearly the same results", "train again"


@dataclass(frozen=True)
class Idea:
    """A change of the network that was compiled.

    Attributes:
        name: what instead of what, such as "ReLU for SiLU".
        how: what to write.
        results: "same results", "nearly the same results", or "train again" where the network computes another
            function, which is as accurate as training makes it.
        places: how many operators it changes; 0 for one of the program as a whole.
        sources: their lines in the model, or their modules where torch wrote the line.
        price: of the changed program; None where it does not compile.
        ratio: its time as a multiple of the time of the network as it is; None where there is no estimate.
        failure: why it does not compile, or "".
    """

    name: str
    how: str
    results: str
    places: int
    sources: tuple[str, ...]
    price: Price | None
    ratio: float | None
    failure: str = ""

    ALSO: ClassVar[tuple[str, ...]] = ("is_worth",)

    @property
    def is_worth(self) -> bool:
        """Whether it saves more than a fiftieth of the time."""
        return self.ratio is not None and self.ratio < 1 - WORTH

    def __str__(self) -> str:
        if self.ratio is None:
            return f"{self.name}: {self.failure or 'there is no estimate of its time'}"
        percent = 100 * (self.ratio - 1)
        return f"{self.name}: {percent:+.0f} % time, {self.results}. {self.how}"


@short
@dataclass(frozen=True)
class Advice:
    """What `micronpu.advise` returns.

    Attributes:
        target: what the network was compiled for.
        price: of the network as it is.
        hotspots: what takes the time, the costliest first, by processor.
        ideas: what was tried, by time, the shortest first.
        together: all ideas that save time, at once; None where there are less than two, or they do not fit together.
        seconds: how long it took.
    """

    target: str
    price: Price
    hotspots: tuple[Hotspot, ...]
    ideas: tuple[Idea, ...]
    together: Idea | None
    seconds: float

    ALSO: ClassVar[tuple[str, ...]] = ("worth",)

    @property
    def worth(self) -> tuple[Idea, ...]:
        """The ideas that save time."""
        return tuple(idea for idea in self.ideas if idea.is_worth)

    @property
    def summary(self) -> str:
        """One sentence: what was tried, and what of it saves time."""
        if self.price.cycles is None:
            return f"There is no estimate of time for {self.target}, so that no change can be judged."
        tried = f"{plural(len(self.ideas), 'change')} of the network compiled in {self.seconds:.0f} s"
        if not self.worth:
            return f"{tried}: none saves time."
        return f"{tried}: {len(self.worth)} of them {'saves' if len(self.worth) == 1 else 'save'} time."

    def to_dict(self) -> dict[str, Any]:
        return {"format": FORMAT, "version": VERSION, **encode(self)}

    def to_json(self, indent: int | None = 2) -> str:
        return json.dumps(self.to_dict(), indent=indent)

    def __str__(self) -> str:
        lines = [self.summary, *(f"  - {spot}" for spot in self.hotspots[:5])]
        lines += [f"  - {idea}" for idea in self.worth]
        if self.together is not None:
            lines.append(f"  - {self.together}")
        return "\n".join(lines)

    def __rich__(self) -> RenderableType:
        return rendered(self)
