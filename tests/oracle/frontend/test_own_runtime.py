"""Comparison of imported LiteRT files with LiteRT's reference kernels."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ai_edge_litert.interpreter import Interpreter
from tests.oracle.frontend.litert_files import FileWriter
from tests.runtime.test_fence import expected_fences

import micronpu
from micronpu.base import worker
from micronpu.base.errors import ImportMismatchError
from micronpu.base.worker import receive
from micronpu.frontend.facts import NOT_COMPARED
from micronpu.frontend.model_files import read_model
from micronpu.frontend.model_files.litert import parse
from micronpu.frontend.model_files.litert_graph import LOWERINGS
from micronpu.frontend.model_files.litert_operators import _elementwise
from micronpu.frontend.model_files.litert_runtime import LiteRtRuntime
from micronpu.frontend.model_files.own_runtime import RuntimeRefusalError


def weights(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def chain(quantized: bool = False) -> bytes:
    """Write relu(x * x) + x, in floats or int8."""
    file, q = FileWriter(), {"dtype": "int8", "scale": 0.05, "zero": 3} if quantized else {}
    x, square, relu, y = (file.tensor((1, 4, 4, 2), **q) for _ in range(4))
    file.add("MUL", [x, x], [square], "MulOptions")
    file.add("RELU", [square], [relu])
    file.add("ADD", [relu, x], [y], "AddOptions")
    return file.data([x], [y])


@pytest.mark.sweep
@pytest.mark.parametrize("quantized", [False, True])
@pytest.mark.parametrize("kind, tensor", [("MUL", "t1"), ("ADD", "t3")])
def test_the_first_tensor_that_differs_is_named(
    monkeypatch: Any, tmp_path: Path, kind: str, tensor: str, quantized: bool
):
    path = tmp_path / "net.tflite"
    path.write_bytes(chain(quantized))
    read_model(path)
    monkeypatch.setitem(LOWERINGS, kind, _elementwise(torch.sub, 2))
    with pytest.raises(ImportMismatchError, match=f"`{tensor}` .*{kind}.* is not what LiteRT"):
        read_model(path)
    with pytest.raises(ImportMismatchError, match=tensor):
        micronpu.compile(path, target="corstone300")
    read_model(path, verify_import=False)


def test_a_result_off_by_one_in_a_thousand_is_found(monkeypatch: Any, tmp_path: Path):
    path = tmp_path / "net.tflite"
    path.write_bytes(chain())
    monkeypatch.setitem(LOWERINGS, "ADD", _elementwise(lambda a, b: (a + b) * 1.001, 2))
    with pytest.raises(ImportMismatchError, match="t3"):
        read_model(path)


def test_calibration_rows_are_compared_too(monkeypatch: Any, tmp_path: Path):
    path = tmp_path / "net.tflite"
    path.write_bytes(chain())
    monkeypatch.setitem(LOWERINGS, "RELU", _elementwise(lambda x: torch.relu(x).clamp(max=1000.0), 1))
    read_model(path)
    with pytest.raises(ImportMismatchError, match="t2"):
        read_model(path, calibration=[(torch.full((1, 4, 4, 2), 50.0),)])


def test_a_file_that_the_runtime_refuses_is_a_note(tmp_path: Path):
    file = FileWriter()
    x, y = file.tensor((1, 4, 4, 2)), file.tensor((1, 8, 8, 3))
    options = np.array([1, 2, 2], "<i4").tobytes()
    parts = [file.constant(weights(3, 2, 2, 2)), file.constant(weights(3))]
    file.add("CUSTOM", [x, *parts], [y], custom=b"Convolution2DTransposeBias")
    file.graph.operators[0].customOptions = np.frombuffer(options, np.uint8)
    path = tmp_path / "net.tflite"
    path.write_bytes(file.data([x], [y]))
    module = read_model(path).module
    assert "unresolved custom op" in NOT_COMPARED.of(module)
    program = micronpu.compile(path, target="corstone300", calibration=[(torch.randn(1, 4, 4, 2),)])
    assert "not compared with the file's own runtime" in program.report.to_json()


def test_the_process_of_the_comparison_is_fenced() -> None:
    data = chain()
    with LiteRtRuntime(parse(data), data, ()) as runtime:
        assert runtime._process is not None
        if "processes" in expected_fences():
            assert "Seccomp:\t2" in Path(f"/proc/{runtime._process.worker.pid}/status").read_text()


SENT = [
    b"[" * 100_000,
    b"no JSON",
    b"[]",
    b"{}",
    b'{"sizes": "a"}',
    b'{"sizes": [9223372036854775808]}',
    b'{"sizes": [-1]}',
]


@pytest.mark.parametrize("sent", SENT, ids=len)
def test_what_a_broken_process_sends_is_refused(sent: bytes, monkeypatch: Any) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(len(sent).to_bytes(8, "little") + sent)
        monkeypatch.setattr(worker, "receive", lambda _, *limits: receive(ours, *limits))
        data = chain()
        with pytest.raises(RuntimeRefusalError, match="cannot be read"), LiteRtRuntime(parse(data), data, ()):
            pass


def stateful() -> bytes:
    """Write a running sum s = s + x, with the initial value 0.5, whose new value is the output."""
    file = FileWriter()
    x, handle, old, new = file.tensor((1, 4)), file.tensor((), "resource"), file.tensor((1, 4)), file.tensor((1, 4))
    file.add("CALL_ONCE", [], [], "CallOnceOptions", initSubgraphIndex=1)
    file.add("VAR_HANDLE", [], [handle], "VarHandleOptions", container=b"", sharedName=b"sum")
    file.add("READ_VARIABLE", [handle], [old], "ReadVariableOptions")
    file.add("ADD", [old, x], [new], "AddOptions")
    file.add("ASSIGN_VARIABLE", [handle, new], [], "AssignVariableOptions")
    file.ends([x], [new])
    file.subgraph()
    handle = file.tensor((), "resource")
    file.add("VAR_HANDLE", [], [handle], "VarHandleOptions", container=b"", sharedName=b"sum")
    file.add("ASSIGN_VARIABLE", [handle, file.constant(np.full((1, 4), 0.5, np.float32))], [], "AssignVariableOptions")
    return file.data()


def test_states_are_compared_in_a_sequence_of_calls(monkeypatch: Any, tmp_path: Path):
    path = tmp_path / "net.tflite"
    path.write_bytes(stateful())
    assert not NOT_COMPARED.of(read_model(path).module)
    assign = LOWERINGS["ASSIGN_VARIABLE"]

    def halved(build: Any, operator: Any) -> None:
        assign(build, operator)
        state = build.states[0]
        (state.written,) = build.add("half", lambda x: x / 2, [state.written])

    monkeypatch.setitem(LOWERINGS, "ASSIGN_VARIABLE", halved)
    with pytest.raises(ImportMismatchError, match="t2"):
        read_model(path)


@pytest.mark.parametrize("kind", ["CONV_2D", "FULLY_CONNECTED"])
def test_uint8_weights_of_old_converters_are_int8(kind: str, tmp_path: Path):
    """With the zero point 0, LiteRT's kernels of float activations read them as int8."""
    file, integers = FileWriter(), np.random.default_rng(0).integers(-127, 128, (4, 1, 1, 8)).astype(np.int8)
    if kind == "CONV_2D":
        x, y, options = file.tensor((1, 5, 5, 8)), file.tensor((1, 5, 5, 4)), {"strideH": 1, "strideW": 1}
    else:
        x, y, options = file.tensor((5, 8)), file.tensor((5, 4)), {}
        integers = integers.reshape(4, 8)
    name = {"CONV_2D": "Conv2DOptions"}.get(kind, "FullyConnectedOptions")
    operands = [x, file.constant(integers.view(np.uint8), scale=0.02), file.constant(weights(4))]
    file.add(kind, operands, [y], name, **options)
    path = tmp_path / "net.tflite"
    path.write_bytes(file.data([x], [y]))
    read = read_model(path)
    assert not NOT_COMPARED.of(read.module)
    runtime = Interpreter(str(path))
    runtime.allocate_tensors()
    value = weights(*read.examples[0].shape, seed=1)
    runtime.set_tensor(runtime.get_input_details()[0]["index"], value)
    runtime.invoke()
    expected = runtime.get_tensor(runtime.get_output_details()[0]["index"])
    assert np.abs(read.module(torch.from_numpy(value)).numpy() - expected).max() < 0.05 * np.abs(expected).max()


@pytest.mark.parametrize(
    "name, match",
    [
        (b"ethos-u", "compiled for an NPU already.*given to Vela"),
        (b"edgetpu-custom-op", "compiled for an NPU already"),
        (b"TFLite_Detection_PostProcess", "deploy --with nms,ssd_decode"),
        (b"FlexErf", "SELECT_TF_OPS"),
    ],
)
def test_files_of_the_wrong_stage_say_what_to_give(name: bytes, match: str, tmp_path: Path):
    file = FileWriter()
    x, y = file.tensor((1, 4)), file.tensor((1, 4))
    stream = [file.constant(np.zeros(16, np.uint8))] if name == b"ethos-u" else []
    file.add("CUSTOM", [x, *stream], [y], custom=name)
    if name.startswith(b"edgetpu"):
        file.graph.operators[0].customOptions = np.zeros(9999, np.uint8)
    path = tmp_path / "net.tflite"
    path.write_bytes(file.data([x], [y]))
    with pytest.raises(micronpu.UnsupportedError, match=match):
        read_model(path)


def test_example_inputs_give_open_sizes(tmp_path: Path):
    file = FileWriter()
    x, y, z = file.tensor((1, 1)), file.tensor((1, 1)), file.tensor((1, 1))
    for number in (x, y, z):
        file.graph.tensors[number].shapeSignature = np.array([1, -1], np.int32)
    file.add("TANH", [x], [y])
    file.add("ADD", [y, x], [z], "AddOptions")
    path = tmp_path / "net.tflite"
    path.write_bytes(file.data([x], [z]))
    with pytest.raises(micronpu.ModelError, match=r"Dimension 1 of the input `t0` is open.*example inputs"):
        read_model(path)
    assert read_model(path, [(1, 160)]).module(torch.zeros(1, 160)).shape == (1, 160)
    assert read_model(path, {"t0": (1, 9)}).examples[0].shape == (1, 9)
    with pytest.raises(micronpu.OptionError, match="no input `x`"):
        read_model(path, {"x": (1, 9)})


def test_joined_tensors_of_other_scales_are_requantized(tmp_path: Path):
    file = FileWriter()
    a, b = file.tensor((1, 4), "int8", 0.05, 3), file.tensor((1, 4), "int8", 0.03)
    y = file.tensor((2, 4), "int8", 0.06)
    file.add("CONCATENATION", [a, b], [y], "ConcatenationOptions", axis=0)
    path = tmp_path / "net.tflite"
    path.write_bytes(file.data([a, b], [y]))
    program = micronpu.compile(path, target="corstone300")
    result = program.run(torch.full((1, 4), 43, dtype=torch.int8), torch.full((1, 4), 40, dtype=torch.int8))
    assert torch.as_tensor(result).tolist() == [[33] * 4, [20] * 4]
