"""Operator tests as rows of data.

A row is one operator with the types of its operands:

    case(MaxPool2d((3, 2), stride=(2, 1)), x=i8(1, 7, 5, 9, scale=0.02, zero=-3))
    case(Conv2d(), x=i8(1, 4, 4, 3), weight=w8(8, 3, 3, 3, axis=0), out=q(0.1, 5))
    case(Concat(1), tensors=[i8(1, 2), i8(1, 3)])

Rows stand in the list ``CASES`` of `tests/cases/<family>.py`; every such file is found by itself, and every row is run
by `tests/oracle/ops/test_operators.py`.  Operands are in the operator's own layout (channels last for windows).  A bias
that a row does not name is made up, at the scale that it must have.
"""

from __future__ import annotations

import importlib
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from micronpu.ir import DType, Graph, GraphBuilder, QParams, Stage, Tensor, TensorType, verify
from micronpu.ops import Op
from micronpu.ops.constants import BIAS_TYPE

Array = np.ndarray[Any, Any]

SAMPLES = 5
"""Inputs that every row is run with: all lowest, all highest, every value there is, and random ones."""


@dataclass(frozen=True)
class Constant:
    """An operand whose value is known at compile time.

    Attributes:
        type: shape, element type and quantization.
        values: what it holds; None makes values up, up to ``largest`` in magnitude.
    """

    type: TensorType
    values: Any = None
    largest: int = 127

    def data(self, random: np.random.Generator) -> Array:
        if self.values is not None:
            return np.broadcast_to(np.asarray(self.values, self.type.dtype.numpy), self.type.shape)
        return random.integers(-self.largest, self.largest + 1, self.type.shape).astype(self.type.dtype.numpy)


@dataclass(frozen=True)
class Bias:
    """A bias, int64 for int16 activations and else int32; its scale follows from the input and the weights."""

    values: Any = None
    largest: int = 500


@dataclass(frozen=True)
class Index:
    """An int32 operand whose elements are from 0 to ``count - 1``, and where asked for all different."""

    type: TensorType
    count: int
    different: bool = False


Operand = TensorType | Constant | Bias | Index


def i8(*shape: int, scale: float = 0.05, zero: int = 0) -> TensorType:
    """An int8 activation."""
    return TensorType(shape, DType.INT8, QParams.per_tensor(scale, zero))


def i16(*shape: int, scale: float = 0.0003) -> TensorType:
    """An int16 activation; its zero point is 0."""
    return TensorType(shape, DType.INT16, QParams.per_tensor(scale, 0))


def index(*shape: int, count: int, different: bool = False) -> Index:
    """Numbers of ``count`` things."""
    return Index(TensorType(shape, DType.INT32), count, different)


def q(scale: float, zero: int = 0) -> QParams:
    """Parameters of a result."""
    return QParams.per_tensor(scale, zero)


def w8(
    *shape: int, scale: float | Sequence[float] = 0.02, axis: int | None = None, values: Any = None, largest: int = 127
) -> Constant:
    """Symmetric int8 weights: per tensor, or per index of ``axis`` with scales spread over a factor of 8."""
    if axis is None:
        assert isinstance(scale, (int, float)), "several scales need an axis"
        qparams = QParams.per_tensor(float(scale), 0)
    elif isinstance(scale, (int, float)):
        qparams = QParams.per_channel([scale * 2.0 ** (1.5 - 3.0 * i / shape[axis]) for i in range(shape[axis])], axis)
    else:
        qparams = QParams.per_channel(list(scale), axis)
    return Constant(TensorType(shape, DType.INT8, qparams), values, largest)


def b32(values: Any = None, largest: int = 500) -> Bias:
    """A bias with given values (one number stands for all channels), or made up to ``largest`` in magnitude."""
    return Bias(values, largest)


def c16(*shape: int, scale: float = 0.0003, values: Any = None) -> Constant:
    """An int16 activation that is a constant."""
    return Constant(i16(*shape, scale=scale), values, 32767)


def c8(*shape: int, scale: float = 0.05, zero: int = 0, values: Any = None) -> Constant:
    """An int8 activation that is a constant, such as the second operand of ``x + 3``."""
    return Constant(i8(*shape, scale=scale, zero=zero), values)


@dataclass(frozen=True)
class Case:
    """One row.

    Attributes:
        op: the operator with its attributes.
        operands: by the operator's names; a list where the operator takes any number.
        out: quantization of the result, where the operator does not dictate it.
        name: unique name, given when rows are collected.
        litert_samples: numbers of the samples that LiteRT can run by itself.
    """

    op: Op
    operands: Mapping[str, Operand | Sequence[Operand]]
    out: QParams | None = None
    name: str = ""
    litert_samples: tuple[int, ...] = tuple(range(SAMPLES))

    @property
    def family(self) -> str:
        """The part of the file name without its end."""
        return self.name.split("-", maxsplit=1)[0]

    def graph(self) -> Graph:
        """A graph of this operator alone, verified."""
        random = np.random.default_rng(zlib.crc32(self.name.encode()))
        builder = GraphBuilder()
        tensors: list[Tensor] = []
        for operand in self._operands():
            if isinstance(operand, (TensorType, Index)):
                tensors.append(builder.input(operand if isinstance(operand, TensorType) else operand.type))
            elif isinstance(operand, Constant):
                tensors.append(builder.constant(operand.data(random), operand.type))
            else:
                constant = self._bias(operand, tensors[0].type, tensors[1].type)
                tensors.append(builder.constant(constant.data(random), constant.type))
        graph = builder.finish(builder.emit(self.op, *tensors, qparams=self.out))
        verify(graph, Stage.IMPORTED)
        return graph

    def _operands(self) -> Iterator[Operand]:
        unknown = set(self.operands) - set(self.op.operand_names)
        assert not unknown, f"{self.op.name} has no operand {unknown}, only {self.op.operand_names}"
        for name in self.op.operand_names:
            given = self.operands.get(name)
            if given is None:
                assert name == "bias", f"the row of {self.op} has no operand {name}"
                yield Bias()
            elif isinstance(given, (TensorType, Constant, Bias, Index)):
                yield given
            else:
                yield from given

    def _bias(self, bias: Bias, x: TensorType, weight: TensorType) -> Constant:
        assert weight.qparams is not None
        dtype = BIAS_TYPE[x.dtype]
        channels = self.op.infer(x, weight, TensorType((1,), dtype)).shape[-1]
        scales = tuple(x.scale * s for s in weight.qparams.scale)
        qparams = QParams(scales, (0,) * len(scales), None if weight.qparams.is_per_tensor else 0)
        return Constant(TensorType((channels,), dtype, qparams), bias.values, bias.largest)

    @cached_property
    def samples(self) -> list[list[Array]]:
        """`SAMPLES` lists of inputs, always the same."""
        random = np.random.default_rng(zlib.crc32(self.name.encode()) + 1)
        given = [o for o in self._operands() if isinstance(o, (TensorType, Index))]
        return [[_sample(number, operand, random) for operand in given] for number in range(SAMPLES)]

    def __str__(self) -> str:
        operands = ", ".join(
            str(getattr(o, "type", o)) for o in self._operands() if not (isinstance(o, Bias) and o == Bias())
        )
        return f"{self.op}({operands})" + (f" -> {self.out}" if self.out else "")


def _sample(number: int, operand: TensorType | Index, random: np.random.Generator) -> Array:
    if isinstance(operand, Index):
        type, low, high = operand.type, 0, operand.count - 1
        if operand.different:
            numbers = random.permutation(operand.count)[: type.size]
            return numbers.astype(type.dtype.numpy)
    else:
        type, (low, high) = operand, operand.dtype.limits
    if number < 2:
        values: Any = np.full(type.shape, (low, high)[number])
    elif number == 2:  # every value, as far as there is room
        values = random.permutation(np.arange(type.size) % (high - low + 1) + low).reshape(type.shape)
    elif number == 3:  # extremes side by side
        values = random.choice([low, high], type.shape)
    else:
        values = random.integers(low, high + 1, type.shape)
    return np.asarray(values, type.dtype.numpy)


def case(
    op: Op,
    /,
    *,
    out: QParams | None = None,
    name: str = "",
    litert_samples: Sequence[int] = range(SAMPLES),
    **operands: Operand | Sequence[Operand],
) -> Case:
    """A row; see the doc-string of this module.

    Args:
        name: what the row is about, where its types do not say it.
        litert_samples: see `Case`.
    """
    return Case(op, operands, out, name, tuple(litert_samples))


def all_cases() -> list[Case]:
    """Every row of every file, with its name."""
    rows: list[Case] = []
    for path in sorted(Path(__file__).parent.glob("[!_]*.py")):
        family = path.stem
        module = importlib.import_module(f"{__name__}.{family}")
        for number, row in enumerate(module.CASES):
            shape = "x".join(map(str, next(iter(_types(row))).shape)) or "scalar"
            what = re.sub(r"[^A-Za-z0-9_.+]+", "_", row.name).strip("_") or shape
            rows.append(replace(row, name=f"{family}-{number}-{row.op.name}-{what}"))
    return rows


def _types(row: Case) -> Iterator[TensorType]:
    return (o if isinstance(o, TensorType) else o.type for o in row._operands() if not isinstance(o, Bias))
