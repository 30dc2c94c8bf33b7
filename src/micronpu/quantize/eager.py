"""Runs of a quantized module, and of the float network inside of a prepared one, in eager mode.

A quantized module takes half the memory and two thirds of the time here, and gives the same bits.  torch quantizes a
tensor with four temporaries of its size, and uses 64-bit zero points per channel, which become a tensor of the weights'
size.  Here one tensor is changed in place, and stays a float if its integers are only dequantized.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeAlias

import torch
from torch.fx import GraphModule, Interpreter, Node
from torch.nn.functional import hardtanh_

from micronpu.frontend.constants import attribute
from micronpu.frontend.program import aten_overload, is_dequantize, is_quantize
from micronpu.quantize.loops import Loop
from micronpu.quantize.observers import is_observer
from micronpu.upstream.torch import schema_of

_decomposed = torch.ops.quantized_decomposed
_QUANTIZE = _decomposed.quantize_per_tensor.default
_DEQUANTIZE = _decomposed.dequantize_per_tensor.default
_DEQUANTIZE_CHANNELS = _decomposed.dequantize_per_channel.default
Step: TypeAlias = Callable[[Mapping[Node, Any]], Any]
_NARROW = (torch.int8, torch.uint8, torch.int16)
"""Integers whose differences are exact in float32."""


class Eager:
    """Runs a module; weights are dequantized when they are read.

    Args:
        module: of `micronpu.quantize` or `convert_pt2e`.
        keeps_weights: dequantize weights once, for many runs, which takes four times their memory.
        in_float: see `function_of`.
    """

    def __init__(self, module: GraphModule, *, keeps_weights: bool = False, in_float: bool = False) -> None:
        self._graph, nodes = module.graph, list(module.graph.nodes)
        in_place = any(map(is_mutable, nodes))
        self._floats = {n for n in nodes if _is_only_dequantized(n)} if not in_place else set[Node]()
        steps = {n: function_of(module, n, self._floats, in_float=in_float) for n in nodes if n.op != "placeholder"}
        weights = {n: steps[n] for n in nodes if _is_weight(n)}
        last = {i: n for n in nodes for i in n.all_input_nodes if i.op != "get_attr"}
        self._plan = [
            (n, steps.get(n), {i: weights[i] for i in read if i in weights}, [i for i in read if last.get(i) is n])
            for n in nodes
            if n not in weights
            for read in (n.all_input_nodes,)
        ]
        self._keeps, self._kept = keeps_weights, dict[Node, Any]()

    def run(self, *inputs: Any) -> Any:
        """Return the results of the module."""
        values, given = dict[Node, Any](), iter(self._graph.process_inputs(*inputs))
        for node, step, weights, read_last in self._plan:
            for weight, dequantized in weights.items():
                if weight not in values:
                    values[weight] = self._kept[weight] if weight in self._kept else dequantized(values)
                    if self._keeps:
                        self._kept[weight] = values[weight]
            values[node] = next(given) if step is None else step(values)
            for operand in read_last:
                del values[operand]
        return self._graph.process_outputs(values[node])


def function_of(module: GraphModule, node: Node, floats: Collection[Node] = (), *, in_float: bool = False) -> Step:
    """Return the function that computes a node, which is no input, from the values of its operands.

    Args:
        floats: quantize nodes that return dequantized floats.
        in_float: leave out quantization of floats; infinity becomes the end of its range.  Operands that an operator
            writes into are copied, since they may have other readers.
    """
    args, kwargs, map_arg = node.args, node.kwargs, torch.fx.map_arg
    if node.op == "get_attr":
        return lambda _: attribute(module, node)
    if node.op == "output":
        return lambda values: map_arg(args[0], values.__getitem__)
    function: Any = functools.partial(called, node) if in_float and is_mutable(node) else node.target
    if node.op == "call_module":
        part = module.get_submodule(str(node.target))
        function = _looped(part, in_float) if isinstance(part, Loop) else part
    fast = _FAST.get(function) if not kwargs else None
    qparams: Any
    source, *qparams = args or (None,)

    def step(values: Mapping[Node, Any]) -> Any:
        given: Any = map_arg(args, values.__getitem__)
        made = fast(*given) if fast is not None else None
        return function(*given, **map_arg(kwargs, values.__getitem__)) if made is None else made

    if (in_float and is_dequantize(node)) or (isinstance(source, Node) and source in floats):
        short: Callable[[Any], torch.Tensor] = _same
    elif in_float and is_quantize(node):
        short = functools.partial(_ended, *qparams)
    elif node in floats:
        short = functools.partial(_rounded, *qparams)
    else:
        return step

    def shorter(values: Mapping[Node, Any]) -> Any:
        x = values[source]  # type: ignore[index]
        return short(x) if x.dtype is torch.float32 or (in_float and x.is_floating_point()) else step(values)

    return shorter


def _looped(loop: Loop, in_float: bool) -> Callable[..., Any]:
    """Return a function that runs the steps of a recurrent layer, whose graph takes integers; in float for floats."""
    run, exact = (Eager(loop.body, keeps_weights=True, in_float=one).run for one in (False, in_float))

    def over(x: torch.Tensor, *states: torch.Tensor) -> Any:
        if not in_float or not x.is_floating_point():
            return loop.over(run, x, *states)
        floats = (
            s if s.is_floating_point() else (s.float() - qparams[1]) * qparams[0]
            for s, qparams in zip(states, loop.all_qparams[1:], strict=True)
        )
        return loop.over(exact, x, *floats)

    return over


def _same(x: torch.Tensor) -> torch.Tensor:
    return x


def _is_weight(n: Node) -> bool:
    return n.target in (_DEQUANTIZE, _DEQUANTIZE_CHANNELS) and all(i.op == "get_attr" for i in n.all_input_nodes)


def _is_only_dequantized(n: Node) -> bool:
    """Return True for a quantize of which every reader is its own dequantize."""
    is_own = (u.target is _DEQUANTIZE and not u.kwargs and u.args == (n, *n.args[1:]) for u in n.users)
    return n.target is _QUANTIZE and not n.kwargs and all(is_own)


def _rounded(scale: float, zero_point: int, least: int, most: int, dtype: torch.dtype, x: torch.Tensor) -> torch.Tensor:
    """Return what `_dequantized` gives for the result of `_quantized`."""
    y = (x * (1.0 / scale)).round_().nan_to_num_(-zero_point)  # torch converts NaN to the integer 0
    hardtanh_(y, least - zero_point, most - zero_point)  # unlike clamp_, it has a batching rule
    return y.mul_(scale).add_(0.0)  # zeros without a sign, as those of integers


def _ended(scale: float, zero_point: int, least: int, most: int, dtype: torch.dtype, x: torch.Tensor) -> torch.Tensor:
    """Replace infinite values, such as the logarithm of 0, by the end of a quantize node's range."""
    return x.nan_to_num(math.nan, (most - zero_point) * scale, (least - zero_point) * scale)


def _quantized(x: torch.Tensor, scale: float, zero_point: int, least: int, most: int, dtype: torch.dtype) -> Any:
    if x.dtype is not torch.float32:
        return None
    return hardtanh_((x * (1.0 / scale)).round_().add_(zero_point), least, most).to(dtype)


def _dequantized(x: torch.Tensor, scale: float, zero_point: int, least: int, most: int, dtype: torch.dtype) -> Any:
    if x.dtype is not dtype or x.dtype is torch.float32:
        return None
    return x.to(torch.float32).sub_(zero_point).mul_(scale)


def _dequantized_channels(x: torch.Tensor, scales: torch.Tensor, zero_points: Any, axis: int, *limits: Any) -> Any:
    if x.dtype is not limits[-1] or x.dtype not in _NARROW or scales.dtype is not torch.float32 or zero_points is None:
        return None
    shape = [1] * x.dim()
    shape[axis] = -1
    return x.to(torch.float32).sub_(zero_points.view(shape)).mul_(scales.view(shape))


_FAST: dict[Any, Callable[..., Any]] = {
    _QUANTIZE: _quantized,
    _DEQUANTIZE: _dequantized,
    _DEQUANTIZE_CHANNELS: _dequantized_channels,
}


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


def is_mutable(node: Node) -> bool:
    """Return True for a call of an operator that writes into an operand."""
    overload = aten_overload(node)
    return overload is not None and schema_of(overload).is_mutable


def called(node: Node, args: Any, kwargs: Mapping[str, Any]) -> Any:
    """Return the result of a call; an operand that it writes into is copied, since it may have other readers."""
    if is_mutable(node) and isinstance(args[0], torch.Tensor):
        args = (args[0].clone(), *args[1:])
    assert callable(node.target)
    return node.target(*args, **kwargs)
