"""Training through functions that are endless at 0, where a quantized operand often is.

x + 1e-3 -> fake quantization -> log        with a step of 0.02, x = 0 becomes log(0), and its gradient 1 / 0
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule, Node

from micronpu.frontend.program import arguments, overload_name
from micronpu.quantize.config import ACTIVATION_EPS

_OF_POSITIVE = ("log.default", "log2.default", "log10.default", "sqrt.default", "rsqrt.default")
_OF_EITHER_SIGN = ("reciprocal.default",)
_POWER = "pow.Tensor_Scalar"


@contextmanager
def bounded(model: GraphModule) -> Iterator[None]:
    """Within it, functions with a pole at 0 go on from half a step of their operand's grid as they are there.

    What a function is at 0, be it 0 or clipped to its own grid, the program computes from a table; a training step
    would get infinity or NaN, in the range or in the gradient.
    """
    exact = {node: node.target for node in model.graph.nodes if _has_pole(node)}
    for node, function in exact.items():
        node.target = _away_from_zero(function, _grid_of(model, node.args[0]), _is_of_positive(node))
    if exact:
        model.recompile()
    try:
        yield
    finally:
        for node, function in exact.items():
            node.target = function
        if exact:
            model.recompile()


def _has_pole(node: Node) -> bool:
    name = overload_name(node)
    return name in (*_OF_POSITIVE, *_OF_EITHER_SIGN) or (name == _POWER and _exponent(node) < 1)


def _is_of_positive(node: Node) -> bool:
    name = overload_name(node)
    return name in _OF_POSITIVE or (name == _POWER and not _exponent(node).is_integer())


def _exponent(node: Node) -> float:
    return float(arguments(node)["exponent"])


def _grid_of(model: GraphModule, operand: Any) -> nn.Module | None:
    """The fake quantization of an operand; None where it has none."""
    if not isinstance(operand, Node) or operand.op != "call_module":
        return None
    module = model.get_submodule(str(operand.target))
    return module if isinstance(getattr(module, "scale", None), torch.Tensor) else None


def _away_from_zero(function: Callable[..., Any], grid: nn.Module | None, positive: bool) -> Callable[..., Any]:
    """The function with finite values and gradients; exact wherever it has a value."""

    def computed(x: torch.Tensor, *arguments: Any) -> torch.Tensor:
        step: Any = ACTIVATION_EPS["int8"] if grid is None else grid.scale
        half = (torch.as_tensor(step, dtype=x.dtype, device=x.device) / 2).max()
        near = torch.maximum(x, half) if positive else torch.where(x.abs() < half, half.copysign(x), x)
        result: torch.Tensor = function(near, *arguments)
        value = function(x.detach(), *arguments)
        return torch.where(value.isfinite(), result + (value - result).detach(), result)

    return computed
