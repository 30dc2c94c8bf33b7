"""Hotspots of a program, and changes of the network with the time that they save."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from micronpu.report.delegation import DelegationReport
from micronpu.report.hotspots import Hotspot
from micronpu.report.saved import JsonReport
from micronpu.report.texts import plural

WORTH = 0.02
"""Minimum share of the time that a change must save to be advised."""


@dataclass(frozen=True)
class Price:
    """Cost of a program, as its report estimates it.

    Attributes:
        milliseconds: of all processors together; None without an estimate or a clock.
        cycles: of all processors together; None without an estimate.
        sram_bytes: of working memory on the chip; None if the target is no chip.
        program_bytes: of the ``.pte``.
        operators, delegated: number of operators, and of those on the NPU.
        basis: source of the time and its band, a clause for each processor; or "".
    """

    milliseconds: float | None
    cycles: int | None
    sram_bytes: int | None
    program_bytes: int
    operators: int
    delegated: int
    basis: str = ""

    @classmethod
    def of(cls, report: DelegationReport) -> Price:
        """Return the cost from the report of a finished program."""
        costs = [o.cost.cycles for o in (*report.operations, *report.core_operations) if o.cost is not None]
        regions = report.memory.regions if report.memory is not None else ()
        return cls(
            milliseconds=sum(t.milliseconds for t in report.latency) if report.latency else None,
            cycles=(sum(t.cycles for t in report.latency) if report.latency else sum(costs)) or None,
            sram_bytes=sum(r.bytes for r in regions if r.kind == "sram") if regions else None,
            program_bytes=report.program_bytes,
            operators=report.operators,
            delegated=report.delegated,
            basis="; ".join(t.source for t in report.latency),
        )

    def beside(self, other: Price) -> float | None:
        """Return the time as a multiple of another one's, or the cycles if there is no time."""
        for own, its in ((self.milliseconds, other.milliseconds), (self.cycles, other.cycles)):
            if own is not None and its:
                return own / its
        return None


SAME, NEAR, TRAIN = "same results", "nearly the same results", "train again"


@dataclass(frozen=True)
class Idea:
    """A change of the network that was compiled.

    Attributes:
        name: replacement and original, such as "ReLU for SiLU".
        how: what to write.
        results: "same results", "nearly the same results", or "train again" if the network computes another function,
            so that its accuracy depends on training.
        places: number of operators that it changes; 0 for a change of the whole program.
        sources: their source lines in the model, or their modules if the line is torch's.
        price: of the changed program; None if it does not compile.
        ratio: its time as a multiple of the original network's; None without an estimate.
        failure: reason why it does not compile, or "".
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
        """True if it saves more than `WORTH` of the time."""
        return self.ratio is not None and self.ratio < 1 - WORTH

    def __str__(self) -> str:
        if self.ratio is None:
            return f"{self.name}: {self.failure or 'there is no estimate of its time'}"
        percent = 100 * (self.ratio - 1)
        return f"{self.name}: {percent:+.0f} % time, {self.results}. {self.how}"


@dataclass(frozen=True, repr=False)
class Advice(JsonReport):
    """Result of `micronpu.advise`.

    Attributes:
        target: name of the target.
        price: of the original network.
        hotspots: operations that take the most time, by processor, most expensive first.
        ideas: the changes that were tried, shortest time first.
        together: all ideas that save time, applied together; None if there are fewer than two, or they conflict.
        seconds: duration of the search.
    """

    FORMAT = "micronpu advice"

    target: str
    price: Price
    hotspots: tuple[Hotspot, ...]
    ideas: tuple[Idea, ...]
    together: Idea | None
    seconds: float

    ALSO: ClassVar[tuple[str, ...]] = ("worth",)

    @property
    def worth(self) -> tuple[Idea, ...]:
        """Return the ideas that save time."""
        return tuple(idea for idea in self.ideas if idea.is_worth)

    @property
    def summary(self) -> str:
        """Return a sentence with the number of ideas, and those that save time."""
        if self.price.cycles is None:
            return f"There is no estimate of time for {self.target}, so that no change can be judged."
        tried = f"{plural(len(self.ideas), 'change')} of the network compiled in {self.seconds:.0f} s"
        if not self.worth:
            return f"{tried}: none saves time."
        return f"{tried}: {len(self.worth)} of them {'saves' if len(self.worth) == 1 else 'save'} time."

    def __str__(self) -> str:
        lines = [self.summary, *(f"  - {spot}" for spot in self.hotspots[:5])]
        lines += [f"  - {idea}" for idea in self.worth]
        if self.together is not None:
            lines.append(f"  - {self.together}")
        return "\n".join(lines)
