"""Names that are imported on first use: torch and ExecuTorch take seconds, which `--help` does not wait for."""

from __future__ import annotations

import ast
import sys
import threading
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from micronpu.base.errors import MovedError
from micronpu.base.quiet import quiet

_importing = threading.RLock()
"""Modules that import each other, as torch's do, can be met half imported by a second thread."""


def lazily(
    module: str, file: str, moved: Mapping[str, str] | None = None
) -> tuple[list[str], Callable[[], list[str]], Callable[[str], Any]]:
    """The `__all__`, `__dir__` and `__getattr__` of a module whose names its stub says, each with where it is defined.

    Args:
        module: its name.
        file: its path; the stub is beside it.
        moved: names that it had in an earlier version, each with the import that there is now.
    """
    homes: dict[str, tuple[str, str]] = {}
    imported: dict[str, tuple[str, str]] = {}
    for line in ast.parse(Path(file).with_suffix(".pyi").read_text(encoding="utf-8")).body:
        if isinstance(line, ast.ImportFrom):
            for alias in line.names:  # a stub hands on what it imports `as`, and nothing else
                (homes if alias.asname else imported)[alias.name] = (line.module or "", alias.name)
        elif isinstance(line, ast.Assign) and isinstance(line.value, ast.Name):
            homes.update((name.id, imported[line.value.id]) for name in line.targets if isinstance(name, ast.Name))

    def every() -> list[str]:
        # What a user may type: not the rooms that happen to be imported, nor this function.
        return sorted({*(name for name in vars(sys.modules[module]) if name.startswith("__")), *homes})

    def get(name: str) -> Any:
        if moved is not None and name in moved:
            # Not an AttributeError, which `from module import name` answers with a sentence of its own.
            raise MovedError(f"{module} has no `{name}` any more.", hint=moved[name])
        if name not in homes:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        home, there = homes[name]
        with _importing, quiet():
            return getattr(import_module(home), there)

    return sorted(homes), every, get
