"""Output of `micronpu compile --profile`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from micronpu.base.files import write_file
from micronpu.base.progress import STEPS
from micronpu.base.timing import Times

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
    write_file(path, (json.dumps(data, indent=2) + "\n").encode())
    out.print(Text(f"Wrote {path}."), soft_wrap=True)


def as_json(times: Times) -> dict[str, Any]:
    """Return seconds of wall time: in total, of each step (`part` ""), and of its parts."""
    return {
        "seconds": times.total,
        "parts": [
            {"step": p.step, "part": p.name, "calls": p.calls, "seconds": p.seconds} for p in times.parts() if p.step
        ],
    }
