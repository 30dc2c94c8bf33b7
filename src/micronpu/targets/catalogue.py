"""The list of `micronpu passes`: everything that changes a program, from its docstrings."""

from __future__ import annotations

from micronpu.base.extensions import PASSES, extensions, package_of
from micronpu.passes.pipeline import FINISH, SETTLE, SIMPLIFY
from micronpu.quantize.writer import float_rewrites
from micronpu.targets.backend import sentences
from micronpu.targets.registry import BACKENDS


def catalogue() -> dict[str, dict[str, str]]:
    """Return for each kind of pass, in order of execution, the description of each by name."""
    found = {
        "Rewrites of the float program, before it is quantized": float_rewrites(),
        "Passes over the graph of a partition": sentences((*SIMPLIFY, *SETTLE, *FINISH)),
    }
    for backend in BACKENDS.values():
        found |= backend.rewrites()
    if installed := {name: package_of(point) for name, point in extensions(PASSES).items()}:
        found["Passes of installed packages, for Pipeline.before and Pipeline.after"] = installed
    return found
