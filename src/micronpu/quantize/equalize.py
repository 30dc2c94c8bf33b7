"""Cross-layer equalization (Nagel et al., 2019): channels of two layers in a row get weights of the same range.

    y = second(relu(first(x)))      first's row c divided by s[c], second's column c multiplied by s[c]

A ReLU lets a positive factor through, so that the network computes the same; and s = sqrt(range of the row / range of
the column) makes both ranges the same, which helps a grid that all channels share: of weights with one scale per
tensor, and of the activations between the two layers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node

from micronpu.frontend.constants import attribute, set_attribute
from micronpu.frontend.program import arguments, overload_name

_LAYERS = ("conv1d", "conv2d", "linear")
_HOMOGENEOUS = ("relu", "relu_", "leaky_relu", "max_pool1d", "max_pool2d", "avg_pool1d", "avg_pool2d", "dropout")
"""f(s x) = s f(x) for s > 0, channel by channel."""
_SMALLEST = 1e-6
"""Of the largest range: a channel with less is dead, and stays as it is."""
_MOST = 1e4
"""The largest factor, either way."""
_ROUNDS = 20
_CONVERGED = 0.01


@dataclass
class _Pair:
    """Two layers in a row, and the batch norm behind the first where it is not folded."""

    first: Node
    norm: Node | None
    second: Node


def equalize(model: GraphModule) -> int:
    """Equalizes all pairs of layers in a row, in place; how many there are.

    Weights that a second layer reads as well, and values that have a second reader, stay as they are. Weights get new
    tensors: those of the model that was exported are left alone.
    """
    pairs = [pair for node in model.graph.nodes if (pair := _pair(model, node)) is not None]
    for _ in range(_ROUNDS):
        # A depthwise layer stands in two pairs, so that the ranges settle after some rounds.
        if max((_apply(model, pair) for pair in pairs), default=0.0) < _CONVERGED:
            break
    return len(pairs)


def _pair(model: GraphModule, second: Node) -> _Pair | None:
    if not _is_layer(model, second):
        return None
    source: Any = arguments(second).get("input")
    norm = None
    while isinstance(source, Node) and len(source.users) == 1 and source.op == "call_function":
        name = overload_name(source).split(".")[0]
        if _is_layer(model, source):
            rows, columns = _rows(model, source), _columns(model, second)
            return _Pair(source, norm, second) if rows == columns else None
        if name == "batch_norm" and norm is None and not arguments(source).get("training"):
            norm = source
            constants = [arguments(source).get(k) for k in ("weight", "bias")]
            if any(not isinstance(c, Node) or c.op != "get_attr" or len(c.users) != 1 for c in constants):
                return None
            source = arguments(source)["input"]
        elif name in _HOMOGENEOUS and norm is None:
            source = source.args[0]
        else:
            return None
    return None


def _is_layer(model: GraphModule, node: Node) -> bool:
    if overload_name(node).split(".")[0] not in _LAYERS:
        return False
    given = arguments(node)
    tensors = [given["weight"], given.get("bias")]
    if any(t is not None and (attribute(model, t) is None or len(t.users) != 1) for t in tensors):
        return False
    groups = given.get("groups", 1)
    weight = attribute(model, given["weight"])
    # In groups, only depthwise: otherwise a column stands for another channel in every group.
    return weight is not None and (groups == 1 or (weight.shape[1] == 1 and groups == weight.shape[0]))


def _weight(model: GraphModule, node: Node) -> torch.Tensor:
    weight = attribute(model, arguments(node)["weight"])
    assert weight is not None
    return weight.detach()


def _is_depthwise(node: Node) -> bool:
    return bool(arguments(node).get("groups", 1) > 1)


def _rows(model: GraphModule, node: Node) -> int:
    return int(_weight(model, node).shape[0])


def _columns(model: GraphModule, node: Node) -> int:
    return int(_weight(model, node).shape[0 if _is_depthwise(node) else 1])


def _factor(model: GraphModule, pair: _Pair) -> torch.Tensor:
    """What the batch norm between the two multiplies each channel by."""
    if pair.norm is None:
        return torch.ones(1)
    given = arguments(pair.norm)
    gamma, variance = (attribute(model, given[k]) for k in ("weight", "running_var"))
    assert gamma is not None and variance is not None
    factor: torch.Tensor = gamma.detach().double().abs() * (variance.detach().double() + given["eps"]).rsqrt()
    return factor


def _apply(model: GraphModule, pair: _Pair) -> float:
    """One step; the largest change of a range, as the logarithm of its factor.

    In double precision: a square root of float32 numbers has not the same last bit everywhere.
    """
    first, second = _weight(model, pair.first).double(), _weight(model, pair.second).double()
    rows = first.reshape(len(first), -1).abs().amax(1) * _factor(model, pair)
    axis = 0 if _is_depthwise(pair.second) else 1
    columns = second.transpose(0, axis).reshape(second.shape[axis], -1).abs().amax(1)
    alive = (rows > _SMALLEST * rows.max()) & (columns > _SMALLEST * columns.max())
    factor = torch.where(alive, (rows / columns.clamp(min=1e-30)).sqrt(), torch.ones_like(rows))
    factor = factor.clamp(1 / _MOST, _MOST)
    if pair.norm is None:
        _scale(model, arguments(pair.first)["weight"], 1 / factor, 0)
        _scale(model, arguments(pair.first).get("bias"), 1 / factor, 0)
    else:
        for name in ("weight", "bias"):
            _scale(model, arguments(pair.norm)[name], 1 / factor, 0)
    _scale(model, arguments(pair.second)["weight"], factor, axis)
    return float(factor.log().abs().max())


def _scale(model: GraphModule, node: Any, factor: torch.Tensor, axis: int) -> None:
    """Gives a constant other values along an axis."""
    value = attribute(model, node)
    if value is None:
        return
    shape = [-1 if i == axis else 1 for i in range(value.dim())]
    set_attribute(model, node, value.detach() * factor.reshape(shape).to(value.dtype))
