"""Bounds-checked reader of the parts of a LiteRT model that Neutron's tools exchange.

Field numbers are those of the LiteRT schema, version 3. A converter's output is untrusted.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from micronpu.base import flatbuffer
from micronpu.base.flatbuffer import Table, need

_CUSTOM = 32
UINT8 = 3
"""Code of the element type uint8."""
_SIZES = {0: 4, 2: 4, 4: 8, 7: 2, 15: 4}
"""Bytes of an element by the code of its type, where that is not one: float32, int32, int64, int16, uint32."""


@dataclass(frozen=True)
class TensorView:
    """A tensor; constants have data."""

    name: str
    shape: tuple[int, ...]
    type: int
    scale: tuple[float, ...]
    zero_point: tuple[int, ...]
    data: bytes

    def __str__(self) -> str:
        quantization = f", scale {self.scale[0]:.6g}, zero point {self.zero_point[0]}" if self.scale else ""
        return f"{element_name(self.type)}{list(self.shape)}{quantization}"


@dataclass(frozen=True)
class OperatorView:
    """An operator; the name of a custom one is its custom code. -1 means an absent operand."""

    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True)
class ModelView:
    """The only subgraph of a model, and its metadata; `inputs` and `outputs` are tensor indices."""

    tensors: tuple[TensorView, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    operators: tuple[OperatorView, ...]
    metadata: Mapping[str, bytes] = field(default_factory=dict)

    def peak_bytes(self, alignment: int = 16) -> int:
        """Return the largest sum of bytes of activations that are alive at once; no placement needs less."""
        last = max(len(self.operators) - 1, 0)
        used: dict[int, list[int]] = {index: [0] for index in self.inputs}
        for step, operator in enumerate(self.operators):
            for index in (*operator.inputs, *operator.outputs):
                if index >= 0 and not self.tensors[index].data:
                    used.setdefault(index, []).append(step)
        for index in self.outputs:
            used.setdefault(index, []).append(last)
        alive = [0] * (last + 1)
        for index, steps in used.items():
            tensor = self.tensors[index]
            size = math.prod(tensor.shape) * _SIZES.get(tensor.type, 1)
            for step in range(min(steps), max(steps) + 1):
                alive[step] += -(-size // alignment) * alignment
        return max(alive)


def read_model(data: bytes) -> ModelView:
    """Read a model with one subgraph; raise `CorruptFlatbufferError` for any other."""
    root = flatbuffer.root(data, b"TFL3")
    subgraphs = root.vector(2)
    need(subgraphs.length == 1, f"it has {subgraphs.length} subgraphs instead of one")
    graph = subgraphs.table(0)
    buffers = [_buffer(data, table) for table in root.vector(4).tables()]
    codes = [_operator_name(table) for table in root.vector(1).tables()]
    tensors = tuple(_tensor(table, buffers) for table in graph.vector(0).tables())
    operators = tuple(_operator(table, codes) for table in graph.vector(3).tables())
    entries = [(table.string(0), table.integer(1, "<I")) for table in root.vector(6).tables()]
    metadata = {name: buffers[number] for name, number in entries if number < len(buffers)}
    model = ModelView(tensors, graph.vector(1).integers(), graph.vector(2).integers(), operators, metadata)
    for what, indices, lowest in (
        ("an input of the model", model.inputs, 0),
        ("an output of the model", model.outputs, 0),
        *((f"an operand of {o.name}", o.inputs, -1) for o in operators),
        *((f"a result of {o.name}", o.outputs, 0) for o in operators),
    ):
        for index in indices:
            need(lowest <= index < len(tensors), f"{what} is tensor {index}, but there are {len(tensors)} tensors")
    return model


def _buffer(data: bytes, table: Table) -> bytes:
    offset, size = table.integer(1, "<Q"), table.integer(2, "<Q")
    if offset > 1:  # buffers of large models follow the flatbuffer
        need(offset + size <= len(data), f"a buffer of {size} bytes at {offset} leaves the {len(data)} bytes")
        return data[offset : offset + size]
    vector = table.vector(0)
    return data[vector.start : vector.start + vector.length]


def _tensor(table: Table, buffers: list[bytes]) -> TensorView:
    number = table.integer(2, "<I")
    need(number < len(buffers), f"a tensor has buffer {number}, but there are {len(buffers)} buffers")
    scale: tuple[float, ...] = ()
    zero_point: tuple[int, ...] = ()
    quantization = table.table(4)
    if quantization is not None:
        scale = quantization.vector(2).integers("<f")
        zero_point = quantization.vector(3).integers("<q") or (0,) * len(scale)
        need(len(zero_point) == len(scale), f"a tensor has {len(scale)} scales and {len(zero_point)} zero points")
    shape, name = table.vector(0).integers(), table.string(3)
    need(all(size >= 0 for size in shape), f"the tensor {name} has shape {list(shape)}")
    return TensorView(name, shape, table.integer(1, "<b"), scale, zero_point, buffers[number])


def _operator_name(table: Table) -> str:
    # Old readers use an 8-bit field, new ones a 32-bit field: the larger value is the code.
    code = max(table.integer(0, "<b"), table.integer(3))
    return table.string(1) if code == _CUSTOM else schema_names("BuiltinOperator").get(code, f"operator {code}")


def _operator(table: Table, codes: list[str]) -> OperatorView:
    number = table.integer(0, "<I")
    need(number < len(codes), f"an operator has code {number}, but there are {len(codes)} codes")
    return OperatorView(codes[number], table.vector(1).integers(), table.vector(2).integers())


@functools.cache
def schema_names(kind: str) -> dict[int, str]:
    """Names of an enumeration of LiteRT's schema, such as "BuiltinOperator", by their number."""
    from ai_edge_litert import schema_py_generated as schema

    return {v: k for k, v in vars(getattr(schema, kind)).items() if isinstance(v, int) and not k.startswith("_")}


def element_name(code: int) -> str:
    """Name of an element type, such as "int8"."""
    return schema_names("TensorType").get(code, f"type {code}").lower()
