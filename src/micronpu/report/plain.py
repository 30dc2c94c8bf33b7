"""The style of tables in the terminal."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.table import Table


def plain_table(*columns: str, numbers: tuple[str, ...] = (), **options: Any) -> Table:
    """Return a table in the style of the reports; ``numbers`` are the columns that are aligned to the right."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, **options)
    for name in columns:
        table.add_column(name, justify="right" if name in numbers else "left", overflow="fold")
    return table
