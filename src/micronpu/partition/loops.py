"""Loops of the host part: a step that is compiled by itself, called by the runtime for each row of a sequence."""

from __future__ import annotations

import torch
from torch._higher_order_ops.scan import scan_op
from torch.fx import Graph, GraphModule, Node

from micronpu.frontend.states import states_of


def scan(module: GraphModule, node: Node, step: GraphModule, body: GraphModule) -> None:
    """Replaces the call of a `micronpu.quantize.loops.Loop` by ExecuTorch's loop, in place.

        y, h = loop(x, h0)        h, y = scan(step, [h0], [x])

    Args:
        module: the host part.
        step: what the host does in a step, from (x, states) to (y, states).
        body: what ``step`` was made of.
    """
    count = len(states_of(body).values)
    name = f"{node.target}_step"
    module.add_submodule(name, _states_first(step, count))
    graph = module.graph
    with graph.inserting_before(node):
        called = graph.get_attr(name)
        made = graph.call_function(scan_op, (called, list(node.args[1:]), [node.args[0]], ()))
    for reader in list(node.users):
        index = int(reader.args[1])  # type: ignore[arg-type]
        reader.args = (made, count if index == 0 else index - 1)
    graph.erase_node(node)
    module.delete_submodule(str(node.target))
    module.recompile()


def _states_first(step: GraphModule, count: int) -> GraphModule:
    """The step with its inputs and outputs in the order of a scan; no output is another one, or an input."""
    graph = Graph()
    copies: dict[Node, Node] = {}
    x, *states = [n for n in step.graph.nodes if n.op == "placeholder"]
    for node in (*states, x):
        copies[node] = graph.node_copy(node)
    results: list[Node] = []
    for node in step.graph.nodes:
        if node.op == "output":
            y, *new = node.args[0]
            for value in (*new, y):
                own = copies[value]
                if own in results or own.op == "placeholder":
                    own = graph.call_function(torch.ops.aten.clone.default, (own,))
                results.append(own)
        elif node.op != "placeholder":
            copies[node] = graph.node_copy(node, copies.__getitem__)
    assert len(results) == count + 1
    graph.output(tuple(results))
    return GraphModule(step, graph)
