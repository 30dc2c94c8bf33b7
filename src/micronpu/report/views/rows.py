"""Rows of a report for the terminal and the page."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from micronpu.base.texts import NOTHING, plural
from micronpu.report.delegation import DelegationReport
from micronpu.report.operations import Cost, Operation, together
from micronpu.report.verdict import Verdict


@dataclass(frozen=True)
class TableRow:
    """A line of a partition's table.

    Attributes:
        name: operation of the NPU, or operator of the model before compilation.
        detail: the operation with its attributes, or the operator's node.
        shape: sizes of the result.
        macs: multiply-accumulate operations.
        nodes: names of its nodes in the exported program.
        module: path of the submodule, or "".
        source: ``file:line`` of the user's model, or "".
        cost: estimate of the NPU's compiler, or None.
        count: number of equal operations in the line; MACs and cost are their sums.
        steps: number of repetitions, in the head of a group of repeated lines; 0 in all other lines.
        members: number of lines of the group, which follow the head.
        in_step: True for a line of a group.
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
    steps: int = 0
    members: int = 0
    in_step: bool = False

    @property
    def title(self) -> str:
        """Return the name, with the number of operations if there are several."""
        if self.steps:
            return f"{self.steps} x these {plural(self.members, 'line')}"
        return self.name if self.count == 1 else f"{self.count} x {self.name}"


def partition_rows(report: DelegationReport) -> dict[int, list[TableRow]]:
    """Return the rows of every partition by its number: operations of the NPU or of a core without one, or the model's
    operators before compilation."""
    rows: dict[int, list[TableRow]] = {}
    for operation in report.operations if report.has_npu else report.core_operations:
        row = _row(operation, operation.name, operation.attributes)
        rows.setdefault(operation.partition, []).append(replace(row, cost=operation.cost))
    for verdict in report.verdicts if not rows else ():
        if verdict.partition is not None:
            rows.setdefault(verdict.partition, []).append(_row(verdict, verdict.operator, verdict.node))
    return {number: _joined(members) for number, members in sorted(rows.items())}


def _row(of: Operation | Verdict, name: str, attributes: str) -> TableRow:
    return TableRow(name, attributes, of.shape, of.macs, of.origin.nodes, of.origin.module, of.origin.source)


def _joined(rows: Iterable[TableRow]) -> list[TableRow]:
    """Join equal operations in a row, such as the slices of a split, into one line."""
    joined: list[TableRow] = []
    for row in rows:
        last = joined[-1] if joined else None
        if last is not None and _looks(last) == _looks(row):
            joined[-1] = replace(last, macs=last.macs + row.macs, count=last.count + 1)
        else:
            joined.append(row)
    return joined


def _looks(row: TableRow) -> object:
    """Return what two lines must share to be joined; lines with a cost are never joined."""
    return row.name, row.shape, row.nodes, row.module, row.source, id(row) if row.cost is not None else None


WHOLE = 24
TOP = 10
"""Maximum number of lines of a table that is not shortened, and number of lines that a shortened one shows."""
_LONGEST_STEP = 256
_LEAST_SAVED = 10
"""Maximum number of lines of a group, and minimum number of lines that it must save."""


def folded(rows: Sequence[TableRow]) -> list[TableRow]:
    """Group repeated steps, as of a recurrent network: a head, then the sums over all steps of each operation."""
    kinds: dict[object, int] = {}
    keys = [kinds.setdefault((r.name, r.shape, r.macs, r.module, r.source, r.count), len(kinds)) for r in rows]
    result: list[TableRow] = []
    begin = 0
    for start, length, times in _repeats(keys):
        result += rows[begin:start]
        begin = start + length * times
        members = [summed(rows[start + place : begin : length]) for place in range(length)]
        if length == 1:
            result += members
            continue
        head = replace(summed(rows[start:begin]), name="", detail="", shape=(), nodes=(), module="", source="")
        result.append(replace(head, steps=times, members=length))
        result += [replace(member, in_step=True) for member in members]
    return [*result, *rows[begin:]]


def _repeats(keys: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return start, length and number of repeated steps: of all lengths the shortest that saves the most lines."""
    lengths = range(1, min(_LONGEST_STEP, len(keys) // 3) + 1)
    best: dict[int, tuple[int, int, int]] = {}
    for length in lengths:
        same = 0  # number of keys from here on that equal the one a length later
        for at in range(len(keys) - length - 1, -1, -1):
            same = same + 1 if keys[at] == keys[at + length] else 0
            times = same // length + 1
            saved = length * (times - 1)
            if times >= 3 and saved >= _LEAST_SAVED and saved > best.get(at, (0, 0, 0))[0]:
                best[at] = saved, length, times
    found: list[tuple[int, int, int]] = []
    end = 0
    for at, (_, length, times) in sorted(best.items()):
        if at >= end:
            found.append((at, length, times))
            end = at + length * times
    return found


def summed(rows: Sequence[TableRow]) -> TableRow:
    """Return one line for several equal ones: the first, with the sums of counts, MACs and costs."""
    costs = [row.cost for row in rows if row.cost is not None]
    return replace(
        rows[0],
        macs=sum(row.macs for row in rows),
        count=sum(row.count for row in rows),
        cost=_sum(costs) if costs else None,
    )


def _sum(costs: Sequence[Cost]) -> Cost:
    cycles = sum(c.cycles for c in costs)
    memories = {name: sum(c.memory_cycles.get(name, 0) for c in costs) for c in costs for name in c.memory_cycles}
    return Cost(
        cycles=cycles,
        arithmetic_cycles=sum(c.arithmetic_cycles for c in costs),
        memory_cycles=memories,
        memory_bytes=max(c.memory_bytes for c in costs),
        utilisation=sum(c.utilisation * c.cycles for c in costs) / cycles if cycles else 0.0,
        start_cycles=sum(c.start_cycles for c in costs),
        clock_mhz=costs[0].clock_mhz,
        bus=together(c.bus for c in costs),
    )


def costliest(rows: Sequence[TableRow], most: int) -> list[TableRow]:
    """Return the ``most`` lines of the highest cost, of equal ones the earlier, in order, each under its head."""
    costs = bool(total_cycles(rows))
    lines = [i for i, row in enumerate(rows) if not row.steps]
    lines = [i for i in lines if weight(rows[i], costs)] or lines
    kept = set(sorted(lines, key=lambda i: (-weight(rows[i], costs), i))[:most])
    for place, row in enumerate(rows):
        if row.steps and not kept.isdisjoint(range(place + 1, place + 1 + row.members)):
            kept.add(place)
    return [rows[i] for i in sorted(kept)]


def cost_share(part: Sequence[TableRow], rows: Sequence[TableRow]) -> str:
    """Return the share of cycles or MACs in a part of the lines, as ``97 % of the cycles``; "" if there are none."""
    for name, costs in (("cycles", True), ("MACs", False)):
        of, everything = (sum(weight(r, costs) for r in lines if not r.steps) for lines in (part, rows))
        if everything:
            return f"{100 * of / everything:.0f} % of the {name}"
    return ""


def weight(row: TableRow, costs: bool) -> int:
    """Return cycles if the compiler estimates them, or else MACs."""
    return row.macs if not costs else row.cost.cycles if row.cost is not None else 0


def kind_of_rows(report: DelegationReport) -> str:
    """Return the kind of the rows: "NPU operation", "kernel" or "operator"."""
    return "NPU operation" if report.operations else "kernel" if report.core_operations else "operator"


def macs_text(macs: int) -> str:
    return f"{macs:,}" if macs else NOTHING


def cost_texts(cost: Cost | None) -> tuple[str, str, str, str]:
    """Return cycles, microseconds, bottleneck, and use of the multipliers; dashes for unknown ones."""
    if cost is None or not cost.cycles:
        return NOTHING, NOTHING, NOTHING, NOTHING
    time = f"{cost.microseconds:,.{1 if cost.microseconds < 100 else 0}f}" if cost.microseconds is not None else NOTHING
    return f"{cost.cycles:,}", time, cost.bound_by, f"{cost.utilisation:.0%}" if cost.utilisation else NOTHING


def total_cycles(rows: Iterable[TableRow]) -> int:
    """Return cycles of the NPU for all rows; 0 if its compiler has no estimate."""
    return sum(row.cost.cycles for row in rows if row.cost is not None)


def totals(rows: Sequence[TableRow], kind: str) -> str:
    """``13 NPU operations, 2,656,768 MACs, 84,011 cycles``; zero and unknown figures are left out."""
    macs, cycles = sum(row.macs for row in rows), total_cycles(rows)
    parts = [plural(sum(row.count for row in rows), kind)]
    parts += [f"{macs:,} MACs"] if macs else []
    parts += [f"{cycles:,} cycles"] if cycles else []
    return ", ".join(parts)


def explained(rows: Sequence[TableRow], columns: Collection[str] = ("bound by", "use")) -> str:
    """Return the meaning of terms in a table of these rows that shows these columns; "" for none."""
    found = []
    if total_cycles(rows):
        found += ["bound by: the bottleneck"] * ("bound by" in columns)
        found += ["use: MAC utilisation"] * ("use" in columns)
        found += [f"{NOTHING}: free, or part of another operation"] * any(
            row.cost is None or not row.cost.cycles for row in rows
        )
        found += ["MACs: as computed here, padding included"] * ("MACs" in columns)
    if any(row.title.split(" ")[0] == "table" for row in rows):
        found.append("table: an elementwise function, looked up")
    return "; ".join(found)
