"""The recorded graph of a file has the ATen calls that `torch.export` finds in the same network."""

from __future__ import annotations

import operator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper
from tests.compile.frontend.onnx_rows import ROWS
from tests.compile.frontend.test_onnx_files import network, quantized
from torch.fx import GraphModule
from torch.fx.node import map_arg

from micronpu.base.errors import InternalError
from micronpu.frontend.export import export
from micronpu.frontend.exported import graph_module
from micronpu.frontend.model_files import read_model
from micronpu.frontend.model_files.network import NetworkBuilder
from micronpu.frontend.model_files.onnx import read_onnx
from micronpu.frontend.model_files.recorder import exported, recorded
from micronpu.frontend.program import origin_of


def calls(module: GraphModule) -> list[tuple[Any, ...]]:
    """Targets, operands, names, dtypes and shapes; constants by their values."""
    shown: dict[Any, Any] = {}
    found: list[tuple[Any, ...]] = []
    inputs = module.graph.find_nodes(op="placeholder")
    for node in module.graph.nodes:
        if node.op == "get_attr":
            value = operator.attrgetter(str(node.target))(module)
            shown[node] = (str(value.dtype), tuple(value.shape), value.flatten().tolist())
        elif node.op == "placeholder":
            shown[node] = f"input {inputs.index(node)}"
        elif "_assert_tensor_metadata" not in str(node.target):  # torch's own check of a cast
            value = node.meta.get("val")
            kind = (str(value.dtype), tuple(value.shape)) if isinstance(value, torch.Tensor) else ()
            schema, given = getattr(node.target, "_schema", None), node.args
            if schema is not None:  # torch.export alone turns cuDNN off, which arguments of norms say
                given = tuple(v for v, a in zip(given, schema.arguments, strict=False) if "cudnn" not in a.name)
            operands = repr(map_arg((given, dict(node.kwargs)), lambda n: shown[n]))
            shown[node] = f"%{len(found)}"
            found.append((str(node.target), operands, "" if node.op == "output" else node.name, kind))
    return found


def networks() -> dict[str, bytes]:
    rows = [row for row in ROWS if row.kind in ("LSTM", "GRU", "Split", "Einsum", "Where", "Resize")] + ROWS[::9]
    return {str(row): row.model() for row in rows} | {"quantized": quantized(), "convolutions": network([1, 3, 8, 8])}


@pytest.mark.sweep
@pytest.mark.parametrize("name", networks())
def test_recorded_calls_are_those_of_torch_export(name: str):
    built = read_onnx(networks()[name], Path("m.onnx"), ())
    assert calls(recorded(built)) == calls(graph_module(export(built, built.examples())))


def test_other_floats_become_float32():
    built = NetworkBuilder()
    x = built.input("x", (2, 3), torch.float16)
    y = built.add("y", lambda v, w: (v + w).to(torch.float64) * 2, [x, torch.ones(3, dtype=torch.float16)])
    module = recorded(built.network(y))
    assert {node.meta["val"].dtype for node in module.graph.nodes if "val" in node.meta} == {torch.float32}
    assert torch.equal(module(torch.full((2, 3), 0.5)), torch.full((2, 3), 3.0))


def test_a_tensor_that_a_step_makes_is_a_constant():
    built = NetworkBuilder()
    x = built.input("x", (2,), torch.float32)
    module = recorded(built.network(built.add("y", lambda v: v * torch.tensor(3.0), [x])))
    assert torch.equal(module(torch.ones(2)), torch.full((2,), 3.0))


def test_steps_of_one_tensor_read_one_constant():
    built, weight = NetworkBuilder(), torch.ones(2)
    x = built.input("x", (2,), torch.float32)
    (y,) = built.add("y", torch.add, [x, weight])
    module = recorded(built.network(built.add("z", torch.mul, [y, weight])))
    assert len(dict(module.named_buffers())) == 1
    assert torch.equal(module(torch.ones(2)), torch.full((2,), 2.0))


def test_states_are_written_behind_all_reads():
    built = NetworkBuilder()
    x = built.input("x", (2,), torch.float32)
    state = built.state("h", torch.ones(2))
    (state.written,) = built.add("sum", torch.add, [x, state.number])
    (y,) = built.add("y", torch.mul, [state.number, x])
    module = recorded(built.network([y]))
    assert [module(torch.full((2,), 2.0)).tolist() for _ in range(3)] == [[2, 2], [6, 6], [10, 10]]


def test_writes_in_place_are_refused():
    built = NetworkBuilder()
    x = built.input("x", (2,), torch.float32)
    step = built.network(built.add("y", lambda v: (v * 2).add_(1), [x]))
    with pytest.raises(InternalError, match="add_"):
        recorded(step)


@pytest.mark.sweep
@pytest.mark.parametrize("name", ["graph", "code", "meta", "training", "forward", "constant_0"])
def test_tensors_may_have_reserved_names(name: str, tmp_path: Path):
    nodes = [helper.make_node("Add", ["x", "w"], [name]), helper.make_node("Relu", [name], ["y"])]
    values = [onnx.numpy_helper.from_array(np.ones(3, np.float32), "w")]
    given = [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 3])]
    graph = helper.make_graph(nodes, "g", given, [onnx.ValueInfoProto(name="y")], values)
    path = tmp_path / "m.onnx"
    path.write_bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]).SerializeToString())
    assert torch.equal(read_model(path).module(torch.zeros(1, 3)), torch.ones(1, 3))


def test_sources_are_the_names_of_the_nodes():
    """Whole, with any words: a frame of Python has the number of a line there."""
    path = Path("m.onnx")
    x, y = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 4]) for name in "xy")
    for name in ("node_linear", "line", "a line, in line"):
        graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"], name)], "g", [x], [y])
        data = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]).SerializeToString()
        found = [origin_of(node).source for node in exported(read_onnx(data, path, ()), path).graph.nodes]
        assert f"m.onnx:{name.replace(',', '_')}" in found, found
