"""What the terminal and the page both show of a report, as plain rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from micronpu.report.delegation import Cost, DelegationReport, Operation
from micronpu.report.texts import NOTHING, plural
from micronpu.report.verdict import Verdict


@dataclass(frozen=True)
class Row:
    """A line of a partition's table.

    Attributes:
        name: operation of the NPU, or operator of the model where nothing is compiled yet.
        detail: the operation with its attributes, or the operator's node.
        shape: sizes of the result.
        macs: multiply-accumulate operations.
        nodes: names of the nodes of the exported program that it stands for.
        module: path of the submodule, or "".
        source: ``file:line`` of the user's model, or "".
        cost: estimate of the NPU's compiler, or None.
        count: how many equal operations in a row, of which no cost is known, the line stands for.
    """

    name: str
    detail: str
    shape: tuple[int, ...]
    macs: int
    nodes: tuple[str, ...]
    module: str
    source: str
    cost: Cost | None = None
    count: int = 1

    @property
    def title(self) -> str:
        """The name, with the number of operations where there are several."""
        return self.name if self.count == 1 else f"{self.count} x {self.name}"


def partition_rows(report: DelegationReport) -> dict[int, list[Row]]:
    """The rows of every partition by its number: NPU operations, or the model's operators before compilation."""
    rows: dict[int, list[Row]] = {}
    for operation in report.operations:
        row = _row(operation, operation.name, operation.attributes)
        rows.setdefault(operation.partition, []).append(replace(row, cost=operation.cost))
    for verdict in report.verdicts if not rows else ():
        if verdict.partition is not None:
            rows.setdefault(verdict.partition, []).append(_row(verdict, verdict.operator, verdict.node))
    return {number: _joined(members) for number, members in sorted(rows.items())}


def _row(of: Operation | Verdict, name: str, attributes: str) -> Row:
    return Row(name, attributes, of.shape, of.macs, of.origin.nodes, of.origin.module, of.origin.source)


def _joined(rows: Iterable[Row]) -> list[Row]:
    """One line for equal operations in a row, such as the slices of a split."""
    joined: list[Row] = []
    for row in rows:
        last = joined[-1] if joined else None
        if last is not None and _looks(last) == _looks(row):
            joined[-1] = replace(last, macs=last.macs + row.macs, count=last.count + 1)
        else:
            joined.append(row)
    return joined


def _looks(row: Row) -> object:
    """What two lines have to share to be one; a cost is always shown by itself."""
    return row.name, row.shape, row.nodes, row.module, row.source, id(row) if row.cost is not None else None


def kind_of_rows(report: DelegationReport) -> str:
    """What the rows are: "NPU operation" or "operator"."""
    return "NPU operation" if report.operations else "operator"


def macs_text(macs: int) -> str:
    return f"{macs:,}" if macs else NOTHING


def cost_texts(cost: Cost | None) -> tuple[str, str, str, str]:
    """Cycles, microseconds, what takes the longest, how full the multipliers are; dashes where that is not known."""
    if cost is None or not cost.cycles:
        return NOTHING, NOTHING, NOTHING, NOTHING
    time = f"{cost.microseconds:,.{1 if cost.microseconds < 100 else 0}f}" if cost.microseconds is not None else NOTHING
    return f"{cost.cycles:,}", time, cost.bound_by, f"{cost.utilisation:.0%}" if cost.utilisation else NOTHING


def total_cycles(rows: Iterable[Row]) -> int:
    """Cycles of the NPU for all rows; 0 where its compiler has no estimate."""
    return sum(row.cost.cycles for row in rows if row.cost is not None)


def totals(rows: Sequence[Row], kind: str) -> str:
    """``13 NPU operations, 2,656,768 MACs, 84,011 cycles``; what is zero or not known is left out."""
    macs, cycles = sum(row.macs for row in rows), total_cycles(rows)
    parts = [plural(sum(row.count for row in rows), kind)]
    parts += [f"{macs:,} MACs"] if macs else []
    parts += [f"{cycles:,} cycles"] if cycles else []
    return ", ".join(parts)


def macs_sentence(report: DelegationReport) -> str:
    """Where the arithmetic runs, or "" where there is none."""
    parts = [f"{report.delegated_macs:,} multiply-accumulate operations on the NPU"] if report.delegated_macs else []
    host = report.macs - report.delegated_macs
    unknown = sum(not v.macs for v in report.host)
    if host:
        parts.append(f"{host:,} on the host" if parts else f"{host:,} multiply-accumulate operations on the host")
    if parts and unknown:
        parts.append(f"without those of {plural(unknown, 'operator')} on the host, which are not known")
    return ", ".join(parts)
