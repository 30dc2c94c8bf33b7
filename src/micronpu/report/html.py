"""A delegation report as one self-contained HTML page."""

from __future__ import annotations

import os
from html import escape
from importlib import resources
from pathlib import Path

from micronpu.files import write_file
from micronpu.partition.report import DelegationReport
from micronpu.partition.verdict import Reason, Verdict
from micronpu.report.rows import (
    NOTHING,
    Row,
    cost_texts,
    kind_of_rows,
    macs_text,
    partition_rows,
    plural,
    sentence,
    shape_text,
    short_source,
)


def write_html(report: DelegationReport, path: str | os.PathLike[str]) -> Path:
    """Writes the page; an existing file is replaced only when the new one is complete.

    Raises:
        FileError: it cannot be written there.
    """
    return write_file(path, page(report).encode())


def page(report: DelegationReport) -> str:
    """The whole page as text: styles inside, no script, nothing fetched from anywhere."""
    style = resources.files("micronpu.report").joinpath("style.css").read_text(encoding="utf-8")
    # What stays on the host comes first: it is what a reader may want to change.
    parts = [_head(report), _tiles(report), _notes(report), _host(report)]
    kind = kind_of_rows(report)
    # Bars are comparable over partitions: they share one scale.
    rows = partition_rows(report)
    largest = max((row.macs for members in rows.values() for row in members), default=0)
    parts += [_partition(number, members, kind, largest) for number, members in rows.items()]
    body = "\n".join(part for part in parts if part)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(report.summary())}</title>
<style>
{style.strip()}
</style>
</head>
<body>
<main>
{body}
</main>
</body>
</html>
"""


def framed(report: DelegationReport) -> str:
    """The page in a frame of its own, so that its styles do not reach the notebook round it."""
    height = min(900, 420 + 34 * len(report.verdicts))
    return f'<iframe srcdoc="{escape(page(report))}" style="width:100%;height:{height}px;border:0"></iframe>'


def _head(report: DelegationReport) -> str:
    return f"""<header>
<p class="target">{escape(report.target)}</p>
<h1>{escape(report.summary())}</h1>
{_split(report)}
</header>"""


def _split(report: DelegationReport) -> str:
    """The bar that shows the delegated share of the operators."""
    share = f"{100 * report.share:.4g}"
    label = f"{share} % of the operators on the NPU"
    return f'<div class="split" role="img" aria-label="{label}"><span style="width:{share}%"></span></div>'


def _tiles(report: DelegationReport) -> str:
    tiles = [
        ("operators on the NPU", f"{report.delegated:,}", f"of {len(report.verdicts):,}", ""),
        ("partitions", f"{report.partitions:,}", "calls to the NPU", ""),
        ("MACs on the NPU", _short(report.delegated_macs), f"of {report.macs:,} known", f"{report.delegated_macs:,}"),
        (
            "operators on the host",
            f"{len(report.host):,}",
            f"{len(report.in_float):,} of them in float" if report.host else "nothing is left over",
            "",
        ),
    ]
    if report.program_bytes:
        size = report.program_bytes
        tiles.append((".pte", f"{size / 1024:,.1f} KiB", f"{size:,} bytes", ""))
    return (
        '<section class="tiles">\n'
        + "\n".join(
            f'<div class="tile"{f""" title="{title}" """ if title else ""}><p class="label">{label}</p>'
            f'<p class="value">{value}</p><p class="more">{more}</p></div>'
            for label, value, more, title in tiles
        )
        + "\n</section>"
    )


def _short(count: int) -> str:
    """``2.66 M`` for 2,656,768."""
    for factor, unit in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if count >= factor:
            return f"{count / factor:.3g} {unit}"
    return str(count)


def _notes(report: DelegationReport) -> str:
    return "\n".join(f'<p class="note">{escape(note)}</p>' for note in report.notes)


def _partition(number: int, rows: list[Row], kind: str, largest: int) -> str:
    macs = sum(row.macs for row in rows)
    cycles = sum(row.cost.cycles for row in rows if row.cost is not None)
    about = plural(len(rows), kind) + (f", {macs:,} MACs" if macs else "") + (f", {cycles:,} cycles" if cycles else "")
    lines = "\n".join(_line(row, largest, bool(cycles)) for row in rows)
    costs = '<th class="number">cycles</th><th>bound by</th><th class="number">use</th>' if cycles else ""
    return f"""<details class="card" open>
<summary><h2>Partition {number}</h2> <span class="about">{about}</span></summary>
<div class="scroll"><table>
<colgroup><col style="width:24%"><col style="width:14%"><col style="width:11%"><col style="width:17%"></colgroup>
<thead>
<tr><th>{escape(kind)}</th><th>result</th><th class="number">MACs</th><th></th>{costs}
<th>module</th><th>source</th></tr>
</thead>
<tbody>
{lines}
</tbody>
</table></div>
</details>"""


def _line(row: Row, largest: int, costs: bool) -> str:
    nodes = ", ".join(row.nodes)
    about = f"{row.detail}\nfrom {nodes}" if nodes and nodes != row.detail else row.detail
    width = f"{100 * row.macs / largest:.4g}" if row.macs else ""
    bar = f'<span class="bar" style="width:{width}%"></span>' if width else ""
    cycles, bound, use = cost_texts(row.cost)
    cost = f'<td class="number">{cycles}</td><td>{bound}</td><td class="number">{use}</td>' if costs else ""
    return (
        f'<tr><td class="name" title="{escape(about)}">{escape(row.name)}</td>'
        f"<td>{shape_text(row.shape)}</td>"
        f'<td class="number">{macs_text(row.macs)}</td><td class="bars">{bar}</td>{cost}'
        f"<td>{escape(row.module) or NOTHING}</td><td>{_source(row.source)}</td></tr>"
    )


def _source(source: str) -> str:
    if not source:
        return NOTHING
    return f'<code title="{escape(source)}">{escape(short_source(source))}</code>'


def _host(report: DelegationReport) -> str:
    if not report.host:
        return ""
    entries = "\n".join(_verdict(verdict) for verdict in report.host)
    return f"""<section class="card host">
<h2>On the host</h2> <span class="about">{plural(len(report.host), "operator")} and the reasons</span>
{entries}
</section>"""


def _verdict(verdict: Verdict) -> str:
    where = verdict.origin
    facts = [shape_text(verdict.shape)] if verdict.shape else []
    facts += [f"{verdict.macs:,} MACs"] if verdict.macs else []
    facts += [f"int8 on {escape(verdict.core)}"] if verdict.core else []
    facts += [escape(where.module)] if where.module else []
    facts += [_source(where.source)] if where.source else []
    return f"""<article>
<h3>{escape(verdict.node)} <span class="operator">{escape(verdict.operator)}</span></h3>
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
