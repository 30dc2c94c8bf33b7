"""Forms of published ONNX files: sizes and branches for other inputs, quantized operators of several parts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from tests.compile.frontend.onnx_rows import f
from tests.compile.frontend.test_onnx_files import graph

import micronpu
from micronpu.base.errors import ModelError
from micronpu.frontend.facts import LEFT_OUT, NOT_COMPARED
from micronpu.frontend.model_files.onnx import read_onnx

node = helper.make_node


def quantized_chain(parts: list[tuple[str, list[np.ndarray], dict[str, object]]], scale: float) -> bytes:
    """Operators in a chain, each between a DequantizeLinear and a QuantizeLinear; their weights are int8."""
    constants = {"s": np.array(scale, np.float32), "z": np.array(0, np.int8), "ws": np.array(0.01, np.float32)}
    nodes, x = [node("QuantizeLinear", ["x", "s", "z"], ["q"])], "q"
    for i, (kind, given, attributes) in enumerate(parts):
        operands = [f"d{i}"]
        nodes.append(node("DequantizeLinear", [x, "s", "z"], [f"d{i}"]))
        for k, value in enumerate(given):
            name = f"c{i}_{k}"
            constants[name], operand = value, name
            if value.dtype == np.int8:
                nodes.append(node("DequantizeLinear", [name, "ws", "z"], [f"{name}d"]))
                operand = f"{name}d"
            operands.append(operand)
        nodes += [node(kind, operands, [f"r{i}"], **attributes), node("QuantizeLinear", [f"r{i}", "s", "z"], [f"q{i}"])]
        x = f"q{i}"
    nodes.append(node("DequantizeLinear", [x, "s", "z"], ["y"]))
    return graph(nodes, constants, [1, 4, 16, 16])


def test_quantized_operators_of_several_parts_are_on_the_npu(tmp_path: Path):
    weights = np.random.default_rng(0).integers(-127, 128, (8, 4, 3, 3)).astype(np.int8)
    i64 = lambda *values: np.array(values, np.int64)  # noqa: E731
    path = tmp_path / "net.onnx"
    path.write_bytes(quantized_chain([
        ("Conv", [weights], {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
        ("MaxPool", [], {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
        ("AveragePool", [], {"kernel_shape": [2, 2], "pads": [0, 0, 1, 1], "count_include_pad": 1}),
        ("Slice", [i64(0, 1), i64(4, 3), i64(1, 2)], {}),
        ("DepthToSpace", [], {"blocksize": 2}),
        ("Pad", [i64(0, 0, 1, 0, 0, 0, 1, 0), np.array(0, np.int8)], {}),
        ("Concat", [np.full((1, 1, 6, 8), 50, np.int8)], {"axis": 1}),
    ], 0.04))  # fmt: skip
    x = torch.randn(1, 4, 16, 16, generator=torch.Generator().manual_seed(1))
    plain = onnxruntime.SessionOptions()  # its fused int8 kernels saturate sums of two products on some processors
    plain.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    (expected,) = onnxruntime.InferenceSession(path, plain).run(None, {"x": x.numpy()})
    for target in ("ethos-u55-128", "imxrt700-neutron"):
        program = micronpu.compile(path, target=target)
        assert program.report.delegated == program.report.operators
        (got,) = program.run(x)
        assert np.abs(got.numpy() - expected).max() < 2.01 * 0.04  # each of three operators rounds


def test_pools_have_the_windows_of_onnxruntime():
    random, padded = np.random.default_rng(0), 0
    for _ in range(60):
        kernel, stride = random.integers(1, 5, 2).tolist(), random.integers(1, 4, 2).tolist()
        before = [int(random.integers(0, k)) for k in kernel]
        after = before if random.random() < 0.6 else [int(random.integers(0, k)) for k in kernel]
        given = {"kernel_shape": kernel, "strides": stride, "pads": [*before, *after]}
        given["ceil_mode"] = int(random.integers(0, 2))
        kind = ("MaxPool", "AveragePool")[int(random.integers(0, 2))]
        if kind == "AveragePool":
            given["count_include_pad"] = int(random.integers(0, 2))
        data = graph([node(kind, ["x"], ["y"], **given)], {}, [1, 2, *random.integers(5, 9, 2).tolist()])
        (x,) = (built := read_onnx(data, Path("pool.onnx"))).examples()
        (expected,) = onnxruntime.InferenceSession(data).run(None, {"x": x.numpy()})
        np.testing.assert_allclose(built(x).numpy(), expected, rtol=1e-5, atol=1e-6, err_msg=str((kind, given)))
        calls = [str(n.target) for n in torch.export.export(built, (x,)).graph.nodes]
        is_usual = before == after and all(2 * a <= k for a, k in zip(before, kernel, strict=True))
        if is_usual and not given["ceil_mode"]:
            assert "aten.pad.default" not in calls, given
            padded += any(before)
    assert padded > 5


def sized(tmp_path: Path, stated: list[int]) -> Path:
    """A file of open width, whose output is stated with the size that an example of another width had."""
    made = helper.make_graph(
        [node("Relu", ["x"], ["y"])], "net", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, "width"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, stated)],
    )  # fmt: skip
    path = tmp_path / "net.onnx"
    path.write_bytes(
        helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()
    )
    return path


def test_stated_sizes_may_be_of_other_inputs(tmp_path: Path):
    assert micronpu.read_model(sized(tmp_path, [1, 3, 25]), [(1, 3, 8)]).examples[0].shape == (1, 3, 8)
    with pytest.raises(ModelError, match="and the file states"):
        micronpu.read_model(sized(tmp_path, [3, 25]), [(1, 3, 8)])


def test_a_branch_that_does_not_fit_the_inputs_is_left_out(tmp_path: Path):
    """As in files of a voice detector for two sample rates, which an input chooses."""

    def branch(name: str, shape: list[int], weights: np.ndarray) -> onnx.GraphProto:
        nodes = [node("Reshape", ["x", f"{name}to"], [f"{name}r"]), node("MatMul", [f"{name}r", f"{name}w"], [name])]
        constants = {f"{name}to": np.array(shape), f"{name}w": weights}
        held = [numpy_helper.from_array(v, k) for k, v in constants.items()]
        return helper.make_graph(nodes, name, [], [onnx.ValueInfoProto(name=name)], held)

    branches = {"then_branch": branch("a", [2, 8], f(8, 4)), "else_branch": branch("b", [3, 8], f(8, 4))}
    inputs = {"x": (TensorProto.FLOAT, [1, "samples"]), "rate": (TensorProto.INT64, [])}
    made = helper.make_graph(
        [node("Equal", ["rate", "wide"], ["is_wide"]), node("If", ["is_wide"], ["y"], name="choice", **branches)],
        "net", [helper.make_tensor_value_info(k, *v) for k, v in inputs.items()], [onnx.ValueInfoProto(name="y")],
        [numpy_helper.from_array(np.array(16000), "wide")],
    )  # fmt: skip
    path = tmp_path / "net.onnx"
    path.write_bytes(
        helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()
    )
    read = micronpu.read_model(path, {"x": (1, 16), "rate": ()})
    (reason,) = LEFT_OUT.of(read.module)
    assert reason.startswith("`choice`: its else_branch does not fit the inputs.")
    assert not NOT_COMPARED.of(read.module) and read.examples[1] == 16000
    x = torch.randn(1, 16)
    torch.testing.assert_close(read.module(x, torch.tensor(16000)), x.reshape(2, 8) @ torch.from_numpy(f(8, 4)))
    with pytest.raises(ModelError, match=r"on the command line net.onnx:x=1x64\.$"):
        micronpu.read_model(path, {"rate": ()})
    with pytest.raises(ModelError, match="does not fit"):
        micronpu.read_model(path, {"x": (1, 17), "rate": ()})


def test_a_comparison_with_a_constant_is_compiled_without_tables(tmp_path: Path):
    nodes = [
        node("GreaterOrEqual", ["x", "c"], ["g"]),
        node("Neg", ["x"], ["n"]),
        node("Where", ["g", "x", "n"], ["y"]),
    ]
    path = tmp_path / "net.onnx"
    path.write_bytes(graph(nodes, {"c": np.array([0.5], np.float32)}, [1, 8]))
    data = [torch.randn(1, 8, generator=torch.Generator().manual_seed(i)) for i in range(8)]
    (got,) = micronpu.compile(path, target="imxrt700", calibration=data, quantization="int8").run(data[0])
    far = (data[0] - 0.5).abs() > 0.1
    assert (got - torch.where(data[0] >= 0.5, data[0], -data[0]))[far].abs().max() < 0.1
