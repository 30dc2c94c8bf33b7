"""Rewrites of the float program before it is annotated.  All keep its result up to float rounding."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch.fx import GraphModule, Node

from micronpu.frontend.constants import add_constant
from micronpu.frontend.program import arguments, overload_name
from micronpu.ir.way import Capabilities
from micronpu.quantize.switches import is_on, switchable

_SCALAR_OPERATORS = ("add.Tensor", "add_.Tensor", "sub.Tensor", "sub_.Tensor", "mul.Tensor", "mul_.Tensor")

# Key of a module's meta: set while it is prepared for quantization-aware training.
IN_TRAINING = "micronpu_in_training"


def attribute(model: GraphModule, node: Any) -> torch.Tensor | None:
    """Value of a ``get_attr`` node, or None."""
    if not isinstance(node, Node) or node.op != "get_attr":
        return None
    value: Any = model
    for part in str(node.target).split("."):
        value = getattr(value, part)
    return value if isinstance(value, torch.Tensor) else None


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


def is_trained(model: GraphModule, node: Any) -> bool:
    """Whether a node reads a parameter of a model that is going to be trained, which no rewrite may freeze."""
    value = attribute(model, node)
    return isinstance(value, torch.nn.Parameter) and value.requires_grad and bool(model.meta.get(IN_TRAINING))


def prepare_for_annotation(
    model: GraphModule, disabled: Collection[str] = (), capabilities: Capabilities | None = None
) -> GraphModule:
    """All rewrites of the float program, in place.

    Args:
        disabled: names of rewrites to leave out, of those that `micronpu.quantize.switches.float_rewrites` knows.
        capabilities: of the device; those that every device has unless given.
    """
    from micronpu.quantize.compose import compose

    changed = compose(model, capabilities or Capabilities(), disabled)
    changed |= is_on(scalars_to_constants, disabled) and scalars_to_constants(model)
    if changed:
        model.graph.eliminate_dead_code()
        model.recompile()
    return model


@switchable
def scalars_to_constants(model: GraphModule) -> bool:
    """A number as an operand becomes a constant tensor, which can be quantized.

    x + 3.0 -> y        x + constant(3.0) -> y
    """
    changed = False
    for node in list(model.graph.nodes):
        if overload_name(node) not in _SCALAR_OPERATORS:
            continue
        given, value = arguments(node), node.meta.get("val")
        other = given["other"]
        if isinstance(other, (int, float)) and isinstance(value, torch.Tensor) and value.dtype == torch.float32:
            number = torch.full((1,) if value.ndim else (), float(other))  # which must not add an axis
            constant = add_constant(model, node, number, "scalar")
            node.args = (given["self"], constant)
            node.kwargs = {} if given.get("alpha", 1) == 1 else {"alpha": given["alpha"]}
            changed = True
    return changed
