"""Cross-layer equalization (Nagel et al., 2019): channels of two successive layers get weights of the same range.

    y = second(relu(first(x)))      first's row c divided by s[c], second's column c multiplied by s[c]

A ReLU commutes with a positive factor, so that the network computes the same. s = sqrt(range of the row / range of the
column) makes both ranges equal, which helps qparams that all channels share: of weights with one scale per tensor, and
of the activations between the two layers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node

from micronpu.frontend.constants import attribute, set_attribute
from micronpu.frontend.program import arguments, overload_name
from micronpu.quantize.thresholds import DEAD_CHANNEL, EQUALIZE_ROUNDS, EQUALIZED, MOST_EQUALIZED

_LAYERS = ("conv1d", "conv2d", "linear")
_HOMOGENEOUS = ("relu", "relu_", "leaky_relu", "max_pool1d", "max_pool2d", "avg_pool1d", "avg_pool2d", "dropout")
"""f(s x) = s f(x) for s > 0, channel by channel."""


@dataclass
class _Pair:
    """Two successive layers, and the batch norm after the first if it is not folded."""

    first: Node
    norm: Node | None
    second: Node


def equalize(model: GraphModule) -> int:
    """Equalize all pairs of successive layers, in place; return their number.

    Weights that another layer reads as well, and values that have a second reader, are not changed. Weights get new
    tensors: those of the exported model stay.
    """
    pairs = [pair for node in model.graph.nodes if (pair := _pair(model, node)) is not None]
    for _ in range(EQUALIZE_ROUNDS):
        # A depthwise layer is in two pairs, so that the ranges converge after some rounds.
        if max((_apply(model, pair) for pair in pairs), default=0.0) < EQUALIZED:
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
    # Groups only if depthwise: otherwise a column belongs to another channel in every group.
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
    """Return the factor of each channel in the batch norm between the layers."""
    if pair.norm is None:
        return torch.ones(1)
    given = arguments(pair.norm)
    gamma, variance = (attribute(model, given[k]) for k in ("weight", "running_var"))
    assert gamma is not None and variance is not None
    factor: torch.Tensor = gamma.detach().double().abs() * (variance.detach().double() + given["eps"]).rsqrt()
    return factor


def _apply(model: GraphModule, pair: _Pair) -> float:
    """Apply one iteration; return the largest change of a range, as the logarithm of its factor.

    It uses float64: the last bits of a float32 square root vary between machines.
    """
    first, second = _weight(model, pair.first).double(), _weight(model, pair.second).double()
    rows = first.reshape(len(first), -1).abs().amax(1) * _factor(model, pair)
    axis = 0 if _is_depthwise(pair.second) else 1
    columns = second.transpose(0, axis).reshape(second.shape[axis], -1).abs().amax(1)
    alive = (rows > DEAD_CHANNEL * rows.max()) & (columns > DEAD_CHANNEL * columns.max())
    factor = torch.where(alive, (rows / columns.clamp(min=1e-30)).sqrt(), torch.ones_like(rows))
    factor = factor.clamp(1 / MOST_EQUALIZED, MOST_EQUALIZED)
    if pair.norm is None:
        _scale(model, arguments(pair.first)["weight"], 1 / factor, 0)
        _scale(model, arguments(pair.first).get("bias"), 1 / factor, 0)
    else:
        for name in ("weight", "bias"):
            _scale(model, arguments(pair.norm)[name], 1 / factor, 0)
    _scale(model, arguments(pair.second)["weight"], factor, axis)
    return float(factor.log().abs().max())


def _scale(model: GraphModule, node: Any, factor: torch.Tensor, axis: int) -> None:
    """Multiply a constant by factors along an axis."""
    value = attribute(model, node)
    if value is None:
        return
    shape = [-1 if i == axis else 1 for i in range(value.dim())]
    set_attribute(model, node, value.detach() * factor.reshape(shape).to(value.dtype))
