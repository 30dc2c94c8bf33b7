"""A file for each LiteRT operator that is read, in three shapes or more."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tests.oracle.frontend.litert_files import FileWriter


@dataclass(frozen=True)
class Tensor:
    """An input or output; quantized if it has a scale."""

    shape: tuple[int, ...]
    dtype: str = "float32"
    scale: float | None = None
    zero: int = 0


@dataclass(frozen=True)
class Row:
    """A file of one operator: operands are inputs, or constants as arrays; None is left out."""

    kind: str
    operands: tuple[Any, ...]
    results: tuple[Tensor, ...]
    options: str = ""
    fields: dict[str, Any] = field(default_factory=dict)
    states: tuple[Tensor, ...] = ()

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Return the shapes of operands and results."""
        given = [o[0] if isinstance(o, tuple) else o for o in self.operands if o is not None]
        return tuple(np.shape(o) if isinstance(o, np.ndarray) else o.shape for o in (*given, *self.results))

    def write(self, file: FileWriter) -> tuple[list[int], list[int]]:
        """Append the operator, and return its inputs and outputs."""
        inputs, numbers = [], []
        for operand in self.operands:
            if isinstance(operand, Tensor):
                numbers.append(file.tensor(operand.shape, operand.dtype, operand.scale, operand.zero))
                inputs.append(numbers[-1])
            elif operand is None:
                numbers.append(-1)
            else:
                numbers.append(file.constant(*(operand if isinstance(operand, tuple) else (operand,))))
        for t in self.states:
            numbers.append(file.tensor(t.shape, t.dtype, t.scale, t.zero))
            file.graph.tensors[numbers[-1]].isVariable = True
        outputs = [file.tensor(t.shape, t.dtype, t.scale, t.zero) for t in self.results]
        file.add(self.kind, numbers, outputs, self.options, **self.fields)
        return inputs, outputs


def data_of(rows: Sequence[Row]) -> bytes:
    """Return a file of these operators beside each other."""
    file = FileWriter()
    ends = [row.write(file) for row in rows]
    return file.data(*([number for end in ends for number in end[i]] for i in (0, 1)))


def floats(*shape: int, seed: int = 0, low: float | None = None) -> np.ndarray:
    random = np.random.default_rng(seed)
    values = random.standard_normal(shape) if low is None else random.uniform(low, 3, shape)
    return values.astype(np.float32)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def bytes_of(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-127, 128, shape).astype(np.int8)


SHAPES = ((7,), (2, 5), (1, 3, 4, 2), (2, 3, 1, 2, 2))
f, q = Tensor, lambda shape, scale=0.05, zero=3, dtype="int8": Tensor(tuple(shape), dtype, scale, zero)
Rows = Iterator[Row]


def elementwise() -> Rows:
    unary = {
        "ABS": "AbsOptions", "NEG": "NegOptions", "EXP": "ExpOptions", "LOG": "", "SQRT": "", "RSQRT": "", "SIN": "",
        "COS": "CosOptions", "FLOOR": "", "CEIL": "", "ROUND": "", "SQUARE": "SquareOptions", "SIGN": "SignOptions",
        "RELU": "", "RELU6": "", "RELU_N1_TO_1": "", "RELU_0_TO_1": "", "ELU": "", "HARD_SWISH": "HardSwishOptions",
        "LOGISTIC": "", "TANH": "", "GELU": "GeluOptions", "LEAKY_RELU": "LeakyReluOptions",
    }  # fmt: skip
    for kind, options in unary.items():
        fields = {"LEAKY_RELU": {"alpha": 0.2}}.get(kind, {})
        yield from (Row(kind, (f(s),), (f(s),), options, fields) for s in SHAPES)
    for kind in ("LOGISTIC", "TANH", "RELU", "RELU6", "HARD_SWISH", "LEAKY_RELU", "ABS"):
        made = {"LOGISTIC": (1 / 256, -128), "TANH": (1 / 128, 0)}.get(kind, (0.05, 3))
        options = unary[kind]
        fields = {"LEAKY_RELU": {"alpha": 0.2}}.get(kind, {})
        yield from (Row(kind, (q(s),), (q(s, *made),), options, fields) for s in SHAPES[1:])
    yield Row("GELU", (f((2, 5)),), (f((2, 5)),), "GeluOptions", {"approximate": True})
    yield from (Row("LOGICAL_NOT", (f(s, "bool"),), (f(s, "bool"),), "LogicalNotOptions") for s in SHAPES)
    binary = {
        "ADD": "AddOptions", "SUB": "SubOptions", "MUL": "MulOptions", "DIV": "DivOptions",
        "FLOOR_MOD": "FloorModOptions",
        "MAXIMUM": "MaximumMinimumOptions", "MINIMUM": "MaximumMinimumOptions", "FLOOR_DIV": "FloorDivOptions",
        "SQUARED_DIFFERENCE": "SquaredDifferenceOptions", "ATAN2": "",
    }  # fmt: skip
    for kind, options in binary.items():
        yield from (Row(kind, (f(s), f(s)), (f(s),), options) for s in SHAPES[:3])
        if kind != "ATAN2":
            yield Row(kind, (f((1, 3, 4, 2)), floats(4, 1, low=0.5)), (f((1, 3, 4, 2)),), options)
    for kind in ("ADD", "SUB", "MUL", "SQUARED_DIFFERENCE"):
        yield from (Row(kind, (q(s), q(s, 0.03, -9)), (q(s, 0.2, 4),), binary[kind]) for s in SHAPES[:3])
    for kind in ("ADD", "SUB", "MUL", "DIV", "FLOOR_DIV", "FLOOR_MOD", "MAXIMUM", "MINIMUM"):
        yield Row(kind, (f((2, 3), "int32"), ints(2, -3, 5)), (f((2, 3), "int32"),), binary[kind])
    for s in SHAPES[:3]:
        yield Row("POW", (f(s), np.array(2, np.float32)), (f(s),), "PowOptions")
        for kind in ("EQUAL", "NOT_EQUAL", "GREATER", "GREATER_EQUAL", "LESS", "LESS_EQUAL"):
            options = "".join(part.capitalize() for part in kind.split("_")) + "Options"
            yield Row(kind, (f(s), f(s)), (f(s, "bool"),), options)
        for kind in ("LOGICAL_AND", "LOGICAL_OR"):
            options = "".join(part.capitalize() for part in kind.split("_")) + "Options"
            yield Row(kind, (f(s, "bool"), f(s, "bool")), (f(s, "bool"),), options)
        yield Row("SELECT_V2", (f(s, "bool"), f(s), floats(1)), (f(s),), "SelectV2Options")
        yield Row("SELECT", (f(s, "bool"), f(s), f(s)), (f(s),), "SelectOptions")
        yield Row("SELECT", (f(s[:1], "bool"), f(s), f(s)), (f(s),), "SelectOptions")
        yield Row("ADD_N", (f(s), f(s), f(s)), (f(s),), "AddNOptions")
        yield Row("CAST", (f(s),), (f(s, "int32"),), "CastOptions")
        yield Row("CAST", (q(s, 0.05, -7),), (f(s, "int32"),), "CastOptions")
        yield Row("CAST", (q(s, 1e-3, 0, "int16"),), (f(s),), "CastOptions")
        yield Row("QUANTIZE", (f(s),), (q(s),), "QuantizeOptions")
        yield Row("QUANTIZE", (q(s),), (q(s, 0.1, -7),), "QuantizeOptions")
        yield Row("QUANTIZE", (q(s, 0.05, 131, "uint8"),), (q(s),), "QuantizeOptions")
        yield Row("DEQUANTIZE", (q(s),), (f(s),), "DequantizeOptions")
        yield Row("DEQUANTIZE", (q(s, 1e-3, 0, "int16"),), (f(s),), "DequantizeOptions")
    for slope in ((2,), (1, 1, 2), (4, 1), (3, 4, 2), (1,)):
        yield Row("PRELU", (f((1, 3, 4, 2)), floats(*slope)), (f((1, 3, 4, 2)),))
    yield Row("PRELU", (f((1, 3, 2, 2)), floats(2, 1)), (f((1, 3, 2, 2)),))


def windows() -> Rows:
    for h, w, k, s, same in ((6, 7, 3, 1, True), (6, 7, 3, 2, True), (7, 5, 2, 2, False), (5, 5, 3, 2, False)):
        size = tuple(-(-n // s) if same else (n - k) // s + 1 for n in (h, w))
        window = {"strideH": s, "strideW": s, "padding": 0 if same else 1}
        pool = {**window, "filterHeight": k, "filterWidth": k}
        made = (1, *size, 4)
        yield Row("MAX_POOL_2D", (f((1, h, w, 4)),), (f(made),), "Pool2DOptions", pool)
        yield Row("AVERAGE_POOL_2D", (f((1, h, w, 4)),), (f(made),), "Pool2DOptions", pool)
        yield Row("MAX_POOL_2D", (q((1, h, w, 4)),), (q(made),), "Pool2DOptions", pool)
        yield Row("AVERAGE_POOL_2D", (q((1, h, w, 4)),), (q(made),), "Pool2DOptions", pool)
        even = all((size[i] - 1) * s + k - n & 1 == 0 or not same for i, n in enumerate((h, w)))
        if even:
            yield Row("L2_POOL_2D", (f((1, h, w, 4)),), (f(made),), "Pool2DOptions", pool)
        operands = (f((1, h, w, 3)), floats(4, k, k, 3), floats(4))
        yield Row("CONV_2D", operands, (f(made),), "Conv2DOptions", {**window, "fusedActivationFunction": 1})
        scales = np.float32([0.01, 0.02, 0.015, 0.03])
        bias = (np.arange(4, dtype=np.int32) * 100, scales * 0.05)
        operands = (q((1, h, w, 3)), (bytes_of(4, k, k, 3), scales), bias)
        yield Row("CONV_2D", operands, (q(made, 0.3, -8),), "Conv2DOptions", window)
        hybrid = (f((1, h, w, 3)), (bytes_of(4, k, k, 3), scales), floats(4))
        yield Row("CONV_2D", hybrid, (f(made),), "Conv2DOptions", window)
        deep = {**window, "depthMultiplier": 2}
        operands = (f((1, h, w, 2)), floats(1, k, k, 4), floats(4))
        yield Row("DEPTHWISE_CONV_2D", operands, (f(made),), "DepthwiseConv2DOptions", deep)
        operands = (q((1, h, w, 2)), (bytes_of(1, k, k, 4), scales, 0, 3), bias)
        yield Row("DEPTHWISE_CONV_2D", operands, (q(made, 0.3, -8),), "DepthwiseConv2DOptions", deep)
    for size, s, same in (((9, 10), 2, False), ((8, 8), 2, True), ((4, 4), 1, True)):
        h, w = (-(-n // s) if same else (n - 3) // s + 1 for n in size)
        window = {"strideH": s, "strideW": s, "padding": 0 if same else 1}
        operands = (ints(1, *size, 3), floats(3, 3, 3, 2), f((1, h, w, 2)), floats(3))
        yield Row("TRANSPOSE_CONV", operands, (f((1, *size, 3)),), "TransposeConvOptions", window)
    for shape in ((2, 4), (2, 3, 4), (5, 4)):
        made = (*shape[:-1], 3)
        keep = {"keepNumDims": True}
        yield Row("FULLY_CONNECTED", (f(shape), floats(3, 4), floats(3)), (f(made),), "FullyConnectedOptions", keep)
        operands = (q(shape), (bytes_of(3, 4), 0.02), (ints(5, -9, 70), 0.001))
        yield Row("FULLY_CONNECTED", operands, (q(made, 0.1, 5),), "FullyConnectedOptions", keep)
        hybrid = (f(shape), (bytes_of(3, 4), 0.02), floats(3))
        yield Row("FULLY_CONNECTED", hybrid, (f(made),), "FullyConnectedOptions", keep)
    for a, b, made, turned in (
        ((2, 3, 4), (2, 4, 5), (2, 3, 5), {}),
        ((2, 3, 4), (4, 5), (2, 3, 5), {}),
        ((1, 3, 4, 2), (1, 3, 5, 2), (1, 3, 4, 5), {"adjY": True}),
    ):
        yield Row("BATCH_MATMUL", (f(a), f(b)), (f(made),), "BatchMatMulOptions", turned)
        yield Row("BATCH_MATMUL", (f(a), floats(*b)), (f(made),), "BatchMatMulOptions", turned)
        yield Row("BATCH_MATMUL", (q(a), q(b, 0.02, 0)), (q(made, 0.1, 0),), "BatchMatMulOptions", turned)
    for ids in ((3,), (1,), (6,)):
        yield Row("EMBEDDING_LOOKUP", (f(ids, "int32"), floats(9, 4)), (f((*ids, 4)),))
    for s in SHAPES[1:]:
        yield Row("SOFTMAX", (f(s[-4:]),), (f(s[-4:]),), "SoftmaxOptions", {"beta": 1.0})
        yield Row("SOFTMAX", (f(s[-4:]),), (f(s[-4:]),), "SoftmaxOptions", {"beta": 0.5})
        yield Row("SOFTMAX", (q(s[-4:]),), (q(s[-4:], 1 / 256, -128),), "SoftmaxOptions", {"beta": 1.0})
        yield Row("LOG_SOFTMAX", (f(s[-4:]),), (f(s[-4:]),), "LogSoftmaxOptions")
        yield Row("L2_NORMALIZATION", (f(s[-4:]),), (f(s[-4:]),), "L2NormOptions")
    for channels, radius in ((8, 2), (3, 5), (5, 1)):
        fields = {"radius": radius, "bias": 1.0, "alpha": 0.1, "beta": 0.75}
        s = (1, 3, 2, channels)
        yield Row("LOCAL_RESPONSE_NORMALIZATION", (f(s),), (f(s),), "LocalResponseNormalizationOptions", fields)


def reductions() -> Rows:
    for s, axes, keeps in (
        ((7,), (0,), True),
        ((2, 5), (-1, 1), False),
        ((1, 3, 4, 2), (1, 2), False),
        ((2, 3, 4), (1,), True),
    ):
        gone = {a % len(s) for a in axes}
        made = tuple(1 if i in gone else n for i, n in enumerate(s) if keeps or i not in gone)
        for kind in ("MEAN", "SUM", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD"):
            yield Row(kind, (f(s), ints(*axes)), (f(made),), "ReducerOptions", {"keepDims": keeps})
        for kind in ("SUM", "REDUCE_MAX"):
            yield Row(kind, (f(s, "int32"), ints(*axes)), (f(made, "int32"),), "ReducerOptions", {"keepDims": keeps})
        for kind in ("REDUCE_ANY", "REDUCE_ALL"):
            yield Row(kind, (f(s, "bool"), ints(*axes)), (f(made, "bool"),), "ReducerOptions", {"keepDims": keeps})
        yield Row("MEAN", (q(s), ints(*axes)), (q(made, 0.02, 5),), "ReducerOptions", {"keepDims": keeps})
        for kind, least in (("ARG_MAX", "ArgMaxOptions"), ("ARG_MIN", "ArgMinOptions")):
            axis = axes[0] % len(s)
            left = tuple(n for i, n in enumerate(s) if i != axis)
            yield Row(kind, (f(s), ints(axis)), (f(left, "int32"),), least, {"outputType": 2})
        for fields in ({}, {"exclusive": True}, {"reverse": True}):
            yield Row("CUMSUM", (f(s), np.array(axes[0], np.int32)), (f(s),), "CumsumOptions", fields)
    for s, k in (((7,), 3), ((2, 5), 5), ((1, 3, 4), 1)):
        made = (*s[:-1], k)
        yield Row("TOPK_V2", (f(s), np.array(k, np.int32)), (f(made), f(made, "int32")), "TopKV2Options")


def movement() -> Rows:
    for make in (f, q):
        for s, made in (((8,), (1, 8)), ((2, 6), (3, 4)), ((1, 3, 4, 2), (2, 12))):
            yield Row("RESHAPE", (make(s), ints(*made)), (make(made),), "ReshapeOptions")
            yield Row("EXPAND_DIMS", (make(s), ints(0)), (make((1, *s)),), "ExpandDimsOptions")
            yield Row("SQUEEZE", (make((1, *s)),), (make(s),), "SqueezeOptions", {"squeezeDims": [0]})
            axes = tuple(reversed(range(len(s))))
            yield Row("TRANSPOSE", (make(s), ints(*axes)), (make(s[::-1]),), "TransposeOptions")
            yield Row(
                "CONCATENATION", (make(s), make(s)), (make((2 * s[0], *s[1:])),), "ConcatenationOptions", {"axis": 0}
            )
            yield Row("PACK", (make(s), make(s)), (make((*s, 2)),), "PackOptions", {"axis": len(s), "valuesCount": 2})
            parts = (make(s[1:]),) * s[0]
            yield Row("UNPACK", (make(s),), parts, "UnpackOptions", {"axis": 0, "num": s[0]})
            half = (*s[:-1], s[-1] // 2 or 1)
            if s[-1] % 2 == 0:
                axis = np.array(-1, np.int32)
                yield Row("SPLIT", (axis, make(s)), (make(half),) * 2, "SplitOptions", {"numSplits": 2})
            rest = (make((*s[:-1], 1)), make((*s[:-1], s[-1] - 1)))
            yield Row("SPLIT_V", (make(s), ints(1, -1), ints(len(s) - 1)), rest, "SplitVOptions", {"numSplits": 2})
            size = tuple(max(n - 1, 1) for n in s)
            start = tuple(int(n > 1) for n in s)
            yield Row("SLICE", (make(s), ints(*start), ints(*size)), (make(size),), "SliceOptions")
            spread = tuple(-(-n // 2) for n in s)
            ends = (ints(*[0] * len(s)), ints(*s), ints(*[2] * len(s)))
            yield Row("STRIDED_SLICE", (make(s), *ends), (make(spread),), "StridedSliceOptions")
            pairs = np.array([[1, 2]] * len(s), np.int32)
            wide = tuple(n + 3 for n in s)
            yield Row("PAD", (make(s), pairs), (make(wide),), "PadOptions")
            yield Row("TILE", (make(s), ints(*[2] * len(s))), (make(tuple(2 * n for n in s)),), "TileOptions")
            yield Row("REVERSE_V2", (make(s), ints(len(s) - 1)), (make(s),), "ReverseV2Options")
            yield Row("GATHER", (make(s), ints(0, s[-1] - 1)), (make((*s[:-1], 2)),), "GatherOptions", {"axis": -1})
        for s, n in (((1, 4, 6, 2), 2), ((2, 2, 4, 3), 2), ((1, 3, 6, 1), 3)):
            deep = (s[0], s[1] // n, s[2] // n, s[3] * n * n)
            yield Row("SPACE_TO_DEPTH", (make(s),), (make(deep),), "SpaceToDepthOptions", {"blockSize": n})
            yield Row("DEPTH_TO_SPACE", (make(deep),), (make(s),), "DepthToSpaceOptions", {"blockSize": n})
            pads = np.zeros((2, 2), np.int32)
            many = (s[0] * n * n, s[1] // n, s[2] // n, s[3])
            yield Row("SPACE_TO_BATCH_ND", (make(s), ints(n, n), pads), (make(many),), "SpaceToBatchNDOptions")
            yield Row("BATCH_TO_SPACE_ND", (make(many), ints(n, n), pads), (make(s),), "BatchToSpaceNDOptions")
        pads = np.array([[1, 0], [2, 1]], np.int32)
        yield Row(
            "SPACE_TO_BATCH_ND", (make((1, 3, 3, 2)), ints(2, 2), pads), (make((4, 2, 3, 2)),), "SpaceToBatchNDOptions"
        )
        yield Row(
            "BATCH_TO_SPACE_ND", (make((4, 2, 3, 2)), ints(2, 2), pads), (make((1, 3, 3, 2)),), "BatchToSpaceNDOptions"
        )
        for s, pairs in (
            ((1, 4, 5, 2), ((0, 0), (1, 2), (2, 1), (0, 0))),
            ((4, 5), ((1, 2), (0, 3))),
            ((1, 4, 5, 3), ((0, 0), (0, 0), (1, 1), (2, 1))),
            ((1, 200, 1), ((0, 0), (90, 80), (0, 0))),
        ):
            made = tuple(n + sum(pair) for n, pair in zip(s, pairs, strict=True))
            for mode in (0, 1):
                yield Row(
                    "MIRROR_PAD",
                    (make(s), np.array(pairs, np.int32)),
                    (make(made),),
                    "MirrorPadOptions",
                    {"mode": mode},
                )
        for size in ((7, 9), (3, 2), (10, 10)):
            for fields in ({}, {"alignCorners": True}, {"halfPixelCenters": True}):
                yield Row(
                    "RESIZE_NEAREST_NEIGHBOR",
                    (make((1, 5, 5, 2)), ints(*size)),
                    (make((1, *size, 2)),),
                    "ResizeNearestNeighborOptions",
                    fields,
                )
                if make is f or fields:
                    yield Row(
                        "RESIZE_BILINEAR",
                        (make((1, 5, 5, 2)), ints(*size)),
                        (make((1, *size, 2)),),
                        "ResizeBilinearOptions",
                        fields,
                    )
    for s in ((7,), (2, 6), (1, 3, 4, 2)):
        wide = tuple(n + 2 for n in s)
        pairs = np.array([[1, 1]] * len(s), np.int32)
        yield Row("PADV2", (f(s), pairs, np.float32([2.5])), (f(wide),), "PadV2Options")
        yield Row(
            "REVERSE_SEQUENCE",
            (f((*s, 4)), np.arange(s[0], dtype=np.int32) % 4),
            (f((*s, 4)),),
            "ReverseSequenceOptions",
            {"seqDim": len(s), "batchDim": 0},
        )
        yield Row(
            "ONE_HOT",
            (f(s, "int32"), np.array(4, np.int32), np.float32(2), np.float32(-1)),
            (f((*s, 4)),),
            "OneHotOptions",
            {"axis": -1},
        )
        yield Row("GATHER_ND", (f((3, *s)), np.array([[2], [0]], np.int32)), (f((2, *s)),), "GatherNdOptions")
        yield Row("GATHER", (f((9, 3)), f(s, "int32")), (f((*s, 3)),), "GatherOptions")
    yield Row("GATHER_ND", (f((3, 4, 5)), np.array([[2, 1], [0, 3]], np.int32)), (f((2, 5)),), "GatherNdOptions")


def recurrent() -> Rows:
    for batch, steps, given, units in ((1, 5, 3, 4), (2, 1, 4, 3), (1, 7, 2, 2)):
        x, made = f((batch, steps, given)), (f((batch, steps, units)),)
        gates = [floats(units, given, seed=i) for i in range(4)] + [floats(units, units, seed=i + 4) for i in range(4)]
        bias = [floats(units, seed=i + 8) for i in range(4)]
        operands = (x, *gates, None, None, None, *bias, None, None)
        lstm = ("UnidirectionalSequenceLSTMOptions", {"fusedActivationFunction": 4})
        yield Row("UNIDIRECTIONAL_SEQUENCE_LSTM", operands, made, *lstm, states=(f((batch, units)),) * 2)
        operands = (x, gates[0], gates[4], bias[0])
        rnn = ("SequenceRNNOptions", {"fusedActivationFunction": 4})
        yield Row("UNIDIRECTIONAL_SEQUENCE_RNN", operands, made, *rnn, states=(f((batch, units)),))
        for rank in (1, 2):
            operands = (f((batch, given)), floats(units * rank, given), floats(units * rank, steps), floats(units))
            fields, kept = {"rank": rank, "fusedActivationFunction": 1}, (batch, units * rank * steps)
            yield Row("SVDF", operands, (f((batch, units)),), "SVDFOptions", fields, (f(kept),))
            first, second = (bytes_of(units * rank, n, seed=n) for n in (given, steps))
            weights = ((first, 0.02), (second.astype(np.int16), 1e-4), (1000000 * ints(*range(units)), 2e-7))
            made, memory = (q((batch, units), 0.02, -128),), (q(kept, 2e-3, 0, "int16"),)
            yield Row("SVDF", (q((batch, given)), *weights), made, "SVDFOptions", fields, memory)


PARTS: Sequence[Callable[[], Rows]] = (elementwise, windows, reductions, movement, recurrent)


def all_rows() -> list[Row]:
    """Return the rows of all operators."""
    return [row for part in PARTS for row in part()]
