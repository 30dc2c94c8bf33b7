"""The node tests of the onnx package, each right or refused; and each attribute of an operator, set to other values."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import helper, numpy_helper
from tests.compile.frontend.onnx_rows import ROWS, Row

from micronpu.base.errors import ModelError, UnsupportedError
from micronpu.frontend.model_files.onnx import LOWERINGS, read_onnx

FOLDER = Path(onnx.__file__).parent / "backend" / "test" / "data" / "node"
PAIRS = {"Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Mean", "Sum", "MatMul", "Concat", "Where", "Equal", "Less",
         "Greater", "LessOrEqual", "GreaterOrEqual", "Einsum", "And", "Or", "Xor"}  # fmt: skip
"""Operators both of whose operands remain inputs; of others, the first float input remains one."""
KNOWN = {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)} | {
    "float16",
    "float32",
    "float64",
    "bool",
}
RIGHT = 1094
"""Minimum number of files that are read."""
UNREAD = {
    "Bernoulli", "ConvInteger", "DynamicQuantizeLinear", "MatMulInteger", "Multinomial", "NonMaxSuppression",
    "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "StringSplit",
    "com.microsoft.DynamicQuantizeLSTM", "com.microsoft.DynamicQuantizeMatMul", "com.microsoft.MatMulIntegerToFloat",
}  # fmt: skip
"""Operators with a lowering that neither a node test nor a row computes: those that are refused with a reason."""


def tensors(folder: Path, kind: str, count: int) -> list[np.ndarray[Any, Any]]:
    files = (folder / "test_data_set_0" / f"{kind}_{i}.pb" for i in range(count))
    return [numpy_helper.to_array(onnx.TensorProto.FromString(file.read_bytes())) for file in files]


def with_constants(folder: Path) -> bytes | None:
    """Return the file of a node test with one float input, or those of `PAIRS`; None if it has none."""
    try:
        model = onnx.load(folder / "model.onnx")
        inputs = tensors(folder, "input", len(model.graph.input))
    except Exception:  # sequences and optional values are of other messages
        return None
    if not inputs or any(a.dtype.name not in KNOWN for a in inputs):
        return None
    fixed(model, inputs)
    return bytes(model.SerializeToString())


def fixed(model: Any, inputs: list[np.ndarray[Any, Any]]) -> list[int]:
    """Make inputs constants, and return the numbers of those that remain."""
    kinds, graph = {node.op_type for node in model.graph.node}, model.graph
    first = [k for k, a in enumerate(inputs) if a.dtype.kind == "f" and a.ndim][:1] or [0]
    kept = [k for k, a in enumerate(inputs) if k in first or (kinds & PAIRS and a.ndim)]
    names, remain = [i.name for i in graph.input], [i for k, i in enumerate(graph.input) if k in kept]
    constants = (numpy_helper.from_array(a, names[k]) for k, a in enumerate(inputs) if k not in kept)
    graph.initializer.extend(constants)
    del graph.input[:]
    graph.input.extend(remain)
    return kept


def judged(folder: Path, read: set[str]) -> str:
    """Return "right", "refused", "not a tensor" or what is wrong, and add operators of files that are right."""
    try:
        model = onnx.load(folder / "model.onnx")
        inputs = tensors(folder, "input", len(model.graph.input))
        outputs = tensors(folder, "output", len(model.graph.output))
    except Exception:  # sequences and optional values are of other messages
        return "not a tensor"
    if not inputs or any(a.dtype.name not in KNOWN for a in inputs + outputs):
        return "not a tensor"
    kinds, kept = {node.op_type for node in model.graph.node}, fixed(model, inputs)
    given = [torch.from_numpy(np.array(inputs[k])) for k in kept]
    try:
        network = read_onnx(model.SerializeToString(), Path(f"{folder.name}.onnx"))
    except (ModelError, UnsupportedError):
        return "refused"
    with torch.no_grad():
        results = network(*[x.float() if x.is_floating_point() else x for x in given])
    for result, expected in zip([results] if isinstance(results, torch.Tensor) else results, outputs, strict=True):
        if tuple(result.shape) != expected.shape:
            return f"{folder.name}: shape {tuple(result.shape)} for {expected.shape}"
        wanted = expected.astype(np.float64)
        scale = max(1, np.abs(wanted[np.isfinite(wanted)]).max(initial=0))
        if not np.allclose(result.numpy().astype(np.float64), wanted, rtol=0, atol=1e-3 * scale, equal_nan=True):
            return f"{folder.name}: other values"
    read.update(kinds)
    return "right"


@pytest.mark.sweep
def test_node_tests_are_right_or_refused():
    read = {row.kind for row in ROWS} | {kind for kind, *_ in COMPUTED} | {"QLinearConv", "QLinearMatMul"}
    counts = Counter(judged(folder, read) for folder in sorted(FOLDER.iterdir()))
    right = counts.pop("right")
    assert set(counts) <= {"refused", "not a tensor"}
    assert right >= RIGHT
    assert LOWERINGS.keys() - read == UNREAD


def test_documentation_lists_the_operators():
    text = (Path(__file__).parents[3] / "docs" / "models.md").read_text()
    listed = text.partition("## ONNX")[2].partition("The operators that are read:")[2].strip().partition(".")[0]
    expected = sorted(LOWERINGS.keys() - UNREAD | {"If", "Constant"})
    assert [name.strip(" `\n") for name in listed.split(",")] == expected


COMPUTED = [
    ("HannWindow", [np.array(9)], {}), ("HammingWindow", [np.array(9)], {"periodic": 0}),
    ("BlackmanWindow", [np.array(8)], {}), ("NonZero", [np.array([0.0, 2.0, 3.0], np.float32)], {}),
    ("MelWeightMatrix", [np.array(4), np.array(16), np.array(8000), np.array(0.0), np.array(4000.0)], {}),
    ("Unique", [np.array([3.0, 1.0, 3.0], np.float32)], {}), ("EyeLike", [np.zeros((3, 4), np.float32)], {"k": 1}),
    ("Compress", [np.arange(4, dtype=np.float32), np.array([True, False, True, True])], {}),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "constants", "attributes"), COMPUTED, ids=[kind for kind, *_ in COMPUTED])
def test_nodes_of_constants_are_computed(kind: str, constants: list[Any], attributes: dict[str, Any]):
    node = helper.make_node
    floats = [np.float32(c) if kind == "MelWeightMatrix" and i > 2 else c for i, c in enumerate(constants)]
    made = helper.make_graph(
        [node(kind, [f"c{i}" for i in range(len(floats))], ["w"], **attributes), node("Cast", ["w"], ["f"], to=1),
         node("Add", ["f", "x"], ["y"])], "net",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1])], [onnx.ValueInfoProto(name="y")],
        [numpy_helper.from_array(np.asarray(c), f"c{i}") for i, c in enumerate(floats)],
    )  # fmt: skip
    data = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()
    (expected,) = onnxruntime.InferenceSession(data).run(None, {"x": np.ones(1, np.float32)})
    result = read_onnx(data, Path("net.onnx"))(torch.ones(1))
    np.testing.assert_allclose(result.numpy(), expected, atol=1e-5)


@pytest.mark.parametrize("kind", ["QLinearConv", "QLinearMatMul"])
def test_operators_of_integers_are_equal(kind: str):
    random = np.random.default_rng(0)
    point = [np.array(0.05, np.float32), np.array(7, np.uint8)]
    shape, inner = ([1, 3, 6, 6], [4, 3, 3, 3]) if kind == "QLinearConv" else ([2, 6], [6, 5])
    weights = random.integers(-127, 128, inner).astype(np.int8)
    constants = [*point, weights, np.array(0.01, np.float32), np.array(0, np.int8), np.array(0.2, np.float32), point[1]]
    nodes = [helper.make_node(kind, ["x", *[f"c{i}" for i in range(7)]], ["y"])]
    made = helper.make_graph(
        nodes, "net", [helper.make_tensor_value_info("x", onnx.TensorProto.UINT8, shape)],
        [helper.make_tensor_value_info("y", onnx.TensorProto.UINT8, None)],
        [numpy_helper.from_array(c, f"c{i}") for i, c in enumerate(constants)],
    )  # fmt: skip
    data = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()
    x = random.integers(0, 256, shape).astype(np.uint8)
    exact = onnxruntime.SessionOptions()  # without it, sums of two products saturate on processors without VNNI
    exact.add_session_config_entry("session.x64quantprecision", "1")
    (expected,) = onnxruntime.InferenceSession(data, exact).run(None, {"x": x})
    result = read_onnx(data, Path("net.onnx"))(torch.from_numpy(x)).numpy()
    off = np.abs(result.astype(int) - expected)
    assert result.dtype == np.uint8 and off.max() <= 1 and (off > 0).mean() < 0.02  # ties alone


# ---------------------------------------------------------------- attributes


def changed(kind: str, name: str, stated: Any, given: Any) -> list[Any]:
    """Return other values of an attribute, given its schema and its value in the row."""
    types, default = onnx.defs.OpSchema.AttrType, stated.default_value
    value = onnx.helper.get_attribute_value(default) if default.type else None
    value = given if given is not None else value
    if stated.type == types.INT:
        return [number for number in (0, 1, 2) if number != value]
    if stated.type == types.FLOAT:
        return [0.3 + (value or 0.0), -0.4]
    if stated.type == types.INTS:
        length = len(value) if value is not None else 2
        return [[2] * length, [1, 0, *range(2, length)][:length], [0] * length]
    if stated.type == types.STRING:
        return TEXTS.get(name, ["other"])
    return [["Relu"]] if name == "activations" else []


TEXTS = {
    "auto_pad": ["SAME_UPPER", "SAME_LOWER", "VALID"], "direction": ["reverse"], "mode": ["linear", "edge", "CRD"],
    "approximate": ["tanh"], "nearest_mode": ["ceil"], "reduction": ["add", "max"], "padding_mode": ["border"],
    "coordinate_transformation_mode": ["asymmetric", "half_pixel_symmetric", "align_corners"],
    "keep_aspect_ratio_policy": ["not_larger"],
}  # fmt: skip


@pytest.mark.sweep
@pytest.mark.parametrize("opset", [None, 22], ids=["own", "new"])
def test_each_attribute_is_read_or_refused(opset: int | None):
    """Set each attribute of each row to other values, and compare with onnxruntime where it runs the file."""
    counts: Counter[str] = Counter()
    for row in ROWS:
        version = opset or row.opset
        for name, stated in onnx.defs.get_schema(row.kind, version, "").attributes.items():
            for value in changed(row.kind, name, stated, row.attributes.get(name)):
                other = Row(row.kind, row.operands, {**row.attributes, name: value}, version, row.outputs)
                counts[compared(other)] += 1
    assert set(counts) <= {"equal", "refused", "not run"}, counts
    assert counts["equal"] > 50 and counts["refused"] > 50


def compared(row: Row) -> str:
    """Return "equal", "refused", "not run" by onnxruntime, or the row."""
    try:
        data = row.model()
        network = read_onnx(data, Path("row.onnx"))  # first: onnxruntime ends the process for strides of 0
        plain = onnxruntime.SessionOptions()
        plain.intra_op_num_threads, plain.log_severity_level = 1, 4
        session = onnxruntime.InferenceSession(data, plain, providers=["CPUExecutionProvider"])
        inputs = network.examples()
        expected = session.run(None, {i.name: x.numpy() for i, x in zip(session.get_inputs(), inputs, strict=True)})
    except (ModelError, UnsupportedError):
        return "refused"
    except Exception:  # of onnx or onnxruntime, for a value that the operator does not have
        return "not run"
    with torch.no_grad():
        found = network(*inputs)
    for wanted, result in zip(expected, found if isinstance(found, tuple) else (found,), strict=True):
        if tuple(result.shape) != wanted.shape or not np.allclose(
            result.numpy(), wanted, rtol=1e-4, atol=1e-4, equal_nan=True
        ):
            return str(row)
    return "equal"
