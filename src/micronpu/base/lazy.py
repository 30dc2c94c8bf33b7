"""Import names on first use: torch and ExecuTorch take seconds to import, and `--help` must be fast."""

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
"""Prevents a second thread from seeing half-imported modules that import each other, such as torch's."""


def lazily(
    module: str, file: str, moved: Mapping[str, str] | None = None
) -> tuple[list[str], Callable[[], list[str]], Callable[[str], object]]:
    """Return `__all__`, `__dir__` and `__getattr__` of a module whose stub lists its names and where they are defined.

    Args:
        module: its name.
        file: its path; the stub is beside it.
        moved: names of ExecuTorch that are elsewhere, each with the import that replaces it.
    """
    homes: dict[str, tuple[str, str]] = {}
    imported: dict[str, tuple[str, str]] = {}
    for line in ast.parse(Path(file).with_suffix(".pyi").read_text(encoding="utf-8")).body:
        if isinstance(line, ast.ImportFrom):
            for alias in line.names:  # a stub re-exports only names that it imports `as`
                (homes if alias.asname else imported)[alias.name] = (line.module or "", alias.name)
        elif isinstance(line, ast.Assign) and isinstance(line.value, ast.Name):
            homes.update((name.id, imported[line.value.id]) for name in line.targets if isinstance(name, ast.Name))

    def every() -> list[str]:
        # Only names for users: neither imported submodules nor this function.
        return sorted({*(name for name in vars(sys.modules[module]) if name.startswith("__")), *homes})

    def get(name: str) -> Any:
        if moved is not None and name in moved:
            # Not an AttributeError, which `from module import name` replaces by its own message.
            raise MovedError(f"{module} has no `{name}`.", hint=moved[name])
        if name not in homes:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        home, there = homes[name]
        with _importing, quiet():
            return getattr(import_module(home), there)

    return sorted(homes), every, get
