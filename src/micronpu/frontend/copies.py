"""Copies of modules and programs."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any, TypeVar

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature, OutputKind
from torch.fx import Graph, GraphModule, Node

from micronpu.base.quiet import quiet

Value = TypeVar("Value")


def copied(value: Value) -> Value:
    """Return a deep copy of a module, or of what contains modules; a tensor with a history of gradients is detached.

    torch copies no such tensor: states of a module that was called with gradients, weights that a hook computes.
    """
    memo: dict[int, Any] = {}
    known, waiting = set[int](), [value]
    with quiet():  # torch warns about its own copying
        while waiting:
            part: Any = waiting.pop()
            if id(part) in known or isinstance(part, type | ModuleType | Graph | Node):
                continue
            known.add(id(part))
            if isinstance(part, torch.Tensor):
                if not part.is_leaf:
                    memo[id(part)] = copy.deepcopy(part.detach(), memo)
            elif isinstance(part, list | tuple | set | frozenset):
                waiting.extend(part)
            else:
                waiting.extend(part.values() if isinstance(part, Mapping) else getattr(part, "__dict__", {}).values())
        return copy.deepcopy(value, memo)


def with_own_graph(module: GraphModule) -> GraphModule:
    """Return a copy of a module that shares its tensors."""
    with quiet():  # torch warns about its own copying
        made = GraphModule(module, copy.deepcopy(module.graph))
    made.meta.update(module.meta)
    return made


def with_graph(
    program: ExportedProgram, module: GraphModule, kept: Sequence[int] | None = None, **changes: Any
) -> ExportedProgram:
    """Return `remade` with another graph, which it takes, whose nodes may have other names.

    Args:
        kept: indices of the outputs that the graph still has; all by default.
    """
    signature = program.graph_signature
    inputs, names, outputs = [], {}, []
    for given, node in zip(signature.input_specs, module.graph.find_nodes(op="placeholder", sort=True), strict=True):
        inputs.append(replace(given, arg=replace(given.arg, name=node.name)))
        names[given.arg.name] = node.name
    every = signature.output_specs if kept is None else [signature.output_specs[place] for place in kept]
    for own, result in zip(every, module.graph.output_node().args[0], strict=True):  # type: ignore[arg-type]
        if isinstance(result, Node):
            own = replace(own, arg=replace(own.arg, name=result.name))
        if own.kind is OutputKind.USER_INPUT_MUTATION and own.target is not None:
            own = replace(own, target=names[own.target])
        outputs.append(own)
    return remade(program, module, ExportGraphSignature(inputs, outputs), **changes)


def remade(
    program: ExportedProgram,
    module: GraphModule,
    signature: ExportGraphSignature,
    renamed: Callable[[dict[str, Any]], dict[str, Any]] = lambda parts: parts,
    examples: Callable[[Any], Any] = lambda examples: examples,
) -> ExportedProgram:
    """Return a program with another graph; functions change its parameters, buffers and constants, and its examples."""
    return ExportedProgram(
        module,
        module.graph,
        signature,
        renamed(program.state_dict),
        program.range_constraints,
        program.module_call_graph,
        examples(program.example_inputs),
        renamed(program.constants),
        verifiers=program.verifiers,
    )
