"""A LiteRT model as one NeutronGraph operator with made-up contents, right or wrong in one respect."""

from __future__ import annotations

import struct

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema

MAGIC = 0x64434D6E


def _tensor(model, graph, name, shape, kind, data=None):
    tensor = schema.TensorT()
    tensor.name, tensor.shape, tensor.type, tensor.buffer = name, list(shape), kind, 0
    if data is not None:
        buffer = schema.BufferT()
        buffer.data = np.frombuffer(data, np.uint8)
        model.buffers.append(buffer)
        tensor.buffer = len(model.buffers) - 1
    graph.tensors.append(tensor)
    return len(graph.tensors) - 1


def microcode(size, weights, inputs, outputs, version, magic=MAGIC):
    """The words with a published meaning; the rest is filled with a pattern."""
    words = [0xA5A5A5A5] * (size // 4)
    words[0], words[6], words[7], words[9] = magic, size, weights, 256
    if version == 0:
        words[10:13] = [0, inputs, outputs]
    else:
        words[10:15] = [64, 16, 0, inputs, outputs]
    return struct.pack(f"<{len(words)}I", *words)


def wrap(model: bytes, version: int = 0, defect: str = "") -> bytes:
    """The model as a converter answers with it."""
    source = schema.ModelT.InitFromObj(schema.Model.GetRootAs(model))
    old = source.subgraphs[0]
    made = schema.ModelT()
    made.version, made.description, made.buffers = 3, "stand-in", [schema.BufferT()]
    graph = schema.SubGraphT()
    graph.tensors, graph.operators = [], []

    def boundary(indices):
        numbers = []
        for index in indices:
            tensor = old.tensors[index]
            number = _tensor(made, graph, tensor.name, tensor.shape, tensor.type)
            graph.tensors[number].quantization = tensor.quantization
            numbers.append(number)
        return numbers

    inputs, outputs = boundary(old.inputs), boundary(old.outputs)
    if defect in ("reordered", "renamed_and_reordered"):
        inputs, outputs = inputs[::-1], outputs[::-1]
    if defect.startswith("renamed"):
        for number in (*inputs, *outputs):
            graph.tensors[number].name = f"made_{number}"
    weights = b"the LiteRT model, %d bytes" % len(model)
    kernels = b"made-up kernels"
    if defect == "padded_buffers":
        weights += bytes(5)
    code_words = {
        "wrong_magic": {"magic": 0x12345678},
        "wrong_weights_size": {"weights": len(weights) + 1},
        "wrong_counts": {"inputs": len(inputs) + 1},
    }.get(defect, {})
    code = microcode(
        **{
            "size": 96,
            "weights": len(b"the LiteRT model, %d bytes" % len(model)),
            "inputs": len(inputs),
            "outputs": len(outputs),
            "version": version,
            **code_words,
        }
    )
    if defect == "hidden_tail":
        code += b"\1" * 16
    if defect == "short_microcode":
        code = code[:40]
    uint8 = schema.TensorType.UINT8
    blobs = [("microcode", code), ("weights", weights), ("kernels", kernels)]
    sections = [_tensor(made, graph, name, [len(blob)], uint8, blob) for name, blob in blobs]
    extra = ("scratch", "profile", "debug")[: 3 if version else 1]
    own = [_tensor(made, graph, name, [64], uint8) for name in extra]
    operator = schema.OperatorT()
    operator.opcodeIndex = 0
    operator.inputs, operator.outputs = [*inputs, *sections], [*outputs, *own]
    operators = [operator]
    code_of = schema.OperatorCodeT()
    code_of.builtinCode = code_of.deprecatedBuiltinCode = schema.BuiltinOperator.CUSTOM
    code_of.customCode = "NeutronGraph"
    made.operatorCodes = [code_of]
    graph.inputs, graph.outputs = list(inputs), list(outputs)

    if defect == "leftovers":
        for old_operator in old.operators:
            builtin = schema.OperatorCodeT()
            builtin.builtinCode = source.operatorCodes[old_operator.opcodeIndex].builtinCode
            builtin.deprecatedBuiltinCode = builtin.builtinCode
            made.operatorCodes.append(builtin)
            left = schema.OperatorT()
            left.opcodeIndex = len(made.operatorCodes) - 1
            left.inputs, left.outputs = [inputs[0]], [outputs[0]]
            operators.append(left)
    elif defect == "nothing_left":
        operators = []
    elif defect == "two_graphs":
        operators = [operator, operator]
    elif defect == "too_few_operands":
        operator.inputs = sections[:2]
    elif defect == "two_extra_outputs":
        operator.outputs = [*operator.outputs, own[0]]
    elif defect == "operand_out_of_range":
        operator.inputs = [*inputs[:-1], 999, *sections]
    elif defect == "result_out_of_range":
        operator.outputs = [*outputs, -7]
    elif defect == "absent_kernels":
        operator.inputs = [*operator.inputs[:-1], -1]
    elif defect == "weights_are_an_input":
        operator.inputs = [*inputs, sections[0], inputs[0], sections[2]]
    elif defect == "weights_are_int8":
        graph.tensors[sections[1]].type = schema.TensorType.INT8
    elif defect == "shape_of_weights":
        graph.tensors[sections[1]].shape = [len(weights) + 3]
    elif defect == "buffer_out_of_range":
        graph.tensors[sections[1]].buffer = 77
    elif defect == "scratch_is_an_output":
        graph.outputs = [*outputs[:-1], own[0]]
    elif defect == "reads_a_section":
        operator.inputs = [*inputs[:-1], sections[2], *sections]
    elif defect == "writes_twice":
        operator.outputs = [*[outputs[0]] * len(outputs), *own]
    elif defect == "shape":
        graph.tensors[inputs[0]].shape = [*graph.tensors[inputs[0]].shape, 2]
    elif defect == "element_type":
        graph.tensors[inputs[0]].type = schema.TensorType.INT16
    elif defect == "scale":
        graph.tensors[outputs[0]].quantization.scale = [0.125]
    elif defect == "lost_input":
        graph.inputs = inputs[1:]
        operator.inputs = [*inputs[1:], *sections]
        graph.tensors[sections[0]].buffer = _buffer(made, microcode(96, len(weights), len(inputs) - 1, 1, version))
    elif defect == "extra_input":
        graph.inputs = [*inputs, _tensor(made, graph, "more", [1], uint8)]
    graph.operators = operators
    made.subgraphs = [graph] * (2 if defect == "two_subgraphs" else 1)
    builder = flatbuffers.Builder(1024)
    builder.Finish(made.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def _buffer(model, data):
    buffer = schema.BufferT()
    buffer.data = np.frombuffer(data, np.uint8)
    model.buffers.append(buffer)
    return len(model.buffers) - 1


def dumps(model: bytes) -> str:
    """What the vendor's converter prints of a model that it converts for a profile: a kernel for each operator."""
    graph = schema.ModelT.InitFromObj(schema.Model.GetRootAs(model)).subgraphs[0]

    def names(indices):
        return "".join(f"    [{i}]: {graph.tensors[t].name.decode()}\n" for i, t in enumerate(indices))

    def boundary(operator):
        return f"  Inputs:\n{names(operator.inputs)}  Outputs:\n{names(operator.outputs)}"

    read = "".join(f"  Type: ANY\n{boundary(o)}  Location: {i}\n" for i, o in enumerate(graph.operators))
    numbered = list(enumerate(graph.operators, 1))
    kernel = "    Operators:\n      ANY\n    Kernels:\n      AnyV1\n"
    extracted = "".join(f'  NeutronOperator "subgraph_{n:03}":\n{kernel}' for n, _ in numbered)
    made = "".join(f"Name: subgraph_{n:03}\n{boundary(o)}  Tensors:\n" for n, o in numbered)
    sections = (read, "= Optimize Graph =\n= Extract Graphs =\n", extracted, "Generate code for NeutronGraph\n")
    return f"Graphs:\n{''.join(sections)}Graphs:\n{made}"
