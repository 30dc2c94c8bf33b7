"""View of a calibration in the terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from micronpu.board.calibrate import MemoryCalibration
from micronpu.report.texts import NOTHING
from micronpu.report.views.tables import plain_table


def calibration_view(calibration: MemoryCalibration) -> RenderableType:
    """Return tables of measurements and estimates, of the constants before and after, and of their error."""
    parts: list[RenderableType] = [Text(f"{calibration.chip}, from {', '.join(calibration.logs)}", style="bold"), ""]
    numbers = ("measured", "estimate before", "off", "after", "off ")
    table = plain_table("", *numbers, numbers=numbers)
    for row in calibration.rows:
        before, after = f"{row.error_before:+.0%}", f"{row.error_after:+.0%}"
        times = (_time(row.measured), _time(row.before), before, _time(row.after), after)
        table.add_row(*map(Text, (row.what, *times)))
    parts += [table, ""]
    table = plain_table("constant", "before", "after", numbers=("before", "after"))
    for constant in calibration.constants:
        table.add_row(*map(Text, (constant.name, constant.before or NOTHING, constant.after)))
    parts += [table, ""]
    if calibration.beats:
        table = plain_table("beats of the bus", "counted on the board", "of the stream", "off", numbers=_BEATS)
        for counter, (found, own) in calibration.beats.items():
            off = f"{own / found - 1:+.1%}" if found else NOTHING
            table.add_row(*map(Text, (counter, f"{found:,}", f"{own:,}", off)))
        parts += [table, ""]
    return Group(*parts, *(Text(sentence) for sentence in calibration.holds))


_BEATS = ("counted on the board", "of the stream", "off")


def _time(milliseconds: float) -> str:
    return f"{milliseconds:,.{1 if milliseconds >= 100 else 2 if milliseconds >= 1 else 4}f} ms"
