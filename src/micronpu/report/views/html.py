"""Reports and comparisons as self-contained web pages."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from micronpu.base.files import write_file
from micronpu.report.accuracy import decibel_text
from micronpu.report.alternatives import Candidates
from micronpu.report.delegation import DelegationReport, MethodsReport
from micronpu.report.difference import Difference
from micronpu.report.operations import hotspots
from micronpu.report.shown import shown, shows
from micronpu.report.texts import NOTHING, file_name, plural, sentence, shape_text, short_source
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
    weight,
)
from micronpu.report.views.tables import (
    BEST,
    CANDIDATE_NUMBERS,
    CANDIDATE_TEXTS,
    candidate_columns,
    candidate_texts,
    figure_texts,
)
from micronpu.report.views.web import data, document, part
from micronpu.report.warnings import ReportWarning

if TYPE_CHECKING:
    from micronpu.report.diagnosis import Blame


_VALUE = re.compile(r"(\w+ )?[\d,.]*\d( of [\d,]+)?( ms| dB)?")
"""The number in a line of the headline, with its unit."""
_CYCLES = '<th class="number">cycles</th><th class="number">µs</th>'


_LIBRARIES = ("dagre.min.js", "cytoscape.min.js")
"""Layout and drawing of graphs; `web/README.md` lists their sources."""


@shows(DelegationReport, "page")
def write_html(report: DelegationReport, path: str | os.PathLike[str], blame: Blame | None = None) -> Path:
    """Write the page; an existing file is replaced only when the new one is complete.

    Args:
        blame: errors per layer, by which the graph can be coloured.

    Raises:
        FileError: it cannot be written.
    """
    return write_file(path, page(report, blame).encode())


def page(report: DelegationReport, blame: Blame | None = None, *, graph: bool = True) -> str:
    """Return the page as text: styles, scripts and data are inside, nothing is fetched.

    Args:
        blame: see `write_html`.
        graph: include the network as a picture and sortable tables; otherwise the page has no script.
    """
    # Operators on the core come first: they are what a reader may want to change.
    parts = [_head(report), _tiles(report), _next(report), _host(report)]
    kind = kind_of_rows(report)
    rows = partition_rows(report)
    lines = {number: folded(members) for number, members in rows.items()}
    everything = [row for members in lines.values() for row in members if not row.steps]
    costs = bool(total_cycles(everything))
    if graph and report.verdicts:
        parts += [part("network.html"), part("timeline.html") if costs else "", _hotspots(report), _memory(report)]
    # All partitions share one scale, so that bars are comparable.
    largest = max((weight(row, costs) for row in everything), default=0)
    parts += [_partition(number, rows[number], lines[number], kind, largest, costs) for number in rows]
    parts.append(_notes(report, drawn=graph and bool(report.verdicts)))
    body = "\n".join(part for part in parts if part)
    return document(report.summary(), body, _scripts(report, blame) if graph else "")


@shows(DelegationReport, "notebook")
def framed(report: DelegationReport) -> str:
    """Return the page in an iframe, so that its styles do not affect the notebook; without the graph."""
    height = min(900, 420 + 34 * len(report.verdicts))
    text = escape(page(report, graph=False))
    return f'<iframe srcdoc="{text}" style="width:100%;height:{height}px;border:0"></iframe>'


@shows(MethodsReport, "page")
def write_methods(report: MethodsReport, path: str | os.PathLike[str]) -> Path:
    """Write one page that contains the page of each method in an iframe.

    Raises:
        FileError: it cannot be written.
    """
    head = f'<header><p class="target">{escape(report.target)}</p><h1>{escape(report.summary())}</h1></header>'
    said = "".join(f"<p>{escape(line)}</p>" for line in report.whole)
    frames = "".join(_method(name, own, graph=True) for name, own in report.methods.items())
    return write_file(path, document(report.summary(), f"{head}\n{said}\n{frames}", "").encode())


@shows(MethodsReport, "notebook")
def framed_methods(report: MethodsReport) -> str:
    """Return the pages of the methods in iframes, without the graphs."""
    return "".join(_method(name, own, graph=False) for name, own in report.methods.items())


def _method(name: str, report: DelegationReport, *, graph: bool) -> str:
    text = escape(page(report, graph=graph))
    frame = f'<iframe srcdoc="{text}" style="width:100%;height:900px;border:0"></iframe>'
    return f"<section><h2>{escape(name)}</h2>{frame}</section>"


def _scripts(report: DelegationReport, blame: Blame | None) -> str:
    errors = {
        layer.node: {"sqnr": round(layer.sqnr, 1), "own": decibel_text(layer.own).removesuffix(" dB")}
        for layer in (blame.layers if blame is not None else ())
        if math.isfinite(layer.sqnr)
    }
    libraries = "\n".join(f"<script>{part(name)}</script>" for name in _LIBRARIES)
    return (
        f"{data('report', report.to_dict())}\n{data('errors', errors)}\n{libraries}\n"
        f"<script>{part('tables.js')}</script>\n<script>{part('report.js')}</script>"
    )


def _head(report: DelegationReport) -> str:
    return f"""<header>
<p class="target">{escape(report.target)}</p>
<h1>{escape(report.summary())}</h1>
{_split(report)}
</header>"""


def _split(report: DelegationReport) -> str:
    """Return the bar that shows the share of the delegated operators, or of those in int8."""
    share = f"{100 * report.share:.4g}"
    label = f"{share} % of the operators {'on the NPU' if report.has_npu else 'in int8'}"
    return f'<div class="split" role="img" aria-label="{label}"><span style="width:{share}%"></span></div>'


def _tiles(report: DelegationReport) -> str:
    """Return the headline as tiles: the value, and its qualifiers after it."""
    tiles = []
    for line in report.headline.lines:
        name, _, text = line.partition(": ")
        value = found.group() if (found := _VALUE.match(text)) is not None else text.partition(" (")[0]
        tiles.append((name, escape(value), escape(text[len(value) :].strip(" ,"))))
    return (
        '<section class="tiles">\n'
        + "\n".join(
            f'<div class="tile"><p class="label">{label}</p>'
            f'<p class="value">{value}</p><p class="more">{more}</p></div>'
            for label, value, more in tiles
        )
        + "\n</section>"
    )


def _memory(report: DelegationReport) -> str:
    """Return memory over time: the script draws it, sentences repeat it as text."""
    if report.memory is None:
        return ""
    figures = [
        f'<figure class="arena" data-arena="{number}"><figcaption>{escape(str(arena))}.</figcaption></figure>'
        for number, arena in enumerate(report.memory.arenas)
        if arena.tensors
    ]
    figures += [
        f'<figure class="arena" data-inside="{number}"><figcaption>{escape(str(part))}.</figcaption></figure>'
        for number, part in enumerate(report.memory.inside)
    ]
    if not figures:
        return ""
    parts = "\n".join(figures)
    return f"""<section class="card">
<h2>Memory over time</h2> <span class="about">bytes in use at each step</span>
{parts}
</section>"""


def _notes(report: DelegationReport, drawn: bool) -> str:
    """Return notes that neither a tile nor a drawing shows; details of the compilation are folded."""
    notes = [f"{n.processor}: the time is estimated at {n.clock_mhz:g} MHz by {n.source}." for n in report.latency]
    details = list(report.figures[len(report.latency) :])
    if drawn and report.memory is not None:
        captions = {f"{part}." for part in (*report.memory.arenas, *report.memory.inside)}
        details = [line for line in details if line not in captions]
    more = _paragraphs((*details, *report.details))
    folded = f'<details class="card"><summary><h2>Details</h2></summary>\n{more}\n</details>' if more else ""
    return "\n".join((_paragraphs((*notes, *report.remarks)), folded))


def _paragraphs(notes: Sequence[str]) -> str:
    return "\n".join(f'<p class="note">{_marked(note)}</p>' for note in notes)


def _next(report: DelegationReport) -> str:
    """Return severe warnings, which a screen reader announces at once, and a list of what else to try."""
    severe = [warning for warning in report.warnings if warning.is_severe]
    parts = [_warning(warning) for warning in severe]
    if steps := report.next_steps[len(severe) :]:
        items = "\n".join(f"<li>{_marked(step)}</li>" for step in steps)
        parts.append(f'<section class="mild"><h2>What to do next</h2>\n<ol>\n{items}\n</ol>\n</section>')
    return "\n".join(parts)


def _warning(warning: ReportWarning) -> str:
    where = " · ".join(t for t in (escape(warning.module), _source(warning.source, short_source(warning.source))) if t)
    facts = f'<p class="facts">{where}</p>' if warning.source else ""
    return f"""<section class="severe" role="alert">
<h2>Warning</h2>
<p>{_marked(warning.what)}</p>
<p>Try: {_marked(sentence(warning.hint))}</p>{facts}
</section>"""


_SPOTS = 5


def _hotspots(report: DelegationReport) -> str:
    """Return operations by name, most expensive first; nothing for fewer than three."""
    spots = hotspots(report.operations, report.core_operations)
    if len(spots) < 3:
        return ""
    lines = "\n".join(
        f'<tr><td class="name">{escape(spot.name)}</td><td>{escape(spot.processor)}</td>'
        f'<td class="number">{spot.count}</td>'
        f'<td class="number">{spot.cycles:,}</td><td class="number">{spot.share:.0%}</td>'
        f'<td class="number">{NOTHING if spot.use is None else f"{spot.use:.0%}"}</td>'
        f"<td>{_source(spot.sources[0], file_name(spot.sources[0])) if spot.sources else NOTHING}</td></tr>"
        for spot in spots[:_SPOTS]
    )
    numbers = "".join(f'<th class="number">{name}</th>' for name in ("count", "cycles", "share", "use"))
    return f"""<details class="card" open>
<summary><h2>Time by operation</h2></summary>
<div class="scroll"><table>
<thead><tr><th>operation</th><th>runs on</th>{numbers}<th>source</th></tr></thead>
<tbody>
{lines}
</tbody>
</table></div>
<p class="about">Use: MAC utilisation.</p>
</details>"""


def _partition(number: int, rows: list[TableRow], lines: list[TableRow], kind: str, largest: int, costs: bool) -> str:
    """Return the table with repeated steps as groups, and a folded table of all rows if there are groups."""
    apart = ""
    if len(lines) < len(rows):
        of = sum(not row.steps for row in lines)
        if of > WHOLE:
            chosen = costliest(lines, TOP)
            share, lines = cost_share(chosen, lines), chosen
            apart = f'<p class="about">The most costly of {of} lines{f", {share}" if share else ""}.</p>'
        apart += f"""
<details class="every"><summary>Every {escape(kind)}, {len(rows):,} lines</summary>
{_table(rows, kind, largest, costs)}
</details>"""
    words = f'<p class="about">{escape(explained(rows))}.</p>' if explained(rows) else ""
    return f"""<details class="card" open>
<summary><h2>Partition {number}</h2> <span class="about">{totals(rows, kind)}</span></summary>
{_table(lines, kind, largest, costs)}{words}{apart}
</details>"""


def _table(rows: list[TableRow], kind: str, largest: int, costs: bool) -> str:
    lines = "\n".join(_line(row, largest, costs) for row in rows)
    more = '<th>bound by</th><th class="number">use</th>' if costs else ""
    head = f'<th class="number">MACs</th>{_CYCLES if costs else ""}<th></th>{more}'
    return f"""<div class="scroll"><table class="sortable">
<thead>
<tr><th>{escape(kind)}</th><th>result</th>{head}<th>module</th><th>source</th></tr>
</thead>
<tbody>
{lines}
</tbody>
</table></div>"""


def _line(row: TableRow, largest: int, costs: bool) -> str:
    nodes = ", ".join(row.nodes)
    about = f"{row.detail}\nfrom {nodes}" if nodes and nodes != row.detail else row.detail
    share = 0 if row.steps else weight(row, costs)
    bar = f'<span class="bar" style="width:{100 * share / largest:.4g}%"></span>' if share else ""
    cells = f'<td class="number">{macs_text(row.macs)}</td>'
    if costs:
        cycles, time, bound, use = cost_texts(row.cost)
        cells += f'<td class="number">{cycles}</td><td class="number">{time}</td><td class="bars">{bar}</td>'
        cells += f'<td>{escape(bound)}</td><td class="number">{use}</td>'
    else:
        cells += f'<td class="bars">{bar}</td>'
    kind = ' class="steps"' if row.steps else ' class="step"' if row.in_step else ""
    return (
        f'<tr{kind}><td class="name" title="{escape(about)}">{escape(row.title)}</td>'
        f"<td>{NOTHING if row.steps else shape_text(row.shape)}</td>{cells}"
        f"<td>{escape(row.module) or NOTHING}</td><td>{_source(row.source, file_name(row.source))}</td></tr>"
    )


def _source(source: str, shown: str) -> str:
    return f'<code title="{escape(source)}">{escape(shown)}</code>' if source else NOTHING


def _host(report: DelegationReport) -> str:
    if not report.host:
        return ""
    entries = "\n".join(map(_group, host_groups(report.host)))
    return f"""<section class="card host">
<h2>On the core</h2> <span class="about">{plural(len(report.host), "operator")} and the reasons</span>
{entries}
</section>"""


def _group(group: HostGroup) -> str:
    first = group.verdicts[0]
    macs = sum(verdict.macs for verdict in group.verdicts)
    facts = [escape(fact) for fact in group.facts]
    facts += [f"{macs:,} MACs"] if macs else []
    facts += [f"int8 on {escape(first.core)}"] if first.core else []
    facts += [f"<code>{escape(group.places)}</code>"] if group.places else []
    return f"""<article>
<h3>{escape(group.title)}</h3>
<p class="facts">{" · ".join(facts)}</p>
{"".join(_reason(reason) for reason in first.reasons)}
</article>"""


def _reason(reason: Reason) -> str:
    hint = f"<dt>Try</dt><dd>{_marked(sentence(reason.hint))}</dd>" if reason.hint else ""
    return (
        f'<dl title="rule {escape(reason.rule)}"><dt>Rule</dt><dd>{_marked(reason.sentence)}</dd>'
        f"<dt>Found</dt><dd>{_marked(sentence(reason.detail))}</dd>{hint}</dl>"
    )


def _marked(text: str) -> str:
    """Return the text with code in place of backticks."""
    parts = text.split("`")
    if len(parts) % 2 == 0:  # an odd backtick is only a character
        return escape(text)
    return "".join(f"<code>{escape(part)}</code>" if i % 2 else escape(part) for i, part in enumerate(parts))


def write_difference(difference: Difference, path: str | os.PathLike[str]) -> Path:
    """Write the page; an existing file is replaced only when the new one is complete.

    Raises:
        FileError: it cannot be written.
    """
    title = f"{difference.before} → {difference.after}"
    changed = [f for f in difference.figures if f.before != f.after]
    parts = [_comparison_head("what changed", title)]
    if not difference.is_any:
        parts.append('<p class="note">Both say the same.</p>')
    if changed:
        parts.append(_card("Figures", ("", "before", "after", "change"), map(figure_texts, changed), {1, 2, 3}))
    if difference.moved:
        rows = (
            (f"{m.node} ({m.operator})", m.before or NOTHING, m.after or NOTHING, file_name(m.source), m.why)
            for m in difference.moved
        )
        parts.append(_card("Operators that moved", ("operator", "before", "after", "line", "why"), rows))
    if difference.operations:
        columns = ("before", "after", "cycles before", "cycles after", "line")
        cells = (
            (
                c.before or NOTHING,
                c.after or NOTHING,
                *(NOTHING if n is None else f"{n:,}" for n in (c.cycles_before, c.cycles_after)),
                file_name(c.source),
            )
            for c in difference.operations
        )
        parts.append(_card("Operations of the NPU", columns, cells, {2, 3}))
    return write_file(path, document(title, "\n".join(parts), _script()).encode())


def write_candidates(candidates: Candidates, path: str | os.PathLike[str]) -> Path:
    """Write the page; an existing file is replaced only when the new one is complete.

    Raises:
        FileError: it cannot be written.
    """
    front = set(candidates.front)
    columns = ("", *candidate_columns(candidates))
    rows = [
        ("★" if n in front else "", *candidate_texts(c, candidates.metric)) for n, c in enumerate(candidates.candidates)
    ]
    numbers = {i for i, name in enumerate(columns) if name in (*CANDIDATE_NUMBERS, candidates.metric) and name}
    note = f'<p class="note">★ {BEST}: time, SRAM, flash, accuracy.</p>'
    drawn = f'<div class="scroll plot">{shown(candidates, "plot")}</div>'
    chart = f'<section class="card">\n<h2>Time and memory</h2>\n{drawn}</section>'
    table = _card("Targets", columns, rows, numbers, texts=len(CANDIDATE_TEXTS))
    parts = (_comparison_head("one model, many targets", candidates.model), chart, table, note)
    body = "\n".join(parts)
    return write_file(path, document(candidates.model, body, _script()).encode())


def _script() -> str:
    return f"<script>{part('tables.js')}</script>"


def _comparison_head(kind: str, title: str) -> str:
    return f'<header>\n<p class="target">{kind}</p>\n<h1>{escape(title)}</h1>\n</header>'


def _texts(names: Sequence[str], texts: Sequence[str], width: int) -> str:
    said = " · ".join(f"{escape(name)}: {escape(text)}" for name, text in zip(names, texts, strict=True) if text)
    return f'<tr class="texts"><td colspan="{width}">{said}</td></tr>' if said else ""


def _card(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    numbers: Iterable[int] = frozenset(),
    texts: int = 0,
) -> str:
    """Return a sortable table.

    Args:
        numbers: columns that are aligned to the right.
        texts: number of last columns, which have a separate line below each row.
    """
    right, cells = set(numbers), len(columns) - texts
    kind = [' class="number"' if i in right else "" for i in range(cells)]
    head = "".join(f"<th{k}>{escape(name)}</th>" for k, name in zip(kind, columns, strict=False))
    names = [f' data-name="{escape(name)}"' if texts else "" for name in columns]
    lines = "\n".join(
        "<tr>"
        + "".join(f"<td{k}{n}>{escape(cell)}</td>" for k, n, cell in zip(kind, names, row, strict=False))
        + "</tr>"
        + _texts(columns[cells:], row[cells:], cells)
        for row in rows
    )
    return f"""<section class="card">
<h2>{escape(title)}</h2>
<div class="scroll"><table class="sortable{" stacked" if texts else ""}">
<thead><tr>{head}</tr></thead>
<tbody>
{lines}
</tbody>
</table></div>
</section>"""
