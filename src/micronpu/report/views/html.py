"""Reports and comparisons as self-contained web pages, from the templates of `web`."""

from __future__ import annotations

import math
import re
from html import escape
from typing import TYPE_CHECKING

from markupsafe import Markup

from micronpu.report.accuracy import decibel_text
from micronpu.report.alternatives import Candidates
from micronpu.report.delegation import DelegationReport, MethodsReport
from micronpu.report.difference import Difference
from micronpu.report.operations import hotspots
from micronpu.report.shown import shown, shows
from micronpu.report.verdict import host_groups
from micronpu.report.views import web
from micronpu.report.views.rows import (
    TOP,
    WHOLE,
    TableRow,
    cost_share,
    costliest,
    explained,
    folded,
    kind_of_rows,
    partition_rows,
    total_cycles,
    totals,
    weight,
)
from micronpu.report.views.tables import (
    BEST,
    CANDIDATE_NUMBERS,
    CANDIDATE_TEXTS,
    candidate_columns,
    candidate_texts,
    changed_texts,
    figure_texts,
    moved_texts,
)

if TYPE_CHECKING:
    from micronpu.report.diagnosis import Blame


_VALUE = re.compile(r"(\w+ )?[\d,.]*\d( of [\d,]+)?( ms| dB)?")
"""The number in a line of the headline, with its unit."""


@shows(DelegationReport, "page")
def page(report: DelegationReport, blame: Blame | None = None, *, graph: bool = True) -> str:
    """Return the page as text: styles, scripts and data are inside, nothing is fetched.

    Args:
        blame: errors per layer, by which the graph can be coloured.
        graph: include the network as a picture and sortable tables; otherwise the page has no script.
    """
    rows = partition_rows(report)
    lines = {number: folded(members) for number, members in rows.items()}
    everything = [row for members in lines.values() for row in members if not row.steps]
    costs, drawn = bool(total_cycles(everything)), graph and bool(report.verdicts)
    severe = [warning for warning in report.warnings if warning.is_severe]
    memory = report.memory if drawn else None
    arenas = [*enumerate(memory.arenas)] if memory is not None else []
    inside = memory.inside if memory is not None else ()
    captions = {f"{part}." for part in (*(arena for _, arena in arenas), *inside)}
    times = [f"{n.processor}: the time is estimated at {n.clock_mhz:g} MHz by {n.source}." for n in report.latency]
    return web.page(
        "report.html",
        report.summary(),
        report=report,
        tiles=[_tile(line) for line in report.headline.lines],
        severe=severe,
        steps=report.next_steps[len(severe) :],
        groups=host_groups(report.host, report.core_operations),
        graph=graph,
        drawn=drawn,
        costs=costs,
        kind=kind_of_rows(report),
        # All partitions share one scale, so that bars are comparable.
        largest=max((weight(row, costs) for row in everything), default=0),
        partitions=[_partition(number, rows[number], lines[number], kind_of_rows(report)) for number in rows],
        spots=hotspots(report.operations, report.core_operations),
        arenas=[(number, arena) for number, arena in arenas if arena.tensors],
        inside=inside,
        # Notes that neither a tile nor a drawing shows; details of the compilation are folded.
        notes=(*times, *report.remarks),
        details=[*(f for f in report.figures[len(report.latency) :] if f not in captions), *report.details],
        errors={
            layer.node: {"sqnr": round(layer.sqnr, 1), "own": decibel_text(layer.own).removesuffix(" dB")}
            for layer in (blame.layers if blame is not None else ())
            if math.isfinite(layer.sqnr)
        },
    )


@shows(DelegationReport, "notebook")
def framed(report: DelegationReport) -> str:
    """Return the page in an iframe, so that its styles do not affect the notebook; without the graph."""
    return _frame(page(report, graph=False), min(900, 420 + 34 * len(report.verdicts)))


@shows(MethodsReport, "page")
def methods_page(report: MethodsReport) -> str:
    """Return one page that contains the page of each method in an iframe."""
    frames = Markup("".join(_method(name, own, graph=True) for name, own in report.methods.items()))
    return web.page("methods.html", report.summary(), report=report, frames=frames)


@shows(MethodsReport, "notebook")
def framed_methods(report: MethodsReport) -> str:
    """Return the pages of the methods in iframes, without the graphs."""
    return "".join(_method(name, own, graph=False) for name, own in report.methods.items())


def _method(name: str, report: DelegationReport, *, graph: bool) -> str:
    return f"<section><h2>{escape(name)}</h2>{_frame(page(report, graph=graph), 900)}</section>"


def _frame(text: str, height: int) -> str:
    return f'<iframe srcdoc="{escape(text)}" style="width:100%;height:{height}px;border:0"></iframe>'


def _tile(line: str) -> tuple[str, str, str]:
    """Return a line of the headline as name, value and qualifiers."""
    name, _, text = line.partition(": ")
    value = found.group() if (found := _VALUE.match(text)) is not None else text.partition(" (")[0]
    return name, value, text[len(value) :].strip(" ,")


def _partition(number: int, rows: list[TableRow], lines: list[TableRow], kind: str) -> dict[str, object]:
    """Return a partition's table with repeated steps as groups, and all rows, which are folded, if there are groups."""
    about, every = "", rows if len(lines) < len(rows) else []
    of = sum(not row.steps for row in lines)
    if every and of > WHOLE:
        chosen = costliest(lines, TOP)
        share, lines = cost_share(chosen, lines), chosen
        about = f"The most costly of {of} lines{f', {share}' if share else ''}."
    words = explained(rows)
    return {
        "number": number, "lines": lines, "every": every, "about": about, "words": words, "totals": totals(rows, kind)
    }  # fmt: skip


@shows(Difference, "page")
def difference_page(difference: Difference) -> str:
    """Return the figures that changed, the operators that moved, and the operations that changed."""
    return web.page(
        "difference.html",
        f"{difference.before} → {difference.after}",
        difference=difference,
        figures=[figure_texts(f) for f in difference.figures if f.before != f.after],
        moved=[moved_texts(moved) for moved in difference.moved],
        operations=[changed_texts(changed) for changed in difference.operations],
    )


@shows(Candidates, "page")
def candidates_page(candidates: Candidates) -> str:
    """Return the table of the candidates, and their plot."""
    front = set(candidates.front)
    columns = ("", *candidate_columns(candidates))
    return web.page(
        "candidates.html",
        candidates.model,
        columns=columns,
        rows=[
            ("★" if n in front else "", *candidate_texts(c, candidates.metric))
            for n, c in enumerate(candidates.candidates)
        ],
        numbers=[i for i, name in enumerate(columns) if name in (*CANDIDATE_NUMBERS, candidates.metric) and name],
        texts=len(CANDIDATE_TEXTS),
        plot=Markup(shown(candidates, "plot")),
        BEST=BEST,
    )
