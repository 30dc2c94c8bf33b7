"""Reports as pictures (SVG), and the terminal's view of a sparse network."""

from __future__ import annotations

import math
from collections.abc import Sequence
from xml.sax.saxutils import escape

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from micronpu.report.alternatives import Candidate, Candidates
from micronpu.report.shown import shows
from micronpu.report.sparsity import SparsityReport
from micronpu.report.texts import NOTHING, shape_text

_WIDTH, _HEIGHT = 760, 460
_LEFT, _RIGHT, _TOP, _BOTTOM = 76, 130, 34, 52
_LINE = 13
"""Height of a line of text in pixels."""
_BEST, _OTHER, _AXIS = "#1a6fb5", "#8a94a0", "#9aa3ad"


@shows(Candidates, "plot")
def candidates_plot(candidates: Candidates) -> str:
    """Return an SVG picture; targets without a time or without a program are left out."""
    shown = [
        (i, c, c.milliseconds, c.sram)
        for i, c in enumerate(candidates.candidates)
        if c.milliseconds and c.sram and not c.failed
    ]
    points = "; ".join(f"{c.target} {t:.3g} ms, {s / 1024:,.0f} KiB" for _, c, t, s in shown)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'font-family="system-ui, sans-serif" font-size="11" aria-label="Time against SRAM: {escape(points)}">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#fff"/>',
    ]
    if not shown:
        lines.append(f'<text x="{_LEFT}" y="{_TOP}">No target has a time and a program.</text>')
        return "\n".join([*lines, "</svg>"]) + "\n"
    x = _Axis([t for *_, t, _ in shown], _LEFT, _WIDTH - _RIGHT)
    y = _Axis([s / 1024 for *_, s in shown], _HEIGHT - _BOTTOM, _TOP)
    lines += _axes(x, y)
    places = {i: (x.place(t), y.place(s / 1024)) for i, _, t, s in shown}
    best = [places[i] for i in candidates.line if i in places]
    lines.append(
        f'<polyline points="{" ".join(f"{a:.1f},{b:.1f}" for a, b in best)}" fill="none" stroke="{_BEST}" '
        'stroke-width="1.5"/>'
    )
    free = _Labels(list(places.values()))
    order = sorted(shown, key=lambda s: (s[0] not in candidates.line, places[s[0]]))
    for i, candidate, _, _ in order:
        lines += _point(candidate, places[i], i in candidates.line, free)
    said = "the line: nothing that fits is faster with as little SRAM"
    lines.append(f'<text x="{_LEFT}" y="{_TOP - 16}" fill="{_BEST}">{said}</text>')
    return "\n".join([*lines, "</svg>"]) + "\n"


class _Axis:
    """A logarithmic axis between two pixels."""

    def __init__(self, values: Sequence[float], first: float, last: float) -> None:
        low, high = math.log10(min(values)), math.log10(max(values))
        room = max(0.08 * (high - low), 0.15)
        self._low, self._high, self._first, self._last = low - room, high + room, first, last

    def place(self, value: float) -> float:
        part = (math.log10(value) - self._low) / (self._high - self._low)
        return self._first + part * (self._last - self._first)

    @property
    def ticks(self) -> list[float]:
        """Return 1, 2 and 5 of each decade, or only the decades if there are many."""
        decades = range(math.floor(self._low), math.ceil(self._high) + 1)
        steps = (1, 2, 5) if self._high - self._low < 3 else (1,)
        found = [step * 10.0**d for d in decades for step in steps]
        return [t for t in found if self._low <= math.log10(t) <= self._high]


def _axes(x: _Axis, y: _Axis) -> list[str]:
    bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    lines = []
    for tick in x.ticks:
        at = f"{x.place(tick):.1f}"
        lines.append(f'<path d="M{at} {_TOP}V{bottom}" stroke="#e6e9ec"/>')
        lines.append(f'<text x="{at}" y="{bottom + 16}" text-anchor="middle" fill="#555">{tick:,g}</text>')
    for tick in y.ticks:
        at = f"{y.place(tick):.1f}"
        lines.append(f'<path d="M{_LEFT} {at}H{right}" stroke="#e6e9ec"/>')
        lines.append(f'<text x="{_LEFT - 8}" y="{at}" dy="4" text-anchor="end" fill="#555">{tick:,g}</text>')
    lines.append(f'<path d="M{_LEFT} {_TOP}V{bottom}H{right}" fill="none" stroke="{_AXIS}"/>')
    middle = (_LEFT + right) / 2
    lines.append(f'<text x="{middle}" y="{_HEIGHT - 14}" text-anchor="middle">milliseconds of a call, estimated</text>')
    upright = (_TOP + bottom) / 2
    turned = f'transform="rotate(-90 18 {upright})"'
    lines.append(f'<text x="18" y="{upright}" text-anchor="middle" {turned}>KiB of SRAM</text>')
    return lines


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
            inside = box[0] >= _LEFT and box[2] <= _WIDTH - 2 and box[1] >= _TOP - 8 and box[3] <= _HEIGHT - _BOTTOM
            if inside and all(
                box[0] >= b[2] or b[0] >= box[2] or box[1] >= b[3] or b[1] >= box[3] for b in self._taken
            ):
                self._taken.append(box)
                return left, base
        return None


def _point(candidate: Candidate, place: tuple[float, float], best: bool, free: _Labels) -> list[str]:
    x, y = place
    colour = _BEST if best else _OTHER
    name = candidate.target if candidate.activations == "int8" else f"{candidate.target}, {candidate.activations}"
    fits = "" if candidate.fits is not False else ", does not fit"
    title = f"{name}: {candidate.milliseconds:.3g} ms, {(candidate.sram or 0) / 1024:,.1f} KiB of SRAM{fits}"
    fill = colour if candidate.fits is not False else "#fff"
    lines = [
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{fill}" stroke="{colour}" stroke-width="1.5">'
        f"<title>{escape(title)}</title></circle>"
    ]
    found = free.find(x, y, 6.1 * len(name) + 2)
    if found is not None:
        style = 'fill="#123" font-weight="600"' if best else 'fill="#667"'
        lines.append(f'<text x="{found[0]:.1f}" y="{found[1]:.1f}" {style}>{escape(name)}</text>')
    return lines


_WIDE, _HIGH, _MARGIN = 480, 320, 48


@shows(SparsityReport)
def sparsity_view(report: SparsityReport) -> RenderableType:
    """Return the summary, the points, the layers and the notes."""
    points = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, title="Points", title_justify="left")
    for name in ("", "sparse layers", "cycles", "of dense", "bytes", "agreement", "loss", "corrections"):
        names = name == "corrections"
        points.add_column(name, justify="left" if names or not name else "right", no_wrap=names)
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
    layers = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, title="Layers", title_justify="left")
    for name in ("layer", "weights", "", "cycles, dense", "all sparse", "as it is", "loss alone", "why"):
        left = name in ("layer", "weights", "", "why")
        layers.add_column(name, justify="left" if left else "right", no_wrap=name == "layer")
    for layer in report.layers:
        layers.add_row(
            layer.name,
            shape_text(layer.shape),
            "sparse" if layer.sparse else "dense",
            f"{layer.cycles_dense:,}" if layer.cycles_dense else NOTHING,
            f"{layer.cycles_sparse:,}" if layer.cycles_sparse else NOTHING,
            f"{layer.cycles:,}" if layer.cycles else NOTHING,
            f"{layer.sensitivity:.4f}" if layer.sensitivity else NOTHING,
            layer.why,
        )
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

    def place(cycles: float, loss: float) -> tuple[float, float]:
        x = _MARGIN + (cycles - least) / max(most - least, 1) * (_WIDE - 2 * _MARGIN)
        y = _HIGH - _MARGIN - (loss - lowest) / max(worst - lowest, 1e-9) * (_HIGH - 2 * _MARGIN)
        return round(x, 1), round(y, 1)

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDE} {_HIGH}" font-family="sans-serif" '
        'font-size="11">',
        f'<path d="M{_MARGIN} {_MARGIN}V{_HIGH - _MARGIN}H{_WIDE - _MARGIN}" fill="none" stroke="#888"/>',
        f'<text x="{_WIDE / 2}" y="{_HIGH - 10}" text-anchor="middle">cycles of {escape(report.target)}</text>',
        f'<text x="12" y="{_MARGIN - 14}">loss</text>',
    ]
    front = [place(points[i].cycles, points[i].loss) for i in report.front]
    path = " ".join(f"{x},{y}" for x, y in sorted(front))
    lines.append(f'<polyline points="{path}" fill="none" stroke="#36c"/>')
    for number, point in enumerate(points):
        x, y = place(point.cycles, point.loss)
        title = f"{len(point.layers)} sparse layers: {point.cycles:,} cycles, loss {point.loss:.4f}"
        lines.append(f'<circle cx="{x}" cy="{y}" r="4" fill="#36c"><title>{escape(title)}</title></circle>')
        lines.append(f'<text x="{x + 6}" y="{y - 6}">{point.cycles / most:.2f}, {point.loss:.3f}</text>')
        if number == report.chosen:
            lines.append(f'<circle cx="{x}" cy="{y}" r="8" fill="none" stroke="#c33"/>')
    return "\n".join([*lines, "</svg>"]) + "\n"
