"""Training and evaluation mode of exported modules, in which each dropout and batch norm has its own flag."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn
from torch.fx import GraphModule, Node

from micronpu.frontend.program import arguments, overload_name
from micronpu.ops.movement import DROPOUTS
from micronpu.ops.normalization import BATCH_NORMS
from micronpu.upstream.torch import schema_of

Train = Callable[[nn.Module], Any]
"""Trains a module in place; `train()` and `eval()` of the module work as usual."""

_DROPOUTS = {overload.split(".")[0] for overload in DROPOUTS}


def is_dropout(node: Node) -> bool:
    """Return True if a node is one of ATen's dropouts."""
    return overload_name(node).split(".")[0].rstrip("_") in _DROPOUTS


def _is_batch_norm(node: Node) -> bool:
    return overload_name(node) in BATCH_NORMS and "training" in arguments(node)


def is_in_training(node: Node) -> bool:
    """Return True if a node is an active dropout or a batch norm that uses the statistics of its batch."""
    mode = "training" if _is_batch_norm(node) else "train" if is_dropout(node) else ""
    return bool(mode and arguments(node).get(mode))


def set_training(model: GraphModule, training: bool, dropouts: bool = True, batch_norms: bool = True) -> None:
    """Switch only the flags of dropouts and batch norms in an exported module."""
    for node in model.graph.nodes:
        if dropouts and is_dropout(node):
            _set_argument(node, "train", training)
        elif batch_norms and _is_batch_norm(node) and arguments(node)["running_mean"] is not None:
            _set_argument(node, "training", training)
    if dropouts:
        for module in model.modules():
            if "in_training" in vars(module):
                vars(module)["in_training"] = training
    model.recompile()


def _set_argument(node: Node, name: str, value: bool) -> None:
    schema = schema_of(node.target).arguments
    position = next(i for i, a in enumerate(schema) if a.name == name)
    if len(node.args) > position:
        node.update_arg(position, value)
    else:
        node.update_kwarg(name, value)
