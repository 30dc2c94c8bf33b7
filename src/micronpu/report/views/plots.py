"""Reports as pictures (SVG), and the terminal's view of a sparse network."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from micronpu.base.texts import NOTHING, shape_text
from micronpu.report.alternatives import Candidate, Candidates
from micronpu.report.plain import plain_table
from micronpu.report.shown import shows
from micronpu.report.sparsity import SparsePoint, SparsityReport
from micronpu.report.views.web import page

_LEFT, _RIGHT, _TOP, _BOTTOM = 76, 630, 34, 408
"""Edges of the axes of `candidates.svg`, in pixels."""
_LINE = 13
"""Height of a line of text in pixels."""


@shows(Candidates, "plot")
def candidates_plot(candidates: Candidates) -> str:
    """Return an SVG picture; targets without a time or without a program are left out."""
    shown = [
        (i, c, c.milliseconds, c.sram / 1024)
        for i, c in enumerate(candidates.candidates)
        if c.milliseconds and c.sram and not c.failed
    ]
    x = _Axis([t for *_, t, _ in shown] or [1.0], _LEFT, _RIGHT)
    y = _Axis([s for *_, s in shown] or [1.0], _BOTTOM, _TOP)
    places = {i: (x.place(t), y.place(s)) for i, _, t, s in shown}
    free = _Labels(list(places.values()))
    order = sorted(shown, key=lambda s: (s[0] not in candidates.line, places[s[0]]))
    return page(
        "candidates.svg",
        "; ".join(f"{c.target} {t:.3g} ms, {s:,.0f} KiB" for _, c, t, s in shown),
        x=x,
        y=y,
        line=" ".join(f"{places[i][0]:.1f},{places[i][1]:.1f}" for i in candidates.line if i in places),
        points=[_point(candidate, places[i], i in candidates.line, free) for i, candidate, _, _ in order],
        BEST="#1a6fb5",
    )


class _Axis:
    """A logarithmic axis between two pixels."""

    def __init__(self, values: Sequence[float], first: int, last: int) -> None:
        low, high = math.log10(min(values)), math.log10(max(values))
        room = max(0.08 * (high - low), 0.15)
        self._low, self._high, self.first, self.last = low - room, high + room, first, last

    def place(self, value: float) -> float:
        part = (math.log10(value) - self._low) / (self._high - self._low)
        return self.first + part * (self.last - self.first)

    @property
    def ticks(self) -> list[tuple[str, str]]:
        """Return 1, 2 and 5 of each decade, or only the decades if there are many, each with its pixel first."""
        decades = range(math.floor(self._low), math.ceil(self._high) + 1)
        steps = (1, 2, 5) if self._high - self._low < 3 else (1,)
        found = [step * 10.0**d for d in decades for step in steps]
        return [(f"{self.place(t):.1f}", f"{t:,g}") for t in found if self._low <= math.log10(t) <= self._high]


class _Labels:
    """Places of texts that overlap neither each other nor a point."""

    def __init__(self, points: Sequence[tuple[float, float]]) -> None:
        self._taken = [(x - 5, y - 5, x + 5, y + 5) for x, y in points]

    def find(self, x: float, y: float, width: float) -> tuple[float, float] | None:
        """Return left end and base line of a text beside a point; None if there is no space."""
        beside = [(x + 8, y + 4), (x + 8, y - 8), (x + 8, y + 16), (x - 8 - width, y + 4), (x - width / 2, y - 10)]
        beside += [(x - width / 2, y + 20), (x - 8 - width, y - 8), (x - 8 - width, y + 16)]
        beside += [(x + 8, y + 4 + step * _LINE) for step in (-2, 2, -3, 3, -4, 4)]
        for left, base in beside:
            box = (left, base - _LINE + 3, left + width, base + 2)
            inside = box[0] >= _LEFT and box[2] <= 758 and box[1] >= _TOP - 8 and box[3] <= _BOTTOM
            if inside and all(
                box[0] >= b[2] or b[0] >= box[2] or box[1] >= b[3] or b[1] >= box[3] for b in self._taken
            ):
                self._taken.append(box)
                return left, base
        return None


def _point(candidate: Candidate, place: tuple[float, float], best: bool, free: _Labels) -> dict[str, object]:
    name = candidate.target if candidate.activations == "int8" else f"{candidate.target}, {candidate.activations}"
    fits = candidate.fits is not False
    figures = f"{candidate.milliseconds:.3g} ms, {(candidate.sram or 0) / 1024:,.1f} KiB of SRAM"
    title = f"{name}: {figures}{'' if fits else ', does not fit'}"
    label = free.find(*place, 6.1 * len(name) + 2)
    return {"x": place[0], "y": place[1], "best": best, "fits": fits, "name": name, "title": title, "label": label}


@shows(SparsityReport)
def sparsity_view(report: SparsityReport) -> RenderableType:
    """Return the summary, the points, the layers and the notes."""
    numbers = ("sparse layers", "cycles", "of dense", "bytes", "agreement", "loss")
    points = plain_table("", *numbers, "corrections", numbers=numbers, title="Points", title_justify="left")
    points.columns[-1].no_wrap = True
    dense = report.points[0].cycles
    for number, point in enumerate(report.points):
        points.add_row(
            "chosen" if number == report.chosen else "",
            str(len(point.layers)),
            f"{point.cycles:,}",
            f"{point.cycles / dense:.2f}" if dense else NOTHING,
            f"{point.bytes:,}",
            f"{point.agreement:.1%}",
            f"{point.loss:.4f}",
            "\n".join(point.corrections) or NOTHING,
        )
    counts = ("cycles, dense", "all sparse", "as it is", "loss alone")
    columns = ("layer", "weights", "", *counts, "why")
    layers = plain_table(*columns, numbers=counts, title="Layers", title_justify="left")
    layers.columns[0].no_wrap = True
    for layer in report.layers:
        cycles = [f"{n:,}" if n else NOTHING for n in (layer.cycles_dense, layer.cycles_sparse, layer.cycles)]
        loss = f"{layer.sensitivity:.4f}" if layer.sensitivity else NOTHING
        state = "sparse" if layer.sparse else "dense"
        layers.add_row(layer.name, shape_text(layer.shape), state, *cycles, loss, layer.why)
    notes = [Text.assemble(("Note: ", "bold"), note) for note in report.notes]
    return Group(Text(report.summary(), style="bold"), "", points, "", layers, *notes)


@shows(SparsityReport, "plot")
def sparsity_plot(report: SparsityReport) -> str:
    """Return an SVG picture: cycles to the right, loss upwards, a ring around the chosen point."""
    points = report.points
    most = max([p.cycles for p in points] + [1])
    least = 0.9 * min(p.cycles for p in points)
    worst = max([p.loss for p in points] + [1e-9])
    lowest = min([p.loss for p in points] + [0.0])

    def place(point: SparsePoint) -> tuple[float, float]:
        x = 48 + (point.cycles - least) / max(most - least, 1) * 384
        y = 272 - (point.loss - lowest) / max(worst - lowest, 1e-9) * 224
        return round(x, 1), round(y, 1)

    return page(
        "sparsity.svg",
        report.target,
        front=" ".join(f"{x},{y}" for x, y in sorted(place(points[i]) for i in report.front)),
        points=[(place(point), point) for point in points],
        chosen=report.chosen,
        most=most,
    )
