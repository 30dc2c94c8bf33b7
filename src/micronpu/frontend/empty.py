"""Removal of tensors without elements, which no operator of a target accepts."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node

from micronpu.base.errors import ModelError
from micronpu.base.quiet import quiet
from micronpu.frontend.constants import add_constant, read
from micronpu.frontend.program import calls_into, is_getitem, origin_of, overload_name, value_of
from micronpu.ops import facts
from micronpu.ops.calls import CUT
from micronpu.ops.slicing import CONCATENATIONS, SPLITS
from micronpu.upstream.torch import OpOverload, tree_leaves, tree_map


def remove_empty_tensors(module: GraphModule) -> None:
    """Remove the empty tensors of an exported module, in place.

    cat(x, x[:, :0])          x
    sum(x[:, :0])             0
    split(x, (0, 8))          slice(x, 0, 8)
    linear(x[:, :0], w, b)    b, in each row

    Raises:
        ModelError: an operator computes something of an empty tensor that is not known, or a result is empty.
    """
    if not any(map(_is_empty, module.graph.nodes)):
        return
    for node in list(module.graph.nodes):
        if node.op == "call_function":
            _without_empty_operands(module, node)
    for node in reversed(list(module.graph.nodes)):
        written = overload_name(node) == facts.WRITE and _is_empty(node.all_input_nodes[0])  # has no shape
        if node.op not in ("placeholder", "output") and not node.users and (_is_empty(node) or written):
            module.graph.erase_node(node)
    module.graph.eliminate_dead_code()
    for number, result in enumerate(tree_leaves(module.graph.output_node().args[0])):
        if isinstance(result, Node) and _is_empty(result):
            raise ModelError(
                f"Result {number} of the model is empty, of the shape {list(value_of(result).shape)}.",
                hint="return only tensors that have elements",
            )
    module.recompile()


def _is_empty(node: Node) -> bool:
    value = node.meta.get("val")
    # The size of a batch may be a symbol, which is never zero.
    return isinstance(value, torch.Tensor) and any(isinstance(size, int) and size == 0 for size in value.shape)


def _without_empty_operands(module: GraphModule, node: Node) -> None:
    """Remove the empty operands and results of a node that has a result with elements."""
    name = overload_name(node)
    if name in SPLITS:
        _as_slices(module, node)
        return
    operands = node.all_input_nodes
    if _is_empty(node) or is_getitem(node) or not any(map(_is_empty, operands)):
        return
    if name in CONCATENATIONS:
        parts: Any = node.args[0]
        kept = [part for part in parts if not _is_empty(part)]
        node.args = (kept, *node.args[1:])
        same = len(kept) == 1 and value_of(kept[0]).dtype == value_of(node).dtype
        if same:
            node.replace_all_uses_with(kept[0])
    elif facts.replaces_part(name) and not _is_empty(operands[0]):
        node.replace_all_uses_with(operands[0])
    elif all(_is_empty(operand) or operand.op == "get_attr" for operand in operands):
        value = _computed(module, node)
        if isinstance(value, torch.Tensor):
            node.replace_all_uses_with(add_constant(module, node, value, "constant"))
    else:
        source = origin_of(node).source
        raise ModelError(
            f"`{node.name}`{f' ({source})' if source else ''} computes with an empty tensor, of the shape "
            f"{next(list(value_of(operand).shape) for operand in operands if _is_empty(operand))}.",
            hint="leave it out where there is nothing to compute",
        )


def _as_slices(module: GraphModule, node: Node) -> None:
    """Replace the parts of a tensor by slices if some of them are empty."""
    parts = node.meta["val"]
    if not any(0 in part.shape for part in parts):
        return
    dim: Any = node.kwargs.get("dim", node.args[2] if len(node.args) > 2 else 0)
    ends = [0]
    for part in parts:
        ends.append(ends[-1] + part.shape[dim])
    for reader in list(node.users):
        at: Any = reader.args[1]
        if not _is_empty(reader):
            with module.graph.inserting_before(reader):
                made = calls_into(module.graph)(CUT, node.args[0], dim, ends[at], ends[at + 1])
            made.meta.update(reader.meta)
            reader.replace_all_uses_with(made)


def _computed(module: GraphModule, node: Node) -> Any:
    """Return the result of an operator whose operands are empty or constants."""

    def value(operand: Node) -> torch.Tensor:
        if operand.op == "get_attr":
            return read(module, operand).detach()  # type: ignore[no-any-return]
        return torch.empty(tuple(value_of(operand).shape), dtype=value_of(operand).dtype)

    assert isinstance(node.target, OpOverload)
    args, kwargs = tree_map(lambda a: value(a) if isinstance(a, Node) else a, (node.args, dict(node.kwargs)))
    with torch.no_grad(), quiet():
        return node.target(*args, **kwargs)
