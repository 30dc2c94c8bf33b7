"""Advice for the terminal, as renderables of rich."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from micronpu.report.advice import Advice, Idea, Price
from micronpu.report.hotspots import Hotspot
from micronpu.report.shown import shows
from micronpu.report.texts import NOTHING, file_name, plural
from micronpu.report.views.tables import plain_table

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
        figures = _figures(idea.price) if idea.price is not None else (NOTHING, NOTHING)
        shown = idea.results if not idea.failure else "does not compile"
        style = "green" if idea.is_worth else ""
        table.add_row(*map(Text, (idea.name, str(idea.places or NOTHING), time, *figures, shown)), style=style)
    return table


def _figures(price: Price) -> tuple[str, str]:
    time = NOTHING if price.milliseconds is None else f"{price.milliseconds:.3g}"
    return time, NOTHING if price.sram_bytes is None else f"{price.sram_bytes:,}"


def _where(idea: Idea) -> str:
    if not idea.sources:
        return ""
    named = [file_name(source) for source in idea.sources[:3]]
    more = f" and {plural(len(idea.sources) - 3, 'line')} more" if len(idea.sources) > 3 else ""
    return f" ({', '.join(named)}{more})"
