"""Programs of one or two TOSA operators, among them those that no operator of ours is written with.

They reach what Vela can ask of an Ethos-U85 beyond our own operators: integers of 32 and 48 bits, comparisons and
logic, gather and scatter, every rounding.  TOSA's reference model says what they compute.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np

from micronpu.emit.tosa_file import NUMPY, TosaOperator, TosaTensor, serialized
from micronpu.emit.tosa_schema import DType, NanPropagationMode, ResizeMode, RoundingMode

Array = np.ndarray[Any, Any]
IGNORE_NAN = NanPropagationMode.IGNORE


@dataclass
class Builder:
    """Writes operators one after the other; the first dimension is as TOSA wants it."""

    operators: list[TosaOperator] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=count)

    def constant(self, values: Any, dtype: str = "INT8") -> TosaTensor:
        data = np.ascontiguousarray(np.asarray(values).astype(NUMPY.get(dtype, np.dtype(np.int64))))
        return TosaTensor(f"constant_{next(self.numbers)}", data.shape, dtype, data)

    def sizes(self, *values: int) -> TosaTensor:
        return self.constant(list(values), "SHAPE")

    def __call__(
        self,
        name: str,
        inputs: Sequence[TosaTensor],
        shape: Sequence[int],
        dtype: str,
        *arguments: Any,
    ) -> TosaTensor:
        output = TosaTensor(f"{name.lower()}_{next(self.numbers)}", tuple(shape), dtype)
        self.operators.append(TosaOperator(name, tuple(inputs), output, arguments, 0))
        return output

    def rescale(
        self,
        x: TosaTensor,
        dtype: str,
        factor: float | Sequence[float] = 1.0,
        zeros: tuple[int, int] = (0, 0),
        rounding: str = "SINGLE_ROUND",
        wide: bool = True,
        unsigned: tuple[bool, bool] = (False, False),
    ) -> TosaTensor:
        """RESCALE; ``wide``: multipliers of 32 bits, otherwise 16; ``unsigned``: input and output."""
        factors = np.atleast_1d(np.asarray(factor, np.float64))
        fraction, exponent = np.frexp(factors)
        bits = 31 if wide else 15
        multipliers = np.minimum(np.round(fraction * 2.0**bits), 2.0**bits - 1).astype(np.int64)
        operands = (
            x,
            self.constant(multipliers, "INT32" if wide else "INT16"),
            self.constant(bits - exponent, "INT8"),
            self.constant([zeros[0]], x.dtype if x.dtype != "INT48" else "INT48"),
            self.constant([zeros[1]], dtype),
        )
        mode = RoundingMode[rounding]
        return self("RESCALE", operands, x.shape, dtype, wide, mode, len(factors) > 1, *unsigned)


@dataclass(frozen=True)
class Input:
    shape: tuple[int, ...]
    dtype: str = "INT8"
    low: int | None = None
    high: int | None = None

    def values(self, random: np.random.Generator) -> Array:
        kind = NUMPY[self.dtype]
        if kind == np.bool_:
            return random.integers(0, 2, self.shape).astype(kind)
        low = np.iinfo(kind).min if self.low is None else self.low
        high = np.iinfo(kind).max if self.high is None else self.high
        return random.integers(low, high + 1, self.shape, dtype=np.int64).astype(kind)


@dataclass(frozen=True)
class Row:
    """A program: inputs and what is made of them."""

    name: str
    inputs: tuple[Input, ...]
    build: Callable[..., TosaTensor]

    def model(self) -> bytes:
        builder = Builder()
        tensors = [TosaTensor(f"input_{i}", x.shape, x.dtype) for i, x in enumerate(self.inputs)]
        result = self.build(builder, *tensors)
        return serialized(tensors, [result], builder.operators).data

    def samples(self) -> list[list[Array]]:
        random = np.random.default_rng(0)
        return [[x.values(random) for x in self.inputs] for _ in range(2)]


ROWS: list[Row] = []


def row(name: str, *inputs: Input) -> Callable[[Callable[..., TosaTensor]], None]:
    def keep(build: Callable[..., TosaTensor]) -> None:
        ROWS.append(Row(name, inputs, build))

    return keep


def add(name: str, inputs: Sequence[Input], build: Callable[..., TosaTensor]) -> None:
    ROWS.append(Row(name, tuple(inputs), build))


def binary(operator: str, result: str = "", *arguments: Any) -> Callable[..., TosaTensor]:
    def build(b: Builder, x: TosaTensor, z: TosaTensor) -> TosaTensor:
        shape = np.broadcast_shapes(x.shape, z.shape)
        return b(operator, (x, z), shape, result or x.dtype, *arguments)

    return build


def unary(operator: str, result: str = "", *arguments: Any) -> Callable[..., TosaTensor]:
    def build(b: Builder, x: TosaTensor) -> TosaTensor:
        return b(operator, (x,), x.shape, result or x.dtype, *arguments)

    return build


SHAPE = (1, 5, 6, 19)
SHAPES = [(SHAPE, SHAPE), (SHAPE, (1, 1, 1, 19)), ((1, 5, 1, 1), SHAPE), (SHAPE, (1, 1, 1, 1)), ((1, 1, 6, 1), SHAPE)]
BIG = 2**30 - 1

for number, (first, second) in enumerate(SHAPES):
    wide = Input(first, "INT32", -BIG, BIG), Input(second, "INT32", -BIG, BIG)
    for operator in ("ADD", "SUB"):
        add(f"{operator.lower()}_{number}", wide, binary(operator))
    for operator in ("MAXIMUM", "MINIMUM"):
        add(f"{operator.lower()}_{number}", wide, binary(operator, "", IGNORE_NAN))
    near = Input(first, "INT32", -3, 3), Input(second, "INT32", -3, 3)
    for operator in ("EQUAL", "GREATER", "GREATER_EQUAL"):
        add(f"{operator.lower()}_{number}", near, binary(operator, "BOOL"))
        add(f"{operator.lower()}_{number}_wide", wide, binary(operator, "BOOL"))

for dtype in ("INT8", "INT16", "INT32"):
    pair = Input(SHAPE, dtype), Input(SHAPE, dtype)
    for operator in ("BITWISE_AND", "BITWISE_OR", "BITWISE_XOR"):
        add(f"{operator.lower()}_{dtype}", pair, binary(operator))
    add(f"bitwise_not_{dtype}", pair[:1], unary("BITWISE_NOT"))
    bits = NUMPY[dtype].itemsize * 8
    shift = Input(SHAPE, dtype, 0, bits - 1)
    for rounds in (False, True):
        amount = Input(SHAPE, dtype, int(rounds), bits - 1)
        add(
            f"arithmetic_right_shift_{dtype}_{rounds}",
            (pair[0], amount),
            binary("ARITHMETIC_RIGHT_SHIFT", "", rounds),
        )
    add(f"logical_right_shift_{dtype}", (pair[0], shift), binary("LOGICAL_RIGHT_SHIFT"))
    add(f"logical_left_shift_{dtype}", (pair[0], shift), binary("LOGICAL_LEFT_SHIFT"))

    @row(f"mul_{dtype}", Input(SHAPE, dtype, -30000, 30000) if dtype == "INT32" else pair[0], pair[1])
    def _(b: Builder, x: TosaTensor, z: TosaTensor) -> TosaTensor:
        if x.dtype == "INT32":
            z = b("ARITHMETIC_RIGHT_SHIFT", (z, b.constant([[[[16]]]], "INT32")), z.shape, "INT32", False)
        return b("MUL", (x, z, b.constant([0])), x.shape, "INT32")

    axes = [(0, 2, 1, 3), (0, 1, 3, 2), (0, 2, 3, 1), (0, 3, 1, 2), (0, 3, 2, 1)]
    for axis in axes:
        shape = tuple(SHAPE[i] for i in axis)

        @row(f"transpose_{dtype}_{axis}", Input(SHAPE, dtype))
        def _(b: Builder, x: TosaTensor, axis: Any = axis, shape: Any = shape) -> TosaTensor:
            return b("TRANSPOSE", (x,), shape, x.dtype, list(axis))

    for axis in (1, 2, 3):

        @row(f"reverse_{dtype}_{axis}", Input(SHAPE, dtype))
        def _(b: Builder, x: TosaTensor, axis: Any = axis) -> TosaTensor:
            return b("REVERSE", (x,), x.shape, x.dtype, axis)

    values, indices = Input((2, 11, 7), dtype), Input((2, 5), "INT32", 0, 10)
    add(f"gather_{dtype}", (values, indices), lambda b, v, i: b("GATHER", (v, i), (2, 5, 7), v.dtype))

    @row(f"scatter_{dtype}", values, Input((2, 5, 7), dtype))
    def _(b: Builder, v: TosaTensor, x: TosaTensor) -> TosaTensor:
        places = b.constant([[3, 0, 10, 7, 5], [1, 2, 9, 4, 0]], "INT32")
        return b("SCATTER", (v, places, x), v.shape, v.dtype)

    for axis in (1, 2, 3):
        reduced = tuple(1 if i == axis else n for i, n in enumerate(SHAPE))
        if dtype != "INT32":
            for operator in ("REDUCE_MAX", "REDUCE_MIN"):

                @row(f"{operator.lower()}_{dtype}_{axis}", Input(SHAPE, dtype))
                def _(
                    b: Builder, x: TosaTensor, axis: Any = axis, reduced: Any = reduced, operator: Any = operator
                ) -> TosaTensor:
                    return b(operator, (x,), reduced, x.dtype, axis, IGNORE_NAN)

            @row(f"argmax_{dtype}_{axis}", Input(SHAPE, dtype, -9, 9))
            def _(b: Builder, x: TosaTensor, axis: Any = axis) -> TosaTensor:
                kept = [n for i, n in enumerate(SHAPE) if i != axis]
                return b("ARGMAX", (x,), kept, "INT32", axis, IGNORE_NAN)
        else:

            @row(f"reduce_sum_{axis}", Input(SHAPE, dtype, -(2**20), 2**20))
            def _(b: Builder, x: TosaTensor, axis: Any = axis, reduced: Any = reduced) -> TosaTensor:
                return b("REDUCE_SUM", (x,), reduced, x.dtype, axis)

    @row(f"select_{dtype}", Input(SHAPE, "BOOL"), *pair)
    def _(b: Builder, condition: TosaTensor, x: TosaTensor, z: TosaTensor) -> TosaTensor:
        return b("SELECT", (condition, x, z), x.shape, x.dtype)

    @row(f"tile_{dtype}", Input(SHAPE, dtype))
    def _(b: Builder, x: TosaTensor) -> TosaTensor:
        return b("TILE", (x, b.sizes(1, 2, 3, 2)), (1, 10, 18, 38), x.dtype)

    @row(f"pad_slice_{dtype}", Input(SHAPE, dtype))
    def _(b: Builder, x: TosaTensor) -> TosaTensor:
        wide = b("PAD", (x, b.sizes(0, 0, 1, 2, 3, 0, 2, 1), b.constant([5], x.dtype)), (1, 8, 9, 22), x.dtype)
        return b("SLICE", (wide, b.sizes(0, 1, 2, 1), b.sizes(1, 6, 5, 20)), (1, 6, 5, 20), x.dtype)


@row("abs", Input(SHAPE, "INT32", -BIG, BIG))
def _(b: Builder, x: TosaTensor) -> TosaTensor:
    return b("ABS", (x,), x.shape, x.dtype)


@row("clz", Input(SHAPE, "INT32"))
def _(b: Builder, x: TosaTensor) -> TosaTensor:
    return b("CLZ", (x,), x.shape, x.dtype)


@row("clz_small", Input(SHAPE, "INT32", -2, 300))
def _(b: Builder, x: TosaTensor) -> TosaTensor:
    return b("CLZ", (x,), x.shape, x.dtype)


@row("negate", Input(SHAPE, "INT8"))
def _(b: Builder, x: TosaTensor) -> TosaTensor:
    return b("NEGATE", (x, b.constant([7]), b.constant([-3])), x.shape, x.dtype)


@row("intdiv", Input(SHAPE, "INT32", -BIG, BIG), Input(SHAPE, "INT32", 1, 1000))
def _(b: Builder, x: TosaTensor, z: TosaTensor) -> TosaTensor:
    return b("INTDIV", (x, z), x.shape, x.dtype)


for shift in (1, 15, 31, 40):

    @row(f"mul_shift_{shift}", Input(SHAPE, "INT32", -BIG, BIG), Input((1, 1, 1, 19), "INT32", -BIG, BIG))
    def _(b: Builder, x: TosaTensor, z: TosaTensor, shift: int = shift) -> TosaTensor:
        if shift < 31:  # the result must fit
            x = b("ARITHMETIC_RIGHT_SHIFT", (x, b.constant([[[[30 - shift]]]], "INT32")), x.shape, "INT32", False)
        return b("MUL", (x, z, b.constant([shift])), x.shape, "INT32")


for operator in ("LOGICAL_AND", "LOGICAL_OR", "LOGICAL_XOR"):
    add(operator.lower(), (Input(SHAPE, "BOOL"), Input(SHAPE, "BOOL")), binary(operator))
add("logical_not", (Input(SHAPE, "BOOL"),), unary("LOGICAL_NOT"))
for operator in ("REDUCE_ALL", "REDUCE_ANY"):

    @row(operator.lower(), Input((1, 3, 20, 2), "BOOL"))
    def _(b: Builder, x: TosaTensor, operator: str = operator) -> TosaTensor:
        return b(operator, (x,), (1, 3, 20, 1), "BOOL", 3)


for kind, to in [
    ("INT8", "INT8"), ("INT8", "INT16"), ("INT8", "INT32"), ("INT16", "INT8"), ("INT16", "INT16"), ("INT16", "INT32"),
    ("INT32", "INT8"), ("INT32", "INT16"), ("INT32", "INT32"),
]:  # fmt: skip
    for rounding in ("SINGLE_ROUND", "DOUBLE_ROUND"):
        for per_channel in (False, True):
            ratio = {"INT8": 2.0**8, "INT16": 2.0**16, "INT32": 2.0**32}
            scale = 0.7 * ratio[to] / ratio[kind] / (2 if to == "INT32" else 1)
            scales = [scale * 0.9**i for i in range(19)] if per_channel else scale

            @row(f"rescale_{kind}_{to}_{rounding}_{'channels' if per_channel else 'tensor'}", Input(SHAPE, kind))
            def _(
                b: Builder, x: TosaTensor, to: str = to, scales: Any = scales, rounding: str = rounding
            ) -> TosaTensor:
                zeros = (3 if x.dtype == "INT8" and to != "INT32" else 0, -5 if to == "INT8" else 0)
                return b.rescale(x, to, scales, zeros, rounding)

    if ratio[to] > ratio[kind]:
        continue  # beyond 16 bits of multiplier

    @row(f"rescale_{kind}_{to}_narrow", Input(SHAPE, kind))
    def _(b: Builder, x: TosaTensor, to: str = to, scale: float = scale) -> TosaTensor:
        return b.rescale(x, to, scale, wide=False)


for unsigned in ((True, False), (False, True)):

    @row(f"rescale_unsigned_{unsigned}", Input(SHAPE, "INT8"))
    def _(b: Builder, x: TosaTensor, unsigned: tuple[bool, bool] = unsigned) -> TosaTensor:
        zeros = (-128 if unsigned[0] else 0, -128 if unsigned[1] else 0)  # 128, as TOSA writes it
        return b.rescale(x, "INT8", 1.0, zeros, unsigned=unsigned)


@row("table", Input(SHAPE, "INT8"))
def _(b: Builder, x: TosaTensor) -> TosaTensor:
    values = np.random.default_rng(1).integers(-128, 128, 256)
    return b("TABLE", (x, b.constant(values)), x.shape, "INT8")


@row("table_wide", Input(SHAPE, "INT16"))
def _(b: Builder, x: TosaTensor) -> TosaTensor:
    values = np.round(30000 * np.sin(np.arange(513) / 40))
    return b("TABLE", (x, b.constant(values, "INT16")), x.shape, "INT32")


for kind in ("INT8", "INT16"):
    sums = {"INT8": "INT32", "INT16": "INT48"}[kind]
    for name, kernel, channels, stride, dilation in [
        ("1x1", (1, 1), (33, 40), 1, 1), ("3x3", (3, 3), (7, 20), 2, 1), ("9x9", (9, 9), (2, 5), 1, 1),
        ("5x3", (5, 3), (18, 70), 3, 1), ("dilated", (3, 3), (5, 9), 1, 2), ("tall", (70, 1), (2, 3), 1, 1),
        ("large", (66, 66), (1, 2), 1, 1),
    ]:  # fmt: skip
        size = [10 + (k - 1) * dilation for k in kernel] if stride != 2 else [11, 11]

        @row(f"conv_{kind}_{name}", Input((1, *size, channels[0]), kind))
        def _(
            b: Builder, x: TosaTensor, kernel: Any = kernel, channels: Any = channels, stride: int = stride,
            dilation: int = dilation, sums: str = sums,
        ) -> TosaTensor:  # fmt: skip
            random = np.random.default_rng(3)
            weight = b.constant(random.integers(-127, 128, (channels[1], *kernel, channels[0])))
            bias = b.constant(random.integers(-1000, 1000, channels[1]), sums)
            zeros = (b.constant([4 if x.dtype == "INT8" else 0], x.dtype), b.constant([0]))
            far = (x.shape[1] - (kernel[0] - 1) * dilation - 1) // stride + 1
            arguments = ([0, 0, 0, 0], [stride, stride], [dilation, dilation], False, DType[sums])
            y = b("CONV2D", (x, weight, bias, *zeros), (1, far, far, channels[1]), sums, *arguments)
            count = kernel[0] * kernel[1] * channels[0]
            narrow = x.dtype == "INT16"
            return b.rescale(
                y, x.dtype, 1 / (100 * count**0.5), rounding="SINGLE_ROUND" if narrow else "DOUBLE_ROUND",
                wide=not narrow,
            )  # fmt: skip

    @row(f"conv_{kind}_sums", Input((1, 6, 6, 12), kind))
    def _(b: Builder, x: TosaTensor, sums: str = sums) -> TosaTensor:
        weight = b.constant(np.random.default_rng(4).integers(-127, 128, (9, 3, 3, 12)))
        bias, zeros = b.constant([5], sums), (b.constant([0], x.dtype), b.constant([0]))
        arguments = ([1, 1, 1, 1], [1, 1], [1, 1], False, DType[sums])
        y = b("CONV2D", (x, weight, bias, *zeros), (1, 6, 6, 9), sums, *arguments)
        return y if sums == "INT32" else b.rescale(y, "INT32", 0.02, wide=False)

    for name, size, result, tap, pad, stride in [
        ("", (9, 8), (9, 8), 3, 1, 1),
        ("_stride_4", (13, 13), (3, 3), 5, 0, 4),
    ]:

        @row(f"depthwise_{kind}{name}", Input((1, *size, 21), kind))
        def _(
            b: Builder, x: TosaTensor, tap: int = tap, pad: int = pad, stride: int = stride, result: Any = result,
            sums: str = sums,
        ) -> TosaTensor:  # fmt: skip
            weight = b.constant(np.random.default_rng(4).integers(-127, 128, (tap, tap, 21, 1)))
            bias, zeros = b.constant(np.arange(21) * 9, sums), (b.constant([0], x.dtype), b.constant([0]))
            operands, arguments = (x, weight, bias, *zeros), ([pad] * 4, [stride] * 2, [1, 1], False)
            y = b(
                "DEPTHWISE_CONV2D", operands, (1, *result, 21), sums, *arguments, DType[sums]
            )  # fmt: skip
            return b.rescale(y, x.dtype, [0.003 * 0.95**i for i in range(21)], wide=x.dtype == "INT8")

    @row(f"transposed_{kind}", Input((1, 5, 6, 7), kind))
    def _(b: Builder, x: TosaTensor, sums: str = sums) -> TosaTensor:
        weight = b.constant(np.random.default_rng(4).integers(-127, 128, (9, 3, 3, 7)))
        bias, zeros = b.constant(np.arange(9) * 9, sums), (b.constant([0], x.dtype), b.constant([0]))
        arguments = ([0, 0, 0, 0], [2, 2], False, DType[sums])
        operands = (x, weight, bias, *zeros)
        y = b("TRANSPOSE_CONV2D", operands, (1, 11, 13, 9), sums, *arguments)
        return b.rescale(y, x.dtype, 0.003, wide=x.dtype == "INT8")

    @row(f"conv3d_{kind}", Input((1, 4, 6, 6, 5), kind))
    def _(b: Builder, x: TosaTensor, sums: str = sums) -> TosaTensor:
        weight = b.constant(np.random.default_rng(4).integers(-127, 128, (8, 3, 3, 3, 5)))
        bias, zeros = b.constant(np.arange(8) * 9, sums), (b.constant([0], x.dtype), b.constant([0]))
        arguments = ([0] * 6, [1] * 3, [1] * 3, False, DType[sums])
        y = b("CONV3D", (x, weight, bias, *zeros), (1, 2, 4, 4, 8), sums, *arguments)
        return b.rescale(y, x.dtype, 0.001, wide=x.dtype == "INT8")

    @row(f"matmul_{kind}", Input((2, 7, 21), kind), Input((2, 21, 13), kind))
    def _(b: Builder, x: TosaTensor, z: TosaTensor, sums: str = sums) -> TosaTensor:
        zeros = [b.constant([n if x.dtype == "INT8" else 0], x.dtype) for n in (3, -4)]
        y = b("MATMUL", (x, z, *zeros), (2, 7, 13), sums)
        return b.rescale(y, x.dtype, 0.003 if x.dtype == "INT8" else 1e-5, wide=x.dtype == "INT8")

    for window, step in [((2, 2), 2), ((3, 3), 1), ((8, 8), 1), ((9, 10), 1)]:
        out = tuple((20 - k) // step + 1 for k in window)

        @row(f"average_{kind}_{window}", Input((1, 20, 20, 11), kind))
        def _(b: Builder, x: TosaTensor, window: Any = window, step: int = step, out: Any = out) -> TosaTensor:
            zeros = [b.constant([n if x.dtype == "INT8" else 0], x.dtype) for n in (6, -9)]
            arguments = (list(window), [step, step], [0, 0, 0, 0], DType.INT32)
            return b("AVG_POOL2D", (x, *zeros), (1, *out, 11), x.dtype, *arguments)

        @row(f"average_rescaled_{kind}_{window}", Input((1, 20, 20, 11), kind))
        def _(b: Builder, x: TosaTensor, window: Any = window, step: int = step, out: Any = out) -> TosaTensor:
            zeros = [b.constant([0], x.dtype)] * 2
            arguments = (list(window), [step, step], [0, 0, 0, 0], DType.INT32)
            y = b("AVG_POOL2D", (x, *zeros), (1, *out, 11), x.dtype, *arguments)
            return b.rescale(y, x.dtype, 0.37, rounding="DOUBLE_ROUND")

        @row(f"greatest_{kind}_{window}", Input((1, 20, 20, 11), kind))
        def _(b: Builder, x: TosaTensor, window: Any = window, step: int = step, out: Any = out) -> TosaTensor:
            arguments = (list(window), [step, step], [0, 0, 0, 0], IGNORE_NAN)
            return b("MAX_POOL2D", (x,), (1, *out, 11), x.dtype, *arguments)

    @row(f"average_padded_{kind}", Input((1, 12, 13, 11), kind))
    def _(b: Builder, x: TosaTensor) -> TosaTensor:
        zeros = [b.constant([0], x.dtype)] * 2
        arguments = ([3, 3], [1, 1], [1, 1, 1, 1], DType.INT32)
        return b("AVG_POOL2D", (x, *zeros), (1, 12, 13, 11), x.dtype, *arguments)

    for mode in ("NEAREST", "BILINEAR"):
        for scale_n, scale_d, offset in [
            (4, 2, 0),
            (6, 2, -2),
            (2, 4, 1),
            (4, 2, -1),
            (16, 2, -7),
            (3, 2, 0),
            (5, 7, 1),
        ]:
            side = (5 - 1) * scale_n - offset
            border = (-side) % scale_d  # below scale_n, as TOSA wants it
            assert border < scale_n
            length = (side + border) // scale_d + 1

            @row(f"resize_{kind}_{mode}_{scale_n}_{scale_d}_{offset}", Input((1, 5, 5, 9), kind))
            def _(
                b: Builder, x: TosaTensor, mode: str = mode, sums: str = sums, scale_n: int = scale_n,
                scale_d: int = scale_d, offset: int = offset, border: int = border, length: int = length,
            ) -> TosaTensor:  # fmt: skip
                operands = (
                    x, b.sizes(scale_n, scale_d, scale_n, scale_d), b.sizes(offset, offset), b.sizes(border, border)
                )  # fmt: skip
                dtype = x.dtype if mode == "NEAREST" else sums
                y = b("RESIZE", operands, (1, length, length, 9), dtype, ResizeMode[mode])
                if mode == "NEAREST":
                    return y
                return b.rescale(y, x.dtype, 1 / scale_n**2, wide=x.dtype == "INT8")

    for name, kernel, stride, channels in [
        ("stride_4", (5, 5), 4, (6, 11)), ("stride_5", (3, 3), 5, (17, 20)), ("wide", (1, 1), 1, (300, 33))
    ]:  # fmt: skip

        @row(f"conv_{kind}_{name}", Input((1, *(k + 2 * stride for k in kernel), channels[0]), kind))
        def _(
            b: Builder, x: TosaTensor, kernel: Any = kernel, stride: int = stride, channels: Any = channels,
            sums: str = sums,
        ) -> TosaTensor:  # fmt: skip
            weight = b.constant(np.random.default_rng(5).integers(-127, 128, (channels[1], *kernel, channels[0])))
            bias, zeros = b.constant(np.arange(channels[1]), sums), (b.constant([0], x.dtype), b.constant([0]))
            arguments = ([0, 0, 0, 0], [stride, stride], [1, 1], False, DType[sums])
            y = b("CONV2D", (x, weight, bias, *zeros), (1, 3, 3, channels[1]), sums, *arguments)
            return b.rescale(y, x.dtype, [0.0007 * 0.97**i for i in range(channels[1])], wide=x.dtype == "INT8")

    @row(f"conv_{kind}_weights_of_run_time", Input((1, 6, 7, 12), kind), Input((10, 3, 3, 12), "INT8", -127, 127))
    def _(b: Builder, x: TosaTensor, weight: TosaTensor, sums: str = sums) -> TosaTensor:
        bias, zeros = b.constant(np.arange(10), sums), (b.constant([0], x.dtype), b.constant([0]))
        arguments = ([0, 0, 0, 0], [1, 1], [1, 1], False, DType[sums])
        y = b("CONV2D", (x, weight, bias, *zeros), (1, 4, 5, 10), sums, *arguments)
        return b.rescale(y, x.dtype, 0.002, wide=x.dtype == "INT8")

    for name, kernel, channels in [("1x1", 1, (256, 48)), ("3x3", 3, (64, 40)), ("few", 3, (4, 24))]:

        @row(f"conv_{kind}_sparse_{name}", Input((1, kernel + 4, kernel + 5, channels[0]), kind))
        def _(
            b: Builder, x: TosaTensor, kernel: int = kernel, channels: Any = channels, sums: str = sums
        ) -> TosaTensor:
            values = np.random.default_rng(6).integers(-127, 128, (channels[1], kernel, kernel, channels[0]))
            values[..., 1::4] = values[..., 2::4] = 0  # two of four along the depth
            bias, zeros = b.constant([3], sums), (b.constant([0], x.dtype), b.constant([0]))
            arguments = ([0, 0, 0, 0], [1, 1], [1, 1], False, DType[sums])
            y = b("CONV2D", (x, b.constant(values), bias, *zeros), (1, 5, 6, channels[1]), sums, *arguments)
            return b.rescale(y, x.dtype, 0.0007, wide=x.dtype == "INT8")

    for shape, axis in [((7, 19), 0), ((5, 6, 19), 0), ((5, 6, 19), 1), ((4, 5, 6, 7), 0), ((1, 300, 4, 3), 1)]:

        @row(f"argmax_{kind}_{len(shape)}d_{shape[axis]}_{axis}", Input(shape, kind))
        def _(b: Builder, x: TosaTensor, axis: int = axis) -> TosaTensor:
            kept = [n for i, n in enumerate(x.shape) if i != axis]
            return b("ARGMAX", (x,), kept, "INT32", axis, IGNORE_NAN)


@row("chain", Input(SHAPE, "INT8"), Input(SHAPE, "INT8"))
def _(b: Builder, x: TosaTensor, z: TosaTensor) -> TosaTensor:
    wide = [b.rescale(t, "INT32", factor * 2.0**10, (0, 0), "DOUBLE_ROUND") for t, factor in ((x, 0.7), (z, 0.4))]
    y = b("ADD", wide, x.shape, "INT32")
    y = b("MUL", (y, wide[0], b.constant([12])), x.shape, "INT32")
    y = b("MAXIMUM", (y, wide[1]), x.shape, "INT32", IGNORE_NAN)
    return b.rescale(y, "INT8", 2.0**-9, rounding="DOUBLE_ROUND")
