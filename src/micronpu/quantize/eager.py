"""Runs of a quantized module, and of the float network inside of a prepared one, in eager mode.

A quantized module takes half the memory and two thirds of the time here, and gives the same bits.  torch quantizes a
tensor with four temporaries of its size, and uses 64-bit zero points per channel, which become a tensor of the weights'
size.  Here one tensor is changed in place, and stays a float if its integers are only dequantized.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch.fx import GraphModule, Interpreter, Node

from micronpu.frontend.program import aten_overload
from micronpu.quantize.loops import loops_of
from micronpu.quantize.observers import is_observer
from micronpu.upstream.torch import OpOverload, schema_of

_decomposed = torch.ops.quantized_decomposed
_QUANTIZE = _decomposed.quantize_per_tensor.default
_DEQUANTIZE = _decomposed.dequantize_per_tensor.default
_DEQUANTIZE_CHANNELS = _decomposed.dequantize_per_channel.default
_ROUNDING = (_QUANTIZE, _DEQUANTIZE)
_NARROW = (torch.int8, torch.uint8, torch.int16)
"""Integers whose differences are exact in float32."""


class Eager(Interpreter):
    """Runs a module; weights are dequantized when they are read.

    Args:
        module: of `micronpu.quantize` or `convert_pt2e`.
        keeps_weights: dequantize weights once, for many runs, which takes four times their memory.
        in_float: leave out quantization of floats; infinity becomes the end of its range.
    """

    def __init__(self, module: GraphModule, *, keeps_weights: bool = False, in_float: bool = False) -> None:
        super().__init__(module)
        self._in_float = in_float
        self._kept: dict[Node, Any] | None = {} if keeps_weights else None
        self._weights = {
            n
            for n in module.graph.nodes
            if n.target in (_DEQUANTIZE, _DEQUANTIZE_CHANNELS) and all(i.op == "get_attr" for i in n.all_input_nodes)
        }
        in_place = any(isinstance(n.target, OpOverload) and schema_of(n.target).is_mutable for n in module.graph.nodes)
        self._steps = {
            str(node.target): Eager(loop.body, keeps_weights=True, in_float=in_float) for node, loop in loops_of(module)
        }
        self._floats = {n for n in module.graph.nodes if _is_only_dequantized(n)} if not in_place else set[Node]()

    def run_node(self, n: Node) -> Any:
        if n in self._weights:
            return None
        for operand in n.all_input_nodes:
            if operand in self._weights and self.env[operand] is None:
                self.env[operand] = self._weight(operand)
        source: Any = n.args[0] if n.args and isinstance(n.args[0], Node) else None
        if self._in_float and n.target in _ROUNDING and self.env[source].is_floating_point():
            return self.env[source] if n.target is _DEQUANTIZE else ended(self.env[source], *n.args[1:])
        if n in self._floats and self.env[source].dtype is torch.float32:
            return _rounded(self.env[source], *n.args[1:])  # type: ignore[arg-type]
        if source in self._floats and self.env[source].dtype is torch.float32:
            return self.env[source]
        return super().run_node(n)

    def call_module(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target in self._steps:
            return self.module.get_submodule(target).over(self._steps[target].run, *args)  # type: ignore[operator]
        return super().call_module(target, args, kwargs)

    def _weight(self, n: Node) -> Any:
        if self._kept is None:
            return self._dequantized(n)
        if n not in self._kept:
            self._kept[n] = self._dequantized(n)
        return self._kept[n]

    def _dequantized(self, n: Node) -> Any:
        args, kwargs = torch.fx.map_arg((n.args, n.kwargs), lambda i: self.fetch_attr(str(i.target)))
        return self.call_function(n.target, args, kwargs)

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if not kwargs:
            if target is _QUANTIZE:
                made = _quantized(*args)
            elif target is _DEQUANTIZE:
                made = _dequantized(*args)
            elif target is _DEQUANTIZE_CHANNELS:
                made = _dequantized_channels(*args)
            else:
                made = None
            if made is not None:
                return made
        return super().call_function(target, args, kwargs)


def _is_only_dequantized(n: Node) -> bool:
    """Return True for a quantize of which every reader is its own dequantize."""
    if n.target is not _QUANTIZE or n.kwargs or not isinstance(n.args[0], Node):
        return False
    return all(u.target is _DEQUANTIZE and not u.kwargs and u.args == (n, *n.args[1:]) for u in n.users)


def _rounded(x: torch.Tensor, scale: float, zero_point: int, least: int, most: int, dtype: torch.dtype) -> torch.Tensor:
    """Return what `_dequantized` gives for the result of `_quantized`."""
    y = (x * (1.0 / scale)).round_().nan_to_num_(-zero_point)  # torch converts NaN to the integer 0
    y.clamp_(least - zero_point, most - zero_point)
    return torch.add(torch.zeros((), dtype=x.dtype), y, alpha=scale)  # zeros without a sign, as those of integers


def ended(x: torch.Tensor, *qparams: Any) -> torch.Tensor:
    """Replace infinite values, such as the logarithm of 0, by the end of a quantize node's range."""
    scale, zero_point, least, most, _ = qparams
    return x.nan_to_num(math.nan, (most - zero_point) * scale, (least - zero_point) * scale)


def _quantized(
    x: torch.Tensor, scale: float, zero_point: int, least: int, most: int, dtype: torch.dtype
) -> torch.Tensor | None:
    if x.dtype is not torch.float32:
        return None
    y = x * (1.0 / scale)
    return y.round_().add_(zero_point).clamp_(least, most).to(dtype)


def _dequantized(
    x: torch.Tensor, scale: float, zero_point: int, least: int, most: int, dtype: torch.dtype
) -> torch.Tensor | None:
    if x.dtype is not dtype or x.dtype is torch.float32:
        return None
    return x.to(torch.float32).sub_(zero_point).mul_(scale)


def _dequantized_channels(
    x: torch.Tensor,
    scales: torch.Tensor,
    zero_points: torch.Tensor | None,
    axis: int,
    least: int,
    most: int,
    dtype: torch.dtype,
) -> torch.Tensor | None:
    if x.dtype is not dtype or x.dtype not in _NARROW or scales.dtype is not torch.float32 or zero_points is None:
        return None
    shape = [1] * x.dim()
    shape[axis] = -1
    return x.to(torch.float32).sub_(zero_points.view(shape)).mul_(scales.view(shape))


class FloatRun(Interpreter):
    """Runs a prepared module without its observers and keeps every value.

    Args:
        gradients: keep what `backward` needs.
    """

    def __init__(self, prepared: GraphModule, *, gradients: bool = False) -> None:
        super().__init__(prepared, garbage_collect_values=False)
        self.gradients = gradients
        self.values: dict[str, Any] = {}

    def run_node(self, n: Node) -> Any:
        if n.op == "call_module" and is_observer(self.module.get_submodule(str(n.target))):
            result = self.fetch_args_kwargs_from_env(n)[0][0]
        elif n.op == "call_function":
            args, kwargs = self.fetch_args_kwargs_from_env(n)
            result = called(n, args, kwargs)
        else:
            result = super().run_node(n)
        is_float = isinstance(result, torch.Tensor) and result.is_floating_point()
        if self.gradients and is_float and n.op != "get_attr" and not result.requires_grad:
            result = result.detach().requires_grad_()
        self.values[n.name] = result
        return result


def called(node: Node, args: Any, kwargs: Mapping[str, Any]) -> Any:
    """Return the result of a call; an operand that it writes into is copied, since it may have other readers."""
    overload = aten_overload(node)
    if overload is not None and schema_of(overload).is_mutable and isinstance(args[0], torch.Tensor):
        args = (args[0].clone(), *args[1:])
    assert callable(node.target)
    return node.target(*args, **kwargs)
