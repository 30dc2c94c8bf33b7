"""Check a LiteRT program before LiteRT loads it.

LiteRT verifies the flatbuffer and most counts. It does not verify the graph: a tensor that is written twice or never,
or has another size than its reader expects, a stride of 0 (a division by zero), or a ratio of scales that a kernel
cannot represent, ends the process. Here such a program raises an error.

Only operators that micronpu writes are accepted; the tests damage each of them. Every option of an operator is checked,
by its name in LiteRT's schema; the computed values are not. Field numbers are those of
`tensorflow/lite/schema/schema.fbs`.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from micronpu.base.errors import PayloadError
from micronpu.base.flatbuffer import CorruptFlatbufferError, Table, Vector, need, root
from micronpu.container.litert_view import schema_names

_HINT = "copy the file again, or compile the model again"
_BYTES = {0: 4, 1: 2, 2: 4, 3: 1, 4: 8, 6: 1, 7: 2, 9: 1, 10: 8, 15: 4, 16: 2}
"""Bytes of an element by `TensorType`: the types used in our programs and in those of the vendors' tools."""
_INT16 = 7
_RANGES = {3: (0, 255), 7: (-(1 << 15), (1 << 15) - 1), 9: (-128, 127)}
_INT32 = (-(1 << 31), (1 << 31) - 1)
_MOST_BYTES, _MOST_AXES = 1 << 31, 8
_POSITIVE = re.compile(r"Stride|Dilation|Filter|BlockSize|NumSplits|DepthMultiplier|ValuesCount|^Num$")
_AT_MOST = {"Padding": 1, "FusedActivationFunction": 5, "Mode": 1}
_LARGEST = 1 << 16
"""Maximum stride, dilation or window: none exceeds a tensor's side."""


_NAMES = """
ABS ADD ARG_MAX ARG_MIN AVERAGE_POOL_2D BATCH_MATMUL CAST CONCATENATION CONV_2D DEPTHWISE_CONV_2D DYNAMIC_UPDATE_SLICE
EXP FULLY_CONNECTED GATHER HARD_SWISH LEAKY_RELU LOG LOGISTIC MAXIMUM MAX_POOL_2D MEAN MINIMUM MIRROR_PAD MUL PAD PADV2
PRELU QUANTIZE REDUCE_MAX REDUCE_MIN RELU RELU6 RELU_0_TO_1 RELU_N1_TO_1 RESHAPE RESIZE_BILINEAR
RESIZE_NEAREST_NEIGHBOR RSQRT SLICE SOFTMAX SUB TANH TRANSPOSE TRANSPOSE_CONV
"""
OPERATORS = frozenset(_NAMES.split())
"""Operators used in our programs."""


def check_litert(model: bytes | memoryview) -> None:
    """Check a LiteRT program; raise `PayloadError` if a value that LiteRT would trust is wrong."""
    try:
        program = root(model, b"TFL3")
        graphs = list(program.vector(2).tables())
        need(len(graphs) == 1, f"it has {len(graphs)} graphs")
        _Graph(program, graphs[0]).check()
    except CorruptFlatbufferError as error:
        raise PayloadError(f"The LiteRT program of the NPU partition is damaged: {error}.", hint=_HINT) from None
    except (struct.error, IndexError, TypeError, UnicodeDecodeError):  # the schema's readers do not check bounds
        what = "The LiteRT program of the NPU partition is damaged: a field of it leaves the file."
        raise PayloadError(what, hint=_HINT) from None


class _Graph:
    def __init__(self, program: Table, graph: Table) -> None:
        self._program, self._graph = program, graph
        self._tensors = list(graph.vector(0).tables())
        self._buffers = list(program.vector(4).tables())
        self._codes = [max(t.integer(0, "<b"), t.integer(3)) for t in program.vector(1).tables()]
        self._scales = [_scales(tensor) for tensor in self._tensors]

    def check(self) -> None:
        """Check the tensors, then the operators in order: each reads existing values and writes new ones."""
        there = {i for i, tensor in enumerate(self._tensors) if self._check_tensor(i, tensor)}
        inputs, outputs = (self._indices(self._graph.vector(field).integers(), "the graph") for field in (1, 2))
        need(not there.intersection(inputs), "an input of the graph is a constant")
        there.update(inputs)
        for number, operator in enumerate(self._graph.vector(3).tables()):
            index = operator.integer(0, "<I")
            need(index < len(self._codes), f"operator {number} has kind {index} of {len(self._codes)}")
            name = schema_names("BuiltinOperator").get(self._codes[index], "of an unknown kind")
            where = f"operator {number} ({name})"
            need(name in OPERATORS, f"{where} is in no program that micronpu writes")
            reads = [i for i in operator.vector(1).integers() if i != -1]
            makes = self._indices(operator.vector(2).integers(), where)
            need(reads and makes, f"{where} reads or makes nothing")
            for tensor in self._indices(reads, where):
                need(tensor in there, f"{where} reads tensor {tensor}, which nothing has made")
            for tensor in makes:
                need(tensor not in there, f"{where} makes tensor {tensor}, which is there already")
                there.add(tensor)
            self._indices([i for i in operator.vector(8).integers() if i != -1], where)
            _check_options(operator, where)
            check = _FACTORS.get(name)
            if check is not None:
                scales = [self._scales[i][0] for i in (*reads, *makes) if self._scales[i]]
                wide = self._tensors[reads[0]].integer(1, "<b") == _INT16
                fits = not scales or check(scales, wide, dict(_options(operator)))
                need(fits, f"{where} has the scales {', '.join(f'{scale:g}' for scale in scales)}")
        for tensor in outputs:
            need(tensor in there, f"its output, tensor {tensor}, is made by nothing")

    def _indices(self, found: Any, where: str) -> list[int]:
        for index in found:
            need(0 <= index < len(self._tensors), f"{where} names tensor {index} of {len(self._tensors)}")
        return list(found)

    def _check_tensor(self, number: int, tensor: Table) -> bool:
        """Return True if it has a value before the program runs: as a constant, or as a state."""
        where = f"tensor {number}"
        shape, kind, index = tensor.vector(0).integers(), tensor.integer(1, "<b"), tensor.integer(2, "<I")
        need(kind in _BYTES, f"{where} has the element type {kind}")
        is_empty = shape == (0,)  # the shape operand that reshapes a tensor to a scalar
        fits = len(shape) <= _MOST_AXES and all(n >= 1 for n in shape)
        need(fits or is_empty, f"{where} has the shape {list(shape)}")
        size = math.prod(shape) * _BYTES[kind]
        need(size <= _MOST_BYTES, f"{where} has {size} bytes")
        need(index < len(self._buffers), f"{where} has buffer {index} of {len(self._buffers)}")
        buffer = self._buffers[index]
        need(not buffer.integer(1, "<Q") and not tensor.offset(6), f"{where} is stored in another way")
        data = buffer.vector(0)
        need(data.length in (0, size), f"{where} of {size} bytes has a constant of {data.length}")
        need(_is_text(tensor.vector(3)), f"{where} has a name that is no text")
        quantization = tensor.table(4)
        if quantization is not None:
            _check_qparams(quantization, shape, kind, where)
        need(kind not in _RANGES or self._scales[number], f"{where} has integers without a scale")
        return is_empty or bool(data.length) or bool(tensor.integer(5, "<B"))


def _scales(tensor: Table) -> tuple[float, ...]:
    quantization = tensor.table(4)
    return () if quantization is None else quantization.vector(2).integers("<f")


def _is_text(characters: Vector) -> bool:
    try:
        bytes(characters.data[characters.start : characters.start + characters.length]).decode()
    except UnicodeDecodeError:
        return False
    return True


# --- ratios of scales for which kernels end the process: the callers of `QuantizeMultiplierGreaterThanOne` and
# `QuantizeMultiplierSmallerThanOneExp` among `OPERATORS`


def _sum_fits(scales: list[float], wide: bool, options: dict[str, Any]) -> bool:
    """Operands are added with 20 or 15 fractional bits, relative to twice the larger scale."""
    *operands, result = scales
    return len(operands) == 2 and 2 * max(operands) < (1 << (15 if wide else 20)) * result


def _softmax_fits(scales: list[float], wide: bool, options: dict[str, Any]) -> bool:
    """Differences have 26 fractional bits."""
    return bool(options.get("Beta", 0.0) * scales[0] * (1 << 26) > 1)


_FACTORS: dict[str, Callable[[list[float], bool, dict[str, Any]], bool]] = {
    "ADD": _sum_fits,
    "SUB": _sum_fits,
    "SOFTMAX": _softmax_fits,
}


def _check_qparams(quantization: Table, shape: tuple[int, ...], kind: int, where: str) -> None:
    scales, zeros = quantization.vector(2).integers("<f"), quantization.vector(3).integers("<q")
    axis = quantization.integer(6)
    low, high = _RANGES.get(kind, _INT32)
    need(not quantization.integer(4, "<B"), f"{where} has qparams of another kind")
    for scale in scales:
        need(0 < scale < math.inf, f"{where} has the scale {scale}")
    for zero in zeros:
        need(low <= zero <= high, f"{where} has the zero point {zero}")
    if len(scales) > 1:
        need(0 <= axis < len(shape) and shape[axis] == len(scales), f"{where} has {len(scales)} scales")
    need(len(zeros) in (0, 1, len(scales)), f"{where} has {len(scales)} scales and {len(zeros)} zero points")


def _check_options(operator: Table, where: str) -> None:
    for name, value in _options(operator):
        if isinstance(value, float):
            need(math.isfinite(value), f"{where} has the {name} {value}")
        elif _POSITIVE.search(name):
            need(1 <= value <= _LARGEST, f"{where} has the {name} {value}")
        elif name in _AT_MOST:
            need(0 <= value <= _AT_MOST[name], f"{where} has the {name} {value}")


def _options(operator: Table) -> Iterator[tuple[str, Any]]:
    """Names and values of an operator's numeric options, as in the schema."""
    kind, body = operator.integer(3, "<B"), operator.table(4)
    made, fields = _fields(kind)
    if made is None or body is None:
        return
    options = made()
    options.Init(body.data, body.position)
    for field in fields:
        value = getattr(options, field)()
        if isinstance(value, int | float) and not isinstance(value, bool):
            yield field, value


@cache
def _fields(kind: int) -> tuple[Any, tuple[str, ...]]:
    """Class of a kind of options, and its methods that read scalar fields."""
    from ai_edge_litert import schema_py_generated as schema

    name = next((n for n, v in vars(schema.BuiltinOptions).items() if v == kind and not n.startswith("_")), "")
    made = getattr(schema, name, None)
    if made is None or name == "NONE":
        return None, ()
    plain = [n for n, f in vars(made).items() if callable(f) and n != "Init" and f.__code__.co_argcount == 1]
    return made, tuple(n for n in plain if not n.endswith(("AsNumpy", "Length", "IsNone")))
