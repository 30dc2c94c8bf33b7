"""Batch norms that quantization-aware training simulates, as long as annotation shall not see them as such."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node

aten = torch.ops.aten


def hidden_batch_norm(x: torch.Tensor, *rest: Any) -> torch.Tensor:
    """A batch norm under a name that no rewrite before annotation takes it for; `reveal` gives it back."""
    result: torch.Tensor = aten.batch_norm.default(x, *rest)
    return result


def batch_norm_behind(layer: Node) -> Node | None:
    """The simulated batch norm that takes the result of a layer, between the rewrite and `reveal`, or None."""
    if len(layer.users) != 1:
        return None
    (unfold,) = layer.users
    if unfold.op != "call_module" or len(unfold.users) != 1:
        return None
    (norm,) = unfold.users
    return norm if norm.target is hidden_batch_norm else None


def reveal(model: GraphModule) -> None:
    """Turns hidden batch norms back into ATen's, which torchao switches between training and evaluation."""
    hidden = [node for node in model.graph.nodes if node.target is hidden_batch_norm]
    for node in hidden:
        node.target = aten.batch_norm.default
    if hidden:
        model.recompile()
