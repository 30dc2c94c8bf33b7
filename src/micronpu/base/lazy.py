"""Names that are imported on first use: torch and ExecuTorch take seconds, which `--help` does not wait for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazily(module: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """A module's `__getattr__`.

    Args:
        module: its name.
        homes: where each of its names is, "module" or "module:name there", below `micronpu`.
    """

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        home, _, there = homes[name].partition(":")
        return getattr(import_module(f"micronpu.{home}"), there or name)

    return get
