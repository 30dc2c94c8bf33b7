"""Views of a sparse network's report: tables for the terminal, and a picture of its points."""

from __future__ import annotations

from xml.sax.saxutils import escape

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from micronpu.report.shown import shows
from micronpu.report.sparsity import SparsityReport
from micronpu.report.texts import NOTHING, shape_text

_WIDTH, _HEIGHT, _MARGIN = 480, 320, 48


@shows(SparsityReport)
def view(report: SparsityReport) -> RenderableType:
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
def plot(report: SparsityReport) -> str:
    """Return an SVG picture: cycles to the right, loss upwards, a ring around the chosen point."""
    points = report.points
    most = max([p.cycles for p in points] + [1])
    least = 0.9 * min(p.cycles for p in points)
    worst = max([p.loss for p in points] + [1e-9])
    lowest = min([p.loss for p in points] + [0.0])

    def place(cycles: float, loss: float) -> tuple[float, float]:
        x = _MARGIN + (cycles - least) / max(most - least, 1) * (_WIDTH - 2 * _MARGIN)
        y = _HEIGHT - _MARGIN - (loss - lowest) / max(worst - lowest, 1e-9) * (_HEIGHT - 2 * _MARGIN)
        return round(x, 1), round(y, 1)

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" '
        'font-size="11">',
        f'<path d="M{_MARGIN} {_MARGIN}V{_HEIGHT - _MARGIN}H{_WIDTH - _MARGIN}" fill="none" stroke="#888"/>',
        f'<text x="{_WIDTH / 2}" y="{_HEIGHT - 10}" text-anchor="middle">cycles of {escape(report.target)}</text>',
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
