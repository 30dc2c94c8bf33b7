"""Replace `torch.cond` by operators that an NPU can compute: both branches, and an elementwise choice of their results.

NPUs have no branches, and a branch that stays in the program consists of float operators on the core.  An NPU
invocation for each branch would cost two invocations and their inputs and outputs, instead of one.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import GraphModule, Node

from micronpu.frontend.loops import called, flow_name, given_back, inlined
from micronpu.frontend.program import value_of
from micronpu.ops.calls import CHOICE


def compute_both_branches(module: GraphModule) -> tuple[str, ...]:
    """Inline the branches of every `cond` into the graph, in place.

        cond(p, {relu(a(x))}, {tanh(b(x))}, x) -> y        where(p, relu(a(x)), tanh(b(x))) -> y

    Exact for the result of the chosen branch: branches have no side effects, and the other result is discarded.

    Returns:
        Names of the `cond`s, in their order.
    """
    found = [n for n in module.graph.nodes if flow_name(n) == "cond" and _can_choose(module, n)]
    for node in found:
        predicate, true, false, operands = node.args
        with module.graph.inserting_before(node):
            pairs = zip(*(inlined(module, _branch(module, b), operands) for b in (true, false)), strict=True)
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
        if any(n.op in ("call_module", "get_attr") or flow_name(n) for n in branch.graph.nodes):
            return False
        given = given_back(branch)
        if not all(isinstance(r, Node) and isinstance(value_of(r), torch.Tensor) for r in given):
            return False
        results.append([(value_of(r).shape, value_of(r).dtype) for r in given])
    return results[0] == results[1]


def _chosen(module: GraphModule, predicate: Node, true: Node, false: Node) -> Node:
    if true is false:
        return true
    return called(module, CHOICE, (predicate, true, false), value_of(true))
