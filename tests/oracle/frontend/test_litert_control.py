"""LiteRT files with variables and branches: every call gives what LiteRT's interpreter gives."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ai_edge_litert import schema_py_generated as schema
from tests.runtime import neutron_programs as programs

import micronpu
from micronpu.base.errors import MicroNpuError
from micronpu.emit.litert import pack
from micronpu.frontend.model_files import read_model
from micronpu.frontend.model_files.litert import parse
from micronpu.frontend.model_files.litert_graph import network_of

CODES = schema.BuiltinOperator
TYPES = {np.dtype(np.int8): schema.TensorType.INT8, np.dtype(np.float32): schema.TensorType.FLOAT32,
         np.dtype(bool): schema.TensorType.BOOL}  # fmt: skip


class File:
    """A file that a test writes operator by operator; ``graph`` is the subgraph that is being written."""

    def __init__(self, scale: float | None) -> None:
        self.model, self.scale = schema.ModelT(), scale
        self.model.version, self.model.description = 3, b""
        self.model.buffers, self.model.operatorCodes, self.model.subgraphs = [schema.BufferT()], [], []
        self.subgraph()

    def subgraph(self) -> None:
        self.graph = schema.SubGraphT()
        self.graph.tensors, self.graph.operators = [], []
        self.graph.inputs = self.graph.outputs = np.zeros(0, np.int32)
        self.model.subgraphs.append(self.graph)

    def tensor(self, name: str, shape: Sequence[int], dtype: Any = None, data: np.ndarray | None = None) -> int:
        made = schema.TensorT()
        made.name, made.shape, made.buffer = name.encode(), np.array(shape, np.int32), 0
        dtype = np.dtype(dtype or (np.float32 if self.scale is None else np.int8))
        made.type = TYPES[dtype]
        if dtype == np.int8 and self.scale is not None:
            made.quantization = schema.QuantizationParametersT()
            made.quantization.scale = np.array([self.scale], np.float32)
            made.quantization.zeroPoint = np.array([3])
        if data is not None:
            buffer = schema.BufferT()
            buffer.data = np.frombuffer(np.asarray(data, dtype).tobytes(), np.uint8)
            self.model.buffers.append(buffer)
            made.buffer = len(self.model.buffers) - 1
        self.graph.tensors.append(made)
        return len(self.graph.tensors) - 1

    def handle(self, name: str) -> int:
        number = self.tensor(f"handle of {name}", [])
        self.graph.tensors[number].type, self.graph.tensors[number].quantization = schema.TensorType.RESOURCE, None
        self.operator("VAR_HANDLE", [], [number], "VarHandle", sharedName=name.encode(), container=b"")
        return number

    def operator(self, kind: str, given: list[int], made: list[int], options: str = "", **values: Any) -> None:
        code = schema.OperatorCodeT()
        code.builtinCode, code.version = getattr(CODES, kind), 1
        code.deprecatedBuiltinCode = min(code.builtinCode, 127)
        self.model.operatorCodes.append(code)
        operator = schema.OperatorT()
        operator.opcodeIndex = len(self.model.operatorCodes) - 1
        operator.inputs, operator.outputs = np.array(given, np.int32), np.array(made, np.int32)
        if options:
            operator.builtinOptionsType = getattr(schema.BuiltinOptions, f"{options}Options")
            operator.builtinOptions = getattr(schema, f"{options}OptionsT")()
            for name, value in values.items():
                setattr(operator.builtinOptions, name, value)
        self.graph.operators.append(operator)

    def set_io(self, inputs: list[int], outputs: list[int]) -> None:
        self.graph.inputs, self.graph.outputs = np.array(inputs, np.int32), np.array(outputs, np.int32)


def streaming(scale: float | None, initial: np.ndarray | None) -> bytes:
    """A sum that lives on from call to call, and the tanh of it."""
    file = File(scale)
    x = file.tensor("x", [1, 4])
    if initial is not None:
        file.operator("CALL_ONCE", [], [], "CallOnce", initSubgraphIndex=1)
    handle, old, new, y = file.handle("sum"), *(file.tensor(n, [1, 4]) for n in ("old", "new", "y"))
    file.operator("READ_VARIABLE", [handle], [old], "ReadVariable")
    file.operator("ADD", [x, old], [new], "Add")
    file.operator("ASSIGN_VARIABLE", [handle, new], [], "AssignVariable")
    file.operator("TANH", [new], [y])
    if scale is not None:
        q = file.graph.tensors[y].quantization
        q.scale, q.zeroPoint = np.array([1 / 128], np.float32), np.array([0])
    file.set_io([x], [y])
    if initial is not None:
        file.subgraph()
        handle = file.handle("sum")
        file.operator("ASSIGN_VARIABLE", [handle, file.tensor("first", [1, 4], data=initial)], [], "AssignVariable")
    return pack(file.model)


def calls(dtype: Any) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    return [(random.normal(size=(1, 4)) * (20 if dtype is np.int8 else 0.5)).astype(dtype) for _ in range(5)]


@pytest.mark.parametrize("target", ["imxrt700-neutron", "cortex-m55"])
def test_integer_variables_are_states_of_the_program(target: str, tmp_path: Path):
    path = tmp_path / "net.tflite"
    path.write_bytes(streaming(0.05, np.array([[3, 10, -20, 40]], np.int8)))
    program, model = micronpu.compile(path, target=target), programs.interpreter(path.read_bytes())
    assert [state.dtype for state in program.states] == ["int8"]
    for x in calls(np.int8):
        (expected,) = programs.invoke(model, x)
        assert np.array_equal(np.asarray(program.run(torch.from_numpy(x))), expected)


def test_float_variables(tmp_path: Path):
    path = tmp_path / "net.tflite"
    path.write_bytes(streaming(None, np.array([[0.5, -0.25, 0, 1]], np.float32)))
    module, model = read_model(path).module, programs.interpreter(path.read_bytes())
    for x in calls(np.float32):
        (expected,) = programs.invoke(model, x)
        with torch.no_grad():
            np.testing.assert_allclose(module(torch.from_numpy(x)).numpy(), expected, atol=1e-6)


def branching(kind: str = "IF") -> File:
    file = File(None)
    c, x, y = file.tensor("c", [1], bool), file.tensor("x", [1, 4]), file.tensor("y", [1, 4])
    option = {"thenSubgraphIndex": 1, "elseSubgraphIndex": 2} if kind == "IF" else {}
    file.operator(kind, [c, x], [y], "If" if kind == "IF" else "While", **option)
    file.set_io([c, x], [y])
    for branch in ("TANH", "NEG"):
        file.subgraph()
        x, y = file.tensor("given", [1, 4]), file.tensor("made", [1, 4])
        file.operator(branch, [x], [y])
        file.set_io([x], [y])
    return file


def test_branches_are_both_computed(tmp_path: Path):
    path = tmp_path / "net.tflite"
    path.write_bytes(pack(branching().model))
    read = read_model(path)
    assert read.names == ("c", "x")
    x = calls(np.float32)[0]
    for condition in (True, False):
        (expected,) = programs.invoke(programs.interpreter(path.read_bytes()), np.array([condition]), x)
        got = read.module(torch.tensor([condition]), torch.from_numpy(x))
        np.testing.assert_allclose(got.numpy(), expected, atol=1e-6)


def test_refusals():
    def refused(file: File, match: str) -> None:
        with pytest.raises(MicroNpuError, match=match):
            network_of(parse(pack(file.model)))

    refused(branching("WHILE"), r"Operator 0 \(WHILE, `y`\) is not read")
    inside = branching()
    main, branch = inside.model.subgraphs[:2]
    branch.operators, branch.tensors, branch.inputs, branch.outputs = main.operators, main.tensors, [1], [2]
    refused(inside, r"Operator 0 of subgraph 1 \(IF.*calls subgraph 1, which is not there or called already")
    unused = branching()
    unused.subgraph()
    refused(unused, "4 subgraphs, and no operator calls number 3")
    several = branching()
    several.model.signatureDefs = [schema.SignatureDefT() for _ in range(2)]
    for signature, name in zip(several.model.signatureDefs, (b"encode", b"decode"), strict=True):
        signature.inputs, signature.outputs, signature.signatureKey, signature.subgraphIndex = [], [], name, 0
    refused(several, "2 signatures .encode, decode.")
    with pytest.raises(MicroNpuError, match="reads the variable `sum`, to which nothing has assigned a value"):
        network_of(parse(streaming(None, None)))
    other = File(None)
    x, handle, old = other.tensor("x", [1, 4]), other.handle("h"), other.tensor("old", [1, 5])
    other.operator("ASSIGN_VARIABLE", [handle, x], [], "AssignVariable")
    other.operator("READ_VARIABLE", [handle], [old], "ReadVariable")
    other.set_io([x], [old])
    refused(other, r"Operator 2 \(READ_VARIABLE, `old`\) has another shape")
    stride = File(None)
    x, w, y = (
        stride.tensor("x", [1, 4, 4, 1]),
        stride.tensor("w", [1, 1, 1, 1], data=np.ones(1)),
        stride.tensor("y", [1]),
    )
    stride.operator("CONV_2D", [x, w], [y], "Conv2D", strideH=0, strideW=0)
    stride.set_io([x], [y])
    refused(stride, r"Operator 0 \(CONV_2D, `y`\) has options or operands that do not fit")
