"""Comparison of imported ONNX files with onnxruntime."""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper
from tests.compile.frontend.onnx_rows import ROWS
from tests.compile.frontend.test_onnx_node_tests import FOLDER, RIGHT, with_constants

from micronpu.base.errors import ImportMismatchError, ModelError, UnsupportedError
from micronpu.frontend.facts import NOT_COMPARED
from micronpu.frontend.model_files import onnx_runtime, own_runtime, read_model, runtime_process, runtime_worker
from micronpu.frontend.model_files.onnx import LOWERINGS, read_onnx
from micronpu.frontend.model_files.onnx_runtime import OnnxRuntime
from micronpu.frontend.model_files.own_runtime import RuntimeRefusalError
from micronpu.frontend.model_files.runtime_process import RuntimeProcess


class InProcess:
    """onnxruntime in this process, for many files."""

    def __init__(self, *_: str) -> None:
        self.runtime: Any = None

    def stop(self) -> None:
        self.runtime = None

    def ask(self, head: dict[str, Any], blobs: Any) -> tuple[dict[str, Any], list[bytes]]:
        try:
            if head["do"] == "load":
                self.runtime = runtime_worker._Onnx(blobs[0], head)
                return {}, []
            found = self.runtime.run(head, blobs)
        except Exception as error:
            raise RuntimeRefusalError(str(error)) from error
        described = [None if a is None else [a.dtype.str, list(a.shape)] for a in found]
        return {"tensors": described}, [b"" if a is None else a.tobytes() for a in found]


def compared(name: str, data: bytes) -> str:
    try:
        network = read_onnx(data, Path(name))
    except (ModelError, UnsupportedError):
        return "not read"
    try:
        with torch.no_grad(), OnnxRuntime(data, Path(name), network) as runtime:
            own_runtime.verify_import(network, runtime)
    except RuntimeRefusalError:
        return "not run"
    except ImportMismatchError as error:
        return f"{name}: {error}"
    return "equal"


@pytest.mark.sweep
def test_no_node_test_and_no_row_differs(monkeypatch: Any):
    monkeypatch.setattr(onnx_runtime, "RuntimeProcess", InProcess)
    files = [(str(row), row.model()) for row in ROWS]
    files += [(folder.name, data) for folder in sorted(FOLDER.iterdir()) if (data := with_constants(folder))]
    counts = Counter(compared(*file) for file in files)
    assert set(counts) <= {"equal", "not read", "not run"}, counts
    assert counts["equal"] > RIGHT + len(ROWS) - 10


def chain(quantized: bool = False) -> onnx.ModelProto:
    """Write relu(x * x) + c, in floats or between QuantizeLinear and DequantizeLinear."""
    nodes, constants = [], [numpy_helper.from_array(np.ones((1, 4), np.float32), "c")]

    def add(kind: str, inputs: list[str], name: str) -> str:
        nodes.append(helper.make_node(kind, inputs, [name]))
        if not quantized:
            return name
        nodes.append(helper.make_node("QuantizeLinear", [name, "s", "z"], [f"{name}_q"]))
        nodes.append(helper.make_node("DequantizeLinear", [f"{name}_q", "s", "z"], [f"{name}_r"]))
        return f"{name}_r"

    if quantized:
        constants += [numpy_helper.from_array(np.array(0.05, np.float32), "s")]
        constants += [numpy_helper.from_array(np.array(100, np.uint8), "z")]
    square = add("Mul", ["x", "x"], "square")
    y = add("Add", [add("Relu", [square], "relu"), "c"], "sum")
    x, made = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 4]) for name in ("x", y))
    graph = helper.make_graph(nodes, "net", [x], [made], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.mark.sweep
@pytest.mark.parametrize("quantized", [False, True])
@pytest.mark.parametrize("kind, tensor", [("Mul", "square"), ("Add", "sum")])
def test_the_first_tensor_that_differs_is_named(
    monkeypatch: Any, tmp_path: Path, kind: str, tensor: str, quantized: bool
):
    path = tmp_path / "net.onnx"
    onnx.save(chain(quantized), path)
    assert not NOT_COMPARED.of(read_model(path).module)
    monkeypatch.setitem(LOWERINGS, kind, lambda node: node.emit(torch.sub))
    with pytest.raises(ImportMismatchError, match=f"`{tensor}` .*{kind}.* is not what onnxruntime"):
        read_model(path)
    read_model(path, verify_import=False)


def test_small_sigmoids_may_be_rounded(tmp_path: Path):
    """onnxruntime computes them as differences from 0.5, so that those near 2e-8 are up to 1.3e-7 too large."""
    path, size = tmp_path / "net.onnx", [1, 24576]
    nodes = [
        helper.make_node("Mul", ["x", "little"], ["s"]),
        helper.make_node("Add", ["s", "low"], ["z"]),
        helper.make_node("Sigmoid", ["z"], ["y"]),
    ]
    sides = [[helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, size)] for name in ("x", "y")]
    low, little = np.linspace(-18, -17.4, size[1], dtype=np.float32)[None], np.array(0.01, np.float32)
    constants = [numpy_helper.from_array(low, "low"), numpy_helper.from_array(little, "little")]
    graph = helper.make_graph(nodes, "net", *sides, constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    assert not NOT_COMPARED.of(read_model(path).module)


def test_integers_off_by_one_are_found(monkeypatch: Any, tmp_path: Path):
    path = tmp_path / "net.onnx"
    onnx.save(chain(True), path)
    monkeypatch.setitem(LOWERINGS, "Relu", lambda node: node.emit(lambda x: torch.relu(x) * 1.001))
    with pytest.raises(ImportMismatchError, match="`relu`"):
        read_model(path)


def test_external_data_is_compared(monkeypatch: Any, tmp_path: Path):
    path = tmp_path / "net.onnx"
    onnx.save(chain(), path, save_as_external_data=True, location="net.data", size_threshold=0)
    assert not NOT_COMPARED.of(read_model(path).module)
    monkeypatch.setitem(LOWERINGS, "Add", lambda node: node.emit(torch.sub))
    with pytest.raises(ImportMismatchError, match="`sum`"):
        read_model(path)


def test_a_file_that_onnxruntime_refuses_is_a_note(tmp_path: Path):
    x, y = (helper.make_tensor_value_info(name, onnx.TensorProto.INT16, [4]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Max", ["x", "x"], ["y"])], "net", [x], [y])
    path = tmp_path / "net.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    assert "onnxruntime reports" in NOT_COMPARED.of(read_model(path).module)


def test_without_onnxruntime_there_is_a_note(monkeypatch: Any, tmp_path: Path):
    path = tmp_path / "net.onnx"
    onnx.save(chain(), path)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert "pip install onnxruntime" in NOT_COMPARED.of(read_model(path).module)


@pytest.mark.parametrize("ends", [signal.SIGSEGV, signal.SIGSTOP], ids=["crash", "hang"])
def test_a_process_that_ends_or_hangs_is_a_note(monkeypatch: Any, tmp_path: Path, ends: signal.Signals):
    path, ask = tmp_path / "net.onnx", RuntimeProcess.ask
    onnx.save(chain(), path)

    def ended(process: RuntimeProcess, head: dict[str, Any], blobs: Any = ()) -> Any:
        if head["do"] == "run" and process.worker.process.poll() is None:
            os.kill(process.worker.pid, ends)
            monkeypatch.setattr(runtime_process, "_SECONDS", 0.1)
        return ask(process, head, blobs)

    monkeypatch.setattr(RuntimeProcess, "ask", ended)
    assert "onnxruntime crashed with SIG" in NOT_COMPARED.of(read_model(path).module)
