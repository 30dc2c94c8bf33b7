"""The verifier finds what it says it finds; each test breaks a legal graph in one place."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from tests.cases import i8, q, w8

from micronpu.base.errors import InternalError
from micronpu.ir import DType, Graph, GraphBuilder, QParams, Stage, Tensor, TensorType, verify
from micronpu.ir.window import Padding2d
from micronpu.ops.activation import Sigmoid
from micronpu.ops.clamps import Relu
from micronpu.ops.convolution import Conv2d
from micronpu.ops.elementwise import Add
from micronpu.ops.movement import Reshape
from micronpu.ops.pooling import AvgPool2d, MaxPool2d
from micronpu.ops.slicing import Concat


def legal() -> Graph:
    builder = GraphBuilder()
    x, z = builder.input(i8(2, 3), "x"), builder.input(i8(3), "z")
    a = builder.emit(Relu(), x, qparams=q(0.1))
    return builder.finish(builder.emit(Add(), a, z, qparams=q(0.2)))


def refused(graph: Graph, message: str, stage: Stage = Stage.IMPORTED) -> None:
    with pytest.raises(InternalError) as caught:
        verify(graph, stage)
    assert message in str(caught.value)


@pytest.mark.parametrize("stage", list(Stage))
def test_a_legal_graph_passes(stage):
    verify(legal(), stage)


def constant_input(graph: Graph) -> None:
    graph.inputs[1].data = np.zeros(3, np.int8)


def input_twice(graph: Graph) -> None:
    graph.inputs.append(graph.inputs[0])


def wrong_order(graph: Graph) -> None:
    graph.nodes.reverse()


def unknown_operand(graph: Graph) -> None:
    graph.nodes[0].inputs = [Tensor("stray", i8(2, 3))]


def computed_twice(graph: Graph) -> None:
    graph.nodes.append(graph.nodes[0])


def input_computed(graph: Graph) -> None:
    graph.nodes[0].outputs = [graph.inputs[0]]
    graph.inputs[0].type = i8(2, 3, scale=0.1)


def output_never_computed(graph: Graph) -> None:
    graph.outputs = [Tensor("y", i8(2, 3))]


WRONG: dict[Callable[[Graph], None], str] = {
    constant_input: "Graph input z is a constant.",
    input_twice: "x is an input of the graph twice.",
    wrong_order: "before it is computed",
    unknown_operand: "reads %stray before it is computed.",
    computed_twice: "which exists already",
    input_computed: "computes %x, which exists already",
    output_never_computed: "Graph output %y is never computed.",
}


@pytest.mark.parametrize(("spoil", "message"), WRONG.items(), ids=[spoil.__name__ for spoil in WRONG])
def test_a_wrong_graph_is_named(spoil: Callable[[Graph], None], message: str):
    graph = legal()
    spoil(graph)
    refused(graph, message)


@pytest.mark.parametrize(
    ("type", "message"),
    [
        (i8(2, 4), "makes int8[2,3], but its result is declared int8[2,4"),
        (TensorType((2, 3), DType.INT32), "its result is declared int32[2,3]"),
        (TensorType((2, 3), DType.INT8), "has a result without parameters per tensor: int8[2,3]."),
        (TensorType((2, 3), DType.INT8, QParams.per_channel([0.1, 0.2], 0)), "without parameters per tensor"),
    ],
)
def test_wrong_type(type, message):
    graph = legal()
    graph.nodes[1].output.type = type
    refused(graph, message)


def test_dictated_parameters():
    graph = legal()
    graph.nodes[0].op = Sigmoid()
    refused(graph, "dictates 0.00390625*(q+128), but its result is declared 0.1*(q+0).")


def test_joined_tensors_share_parameters():
    """A concatenation copies integers, so that another grid would be another number."""
    builder = GraphBuilder()
    parts = [builder.input(i8(1, n, scale=s)) for n, s in ((2, 0.1), (3, 0.2))]
    refused(builder.finish(builder.emit(Concat(1), *parts)), "joins")


# ---------------------------------------------------------------- LiteRT


def window(op: Conv2d | MaxPool2d | AvgPool2d) -> Graph:
    builder = GraphBuilder()
    x = builder.input(i8(1, 8, 8, 3))
    if not isinstance(op, Conv2d):
        return builder.finish(builder.emit(op, x))
    weight = builder.constant(np.ones((4, 3, 3, 3)), w8(4, 3, 3, 3).type)
    bias = builder.constant(np.zeros(4), TensorType((4,), DType.INT32, q(0.001)))
    return builder.finish(builder.emit(op, x, weight, bias, qparams=q(0.1)))


@pytest.mark.parametrize("kind", [Conv2d, MaxPool2d, AvgPool2d])
def test_paddings_with_a_word_in_litert(kind):
    size = {} if kind is Conv2d else {"kernel": (3, 3)}
    for stride in ((1, 1), (2, 2)):
        same = Padding2d.same((8, 8), (3, 3), stride)
        verify(window(kind(stride=stride, padding=same, **size)), Stage.LITERT)
        verify(window(kind(stride=stride, **size)), Stage.LITERT)
        other = window(kind(stride=stride, padding=Padding2d(2, 0, 1, 1), **size))
        verify(other)
        refused(other, "has a padding that LiteRT cannot express.", Stage.LITERT)


def test_dilation_counts_in_the_padding():
    same = Padding2d.same((8, 8), (3, 3), (1, 1), (2, 2))
    verify(window(Conv2d(padding=same, dilation=(2, 2))), Stage.LITERT)
    refused(window(Conv2d(padding=same)), "has a padding that LiteRT cannot express.", Stage.LITERT)


def test_nodes_that_nobody_reads():
    graph = legal()
    GraphBuilder(graph).emit(Reshape((6,)), graph.inputs[0])
    verify(graph)
    refused(graph, "No operator reads the result of", Stage.LITERT)


@pytest.mark.parametrize("which", ["input", "constant", "twice"])
def test_outputs_of_a_delegate_are_results_of_their_own(which):
    graph = legal()
    constant = Tensor("c", i8(3), np.zeros(3, np.int8))
    graph.outputs.append({"input": graph.inputs[0], "constant": constant, "twice": graph.outputs[0]}[which])
    verify(graph)
    refused(graph, "is an input, a constant, or an output twice.", Stage.LITERT)


def test_a_window_that_does_not_fit_is_found():
    graph = window(MaxPool2d((3, 3)))
    graph.inputs[0].type = i8(1, 2, 8, 3)
    refused(graph, "A window of 3 (dilation 1) does not fit into 2 + 0.")


def test_a_scale_must_be_a_number():
    with pytest.raises(InternalError, match="finite"):
        q(math.nan)
