"""The zoo's float results of a file with integer weights are those of floats."""

from __future__ import annotations

import numpy as np
import torch
from ai_edge_litert.interpreter import Interpreter
from benchmarks.zoo.judge import in_float
from tests.oracle.frontend.litert_rows import Row, Tensor, bytes_of, data_of, floats


def dense(scale: float | None) -> tuple[Row, np.ndarray]:
    weights, kept = bytes_of(3, 64), {"keepNumDims": True}
    operands = (Tensor((2, 64)), weights.astype(np.float32) if scale is None else (weights, scale), floats(3))
    row = Row("FULLY_CONNECTED", operands, (Tensor((2, 3)),), "FullyConnectedOptions", kept)
    return row, weights * np.float32(scale or 1.0)


def results(content: bytes, x: np.ndarray) -> np.ndarray:
    interpreter = Interpreter(model_content=content, num_threads=1)
    interpreter.allocate_tensors()
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], x)
    interpreter.invoke()
    return interpreter.get_tensor(interpreter.get_output_details()[0]["index"])


def test_integer_weights_become_floats() -> None:
    row, weights = dense(0.02)
    content, x = data_of([row]), floats(2, 64, seed=1)
    wanted = x.astype(np.float64) @ weights.astype(np.float64).T + floats(3)
    error = np.abs(results(content, x) - wanted).max()
    assert error > 1e-3  # LiteRT's kernel quantizes x
    torch.testing.assert_close(results(in_float(content), x), wanted.astype(np.float32), rtol=1e-5, atol=1e-5)


def test_a_file_in_float_or_in_integers_stays() -> None:
    integers = Row(
        "FULLY_CONNECTED",
        (Tensor((2, 4), "int8", 0.05, 3), (bytes_of(3, 4), 0.02), (np.array([5, -9, 70], np.int32), 0.001)),
        (Tensor((2, 3), "int8", 0.1, 5),),
        "FullyConnectedOptions",
        {"keepNumDims": True},
    )
    for row in (dense(None)[0], integers):
        content = data_of([row])
        assert in_float(content) == content
