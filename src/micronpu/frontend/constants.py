"""Constants added to a module as buffers."""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node

# Key of a module's meta: number of added constants, by prefix.
_COUNT = "micronpu_constants"


def add_constant(model: GraphModule, before: Node, value: torch.Tensor, prefix: str) -> Node:
    """Add a buffer, read before the node ``before``. Existing buffers are not reused: they may have other readers."""
    # Counting avoids trying all numbers from 0, which would take quadratic time.
    count: dict[str, int] = model.meta.setdefault(_COUNT, {})
    number = count.get(prefix, 0)
    while hasattr(model, f"{prefix}_{number}"):
        number += 1
    count[prefix] = number + 1
    name = f"{prefix}_{number}"
    model.register_buffer(name, value)
    with model.graph.inserting_before(before):
        node = model.graph.get_attr(name)
    near = (before, *before.all_input_nodes) if "val" in before.meta else model.graph.nodes
    fake = next((n.meta["val"] for n in near if isinstance(n.meta.get("val"), torch.Tensor)), None)
    mode = getattr(fake, "fake_mode", None)
    node.meta["val"] = mode.from_tensor(value, static_shapes=True) if mode is not None else value
    return node
