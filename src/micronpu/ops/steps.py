"""Step functions of int16 numbers, for which a table with linear interpolation would be wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from micronpu.base.errors import UnsupportedError
from micronpu.ir.aten import AtenNode
from micronpu.ir.graph import Tensor
from micronpu.ir.types import QParams, TensorType
from micronpu.ops.clamps import Clamp
from micronpu.ops.constants import constant_like
from micronpu.ops.elementwise import Add, Mul, Sub
from micronpu.ops.quantization import Requantize

RealFunction = Callable[[npt.NDArray[Any]], npt.NDArray[Any]]

MOST_FLIGHTS = 4


def staircase(node: AtenNode, x: Tensor, function: RealFunction, y: QParams) -> Tensor:
    """A function that is constant except for a few steps, evaluated at every number of x.

    Steps of equal height at adjacent numbers form a flight; each is a clamp whose result is shifted and scaled:

        x > 0.5   x -> clamp(0.5, 0.5 + step) -> - 0.5 -> * 1/step -> y

    Exact: the differences are 0 and 1 in the qparams of x, and their product with 1/step is 0 or 1.
    """
    low, high = x.type.dtype.limits
    values = np.asarray(function(np.arange(low, high + 1) * x.type.scale), np.float64)
    heights = np.diff(values)
    flights: list[tuple[int, int, float]] = []  # first and last number that a step leads to, and the height of each
    for place in np.flatnonzero(heights):
        number, height = int(place) + low + 1, float(heights[place])
        if flights and flights[-1][1] == number - 1 and flights[-1][2] == height:
            flights[-1] = (flights[-1][0], number, height)
        else:
            flights.append((number, number, height))
    if not 1 <= len(flights) <= MOST_FLIGHTS:
        raise refusal(node, f"has {len(flights)} steps in the int8 range of its operand")
    base = float(values[0])
    result: Tensor | None = None
    for first, last, height in flights:
        offset = float(first - 1)
        if base and (base / height).is_integer():
            offset, base = offset - base / height, 0.0
        part = _flight(node, x, first - 1, last, offset, height, y)
        result = part if result is None else node.emit(Add(), result, part, qparams=y)
    assert result is not None
    if base:
        result = node.emit(Add(), result, _number(node, x.type, base), qparams=y)
    return result


def _flight(node: AtenNode, x: Tensor, low: int, high: int, offset: float, height: float, y: QParams) -> Tensor:
    """``height * (clamp(q, low, high) - offset)`` for the integers q of x."""
    scale = x.type.scale
    clamped = node.emit(Clamp(low * scale, high * scale), x)
    if offset:
        type = TensorType((1,) * len(x.shape), x.type.dtype, x.type.qparams)
        smallest, largest = type.dtype.limits
        if not smallest <= offset <= largest:
            raise refusal(node, "has its step at the end of the range of its operand")
        clamped = node.emit(Sub(), clamped, node.constant(np.full(type.shape, offset), type), qparams=x.type.qparams)
    return node.emit(Mul(), clamped, _number(node, x.type, height / scale), qparams=y)


def _number(node: AtenNode, x: TensorType, value: float) -> Tensor:
    return constant_like(node, np.full((1,) * x.rank, value), x)


def rounded(node: AtenNode, x: Tensor, y: QParams) -> Tensor:
    """floor, ceil or round: requantize x to whole numbers, and then to the result's qparams.

    floor   x -> - (1 - step)/2 -> requantize(1.0) -> y

    ``floor`` rounds a number less than half an LSB below a whole number up to it, since it represents that number too;
    ``round`` rounds ties away from zero instead of to even.
    """
    kind = node.overload.split(".")[0].rstrip("_")
    whole = QParams.per_tensor(1.0, 0)
    if kind == "round":
        result = node.emit(Requantize(x.type.dtype), x, qparams=whole)
    else:
        half = _number(node, x.type, (1.0 - x.type.scale) / 2)
        result = node.emit(Sub() if kind == "floor" else Add(), x, half, qparams=whole)
    return result if y == whole else node.emit(Requantize(x.type.dtype), result, qparams=y)


def refusal(node: AtenNode, why: str) -> UnsupportedError:
    """The error for a function without int16 form."""
    return UnsupportedError(
        f"`{node.overload}` of int16 is not imported: it {why}, and a table of int16 results has straight lines "
        "between its entries.",
        hint="quantize the operator to int8",
    )
