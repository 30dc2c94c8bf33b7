"""A delegation report as one self-contained HTML page."""

from __future__ import annotations

import math
import os
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from micronpu.base.files import write_file
from micronpu.report.accuracy import decibel_text
from micronpu.report.advice import hotspots
from micronpu.report.delegation import DelegationReport
from micronpu.report.estimate import Latency
from micronpu.report.memory import Region
from micronpu.report.methods import MethodsReport
from micronpu.report.shown import shows
from micronpu.report.texts import NOTHING, file_name, plural, sentence, shape_text, short_source
from micronpu.report.verdict import Reason, Verdict
from micronpu.report.views.rows import (
    TOP,
    TRY_ADVISE,
    WHOLE,
    Row,
    cost_share,
    cost_texts,
    costliest,
    explained,
    folded,
    host_groups,
    kind_of_rows,
    macs_text,
    partition_rows,
    total_cycles,
    totals,
    weight,
)
from micronpu.report.views.web import data, document, part
from micronpu.report.warnings import ReportWarning

if TYPE_CHECKING:
    from micronpu.report.blame import Blame

_CYCLES = '<th class="number">cycles</th><th class="number">µs</th>'


_LIBRARIES = ("dagre.min.js", "cytoscape.min.js")
"""Layout and drawing of graphs; `web/README.md` says where they come from."""


@shows(DelegationReport, "page")
def write_html(report: DelegationReport, path: str | os.PathLike[str], blame: Blame | None = None) -> Path:
    """Writes the page; an existing file is replaced only when the new one is complete.

    Args:
        blame: errors per layer, by which the graph can be coloured.

    Raises:
        FileError: it cannot be written there.
    """
    return write_file(path, page(report, blame).encode())


def page(report: DelegationReport, blame: Blame | None = None, *, graph: bool = True) -> str:
    """The whole page as text: styles, scripts and data inside, nothing fetched from anywhere.

    Args:
        blame: see `write_html`.
        graph: with the network as a picture and tables that can be sorted; else the page has no script.
    """
    # What stays on the host comes first: it is what a reader may want to change.
    parts = [_head(report), _warnings(report), _tiles(report), _host(report)]
    kind = kind_of_rows(report)
    rows = partition_rows(report)
    lines = {number: folded(members) for number, members in rows.items()}
    everything = [row for members in lines.values() for row in members if not row.steps]
    costs = bool(total_cycles(everything))
    if graph and report.verdicts:
        parts += [part("network.html"), part("timeline.html") if costs else "", _hotspots(report), _memory(report)]
    # Bars are comparable over partitions: they share one scale.
    largest = max((weight(row, costs) for row in everything), default=0)
    parts += [_partition(number, rows[number], lines[number], kind, largest, costs) for number in rows]
    parts.append(_notes(report, drawn=graph and bool(report.verdicts)))
    body = "\n".join(part for part in parts if part)
    return document(report.summary(), body, _scripts(report, blame) if graph else "")


@shows(DelegationReport, "notebook")
def framed(report: DelegationReport) -> str:
    """The page in a frame of its own, so that its styles do not reach the notebook round it; without the graph."""
    height = min(900, 420 + 34 * len(report.verdicts))
    text = escape(page(report, graph=False))
    return f'<iframe srcdoc="{text}" style="width:100%;height:{height}px;border:0"></iframe>'


@shows(MethodsReport, "page")
def write_methods(report: MethodsReport, path: str | os.PathLike[str]) -> Path:
    """Writes one page in which the page of each method stands in a frame of its own.

    Raises:
        FileError: it cannot be written there.
    """
    head = f'<header><p class="target">{escape(report.target)}</p><h1>{escape(report.summary())}</h1></header>'
    said = "".join(f"<p>{escape(line)}</p>" for line in report.whole)
    frames = "".join(_method(name, own, graph=True) for name, own in report.methods.items())
    return write_file(path, document(report.summary(), f"{head}\n{said}\n{frames}", "").encode())


@shows(MethodsReport, "notebook")
def framed_methods(report: MethodsReport) -> str:
    """The pages of the methods in frames, without the graphs."""
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
    """The bar that shows the share of the operators that are where the target is for."""
    share = f"{100 * report.share:.4g}"
    label = f"{share} % of the operators {'on the NPU' if report.has_npu else 'in int8'}"
    return f'<div class="split" role="img" aria-label="{label}"><span style="width:{share}%"></span></div>'


def _npu_tiles(report: DelegationReport) -> list[tuple[str, str, str, str]]:
    return [
        (
            "on the NPU",
            f"{report.delegated:,} of {len(report.verdicts):,}",
            f"operators, in {plural(report.partitions, 'partition')}",
            "",
        ),
        ("MACs on the NPU", _short(report.delegated_macs), f"of {report.macs:,} known", f"{report.delegated_macs:,}"),
        (
            "on the host",
            f"{len(report.host):,}",
            f"{len(report.in_float):,} of them in float" if report.host else "nothing is left over",
            "",
        ),
    ]


def _core_tiles(report: DelegationReport) -> list[tuple[str, str, str, str]]:
    """Of a core without an NPU."""
    count = len(report.verdicts)
    return [
        ("in int8", f"{count - len(report.in_float):,}", f"of {plural(count, 'operator')}", ""),
        ("in float", f"{len(report.in_float):,}", "" if report.in_float else "nothing is left over", ""),
        ("MACs", _short(report.macs), f"{report.macs:,}", f"{report.macs:,}"),
    ]


def _time_tile(latency: Latency) -> tuple[str, str, str, str]:
    low, high = latency.band
    digits = latency.digits
    value = f"{latency.milliseconds:.{digits}f} ms"
    return (
        f"{escape(latency.processor)}, estimated",
        value,
        f"{low:.{digits}f} to {high:.{digits}f} ms",
        escape(latency.source),
    )


def _memory_tile(region: Region) -> tuple[str, str, str, str]:
    of = f"of {_size(region.capacity)}: " if region.capacity is not None else ""
    items = "\n".join(f"{item.bytes:,} {item.what}" for item in region.items)
    verdict = f"<strong>{region.verdict}</strong>" if region.over else region.verdict
    return escape(region.name.upper()), _size(region.bytes), of + verdict, escape(items)


def _memory(report: DelegationReport) -> str:
    """Who lies where when; the script draws it, the sentences stand by themselves."""
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


def _tiles(report: DelegationReport) -> str:
    tiles = [_time_tile(latency) for latency in report.latency]
    tiles += [_memory_tile(region) for region in (report.memory.regions if report.memory is not None else ())]
    tiles += _npu_tiles(report) if report.has_npu else _core_tiles(report)
    if cycles := total_cycles(row for rows in partition_rows(report).values() for row in rows):
        tiles.append(("cycles of the NPU", _short(cycles), "its compiler's estimate", f"{cycles:,}"))
    if report.accuracy is not None and report.accuracy.sqnr is not None:
        value = decibel_text(report.accuracy.sqnr)
        kept = " kept back" if report.accuracy.held_out else ""
        rows = f"on {plural(max(len(report.accuracy.rows), 1), 'row')}{kept}"
        tiles.append(("SQNR against float", value, rows, report.accuracy.measured_on))
    if report.program_bytes:
        size = report.program_bytes
        tiles.append((".pte", _size(size), f"{size:,} bytes", ""))
    return (
        '<section class="tiles">\n'
        + "\n".join(
            f'<div class="tile"{f""" title="{title}" """ if title else ""}><p class="label">{label}</p>'
            f'<p class="value">{value}</p><p class="more">{more}</p></div>'
            for label, value, more, title in tiles
        )
        + "\n</section>"
    )


def _size(count: int) -> str:
    """``33.5 KiB``; from a mebibyte on ``3.82 MiB``."""
    return f"{count / 2**20:.4g} MiB" if count >= 2**20 else f"{count / 1024:,.1f} KiB"


def _short(count: int) -> str:
    """``2.66 M`` for 2,656,768."""
    for factor, unit in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if count >= factor:
            return f"{count / factor:.3g} {unit}"
    return str(count)


def _notes(report: DelegationReport, drawn: bool) -> str:
    """What neither a tile nor a drawing says."""
    notes = [f"{n.processor}: the time is estimated at {n.clock_mhz:g} MHz by {n.source}." for n in report.latency]
    notes += report.times[len(report.latency) :]
    if report.memory is not None:
        shown = (*(arena for arena in report.memory.arenas if arena.tensors), *report.memory.inside)
        captions = {f"{part}." for part in shown} if drawn else set()
        notes += [line for line in report.memory.lines[len(report.memory.regions) :] if line not in captions]
    return "\n".join(f'<p class="note">{_marked(note)}</p>' for note in (*notes, *report.remarks))


def _warnings(report: DelegationReport) -> str:
    """Before everything else; a severe one is read out at once by what reads pages aloud."""
    return "\n".join(_warning(warning) for warning in report.warnings)


def _warning(warning: ReportWarning) -> str:
    kind = 'class="severe" role="alert"' if warning.is_severe else 'class="mild"'
    where = " · ".join(t for t in (escape(warning.module), _source(warning.source, short_source(warning.source))) if t)
    facts = f'<p class="facts">{where}</p>' if warning.source else ""
    return f"""<section {kind}>
<h2>{"Warning" if warning.is_severe else "Note"}</h2>
<p>{_marked(warning.what)}</p>
<p>Try: {_marked(sentence(warning.hint))}</p>{facts}
</section>"""


_SPOTS = 5


def _hotspots(report: DelegationReport) -> str:
    """Operations by name, the costliest first; nothing where there are as few as in the table below."""
    spots = hotspots(report)
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
<summary><h2>Where the time goes</h2> <span class="about">by operation</span></summary>
<div class="scroll"><table>
<thead><tr><th>operation</th><th>runs on</th>{numbers}<th>source</th></tr></thead>
<tbody>
{lines}
</tbody>
</table></div>
<p class="about">Use: MAC utilisation. {_marked(TRY_ADVISE)}</p>
</details>"""


def _partition(number: int, rows: list[Row], lines: list[Row], kind: str, largest: int, costs: bool) -> str:
    """The table with repeated steps as groups; where there are any, every row by itself is there to be opened."""
    apart = ""
    if len(lines) < len(rows):
        of = sum(not row.steps for row in lines)
        if of > WHOLE:
            chosen = costliest(lines, TOP)
            share, lines = cost_share(chosen, lines), chosen
            apart = f'<p class="about">The most costly of {of} lines{f", {share}" if share else ""}.</p>'
        apart += f"""
<details class="every"><summary>Every {escape(kind)} by itself, {len(rows):,} lines</summary>
{_table(rows, kind, largest, costs)}
</details>"""
    words = f'<p class="about">{escape(explained(rows))}.</p>' if explained(rows) else ""
    return f"""<details class="card" open>
<summary><h2>Partition {number}</h2> <span class="about">{totals(rows, kind)}</span></summary>
{_table(lines, kind, largest, costs)}{words}{apart}
</details>"""


def _table(rows: list[Row], kind: str, largest: int, costs: bool) -> str:
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


def _line(row: Row, largest: int, costs: bool) -> str:
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
    entries = "\n".join(_verdict(*group) for group in host_groups(report))
    return f"""<section class="card host">
<h2>On the host</h2> <span class="about">{plural(len(report.host), "operator")} and the reasons</span>
{entries}
</section>"""


def _verdict(verdict: Verdict, count: int) -> str:
    where = verdict.origin
    facts = [shape_text(verdict.shape)] if verdict.shape else []
    facts += [f"{verdict.macs:,} MACs"] if verdict.macs else []
    facts += [f"int8 on {escape(verdict.core)}"] if verdict.core else []
    facts += [escape(where.module)] if where.module else []
    facts += [_source(where.source, short_source(where.source))] if where.source else []
    others = f" and {count - 1:,} more" if count > 1 else ""
    return f"""<article>
<h3>{escape(verdict.node)}{others} <span class="operator">{escape(verdict.operator)}</span></h3>
<p class="facts">{" · ".join(facts)}</p>
{"".join(_reason(reason) for reason in verdict.reasons)}
</article>"""


def _reason(reason: Reason) -> str:
    hint = f"<dt>Try</dt><dd>{_marked(sentence(reason.hint))}</dd>" if reason.hint else ""
    return (
        f'<dl title="rule {escape(reason.rule)}"><dt>Rule</dt><dd>{_marked(reason.sentence)}</dd>'
        f"<dt>Found</dt><dd>{_marked(sentence(reason.detail))}</dd>{hint}</dl>"
    )


def _marked(text: str) -> str:
    """The text with what stands between backticks as code."""
    parts = text.split("`")
    if len(parts) % 2 == 0:  # an odd backtick is only a character
        return escape(text)
    return "".join(f"<code>{escape(part)}</code>" if i % 2 else escape(part) for i, part in enumerate(parts))
