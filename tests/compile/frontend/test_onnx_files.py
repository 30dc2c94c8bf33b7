"""ONNX files: each node against onnxruntime, and what is refused."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from tests.compile.frontend.onnx_rows import ROWS, Row, f

import micronpu
from micronpu.base.errors import MicroNpuError, ModelError
from micronpu.frontend.model_files.onnx import read_onnx


@pytest.mark.sweep
@pytest.mark.parametrize("row", ROWS, ids=str)
def test_node_is_what_onnxruntime_computes(row: Row):
    data = row.model()
    network = read_onnx(data, Path("row.onnx"))
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    inputs = network.examples()
    expected = session.run(None, {i.name: x.numpy() for i, x in zip(session.get_inputs(), inputs, strict=True)})
    with torch.no_grad():
        got = network(*inputs)
    for wanted, result in zip(expected, got if isinstance(got, tuple) else (got,), strict=True):
        assert tuple(result.shape) == wanted.shape
        np.testing.assert_allclose(result.numpy(), wanted, rtol=1e-4, atol=1e-4)


def graph(nodes: list[onnx.NodeProto], constants: dict[str, np.ndarray], shape: list[int | str]) -> bytes:
    made = helper.make_graph(
        nodes, "net", [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [onnx.ValueInfoProto(name="y")], [numpy_helper.from_array(v, k) for k, v in constants.items()],
    )  # fmt: skip
    return bytes(helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString())


def network(shape: list[int | str]) -> bytes:
    """A convolution whose result is flattened by arithmetic on shapes, as exporters write it."""
    node = helper.make_node
    return graph(
        [
            node("Conv", ["x", "w"], ["a"], name="stem/Conv"), node("Relu", ["a"], ["b"]),
            node("Shape", ["b"], ["s"]), node("Gather", ["s", "zero"], ["n"], axis=0),
            node("Unsqueeze", ["n", "axes"], ["n1"]), node("Concat", ["n1", "rest"], ["to"], axis=0),
            node("Reshape", ["b", "to"], ["r"]), node("Gemm", ["r", "v"], ["y"], transB=1),
        ],
        {"w": f(8, 3, 3, 3), "zero": np.array(0), "axes": np.array([0]), "rest": np.array([-1]), "v": f(4, 8 * 36)},
        shape,
    )  # fmt: skip


def test_compiles_with_the_names_of_its_nodes(tmp_path: Path):
    path = tmp_path / "net.onnx"
    path.write_bytes(network(["batch", 3, 8, 8]))
    data = [torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(i)) for i in range(8)]
    program = micronpu.compile(path, target="ethos-u55-128", calibration=data)
    assert program.report.delegated == program.report.operators
    assert "net.onnx:stem.Conv" in program.report.to_json()
    session = onnxruntime.InferenceSession(path)
    (expected,) = session.run(None, {"x": data[0].numpy()})
    (got,) = program.run(data[0])
    assert np.abs(got.numpy() - expected).max() < 0.05 * np.abs(expected).max()


def test_open_sizes_are_named_and_can_be_given(tmp_path: Path):
    path = tmp_path / "net.onnx"
    path.write_bytes(network([1, 3, "height", 8]))
    with pytest.raises(ModelError, match=r"Dimension 2 of the input `x` .*height.*net.onnx:x=1x3x64x8"):
        micronpu.read_model(path)
    assert tuple(micronpu.read_model(path, {"x": (1, 3, 8, 8)}).examples[0].shape) == (1, 3, 8, 8)
    with pytest.raises(ModelError, match="cannot have the shape"):
        micronpu.read_model(path, [(1, 4, 8, 8)])


def test_sizes_of_one_name_are_equal():
    made = helper.make_graph(
        [helper.make_node("Add", ["x", "state"], ["y"])], "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", "length"]),
         helper.make_tensor_value_info("state", TensorProto.FLOAT, [2, "batch", "length"])],
        [onnx.ValueInfoProto(name="y")],
    )  # fmt: skip
    data = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()
    read = read_onnx(data, Path("net.onnx"), {"x": (3, 5)})
    assert [tuple(x.shape) for x in read.examples()] == [(3, 5), (2, 3, 5)] and read.input_names == ("x", "state")
    with pytest.raises(ModelError, match=r"command line net.onnx:x=1x64,state=2x1x64\.$"):  # all that a user gives
        read_onnx(data, Path("net.onnx"))


def test_paddle_writes_open_sizes_as_minus_one():
    stated = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [-1, 4]) for name in ("h", "y")]
    made = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["h"]), helper.make_node("Neg", ["h"], ["y"])], "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [-1, 4])], stated[1:], value_info=stated[:1],
    )  # fmt: skip
    data = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()
    network = read_onnx(data, Path("net.onnx"), {"x": (1, 4)})
    (x,) = network.examples()
    torch.testing.assert_close(network(x), -x.relu())


def quantized() -> bytes:
    node, point = helper.make_node, np.array(128, np.uint8)
    return graph(
        [
            node("QuantizeLinear", ["x", "sx", "zx"], ["xq"]), node("DequantizeLinear", ["xq", "sx", "zx"], ["xd"]),
            node("DequantizeLinear", ["wq", "sw", "zw"], ["wd"], axis=0), node("Conv", ["xd", "wd"], ["c"]),
            node("Relu", ["c"], ["r"]), node("QuantizeLinear", ["r", "sy", "zy"], ["yq"]),
            node("DequantizeLinear", ["yq", "sy", "zy"], ["y"]),
        ],
        {
            "sx": np.array(0.02, np.float32), "zx": point,
            "sy": np.array(0.05, np.float32), "zy": np.array(0, np.uint8),
            "wq": np.random.default_rng(0).integers(-127, 128, (8, 3, 3, 3)).astype(np.int8),
            "sw": np.linspace(0.01, 0.02, 8).astype(np.float32), "zw": np.zeros(8, np.int8),
        },
        [1, 3, 8, 8],
    )  # fmt: skip


def test_quantized_file_keeps_its_scales(tmp_path: Path):
    path = tmp_path / "net.onnx"
    path.write_bytes(quantized())
    program = micronpu.compile(path, target="imxrt700-neutron")  # nothing to calibrate
    x = torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    plain = onnxruntime.SessionOptions()  # its fused int8 kernels saturate sums of two products on some processors
    plain.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    (expected,) = onnxruntime.InferenceSession(path, plain).run(None, {"x": x.numpy()})
    (got,) = program.run(x)
    steps = np.abs(got.numpy() - expected) / 0.05
    assert steps.max() < 1.01 and (steps > 0.5).mean() < 0.01  # rounding of ties alone


def test_a_concatenation_takes_unequal_scales(tmp_path: Path):
    def rounded(given: str, made: str, scale: str) -> list[onnx.NodeProto]:
        return [helper.make_node("QuantizeLinear", [given, scale, "z"], [f"{made}_q"]),
                helper.make_node("DequantizeLinear", [f"{made}_q", scale, "z"], [made])]  # fmt: skip

    nodes = rounded("x", "a", "s1") + [helper.make_node("Abs", ["a"], ["p"])] + rounded("p", "b", "s2")
    nodes += [helper.make_node("Concat", ["a", "b"], ["c"], axis=1), *rounded("c", "y", "s3")]
    scales = {f"s{i}": np.array(v, np.float32) for i, v in enumerate((0.03, 0.05, 0.06), 1)}
    path = tmp_path / "net.onnx"
    path.write_bytes(graph(nodes, {"z": np.array(0, np.int8), **scales}, [1, 4, 6, 6]))
    x = torch.randn(1, 4, 6, 6, generator=torch.Generator().manual_seed(0))
    (expected,) = onnxruntime.InferenceSession(path).run(None, {"x": x.numpy()})
    (got,) = micronpu.compile(path, target="ethos-u55-128").run(x)
    assert np.abs(got.numpy() - expected).max() < 0.0601


def refused(data: bytes, match: str, kind: type[Exception] = MicroNpuError) -> None:
    with pytest.raises(kind, match=match):
        read_onnx(data, Path("net.onnx"))


def test_refusals_name_the_node():
    node = helper.make_node
    refused(graph([node("NonMaxSuppression", ["x", "x"], ["y"], name="boxes")], {}, [1, 4]), "Node `boxes` .NonMax")
    refused(graph([node("Fancy", ["x"], ["y"], name="own", domain="com.me")], {}, [1, 4]), "com.me.Fancy")
    refused(graph([node("Relu", ["z"], ["y"])], {}, [1, 4]), "reads `z`, which no node before it makes")
    refused(
        graph([node("Conv", ["x", "w"], ["y"], name="stem")], {"w": f(4, 5, 3, 3)}, [1, 3, 8, 8]), "`stem` does not"
    )
    refused(graph([node("Reshape", ["x", "to"], ["y"])], {"to": np.array([3, 5])}, [1, 4]), "does not fit")
    refused(graph([node("Expand", ["x", "to"], ["y"])], {"to": np.array([1 << 20, 1 << 10])}, [1, 1]), "elements")
    refused(graph([node("Range", ["a", "b", "c"], ["y"])],
                  {"a": np.array(0), "b": np.array(1 << 40), "c": np.array(1)}, [1]), "elements")  # fmt: skip
    old = onnx.ModelProto.FromString(network([1, 3, 8, 8]))
    old.opset_import[0].version = 6
    refused(old.SerializeToString(), "opset 6", ModelError)


def test_damaged_files_end_in_a_message():
    data = network([1, 3, 8, 8])
    random = np.random.default_rng(0)
    for _ in range(150):
        damaged = bytearray(data[: random.integers(1, len(data) + 1)])
        for place in random.integers(0, len(damaged), 3):
            damaged[place] = random.integers(0, 256)
        with contextlib.suppress(MicroNpuError):
            read_onnx(bytes(damaged), Path("net.onnx"))
