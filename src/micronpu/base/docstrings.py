"""Docstrings that users read, which ``python -OO`` leaves out of the compiled modules."""

from __future__ import annotations

import ast
import functools
import inspect
import sys
from pathlib import Path
from typing import Any


def docstring(thing: Any) -> str:
    """Return the docstring of a function or class without its indentation; "" if there is none.

    Under ``python -OO`` it comes from the source; "" if that is not installed.
    """
    if sys.flags.optimize < 2:
        return inspect.getdoc(thing) or ""
    for one in inspect.getmro(thing) if isinstance(thing, type) else (thing,):
        path = getattr(sys.modules.get(one.__module__), "__file__", None)
        if path is not None and (found := _docstrings(path).get(one.__qualname__)):
            return found
    return ""


@functools.cache
def _docstrings(path: str) -> dict[str, str]:
    """Return the docstrings in a source file by qualified name; {} if there is no source."""
    found: dict[str, str] = {}
    try:
        level: list[tuple[str, ast.AST]] = [("", ast.parse(Path(path).read_bytes()))]
    except (OSError, SyntaxError, ValueError):
        return found
    for prefix, parent in level:
        for node in ast.iter_child_nodes(parent):
            inner = prefix
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                name = prefix + node.name
                found[name] = ast.get_docstring(node) or ""
                inner = f"{name}." if isinstance(node, ast.ClassDef) else f"{name}.<locals>."
            level.append((inner, node))
    return found
