"""Small LiteRT files that tests write by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema

TYPES = {
    "float32": schema.TensorType.FLOAT32, "float16": schema.TensorType.FLOAT16, "int8": schema.TensorType.INT8,
    "uint8": schema.TensorType.UINT8, "int16": schema.TensorType.INT16, "int32": schema.TensorType.INT32,
    "int64": schema.TensorType.INT64, "bool": schema.TensorType.BOOL, "resource": schema.TensorType.RESOURCE,
}  # fmt: skip


class FileWriter:
    """A LiteRT file in the making; numbers of tensors are those of the current subgraph."""

    def __init__(self) -> None:
        self.model = schema.ModelT()
        self.model.version, self.model.description = 3, b"test"
        self.model.operatorCodes, self.model.subgraphs = [], []
        self.model.buffers = [schema.BufferT()]
        self.subgraph()

    def subgraph(self) -> None:
        """Begin another subgraph."""
        self.graph = schema.SubGraphT()
        self.graph.tensors, self.graph.operators = [], []
        self.graph.inputs, self.graph.outputs = [], []
        self.model.subgraphs.append(self.graph)

    def tensor(
        self, shape: Sequence[int], dtype: str = "float32", scale: Any = None, zero: Any = 0, axis: int = 0
    ) -> int:
        """Return the number of a new tensor."""
        made = schema.TensorT()
        made.shape, made.type, made.buffer = list(shape), TYPES[dtype], 0
        made.name = f"t{len(self.graph.tensors)}".encode()
        if scale is not None:
            made.quantization = schema.QuantizationParametersT()
            made.quantization.scale = np.atleast_1d(np.float32(scale))
            made.quantization.zeroPoint = np.broadcast_to(np.int64(zero), made.quantization.scale.shape).copy()
            made.quantization.quantizedDimension = axis
        self.graph.tensors.append(made)
        return len(self.graph.tensors) - 1

    def constant(self, data: Any, scale: Any = None, zero: Any = 0, axis: int = 0) -> int:
        """Return the number of a new constant."""
        data = np.asarray(data)
        number = self.tensor(data.shape, str(data.dtype), scale, zero, axis)
        buffer = schema.BufferT()
        buffer.data = np.frombuffer(np.ascontiguousarray(data).tobytes(), np.uint8)
        self.graph.tensors[number].buffer = len(self.model.buffers)
        self.model.buffers.append(buffer)
        return number

    def add(
        self,
        kind: str,
        inputs: Sequence[int],
        outputs: Sequence[int],
        options: str = "",
        custom: bytes | None = None,
        **fields: Any,
    ) -> int:
        """Append an operator, and return its first result, or -1 without one."""
        code, made = schema.OperatorCodeT(), schema.OperatorT()
        code.builtinCode = getattr(schema.BuiltinOperator, kind)
        code.deprecatedBuiltinCode = min(code.builtinCode, 127)
        code.version, code.customCode = 1, custom
        made.opcodeIndex, made.inputs, made.outputs = len(self.model.operatorCodes), list(inputs), list(outputs)
        if options:
            second = hasattr(schema.BuiltinOptions2, options)
            kinds, suffix = (schema.BuiltinOptions2, "2") if second else (schema.BuiltinOptions, "")
            table = getattr(schema, f"{options}T")()
            for name, value in fields.items():
                assert hasattr(table, name), name
                setattr(table, name, value)
            setattr(made, f"builtinOptions{suffix}Type", getattr(kinds, options))
            setattr(made, f"builtinOptions{suffix}", table)
        self.model.operatorCodes.append(code)
        self.graph.operators.append(made)
        return outputs[0] if outputs else -1

    def ends(self, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        """Set inputs and outputs of the current subgraph."""
        self.graph.inputs, self.graph.outputs = list(inputs), list(outputs)

    def data(self, inputs: Sequence[int] = (), outputs: Sequence[int] = ()) -> bytes:
        """Return the file."""
        if inputs or outputs:
            self.ends(inputs, outputs)
        builder = flatbuffers.Builder(4096)
        builder.Finish(self.model.Pack(builder), b"TFL3")
        return bytes(builder.Output())
