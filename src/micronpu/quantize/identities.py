"""Replacement of spelled-out functions by the operator that computes them.

1 / (1 + exp(-x)) in int8 is rounded three times, once as an exponential of any size; sigmoid(x) is rounded once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from torch.fx import GraphModule, Node

from micronpu.frontend.constants import is_trained, number
from micronpu.frontend.program import arguments, is_float32, is_getitem, is_random, overload_name, value_of
from micronpu.ir.lowering import Capabilities
from micronpu.ops.softmax import SOFTMAX
from micronpu.quantize.readers import power_of
from micronpu.quantize.switches import switchable
from micronpu.quantize.thresholds import EQUAL_DEPTH
from micronpu.quantize.writer import GraphWriter

Identity = Callable[[GraphModule, Node, GraphWriter], "Node | None"]


@switchable
def spelled_out(model: GraphModule, able: Capabilities) -> bool:
    """1 / (1 + exp(-x)) -> sigmoid(x), log(1 + exp(x)) -> softplus(x), log(softmax(x)) -> log_softmax(x) and the like

    Exact up to float rounding: 1 / exp(x) and z / exp(x) as exp(-x), exp(x) / sum(exp(x)) as softmax(x),
    log(sigmoid(x)) as log_sigmoid(x), sqrt(x * x) as abs(x), max(x) + log(sum(exp(x - max(x)))) as logsumexp(x).
    """
    changed = False
    for node in list(model.graph.nodes):
        identity = _IDENTITIES.get(overload_name(node))
        if identity is None or not is_float32(node):
            continue
        made = identity(model, node, GraphWriter(model, node, able, {}))
        if made is not None:
            node.replace_all_uses_with(made)
            model.graph.erase_node(node)
            changed = True
    return changed


def _of_log(model: GraphModule, node: Node, write: GraphWriter) -> Node | None:
    x: Any = node.args[0]
    name = _name(x)
    if name in SOFTMAX and is_float32(x):
        given = arguments(x)
        return write("log_softmax.int", given["self"], given["dim"])
    if name == "sigmoid.default":
        return write("log_sigmoid.default", x.args[0])
    z = _exponent_beside_one(model, x)
    return None if z is None else write("softplus.default", z)


def _of_log1p(model: GraphModule, node: Node, write: GraphWriter) -> Node | None:
    x: Any = node.args[0]
    return write("softplus.default", x.args[0]) if _name(x) == "exp.default" else None


def _of_reciprocal(model: GraphModule, node: Node, write: GraphWriter) -> Node | None:
    return _inverse(model, node.args[0], write)


def _of_division(model: GraphModule, node: Node, write: GraphWriter) -> Node | None:
    x, divisor = arguments(node)["self"], arguments(node)["other"]
    if _name(x) == "exp.default" and (axis := _is_sum_of(divisor, x)) is not None:
        z = x.args[0]
        inside = _name(z) == "sub.Tensor" and arguments(z)["alpha"] == 1 and _is_largest_of(z.args[1], z.args[0], axis)
        return write("softmax.int", z.args[0] if inside else z, axis)
    inverse = _inverse(model, divisor, write)
    if inverse is None:
        return None
    return inverse if _fixed(model, x) == 1 else write("mul.Tensor", inverse, x)


def _of_sum(model: GraphModule, node: Node, write: GraphWriter) -> Node | None:
    """Return logsumexp for the largest element of a row plus the logarithm of the sum, if both have the same axes."""
    if arguments(node)["alpha"] != 1:
        return None
    for largest, log in (node.args[:2], node.args[1::-1]):
        total: Any = log.args[0] if isinstance(log, Node) and _name(log) == "log.default" else None
        power: Any = total.args[0] if _name(total) == "sum.dim_IntList" else None
        z: Any = power.args[0] if _name(power) == "exp.default" else None
        if _name(z) != "sub.Tensor" or arguments(z)["alpha"] != 1:
            continue
        x, top = z.args
        axis = _axis_of_largest(top)
        if axis is None or not _is_largest_of(top, x, axis):
            continue
        rank = value_of(top).dim()
        keeps = bool(arguments(total)["keepdim"])
        summed = [a % rank for a in arguments(total)["dim"] or ()]
        if summed == [axis % rank] and _is_same(largest if keeps else _before_squeeze(largest, axis % rank), top):
            return write("logsumexp.default", x, [axis], keeps)
    return None


def _before_squeeze(x: Any, axis: int) -> Any:
    """Return the operand of a squeeze of an axis; any other value unchanged."""
    if _name(x) != "squeeze.dim":
        return x
    before = x.args[0]
    return before if x.args[1] % value_of(before).dim() == axis else x


def _of_root(model: GraphModule, node: Node, write: GraphWriter) -> Node | None:
    x: Any = node.args[0]
    return write("abs.default", arguments(x)["self"]) if _name(x) and power_of(x) == 2 else None


_IDENTITIES: dict[str, Identity] = {
    "log.default": _of_log,
    "log1p.default": _of_log1p,
    "reciprocal.default": _of_reciprocal,
    "div.Tensor": _of_division,
    "sqrt.default": _of_root,
    "add.Tensor": _of_sum,
}


def _inverse(model: GraphModule, x: Any, write: GraphWriter) -> Node | None:
    """Return 1 / x if x is exp(z) or 1 + exp(z)."""
    if _name(x) == "exp.default":
        return write("exp.default", _negated(model, x.args[0], write))
    z = _exponent_beside_one(model, x)
    return None if z is None else write("sigmoid.default", _negated(model, z, write))


def _exponent_beside_one(model: GraphModule, x: Any) -> Any:
    """Return z of 1 + exp(z), or None."""
    if _name(x) != "add.Tensor" or arguments(x)["alpha"] != 1:
        return None
    for one, power in (x.args[:2], x.args[1::-1]):
        if _name(power) == "exp.default" and _fixed(model, one) == 1:
            return power.args[0]
    return None


def _negated(model: GraphModule, z: Any, write: GraphWriter) -> Node:
    """Return -z, with the sign merged into an existing operator if possible."""
    if _name(z) == "neg.default":
        return z.args[0]  # type: ignore[no-any-return]
    if _name(z) in ("mul.Tensor", "div.Tensor") and (factor := _fixed(model, z.args[1])) is not None:
        return write(_name(z), z.args[0], -factor)
    return write("neg.default", z)


def _is_sum_of(x: Any, terms: Node) -> int | None:
    """Return the axis along which x is the sum of terms, kept with size 1, or None."""
    if _name(x) != "sum.dim_IntList" or not _is_same(x.args[0], terms):
        return None
    return _only_axis(x)


def _is_largest_of(x: Any, of: Any, axis: int) -> bool:
    """Return True if x is the largest of a value along an axis."""
    return _axis_of_largest(x) == axis and _is_same((x.args[0] if is_getitem(x) else x).args[0], of)


def _axis_of_largest(x: Any) -> int | None:
    """Return the axis along which x is the largest of a value, kept with size 1, or None."""
    if isinstance(x, Node) and is_getitem(x) and x.args[1] == 0 and _name(x.args[0]) == "max.dim":
        given = arguments(cast(Node, x.args[0]))
        return int(given["dim"]) % value_of(x).dim() - value_of(x).dim() if given["keepdim"] else None
    return _only_axis(x) if _name(x) == "amax.default" else None


def _is_same(a: Any, b: Any, depth: int = EQUAL_DEPTH) -> bool:
    """Return True if two values are one, or the same operators of the same values."""
    if not isinstance(a, Node) or not isinstance(b, Node):
        return type(a) is type(b) and bool(a == b)
    if a is b or not depth or a.op != "call_function" or a.target is not b.target or a.kwargs or b.kwargs:
        return a is b
    if is_random(a):
        return False
    return len(a.args) == len(b.args) and all(_is_same(x, y, depth - 1) for x, y in zip(a.args, b.args, strict=True))


def _only_axis(node: Node) -> int | None:
    """Return the one axis that is reduced and kept with a size of 1, counted from the end."""
    given, shape = arguments(node), value_of(node).shape
    axes = given["dim"]
    axes = list(axes) if isinstance(axes, (list, tuple)) else [axes]
    if len(axes) != 1 or not given["keepdim"] or not isinstance(axes[0], int):
        return None
    return axes[0] if axes[0] < 0 else axes[0] - len(shape)


def _fixed(model: GraphModule, x: Any) -> float | None:
    """Return the number that a value is, unless it is trained; None for others."""
    return None if is_trained(model, x) else number(model, x)


def _name(x: Any) -> str:
    return overload_name(x) if isinstance(x, Node) else ""
