"""Warnings that point to the user's line."""

from __future__ import annotations

import inspect
import sys
import warnings

_PACKAGE = "micronpu"
LIBRARIES = frozenset({_PACKAGE, "torch", "torchao", "executorch"})
"""Whose lines are not the user's: those that call the package back, beside the package and Python itself."""


def warn(message: str | Warning, category: type[Warning] = UserWarning) -> None:
    """As `warnings.warn`, of the innermost line that is neither the package's, nor of a library that calls it.

    Libraries call back, as torchao does an observer, and context managers and decorators add frames of Python's own,
    so that no fixed number of frames leads to the line.  Without such a line, it is the outermost one.
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
