"""Reports for the terminal, as renderables of rich."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from micronpu.partition.report import DelegationReport
from micronpu.partition.verdict import Reason, Verdict
from micronpu.report.rows import (
    NOTHING,
    Row,
    cost_texts,
    kind_of_rows,
    macs_sentence,
    macs_text,
    partition_rows,
    plural,
    sentence,
    shape_text,
    short_source,
)

if TYPE_CHECKING:
    from micronpu.compiler.program import CompiledProgram


def report_view(report: DelegationReport) -> RenderableType:
    """Summary, a table per partition, what stays on the host and why, and the notes."""
    parts: list[RenderableType] = [_summary(report)]
    for number, rows in partition_rows(report).items():
        parts += ["", _partition(number, rows, kind_of_rows(report))]
    if report.host:
        parts += ["", Text(f"On the host: {plural(len(report.host), 'operator')}", style="bold yellow")]
        parts += [_host(v) for v in report.host]
    if report.notes:
        parts.append("")
        parts += [Text.assemble(("Note: ", "bold"), note) for note in report.notes]
    return Group(*parts)


def program_view(program: CompiledProgram) -> RenderableType:
    """The report, the size of the program and where the time went."""
    return Group(report_view(program.report), "", Text(f".pte of {len(program.buffer):,} bytes"), _seconds(program))


def _summary(report: DelegationReport) -> RenderableType:
    style = "bold green" if not report.host else "bold yellow" if report.delegated else "bold red"
    line = Text(f"{report.summary()}.", style=style)
    macs = macs_sentence(report)
    return Group(line, Text(f"{macs}.")) if macs else line


def _partition(number: int, rows: list[Row], kind: str) -> RenderableType:
    macs = sum(row.macs for row in rows)
    table = Table(
        title=f"Partition {number}: {plural(len(rows), kind)}" + (f", {macs:,} MACs" if macs else ""),
        title_style="bold",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        show_edge=False,
    )
    table.add_column(kind, style="cyan", no_wrap=True)
    table.add_column("result", no_wrap=True)
    table.add_column("MACs", justify="right", no_wrap=True)
    costs = any(row.cost is not None for row in rows)
    if costs:
        table.add_column("cycles", justify="right", no_wrap=True)
        table.add_column("bound by", no_wrap=True)
        table.add_column("use", justify="right", no_wrap=True)
    table.add_column("module", overflow="fold")
    table.add_column("source", overflow="fold", style="dim")
    for row in rows:
        source = short_source(row.source) or NOTHING
        # Text, not str: brackets in a name are no markup.
        cells = [row.name, shape_text(row.shape), macs_text(row.macs), *(cost_texts(row.cost) if costs else ())]
        table.add_row(*(Text(t) for t in (*cells, row.module or NOTHING, source)))
    return table


def _host(verdict: Verdict) -> RenderableType:
    where = ", ".join(t for t in (verdict.origin.module, short_source(verdict.origin.source)) if t)
    line = Text.assemble(
        (verdict.node, "bold"),
        f"  {verdict.operator}",
        f"  {shape_text(verdict.shape)}" if verdict.shape else "",
        (f"  {where}" if where else "", "dim"),
        (f"  int8 on {verdict.core}" if verdict.core else "", "green"),
    )
    return Group(Padding(line, (0, 0, 0, 2)), *(Padding(_reason(r), (0, 0, 0, 4)) for r in verdict.reasons))


def _reason(reason: Reason) -> RenderableType:
    lines = [("Rule", reason.sentence), ("Found", sentence(reason.detail))]
    if reason.hint:
        lines.append(("Try", sentence(reason.hint)))
    grid = Table.grid(padding=(0, 1))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for label, text in lines:
        grid.add_row(f"{label}:", Text(text))
    return grid


def _seconds(program: CompiledProgram) -> RenderableType:
    steps = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in program.seconds.items())
    return Text(f"{sum(program.seconds.values()):.2f} s: {steps}", style="dim")
