"""Functions that are endless at 0, where a quantized operand often is: their grids, and training through them.

1 / sqrt(sum(x * x)) of a row of zeros is 1e6 in float, where an eps says so, and no row asks for it. The steps of such
a function's result end at what it is one step of its operand away from 0; of an operand nearer to 0 nothing is left.

x + 1e-3 -> fake quantization -> log        with a step of 0.02, x = 0 becomes log(0), and its gradient 1 / 0
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule, Node

from micronpu.frontend.program import arguments, overload_name
from micronpu.quantize.attributes import number
from micronpu.quantize.observing import RangeObserver

_OF_POSITIVE = ("log.default", "log2.default", "log10.default", "sqrt.default", "rsqrt.default")
_OF_EITHER_SIGN = ("reciprocal.default",)
_POWER = "pow.Tensor_Scalar"
_ENDLESS = {"rsqrt.default": -0.5, "reciprocal.default": -1.0}
_STEP = 2**-16
"""Of a value that is on no grid: what is nearer to zero counts as half as far away."""
_LOG, _EXP, _MUL = "log.default", "exp.default", "mul.Tensor"


@dataclass(frozen=True)
class Pole:
    """How far the grid of a function of a value need reach: z ** c, or c * log(z).

    Attributes:
        operand: observer of the value.
        factor: c.
        is_log: whether it is c * log(z), and not the power.
    """

    operand: RangeObserver
    factor: float
    is_log: bool = False

    def __repr__(self) -> str:
        return f"Pole({self.factor}, {self.is_log})"

    def ends(self) -> tuple[float, float]:
        """The least and the largest result of an operand that its own grid tells from 0."""
        if self.operand.is_empty:
            return -math.inf, math.inf
        return self._at(float(self.operand.calculate_qparams()[0]))

    def counting(self, results: torch.Tensor) -> torch.Tensor:
        """Those results whose operand is more than half a step from 0 on a grid of what was seen of it until now."""
        if self.operand.is_empty:
            return results
        most = max(-float(self.operand.min_val), float(self.operand.max_val))
        steps = self.operand.quant_max - self.operand.quant_min
        least, most = self._at(most / (2 * steps)) if most > 0 else (-math.inf, math.inf)
        return results[(results >= least) & (results <= most)]

    def _at(self, z: float) -> tuple[float, float]:
        """The ends of results of operands as far from 0 as z, or farther."""
        if not self.is_log:
            return -(z**self.factor), z**self.factor
        end = self.factor * math.log(z)
        return (end, math.inf) if self.factor > 0 else (-math.inf, end)


def observe_poles(model: GraphModule, places: Mapping[Any, Any]) -> None:
    """Tells the observers of negative powers, and of the logarithms by which they are computed, what they are of.

    Args:
        places: observer by node or by (operand, reader) edge, as torchao has them while it prepares.
    """
    alone = Counter(id(observer) for place, observer in places.items() if isinstance(place, Node))
    for node in model.graph.nodes:
        observer = places.get(node)
        if not isinstance(observer, RangeObserver) or alone[id(observer)] != 1:
            continue
        found = _function(model, node)
        if found is None:
            continue
        value, reader, factor, is_log = found
        operand = places.get((value, reader), places.get(value))
        if isinstance(operand, RangeObserver) and operand is not observer:
            observer.pole = Pole(operand, factor, is_log)


def _function(model: GraphModule, node: Node) -> tuple[Node, Node, float, bool] | None:
    """(z, what reads it, c, is it the logarithm) of a node that is endless where z is 0; None of others."""
    name = overload_name(node)
    before = node.args[0] if node.args and isinstance(node.args[0], Node) else None
    if before is None:
        return None
    if name in _ENDLESS or (name == _POWER and _exponent(node) < 0):
        return before, node, _ENDLESS.get(name, 0.0) or _exponent(node), False
    if name == _LOG:
        return (before, node, 1.0, True) if all(_is_inverse(model, user) for user in node.users) else None
    if name == _MUL and _is_inverse(model, node):
        of = _function(model, before) if overload_name(before) == _LOG else None
        factor = number(model, node.args[1])
        return (of[0], of[1], factor, True) if of is not None and factor else None
    return _exponential(model, before) if name == _EXP and overload_name(before) in (_LOG, _MUL) else None


def _exponential(model: GraphModule, logarithm: Node) -> tuple[Node, Node, float, bool] | None:
    """The same of exp(c * log(z)), a power of z."""
    of = _function(model, logarithm)
    return (of[0], of[1], of[2], False) if of is not None and of[3] and of[2] < 0 else None


def _is_inverse(model: GraphModule, node: Node) -> bool:
    """Whether a node makes of log(z) what is read as the logarithm of a negative power alone.

    That of a positive power is near 0 where z is, and asks how near.
    """
    factor = number(model, node.args[1]) if overload_name(node) == _MUL else None
    return factor is not None and factor < 0 and all(overload_name(user) == _EXP for user in node.users)


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
        step: Any = _STEP if grid is None else grid.scale
        half = (torch.as_tensor(step, dtype=x.dtype, device=x.device) / 2).max()
        near = torch.maximum(x, half) if positive else torch.where(x.abs() < half, half.copysign(x), x)
        result: torch.Tensor = function(near, *arguments)
        value = function(x.detach(), *arguments)
        return torch.where(value.isfinite(), result + (value - result).detach(), result)

    return computed
