"""Training through functions with a singularity at 0, which quantized operands often have."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule, Node

from micronpu.quantize.readers import is_singular, power_of
from micronpu.quantize.thresholds import UNKNOWN_LSB


@contextmanager
def bounded(model: GraphModule) -> Iterator[None]:
    """Context in which functions with a singularity at 0 keep the value that they have half an LSB of their operand
    away.

        x + 1e-3 -> fake quantization -> log        with a scale of 0.02, x = 0 becomes log(0), and its gradient 1 / 0

    The program computes the value at 0 by a table; a training step would get infinity or NaN, in the range or gradient.
    """
    exact = {node: node.target for node in model.graph.nodes if is_singular(node)}
    for node, function in exact.items():
        node.target = _away_from_zero(function, _observer_of(model, node.args[0]), _is_of_positive(node))
    if exact:
        model.recompile()
    try:
        yield
    finally:
        for node, function in exact.items():
            node.target = function
        if exact:
            model.recompile()


def _is_of_positive(node: Node) -> bool:
    """Return True if a function with a singularity has no values below 0 either."""
    power = power_of(node)
    return power is None or not power.is_integer()


def _observer_of(model: GraphModule, operand: Any) -> nn.Module | None:
    """Return the fake quantization of an operand, or None."""
    if not isinstance(operand, Node) or operand.op != "call_module":
        return None
    module = model.get_submodule(str(operand.target))
    return module if isinstance(getattr(module, "scale", None), torch.Tensor) else None


def _away_from_zero(function: Callable[..., Any], observer: nn.Module | None, positive: bool) -> Callable[..., Any]:
    """Return the function with finite values and gradients; unchanged wherever it is finite."""

    def computed(x: torch.Tensor, *arguments: Any) -> torch.Tensor:
        step: Any = UNKNOWN_LSB if observer is None else observer.scale
        half = (torch.as_tensor(step, dtype=x.dtype, device=x.device) / 2).max()
        near = torch.maximum(x, half) if positive else torch.where(x.abs() < half, half.copysign(x), x)
        result: torch.Tensor = function(near, *arguments)
        value = function(x.detach(), *arguments)
        return torch.where(value.isfinite(), result + (value - result).detach(), result)

    return computed
