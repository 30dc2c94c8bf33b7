"""Self-contained web pages of comparisons: between two reports, and of one model on many targets."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from micronpu.base.files import write_file
from micronpu.report.candidates import Candidates
from micronpu.report.difference import Difference
from micronpu.report.shown import shown
from micronpu.report.texts import NOTHING, file_name
from micronpu.report.views.tables import (
    BEST,
    CANDIDATE_NUMBERS,
    CANDIDATE_TEXTS,
    candidate_columns,
    candidate_texts,
    figure_texts,
)
from micronpu.report.views.web import document, part


def write_difference(difference: Difference, path: str | os.PathLike[str]) -> Path:
    """Write the page; an existing file is replaced only when the new one is complete.

    Raises:
        FileError: it cannot be written.
    """
    title = f"{difference.before} → {difference.after}"
    changed = [f for f in difference.figures if f.before != f.after]
    parts = [_head("what changed", title)]
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
    parts = (_head("one model, many targets", candidates.model), chart, table, note)
    body = "\n".join(parts)
    return write_file(path, document(candidates.model, body, _script()).encode())


def _script() -> str:
    return f"<script>{part('tables.js')}</script>"


def _head(kind: str, title: str) -> str:
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
