"""Warnings attributed to the user's line."""

from __future__ import annotations

import inspect
import sys
import warnings

_PACKAGE = "micronpu"
LIBRARIES = frozenset({_PACKAGE, "torch", "torchao", "executorch"})
"""Libraries that call this package back, whose lines are not the user's."""


def warn(message: str | Warning, category: type[Warning] = UserWarning) -> None:
    """Issue a warning for the innermost line that belongs neither to this package nor to a library that calls it.

    A fixed `stacklevel` does not work: libraries call back (torchao calls an observer), and context managers and
    decorators add frames. If there is no such line, the outermost one is used.
    """
    frame = inspect.currentframe()
    assert frame is not None, "another Python than CPython"
    while frame.f_back is not None and _is_library(frame.f_globals.get("__name__", _PACKAGE)):
        frame = frame.f_back
    module, registry = frame.f_globals.get("__name__", _PACKAGE), frame.f_globals.setdefault("__warningregistry__", {})
    warnings.warn_explicit(message, category, frame.f_code.co_filename, frame.f_lineno, module, registry)


def _is_library(module: str) -> bool:
    package = module.partition(".")[0]
    return package in LIBRARIES or package in sys.stdlib_module_names
