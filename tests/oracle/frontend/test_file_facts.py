"""What a model file states about its inputs and outputs arrives in the program, the header and `evaluate`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.oracle.frontend.litert_files import FileWriter
from tests.runtime import neutron_programs as programs

import micronpu
from micronpu.cli.inspection import inspect_pte
from micronpu.deploy.deployment import deploy
from micronpu.frontend.model_files import read_model

SCALES = {"input": (0.03, 7), "output": (0.25, -9)}


def linear(dtype: str = "int8") -> FileWriter:
    """One dense layer of a quantized file; its input is of a type."""
    random, file = np.random.default_rng(0), FileWriter()
    scale, zero = SCALES["input"]
    x = file.tensor([1, 16], dtype, scale, zero + (128 if dtype == "uint8" else 0))
    x8 = x if dtype == "int8" else file.add("QUANTIZE", [x], [file.tensor([1, 16], "int8", scale, zero)])
    weight = file.constant(random.integers(-127, 128, (4, 16), np.int8), 0.02)
    bias = file.constant(random.integers(-99, 99, 4, np.int32), 0.02 * scale)
    y = file.tensor([1, 4], "int8", *SCALES["output"])
    file.add("FULLY_CONNECTED", [x8, weight, bias], [y], "FullyConnectedOptions")
    file.ends([x], [y])
    return file


def written(file: FileWriter, folder: Path) -> Path:
    path = folder / "net.tflite"
    path.write_bytes(file.data())
    return path


@pytest.mark.parametrize("target", ["ethos-u55-128", "cortex-m55", "imxrt700"])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_qparams_of_a_quantized_file(dtype: str, target: str, tmp_path: Path):
    path = written(linear(dtype), tmp_path)
    program = micronpu.compile(path, target=target)
    shift = 128 if dtype == "uint8" else 0
    assert program.integer_io is not None
    (given,), (made,) = program.integer_io.inputs, program.integer_io.outputs
    assert made is not None
    assert (given.dtype, given.zero_point, made.dtype, made.zero_point) == (dtype, 7 + shift, "int8", -9)
    assert np.float32(given.scale) == np.float32(0.03) and np.float32(made.scale) == np.float32(0.25)
    deploy(program.buffer, tmp_path / "out")  # the file alone has them, too
    header = (tmp_path / "out" / "model.h").read_text()
    assert f"#define MODEL_INPUT_0_ZERO_POINT ({7 + shift})" in header and "model_quantize_input_0" in header
    assert "#define MODEL_OUTPUT_0_SCALE 0.25f" in header and "model_dequantize_output_0" in header
    assert "not recorded" not in (tmp_path / "out" / "README.md").read_text()
    assert [tensor.place for tensor in inspect_pte(program.buffer).methods["forward"]] == [
        f"0.0299999993 * (q - {7 + shift})",
        "0.25 * (q - -9)",
    ]


def test_evaluate_takes_numbers_for_a_quantized_file(tmp_path: Path):
    """Numbers go in and come out, although the file's own inputs and outputs are integers."""
    path = written(linear(), tmp_path)
    program = micronpu.compile(path, target="cortex-m55")
    rows = np.random.default_rng(1).uniform(-3, 3, (32, 16)).astype(np.float32)
    integers = np.clip(np.rint(rows / np.float32(0.03)) + 7, -128, 127).astype(np.int8)
    runtime = programs.interpreter(path.read_bytes())
    labels = np.array([programs.invoke(runtime, row[None])[0][0].argmax() for row in integers])
    found = micronpu.evaluate(read_model(path).module, rows, program.buffer, labels)
    assert found.program.score is not None and found.program.score.value == 1.0
    assert found.program.against_float is not None and found.program.against_float.largest <= 0.25 + 1e-6
