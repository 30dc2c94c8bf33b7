"""Figures as files: scripts write what they find to `benchmarks/results/NAME.json`, and pages are made of that.

{"command": "python -m benchmarks.run accuracy", "machine": ..., "versions": {...}, "figures": ...}
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import micronpu

FOLDER = Path(__file__).parent / "results"
_VERSIONED = ("torch", "executorch", "torchao", "ai-edge-litert", "ethos-u-vela", "tosa-tools", "numpy")


def write(name: str, command: str, figures: Any) -> Path:
    """Writes figures with what they were measured on and with.

    Args:
        name: of the file, without its ending.
        command: that measures them again.
    """
    versions = {"micronpu": micronpu.__version__, "python": platform.python_version()}
    versions |= {package: _version(package) for package in _VERSIONED}
    content = {"command": command, "machine": machine(), "versions": versions, "figures": figures}
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / f"{name}.json"
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return path


def read(name: str) -> Any:
    """The figures of a file."""
    return json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))["figures"]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    first, *others = (f"| {' | '.join(line)} |" for line in (head, *rows))
    return "\n".join((first, "|" + "---|" * len(head), *others))


def is_there(name: str) -> bool:
    """Whether there is a file of figures."""
    return (FOLDER / f"{name}.json").is_file()


def machine() -> str:
    """What kind of machine this is, not which one."""
    return f"{platform.system()} on {platform.machine()}, {os.cpu_count()} cores"


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"
