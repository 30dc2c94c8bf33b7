"""Parameters and constants of a program: what its ``get_attr`` nodes read, and what follows from these alone."""

from __future__ import annotations

import math
import operator
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule, Node

from micronpu.base.errors import InternalError
from micronpu.frontend.facts import IN_TRAINING

# Key of a module's meta: number of added constants, by prefix.
_COUNT = "micronpu_constants"


def free_name(model: GraphModule, prefix: str) -> str:
    """Return a name such as ``prefix_0`` that no attribute of a module has."""
    # Counting avoids trying all numbers from 0, which would take quadratic time.
    count: dict[str, int] = model.meta.setdefault(_COUNT, {})
    number = count.get(prefix, 0)
    while hasattr(model, f"{prefix}_{number}"):
        number += 1
    count[prefix] = number + 1
    return f"{prefix}_{number}"


def add_constant(model: GraphModule, before: Node, value: torch.Tensor, prefix: str) -> Node:
    """Add a buffer, read before the node ``before``. Existing buffers are not reused: they may have other readers."""
    name = free_name(model, prefix)
    model.register_buffer(name, value)
    with model.graph.inserting_before(before):
        node = model.graph.get_attr(name)
    near = (before, *before.all_input_nodes) if "val" in before.meta else model.graph.nodes
    fake = next((n.meta["val"] for n in near if isinstance(n.meta.get("val"), torch.Tensor)), None)
    mode = getattr(fake, "fake_mode", None)
    node.meta["val"] = mode.from_tensor(value, static_shapes=True) if mode is not None else value
    return node


def read(model: nn.Module, node: Node) -> Any:
    """Return what a ``get_attr`` node reads: a parameter, a buffer or a submodule."""
    return operator.attrgetter(str(node.target))(model)


def attribute(model: GraphModule, node: Any) -> torch.Tensor | None:
    """Return the tensor that a ``get_attr`` node reads; None for other operands."""
    value = read(model, node) if isinstance(node, Node) and node.op == "get_attr" else None
    return value if isinstance(value, torch.Tensor) else None


def number(model: GraphModule, operand: Any) -> float | None:
    """Return the finite number that an operand is, or the constant of one element; None for others."""
    if isinstance(operand, (int, float)):
        return float(operand)
    known = attribute(model, operand) if isinstance(operand, Node) else None
    alone = isinstance(known, torch.Tensor) and known.numel() == 1 and math.isfinite(float(known))
    return float(known) if alone and known is not None else None


def is_constant(node: Any) -> bool:
    """True if a node depends on constants and parameters alone, as folded or otherwise rescaled weights do."""
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
    """Return all nodes for which `is_constant` holds, found in one walk."""
    found: set[Node] = set()
    for node in model.graph.nodes:
        sources = node.all_input_nodes
        if node.op == "get_attr" or (node.op == "call_function" and sources and found.issuperset(sources)):
            found.add(node)
    return found


@torch.no_grad()
def evaluate(model: GraphModule, value: Any) -> Any:
    """Return the value of an argument that depends on constants alone."""
    if isinstance(value, (list, tuple)):
        return type(value)([evaluate(model, inner) for inner in value])
    if not isinstance(value, Node):
        return value
    if value.op == "get_attr":
        found = read(model, value)
        return found.detach() if isinstance(found, torch.Tensor) else found
    if value.op != "call_function" or not callable(value.target):
        raise InternalError(f"`{value.name}` is no constant.")
    arguments = [evaluate(model, a) for a in value.args]
    return value.target(*arguments, **{key: evaluate(model, a) for key, a in value.kwargs.items()})


def is_trained(model: GraphModule, node: Any) -> bool:
    """True if a node reads a parameter of a model that is going to be trained, which no rewrite may freeze."""
    value = attribute(model, node)
    return isinstance(value, torch.nn.Parameter) and value.requires_grad and bool(IN_TRAINING.of(model))


def set_attribute(model: GraphModule, node: Node, value: torch.Tensor) -> None:
    """Replace a constant by a new tensor, which is a parameter if the constant was one."""
    path, _, name = str(node.target).rpartition(".")
    owner = model.get_submodule(path)
    if isinstance(getattr(owner, name), nn.Parameter):
        setattr(owner, name, nn.Parameter(value, getattr(owner, name).requires_grad))
    else:
        setattr(owner, name, value)
