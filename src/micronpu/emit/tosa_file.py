"""TOSA flatbuffers (version 1.0)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np

from micronpu.base.arrays import Array
from micronpu.base.errors import InternalError
from micronpu.emit import tosa_schema as schema
from micronpu.emit.flatbuffer_tables import Fields, FlatbufferWriter, Number, Vector
from micronpu.emit.written import WrittenModel
from micronpu.ir.types import Shape

SHAPE = "SHAPE"
"""The type of an operand that is a list of sizes, which the file stores separately from tensors."""
_SIZES = np.dtype(np.int64)

NUMPY: dict[str, np.dtype[Any]] = {
    "INT8": np.dtype(np.int8),
    "INT16": np.dtype(np.int16),
    "INT32": np.dtype(np.int32),
    "INT48": np.dtype(np.int64),
    "BOOL": np.dtype(np.bool_),
}
"""NumPy types of constants by TOSA's element type."""


@dataclass(eq=False)
class TosaTensor:
    """A tensor of the model being written.

    Attributes:
        shape: sizes; of a shape operand, its length.
        dtype: TOSA's name of the element type; "SHAPE" marks an operand that is not a tensor.
        data: the value of a constant.
    """

    name: str
    shape: Shape
    dtype: str
    data: Array | None = None

    @property
    def rank(self) -> int:
        return len(self.shape)


@dataclass(eq=False)
class TosaOperator:
    """A TOSA operator of a node of the graph; its arguments are the fields of its attribute in the schema's order:
    truth values, integers, lists of them, modes, bytes."""

    name: str
    inputs: tuple[TosaTensor, ...]
    output: TosaTensor
    arguments: tuple[object, ...]
    node: int


def serialized(
    inputs: Sequence[TosaTensor], outputs: Sequence[TosaTensor], operators: Sequence[TosaOperator]
) -> WrittenModel:
    """Serialize operators in execution order; constants precede their first reader.

    The bytes are the same as those of TOSA's own serializer.
    """
    _rename([*inputs, *(t for operator in operators for t in (*operator.inputs, operator.output))])
    steps = list(_with_constants(inputs, operators))
    made = {*inputs, *(step.output for step in steps)}
    for y in outputs:
        if y not in made:
            raise InternalError(f"The output {y.name} is made by no operator.")
    tensors = [*inputs, *(step.output for step in steps)]
    writer = FlatbufferWriter(cpp=True)
    name = writer.text("main")
    read, given = _write_names(writer, inputs, outputs)
    block: Fields = {schema.Block.NAME: name, schema.Block.INPUTS: read, schema.Block.OUTPUTS: given}
    block[schema.Block.OPERATORS] = writer.offsets([_write_operator(writer, step) for step in steps])
    for field, is_shape in ((schema.Block.TENSORS, False), (schema.Block.SHAPES, True)):
        block[field] = Vector("tables", [_fields(t) for t in tensors if (t.dtype == SHAPE) == is_shape])
    library = {**_numbered(schema.Software, schema.LIBRARY), schema.Software.MODIFIER: ""}
    graph: Fields = {
        schema.Graph.REGIONS: Vector(
            "tables", [{schema.Region.BLOCKS: Vector("tables", [block]), schema.Region.NAME: "main"}]
        ),
        schema.Graph.VERSION: {
            **_numbered(schema.Version, schema.VERSION),
            schema.Version.DRAFT: Number("Bool", False, True),
        },
        schema.Graph.SOFTWARE: library,
        schema.Graph.COMPATIBILITY: {schema.Compatibility.READER: library},
    }
    data = writer.finish(writer.table(graph), schema.IDENTIFIER)
    return WrittenModel(data, tuple(step.node for step in steps))


def _with_constants(inputs: Sequence[TosaTensor], operators: Sequence[TosaOperator]) -> Iterator[TosaOperator]:
    """Insert the operators of constants before their first readers."""
    made = set(inputs)
    for operator in operators:
        for operand in operator.inputs:
            if operand in made:
                continue
            if operand.data is None:
                raise InternalError(f"The TOSA tensor {operand.name} is read before it is made.")
            made.add(operand)
            yield TosaOperator("CONST_SHAPE" if operand.dtype == SHAPE else "CONST", (), operand, (), operator.node)
        made.add(operator.output)
        yield operator


def _write_operator(writer: FlatbufferWriter, operator: TosaOperator) -> int:
    read, made = _write_names(writer, operator.inputs, (operator.output,))
    kind = schema.Op[operator.name]
    # Last to first, the order in which the C++ compiler evaluates the arguments.
    attribute: Fields = {slot: _argument(value) for slot, value in reversed(list(enumerate(operator.arguments)))}
    fields: Fields = {
        schema.Operator.OP: Number("Uint32", kind),
        schema.Operator.ATTRIBUTE_TYPE: Number("Uint8", kind),
        schema.Operator.ATTRIBUTE: attribute,
        schema.Operator.INPUTS: read,
        schema.Operator.OUTPUTS: made,
        schema.Operator.LOCATION: {schema.Location.TEXT: ""},
    }
    return writer.table(fields)


def _argument(value: object) -> Number | Vector:
    if isinstance(value, bytes):
        return Vector("bytes", value)
    if isinstance(value, (list, tuple)):
        return Vector("Int32", value)
    if isinstance(value, bool):
        return Number("Bool", value)
    return Number("Uint32" if isinstance(value, IntEnum) else "Int32", value)


def _write_names(writer: FlatbufferWriter, *groups: Sequence[TosaTensor]) -> list[int]:
    """Write vectors of tensor names, all names first; return their positions."""
    written = [[writer.text(tensor.name) for tensor in group] for group in groups]
    return [writer.offsets(names) for names in written]


def _fields(tensor: TosaTensor) -> Fields:
    data = Vector("bytes", _bytes_of(tensor))
    if tensor.dtype == SHAPE:
        (rank,) = tensor.shape
        return {schema.Shape.NAME: tensor.name, schema.Shape.RANK: Number("Uint32", rank), schema.Shape.DATA: data}
    return {
        schema.Tensor.NAME: tensor.name,
        schema.Tensor.SHAPE: Vector("Int32", tensor.shape),
        schema.Tensor.TYPE: Number("Uint32", schema.DType[tensor.dtype]),
        schema.Tensor.DATA: data,
        schema.Tensor.VARIABLE_NAME: "",
        schema.Tensor.SCALES: Vector("bytes", b""),
    }


def _bytes_of(tensor: TosaTensor) -> bytes:
    """The bytes of a constant in the file, b"" for computed tensors."""
    if tensor.data is None:
        return b""
    data = np.ascontiguousarray(tensor.data, NUMPY.get(tensor.dtype, _SIZES))
    return data.reshape(-1, 1).view(np.uint8)[:, :6].tobytes() if tensor.dtype == "INT48" else data.tobytes()


def _numbered(fields: type[IntEnum], version: Sequence[int]) -> Fields:
    return {field: Number("Int32", value, -1) for field, value in zip(fields, version, strict=False)}


def _rename(tensors: Sequence[TosaTensor]) -> None:
    """Make the names unique: tensors refer to each other by name."""
    taken: set[str] = set()
    for tensor in dict.fromkeys(tensors):
        name, count = tensor.name, 0
        while tensor.name in taken:
            count += 1
            tensor.name = f"{name}#{count}"
        taken.add(tensor.name)
