"""Options of the command that say where a delegation report goes: one value, for every command that makes one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from micronpu.base.files import check_writable, write_file
from micronpu.cli import console

if TYPE_CHECKING:
    from micronpu.report.delegation import DelegationReport

_Html = Annotated[Path | None, console.option("PATH", "Write the report as a web page.")]
_Json = Annotated[
    Path | None,
    console.option("PATH", "Write the report as JSON; - for standard output, and all else to standard error."),
]


@dataclass(frozen=True)
class Reports:
    """Where the options of a command want its report, an option for each field."""

    report_html: _Html = None
    report_json: _Json = None
    json: console.JsonInstead = False

    @property
    def path(self) -> Path | None:
        """Where the report is wanted as JSON.

        Raises:
            OptionError: two options say so.
        """
        return console.json_path(self.json, self.report_json)

    @property
    def words(self) -> Console:
        """Where the command says what it has done."""
        return console.words(self.path)

    def check(self) -> None:
        """Refuses what cannot be written, before the work is done.

        Raises:
            FileError: it is such a file.
            OptionError: two options say where JSON goes.
        """
        for path in (self.report_html, self.path if self.path != console.STANDARD_OUTPUT else None):
            if path is not None:
                check_writable(path)

    def write(self, report: DelegationReport) -> None:
        """Writes the report where it is wanted, and says so."""
        if self.report_html is not None:
            report.to_html(self.report_html)
            self.words.print(Text(f"Wrote {self.report_html}."), soft_wrap=True)
        if self.path == console.STANDARD_OUTPUT:
            typer.echo(report.to_json())
        elif self.path is not None:
            write_file(self.path, (report.to_json() + "\n").encode())
            self.words.print(Text(f"Wrote {self.path}."), soft_wrap=True)


NOWHERE = Reports()
