"""Clamps apart from the operators that would take them along."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import GraphModule, Node

from micronpu.frontend.importer import clamp_behind
from micronpu.frontend.program import is_quantize, overload_name, value_of

_QUANTIZE = "quantize_per_tensor.default"


def separate_clamps(module: GraphModule, excludes: Callable[[Node], bool]) -> bool:
    """Quantizes what an operator gives to a clamp that shall stay on the host, in place.

        conv -> relu -> quantize        conv -> quantize -> dequantize -> relu -> quantize

    The clamp and the operator share the one quantize, so that without it both would stay on the host.  The grid is the
    one behind the clamp: what it cannot hold the clamp cuts off as well, and the numbers remain the same.

    Returns:
        Whether anything was changed.
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
        if overload_name(quantize) != _QUANTIZE or quantize.kwargs:
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
