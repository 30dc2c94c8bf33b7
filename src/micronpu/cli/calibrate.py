"""`micronpu calibrate`: update a chip file with measurements of a board."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from micronpu.base.errors import OptionError
from micronpu.base.files import check_writable, read_file
from micronpu.base.texts import NOTHING
from micronpu.chips import Chips, load_chip, shipped_chips
from micronpu.chips.chip import parse_chip, text_of
from micronpu.cli import console
from micronpu.targets.registry import find_target

if TYPE_CHECKING:
    from micronpu.board.calibrate import MemoryCalibration


@console.guarded
def calibrate(
    chip: Annotated[
        str, console.argument("CHIP", "Your chip file, to be updated; or with --output a chip of micronpu.")
    ],
    log: Annotated[
        list[Path], console.argument("LOG", "Measurements: measurement.toml of `board run`, console logs or ETDumps.")
    ],
    report: Annotated[
        list[Path],
        console.option(
            "REPORT.json",
            "Report of the program that ran, from `micronpu compile --report-json`; one for each log, or one for all.",
        ),
    ],
    program: Annotated[
        Path | None, console.option("MODEL.pte", "The program, for a line for each call of a `micronpu-cycles` log.")
    ] = None,
    output: Annotated[
        Path | None, console.option("NEW.toml", "Write the chip file there.", "--output", "-o", default="CHIP.toml")
    ] = None,
    clock_mhz: Annotated[
        float | None, typer.Option("--clock-mhz", metavar="MHZ", help="Counter clock, if not in the log.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the result without writing it.")] = False,
    report_json: console.ReportJson = None,
    json: console.JsonInstead = False,
    debug: console.Debug = False,
) -> None:
    """Compare board measurements with estimates and update the chip file.

    Updates memory bandwidths, call overhead, the band and the number of networks. Comments and the rest of the file
    stay.
    """
    from micronpu.board.calibrate import calibrate as calibrated
    from micronpu.board.calibrate import observed
    from micronpu.board.logs import read_measurement
    from micronpu.chips.edit import with_numbers
    from micronpu.program.plan import read_plan
    from micronpu.report.delegation import DelegationReport

    report_json = console.checked_json_path(json, report_json)
    if clock_mhz is not None and not 0 < clock_mhz < 1e5:
        raise OptionError(f"--clock-mhz is {clock_mhz:g}.", hint="--clock-mhz 400")
    if len(report) not in (1, len(log)):
        raise OptionError(
            f"There are {len(log)} logs and {len(report)} reports.", hint="--report once, or once for each log"
        )
    shipped = None if chip.endswith(".toml") else find_target(chip).chip
    if shipped is not None and output is None:
        raise OptionError(f"{chip} is a chip of micronpu, whose file does not change.", hint="-o mychip.toml")
    target = output or Path(chip)
    check_writable(target)
    found = shipped or load_chip(chip)
    if found.npu is None or found.npu.clock_mhz is None:
        raise OptionError(f"The chip file {chip} has no NPU with a `clock_mhz`.", hint="the clock it runs at")
    logs = [read_measurement(read_file(path, "The log"), path.name) for path in log]
    reports = [DelegationReport.load(path) for path in report] * (len(log) if len(report) == 1 else 1)
    runs = [observed(found, one, own, clock_mhz) for one, own in zip(logs, reports, strict=True)]
    plan = read_plan(read_file(program, "The program"))[0] if program is not None else None
    calibration, changes = calibrated(found, logs, runs, plan)
    names = ", ".join(path.name for path in log)
    if shipped is None:
        text = Path(chip).read_text(encoding="utf-8")
    else:  # two chips of one name are refused
        text = text_of(shipped).replace(f'name = "{shipped.name}"', f'name = "{target.stem}"', 1)
    text = with_numbers(text, changes, f"micronpu calibrate, {names}")
    Chips(*shipped_chips().values(), parse_chip(text, str(target), str(target)))  # raises if the new file is invalid
    console.words(report_json).print(calibration_view(calibration))
    console.write_json(report_json, calibration.to_json())
    if not dry_run:
        console.write(target, text, console.words(report_json))


def calibration_view(calibration: MemoryCalibration) -> RenderableType:
    """Return tables of measurements and estimates, of the constants before and after, and of their error."""
    from micronpu.report.plain import plain_table

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
