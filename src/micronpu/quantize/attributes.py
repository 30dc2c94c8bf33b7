"""Parameters and constants of a float program: what its ``get_attr`` nodes read, and what follows from these alone."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule, Node

from micronpu.base.errors import InternalError
from micronpu.frontend.facts import IN_TRAINING
from micronpu.frontend.program import value_of


def attribute(model: GraphModule, node: Any) -> torch.Tensor | None:
    """Value of a ``get_attr`` node, or None."""
    if not isinstance(node, Node) or node.op != "get_attr":
        return None
    value: Any = model
    for part in str(node.target).split("."):
        value = getattr(value, part)
    return value if isinstance(value, torch.Tensor) else None


def is_float32(node: Node) -> bool:
    """Whether the result of a node, or the first of several, is a float32 tensor."""
    value = value_of(node)
    return isinstance(value, torch.Tensor) and value.dtype == torch.float32


def number(model: GraphModule, operand: Any) -> float | None:
    """The number that an operand is everywhere; None where it is none."""
    if isinstance(operand, (int, float)):
        return float(operand)
    known = attribute(model, operand) if isinstance(operand, Node) else None
    alone = isinstance(known, torch.Tensor) and known.numel() == 1 and math.isfinite(float(known))
    return float(known) if alone and known is not None else None


def is_constant(node: Any) -> bool:
    """Whether a node depends on constants and parameters alone, as folded or otherwise rescaled weights do."""
    if not isinstance(node, Node):
        return False
    waiting, seen = [node], {node}
    while waiting:  # no recursion: a chain of operators may be thousands long
        source = waiting.pop()
        if source.op == "get_attr":
            continue
        if source.op != "call_function" or not source.all_input_nodes:
            return False
        waiting += [n for n in source.all_input_nodes if n not in seen]
        seen.update(source.all_input_nodes)
    return True


def constant_nodes(model: GraphModule) -> set[Node]:
    """All nodes for which `is_constant` holds, found in one walk."""
    found: set[Node] = set()
    for node in model.graph.nodes:
        sources = node.all_input_nodes
        if node.op == "get_attr" or (node.op == "call_function" and sources and found.issuperset(sources)):
            found.add(node)
    return found


@torch.no_grad()
def evaluate(model: GraphModule, value: Any) -> Any:
    """Value of an argument that depends on constants alone."""
    if isinstance(value, (list, tuple)):
        return type(value)([evaluate(model, inner) for inner in value])
    if not isinstance(value, Node):
        return value
    if value.op == "get_attr":
        found = functools.reduce(getattr, str(value.target).split("."), model)
        return found.detach() if isinstance(found, torch.Tensor) else found
    if value.op != "call_function" or not callable(value.target):
        raise InternalError(f"`{value.name}` is no constant.")
    arguments = [evaluate(model, a) for a in value.args]
    return value.target(*arguments, **{key: evaluate(model, a) for key, a in value.kwargs.items()})


def is_trained(model: GraphModule, node: Any) -> bool:
    """Whether a node reads a parameter of a model that is going to be trained, which no rewrite may freeze."""
    value = attribute(model, node)
    return isinstance(value, torch.nn.Parameter) and value.requires_grad and bool(IN_TRAINING.of(model))


def set_attribute(model: GraphModule, node: Node, value: torch.Tensor) -> None:
    """Puts a new tensor in the place of a constant, a parameter where it was one."""
    *path, name = str(node.target).split(".")
    owner: Any = model
    for part in path:
        owner = getattr(owner, part)
    if isinstance(getattr(owner, name), nn.Parameter):
        setattr(owner, name, nn.Parameter(value, getattr(owner, name).requires_grad))
    else:
        setattr(owner, name, value)
