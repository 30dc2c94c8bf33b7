"""Graphs: building, changing, copying and naming; and the interpreter that walks them."""

from __future__ import annotations

import numpy as np
import pytest
from tests.cases import i8, q, w8

from micronpu.base.errors import InternalError, ModelError
from micronpu.ir import DType, Graph, GraphBuilder, Node, Origin, QParams, Tensor, TensorType, interpret
from micronpu.ops.activation import Sigmoid
from micronpu.ops.clamps import Relu
from micronpu.ops.elementwise import Add
from micronpu.ops.matmul import FullyConnected
from micronpu.ops.movement import Reshape
from micronpu.ops.slicing import Concat


def diamond() -> tuple[Graph, dict[str, Tensor]]:
    """x -> relu -> a; a and sigmoid(x) -> add -> y; b is read by nobody."""
    builder = GraphBuilder(origin=Origin(nodes=("model",)))
    x = builder.input(i8(2, 3))
    a = builder.emit(Relu(), x, qparams=q(0.1))
    b = builder.emit(Relu(), x, qparams=q(0.2))
    s = builder.emit(Sigmoid(), x, origin=Origin(nodes=("sigmoid",)))
    y = builder.emit(Add(), a, s, qparams=q(0.3))
    return builder.finish(y), {"x": x, "a": a, "b": b, "s": s, "y": y}


# ---------------------------------------------------------------- origins


def test_an_origin_remembers_the_passes_it_went_through():
    origin = Origin(nodes=("conv",)).through("fold_pads").through("fold_pads").through("split_pads")
    assert origin.passes == ("fold_pads", "split_pads")


def test_origins_join():
    conv = Origin(("conv",), "model.py:3", "block.conv", (1, 2), ("a",))
    relu = Origin(("relu", "conv"), "model.py:4", "block.relu", (2, 3), ("a", "b"))
    assert conv.joined(relu) == Origin(("conv", "relu"), "model.py:3", "block.conv", (1, 2, 3), ("a", "b"))
    assert Origin().joined(relu).source == "model.py:4"


# ---------------------------------------------------------------- building


def test_builder_infers_types_and_origins():
    graph, t = diamond()
    assert t["a"].type == i8(2, 3, scale=0.1)
    assert t["s"].type.qparams == q(1 / 256, -128), "the operator dictates it"
    assert [n.origin.nodes for n in graph.nodes] == [("model",), ("model",), ("sigmoid",), ("model",)]
    assert len({x.name for x in t.values()}) == 5


def test_given_parameters_do_not_override_what_the_operator_dictates():
    builder = GraphBuilder()
    y = builder.emit(Sigmoid(), builder.input(i8(3)), qparams=q(0.5, 3))
    assert y.type.qparams == q(1 / 256, -128)


def test_a_constant_has_its_declared_type():
    builder = GraphBuilder()
    made = builder.constant([1, 2, 3, 4], TensorType((2, 2), DType.INT32))
    assert made.is_constant
    np.testing.assert_array_equal(made.data, np.array([[1, 2], [3, 4]], np.int32))
    with pytest.raises(InternalError, match=r"Constant c holds int64\[2\] but is declared int32\[2\]"):
        Tensor("c", TensorType((2,), DType.INT32), np.array([1, 2], np.int64))
    with pytest.raises(InternalError, match=r"Constant c holds int32\[3\] but is declared int32\[2\]"):
        Tensor("c", TensorType((2,), DType.INT32), np.zeros(3, np.int32))


def test_a_constant_is_a_copy():
    values = np.zeros(3, np.int8)
    made = GraphBuilder().constant(values, i8(3))
    values[:] = 7
    np.testing.assert_array_equal(made.data, np.zeros(3, np.int8))


def test_the_only_output():
    x = Tensor("x", i8(2))
    with pytest.raises(ValueError, match="unpack"):
        _ = Node(Relu(), [x], [x, x]).output


# ---------------------------------------------------------------- reading and changing


def test_producers_and_users():
    graph, t = diamond()
    assert graph.producers()[t["y"]] is graph.nodes[3]
    assert t["x"] not in graph.producers()
    assert graph.users()[t["x"]] == graph.nodes[:3]
    assert t["b"] not in graph.users()


def test_a_node_that_reads_twice_is_listed_twice():
    builder = GraphBuilder()
    x = builder.input(i8(2))
    graph = builder.finish(builder.emit(Add(), x, x, qparams=q(0.1)))
    assert graph.users()[x] == [graph.nodes[0], graph.nodes[0]]


def test_replace_uses_reaches_operands_and_outputs():
    graph, t = diamond()
    graph.outputs = [t["y"], t["a"]]
    graph.replace_uses(t["a"], t["b"])
    assert graph.nodes[3].inputs == [t["b"], t["s"]]
    assert graph.outputs == [t["y"], t["b"]]
    assert graph.nodes[0].outputs == [t["a"]], "who computes it stays"


def test_remove_dead():
    graph, t = diamond()
    assert graph.remove_dead()
    assert [n.output for n in graph.nodes] == [t["a"], t["s"], t["y"]]
    assert not graph.remove_dead()


def test_remove_dead_takes_whole_chains():
    builder = GraphBuilder()
    x = builder.input(i8(4))
    y = x
    for _ in range(5):
        y = builder.emit(Reshape((4,)), y)
    graph = builder.finish(x)
    assert graph.remove_dead()
    assert graph.nodes == []


def test_constants_in_the_order_of_reading():
    builder = GraphBuilder()
    x = builder.input(i8(2, 3))
    first, second, third = (builder.constant(np.full((2, 3), i), i8(2, 3)) for i in range(3))
    y = builder.emit(Add(), x, second, qparams=q(0.1))
    z = builder.emit(Add(), y, first, qparams=q(0.1))
    graph = builder.finish(builder.emit(Add(), z, second, qparams=q(0.1)), third)
    assert graph.constants() == [second, first, third]


def test_names_depend_on_the_structure_alone():
    graph, t = diamond()
    twin, _ = diamond()
    for number, tensor in enumerate(t.values()):
        tensor.name = f"something_{number}"
    graph.rename()
    twin.rename()
    assert str(graph) == str(twin)
    assert [n.output.name for n in graph.nodes] == ["relu_0", "relu_1", "sigmoid_0", "add_0"]
    assert graph.inputs[0].name == "input_0"


def test_names_of_constants_say_their_role():
    builder = GraphBuilder()
    weight = w8(4, 3)
    bias = TensorType((4,), DType.INT32, QParams.per_tensor(0.001, 0))
    operands = (
        builder.input(i8(2, 3)),
        builder.constant(np.ones((4, 3)), weight.type),
        builder.constant(np.ones(4), bias),
    )
    graph = builder.finish(builder.emit(FullyConnected(), *operands, qparams=q(0.1)))
    graph.rename()
    assert [t.name for t in graph.constants()] == ["fully_connected_0.weight", "fully_connected_0.bias"]


def test_names_of_list_operands_are_numbered():
    builder = GraphBuilder()
    parts = [builder.constant(np.ones((1, n)), i8(1, n)) for n in (1, 2)]
    graph = builder.finish(builder.emit(Concat(1), *parts))
    graph.rename()
    assert len({t.name for t in graph.constants()}) == 2


def test_a_clone_is_independent():
    graph, _ = diamond()
    graph.channels_last_outputs = {0}
    before, copy = str(graph), graph.clone()
    assert str(copy) == before
    assert copy.channels_last_outputs == {0}
    copy.nodes[0].op = Sigmoid()
    copy.nodes[3].inputs = [copy.inputs[0], copy.inputs[0]]
    copy.inputs[0].name = "changed"
    copy.inputs[0].type = i8(9)
    copy.outputs.append(copy.inputs[0])
    copy.channels_last_outputs.clear()
    copy.remove_dead()
    assert str(graph) == before
    assert graph.channels_last_outputs == {0}


def test_a_clone_shares_tensors_as_the_original():
    graph, _ = diamond()
    copy = graph.clone()
    assert copy.nodes[0].inputs[0] is copy.nodes[1].inputs[0] is copy.inputs[0]
    assert copy.nodes[3].output is copy.outputs[0]
    assert not set(copy.inputs) & set(graph.inputs)


# ---------------------------------------------------------------- interpreter


def test_interpreter_runs_and_shows_every_node():
    graph, t = diamond()
    seen: dict[Tensor, np.ndarray] = {}
    x = np.arange(-3, 3, dtype=np.int8).reshape(2, 3)
    (y,) = interpret(graph, [x], observe=lambda node, result: seen.update({node.output: result}))
    assert set(seen) == {t["a"], t["b"], t["s"], t["y"]}
    # relu(x) / 0.1 rounds half away, sigmoid(0) is 128/256, and their sum is counted in steps of 0.3
    np.testing.assert_array_equal(seen[t["a"]], [[0, 0, 0], [0, 1, 1]])
    np.testing.assert_array_equal(seen[t["s"]][1, 0], 0)
    np.testing.assert_array_equal(y, np.rint((seen[t["a"]] * 0.1 + (seen[t["s"]] + 128.0) / 256) / 0.3))


def test_interpreter_returns_inputs_and_constants():
    builder = GraphBuilder()
    x, c = builder.input(i8(2)), builder.constant([1, 2], i8(2))
    first, second = interpret(builder.finish(c, x), [np.array([3, 4], np.int8)])
    assert (first.tolist(), second.tolist()) == ([1, 2], [3, 4])


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([], "The graph has 1 input, but got 0"),
        ([np.zeros((2, 4), np.int8)], r"got int8\[2, 4\]"),
        ([np.zeros((2, 3), np.uint8)], r"got uint8\[2, 3\]"),
    ],
)
def test_inputs_that_do_not_fit(inputs, message):
    with pytest.raises(ModelError, match=message):
        interpret(diamond()[0], inputs)


def test_an_operator_that_breaks_its_own_promise(monkeypatch):
    monkeypatch.setattr(Relu, "reference", lambda self, y, x: x.data.astype(np.int32))
    with pytest.raises(InternalError, match=r"relu made int32\[2, 3\] instead of int8"):
        interpret(diamond()[0], [np.zeros((2, 3), np.int8)])
