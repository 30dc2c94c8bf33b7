"""Lookup tables of functions of one element: of 256 int8 results, or of 513 int16 ones.

The importer evaluates a function at the 256 values of the operand, so that the NPU computes any function in one
operation. For an int16 operand it is evaluated at every 128th value, with linear interpolation, which would be wrong
for step functions: they are composed of other operators. The functions are defined in `micronpu.ops.tables.functions`
and `micronpu.ops.comparisons`.

An interpolated table may deviate from a function that is steep near zero, such as 1/x and sqrt(x). There a second table
is added, whose operand is multiplied by a power of two and saturates, and whose entries are closer by that factor; if
necessary, a third one is added:

    y = coarse(x) + fine(32 x) + finest(128 x)

A function that is steep elsewhere, such as logit(x) at both ends of its range, has one such table for each place:

    y = coarse(x) + fine(32 (x - 32640)) + fine(16 x)

Within the window of the next table, at whose ends the next operand saturates, each table is a straight line; the next
table adds the difference, which is zero at both ends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from micronpu.base.arrays import Array
from micronpu.base.errors import InternalError, UnsupportedError
from micronpu.ir.arithmetic import wide_lookup_table, wide_results
from micronpu.ir.aten import AtenArguments, AtenNode
from micronpu.ir.facts import Facts
from micronpu.ir.graph import Tensor
from micronpu.ir.op import QuantizationRule, Value, own_qparams
from micronpu.ir.registry import imports, operator
from micronpu.ir.types import DType, QParams, TensorType
from micronpu.ops.clamps import Clamp
from micronpu.ops.constants import constant_like
from micronpu.ops.elementwise import Add, Elementwise, Mul, Sub
from micronpu.ops.quantization import Requantize

if TYPE_CHECKING:
    from micronpu.emit.litert import LiteRtEmitter
    from micronpu.emit.tosa import TosaEmitter, TosaTensor

Reals = Array
RealFunction = Callable[[Reals], Reals]

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


NEAR = 32
"""Maximum error of a table in LSB of int16: an eighth of an LSB of int8."""
_GAINS = (*((gain,) for gain in (2, 4, 8, 16, 32, 64, 128)), *((gain, 128) for gain in (2, 4, 8, 16, 32)))
"""Powers of two by which the operands of finer tables are multiplied; with 128 there is an entry for every number."""
_LEAST_GAIN = 2.0
"""Minimum factor by which another table must reduce the largest error if no table reduces it below `NEAR`."""
_LINE = 128
"""Distance between two entries."""
_MOST_PLACES, _PLACE_GAINS = 2, (2, 4, 8, 16, 32, 64, 128)
"""Maximum number of places of finer tables for a function that is steep away from zero, and their gains."""
_BEYOND = 2.0
"""Values beyond this multiple of the result's range are ignored: they are a problem of calibration, not of tables."""
_LOWEST, _HIGHEST = DType.INT16.limits
_EVERY = np.arange(_LOWEST, _HIGHEST + 1)


@dataclass(frozen=True)
class TablePart:
    """A table to be added."""

    gain: int  # factor of its operand
    entries: tuple[int, ...]  # 513 results
    center: int = 0  # the middle of its window, which is subtracted from the operand first

    def added_to(self, total: Array) -> Array:
        """Add its results for all numbers to those of other tables, and saturate."""
        found = wide_results(np.array(self.entries, np.int64))
        if self.gain > 1:  # outside of the window its operand saturates
            before = self.center - _LOWEST // -self.gain - _LOWEST
            window = found[:: self.gain][max(-before, 0) :]
            found = np.concatenate([np.repeat(found[0], max(before, 0)), window, np.repeat(found[-1], len(found))])
        return np.asarray((total + found[: len(total)]).clip(_LOWEST, _HIGHEST))


class _Tables(NamedTuple):
    """Tables, and their sum for all numbers."""

    parts: tuple[TablePart, ...]
    total: Array

    def plus(self, part: TablePart) -> _Tables:
        return _Tables((*self.parts, part), part.added_to(self.total))

    def off(self, wanted: npt.NDArray[np.float64], counts: npt.NDArray[np.bool_]) -> float:
        """Maximum error, in LSB."""
        return float(np.abs(self.total - wanted).max(where=counts, initial=0.0))


_NO_TABLES = _Tables((), np.zeros(len(_EVERY), np.int64))


def parts_of(function: RealFunction, coarse: npt.ArrayLike) -> tuple[TablePart, ...]:
    """The fewest tables whose sum approximates a function of int16 numbers.

    Args:
        function: of the numbers themselves, in LSB of the result; non-finite results may be replaced by anything.
        coarse: entries of a single table, which suffices for most functions.
    """
    wanted, counts = _wanted(function)
    best = _NO_TABLES.plus(TablePart(1, tuple(np.asarray(coarse).tolist())))
    least = best.off(wanted, counts)
    for number in (1, 2):
        if least <= NEAR:
            break
        candidates = (_split(wanted, gains) for gains in _GAINS if len(gains) == number)
        tried = min(candidates, key=lambda tables: tables.off(wanted, counts))
        if (error := tried.off(wanted, counts)) <= max(least / _LEAST_GAIN, NEAR):
            best, least = tried, error
    return (best if least <= NEAR else _with_places(wanted, counts, best, least)).parts


def _with_places(
    wanted: npt.NDArray[np.float64], counts: npt.NDArray[np.bool_], best: _Tables, least: float
) -> _Tables:
    """Tables with finer ones for up to two places, each with the largest error so far; ``best`` unless better."""
    places: list[tuple[int, int]] = []
    tables = _placed(wanted, places)
    while len(places) < _MOST_PLACES and tables.off(wanted, counts) > NEAR:
        worst = _EVERY[np.where(counts, np.abs(tables.total - wanted), 0.0).argmax()]
        last = -_LOWEST // _LINE - 1
        center = min(max(round(worst / _LINE), -last), last) * _LINE
        around = counts & (np.abs(_EVERY - center) <= -_LOWEST // _PLACE_GAINS[0])
        tried = {
            gain: _placed(wanted, [*places, (center, gain)])
            for gain in _PLACE_GAINS
            if all(abs(center - c) >= -_LOWEST // gain - _LOWEST // g for c, g in places)
        }
        if not tried:
            break
        gain = min(tried, key=lambda g: tried[g].off(wanted, around))
        places.append((center, gain))
        tables = tried[gain]
    return tables if tables.off(wanted, counts) <= least / _LEAST_GAIN else best


def _placed(wanted: npt.NDArray[np.float64], places: list[tuple[int, int]]) -> _Tables:
    """Tables for places given as center and gain, with disjoint windows."""
    margin = -_LOWEST
    wide = np.pad(wanted, margin, mode="edge")  # windows may exceed the range
    own = wide.copy()
    for center, gain in places:
        width, middle = margin // gain, center - _LOWEST + margin
        own[middle - width : middle + width + 1] = np.linspace(
            wide[middle - width], wide[middle + width], 2 * width + 1
        )
    inside = own[margin : margin + len(wanted) + 1]
    tables = _NO_TABLES.plus(TablePart(1, _not_too_steep(_entries(inside, _LINE))))
    rest = np.pad(wanted - tables.total, margin, mode="edge")
    for center, gain in places:
        width, middle = margin // gain, center - _LOWEST + margin
        entries = _entries(rest[middle - width : middle + width + 1], _LINE // gain)
        entries[0], entries[-1] = 0, -round(entries[-2] / (_LINE - 1))
        tables = tables.plus(TablePart(gain, _not_too_steep(entries), center))
    return tables


def is_near(function: RealFunction, entries: npt.ArrayLike, most: float = NEAR) -> bool:
    """True if one table approximates a function of int16 numbers, as in `parts_of`, within ``most`` LSB."""
    return _NO_TABLES.plus(TablePart(1, tuple(np.asarray(entries).tolist()))).off(*_wanted(function)) <= most


def _wanted(function: RealFunction) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    """The saturated result of every number, and a mask of relevant ones."""
    numbers = _EVERY.astype(np.float64)
    with np.errstate(all="ignore"):
        counts = np.abs(function(numbers)) <= -_BEYOND * _LOWEST
    return continued(function, numbers, _HIGHEST).clip(_LOWEST, _HIGHEST), counts


def continued(function: RealFunction, numbers: Reals, largest: float) -> Reals:
    """Results for increasing numbers; undefined ones are interpolated, and infinity becomes ``largest``."""
    with np.errstate(all="ignore"):
        results = np.asarray(function(numbers), np.float64)
    has = ~np.isnan(results)
    if not has.any():
        return np.zeros(len(results))
    finite = np.nan_to_num(results, posinf=largest, neginf=-largest)
    return np.asarray(np.interp(numbers, numbers[has], finite[has]))


def _split(wanted: npt.NDArray[np.float64], gains: tuple[int, ...]) -> _Tables:
    """Tables for results of all numbers, of increasing resolution by ``gains`` from the second on."""
    rest, tables = wanted, _NO_TABLES
    for gain, finer in zip((1, *gains), (*gains, 0), strict=True):
        last = -_LOWEST // gain  # of the window
        own = rest[-_LOWEST - last : -_LOWEST + last + 1] if gain > 1 else np.append(rest, rest[-1])
        if finer:
            own = _straight(own, -_LOWEST // finer)
        entries = _entries(own, _LINE // gain)
        if gain > 1:  # saturation: the last interpolated number is at 127/128 of the last interval
            entries[0], entries[-1] = 0, -round(entries[-2] / (_LINE - 1))
        tables = tables.plus(TablePart(gain, _not_too_steep(entries)))
        rest = wanted - tables.total
    return tables


def _straight(values: npt.NDArray[np.float64], width: int) -> npt.NDArray[np.float64]:
    """Values around zero, with a straight line across a window around it."""
    middle = len(values) // 2
    found = values.copy()
    found[middle - width : middle + width + 1] = np.linspace(
        values[middle - width], values[middle + width], 2 * width + 1
    )
    return found


def _entries(values: npt.NDArray[np.float64], apart: int) -> npt.NDArray[np.int64]:
    """Every ``apart``-th value, shifted by half of the interpolation error at the midpoint of its interval."""
    entries = values[::apart].copy()
    if apart > 1:
        off = (entries[:-1] + entries[1:]) / 2 - values[apart // 2 :: apart]
        entries[:-1] -= off / 2
    return np.asarray(np.rint(entries).clip(_LOWEST, _HIGHEST), np.int64)


def _not_too_steep(entries: npt.NDArray[np.int64]) -> tuple[int, ...]:
    """Limit steps between entries to int16, which TOSA requires: a jump, as of 1/x, takes several entries."""
    limited: list[int] = entries.tolist()
    for i in range(1, len(limited)):
        limited[i] = min(max(limited[i], limited[i - 1] - _HIGHEST), limited[i - 1] + _HIGHEST)
    return tuple(limited)


ENTRIES = {DType.INT8: 256, DType.INT16: 513}


def table_entries(function: RealFunction, x: TensorType, y: QParams) -> tuple[int, ...]:
    """The int8 results of a real function for the inputs -128 to 127.

    Computed in float32, rounded to nearest, ties to even, like PyTorch's dequantization and quantization. Infinite
    results saturate. An undefined result becomes that of the nearest defined one: the range of qparams for [-1, 1]
    extends a little beyond, where for example the arc sine of -1.003 is undefined.
    """
    low, high = DType.INT8.limits
    reals = (np.arange(low, high + 1) - x.zero_point).astype(np.float32) * np.float32(x.scale)
    steps = np.float32(1.0 / y.scale[0])
    finite = continued(lambda x: np.asarray(function(x), np.float32) * steps, reals, 2.0**31)
    return tuple(int(v) for v in np.clip(np.rint(finite) + y.zero_point[0], low, high))


def wide_table_entries(function: RealFunction, x: TensorType, y: QParams) -> tuple[int, ...]:
    """The int16 results of a real function for the inputs -32768, -32640, .. 32640 and 32767.

    An undefined result, such as the square root of a negative number, becomes that of the nearest defined one. A jump,
    such as that of 1/x at zero, takes several entries: TOSA limits steps between entries to int16.
    """
    largest = 2.0 * y.scale[0] * 2**15
    low, high = DType.INT16.limits
    numbers = np.arange(low, high + 1) * x.scale

    def finite(reals: Reals) -> Reals:
        with np.errstate(all="ignore"):
            results = np.asarray(function(reals), np.float64)
        missing = np.isnan(results)
        if missing.any():
            results = np.where(missing, np.interp(reals, numbers, continued(function, numbers, largest)), results)
        return np.nan_to_num(results, posinf=largest, neginf=-largest).clip(-largest, largest)

    entries = wide_lookup_table(finite, x.scale, 0, y.scale[0], 0).astype(np.int64)
    return _not_too_steep(entries)


@operator("table")
class LookupTable(Elementwise):
    """Any function of one element.

    x int8 [any]  ->  y int8 [same], own qparams:    y[i] = entries[x[i] + 128].
    x int16 [any]  ->  y int16 [same], own qparams:  interpolated between 513 entries, every 128th result.
    """

    entries: tuple[int, ...]

    quantization = own_qparams()

    def infer(self, x: TensorType) -> TensorType:
        if len(self.entries) != ENTRIES.get(x.dtype):
            raise InternalError(f"A table of {len(self.entries)} entries does not fit {x.dtype.value}.")
        return x.with_qparams(None)

    @property
    def array(self) -> Array:
        """The entries as int8 [256] or int16 [513]."""
        return np.array(self.entries, np.int8 if len(self.entries) == ENTRIES[DType.INT8] else np.int16)

    def every_result(self, x: DType) -> Array:
        """Results for all elements of a type, from the lowest to the highest."""
        return self.array if x is DType.INT8 else wide_results(self.array).astype(np.int16)

    def reference(self, y: TensorType, x: Value) -> Array:
        dtype = x.type.dtype
        return np.asarray(self.every_result(dtype)[x.data.astype(np.int64) - dtype.limits[0]])

    def to_tosa(self, emit: TosaEmitter) -> TosaTensor:
        return emit.table(emit.input(0), self.array)

    def to_litert(self, emit: LiteRtEmitter) -> None:
        """LiteRT has no tables: convert the elements to indices, and gather the results."""
        x, y = emit.input_type(0), emit.output_type
        integers = TensorType(x.shape, DType.INT32)
        wide, indices = emit.intermediate(integers), emit.intermediate(integers)
        emit.add("CAST", options="CastOptions", outputs=[wide])
        emit.add("ADD", options="AddOptions", inputs=[wide, emit.int32([-x.dtype.limits[0]])], outputs=[indices])
        results = self.every_result(x.dtype)
        entries = emit.constant(results, y.with_shape(results.shape))
        emit.add("GATHER", options="GatherOptions", inputs=[entries, indices], version=2)


def look_up(node: AtenNode, x: Tensor, function: RealFunction, y: QParams) -> Tensor:
    """A function of every element of x; for int16, several tables if one is not accurate enough.

    x -> table -> y                     x -> table ──────────────────────┬ add -> y
                                          -> requantize(32 x) -> table ──┘     (near zero; elsewhere 32 (x - center))
    """
    if x.type.dtype is DType.INT8:
        return node.emit(LookupTable(table_entries(function, x.type, y)), x, qparams=y)
    scale, step = x.type.scale, y.scale[0]
    result: Tensor | None = None
    for part in parts_of(lambda q: np.asarray(function(q * scale)) / step, wide_table_entries(function, x.type, y)):
        finer = QParams.per_tensor(scale / part.gain, 0)
        operand = x
        if part.center:
            scalar = TensorType((1,) * x.type.rank, x.type.dtype, x.type.qparams)
            center = node.constant(np.full(scalar.shape, part.center), scalar)
            operand = node.emit(Sub(), x, center, qparams=finer)
        elif part.gain != 1:
            operand = node.emit(Requantize(DType.INT16), x, qparams=finer)
        made = node.emit(LookupTable(part.entries), operand, qparams=y)
        result = made if result is None else node.emit(Add(), result, made, qparams=y)
    assert result is not None
    return result


# ---------------------------------------------------------------- registration

Steps = Callable[["AtenNode", "Tensor", RealFunction], "Tensor"]


def in_steps(node: AtenNode, x: Tensor, function: RealFunction) -> Tensor:
    return staircase(node, x, function, node.output)


def in_whole_numbers(node: AtenNode, x: Tensor, function: RealFunction) -> Tensor:
    return rounded(node, x, node.output)


def in_lines(node: AtenNode, x: Tensor, function: RealFunction) -> Tensor:
    return look_up(node, x, function, node.output)


def refused(node: AtenNode, x: Tensor, function: RealFunction) -> Tensor:
    raise refusal(node, "has steps")


def unary(
    *overloads: str,
    facts: Facts,
    quantization: QuantizationRule | None = None,
    steps: Steps | None = None,
    x: str = "self",
) -> Callable[[Callable[[AtenArguments], RealFunction]], Callable[[AtenArguments], RealFunction]]:
    """Register a real function under ATen overloads; the decorated definition returns it for the arguments of a call.

    Args:
        facts: what holds for its results; that it is element by element is not stated.
        quantization: annotation rule; default: own observer.
        steps: makes the operators of a step function for an int16 operand.
        x: name of the operand in the schema.
    """

    def register(definition: Callable[[AtenArguments], RealFunction]) -> Callable[[AtenArguments], RealFunction]:
        rule, stated = quantization or own_qparams(), replace(facts, elementwise=True)

        @imports(*overloads, quantization=rule, moves_only=False, is_table=True, facts=stated, x=x)
        def build(node: AtenNode) -> Tensor:
            operand = node.tensor("x")
            if steps is not None and operand.type.dtype is DType.INT16:
                return steps(node, operand, definition(node))
            return look_up(node, operand, definition(node), node.output)

        return definition

    return register


def places(name: str) -> tuple[str, str]:
    """The overloads of a function whose only argument is its operand."""
    return f"{name}.default", f"{name}_.default"
