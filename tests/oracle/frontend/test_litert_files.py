"""LiteRT files: every operator that the package writes is read back as the same integers, and what is refused."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ai_edge_litert import schema_py_generated as schema
from tests.cases import Case, all_cases, case, i8, q, w8
from tests.oracle.ops.test_operators import difference, legal, operator_of, union
from tests.runtime import neutron_programs as programs
from torch import nn

import micronpu
from micronpu.base.errors import MicroNpuError, ModelError
from micronpu.cli.files import CalibrationInputs, load_calibration, load_model
from micronpu.cli.workers import Task, Worker
from micronpu.emit.litert import pack, to_litert
from micronpu.frontend.importer import import_program
from micronpu.frontend.model_files import read_model
from micronpu.frontend.model_files.litert import parse
from micronpu.frontend.model_files.litert_graph import FOLDED, LOWERINGS, network_of
from micronpu.frontend.model_files.onnx import LOWERINGS as ONNX_LOWERINGS
from micronpu.frontend.program import ProgramView
from micronpu.ir import interpret
from micronpu.ops.convolution import Conv2d

ROWS_PER_FILE = 3
OTHERS = {
    "argmax": "arithmetic on indices, as only this package writes it",
    "gather_rows": "indices as inputs, which are no int8 numbers",
    "scatter_rows": "DYNAMIC_UPDATE_SLICE",
    "reflect_pad": "more than rows and columns",
    "log": "int16: a table of its own instead of LiteRT's",
    "rsqrt": "int16: a table of its own instead of LiteRT's",
}
"""Operators whose rows are not, or not all, read as the same integers."""
INTERPOLATED = ("int16_tables", "table")
"""Tables that the target interpolates, which differ by one or two when they are computed of their own elements."""
REFUSED = ("from the corners of pixels", "slopes that are not one", "smaller than its padding")


def readable(row: Case) -> bool:
    wide_softmax = operator_of(row) == ("int16", "softmax") and row.graph().inputs[0].type.shape[-1] >= 64
    if row.op.name in OTHERS or wide_softmax:  # summed in parts, which differs by one
        return False
    try:
        network_of(parse(to_litert(legal(row.graph())).data))
    except MicroNpuError as error:
        assert any(text in str(error) for text in REFUSED), f"{row.name}: {error}"
        return False
    return True


def files() -> list[Any]:
    rows = sorted(all_cases(), key=operator_of)
    grouped = ((key, list(found)) for key, found in groupby(rows, key=operator_of))
    read = [(key, found) for key, found in grouped if key[1] not in OTHERS and key != INTERPOLATED]
    return [pytest.param(found, id="-".join(key)) for key, found in read]


@pytest.mark.sweep
@pytest.mark.parametrize("rows", files())
def test_reads_what_the_package_writes(rows: list[Case], tmp_path: Path):
    rows = [row for row in rows if readable(row)][:: -(-len(rows) // ROWS_PER_FILE)]
    path = tmp_path / "rows.tflite"
    data = to_litert(union([legal(row.graph()) for row in rows])).data
    path.write_bytes(data)
    graph = import_program(ProgramView(read_model(path).module))
    model = programs.interpreter(data)
    problems = []
    for number in set(range(5)).intersection(*(row.litert_samples for row in rows)):
        inputs = [value for row in rows for value in row.samples[number]]
        results = zip(rows, programs.invoke(model, *inputs), interpret(graph, inputs), strict=True)
        for i, (row, expected, got) in enumerate(results):
            if i in graph.channels_last_outputs:
                got = np.transpose(got, (0, 3, 1, 2))
            problems.append(difference(expected, np.asarray(got), f"{row.name}, sample {number}"))
    assert not any(problems), "\n".join(filter(None, problems))


def test_functions_of_a_written_program_are_tables_again(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.SiLU(), nn.Flatten(), nn.Linear(144, 3), nn.Softplus()).eval()
    rows = [torch.randn(1, 2, 8, 8) for _ in range(4)]
    how = micronpu.Quantization(activations="int8", io="int8")
    program = micronpu.compile(model, rows[0], "corstone300", calibration=rows, quantization=how)
    program.save(tmp_path / "net.tflite")
    again = micronpu.compile(tmp_path / "net.tflite", target="corstone300")
    assert again.report.delegated == again.report.operators
    row = torch.randint(-128, 128, (1, 2, 8, 8), dtype=torch.int8)
    assert torch.equal(again.run(row), program.run(row))


# ---------------------------------------------------------------- whole files

Model = schema.ModelT


def small() -> Model:
    """A convolution of 3 to 8 channels as an object that tests change."""
    row = case(Conv2d(), x=i8(1, 6, 6, 3, scale=0.05, zero=-3), weight=w8(8, 3, 3, 3, axis=0), out=q(0.1, 5), name="c")
    return schema.ModelT.InitFromObj(schema.Model.GetRootAs(to_litert(legal(row.graph())).data, 0))


def refused(change: Any, match: str) -> None:
    model = small()
    change(model, model.subgraphs[0])
    with pytest.raises(MicroNpuError, match=match):
        network_of(parse(pack(model)))


def test_compiles_without_calibration(tmp_path: Path):
    path = tmp_path / "net.tflite"
    path.write_bytes(pack(small()))
    program = micronpu.compile(path, target="imxrt700-neutron")
    assert program.report.delegated == program.report.operators
    assert [t.dtype for t in program.report.inputs] == ["int8"]
    x = torch.randint(-128, 128, (1, 6, 6, 3), generator=torch.Generator().manual_seed(0)).to(torch.int8)
    (expected,) = programs.invoke(programs.interpreter(path.read_bytes()), x.numpy())
    assert np.array_equal(np.asarray(program.run(x)), expected)
    assert "net.tflite:" in program.report.to_json()


def test_bias_of_31_bits_is_kept(tmp_path: Path):
    """float32 has 24 bits: a bias that went through it would be off by up to 64."""
    model = small()
    tensor = model.subgraphs[0].tensors[model.subgraphs[0].operators[0].inputs[2]]
    values = np.arange(8, dtype=np.int32) * 2 + (1 << 29) + 1
    model.buffers[tensor.buffer].data = values.view(np.uint8)
    path = tmp_path / "net.tflite"
    path.write_bytes(pack(model))
    graph = import_program(ProgramView(read_model(path).module))
    assert any(t.data is not None and np.array_equal(t.data, values) for n in graph.nodes for t in n.inputs)


def test_commands_about_data_know_a_quantized_file(tmp_path: Path):
    path = tmp_path / "net.tflite"
    path.write_bytes(pack(small()))
    model = load_model(str(path))
    data = load_calibration(None, model).keep()
    row = Worker(Task(str(path))).run(("cortex-m55", "int8"))
    assert not row.failed, row.blocks
    with pytest.raises(ModelError, match="net is quantized already, and this command compares with the float model"):
        list(data)
    read: list[int] = []
    kept = CalibrationInputs("data", lambda: (read.append(1) or i for i in range(3))).keep()
    assert [*kept, *kept] == [0, 1, 2, 0, 1, 2] and len(read) == 3


def test_inputs_have_the_names_of_the_file(tmp_path: Path):
    path = tmp_path / "net.tflite"
    path.write_bytes(pack(small()))
    read = read_model(path)
    (placeholder,) = (n for n in read.module.graph.nodes if n.op == "placeholder")
    assert read.names == ("input_0",) and placeholder.name == "input_0"


def test_bytes_stay_bytes(tmp_path: Path):
    """Input int8 and output uint8, as streaming models are written."""
    model = small()
    graph, code = model.subgraphs[0], schema.OperatorCodeT()
    code.builtinCode = code.deprecatedBuiltinCode = schema.BuiltinOperator.QUANTIZE
    model.operatorCodes.append(code)
    last, made = graph.tensors[graph.outputs[0]], schema.TensorT()
    made.name, made.shape, made.type, made.buffer = b"bytes", last.shape, schema.TensorType.UINT8, 0
    made.quantization = schema.QuantizationParametersT()
    made.quantization.scale = last.quantization.scale
    made.quantization.zeroPoint = last.quantization.zeroPoint + 128
    graph.tensors.append(made)
    operator = schema.OperatorT()
    operator.opcodeIndex = len(model.operatorCodes) - 1
    operator.inputs, operator.outputs = graph.outputs, np.array([len(graph.tensors) - 1], np.int32)
    graph.operators.append(operator)
    graph.outputs = operator.outputs
    path = tmp_path / "net.tflite"
    path.write_bytes(pack(model))
    program = micronpu.compile(path, target="cortex-m55")
    x = torch.randint(-128, 128, (1, 6, 6, 3), generator=torch.Generator().manual_seed(0)).to(torch.int8)
    (expected,) = programs.invoke(programs.interpreter(path.read_bytes()), x.numpy())
    got = np.asarray(program.run(x))
    assert got.dtype == np.uint8 and np.array_equal(got, expected)


def test_float_file_is_a_float_model(tmp_path: Path):
    model = small()
    for tensor in model.subgraphs[0].tensors:
        tensor.quantization, tensor.type = None, schema.TensorType.FLOAT32
        data = model.buffers[tensor.buffer].data
        if data is not None:
            count = int(np.prod(tensor.shape))
            model.buffers[tensor.buffer].data = np.linspace(-1, 1, count).astype(np.float32).view(np.uint8)
    path = tmp_path / "net.tflite"
    path.write_bytes(pack(model))
    read = read_model(path)
    (expected,) = programs.invoke(programs.interpreter(path.read_bytes()), read.examples[0].numpy())
    with torch.no_grad():
        assert np.allclose(read.module(*read.examples).numpy(), expected, atol=1e-5)
    program = micronpu.compile(path, target="ethos-u55-128", calibration=[read.examples[0] * k for k in (1, -1, 0.5)])
    assert program.report.delegated == program.report.operators


def test_float16_weights_are_floats(tmp_path: Path):
    model = small()
    graph, code = model.subgraphs[0], schema.OperatorCodeT()
    code.builtinCode = code.deprecatedBuiltinCode = schema.BuiltinOperator.DEQUANTIZE
    model.operatorCodes.append(code)
    for tensor in graph.tensors:
        tensor.quantization, tensor.type = None, schema.TensorType.FLOAT32
    for i in (1, 2):
        half, full = graph.tensors[graph.operators[-1].inputs[i]], schema.TensorT()
        values = np.linspace(-1, 1, int(np.prod(half.shape))).astype(np.float16)
        half.type, model.buffers[half.buffer].data = schema.TensorType.FLOAT16, values.view(np.uint8)
        full.name, full.shape, full.type, full.buffer = (
            half.name + b" in float",
            half.shape,
            schema.TensorType.FLOAT32,
            0,
        )
        graph.tensors.append(full)
        operator = schema.OperatorT()
        inputs = np.array(graph.operators[-1].inputs)
        operator.opcodeIndex, operator.inputs = len(model.operatorCodes) - 1, inputs[[i]]
        operator.outputs = np.array([len(graph.tensors) - 1], np.int32)
        inputs[i] = operator.outputs[0]
        graph.operators[-1].inputs = inputs
        graph.operators.insert(0, operator)
    path = tmp_path / "net.tflite"
    path.write_bytes(pack(model))
    read = read_model(path)
    (expected,) = programs.invoke(programs.interpreter(path.read_bytes()), read.examples[0].numpy())
    with torch.no_grad():
        assert np.allclose(read.module(*read.examples).numpy(), expected, atol=1e-5)


def test_refusals_say_operator_and_tensor():
    def custom(model: Model, graph: Any) -> None:
        model.operatorCodes[0].builtinCode, model.operatorCodes[0].deprecatedBuiltinCode = 32, 32
        model.operatorCodes[0].customCode = b"MyOp"

    def two(model: Model, graph: Any) -> None:
        model.subgraphs.append(graph)

    def point(model: Model, graph: Any) -> None:
        graph.tensors[graph.operators[0].inputs[1]].quantization.zeroPoint = np.full(8, 3)

    def shape(model: Model, graph: Any) -> None:
        graph.tensors[graph.operators[0].outputs[0]].shape = np.array([1, 9, 9, 8], np.int32)

    def huge(model: Model, graph: Any) -> None:
        graph.tensors[graph.inputs[0]].shape = np.array([1, 1 << 20, 1 << 20, 3], np.int32)

    def short(model: Model, graph: Any) -> None:
        model.buffers[graph.tensors[graph.operators[0].inputs[1]].buffer].data = np.zeros(7, np.uint8)

    def twice(model: Model, graph: Any) -> None:
        graph.operators.append(graph.operators[0])

    def scales(model: Model, graph: Any) -> None:
        graph.tensors[graph.inputs[0]].quantization.scale = np.array([0.1, 0.2], np.float32)

    def outside(model: Model, graph: Any) -> None:
        graph.operators[0].inputs = np.array([99, 1, 2], np.int32)

    def dynamic(model: Model, graph: Any) -> None:
        graph.tensors[graph.inputs[0]].shapeSignature = np.array([-1, 6, -1, 3], np.int32)

    def text(model: Model, graph: Any) -> None:
        graph.tensors[graph.inputs[0]].type, graph.tensors[graph.inputs[0]].quantization = (
            schema.TensorType.STRING,
            None,
        )

    cases: Sequence[tuple[Any, str]] = [
        (dynamic, "Dimension 2 of the input `.*` is open"), (text, "The input `.*` is STRING"),
        (custom, r"Operator 0 \(CUSTOM MyOp, .*not read"), (two, "2 subgraphs"), (point, "Operator 0 .*zero point"),
        (shape, r"Operator 0 \(CONV_2D.*shape"), (huge, "Tensor .*shape"), (short, "7 bytes"), (twice, "has a value"),
        (scales, "quantization parameters"), (outside, "tensor 99"),
    ]  # fmt: skip
    for change, match in cases:
        refused(change, match)
    with pytest.raises(ModelError, match="no LiteRT model"):
        parse(b"hello, world")


def test_damaged_files_end_in_a_message():
    data, random = pack(small()), np.random.default_rng(0)
    for _ in range(300):
        damaged = bytearray(data[: random.integers(9, len(data) + 1)] if random.random() < 0.3 else data)
        for place in random.integers(0, len(damaged), 4):
            damaged[place] = random.integers(0, 256)
        with contextlib.suppress(MicroNpuError):
            network_of(parse(bytes(damaged)))


def test_the_page_lists_every_operator():
    page = (Path(__file__).parents[3] / "docs" / "models.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"`([A-Za-z0-9_.]+)`", page))
    assert not {name.removeprefix("CUSTOM ") for name in (*LOWERINGS, *FOLDED, *ONNX_LOWERINGS)} - listed
