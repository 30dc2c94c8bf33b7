"""Reports for the terminal, as renderables of rich."""

from __future__ import annotations

from collections.abc import Mapping

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from micronpu.base.texts import NOTHING, file_name, plural, sentence, shape_text, short_source
from micronpu.report.delegation import DelegationReport, MethodsReport
from micronpu.report.plain import plain_table
from micronpu.report.shown import shows
from micronpu.report.verdict import HostGroup, Reason, host_groups
from micronpu.report.views.rows import (
    TOP,
    WHOLE,
    TableRow,
    cost_share,
    cost_texts,
    costliest,
    explained,
    folded,
    kind_of_rows,
    macs_text,
    partition_rows,
    total_cycles,
    totals,
)
from micronpu.report.warnings import ReportWarning

_COSTS = ("cycles", "µs", "bound by", "use")
_NUMBERS = ("MACs", "cycles", "µs", "use")
_LEAST_SAYING = ("use", "µs", "bound by", "module", "result")
"""Columns that a narrow terminal omits, in this order."""
_SHORT = 30
"""Characters of a source, such as the name of a file's tensor, that are shown before columns are omitted."""


@shows(DelegationReport)
def report_view(report: DelegationReport, top: int | None = None, every: bool = False) -> RenderableType:
    """Return headline, what to do next, a table per partition, operators on the core with reasons, and notes.

    Args:
        top: number of most expensive lines of each table that are shown; default: `TOP` in tables of more than `WHOLE`
            lines, else all.
        every: show each operation separately, including repeated steps, and details of the compilation.
    """
    parts = [*_headline(report), *_next(report)]
    partitions = partition_rows(report)
    for number, rows in partitions.items():
        name = f"Partition {number}" if report.has_npu else f"Part {number} on the core"
        parts += ["", *_partition(name, rows, kind_of_rows(report), top, every)]
    tables = [part for part in parts if isinstance(part, _Partition)]
    parts.append(_Words([row for rows in partitions.values() for row in rows], tables))
    if report.host:
        style = "bold yellow" if report.left_over else "bold green"
        where = "the core" if report.has_npu else report.target
        macs = f", {work:,} MACs" if (work := report.macs - report.delegated_macs) else ""
        parts += ["", Text(f"On {where}: {plural(len(report.host), 'operator')}{macs}", style=style)]
        groups = [HostGroup((v,)) for v in report.host] if every else host_groups(report.host, report.core_operations)
        parts += map(_host, groups)
    times = [text for text in report.times if not text.startswith("Energy")]
    times += [f"SRAM: {report.memory.peak}."] if report.memory is not None and report.memory.peak else []
    figures, notes = (report.figures, report.all_remarks) if every else (times, report.remarks)
    if figures:
        parts.append("")
        parts += [_named(text) for text in figures]
    if notes:
        parts.append("")
        parts += [Text.assemble(("Note: ", "bold"), note) for note in notes]
    return Group(*parts)


@shows(MethodsReport)
def methods_view(report: MethodsReport) -> RenderableType:
    """Return shared figures of the methods, and the view of each."""
    parts: list[RenderableType] = [Text(f"{report.summary()}.", style="bold"), *map(Text, report.whole)]
    for name, own in report.methods.items():
        parts += ["", Text(f"Method {name}", style="bold cyan"), report_view(own)]
    return Group(*parts)


def _named(text: str) -> Text:
    """Return a line "Name: text" with its name in bold."""
    name, _, rest = text.partition(":")
    return Text.assemble((f"{name}:", "bold"), rest)


def _headline(report: DelegationReport) -> list[RenderableType]:
    style = "bold green" if not report.left_over else "bold yellow" if report.share else "bold red"
    lines = report.headline.lines
    name, _, rest = lines[-1].partition(":")
    return [*map(_named, lines[:-1]), Text.assemble((f"{name}:", "bold"), (rest, style))]


def _next(report: DelegationReport) -> list[RenderableType]:
    """Return severe warnings in frames, and a list of what else to try."""
    severe = [warning for warning in report.warnings if warning.is_severe]
    parts: list[RenderableType] = [warning_view(warning) for warning in severe]
    if steps := report.next_steps[len(severe) :]:
        table = Table.grid(padding=(0, 1))
        table.add_column(justify="right", style="bold yellow", no_wrap=True)
        table.add_column(overflow="fold")
        for number, step in enumerate(steps, 1):
            table.add_row(f"{number}.", Text(step))
        parts += ["", Text("What to do next:", style="bold yellow"), table]
    return parts


def warning_view(warning: ReportWarning) -> RenderableType:
    """Return a severe warning in a red frame."""
    text = Text.assemble((warning.what, "bold"), "\n", ("Try: ", "dim"), sentence(warning.hint))
    return Group("", Panel(text, title="Warning", title_align="left", border_style="bold red"))


def program_view(
    report: DelegationReport, seconds: Mapping[str, float], top: int | None = None, every: bool = False
) -> RenderableType:
    """Return the report of a finished program, and the times of its compilation."""
    steps = ", ".join(f"{name} {time:.2f} s" for name, time in seconds.items())
    times = Text(f"{sum(seconds.values()):.2f} s: {steps}", style="dim")
    return Group(report_view(report, top, every), "", times)


def _partition(name: str, rows: list[TableRow], kind: str, top: int | None, every: bool) -> list[RenderableType]:
    """Return the table, and a note on what it leaves out."""
    title = f"{name}: {totals(rows, kind)}"
    lines = rows if every else folded(rows)
    most = top if top is not None else TOP if len(lines) > WHOLE else len(lines)
    if every or most >= len(lines):
        return [_Partition(title, lines, kind)]
    chosen = costliest(lines, most)
    share = cost_share(chosen, lines)
    shown, of = len(chosen), len(lines)
    note = f"The {shown} most costly of {of} lines{f', {share}' if share else ''}; --all shows every {kind}."
    return [_Partition(title, chosen, kind), Text(note, style="dim")]


class _Partition:
    """The table of a partition, as wide as the terminal allows.

    If the terminal is narrow, file names lose their folders, then the gaps between columns shrink, then long sources
    lose their beginning, and then the least important columns are omitted.
    """

    def __init__(self, title: str, rows: list[TableRow], kind: str) -> None:
        self._title = title
        columns = {
            kind: [f"  {row.title}" if row.in_step else row.title for row in rows],
            "result": [NOTHING if row.steps else shape_text(row.shape) for row in rows],
            "MACs": [macs_text(row.macs) for row in rows],
        }
        if total_cycles(rows):
            texts = [cost_texts(row.cost) for row in rows]
            costs = {name: [text[i] for text in texts] for i, name in enumerate(_COSTS)}
            columns |= {name: cells for name, cells in costs.items() if set(cells) != {NOTHING}}
        columns["module"] = [row.module or NOTHING for row in rows]
        columns["source"] = [short_source(row.source) or NOTHING for row in rows]
        self._columns = columns

    def fitting(self, width: int) -> tuple[dict[str, list[str]], int]:
        """Return the columns that fit into so many characters, and the width of the gap between them."""
        columns, gap = dict(self._columns), 3
        if _width(columns, gap) > width:
            columns["source"] = [file_name(source) for source in columns["source"]]
        if _width(columns, gap) > width:
            gap = 2
        if (excess := _width(columns, gap) - width) > 0:
            most = max(max(map(cell_len, columns["source"])) - excess, _SHORT)
            columns["source"] = [_ending(source, most) for source in columns["source"]]
        for name in _LEAST_SAYING:
            if _width(columns, gap) > width:
                columns.pop(name, None)
        return columns, gap

    @property
    def width(self) -> int:
        """Least width that shows all columns."""
        sources = [_ending(file_name(source), _SHORT) for source in self._columns["source"]]
        return _width(self._columns | {"source": sources}, 2)

    def left_out(self, width: int) -> list[str]:
        """Return the columns that do not fit into so many characters."""
        return [name for name in self._columns if name not in self.fitting(width)[0]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        columns, gap = self.fitting(options.max_width)
        padding = (0, 1) if gap == 3 else (0, 1, 0, 0)
        bold = {"title_style": "bold", "title_justify": "left"}
        table = plain_table(*columns, numbers=_NUMBERS, title=self._title, padding=padding, **bold)
        for place, (name, column) in enumerate(zip(columns, table.columns, strict=True)):
            column.style = "cyan" if place == 0 else "dim" if name == "source" else ""
        for cells in zip(*columns.values(), strict=True):
            # Text, not str, because brackets in a name are not markup.
            table.add_row(*map(Text, cells))
        yield table


class _Words:
    """Meaning of the terms in the tables, only for columns that the terminal shows."""

    def __init__(self, rows: list[TableRow], tables: list[_Partition]) -> None:
        self._rows, self._tables = rows, tables

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        columns = {name for table in self._tables for name in table.fitting(options.max_width)[0]}
        if words := explained(self._rows, columns):
            yield Text(f"{words}.", style="dim")
        if missing := [name for table in self._tables for name in table.left_out(options.max_width)]:
            text = f"Left out, as lines are short: {', '.join(dict.fromkeys(missing))}"
            wide = max(table.width for table in self._tables)
            yield Text(f"{text}. COLUMNS={wide} or --report-html shows all.", style="dim")


def _ending(text: str, most: int) -> str:
    """Return at most so many of the last characters."""
    return text if len(text) <= most else f"…{text[1 - most :]}"


def _width(columns: dict[str, list[str]], gap: int) -> int:
    """Return the width of a table with ``gap`` characters between the columns."""
    return sum(max(map(cell_len, (name, *cells))) for name, cells in columns.items()) + gap * (len(columns) - 1)


def _host(group: HostGroup) -> RenderableType:
    first = group.verdicts[0]
    more = "".join(f"  {fact}" for fact in group.facts)
    where = f"  {group.places}" if group.places else ""
    core = f"  int8 on {first.core}" if first.core else ""
    line = Text.assemble((group.title, "bold"), more, (where, "dim"), (core, "green"))
    return Group(Padding(line, (0, 0, 0, 2)), *(Padding(_reason(r), (0, 0, 0, 4)) for r in first.reasons))


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
