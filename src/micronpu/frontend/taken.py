"""Renaming of a model's submodules whose names are attributes of a `GraphModule`: `graph`, `code`, `meta`.

`torch.export` keeps the names of a model's parts, and `ExportedProgram.module()` makes them attributes of a
`GraphModule`, whose `graph` is something else.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from typing import Any

from torch import nn
from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature
from torch.fx import Graph, GraphModule

from micronpu.base.quiet import quiet


def without_taken_names(program: ExportedProgram) -> ExportedProgram:
    """Return the program with such parts renamed; the same object if it has none.

    code.weight, graph  ->  code_.weight, graph_

    The module paths of operators, which are shown to users, are not changed.
    """
    paths = [*program.state_dict, *program.constants]
    new = _names({path.split(".")[0] for path in paths})
    if not new:
        return program

    def renamed(path: str | None) -> str | None:
        first, dot, rest = (path or "").partition(".")
        return f"{new[first]}{dot}{rest}" if first in new else path

    def given(parts: dict[str, Any]) -> dict[str, Any]:
        return {str(renamed(path)): value for path, value in parts.items()}

    signature = program.graph_signature
    of_inputs = {name for spec in signature.input_specs if (name := spec.target) in paths}
    with quiet():  # torch warns about its own copying
        graph = copy.deepcopy(program.graph)
        return ExportedProgram(
            program.graph_module,
            graph,
            ExportGraphSignature(
                [replace(s, target=renamed(s.target)) if s.target in of_inputs else s for s in signature.input_specs],
                [replace(s, target=renamed(s.target)) if s.target in of_inputs else s for s in signature.output_specs],
            ),
            given(program.state_dict),
            program.range_constraints,
            program.module_call_graph,
            program.example_inputs,
            given(program.constants),
            verifiers=program.verifiers,
        )


def _names(used: Iterable[str]) -> dict[str, str]:
    """Return an unused name for each conflicting one."""
    used = set(used)
    new: dict[str, str] = {}
    for name in sorted(used & _taken()):
        free = f"{name}_"
        while free in used or free in _taken():
            free += "_"
        used.add(free)
        new[name] = free
    return new


@cache
def _taken() -> frozenset[str]:
    """Return the reserved names, including those that `ExportedProgram.module()` adds."""
    return frozenset(dir(GraphModule(nn.Module(), Graph()))) | {"range_constraints", "validate_inputs"}
