"""TOSA flatbuffers (version 1.0), through the serializer that tosa-tools ships."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from micronpu.base.errors import InternalError
from micronpu.ir.types import Shape

_VERSION = (1, 0, 0, False)

NUMPY: dict[str, np.dtype[Any]] = {
    "INT8": np.dtype(np.int8),
    "INT16": np.dtype(np.int16),
    "INT32": np.dtype(np.int32),
    "INT48": np.dtype(np.int64),
    "BOOL": np.dtype(np.bool_),
}
"""How constants of TOSA's element types are held."""


def can_be_written() -> bool:
    """Whether TOSA's serializer is installed; it is not imported."""
    return importlib.util.find_spec("tosa_serializer") is not None


@dataclass(frozen=True)
class TosaModel:
    """A TOSA model and how it relates to the graph.

    Attributes:
        data: the flatbuffer.
        nodes: for every TOSA operator in the file's order, constants included, the index of the graph's node that it
            stems from.
    """

    data: bytes
    nodes: tuple[int, ...]


@dataclass(frozen=True)
class Word:
    """A value of one of the serializer's enumerations, which is imported when a model is written."""

    kind: str
    value: str

    def of(self, tosa: Any) -> Any:
        return getattr(getattr(tosa, self.kind), self.value)


@dataclass(eq=False)
class TosaTensor:
    """A tensor of the model being written.

    Attributes:
        shape: sizes; of a shape operand, the number of its elements.
        dtype: TOSA's name of the element type; "SHAPE" is an operand that the file holds and no tensor.
        data: the value of a constant.
    """

    name: str
    shape: Shape
    dtype: str
    data: npt.NDArray[Any] | None = None

    @property
    def rank(self) -> int:
        return len(self.shape)


@dataclass(eq=False)
class TosaOperator:
    """A TOSA operator.

    Attributes:
        attribute: name of its attribute in the serializer, and ``arguments`` what it is made of.
        node: the graph's node that the operator stems from.
    """

    name: str
    inputs: tuple[TosaTensor, ...]
    output: TosaTensor
    attribute: str
    arguments: tuple[Any, ...]
    node: int


def serialized(
    inputs: Sequence[TosaTensor], outputs: Sequence[TosaTensor], operators: Sequence[TosaOperator]
) -> TosaModel:
    """The flatbuffer of operators in execution order; constants stand before the first operator that reads them."""
    import tosa_serializer as tosa

    _rename([*inputs, *(t for operator in operators for t in (*operator.inputs, operator.output))])
    serializer = tosa.TosaSerializer("", tosa.ConstMode.EMBED, *_VERSION)
    block = serializer.currRegion.currBasicBlock
    nodes: list[int] = []
    for x in inputs:
        serializer.addInputTensor(tosa.TosaSerializerTensor(x.name, list(x.shape), _type(tosa, x)))
    written = set(inputs)
    for operator in operators:
        for operand in operator.inputs:
            if operand in written:
                continue
            if operand.data is None:
                raise InternalError(f"The TOSA tensor {operand.name} is read before it is made.")
            serializer.addConst(list(operand.shape), _type(tosa, operand), operand.data, operand.name)
            nodes.append(operator.node)
            written.add(operand)
        y = operator.output
        block.addTensor(y.name, list(y.shape), _type(tosa, y))
        written.add(y)
        attribute = tosa.TosaSerializerAttribute()
        arguments = [a.of(tosa) if isinstance(a, Word) else a for a in operator.arguments]
        getattr(attribute, f"{operator.attribute}Attribute")(*arguments)
        names = [t.name for t in operator.inputs]
        serializer.addOperator(getattr(tosa.Op, operator.name), names, [y.name], attribute)
        nodes.append(operator.node)
    for y in outputs:
        if y not in written:
            raise InternalError(f"The output {y.name} is made by no operator.")
        block.addOutput(y.name)
    return TosaModel(bytes(serializer.serialize()), tuple(nodes))


def _type(tosa: Any, tensor: TosaTensor) -> Any:
    return getattr(tosa.DType, tensor.dtype)


def _rename(tensors: Sequence[TosaTensor]) -> None:
    """Tensors refer to each other by name, so that no two may share one."""
    taken: set[str] = set()
    for tensor in dict.fromkeys(tensors):
        name, count = tensor.name, 0
        while tensor.name in taken:
            count += 1
            tensor.name = f"{name}#{count}"
        taken.add(tensor.name)
