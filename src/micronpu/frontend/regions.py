"""Regions of a program in another mode: gradients on or off, autocast, recomputation for training."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature, OutputKind
from torch.fx import GraphModule, Node

from micronpu.base.quiet import quiet
from micronpu.frontend.loops import flow_name
from micronpu.frontend.program import aten_overload, is_getitem, only_checks

_REGIONS = (
    "tag_activation_checkpoint",
    "wrap",
    "wrap_activation_checkpoint",
    "wrap_with_autocast",
    "wrap_with_set_grad_enabled",
)


def with_own_graph(program: ExportedProgram) -> GraphModule:
    """Return a copy of a program's graph, which may be changed, for `with_graph`."""
    with quiet():  # torch warns about its own copying
        module = GraphModule(program.graph_module, copy.deepcopy(program.graph))
    module.meta.update(program.graph_module.meta)
    return module


def with_graph(program: ExportedProgram, module: GraphModule, kept: Sequence[int] | None = None) -> ExportedProgram:
    """Return a program with another graph, which it takes, whose nodes may have other names.

    Args:
        kept: indices of the outputs that the graph still has; all by default.
    """
    signature = program.graph_signature
    inputs, names = [], {}
    for given, node in zip(signature.input_specs, module.graph.find_nodes(op="placeholder", sort=True), strict=True):
        inputs.append(replace(given, arg=replace(given.arg, name=node.name)))
        names[given.arg.name] = node.name
    outputs = []
    places = range(len(signature.output_specs)) if kept is None else kept
    for place, result in zip(places, module.graph.output_node().args[0], strict=True):  # type: ignore[arg-type]
        own = signature.output_specs[place]
        if isinstance(result, Node):
            own = replace(own, arg=replace(own.arg, name=result.name))
        if own.kind is OutputKind.USER_INPUT_MUTATION and own.target is not None:
            own = replace(own, target=names[own.target])
        outputs.append(own)
    return ExportedProgram(
        module,
        module.graph,
        ExportGraphSignature(inputs, outputs),
        program.state_dict,
        program.range_constraints,
        program.module_call_graph,
        program.example_inputs,
        program.constants,
        verifiers=program.verifiers,
    )


def without_regions(program: ExportedProgram) -> ExportedProgram:
    """Return the program with its regions inlined, nested ones too; the same object if it has none.

    wrap_with_autocast("cpu", bfloat16, True, True, {relu(conv(x))}, x)  ->  relu(conv(x))

    A compiled program computes no gradients, and ignores autocast: it computes in float32 and integers. So a region is
    equivalent to its operators.
    """
    if not any(map(_is_region, program.graph.nodes)):
        return program
    module = with_own_graph(program)
    for node in [n for n in module.graph.nodes if _is_region(n)]:
        body, operands = _parts(module, node)
        with module.graph.inserting_before(node):
            results = _inlined(module, body, operands)
        for old, new in _replacements(node, results):
            old.replace_all_uses_with(new)
            module.graph.erase_node(old)
        if node in module.graph.nodes:
            module.graph.erase_node(node)
    for node in [n for n in module.graph.nodes if (called := aten_overload(n)) and only_checks(called)]:
        module.graph.erase_node(node)  # such as a check of the dtype under autocast
    module.graph.eliminate_dead_code()
    module.delete_all_unused_submodules()
    module.recompile()
    return with_graph(program, module)


def _is_region(node: Node) -> bool:
    return flow_name(node) in _REGIONS and any(isinstance(a, Node) and a.op == "get_attr" for a in node.args)


def _parts(module: GraphModule, node: Node) -> tuple[GraphModule, Sequence[Any]]:
    """Return the graph of a region and its operands, which follow it in the arguments."""
    at = next(i for i, a in enumerate(node.args) if isinstance(a, Node) and a.op == "get_attr")
    body = module.get_submodule(str(node.args[at].target))  # type: ignore[union-attr]
    assert isinstance(body, GraphModule)
    return body, node.args[at + 1 :]


def _replacements(region: Node, results: Any) -> Iterable[tuple[Node, Node]]:
    """Pairs of a node that reads a result of a region, and the node that computes this result now."""
    if isinstance(results, Node):
        return [(region, results)]
    return [(reader, results[reader.args[1]]) for reader in list(region.users)]


def _inlined(module: GraphModule, body: GraphModule, operands: Sequence[Any]) -> Any:
    """Copy the operators of a region into the graph of the module; return its result, or a sequence of them."""
    copies: dict[Node, Any] = {}
    waiting = iter(operands)
    for node in body.graph.nodes:
        if node.op == "placeholder":
            copies[node] = next(waiting)
        elif _is_region(node):
            inner, given = _parts(body, node)
            copies[node] = _inlined(module, inner, torch.fx.node.map_arg(tuple(given), copies.__getitem__))
        elif is_getitem(node) and isinstance(copies[node.args[0]], (tuple, list)):
            copies[node] = copies[node.args[0]][node.args[1]]
        elif node.op == "get_attr":
            if not all(map(_is_region, node.users)):  # the graphs of a torch.cond, or a constant
                copies[node] = module.graph.get_attr(_adopt(module, _attribute(body, str(node.target))))
                copies[node].meta.update(node.meta)
        elif node.op != "output":
            copies[node] = module.graph.node_copy(node, copies.__getitem__)
    return torch.fx.node.map_arg(body.graph.output_node().args[0], copies.__getitem__)


def _attribute(module: Any, path: str) -> Any:
    for part in path.split("."):
        module = getattr(module, part)
    return module


def _adopt(module: GraphModule, value: Any) -> str:
    """Make a value an attribute of a module, and return its name."""
    number = 0
    while hasattr(module, name := f"of_region_{number}"):
        number += 1
    setattr(module, name, value)
    return name
