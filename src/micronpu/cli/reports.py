"""Options for the delegation report, as one value for all commands that make one, and compilation times."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from micronpu.base.errors import OptionError
from micronpu.base.files import check_writable
from micronpu.base.parsing import JsonObject
from micronpu.base.timing import STEPS, Times
from micronpu.cli import console

if TYPE_CHECKING:
    from micronpu.report.delegation import DelegationReport


@dataclass(frozen=True)
class Reports:
    """Options for the report's outputs and length, one for each field."""

    top: Annotated[
        int | None,
        console.option(
            "N", "Show the N most costly rows of each table.", "--top", default="10 of a table of more than 24"
        ),
    ] = None
    every: Annotated[bool, typer.Option("--all", help="Show every operation; do not fold repeated ones.")] = False
    report_html: Annotated[Path | None, console.option("PATH", "Write the report as a web page.")] = None
    report_json: Annotated[
        Path | None, console.option("PATH", "Write the report as JSON; - for stdout (messages go to stderr).")
    ] = None
    trace: Annotated[
        Path | None,
        console.option("PATH", "Write the estimated schedule as a trace for chrome://tracing and Perfetto."),
    ] = None
    json: console.JsonInstead = False

    @property
    def path(self) -> Path | None:
        return console.json_path(self.json, self.report_json)

    @property
    def words(self) -> Console:
        """Console for messages about the work."""
        return console.words(self.path)

    def check(self) -> None:
        """Check that the files can be written, before the work is done."""
        if self.top is not None and self.top < 1:
            raise OptionError(f"--top is {self.top}.", hint="1 or more lines")
        if self.top is not None and self.every:
            raise OptionError("--all shows every line and --top a few of them.", hint="one of the two")
        for path in (self.report_html, self.trace, self.path if self.path != console.STANDARD_OUTPUT else None):
            if path is not None:
                check_writable(path)

    def show(self, report: DelegationReport, seconds: Mapping[str, float] | None = None) -> None:
        """Print the report, for a finished program with the times of the steps."""
        from micronpu.report.views.terminal import program_view, report_view

        rows = self.top, self.every
        self.words.print(report_view(report, *rows) if seconds is None else program_view(report, seconds, *rows))

    def write(self, report: DelegationReport) -> None:
        """Write the report to all selected files, and print their names."""
        if self.report_html is not None:
            report.to_html(self.report_html)
            console.say(f"Wrote {self.report_html}.", to=self.words)
        if self.trace is not None:
            from micronpu.report.views.chrome import chrome_trace

            console.write(self.trace, chrome_trace(report), self.words)
        console.write_json(self.path, report.to_json())


NOWHERE = Reports()


_SHORT = 0.01
"""Fraction of the total below which a line is not shown; the file has all lines."""


def show_times(times: Times, path: Path, out: Console) -> None:
    """Show the steps with their most expensive parts, and write all of them."""
    data = as_json(times)
    table = Table("step", "", "calls", "seconds", "of all", box=None, pad_edge=False)
    for column in table.columns[2:]:
        column.justify = "right"
    whole = data["seconds"]
    for row in data["parts"]:
        if row["part"] and row["seconds"] < _SHORT * whole:
            continue
        name = "" if row["part"] else STEPS.get(row["step"], row["step"].capitalize())
        part = f"{row['seconds'] / whole:.0%}" if whole else ""
        table.add_row(name, row["part"], str(row["calls"]), f"{row['seconds']:.2f}", part)
    rest = whole - sum(row["seconds"] for row in data["parts"] if not row["part"])
    table.add_row("The rest: reports, files", "", "", f"{rest:.2f}", f"{rest / whole:.0%}" if whole else "")
    table.add_row("All", "", "", f"{whole:.2f}", "")
    out.print(table)
    console.write(path, json.dumps(data, indent=2) + "\n", out)


def as_json(times: Times) -> JsonObject:
    """Return seconds of wall time: in total, of each step (`part` ""), and of its parts."""
    return {
        "seconds": times.total,
        "parts": [
            {"step": p.step, "part": p.name, "calls": p.calls, "seconds": p.seconds} for p in times.parts() if p.step
        ],
    }
