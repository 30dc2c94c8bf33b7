"""Differences of two reports: delegation, cycles, memory, accuracy, bytes, and operators that moved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from micronpu.base.errors import ModelError
from micronpu.report.delegation import DelegationReport
from micronpu.report.manifest import Cause
from micronpu.report.operations import Operation
from micronpu.report.shown import JsonReport
from micronpu.report.verdict import Verdict

HOST, _SQNR = "host, float", "SQNR against float, dB"


@dataclass(frozen=True)
class Figure:
    """A number of both reports.

    Attributes:
        name: with its unit.
        before, after: None if a report does not have it.
        digits: number of significant decimal places.
    """

    ALSO: ClassVar[tuple[str, ...]] = ("change",)

    name: str
    before: float | None
    after: float | None
    digits: int = 0

    @property
    def change(self) -> float | None:
        """Return `after` minus `before`."""
        return None if self.before is None or self.after is None else self.after - self.before


@dataclass(frozen=True)
class Moved:
    """An operator of the model that runs on another processor.

    Attributes:
        before, after: "NPU", "host, float", the name of the core, or "" if the model does not have it.
        why: the first reason why it is not on the NPU in the second report, or "".
    """

    node: str
    operator: str
    before: str
    after: str
    source: str = ""
    why: str = ""


@dataclass(frozen=True)
class Changed:
    """An operation of the NPU whose name or cycles changed.

    Attributes:
        nodes: operators of the model that it computes.
        before, after: name of the operation; "" if there is none for these operators.
        cycles_before, cycles_after: None if unknown.
    """

    nodes: tuple[str, ...]
    before: str
    after: str
    cycles_before: int | None
    cycles_after: int | None
    source: str = ""


@dataclass(frozen=True, repr=False)
class Difference(JsonReport):
    """Differences of two reports or programs.

    Attributes:
        before, after: names of the two.
        figures: all that either report has, changed or not.
        moved: operators of the model.
        operations: of the NPU.
        causes: differing inputs of the compilations, if requested and known.
    """

    FORMAT = "micronpu difference"
    ALSO: ClassVar[tuple[str, ...]] = ("is_any",)

    before: str
    after: str
    figures: tuple[Figure, ...]
    moved: tuple[Moved, ...] = ()
    operations: tuple[Changed, ...] = ()
    causes: tuple[Cause, ...] = ()

    @property
    def is_any(self) -> bool:
        """True if anything changed."""
        return bool(self.moved or self.operations or any(f.before != f.after for f in self.figures))


def difference(
    before: DelegationReport, after: DelegationReport, names: tuple[str, str] = ("before", "after")
) -> Difference:
    """Compare two reports of one model, or of two versions of it.

    Raises:
        ModelError: they have no operator in common.
    """
    first, second = ({v.node: v for v in report.verdicts} for report in (before, after))
    same = [n for n in first.keys() & second.keys() if first[n].operator == second[n].operator]
    if first and second and not same:
        raise ModelError(
            f"{names[0]} and {names[1]} are of different networks: no operator of one is in the other.",
            hint="reports of one model, compiled twice",
        )
    moved = [_moved(node, first.get(node), second.get(node)) for node in dict.fromkeys((*first, *second))]
    return Difference(
        *names, _figures(before, after), tuple(m for m in moved if m.before != m.after), _operations(before, after)
    )


def _moved(node: str, before: Verdict | None, after: Verdict | None) -> Moved:
    there = after or before
    assert there is not None
    why = str(after.reasons[0].detail) if after is not None and after.reasons else ""
    return Moved(node, there.operator, _place(before), _place(after), there.origin.source, why)


def _place(verdict: Verdict | None) -> str:
    if verdict is None:
        return ""
    return "NPU" if verdict.delegated else verdict.core or HOST


def _figures(before: DelegationReport, after: DelegationReport) -> tuple[Figure, ...]:
    """Return figures of each processor and memory that either report has, most important first."""
    a, b = (_numbers(report) for report in (before, after))
    nothing = None, 0
    if len({r.accuracy.measured_on for r in (before, after) if r.accuracy is not None}) > 1:
        a, b = ({f"{name} (other samples)" if name == _SQNR else name: n for name, n in own.items()} for own in (a, b))
    pairs = ((name, a.get(name, nothing), b.get(name, nothing)) for name in dict.fromkeys((*a, *b)))
    return tuple(Figure(name, first[0], second[0], max(first[1], second[1])) for name, first, second in pairs)


def _numbers(report: DelegationReport) -> dict[str, tuple[float, int]]:
    """Return value and decimal places by name."""
    found: dict[str, tuple[float, int]] = {
        "operators": (report.operators, 0),
        "on the NPU": (report.delegated, 0),
        "partitions": (report.partitions, 0),
        "in float on the host": (len(report.in_float), 0),
        "MACs": (report.macs, 0),
    }
    if (time := report.headline.milliseconds) is not None:
        found["time of a call, ms"] = (time, max(latency.digits for latency in report.latency))
    for latency in report.latency:
        found[f"{latency.processor}, ms"] = (latency.milliseconds, latency.digits)
        found[f"{latency.processor}, cycles"] = (latency.cycles, 0)
    if report.memory is not None:  # chips name their memories differently
        found |= {"flash, bytes": (report.memory.flash, 0), "SRAM, bytes": (report.memory.sram, 0)}
    if report.program_bytes:
        found["file of the program, bytes"] = (report.program_bytes, 0)
    if report.accuracy is not None and report.accuracy.sqnr is not None:
        found[_SQNR] = (round(report.accuracy.sqnr, 2), 1)
    return found


def _operations(before: DelegationReport, after: DelegationReport) -> tuple[Changed, ...]:
    first, second = (_by_nodes(report) for report in (before, after))
    found = []
    for nodes in dict.fromkeys((*first, *second)):
        a, b = first.get(nodes, ()), second.get(nodes, ())
        (name_a, cycles_a), (name_b, cycles_b) = _said(a), _said(b)
        if (name_a, cycles_a) != (name_b, cycles_b):
            source = (b or a)[0].origin.source
            found.append(Changed(nodes, name_a, name_b, cycles_a, cycles_b, source))
    return tuple(found)


def _by_nodes(report: DelegationReport) -> dict[tuple[str, ...], tuple[Operation, ...]]:
    found: dict[tuple[str, ...], tuple[Operation, ...]] = {}
    for operation in report.operations:
        nodes = operation.origin.nodes
        found[nodes] = (*found.get(nodes, ()), operation)
    return found


def _said(operations: tuple[Operation, ...]) -> tuple[str, int | None]:
    """Return names in order, and the sum of the cycles."""
    costs = [o.cost.cycles for o in operations if o.cost is not None]
    return ", ".join(o.name for o in operations), sum(costs) if costs else None
