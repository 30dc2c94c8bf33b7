"""Separation of clamps from the operators that they would be fused into."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import GraphModule, Node

from micronpu.frontend.importer import clamp_behind
from micronpu.frontend.program import is_quantize, value_of


def separate_clamps(module: GraphModule, excludes: Callable[[Node], bool]) -> bool:
    """Quantize the operand of a clamp that must stay on the core, in place.

        conv -> relu -> quantize        conv -> quantize -> dequantize -> relu -> quantize

    Otherwise both would stay on the core, since they share one quantize.  The new qparams are those of the clamp's
    result: they saturate only values that the clamp removes as well, so that the result is the same.

    Returns:
        True if anything was changed.
    """
    changed = False
    for node in list(module.graph.nodes):
        clamp = clamp_behind(node)
        if clamp is None or not excludes(clamp) or excludes(node):
            continue
        quantizes = [user for user in clamp.users if is_quantize(user)]
        if len(quantizes) != len(clamp.users) or len({q.args[1:] for q in quantizes}) != 1:
            continue
        (quantize, *_) = quantizes
        if quantize.kwargs or len(quantize.all_input_nodes) != 1:  # qparams may be tensors
            continue
        target: Any = quantize.target
        opposite = torch.ops.quantized_decomposed.dequantize_per_tensor.default
        with module.graph.inserting_before(clamp):
            integers = module.graph.call_function(target, (node, *quantize.args[1:]))
            floats = module.graph.call_function(opposite, (integers, *quantize.args[1:]))
        integers.meta = {k: v for k, v in quantize.meta.items() if k != "val"}
        floats.meta = dict(integers.meta)
        if "val" in quantize.meta:
            integers.meta["val"], floats.meta["val"] = quantize.meta["val"], value_of(node)
        clamp.replace_input_with(node, floats)
        changed = True
    if changed:
        module.recompile()
    return changed
