"""Tables of accuracy for the terminal, as renderables of rich."""

from __future__ import annotations

from math import isfinite

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from micronpu.report.accuracy import Comparison, decibel_text
from micronpu.report.blame import Blame, LayerError
from micronpu.report.evaluation import Evaluation, Judged
from micronpu.report.rows import NOTHING, file_name

_NAMES = {"float": "float model", "quantized": "quantized model", "program": "program (.pte)"}


def plain_table(*columns: str, numbers: tuple[str, ...] = ()) -> Table:
    """A table of the reports' form; ``numbers`` are the columns that are aligned to the right."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name in columns:
        table.add_column(name, justify="right" if name in numbers else "left", overflow="fold")
    return table


def evaluation_view(evaluation: Evaluation) -> RenderableType:
    """A line per program, and the verdict."""
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
    cells = [_NAMES[judged.name]]
    if scored:
        share = evaluation.program.difference is not None and evaluation.program.difference.worse is not None
        score = judged.score
        if score is None:
            cells += [NOTHING, NOTHING]
        elif share:
            cells += [f"{100 * score.value:.2f} %", f"{100 * score.low:.2f} to {100 * score.high:.2f} %"]
        else:
            cells += [f"{score.value:.4f}", f"{score.low:.4f} to {score.high:.4f}"]
    return [*cells, *_comparison_cells(judged.against_float), f"{judged.rows_per_second:,.0f}"]


def _comparison_cells(comparison: Comparison | None) -> tuple[str, str, str]:
    if comparison is None:
        return NOTHING, NOTHING, NOTHING
    agreeing = NOTHING if comparison.agreeing is None else f"{comparison.agreeing:,} of {comparison.rows:,}"
    return decibel_text(comparison.sqnr), f"{comparison.largest:.4g}", agreeing


SHOWN = 12
"""Layers that the table shows; the value and the JSON have all."""


def blame_view(blame: Blame) -> RenderableType:
    """A line per layer, the worst ones, and what to try."""
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
    return Group(*parts)


def _ratio(value: float) -> str:
    return f"{value:.1f} dB" if isfinite(value) else NOTHING


def _place(layer: LayerError) -> str:
    return ", ".join(t for t in (layer.module, file_name(layer.source)) if t) or NOTHING
