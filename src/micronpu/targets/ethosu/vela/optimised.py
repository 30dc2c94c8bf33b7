"""A compiled network for LiteRT Micro's Ethos-U kernel, in the format of Vela's own command.

    x8, command stream, constants, scratch, fast scratch ── ethos-u ── y8

The custom operator's operands are the command stream, then the memory of the driver's regions 0, 1 and 2; the metadata
`OfflineMemoryAllocation` places inputs and outputs inside of the scratch memory at the stream's addresses. Sources: the
kernel of LiteRT Micro (`micro/kernels/ethos_u`), LiteRT Micro's documentation of offline memory planning, and a file of
Vela 5.2 for comparison.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from ai_edge_litert import schema_py_generated as schema

from micronpu.emit.litert import LiteRtEmitter
from micronpu.ir.graph import Tensor
from micronpu.targets.ethosu.vela.compiler import VelaProgram

OPERATOR = "ethos-u"
ALLOCATION = "OfflineMemoryAllocation"
_OPTIONS = bytes((1, 4, 1))  # a flexbuffer of the number 1: the type of the operator's operands
_ALIGNMENT = 16
_ANYWHERE, _VERSION = -1, 0


def optimised(
    program: VelaProgram, inputs: Sequence[tuple[str, Tensor]], outputs: Sequence[tuple[str, Tensor]]
) -> tuple[schema.ModelT, tuple[str, bytes]]:
    """Return the model in LiteRT's object form, and its metadata.

    Args:
        inputs, outputs: name and tensor, in the program's order.
    """
    model, graph = schema.ModelT(), schema.SubGraphT()
    model.version, model.buffers, model.subgraphs = 3, [schema.BufferT()], [graph]
    graph.name, graph.tensors = "main", []
    places: list[int] = []

    def tensor(name: str, shape: Sequence[int], kind: int, place: int, data: bytes = b"") -> int:
        table = schema.TensorT()
        table.name, table.type, table.buffer = name, kind, 0
        table.shape = np.array(shape, np.int32)
        if data:
            buffer = schema.BufferT()
            buffer.data = np.frombuffer(data, np.uint8)
            table.buffer = len(model.buffers)
            model.buffers.append(buffer)
        graph.tensors.append(table)
        places.append(place)
        return len(places) - 1

    def boundary(name: str, value: Tensor, place: int) -> int:
        index = tensor(name, value.type.shape, LiteRtEmitter.code(value.type.dtype), place)
        if value.type.qparams is not None:
            quantization = schema.QuantizationParametersT()
            quantization.scale = np.array(value.type.qparams.scale, np.float32)
            quantization.zeroPoint = np.array(value.type.qparams.zero_point, np.int64)
            graph.tensors[index].quantization = quantization
        return index

    # No padding after the stream: the driver would interpret it as further actions, and refuses zeros.
    commands = program.commands
    constants = (bytes(program.constants) or bytes(_ALIGNMENT)) + bytes(-len(program.constants) % _ALIGNMENT)
    uint8 = schema.TensorType.UINT8
    stream = tensor("ethos_u_command_stream", (len(commands),), uint8, _ANYWHERE, commands)
    read_only = tensor("read_only", (len(constants),), uint8, _ANYWHERE, constants)
    scratch = tensor("scratch", (program.scratch_size,), uint8, 0)
    fast = scratch
    if program.fast_scratch_size:
        fast = tensor("scratch_fast", (program.fast_scratch_size,), uint8, _ANYWHERE)
    graph.inputs = [boundary(n, t, b.address) for (n, t), b in zip(inputs, program.inputs, strict=True)]
    graph.outputs = [boundary(n, t, b.address) for (n, t), b in zip(outputs, program.outputs, strict=True)]
    code = schema.OperatorCodeT()
    code.builtinCode = code.deprecatedBuiltinCode = int(schema.BuiltinOperator.CUSTOM)
    code.customCode, code.version = OPERATOR, 1
    model.operatorCodes = [code]
    operator = schema.OperatorT()
    operator.opcodeIndex = 0
    operator.inputs, operator.outputs = [stream, read_only, scratch, fast, *graph.inputs], list(graph.outputs)
    operator.customOptions = np.frombuffer(_OPTIONS, np.uint8)
    graph.operators = [operator]
    words = np.array([_VERSION, len(model.subgraphs), len(places), *places], "<i4")
    return model, (ALLOCATION, words.tobytes())
