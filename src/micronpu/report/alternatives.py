"""Alternatives with their cost: one model on many targets, and changes of the network."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from micronpu.base.texts import plural
from micronpu.report.delegation import DelegationReport
from micronpu.report.memory import MemoryReport
from micronpu.report.operations import Hotspot
from micronpu.report.shown import JsonReport


@dataclass(frozen=True)
class Candidate:
    """Result of a compilation for one target.

    Attributes:
        activations: "int8" or "int16".
        milliseconds: of a call, all processors together; None without an estimate.
        low, high: band of `milliseconds`.
        sram, flash: bytes; None if the program was not compiled.
        fits: False if a memory of the chip is too small, None if its file has no size.
        share: of the operators on the NPU, or in int8 on a core alone, 0 to 1.
        partitions: calls of the NPU.
        sqnr: against float, in dB.
        score: value of the metric on the given data, or None.
        blocks: operators that are not on the NPU, or the reason why there is no program.
        failed: True if there is no program.
        what: core, NPU, their clocks and the memory of the activations, and the number of assumed values; or "".
        resident: effect of weights in SRAM, if they are in flash and would fit; or "".
        basis: source of the time and its band, a clause for each processor; or "".
        sram_share, flash_share: used share of the chip's memories; None if its file has no size.
    """

    target: str
    activations: str
    milliseconds: float | None = None
    low: float | None = None
    high: float | None = None
    sram: int | None = None
    flash: int | None = None
    fits: bool | None = None
    share: float = 0.0
    partitions: int = 0
    sqnr: float | None = None
    score: float | None = None
    blocks: str = ""
    failed: bool = False
    what: str = ""
    resident: str = ""
    basis: str = ""
    sram_share: float | None = None
    flash_share: float | None = None

    @classmethod
    def of(
        cls, target: str, activations: str, report: DelegationReport, score: float | None = None, what: str = ""
    ) -> Candidate:
        head, memory = report.headline, report.memory
        left = list(dict.fromkeys(v.operator for v in report.left_over))
        known = [r.over == 0 for r in memory.regions if r.capacity is not None] if memory is not None else []
        figures = (head.milliseconds, head.low, head.high, head.sram, head.flash, all(known) if known else None)
        return cls(
            *(target, activations, *figures, report.share, report.partitions, head.sqnr, score),
            blocks=f"{plural(len(report.left_over), 'operator')}: {', '.join(left)}" if left else "",
            what=what,
            resident="" if report.resident is None else str(report.resident),
            basis="; ".join(t.source for t in report.latency),
            sram_share=_share(memory, "sram", "dram"),
            flash_share=_share(memory, "flash"),
        )


def _share(memory: MemoryReport | None, *kinds: str) -> float | None:
    """Return the largest used share of a memory of these kinds; None if none of them has a size."""
    regions = memory.regions if memory is not None else ()
    parts = [r.bytes / r.capacity for r in regions if r.kind in kinds and r.capacity]
    return max(parts, default=None)


@dataclass(frozen=True, repr=False)
class Candidates(JsonReport):
    """Results for all targets, in the order of the request.

    Attributes:
        metric: name of the metric of the scores, or "".
        candidates: one for each target and setting.
    """

    FORMAT = "micronpu comparison"
    ALSO: ClassVar[tuple[str, ...]] = ("front",)

    model: str
    metric: str
    candidates: tuple[Candidate, ...]

    @property
    def front(self) -> tuple[int, ...]:
        """Return positions of those that fit and that no other beats in time, SRAM, flash and accuracy at once."""
        return tuple(
            i
            for i, c in enumerate(self.candidates)
            if _can_be_best(c) and not any(_beats(o, c) for o in self.candidates if o is not c and _can_be_best(o))
        )

    @property
    def line(self) -> tuple[int, ...]:
        """Return positions of those that fit and that no other beats in time and SRAM, the fastest first."""
        known = [
            (c.milliseconds, c.sram, i)
            for i, c in enumerate(self.candidates)
            if _can_be_best(c) and c.milliseconds is not None and c.sram is not None
        ]
        found: list[int] = []
        least = float("inf")
        for _, sram, i in sorted(known):
            if sram < least:
                found.append(i)
                least = sram
        return tuple(found)


def _can_be_best(candidate: Candidate) -> bool:
    return not candidate.failed and candidate.fits is not False and candidate.milliseconds is not None


def _goods(candidate: Candidate) -> tuple[float, ...]:
    """Return figures of which more is better; an unknown one is -inf."""
    worst = float("-inf")
    less = (candidate.milliseconds, candidate.sram, candidate.flash)
    more = candidate.score if candidate.score is not None else candidate.sqnr
    return (*(worst if n is None else -n for n in less), worst if more is None else more)


_TOLERANCE = 0.01
"""Relative difference below which two values count as equal: estimates and measured accuracy are no more exact."""


def _beats(a: Candidate, b: Candidate) -> bool:
    pairs = list(zip(_goods(a), _goods(b), strict=True))
    close = [x == y or math.isclose(x, y, rel_tol=_TOLERANCE) for x, y in pairs]
    better = [x > y and not near for (x, y), near in zip(pairs, close, strict=True)]
    return any(better) and all(near or more for near, more in zip(close, better, strict=True))


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


@dataclass(frozen=True, repr=False)
class Advice(JsonReport):
    """Result of `micronpu.advise`.

    Attributes:
        price: of the original network.
        hotspots: operations that take the most time, by processor, most expensive first.
        ideas: the changes that were tried, shortest time first.
        together: all ideas that save more than `WORTH`, together; None if there are fewer than two, or they conflict.
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
        """Return the ideas that save more than `WORTH` of the time."""
        return tuple(idea for idea in self.ideas if idea.is_worth)

    @property
    def summary(self) -> str:
        """Return a sentence with the number of ideas, and of those worth it."""
        if self.price.cycles is None:
            return f"There is no estimate of time for {self.target}, so that no change can be judged."
        tried = f"{plural(len(self.ideas), 'change')} of the network compiled in {self.seconds:.0f} s"
        if not self.worth:
            return f"{tried}: none saves more than {WORTH:.0%} of the time."
        return f"{tried}: {len(self.worth)} of them save{'s' * (len(self.worth) == 1)} more than {WORTH:.0%}."
