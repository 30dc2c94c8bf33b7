"""Replace `torch.cond` by operators that an NPU can compute: both branches, and an elementwise choice of their results.

NPUs have no branches, and a branch that stays in the program consists of float operators on the core.  An NPU
invocation for each branch would cost two invocations and their inputs and outputs, instead of one.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from micronpu.frontend.program import value_of


def compute_both_branches(module: GraphModule) -> tuple[str, ...]:
    """Inline the branches of every `cond` into the graph, in place.

        cond(p, {relu(a(x))}, {tanh(b(x))}, x) -> y        where(p, relu(a(x)), tanh(b(x))) -> y

    Exact for the result of the chosen branch: branches have no side effects, and the other result is discarded.

    Returns:
        Names of the `cond`s, in their order.
    """
    found = [n for n in module.graph.nodes if n.op == "call_function" and _name(n) == "cond" and _can_choose(module, n)]
    for node in found:
        predicate, true, false, operands = node.args
        with module.graph.inserting_before(node):
            pairs = zip(*(_inlined(module, _branch(module, b), operands) for b in (true, false)), strict=True)
            chosen = [_chosen(module, predicate, a, b) for a, b in pairs]
        for reader in list(node.users):
            reader.replace_all_uses_with(chosen[reader.args[1]])
            module.graph.erase_node(reader)
        module.graph.erase_node(node)
    if found:
        module.graph.eliminate_dead_code()
        module.delete_all_unused_submodules()
        module.graph.lint()
        module.recompile()
    return tuple(node.name for node in found)


def _name(node: Node) -> str:
    target: Any = node.target
    return target.name() if getattr(target, "namespace", "") == "higher_order" else ""


def _branch(module: GraphModule, node: Any) -> GraphModule:
    branch = getattr(module, node.target)
    assert isinstance(branch, GraphModule)
    return branch


def _can_choose(module: GraphModule, node: Node) -> bool:
    """Return True if the predicate is a tensor, and both branches are plain graphs with tensors of the same shapes."""
    predicate, *branches, _ = node.args
    if not isinstance(predicate, Node) or not all(u.target is operator.getitem for u in node.users):
        return False
    results = []
    for branch in (_branch(module, b) for b in branches):
        if any(n.op in ("call_module", "get_attr") or _name(n) for n in branch.graph.nodes):
            return False
        given = _results(branch)
        if not all(isinstance(r, Node) and isinstance(value_of(r), torch.Tensor) for r in given):
            return False
        results.append([(value_of(r).shape, value_of(r).dtype) for r in given])
    return results[0] == results[1]


def _results(branch: GraphModule) -> Sequence[Any]:
    (given,) = branch.graph.output_node().args
    return given if isinstance(given, (tuple, list)) else (given,)


def _inlined(module: GraphModule, branch: GraphModule, operands: Any) -> list[Node]:
    """Copy the operators of a branch into the graph of the module, and return its results."""
    copies: dict[Node, Node] = {}
    waiting = iter(operands)
    for node in branch.graph.nodes:
        if node.op == "placeholder":
            copies[node] = next(waiting)
        elif node.op != "output":
            copies[node] = module.graph.node_copy(node, copies.__getitem__)
    return [copies[result] for result in _results(branch)]


def _chosen(module: GraphModule, predicate: Node, true: Node, false: Node) -> Node:
    if true is false:
        return true
    chosen = module.graph.call_function(torch.ops.aten.where.self, (predicate, true, false))
    told: Mapping[str, Any] = predicate.meta
    chosen.meta.update({key: told[key] for key in ("stack_trace", "nn_module_stack") if key in told})
    chosen.meta["val"] = value_of(true)
    return chosen
