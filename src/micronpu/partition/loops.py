"""Loops of the core part: a separately compiled step, called by the runtime for each row of a sequence."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from micronpu.frontend.program import calls_into
from micronpu.frontend.tensors import attribute, states_of
from micronpu.ops.calls import CLONE
from micronpu.partition.outline import DelegateCall


def scan(module: GraphModule, node: Node, step: GraphModule, body: GraphModule) -> None:
    """Replace the call of a `micronpu.quantize.loops.Loop` by ExecuTorch's loop, in place.

        y, h = loop(x, h0)        h, y = scan(step, [h0], [x], constants)

    Args:
        module: the core part.
        step: the core part of a step, from (x, states) to (y, states).
        body: the module that ``step`` was made of.
    """
    count = len(states_of(body).values)
    name = f"{node.target}_step"
    made_step, constants = _states_first(step, count)
    module.add_submodule(name, made_step)
    graph = module.graph
    with graph.inserting_before(node):
        called = graph.get_attr(name)
        given = []
        for number, value in enumerate(constants):
            module.register_buffer(f"{name}_constant_{number}", value)
            given.append(graph.get_attr(f"{name}_constant_{number}"))
        made = graph.call_function(
            torch.ops.higher_order.scan, (called, list(node.args[1:]), [node.args[0]], tuple(given))
        )
    for reader in list(node.users):
        index = int(reader.args[1])  # type: ignore[arg-type]
        reader.args = (made, count if index == 0 else index - 1)
        if index == 0:
            _copy_for_views(module, reader)
    graph.erase_node(node)
    module.delete_submodule(str(node.target))
    module.recompile()


def _copy_for_views(module: GraphModule, source: Node) -> None:
    """Insert copies of loop results and step inputs before ATen operators and core kernels.

    ExecuTorch treats the length of a sequence as dynamic, and has no views of dynamic tensors. It also plans a view of
    a step's input as if the step owned its memory, which it does not.
    """
    readers = [n for n in source.users if getattr(n.target, "namespace", "") == "aten" or _is_core(module, n)]
    if readers:
        with source.graph.inserting_after(source):
            copy = calls_into(source.graph)(CLONE, source)
        copy.meta = dict(source.meta)
        for reader in readers:
            reader.replace_input_with(source, copy)


def _is_core(module: GraphModule, node: Node) -> bool:
    return node.op == "call_module" and not isinstance(module.get_submodule(str(node.target)), DelegateCall)


def _states_first(step: GraphModule, count: int) -> tuple[GraphModule, list[torch.Tensor]]:
    """Return the step with its inputs and outputs in the order of a scan, and its constants, which become its last
    inputs.

    No output is another one, or an input.  The core's kernels are inlined into the step.
    """
    graph = Graph()
    copies: dict[Node, Node] = {}
    constants: list[torch.Tensor] = []
    x, *states = [n for n in step.graph.nodes if n.op == "placeholder"]
    for node in (*states, x):
        copies[node] = graph.node_copy(node)
    first = graph.call_function(len, ((),))  # marks where constants are inserted
    results: list[Node] = []

    def copy_nodes(source: GraphModule) -> None:
        for node in source.graph.nodes:
            value = attribute(source, node)
            if node.op == "get_attr" and value is not None:
                with graph.inserting_before(first):
                    copies[node] = graph.placeholder(f"constant_{len(constants)}")
                constants.append(value)
            elif node.op == "call_module" and isinstance(part := source.get_submodule(str(node.target)), GraphModule):
                inside = [n for n in part.graph.nodes if n.op == "placeholder"]
                copies.update(zip(inside, (copies[n] for n in node.args), strict=True))
                copy_nodes(part)
                outcome: Any = part.graph.output_node().args[0]
                for reader in node.users:  # each takes one result
                    copies[reader] = copies[outcome[int(reader.args[1])]]
            elif node.op not in ("placeholder", "output") and node not in copies:
                copies[node] = graph.node_copy(node, copies.__getitem__)

    copy_nodes(step)
    returned: Any = step.graph.output_node().args[0]
    for value in (*returned[1:], returned[0]):
        own = copies[value]
        if own in results or own.op == "placeholder":
            own = calls_into(graph)(CLONE, own)
        results.append(own)
    graph.erase_node(first)
    assert len(results) == count + 1
    graph.output(tuple(results))
    for given in [n for n in graph.nodes if n.op == "placeholder"]:
        _copy_for_views(step, given)
    return GraphModule(step, graph), constants
