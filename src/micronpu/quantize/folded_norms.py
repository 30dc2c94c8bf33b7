"""Batch norms that quantization-aware training simulates, under a name that annotation does not recognize."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node

from micronpu.frontend.program import overload_of
from micronpu.ops.normalization import BATCH_NORM


def folded_batch_norm(x: torch.Tensor, *rest: Any) -> torch.Tensor:
    """Compute a batch norm under a name that no rewrite before annotation recognizes; `reveal` restores it."""
    return torch.batch_norm(x, *rest)


def batch_norm_behind(layer: Node) -> Node | None:
    """Return the simulated batch norm that reads the result of a layer, between the rewrite and `reveal`, or None."""
    if len(layer.users) != 1:
        return None
    (unfold,) = layer.users
    if unfold.op != "call_module" or len(unfold.users) != 1:
        return None
    (norm,) = unfold.users
    return norm if norm.target is folded_batch_norm else None


def reveal(model: GraphModule) -> None:
    """Turn hidden batch norms into ATen's, which torchao switches between training and evaluation."""
    hidden = [node for node in model.graph.nodes if node.target is folded_batch_norm]
    for node in hidden:
        node.target = overload_of(BATCH_NORM)
    if hidden:
        model.recompile()
