"""Tables for the terminal, as renderables of rich."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from micronpu.base.texts import NOTHING, file_name, plural
from micronpu.report.accuracy import Evaluation, Judged, decibel_text
from micronpu.report.alternatives import Advice, Candidate, Candidates, Idea, Price
from micronpu.report.diagnosis import Blame, Fixes, LayerError
from micronpu.report.difference import Changed, Difference, Figure, Moved
from micronpu.report.operations import Hotspot
from micronpu.report.plain import plain_table
from micronpu.report.shown import shows

_NAMES = {"quantized": "quantized model", "program": "program (.pte)"}


@shows(Evaluation)
def evaluation_view(evaluation: Evaluation) -> RenderableType:
    """Return a line per program, and the verdict."""
    metric = evaluation.metric
    score_columns = (metric, "95 % interval") if metric else ()
    numbers = ("SQNR", "largest error", "same answer", "rows/s", metric)
    table = plain_table("", *score_columns, "SQNR", "largest error", "same answer", "rows/s", numbers=numbers)
    for judged in evaluation.judged:
        table.add_row(*map(Text, _cells(judged, bool(metric), evaluation)))
    style = "bold"
    difference = evaluation.program.difference
    if difference is not None and not difference.is_noise and difference.value:
        better = (difference.value > 0) == evaluation.larger_is_better
        style = "bold green" if better else "bold red"
    parts: list[RenderableType] = [table, "", Text(evaluation.verdict, style=style)]
    if evaluation.against_quantized is not None:
        parts.append(Text(f"The program is {evaluation.against_quantized.against('the quantized model')}."))
    parts += [Text(note, style="dim") for note in evaluation.notes]
    return Group(*parts)


def _cells(judged: Judged, scored: bool, evaluation: Evaluation) -> list[str]:
    cells = [_NAMES.get(judged.name, evaluation.model)]
    if scored:
        share = evaluation.program.difference is not None and evaluation.program.difference.worse is not None
        score = judged.score
        if score is None:
            cells += [NOTHING, NOTHING]
        elif share:
            cells += [f"{100 * score.value:.2f} %", f"{100 * score.low:.2f} to {100 * score.high:.2f} %"]
        else:
            cells += [f"{score.value:.4f}", f"{score.low:.4f} to {score.high:.4f}"]
    if (found := judged.against_float) is None:
        cells += [NOTHING] * 3
    else:
        agreeing = NOTHING if found.agreeing is None else f"{found.agreeing:,} of {found.rows:,}"
        cells += [decibel_text(found.sqnr), f"{found.largest:.4g}", agreeing]
    return [*cells, f"{judged.rows_per_second:,.0f}"]


SHOWN = 12
"""Maximum number of layers in the table; the value and the JSON have all."""


@shows(Blame)
def blame_view(blame: Blame) -> RenderableType:
    """Return a line per layer, worst first, and what to try."""
    numbers = ("share", "own", "inherited", "total", "worst", "clipped")
    table = plain_table("layer", "share", "own", "inherited", "total", "worst", "source", numbers=numbers)
    table.columns[0].style = "cyan"
    table.columns[-1].style = "dim"
    for layer in blame.layers[:SHOWN]:
        share = NOTHING if layer.share is None else f"{layer.share:.1%}"
        ratios = [_ratio(v) for v in (layer.own, layer.inherited, layer.sqnr)]
        name = f"{layer.node}  {layer.operator}"
        table.add_row(*map(Text, (name, share, *ratios, f"{layer.steps:.3g} steps", _place(layer))))
    parts: list[RenderableType] = [Text(blame.summary, style="bold"), "", table]
    if len(blame.layers) > SHOWN:
        parts.append(Text(f"and {len(blame.layers) - SHOWN} more, each with less", style="dim"))
    advice: dict[str, list[str]] = {}
    for layer in blame.layers[:SHOWN]:
        if layer.advice:
            advice.setdefault(layer.advice, []).append(layer.node)
    if advice:
        parts += ["", Text("To try:", style="bold")]
        parts += [Text(f"  {', '.join(nodes)}: {text}") for text, nodes in advice.items()]
        parts.append(Text("`micronpu fix` tries such changes, and writes the settings of those that help."))
    return Group(*parts)


def _ratio(value: float) -> str:
    return f"{value:.1f} dB" if isfinite(value) else NOTHING


def _place(layer: LayerError) -> str:
    return ", ".join(t for t in (layer.module, file_name(layer.source)) if t) or NOTHING


@shows(Difference)
def difference_view(difference: Difference) -> RenderableType:
    """Return figures that changed, operators that moved, and operations that changed."""
    if not difference.is_any:
        same = [f"{difference.before} and {difference.after} say the same.", *map(str, difference.causes)]
        return Text("\n".join(same), style="bold")
    figures = plain_table("", "before", "after", "change", numbers=("before", "after", "change"))
    for figure in difference.figures:
        if figure.before != figure.after:
            figures.add_row(*map(Text, figure_texts(figure)))
    parts: list[RenderableType] = [Text(f"{difference.before} -> {difference.after}", style="bold"), "", figures]
    parts[1:1] = [Text(str(cause)) for cause in difference.causes]
    if difference.moved:
        columns = ("operator", "before", "after", "line", "why")[: 5 if any(m.why for m in difference.moved) else 4]
        table = plain_table(*columns)
        for moved in difference.moved:
            table.add_row(*map(Text, moved_texts(moved)[: len(columns)]))
        parts += ["", table]
    if difference.operations:
        numbers = ("cycles before", "cycles after")
        table = plain_table("operation before", "after", *numbers, "line", numbers=numbers)
        for changed in difference.operations:
            table.add_row(*map(Text, changed_texts(changed)))
        parts += ["", table]
    return Group(*parts)


def figure_texts(figure: Figure) -> tuple[str, ...]:
    """Return name, before, after, and the change with its percentage."""
    texts = [NOTHING if n is None else f"{n:,.{figure.digits}f}" for n in (figure.before, figure.after)]
    change = figure.change
    if change is None:
        return figure.name, *texts, NOTHING
    share = f" ({100 * change / figure.before:+.1f} %)" if figure.before else ""
    return figure.name, *texts, f"{change:+,.{figure.digits}f}{share}"


def moved_texts(moved: Moved) -> tuple[str, ...]:
    """Return operator, both places, source line and reason."""
    name = f"{moved.node} ({moved.operator})"
    return name, moved.before or NOTHING, moved.after or NOTHING, file_name(moved.source), moved.why


def changed_texts(changed: Changed) -> tuple[str, ...]:
    """Return both names, both numbers of cycles, and source line."""
    counts = (NOTHING if n is None else f"{n:,}" for n in (changed.cycles_before, changed.cycles_after))
    return changed.before or NOTHING, changed.after or NOTHING, *counts, file_name(changed.source)


CANDIDATE_TEXTS = ("what it is", "weights in SRAM", "time by", "blocks")
CANDIDATE_COLUMNS = (
    *("target", "acts", "fits", "time", "band", "SRAM", "flash", "on target", "calls", "SQNR", "score"),
    *CANDIDATE_TEXTS,
)
_ON_FIRST_LINE = ("target", "time", "band", "SRAM", "flash")
"""Columns of the first line of a row in the terminal; the others are on the second."""
BEST = "fits, and no other is better in everything"
"""Meaning of a star: Pareto-optimal in time, SRAM, flash and accuracy."""


CANDIDATE_NUMBERS = ("time", "band", "SRAM", "flash", "on target", "calls", "SQNR")


def candidate_texts(candidate: Candidate, metric: str) -> tuple[str, ...]:
    """Return a cell for each of `CANDIDATE_COLUMNS`; the score is left out without a metric."""
    c = candidate
    fits = NOTHING if c.failed or c.fits is None else "yes" if c.fits else "no"
    time = band = NOTHING
    if c.milliseconds is not None:
        digits = 1 if c.milliseconds >= 10 else 2 if c.milliseconds >= 0.1 else 4
        time, band = f"{c.milliseconds:,.{digits}f} ms", f"{c.low:,.{digits}f} to {c.high:,.{digits}f}"
    memory = (_taken(n, part) for n, part in ((c.sram, c.sram_share), (c.flash, c.flash_share)))
    share = NOTHING if c.failed else f"{100 * c.share:.0f} %"
    calls = NOTHING if c.failed else str(c.partitions)
    sqnr = NOTHING if c.sqnr is None else decibel_text(c.sqnr)
    score = () if not metric else (NOTHING if c.score is None else f"{c.score:.4f}",)
    texts = c.what, c.resident, c.basis, c.blocks
    return (c.target, c.activations, fits, time, band, *memory, share, calls, sqnr, *score, *texts)


def _taken(count: int | None, part: float | None) -> str:
    """Return bytes, and their share of the memory."""
    if count is None:
        return NOTHING
    size = f"{count / 1024:,.1f} KiB" if count < 1 << 20 else f"{count / (1 << 20):,.2f} MiB"
    return size if part is None else f"{size}, {'<1' if part < 0.005 else f'{100 * part:.0f}'} %"


def candidate_columns(candidates: Candidates) -> tuple[str, ...]:
    names = (candidates.metric if n == "score" else n for n in CANDIDATE_COLUMNS)
    return tuple(n for n in names if n)


@shows(Candidates)
def candidates_view(candidates: Candidates) -> RenderableType:
    """Return two lines per target and setting, with a star on Pareto-optimal ones."""
    rows = [candidate_rows(c, candidates.metric) for c in candidates.candidates]
    head = _ON_FIRST_LINE
    widths = [max(len(line[n]) for line in (head, *(first for first, _ in rows))) for n in range(len(head))]
    front = set(candidates.front)
    parts: list[RenderableType] = [Text(candidates.model, style="bold"), "", _line("", head, widths, "bold")]
    for number, (candidate, (first, second)) in enumerate(zip(candidates.candidates, rows, strict=True)):
        style = "bold" if number in front else "dim" if candidate.failed else ""
        parts.append(_line("*" if number in front else "", first, widths, style))
        parts += [Padding(Text(text, style="dim"), (0, 0, 0, 4)) for text in second if text]
    return Group(*parts, "", Text(f"* {BEST}: time, SRAM, flash, accuracy.", style="dim"))


def candidate_rows(candidate: Candidate, metric: str) -> tuple[list[str], tuple[str, str]]:
    """Return the cells of the first line, and the texts below it: the target, and the operators that are not on it."""
    columns = [n for n in CANDIDATE_COLUMNS if metric or n != "score"]
    cells = dict(zip(columns, candidate_texts(candidate, metric), strict=True))
    first = [cells[n] for n in _ON_FIRST_LINE]
    share = "" if candidate.failed else f"{cells['on target']} on target, {plural(candidate.partitions, 'call')}"
    sqnr = "" if candidate.sqnr is None else cells["SQNR"]
    fits = {None: "", True: "fits", False: "does not fit"}[candidate.fits]
    score = f"{metric} {cells['score']}" if metric and not candidate.failed else ""
    resident = f"weights in SRAM: {candidate.resident}" if candidate.resident else ""
    second = [t for t in (fits, candidate.activations, share, sqnr, score, candidate.what, resident) if t]
    return first, ("; ".join(second), candidate.blocks)


def _line(mark: str, cells: Sequence[str], widths: Sequence[int], style: str) -> RenderableType:
    """Return a line of a table whose first column is a text and the others numbers."""
    texts = [c.rjust(w) if n else c.ljust(w) for n, (c, w) in enumerate(zip(cells, widths, strict=True))]
    return Text(f"{mark:2}{'  '.join(texts)}".rstrip(), style=style, overflow="fold")


@shows(Fixes)
def fixes_view(fixes: Fixes) -> RenderableType:
    """Return the fixes that were tried, and a line per choice; Pareto-optimal ones are marked."""
    tried = plain_table("tried", "gain on the rows to choose by", "")
    for attempt in fixes.attempts:
        tried.add_row(*map(Text, (attempt.name, str(attempt.gain), "kept" if attempt.kept else "")))
    metric = fixes.choices[0].metric
    columns = () if metric is None else (metric.name,)
    numbers = ("SQNR", "cycles", ".pte bytes", *columns)
    table = plain_table("", "choice", "SQNR", "gain over row 0", "cycles", ".pte bytes", *columns, numbers=numbers)
    for number, choice in enumerate(fixes.choices):
        mark = f"{number} *" if choice.best else str(number)
        cycles = f"{choice.cycles:,}" if choice.cycles is not None else NOTHING
        gain = str(choice.gain) if choice.gain is not None else NOTHING
        own = () if choice.metric is None else (f"{choice.metric.quantized:.4g}",)
        cells = (mark, choice.name, _ratio(choice.sqnr), gain, cycles, f"{choice.bytes:,}", *own)
        table.add_row(*(Text(cell, style="bold" if choice.best else "") for cell in cells))
    note = Text(
        "* nothing else is as near to float for as few cycles and bytes; SQNR: of all rows together; gain: mean of the "
        "rows' own; cycles: of NPU and core; with int16, corrections that did not help alone are taken too"
        + ("" if metric is None else f"; {metric.name}: on the rows that judge, in float {metric.float_model:.4g}"),
        style="dim",
    )
    return Group(Text(fixes.summary, style="bold"), "", *((tried, "") if fixes.attempts else ()), table, note)


_SPOTS = 6
"""Number of hotspots that are shown."""


@shows(Advice)
def advice_view(advice: Advice) -> RenderableType:
    """Return hotspots, and the changes that were tried, the most useful first."""
    parts: list[RenderableType] = [Text(advice.summary, style="bold")]
    if advice.hotspots:
        parts += ["", Text("Time by operation", style="bold"), _spots(advice.hotspots[:_SPOTS])]
    if advice.ideas:
        parts += ["", Text("Alternatives", style="bold"), _ideas(advice)]
        shown = (*advice.worth, *(() if advice.together is None else (advice.together,)))
        parts += [Text.assemble("\n", (f"{idea.name}: ", "bold"), idea.how, _where(idea)) for idea in shown if idea.how]
    parts += ["", Text(_LEGEND + (f" Time by {advice.price.basis}." if advice.price.basis else ""), style="dim")]
    return Group(*parts)


_LEGEND = (
    "Time as a share of the network's as it is, estimated as in the report. `same results`: no training. "
    "`train again`: another function, whose accuracy is what training makes of it. `use`: share of the multipliers "
    "that work."
)


def _spots(spots: tuple[Hotspot, ...]) -> RenderableType:
    table = plain_table(
        "operation", "count", "cycles", "share", "use", "source", numbers=("count", "cycles", "share", "use")
    )
    for spot in spots:
        use = NOTHING if spot.use is None else f"{100 * spot.use:.0f} %"
        where = file_name(spot.sources[0]) if spot.sources else NOTHING
        name = spot.name if spot.processor == "NPU" else f"{spot.name} ({spot.processor})"
        table.add_row(*map(Text, (name, str(spot.count), f"{spot.cycles:,}", f"{100 * spot.share:.0f} %", use, where)))
    return table


def _ideas(advice: Advice) -> RenderableType:
    table = plain_table("change", "places", "time", "ms", "SRAM", "results", numbers=("places", "time", "ms", "SRAM"))
    table.add_row(*map(Text, ("as it is", "", "100 %", *_figures(advice.price), "")), style="dim")
    for idea in (*advice.ideas, *(() if advice.together is None else (advice.together,))):
        time = NOTHING if idea.ratio is None else f"{100 * idea.ratio:.0f} %"
        cells = (idea.name, str(idea.places or NOTHING), time, *_figures(idea.price))
        shown = "does not compile" if idea.failure else idea.results
        table.add_row(*map(Text, (*cells, shown)), style="green" if idea.is_worth else "")
    return table


def _figures(price: Price | None) -> tuple[str, str]:
    time = NOTHING if price is None or price.milliseconds is None else f"{price.milliseconds:.3g}"
    return time, NOTHING if price is None or price.sram_bytes is None else f"{price.sram_bytes:,}"


def _where(idea: Idea) -> str:
    if not idea.sources:
        return ""
    named = [file_name(source) for source in idea.sources[:3]]
    more = f" and {plural(len(idea.sources) - 3, 'line')} more" if len(idea.sources) > 3 else ""
    return f" ({', '.join(named)}{more})"
