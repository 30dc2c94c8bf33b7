"""Exported programs without regions in another mode, without reserved names, and without writes that others see.

Every later stage takes an operator as a function of its operands.  `torch.relu_(conv(x))` is one, since no other
operator reads the convolution; `y[:, 0] += 1` is not: it changes y through a view.  A compiled program does not change
its inputs, even if the module writes into them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature, OutputKind
from torch.fx import Graph, GraphModule, Node

from micronpu.base.errors import ModelError, first_line
from micronpu.frontend.constants import free_name, read
from micronpu.frontend.copies import remade, with_graph, with_own_graph
from micronpu.frontend.loops import flow_name
from micronpu.frontend.program import arguments, aten_overload, is_getitem, only_checks, overload_name, overload_of
from micronpu.ops.movement import RESHAPE, VIEW
from micronpu.upstream.torch import schema_of

_REGIONS = (
    "tag_activation_checkpoint",
    "wrap",
    "wrap_activation_checkpoint",
    "wrap_with_autocast",
    "wrap_with_set_grad_enabled",
)


def without_regions(program: ExportedProgram) -> ExportedProgram:
    """Return the program with its regions inlined, nested ones too; the same object if it has none.

    wrap_with_autocast("cpu", bfloat16, True, True, {relu(conv(x))}, x)  ->  relu(conv(x))

    A compiled program computes no gradients, and ignores autocast: it computes in float32 and integers. So a region is
    equivalent to its operators.
    """
    if not any(map(_is_region, program.graph.nodes)):
        return program
    module = with_own_graph(program.graph_module)
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
                name = free_name(module, "of_region")
                setattr(module, name, read(body, node))
                copies[node] = module.graph.get_attr(name)
                copies[node].meta.update(node.meta)
        elif node.op != "output":
            copies[node] = module.graph.node_copy(node, copies.__getitem__)
    return torch.fx.node.map_arg(body.graph.output_node().args[0], copies.__getitem__)


def functional(program: ExportedProgram) -> ExportedProgram:
    """Return the program with shared writes replaced by functions; the same object if it has none.

        y = conv(x)                     y = conv(x)
        v = select(y, 1, 0)             v = select(y, 1, 0)
        add_(v, 1)            ->        w = add(v, 1)
        z = mul(y, 2)                   y' = select_scatter(y, w, 1, 0)
                                        z = mul(y', 2)

    A buffer that it changes remains a buffer: a state, see `micronpu.frontend.states`.
    """
    if any(_writes_what_others_see(node) for node in program.graph.nodes):
        program = decomposed(program, "write changes in place as functions", "self.h = new; no buffers that are views")
        for node in program.graph.nodes:
            if overload_name(node) == VIEW:  # strides at run time may differ from those of shape propagation
                node.target = overload_of(RESHAPE)
    if program.graph_signature.user_inputs_to_mutate:
        program = _without_written_inputs(program)
    return program


def decomposed(program: ExportedProgram, what: str, hint: str) -> ExportedProgram:
    """Return the program with torch's decompositions; raise `ModelError` if torch cannot do it."""
    try:
        made: ExportedProgram = program.run_decompositions({})
    except Exception as error:
        raise ModelError(f"torch cannot {what} in the model: {first_line(error)}.", hint=hint) from error
    return made


def _without_written_inputs(program: ExportedProgram) -> ExportedProgram:
    """Return the program without the outputs for its writes into inputs.

    y = relu(x)                     y = relu(x)
    return y as x, y        ->      return y
    """
    module = with_own_graph(program.graph_module)
    signature = program.graph_signature
    kept = [i for i, s in enumerate(signature.output_specs) if s.kind is not OutputKind.USER_INPUT_MUTATION]
    output = module.graph.output_node()
    results = output.args[0]
    assert isinstance(results, (tuple, list))
    output.args = (tuple(results[i] for i in kept),)
    module.recompile()
    return with_graph(program, module, kept)


def _writes_what_others_see(node: Node) -> bool:
    overload = aten_overload(node)
    if overload is None or not schema_of(overload).is_mutable:
        return False
    given, own = arguments(node), schema_of(overload).arguments
    written = [given.get(a.name) for a in own if a.alias_info is not None and a.alias_info.is_write]
    return any(isinstance(source, Node) and _is_seen_elsewhere(source) for source in written)


def _is_seen_elsewhere(source: Node) -> bool:
    """Return True if the memory of a value is shared with another one, or read by others than the writer."""
    overload = aten_overload(source)
    if overload is None or len(source.users) > 1 or is_getitem(source):
        return True
    # A write into the result of another write is as safe as that write, which is checked separately.
    return not schema_of(overload).is_mutable and any(r.alias_info is not None for r in schema_of(overload).returns)


def without_taken_names(program: ExportedProgram) -> ExportedProgram:
    """Return the program with parts renamed whose names are reserved; the same object if it has none.

    code.weight, graph  ->  code_.weight, graph_

    `torch.export` keeps the names of a model's parts, and `ExportedProgram.module()` makes them attributes of a
    `GraphModule`, whose `graph`, `code` and `meta` are something else. The module paths of operators, which are
    shown to users, are not changed.
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
    inputs, outputs = (
        [replace(s, target=renamed(s.target)) if s.target in of_inputs else s for s in specs]
        for specs in (signature.input_specs, signature.output_specs)
    )
    return remade(program, with_own_graph(program.graph_module), ExportGraphSignature(inputs, outputs), given)


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
