"""The text of ``--help``: no name of an option is cut, however narrow the terminal is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from typer.core import TyperCommand


class Command(TyperCommand):
    """A command whose help names every option in one piece."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        with _whole_names():
            super().format_help(ctx, formatter)


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
