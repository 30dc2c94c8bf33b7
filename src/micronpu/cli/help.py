"""The text of ``--help``: options by what they are about, and no name cut, however narrow the terminal is."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from typer.core import TyperCommand

PANELS = {
    "Data": ("calibration", "images", "normalize", "library", "data", "labels"),
    "Accuracy": ("verify", "strict", "held_out"),
    "Kernels of your own": ("allow_missing_kernels",),
    "Sparse and smaller weights": ("sparsity", "max_loss", "max_cycles", "compress"),
    "Report": (
        *("top", "every", "report_html", "report_json", "trace", "json", "etrecord", "manifest"),
        *("profile", "no_cache", "quiet", "debug", "help"),
    ),
}
"""Of options that name none themselves. Each panel is a table: a long name narrows the others no more."""
_FEW = 12


class Command(TyperCommand):
    """A command whose help names every option in one piece; many options stand under headings."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        own = [parameter for parameter in self.get_params(ctx) if parameter.param_type_name == "option"]
        panels = {name: panel for panel, names in PANELS.items() for name in names} if len(own) > _FEW else {}
        for parameter in own:
            if not getattr(parameter, "rich_help_panel", None) and parameter.name in panels:
                parameter.rich_help_panel = panels[parameter.name]  # type: ignore[attr-defined]
        text, self.help = self.help, _unwrapped(self.help or "")
        try:
            with _whole_names():
                super().format_help(ctx, formatter)
        finally:
            self.help = text


def _unwrapped(text: str) -> str:
    """Return the text with each paragraph on one line, so that the terminal decides where lines end."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in inspect.cleandoc(text).split("\n\n"))


@contextmanager
def _whole_names() -> Iterator[None]:
    """typer makes the tables of its help without a word on widths, so that rich shortens all columns alike."""
    from rich.table import Table
    from rich.text import Text
    from typer import rich_utils

    class Whole(Table):
        def add_row(self, *cells: Any, **settings: Any) -> None:
            super().add_row(*cells, **settings)
            for column, cell in zip(self.columns, cells, strict=False):
                column.overflow = "fold"
                for part in getattr(cell, "renderables", ()):  # a text of help with its default
                    if isinstance(part, Text):
                        part.overflow = "fold"
                if isinstance(cell, Text) and cell.plain.startswith("-"):
                    column.no_wrap = True

    names = vars(rich_utils)
    before = names["Table"]
    names["Table"] = Whole
    try:
        yield
    finally:
        names["Table"] = before
