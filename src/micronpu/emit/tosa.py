"""Write a graph as TOSA (version 1.0).

Operators write themselves with the functions of `TosaEmitter`, one per TOSA operator, which return the result tensor.
Nothing is serialized before the whole graph is written.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

import numpy as np
import numpy.typing as npt

from micronpu.base.arrays import Array
from micronpu.base.errors import InternalError, UnsupportedError
from micronpu.emit import tosa_schema as schema
from micronpu.emit.tosa_file import NUMPY, SHAPE, TosaOperator, TosaTensor, serialized
from micronpu.emit.written import WrittenModel
from micronpu.ir.arithmetic import quantize_multiplier, quantize_multipliers
from micronpu.ir.graph import Graph, Node, Tensor
from micronpu.ir.types import DType, TensorType
from micronpu.ir.window import Size2d

__all__ = ["MAX_RANK", "TosaEmitter", "TosaTensor", "accumulator"]

MAX_RANK = 6
"""Maximum rank of a tensor (level 8K of the specification)."""

_NAMES = {DType.INT8: "INT8", DType.UINT8: "INT8", DType.INT16: "INT16", DType.INT32: "INT32", DType.BOOL: "BOOL"}
"""Byte tensors are INT8 in TOSA; RESCALE declares whether they are unsigned."""


class TosaEmitter:
    """Writes the operators of a graph; one node at a time is the current node.

    Strengths of Vela, the only compiler of TOSA programs so far, select one of several forms of an operator.

    Attributes:
        LONGEST_STRIDE: of windows with padding; for longer strides the padding is a separate operator.
        LONGEST_DILATION: of a kernel; larger dilations become zeros between the weights.
        LARGEST_KERNEL: maximum height of a convolution's kernel; its maximum area is the square.
        PRODUCTS_PER_COPY: multiplications that cost as much as copying an element.
        MOST_INPUTS: maximum input channels of a convolution.
        ENLARGING: factors by which images grow without copies, if equal for height and width.
    """

    LONGEST_STRIDE, LONGEST_DILATION, LARGEST_KERNEL = 3, 2, 64
    PRODUCTS_PER_COPY, MOST_INPUTS = 128, 65536
    ENLARGING = (2, 4, 8)
    IGNORE_NAN = schema.NanPropagationMode.IGNORE
    """Argument of comparisons, which has no effect on integers."""

    def __init__(self) -> None:
        self._tensors: dict[Tensor, TosaTensor] = {}
        self._constants: dict[Hashable, TosaTensor] = {}
        self._operators: list[TosaOperator] = []
        self._unsigned: set[TosaTensor] = set()
        self._node: Node | None = None
        self._node_index = -1
        self._count = 0

    # -- for operators

    def input_type(self, index: int) -> TensorType:
        """Type of an operand of the current node."""
        return self._current.inputs[index].type

    @property
    def output_type(self) -> TensorType:
        """Type of the current node's result."""
        return self._current.output.type

    @property
    def operands(self) -> tuple[TosaTensor, ...]:
        return tuple(self.input(i) for i in range(len(self._current.inputs)))

    def input(self, index: int) -> TosaTensor:
        """An operand of the current node."""
        if self.input_type(index).dtype is DType.UINT8:
            raise UnsupportedError(f"`{self._current.op.name}` has no TOSA form with bytes without sign.")
        return self._of(self._current.inputs[index])

    def bits(self, index: int) -> TosaTensor:
        """An operand of the current node that may be unsigned bytes, for `rescale` with ``unsigned``."""
        return self._of(self._current.inputs[index])

    def constant_input(self, index: int) -> Array:
        """Return the value of a constant operand; raise `UnsupportedError` if it is computed at run time."""
        data = self._current.inputs[index].data
        if data is None:
            role = self._current.op.operand_names[index]
            raise UnsupportedError(
                f"`{self._current.op.name}` has no TOSA form with a `{role}` that is computed at run time."
            )
        return data

    # -- constants

    def constant(self, value: npt.ArrayLike, dtype: str = "INT8") -> TosaTensor:
        """A constant that exists in TOSA only; equal ones are written once."""
        array = np.asarray(value)
        data = np.ascontiguousarray(array.astype(NUMPY[dtype])).reshape(array.shape)
        if (data != array).any():
            raise InternalError(f"A TOSA constant of type {dtype} cannot hold {array.min()} to {array.max()}.")
        return self._shared(data, dtype)

    def number(self, value: int, dtype: str = "INT8") -> TosaTensor:
        """A tensor of one element, TOSA's form of zero points and shifts."""
        return self.constant([value], dtype)

    def sizes(self, values: Sequence[int]) -> TosaTensor:
        """A constant shape operand."""
        return self._shared(np.array(values, np.int64), SHAPE)

    def _shared(self, data: Array, dtype: str) -> TosaTensor:
        key = (dtype, data.shape, data.tobytes())
        if key not in self._constants:
            self._constants[key] = TosaTensor(f"constant_{len(self._constants)}", data.shape, dtype, data)
        return self._constants[key]

    # -- operators

    def add(
        self, name: str, inputs: Sequence[TosaTensor], shape: Sequence[int], dtype: str, *arguments: object
    ) -> TosaTensor:
        """Append a TOSA operator for the current node and return its result; see `TosaOperator`."""
        self._count += 1
        output = TosaTensor(f"{self._current.output.name}/{self._count}", tuple(int(n) for n in shape), dtype)
        if output.rank > MAX_RANK:
            raise UnsupportedError(
                f"`{self._current.op.name}` of a tensor of rank {output.rank} has no TOSA form, which has up to "
                f"{MAX_RANK} axes.",
                hint="join axes with a reshape",
            )
        self._operators.append(TosaOperator(name, tuple(inputs), output, arguments, self._node_index))
        return output

    def elementwise(self, name: str, x: TosaTensor, z: TosaTensor, dtype: str, *arguments: object) -> TosaTensor:
        """A binary operator; missing leading axes of an operand are added."""
        operands, shape = self._aligned(x, z)
        return self.add(name, operands, shape, dtype, *arguments)

    def multiply(self, x: TosaTensor, z: TosaTensor, shift: int = 0) -> TosaTensor:
        """Product of int32 tensors, shifted right with rounding to nearest."""
        operands, shape = self._aligned(x, z)
        return self.add("MUL", (*operands, self.number(shift, "INT8")), shape, "INT32")

    def _aligned(self, *operands: TosaTensor) -> tuple[tuple[TosaTensor, ...], Sequence[int]]:
        """Operands of one rank, and the shape to which they broadcast."""
        rank = max(t.rank for t in operands)
        made = tuple(self.reshape(t, (1,) * (rank - t.rank) + t.shape) for t in operands)
        return made, np.broadcast_shapes(*(t.shape for t in made))

    def reshape(self, x: TosaTensor, shape: Sequence[int]) -> TosaTensor:
        """x with another shape; x itself if it has that shape."""
        if tuple(shape) == x.shape:
            return x
        if x.data is not None:
            return self._shared(x.data.reshape(tuple(shape)), x.dtype)
        return self.add("RESHAPE", (x, self.sizes(shape)), shape, x.dtype)

    def image(self, x: TosaTensor) -> TosaTensor:
        """x as [1, 1, rows, channels]; channels are the last axis."""
        return self.reshape(x, (1, 1, math.prod(x.shape[:-1]), x.shape[-1]))

    def transpose(self, x: TosaTensor, permutation: Sequence[int]) -> TosaTensor:
        return self.add("TRANSPOSE", (x,), [x.shape[i] for i in permutation], x.dtype, list(permutation))

    def concat(self, parts: Sequence[TosaTensor], axis: int) -> TosaTensor:
        """Concatenate the parts; return a single part as it is."""
        if len(parts) == 1:
            return parts[0]
        shape = list(parts[0].shape)
        shape[axis] = sum(part.shape[axis] for part in parts)
        return self.add("CONCAT", parts, shape, parts[0].dtype, axis)

    def slice(self, x: TosaTensor, begin: Sequence[int], size: Sequence[int]) -> TosaTensor:
        """A slice of a tensor; x itself if it covers all of it."""
        if tuple(size) == x.shape:
            return x
        return self.add("SLICE", (x, self.sizes(begin), self.sizes(size)), size, x.dtype)

    def pad(self, x: TosaTensor, before: Sequence[int], after: Sequence[int], value: int) -> TosaTensor:
        amounts = [side for pair in zip(before, after, strict=True) for side in pair]
        shape = [b + n + a for b, n, a in zip(before, x.shape, after, strict=True)]
        return self.add("PAD", (x, self.sizes(amounts), self.number(value, x.dtype)), shape, x.dtype)

    def reverse(self, x: TosaTensor, axis: int) -> TosaTensor:
        return self.add("REVERSE", (x,), x.shape, x.dtype, axis)

    def clamp(self, x: TosaTensor, low: int, high: int) -> TosaTensor:
        """x clamped between two bounds; x itself if they are those of its type."""
        limits = np.iinfo(NUMPY[x.dtype])
        if low <= limits.min and high >= limits.max:
            return x
        bounds = [np.array([bound], NUMPY[x.dtype]).tobytes() for bound in (low, high)]
        return self.add("CLAMP", (x,), x.shape, x.dtype, *bounds, self.IGNORE_NAN)

    def table(self, x: TosaTensor, values: npt.ArrayLike) -> TosaTensor:
        """Look up int8 elements in a table; entry i is for the element i - 128.

        The table for int16 elements has 513 entries with linear interpolation (`micronpu.ir.arithmetic.wide_lookup`).
        """
        entries = self.constant(np.asarray(values), x.dtype)
        if x.dtype == "INT16" and entries.shape == (513,):
            steepest = np.abs(np.diff(np.asarray(values, np.int64))).max()
            if steepest > DType.INT16.limits[1]:
                raise UnsupportedError(
                    f"The table of `{self._current.op.name}` rises by {steepest} between two entries; TOSA has lines "
                    f"of at most {DType.INT16.limits[1]}.",
                    hint="calibrate with data that stays away from where the function jumps",
                )
            fine = self.add("TABLE", (x, entries), x.shape, "INT32")
            return self.rescale(fine, "INT16", [1 << 30], [37], rounding="SINGLE_ROUND")  # 7 fraction bits
        if x.dtype != "INT8" or entries.shape != (256,):
            raise InternalError(f"A TOSA table of {entries.shape} entries does not fit elements of type {x.dtype}.")
        return self.add("TABLE", (x, entries), x.shape, "INT8")

    def reduce(self, name: str, x: TosaTensor, axes: Sequence[int]) -> TosaTensor:
        """REDUCE_SUM, REDUCE_MAX or REDUCE_MIN along axes, which keep size 1."""
        for axis in axes:
            x = self._reduce(name, x, axis)
        return x

    def _reduce(self, name: str, x: TosaTensor, axis: int) -> TosaTensor:
        shape = [1 if i == axis else n for i, n in enumerate(x.shape)]
        if name == "REDUCE_SUM":
            return self.add(name, (x,), shape, x.dtype, axis)
        rows, count = math.prod(shape), x.shape[axis]
        if axis == x.rank - 1 and rows > 1 and count > 1:
            # Rows are compared many at a time, but adjacent elements one by one.
            turned = self.transpose(self.reshape(x, (rows, count)), (1, 0))
            return self.reshape(self._reduce(name, turned, 0), shape)
        return self.add(name, (x,), shape, x.dtype, axis, self.IGNORE_NAN)

    def arg_max(self, x: TosaTensor) -> TosaTensor:
        """Index of the largest element along the last axis, as int32."""
        return self.add("ARGMAX", (x,), x.shape[:-1], "INT32", x.rank - 1, self.IGNORE_NAN)

    # -- windows

    def convolution(
        self,
        name: str,
        x: TosaTensor,
        weight: TosaTensor,
        shape: Sequence[int],
        padding: Sequence[int],
        stride: Sequence[int],
        dilation: Sequence[int],
    ) -> TosaTensor:
        """CONV2D or DEPTHWISE_CONV2D with the current node's bias and zero point: the sums [N, OH, OW, O].

        Args:
            weight: [O, KH, KW, C], or [KH, KW, C, multiplier].
            shape: of the result.
            padding: top, bottom, left, right.
        """
        bias = self.bias(2, accumulator(x.dtype))
        zeros = (self.input_type(0).zero_point, 0)
        return self._convolution(name, (x, weight, bias), shape, zeros, padding, stride, dilation)

    def plain_convolution(
        self, x: TosaTensor, weight: TosaTensor, shape: Sequence[int], zeros: tuple[int, int], name: str = "CONV2D"
    ) -> TosaTensor:
        """A convolution without bias, padding and stride; ``zeros`` are the zero points of x and of the weights."""
        bias = self.number(0, accumulator(x.dtype))
        return self._convolution(name, (x, weight, bias), shape, zeros, (0, 0, 0, 0), (1, 1), (1, 1))

    def _convolution(
        self,
        name: str,
        operands: tuple[TosaTensor, TosaTensor, TosaTensor],
        shape: Sequence[int],
        zeros: tuple[int, int],
        padding: Sequence[int],
        stride: Sequence[int],
        dilation: Sequence[int],
    ) -> TosaTensor:
        x, weight, bias = operands
        numbers = (self.number(zeros[0], x.dtype), self.number(zeros[1], weight.dtype))
        arguments = (list(padding), list(stride), list(dilation), False, schema.DType[bias.dtype])
        return self.add(name, (*operands, *numbers), shape, bias.dtype, *arguments)

    def matmul(self) -> TosaTensor:
        """Product [B, M, K] x [B, K, N] of the current node's operands, after subtracting their zero points."""
        x, z = self.input(0), self.input(1)
        zeros = [self.number(self.input_type(i).zero_point, t.dtype) for i, t in enumerate((x, z))]
        shape = (x.shape[0], x.shape[1], z.shape[2])
        return self.add("MATMUL", (x, z, *zeros), shape, accumulator(x.dtype))

    def resize(
        self,
        x: TosaTensor,
        size: Sequence[int],
        scales: Sequence[int],
        offsets: Sequence[int],
        borders: Sequence[int],
        mode: str,
    ) -> TosaTensor:
        """RESIZE of [N, H, W, C]; "BILINEAR" returns sums in units of the product of both scales.

        Args:
            size: height and width of the result.
            scales: numerator and denominator of the scale factor, for height, then for width.
        """
        dtype = x.dtype if mode == "NEAREST" else {"INT8": "INT32", "INT16": "INT48"}[x.dtype]
        operands = (x, self.sizes(scales), self.sizes(offsets), self.sizes(borders))
        shape = (x.shape[0], *size, x.shape[3])
        return self.add("RESIZE", operands, shape, dtype, schema.ResizeMode[mode])

    def bias(self, index: int, dtype: str) -> TosaTensor:
        """The bias of the current node in the type of its sums; one number if all channels are equal."""
        data = self.constant_input(index)
        return self.constant(data[:1] if (data == data.flat[0]).all() else data, dtype)

    def max_pool(
        self, x: TosaTensor, shape: Sequence[int], kernel: Size2d, stride: Size2d, padding: Sequence[int]
    ) -> TosaTensor:
        return self.add("MAX_POOL2D", (x,), shape, x.dtype, list(kernel), list(stride), list(padding), self.IGNORE_NAN)

    def average_pool(
        self, x: TosaTensor, shape: Sequence[int], kernel: Size2d, stride: Size2d, padding: Sequence[int]
    ) -> TosaTensor:
        """Mean of each window, with ties away from zero; padding is not counted."""
        zero = self.number(0, x.dtype)
        arguments = (list(kernel), list(stride), list(padding), schema.DType.INT32)
        return self.add("AVG_POOL2D", (x, zero, zero), shape, x.dtype, *arguments)

    # -- changes of scale

    def rescale(
        self,
        x: TosaTensor,
        dtype: str,
        multipliers: Sequence[int],
        shifts: Sequence[int],
        *,
        zeros: tuple[int, int] = (0, 0),
        rounding: str = "DOUBLE_ROUND",
        unsigned: tuple[bool, bool] = (False, False),
    ) -> TosaTensor:
        """``(x - zeros[0]) * multiplier * 2**-shift + zeros[1]``, saturated to ``dtype``.

        Args:
            multipliers, shifts: one, or one per channel; shifts to the right, as in TOSA. 48-bit numbers use the
                highest 15 bits of the multipliers.
            rounding: "SINGLE_ROUND" to nearest with ties up, or "DOUBLE_ROUND", which equals
                `multiply_by_quantized_multiplier` bit for bit.
            unsigned: True if x, and if the result, is unsigned.
        """
        wide = x.dtype != "INT48"
        if not wide:
            # Same as `multiply_wide`: TOSA has 15-bit multipliers here. Below 2**-62 every 48-bit number becomes zero.
            pairs = [(min((m + (1 << 15)) >> 16, 0x7FFF), s - 16) for m, s in zip(multipliers, shifts, strict=True)]
            multipliers, shifts = [m if s <= 62 else 0 for m, s in pairs], [min(s, 62) for _, s in pairs]
        if not all(2 <= s <= 62 for s in shifts):
            raise UnsupportedError(
                f"`{self._current.op.name}` scales its operands by 2**{31 - min(shifts)}, where TOSA has factors from "
                "2**-31 to 2**29.",
                hint="calibrate with data for which the result is not close to zero everywhere",
            )
        zeros = (_as_bits(zeros[0], unsigned[0]), _as_bits(zeros[1], unsigned[1]))
        per_channel = len(set(zip(multipliers, shifts, strict=True))) > 1
        if not per_channel:
            multipliers, shifts = multipliers[:1], shifts[:1]
        operands = (
            x,
            self.constant(list(multipliers), "INT32" if wide else "INT16"),
            self.constant(list(shifts), "INT8"),
            self.number(zeros[0], x.dtype),
            self.number(zeros[1], dtype),
        )
        made = self.add(
            "RESCALE", operands, x.shape, dtype, wide, schema.RoundingMode[rounding], per_channel, *unsigned
        )
        if unsigned[1]:
            self._unsigned.add(made)
        return made

    def shift_bytes(self) -> TosaTensor:
        """Convert the current node's operand between signed and unsigned bytes by adding or subtracting 128."""
        x, y = self.input_type(0), self.output_type
        unsigned = (x.dtype is DType.UINT8, y.dtype is DType.UINT8)
        zeros = (x.zero_point, y.zero_point)
        return self.rescale(
            self.bits(0), _NAMES[y.dtype], [1 << 30], [30], zeros=zeros, rounding="SINGLE_ROUND", unsigned=unsigned
        )

    def centered(self, index: int) -> TosaTensor:
        """An operand minus its zero point, as int32."""
        return self.wide(self.input(index), self.input_type(index).zero_point)

    def wide(self, x: TosaTensor, zero: int) -> TosaTensor:
        """x minus its zero point, as int32."""
        return self.rescale(x, "INT32", [1 << 30], [30], zeros=(zero, 0), rounding="SINGLE_ROUND")

    def scaled(self, x: TosaTensor, factor: float) -> TosaTensor:
        """int32 numbers times a real number, rounded like LiteRT."""
        multiplier, shift = quantize_multiplier(factor)
        return self.rescale(x, "INT32", [multiplier], [31 - shift])

    def requantize(self, x: TosaTensor, factors: Sequence[float], limits: tuple[int, int], zero: int = 0) -> TosaTensor:
        """x, with zero point ``zero``, times real numbers, in the result's qparams, rounded like LiteRT.

        Args:
            factors: one, or one per channel.
            limits: smallest and largest integer of the result.
        """
        return self.requantize_by(*quantize_multipliers(factors), x, limits, zero)

    def requantize_by(
        self, multipliers: Sequence[int], shifts: Sequence[int], x: TosaTensor, limits: tuple[int, int], zero: int = 0
    ) -> TosaTensor:
        """Same as `requantize`, with the output of `quantize_multiplier`."""
        y = self.output_type
        if x.dtype == "INT48":
            right = [31 - s for s in shifts]
            zeros = (0, y.zero_point)
            made = self.rescale(x, _NAMES[y.dtype], multipliers, right, zeros=zeros, rounding="SINGLE_ROUND")
            return self.clamp(made, *limits)
        return self.clamp(self._bounded(x, multipliers, shifts, zero, "DOUBLE_ROUND"), *limits)

    def _bounded(
        self, x: TosaTensor, multipliers: Sequence[int], shifts: Sequence[int], zero: int, rounding: str
    ) -> TosaTensor:
        """x rescaled to the result's qparams by multipliers and left shifts."""
        y = self.output_type
        # A number other than zero saturates if the factor exceeds the range of the type, and TOSA requires products
        # with the factor to fit into int32.
        most = 8 * y.dtype.size + 2
        pairs = [(m, s) if s <= most else (1 << 30, most) for m, s in zip(multipliers, shifts, strict=True)]
        right = [31 - s for _, s in pairs]
        zeros = (zero, y.zero_point)
        return self.rescale(x, _NAMES[y.dtype], [m for m, _ in pairs], right, zeros=zeros, rounding=rounding)

    def requantize_once(self, x: TosaTensor, factors: Sequence[float], limits: tuple[int, int]) -> TosaTensor:
        """x times real numbers, in the result's qparams, rounded once to nearest with ties away from zero.

        The multiplier exceeds the real factor by less than a relative 2**-30. This moves exact ties away from zero and
        changes nothing else, unless a result is closer to a tie than that. A 48-bit accumulator uses a 15-bit
        multiplier, so that an int16 result is off by at most one.
        """
        if x.dtype == "INT48":
            return self.requantize(x, factors, limits)
        pairs = [(math.floor(fraction * 2**31) + 1, shift) for fraction, shift in map(math.frexp, factors)]
        pairs = [(m, s) if m < 2**31 else (2**30 + 1, s + 1) for m, s in pairs]
        multipliers, shifts = zip(*((m, s) if s >= -31 else (0, 0) for m, s in pairs), strict=True)
        return self.clamp(self._bounded(x, multipliers, shifts, 0, "SINGLE_ROUND"), *limits)

    def result(self, x: TosaTensor) -> TosaTensor:
        """An int32 number with the result's scale and zero point 0: add the zero point and saturate."""
        y = self.output_type
        return self.rescale(x, _NAMES[y.dtype], [1 << 30], [30], zeros=(0, y.zero_point), rounding="SINGLE_ROUND")

    # -- traversal

    def write(self, graph: Graph, numbers: Sequence[int] | None = None) -> WrittenModel:
        """Return the model of a graph; its nodes have numbers in `WrittenModel.nodes`, by default their positions."""
        for index, node in enumerate(graph.nodes):
            self._node, self._node_index = node, index if numbers is None else numbers[index]
            first = len(self._operators)
            made = node.op.to_tosa(self)
            is_unsigned = node.output.type.dtype is DType.UINT8
            if is_unsigned != (made in self._unsigned):
                raise UnsupportedError(f"`{node.op.name}` has no TOSA form with bytes without sign.")
            if made.shape != node.output.shape or made.dtype != _NAMES[node.output.type.dtype]:
                raise InternalError(f"The TOSA form of `{node}` makes {made.dtype}{list(made.shape)}.")
            if not any(operator.output is made for operator in self._operators[first:]):
                # Copy a result that is the node's own operand, because it may be an output.
                made = self.add("IDENTITY", (made,), made.shape, made.dtype)
            made.name = node.output.name
            self._tensors[node.output] = made
        self._node = None
        return serialized([self._of(t) for t in graph.inputs], [self._of(t) for t in graph.outputs], self._operators)

    @property
    def _current(self) -> Node:
        if self._node is None:
            raise InternalError("No node is being written.")
        return self._node

    def _of(self, tensor: Tensor) -> TosaTensor:
        if tensor not in self._tensors:
            if tensor.type.dtype not in _NAMES:
                raise UnsupportedError(f"TOSA has no tensors of type {tensor.type.dtype.value}, as {tensor} is.")
            data = None if tensor.data is None else np.ascontiguousarray(tensor.data).reshape(tensor.shape)
            self._tensors[tensor] = TosaTensor(tensor.name, tensor.shape, _NAMES[tensor.type.dtype], data)
        return self._tensors[tensor]


def _as_bits(zero: int, unsigned: bool) -> int:
    """Convert a zero point of unsigned bytes to a signed byte."""
    return (zero + 128) % 256 - 128 if unsigned else zero


def accumulator(dtype: str) -> str:
    """Type of the sums of products of activations and int8 weights."""
    return "INT48" if dtype == "INT16" else "INT32"
