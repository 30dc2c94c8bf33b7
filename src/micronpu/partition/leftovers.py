"""Operators that were preserved for an NPU and then stayed on the core.

ExecuTorch preserves operators that a partitioner requests, before partitioning.  Passes of the user or another
partitioner may change the program afterwards, so that such an operator is not delegated.  The core has no kernel for
it, and needs the core ATen operators of its decomposition.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from executorch.exir import to_edge
from torch import nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec, TensorArgument
from torch.fx import Node
from torch.fx.node import map_aggregate, map_arg

from micronpu.frontend.program import aten_overload, is_getitem
from micronpu.upstream.executorch import edge_config
from micronpu.upstream.torch import OpOverload


def decompose_leftovers(program: ExportedProgram, operators: Collection[OpOverload]) -> bool:
    """Decompose operators of an edge program as ExecuTorch does, in place.

        linear(x, w, b) -> y        permute_copy(w) -> w'; addmm(b, x, w') -> y

    Args:
        operators: ATen operators to decompose.

    Returns:
        True if anything was replaced.
    """
    found = [n for n in program.graph.nodes if aten_overload(n) in operators]
    for node in found:
        _inline(program, node)
    if found:
        program.graph_module.recompile()
    return bool(found)


class _Call(nn.Module):
    """One call of an operator, as a module with its tensor operands as inputs."""

    def __init__(self, node: Node) -> None:
        super().__init__()
        self.node = node
        self.overload: Any = aten_overload(node)

    def forward(self, *tensors: torch.Tensor) -> Any:
        values = dict(zip(self.node.all_input_nodes, tensors, strict=True))
        args, kwargs = map_arg((self.node.args, self.node.kwargs), values.__getitem__)
        return self.overload(*args, **kwargs)


def _inline(program: ExportedProgram, node: Node) -> None:
    """Lower the operator alone, as ExecuTorch does, and replace it by the result."""
    values = [n.meta["val"] for n in node.all_input_nodes]
    examples = tuple(torch.empty_strided(v.shape, v.stride(), dtype=v.dtype).zero_() for v in values)
    with torch.no_grad():
        exported = torch.export.export(_Call(node), examples)
        lowered = to_edge(exported, compile_config=edge_config()).exported_program()
    mode = getattr(node.meta["val"], "fake_mode", None)
    constants, operands = lowered.constants | lowered.state_dict, iter(node.all_input_nodes)
    copies: dict[Node, Node] = {}
    for spec, part in zip(
        lowered.graph_signature.input_specs, lowered.graph.find_nodes(op="placeholder", sort=True), strict=True
    ):
        constant = constants.get(spec.target or "")
        copies[part] = (
            next(operands) if constant is None else _add_constant(program, f"{node.name}_{part.name}", constant)
        )
    for part in lowered.graph.nodes:
        if part.op != "call_function":
            continue
        with program.graph.inserting_before(node):
            made = program.graph.node_copy(part, copies.__getitem__)
        made.meta = node.meta | {"val": map_aggregate(part.meta["val"], lambda value: _into(mode, value))}
        copies[part] = made
    _replace(program, node, [copies[result] for result in lowered.graph.output_node().args[0]])


def _add_constant(program: ExportedProgram, name: str, value: torch.Tensor) -> Node:
    """Add a constant to the program, before its inputs."""
    first = next(n for n in program.graph.find_nodes(op="placeholder", sort=True) if _is_input(program, n))
    with program.graph.inserting_before(first):
        node: Node = program.graph.placeholder(name)
    node.meta["val"] = _into(getattr(first.meta["val"], "fake_mode", None), value)
    program.constants[node.name] = value
    spec = InputSpec(InputKind.CONSTANT_TENSOR, TensorArgument(node.name), node.name)
    place = program.graph.find_nodes(op="placeholder", sort=True).index(node)
    program.graph_signature.input_specs.insert(place, spec)
    return node


def _is_input(program: ExportedProgram, node: Node) -> bool:
    return node.name in program.graph_signature.user_inputs


def _into(mode: Any, value: Any) -> Any:
    """Return a fake tensor with the same shape in the fake mode of another program."""
    if mode is None or not isinstance(value, torch.Tensor):
        return value
    with mode:
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)


def _replace(program: ExportedProgram, node: Node, results: list[Node]) -> None:
    """Make the readers of ``node`` read ``results``, which also take its name as a program output."""
    replaced = {node: results[0]}
    if not isinstance(node.meta["val"], torch.Tensor):
        replaced = {user: results[int(user.args[1])] for user in node.users if is_getitem(user)}  # type: ignore[arg-type]
    outputs = {spec.arg.name for spec in program.graph_signature.output_specs}
    for old, new in replaced.items():
        name = old.name
        old.replace_all_uses_with(new)
        program.graph.erase_node(old)
        if name in outputs:
            new._rename(name)
    if node not in replaced:
        program.graph.erase_node(node)
