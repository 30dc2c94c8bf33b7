"""Lookup tables of functions of one element: of 256 int8 results, or of 513 int16 ones.

The importer evaluates a function at the 256 values of the operand, so that the NPU computes any function in one
operation. For an int16 operand it is evaluated at every 128th value, with linear interpolation; step functions are
composed of other operators (`micronpu.ops.steps`). The functions are defined in `micronpu.ops.tables.functions` and
`micronpu.ops.comparisons`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from micronpu.base.errors import InternalError
from micronpu.ir.arithmetic import wide_lookup, wide_lookup_table
from micronpu.ir.aten import AtenArguments, AtenNode
from micronpu.ir.graph import Tensor
from micronpu.ir.op import QuantizationRule, Value, own_qparams
from micronpu.ir.registry import imports, operator
from micronpu.ir.types import DType, QParams, TensorType
from micronpu.ops.elementwise import Add, Sub
from micronpu.ops.pointwise import Elementwise
from micronpu.ops.quantization import Requantize
from micronpu.ops.steps import refusal, rounded, staircase
from micronpu.ops.tables.finer_tables import continued, parts_of

if TYPE_CHECKING:
    from micronpu.emit.litert import LiteRtEmitter
    from micronpu.emit.tosa import TosaEmitter, TosaTensor

Reals = npt.NDArray[Any]
RealFunction = Callable[[Reals], Reals]

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

    entries = [int(v) for v in wide_lookup_table(finite, x.scale, 0, y.scale[0], 0)]
    steepest = DType.INT16.limits[1]
    for i in range(1, len(entries)):
        entries[i] = min(max(entries[i], entries[i - 1] - steepest), entries[i - 1] + steepest)
    return tuple(entries)


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
    def array(self) -> npt.NDArray[Any]:
        """The entries as int8 [256] or int16 [513]."""
        return np.array(self.entries, np.int8 if len(self.entries) == ENTRIES[DType.INT8] else np.int16)

    def every_result(self, x: DType) -> npt.NDArray[Any]:
        """Results for all elements of a type, from the lowest to the highest."""
        low, high = x.limits
        if x is DType.INT8:
            return self.array
        return wide_lookup(self.array, np.arange(low, high + 1)).astype(np.int16)

    def reference(self, y: TensorType, x: Value) -> npt.NDArray[Any]:
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
    *overloads: str, quantization: QuantizationRule | None = None, steps: Steps | None = None, x: str = "self"
) -> Callable[[Callable[[AtenArguments], RealFunction]], Callable[[AtenArguments], RealFunction]]:
    """Register a real function under ATen overloads; the decorated definition returns it for the arguments of a call.

    Args:
        quantization: annotation rule; default: own observer.
        steps: makes the operators of a step function for an int16 operand.
        x: name of the operand in the schema.
    """

    def register(definition: Callable[[AtenArguments], RealFunction]) -> Callable[[AtenArguments], RealFunction]:
        @imports(*overloads, quantization=quantization or own_qparams(), moves_only=False, is_table=True, x=x)
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
