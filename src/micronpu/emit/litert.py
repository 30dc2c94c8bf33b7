"""Write a graph as a LiteRT flatbuffer, through the schema classes of ai-edge-litert."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import flatbuffers
import numpy as np
import numpy.typing as npt
from ai_edge_litert import schema_py_generated as schema

from micronpu.base.arrays import Array
from micronpu.base.errors import InternalError
from micronpu.emit.written import WrittenModel
from micronpu.ir.graph import Graph, Node, Tensor
from micronpu.ir.types import DType, TensorType
from micronpu.ir.window import Activation, Padding2d

_FILE_IDENTIFIER = b"TFL3"
_SCHEMA_VERSION = 3
_ROOM, _ROOM_PER_TENSOR, _ROOM_PER_SCALE = 1 << 16, 1 << 10, 12
"""Estimated bytes of a model without its constants: fixed, per tensor, and per scale with its zero point."""
BUFFER_ALIGNMENT = 16
"""Alignment of a buffer's data in bytes, required by LiteRT's schema."""
_TYPES = {
    DType.INT8: schema.TensorType.INT8,
    DType.UINT8: schema.TensorType.UINT8,
    DType.INT16: schema.TensorType.INT16,
    DType.INT32: schema.TensorType.INT32,
    DType.INT64: schema.TensorType.INT64,
    DType.FLOAT32: schema.TensorType.FLOAT32,
    DType.BOOL: schema.TensorType.BOOL,
}


@dataclass(frozen=True)
class LiteRtTensor:
    """Index of a tensor in the model being written."""

    index: int


class LiteRtEmitter:
    """Writes the operators of a graph; one node at a time is the current node."""

    def __init__(self) -> None:
        self._model = schema.ModelT()
        self._model.version = _SCHEMA_VERSION
        self._model.description = "micronpu"
        self._model.operatorCodes = []
        self._model.buffers = [schema.BufferT()]
        self._room = 0  # estimated bytes of the flatbuffer
        self._subgraph = schema.SubGraphT()
        self._subgraph.name = "main"
        self._subgraph.tensors, self._subgraph.operators = [], []
        self._model.subgraphs = [self._subgraph]
        self._tensors: dict[Tensor, LiteRtTensor] = {}
        self._codes: dict[tuple[str, int], int] = {}
        self._shared: dict[tuple[str, bytes, str], LiteRtTensor] = {}
        self._node: Node | None = None
        self._node_index = -1
        self._nodes: list[int] = []

    # -- for operators

    def input_type(self, index: int) -> TensorType:
        """Type of an operand of the current node."""
        return self._current.inputs[index].type

    @property
    def output_type(self) -> TensorType:
        """Type of the result of the current node."""
        return self._current.output.type

    def constant(self, value: npt.ArrayLike, type: TensorType) -> LiteRtTensor:
        """Add a constant that exists in LiteRT only; equal ones are written once."""
        data = np.asarray(value, type.dtype.numpy).reshape(type.shape)
        key = (type.dtype.value, data.tobytes(), str(type))
        if key not in self._shared:
            self._shared[key] = self._tensor(f"constant_{len(self._shared)}", type, data)
        return self._shared[key]

    def int32(self, value: npt.ArrayLike) -> LiteRtTensor:
        """Add a constant operand such as a shape or a list of axes."""
        data = np.asarray(value, np.int32)
        return self.constant(data, TensorType(data.shape, DType.INT32))

    def intermediate(self, type: TensorType) -> LiteRtTensor:
        """Add a value between two LiteRT operators of the current node."""
        return self._tensor(f"{self._current.output.name}/{len(self._subgraph.tensors)}", type, None)

    @staticmethod
    def code(dtype: DType) -> int:
        return int(_TYPES[dtype])

    @staticmethod
    def activation(activation: Activation) -> int:
        if not activation.can_fuse:
            raise InternalError(f"LiteRT has no fused-activation code for {activation.name}.")
        return int(getattr(schema.ActivationFunctionType, activation.name))

    @staticmethod
    def padding(word: str | None, padding: Padding2d) -> int:
        """Code of a padding; ``None`` means a padding that a pass should have made a separate node."""
        if word is None:
            raise InternalError(f"LiteRT has no word for the padding {padding}; it must be legalised before emission.")
        return int(getattr(schema.Padding, word))

    def add(
        self,
        builtin: str,
        *,
        options: str = "",
        fields: Mapping[str, object] | None = None,
        inputs: Sequence[int | LiteRtTensor] | None = None,
        outputs: Sequence[LiteRtTensor] | None = None,
        version: int = 1,
    ) -> None:
        """Append a LiteRT operator for the current node.

        Args:
            builtin: name in ``BuiltinOperator``.
            options: name of the options table, and ``fields`` its values.
            inputs: operands of the node by position, or new tensors; default: all operands of the node.
            outputs: new tensors; default: the node's results.
        """
        node = self._current
        given = range(len(node.inputs)) if inputs is None else inputs
        operator = schema.OperatorT()
        operator.opcodeIndex = self._code(builtin, version)
        operator.inputs = [i.index if isinstance(i, LiteRtTensor) else self._of(node.inputs[i]).index for i in given]
        results = [self._of(t) for t in node.outputs] if outputs is None else outputs
        operator.outputs = [t.index for t in results]
        if options:
            operator.builtinOptionsType = getattr(schema.BuiltinOptions, options)
            table = getattr(schema, f"{options}T")()
            for key, value in (fields or {}).items():
                if not hasattr(table, key):
                    raise InternalError(f"{options} has no field {key}.")
                setattr(table, key, value)
            operator.builtinOptions = table
        self._subgraph.operators.append(operator)
        self._nodes.append(self._node_index)

    # -- the walk

    def write(self, graph: Graph) -> WrittenModel:
        inputs = [self._of(t).index for t in graph.inputs]
        for index, node in enumerate(graph.nodes):
            self._node, self._node_index = node, index
            node.op.to_litert(self)
        self._node = None
        self._subgraph.inputs = inputs
        self._subgraph.outputs = [self._of(t).index for t in graph.outputs]
        return WrittenModel(pack(self._model, self._room + _ROOM), tuple(self._nodes))

    @property
    def _current(self) -> Node:
        if self._node is None:
            raise InternalError("No node is being written.")
        return self._node

    def _of(self, tensor: Tensor) -> LiteRtTensor:
        if tensor not in self._tensors:
            self._tensors[tensor] = self._tensor(tensor.name, tensor.type, tensor.data)
        return self._tensors[tensor]

    def _tensor(self, name: str, type: TensorType, data: Array | None) -> LiteRtTensor:
        self._room += _ROOM_PER_TENSOR + (0 if data is None else data.nbytes + BUFFER_ALIGNMENT)
        self._room += 0 if type.qparams is None else _ROOM_PER_SCALE * len(type.qparams.scale)
        return LiteRtTensor(add_tensor(self._model, self._subgraph, name, type, data))

    def _code(self, builtin: str, version: int) -> int:
        key = (builtin, version)
        if key not in self._codes:
            value = int(getattr(schema.BuiltinOperator, builtin))
            code = schema.OperatorCodeT()
            code.builtinCode = value
            # The field for old readers has 7 bits.
            code.deprecatedBuiltinCode = min(value, 127)
            code.version = version
            self._codes[key] = len(self._model.operatorCodes)
            self._model.operatorCodes.append(code)
        return self._codes[key]


def add_tensor(model: object, graph: Any, name: str, type: TensorType, data: Array | None = None) -> int:
    """Append a tensor to a graph of a model in LiteRT's object form; return its index."""
    table = schema.TensorT()
    table.name, table.type = name, _TYPES[type.dtype]
    table.shape = np.array(type.shape, np.int32)
    table.buffer = 0 if data is None else add_buffer(model, np.ascontiguousarray(data).reshape(-1).view(np.uint8))
    if type.qparams is not None:
        quantization = schema.QuantizationParametersT()
        quantization.scale = np.array(type.qparams.scale, np.float32)
        quantization.zeroPoint = np.array(type.qparams.zero_point, np.int64)
        quantization.quantizedDimension = type.qparams.axis or 0
        table.quantization = quantization
    graph.tensors.append(table)
    return len(graph.tensors) - 1


def add_buffer(model: Any, data: Array) -> int:
    """Append bytes to a model in LiteRT's object form; return their index."""
    buffer = schema.BufferT()
    buffer.data = data
    model.buffers.append(buffer)
    return len(model.buffers) - 1


class _AlignedBuffer(schema.BufferT):
    """A buffer aligned to 16 bytes in the file: flatbuffers' object API ignores the schema's ``force_align``."""

    def Pack(self, builder: flatbuffers.Builder) -> int:  # noqa: N802  (flatbuffers' name)
        if self.data is None:
            return int(super().Pack(builder))
        data = np.asarray(self.data, np.uint8)
        builder.StartVector(1, data.size, BUFFER_ALIGNMENT)
        builder.head -= data.size
        builder.Bytes[builder.Head() : builder.Head() + data.size] = data.tobytes()
        vector = builder.EndVector()
        schema.BufferStart(builder)
        schema.BufferAddData(builder, vector)
        return int(schema.BufferEnd(builder))


def pack(model: Any, room: int = _ROOM) -> bytes:
    """Return the bytes of a model in LiteRT's object form; constants are aligned to `BUFFER_ALIGNMENT`.

    Drivers of NPUs refuse unaligned command streams and weights.

    Args:
        room: estimated size in bytes.
    """
    for index, buffer in enumerate(model.buffers):
        model.buffers[index] = _AlignedBuffer(buffer.data, buffer.offset, buffer.size)
    # Reserve memory for the constants: a full builder doubles its memory and copies everything.
    builder = flatbuffers.Builder(room)
    builder.Finish(model.Pack(builder), file_identifier=_FILE_IDENTIFIER)
    return bytes(memoryview(builder.Bytes)[builder.Head() :])


def to_litert(graph: Graph) -> WrittenModel:
    """Write a legalised graph as a LiteRT model."""
    return LiteRtEmitter().write(graph)
