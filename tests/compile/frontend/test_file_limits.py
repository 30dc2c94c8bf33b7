"""A small file that asks for much ends in a message before the work is done, as does whatever a reader trips over."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import flatbuffers
import numpy as np
import pytest
import torch
from ai_edge_litert import schema_py_generated as schema
from tests.oracle.frontend.litert_files import FileWriter

import micronpu
from micronpu import MicroNpuError
from micronpu.base.errors import FileError
from micronpu.frontend.model_files.budget import Budget, Cost, reading

pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper

node = helper.make_node
ONES = np.ones(4, np.float32)


def graph(nodes: Sequence[Any], constants: dict[str, Any] | None = None, shape: Sequence[int] = (1, 4)) -> bytes:
    """A model of `x` and the result `y`."""
    sides = [[helper.make_tensor_value_info(n, TensorProto.FLOAT, s)] for n, s in (("x", shape), ("y", None))]
    given = [numpy_helper.from_array(np.asarray(value), name) for name, value in (constants or {}).items()]
    model = helper.make_model(
        helper.make_graph(nodes, "g", sides[0], sides[1], given),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=9,
    )
    return bytes(model.SerializeToString())


def added(nodes: Sequence[Any], **constants: Any) -> bytes:
    """A model that adds the largest element of `v`, which nodes compute from constants."""
    return graph([*nodes, node("ReduceMax", ["v"], ["m"]), node("Add", ["x", "m"], ["y"])], constants)


def filled(count: int) -> list[Any]:
    parts = [(node("ConstantOfShape", ["s"], [f"c{i}"]), node("ReduceMax", [f"c{i}"], [f"m{i}"])) for i in range(count)]
    return [*(n for pair in parts for n in pair), node("Sum", [f"m{i}" for i in range(count)], ["v"])]


COLUMN, ROW = np.ones((100_000, 1), np.float32), np.ones((1, 100_000), np.float32)
MUCH = {
    "sum of a row and a column": added([node("Add", ["a", "b"], ["v"])], a=COLUMN, b=ROW),
    "product": added([node("MatMul", ["a", "b"], ["v"])], a=COLUMN, b=ROW),
    "einsum": added([node("Einsum", ["a"] * 3, ["v"], equation="i,j,k->ijk")], a=np.ones(4000, np.float32)),
    "pads": added([node("Pad", ["a", "p"], ["v"])], a=ONES, p=np.array([0, 1 << 34])),
    "rows": added([node("Gather", ["a", "i"], ["v"])], a=np.ones((2, 1 << 16), np.float32), i=np.zeros(1 << 17, int)),
    "constants one after the other": added(filled(6), s=np.array([1 << 26])),
    "time": added(
        [node("MatMul", ["a", "a"], ["v0"])]
        + [node("MatMul", [f"v{i}", "a"], [f"v{i + 1}"]) for i in range(100)]
        + [node("Identity", ["v100"], ["v"])],
        a=np.eye(1000, dtype=np.float32),
    ),
    "operators": graph(
        [node("Relu", [f"v{i}" if i else "x"], [f"v{i + 1}"]) for i in range(20_001)] + [node("Relu", ["v9"], ["y"])]
    ),
    "operators of constants": added([node("Relu", [f"v{i}" if i else "v0"], ["v" if i == 20_000 else f"v{i + 1}"])
                                     for i in range(20_001)], v0=ONES),
    "steps": graph([node("LSTM", ["x", "w", "r"], ["", "y"], hidden_size=2)],
                   {"w": np.ones((1, 8, 3), np.float32), "r": np.ones((1, 8, 2), np.float32)}, (1_000_000, 1, 3)),
    "axes": graph([node("Unsqueeze", ["x", "a"], ["y"])], {"a": np.arange(100_000)}),
    "axes of an input": graph([node("Relu", ["x"], ["y"])], shape=[1] * 100_000),
    "axes of a constant": added([node("ConstantOfShape", ["s"], ["v"])], s=np.ones(100_000, np.int64)),
}  # fmt: skip


def refused(path: Path, data: bytes, match: str) -> None:
    path.write_bytes(data)
    with pytest.raises(MicroNpuError, match=match) as caught:
        micronpu.read_model(path)
    assert "Try: " in str(caught.value) and len(str(caught.value)) < 1000


@pytest.mark.parametrize("case", MUCH)
def test_a_small_file_does_not_ask_for_much_work(tmp_path: Path, case: str) -> None:
    refused(tmp_path / "net.onnx", MUCH[case], "is too much: with it, the file has|a tensor has at most")


def test_steps_of_a_litert_file_are_counted(tmp_path: Path) -> None:
    file = FileWriter()
    x, y, state = file.tensor((1, 20_001, 3)), file.tensor((1, 20_001, 2)), file.tensor((1, 2))
    weights = [file.constant(np.ones(shape, np.float32)) for shape in ((2, 3), (2, 2), (2,))]
    file.add("UNIDIRECTIONAL_SEQUENCE_RNN", [x, *weights, state], [y], "SequenceRNNOptions", fusedActivationFunction=4)
    refused(tmp_path / "net.tflite", file.data([x], [y]), "the file has 20,002 operators and the steps")


def test_branches_inside_of_branches(tmp_path: Path) -> None:
    file, depth = FileWriter(), 1500
    for level in range(depth):
        for side in range(2) if level else (0,):
            if level:
                file.subgraph()
            c, x, y = file.tensor((1,), "bool"), file.tensor((1, 4)), file.tensor((1, 4))
            if side:
                file.add("NEG", [x], [y])
            else:
                sides = {"thenSubgraphIndex": 2 * level + 1, "elseSubgraphIndex": 2 * level + 2}
                file.add("IF", [c, c, x], [y], "IfOptions", **sides)
            file.ends([c, x], [y])
    refused(tmp_path / "net.tflite", file.data(), "is nested too deeply")


def shared_tables(graphs: int, tensors: int) -> bytes:
    """A file whose lists name one table again and again."""
    build = flatbuffers.Builder(1024)
    schema.TensorStart(build)
    tensor = schema.TensorEnd(build)

    def vector(start: Any, table: int, count: int) -> int:
        start(build, count)
        for _ in range(count):
            build.PrependUOffsetTRelative(table)
        return int(build.EndVector())

    all_tensors = vector(schema.SubGraphStartTensorsVector, tensor, tensors)
    schema.SubGraphStart(build)
    schema.SubGraphAddTensors(build, all_tensors)
    all_graphs = vector(schema.ModelStartSubgraphsVector, schema.SubGraphEnd(build), graphs)
    schema.ModelStart(build)
    schema.ModelAddSubgraphs(build, all_graphs)
    build.Finish(schema.ModelEnd(build), b"TFL3")
    return bytes(build.Output())


def test_shared_tables_are_counted_before_they_are_unpacked(tmp_path: Path) -> None:
    refused(tmp_path / "net.tflite", shared_tables(3000, 3000), "entries of its lists, of which a tensor or operator")


ODD = {
    "by zero": added([node("Div", ["a", "b"], ["v"])], a=np.array([4]), b=np.array([0])),
    "a node without a result": graph([node("Constant", [], [], value_float=1.0), node("Relu", ["x"], ["y"])]),
    "a branch without results": graph([node("If", ["c"], ["y"])], {"c": np.bool_(True)}),
    "a condition of three": graph([node("If", ["c"], ["y"])], {"c": np.ones(3, bool)}),
    "a scalar with an axis": added([node("DequantizeLinear", ["a", "s"], ["v"])], a=np.int8(4),
                                   s=np.ones(2, np.float32)),
    "a number as mode": graph([node("Pad", ["x", "p"], ["y"], mode=3)], {"p": np.array([0, 1, 0, 1])}),
    "no axis": graph([node("Concat", ["x", "x"], ["y"])]),
    "a step of zero": graph([node("Slice", ["x", *"abdz"], ["y"])],
                            {**{n: np.array([v]) for n, v in (("a", 0), ("b", 4), ("d", 1), ("z", 0))}}),
    "blocks of nothing": graph([node("DepthToSpace", ["x"], ["y"], blocksize=0)], shape=(1, 4, 2, 2)),
    "negative layers": graph([node("LSTM", ["x", "w", "r"], ["", "y"], hidden_size=-5)],
                             {"w": np.ones((1, 8, 3), np.float32), "r": np.ones((1, 8, 2), np.float32)}, (5, 1, 3)),
}  # fmt: skip


def test_the_work_is_counted_on_tensors_without_data() -> None:
    budget, a, b = Budget(), torch.empty(4, 5, device="meta"), torch.empty(5, 6, device="meta")
    budget.spend_on("here", lambda: a @ b)
    assert budget.spent[Cost.FOLDING] == 2 * 4 * 5 * 6 + 4 * 6


@pytest.mark.parametrize("case", ODD)
def test_whatever_a_reader_trips_over_is_a_message(tmp_path: Path, case: str) -> None:
    refused(tmp_path / "net.onnx", ODD[case], "Node `|does not fit")


def test_a_machine_without_temporary_files_is_not_the_fault_of_the_file():
    with (
        pytest.raises(FileError, match=r"`Gemm` cannot be read: .*No usable temporary.* Try: room for temporary files"),
        reading("`Gemm`", "does not fit its operands"),
    ):
        raise FileNotFoundError(2, "No usable temporary directory found in ['/tmp']")
