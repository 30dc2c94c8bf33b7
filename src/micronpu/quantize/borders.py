"""Grids of what is compared with a number: the number lies between two steps, so that rounding leads none past it.

x > 0.3 of a value with steps of 0.0275, of which one is 0.3025: what is between 0.28875 and 0.31625 is that step, which
is larger, whatever it was before.  With steps of 0.02857 the numbers that a step stands for end at 0.3, and rounding
changes no decision.  Zero is a step of every grid: it is never between two.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch.fx import GraphModule, Node

from micronpu.frontend.facts import SIGN_COUNTS
from micronpu.frontend.program import arguments, overload_name
from micronpu.ops.comparisons import COMPARISONS
from micronpu.quantize import attributes
from micronpu.quantize.observing import Borders, RangeObserver

_SCALARS = {f"{name}.Scalar" for name in COMPARISONS if name not in ("eq", "ne")}
_THRESHOLDS = {"threshold.default", "threshold_.default"}
_ROUNDING = {"round.default", "round_.default"}
_WHOLE = {f"{name}{form}.default" for name in ("round", "floor", "ceil", "trunc") for form in ("", "_")}
"""Operators whose results are whole numbers, of which the grid has every one: an integer made of 2.98 would be 2."""
_LINEAR = {"mul.Tensor", "div.Tensor", "add.Tensor", "sub.Tensor", "rsub.Scalar", "neg.default"}
_PART = 0.125
"""Of the range of a difference that is asked for its sign alone: with steps finer than those of what it is of."""
_AT_ZERO = Borders(frozenset({(0.0, 0.0)}))
_DEEPEST = 4
"""Operators in a row, of which each multiplies or adds a number, that are looked through."""


def observe_borders(model: GraphModule, places: Mapping[Any, Any]) -> None:
    """Tells observers at which numbers what reads their values jumps, so that these lie between two steps of the grid.

    Args:
        places: observer by node or by (operand, reader) edge, as torchao has them while it prepares.
    """
    for node in model.graph.nodes:
        borders = _borders_of(node)
        if borders is not None and isinstance(node.args[0], Node):  # also of what stays in float
            _tell(model, places, node.args[0], borders)
        observer = places.get(node)
        if not isinstance(observer, RangeObserver):
            continue
        is_alone = sum(other is observer for key, other in places.items() if not isinstance(key, tuple)) == 1
        if SIGN_COUNTS.of(node) == node.name:
            observer.part = _PART if is_alone else observer.part
            _tell(model, places, node, _AT_ZERO)
        observer.is_whole |= is_alone and overload_name(node) in _WHOLE


def _tell(model: GraphModule, places: Mapping[Any, Any], value: Node, borders: Borders) -> None:
    """Tells the observer of a value, and of what it is a multiple of, beside a number: that is rounded before."""
    for _ in range(_DEEPEST):
        observer = places.get(value)
        if isinstance(observer, RangeObserver):
            observer.heed(borders)
        before = _as_multiple(model, value)
        if before is None:
            return
        value, factor, addend = before
        borders = borders.before(factor, addend)


def _as_multiple(model: GraphModule, value: Node) -> tuple[Node, float, float] | None:
    """(x, factor, addend) of a value that is factor * x + addend; None of another."""
    name = overload_name(value)
    if name not in _LINEAR:
        return None
    given = arguments(value)
    operands = [given[key] for key in ("self", "other") if key in given]
    numbers = [attributes.number(model, operand) for operand in operands]
    if name == "neg.default":
        return given["self"], -1.0, 0.0
    if given.get("alpha", 1) != 1 or sum(number is None for number in numbers) != 1:
        return None
    (x,) = (operand for operand, number in zip(operands, numbers, strict=True) if number is None)
    (number,) = (number for number in numbers if number is not None)
    is_first = x is operands[0]
    if name == "mul.Tensor":
        return (x, number, 0.0) if number else None
    if name == "div.Tensor":
        return (x, 1.0 / number, 0.0) if number and is_first else None
    if name == "add.Tensor":
        return x, 1.0, number
    is_minuend = is_first != (name == "rsub.Scalar")
    return (x, 1.0, -number) if is_minuend else (x, -1.0, number)


def _borders_of(node: Node) -> Borders | None:
    """Where the result of an operator jumps; None of one that does not, or not at numbers that are known."""
    name = overload_name(node)
    if name in _ROUNDING:
        return Borders(frozenset({(0.5, 1.0)}))
    if name == "hardshrink.default":
        width = float(arguments(node)["lambd"])
        return Borders(frozenset({(width, 0.0), (-width, 0.0)}))
    if name not in _SCALARS | _THRESHOLDS:
        return None
    number: Any = arguments(node)["other" if name in _SCALARS else "threshold"]
    known = isinstance(number, (int, float)) and math.isfinite(number)
    return Borders(frozenset({(float(torch.tensor(float(number))), 0.0)})) if known else None
