"""Tables of accuracy for the terminal, as renderables of rich."""

from __future__ import annotations

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from micronpu.report.accuracy import Comparison, decibel_text
from micronpu.report.evaluation import Evaluation, Judged
from micronpu.report.rows import NOTHING

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
