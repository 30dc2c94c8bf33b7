"""Printer and parser of graphs."""

from __future__ import annotations

import numpy as np
import pytest
from tests.cases import Case, all_cases, i8, q
from tests.graph_text import constants_of, parse_graph

from micronpu.base.errors import ModelError
from micronpu.ir import Graph, GraphBuilder, Origin, Tensor, interpret
from micronpu.ops.clamps import Relu
from micronpu.ops.elementwise import Add
from micronpu.ops.movement import Pad

TEXT = """\
graph(%x: int8[1,7,5,3, 0.05*(q+3)], %z: int8[4, 0.1*(q+0)]) {
  %a: int8[1,5,3,4, 0.2*(q-4)] = conv2d{activation=relu6}(%x, %w: int8[4,3,3,3, per-channel[4]@0], \
%b: int32[4, per-channel[4]@0])  # model.py:12
  %p: int8[1,2,2,4, 0.2*(q-4)] = max_pool2d{kernel=(3, 2), stride=(2, 2), padding=(1,0,0,1)}(%a)  # pool, pool_1
  %y: int8[1,2,2,4, 0.3*(q-9)] = add(%p, %z)
  return %y, %a
}"""


def assert_equal(one: Graph, two: Graph) -> None:
    """The same operators on the same values with the same types; names and origins may differ."""
    numbers: list[dict[Tensor, int]] = [{}, {}]

    def same(a: Tensor, b: Tensor) -> None:
        if a.is_constant:
            assert b.data is not None
            assert a.type == b.type
            np.testing.assert_array_equal(a.data, b.data)
        else:
            assert a.type == b.type
            assert numbers[0].setdefault(a, len(numbers[0])) == numbers[1].setdefault(b, len(numbers[1]))

    for a, b in zip(one.inputs, two.inputs, strict=True):
        same(a, b)
    for m, n in zip(one.nodes, two.nodes, strict=True):
        assert m.op == n.op
        for a, b in zip((*m.inputs, *m.outputs), (*n.inputs, *n.outputs), strict=True):
            same(a, b)
    for a, b in zip(one.outputs, two.outputs, strict=True):
        same(a, b)


@pytest.mark.parametrize("row", all_cases(), ids=lambda row: row.name)
def test_every_operator_comes_back(row: Case):
    graph = row.graph()
    text = str(graph)
    back = parse_graph(text, constants_of(graph))
    assert_equal(graph, back)
    assert str(back) == text


def test_a_graph_by_hand():
    graph = parse_graph(TEXT)
    assert str(graph) == TEXT
    assert [n.op.name for n in graph.nodes] == ["conv2d", "max_pool2d", "add"]
    assert graph.nodes[0].origin == Origin(source="model.py:12")
    assert graph.nodes[1].origin == Origin(nodes=("pool", "pool_1"))
    _, weight, bias = graph.nodes[0].inputs
    assert bias.type.qparams.scale == pytest.approx([0.05 * s for s in weight.type.qparams.scale], rel=1e-6)
    y, a = interpret(graph, [np.ones((1, 7, 5, 3), np.int8), np.ones(4, np.int8)])
    assert y.shape == (1, 2, 2, 4)
    assert a.shape == (1, 5, 3, 4)


def test_constants_are_made_up_the_same_way():
    """A test that parses twice, for before and after, has the same weights in both."""
    one, two = parse_graph(TEXT), parse_graph(TEXT)
    assert_equal(one, two)
    weights = constants_of(one)["w"].data
    assert len(np.unique(weights)) > 50
    assert weights.min() >= -128


def test_constants_can_be_given():
    weights = np.full((4, 3, 3, 3), 7, np.int8)
    graph = parse_graph(TEXT, {"w": weights})
    np.testing.assert_array_equal(constants_of(graph)["w"].data, weights)


def test_empty_lines_and_comments_count_for_nothing():
    spread = "# before\n\n" + TEXT.replace("\n", "\n\n   # between\n") + "\n\n# behind\n"
    assert_equal(parse_graph(spread), parse_graph(TEXT))


def test_tensors_of_one_name_are_distinguished():
    """Passes name what they make after the operator, so that names repeat until the end of the pipeline."""
    builder = GraphBuilder()
    x = builder.input(i8(2, 3), "x")
    first = builder.emit(Relu(), x, qparams=q(0.1))
    second = builder.emit(Relu(), first, qparams=q(0.2))
    first.name = second.name = "relu"
    graph = builder.finish(builder.emit(Add(), second, first, qparams=q(0.3)))
    text = str(graph)
    assert "%relu~2" in text
    assert_equal(parse_graph(text), graph)


def test_scales_come_back_to_the_last_bit():
    random = np.random.default_rng(0)
    for scale in np.exp(random.uniform(-30, 30, 200)):
        graph = GraphBuilder().graph
        graph.inputs = [Tensor("x", i8(3, scale=float(scale), zero=-7))]
        graph.outputs = list(graph.inputs)
        assert parse_graph(str(graph)).inputs[0].type == graph.inputs[0].type


def test_infinity_and_tensors_without_axes():
    builder = GraphBuilder()
    padded = builder.emit(Pad((1,), (0,), float("-inf")), builder.input(i8(3)))
    graph = builder.finish(padded, builder.input(i8()))
    assert_equal(parse_graph(str(graph)), graph)


def test_a_graph_that_returns_nothing():
    assert str(parse_graph("graph() {\n  return\n}")) == "graph() {\n  return\n}"


def line(number: int, new: str) -> str:
    lines = TEXT.splitlines()
    lines[number - 1] = new
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the text ends before `graph"),
        ("hello", "Line 1 of the graph: `hello` is not the head of a graph. Try: graph(%x: int8[1,4, 0.1*(q+0)]) {."),
        (line(1, "graph(%x) {"), "Line 1 of the graph: `%x` does not declare a tensor."),
        (line(1, "graph(%x: int7[3]) {"), "Line 1 of the graph: `int7[3]` is not a type."),
        (line(1, "graph(%x: int8[3,a, 0.1*(q+0)]) {"), "`int8[3,a, 0.1*(q+0)]` is not a type."),
        (line(1, "graph(%x: int8[3, 0.1]) {"), "`0.1` in `int8[3, 0.1]` is no quantization. Try: 0.1*(q-3)"),
        (line(1, "graph(%x: int8[3, -1*(q+0)]) {"), "finite and positive"),
        (line(1, "graph(%x: int8[3, 0.1*(q+0)], %x: int8[3, 0.1*(q+0)]) {"), "Line 1 of the graph: %x exists already."),
        (line(2, "  %a = relu(%x)"), "Line 2 of the graph: `%a` does not declare a tensor."),
        (line(2, "  relu(%x)"), "Line 2 of the graph: `relu(%x)` is not an operator."),
        (line(2, "  %a: int8[3, 1*(q+0)] = frobnicate(%x)"), "Line 2 of the graph: there is no operator `frobnicate`."),
        (line(3, "  %p: int8[3, 1*(q+0)] = relu(%q)"), "Line 3 of the graph: %q is read before it is computed."),
        (line(4, "  %a: int8[1,7,5,3, 1*(q+0)] = relu(%x)"), "Line 4 of the graph: %a exists already."),
        (
            line(3, "  %p: int8[3, 1*(q+0)] = relu{kind=cube}(%x)"),
            "`cube` is no value of the attribute `kind` of",
        ),
        (line(3, "  %p: int8[3, 1*(q+0)] = relu{size=3}(%x)"), "`relu` has no attribute `size`. Try: one of kind."),
        (line(3, "  %p: int8[3, 1*(q+0)] = relu{kind}(%x)"), "`relu` has no attribute `kind`."),
        (line(3, "  %p: int8[3, 1*(q+0)] = transpose(%x)"), "`transpose` needs its attributes, and permutation is not"),
        (line(3, "  %p: int8[1,5,3,4, 0.2*(q-4)] = relu(%a, %x)"), "takes x, not 2 operands"),
        (line(3, "  %p: int8[9, 0.1*(q+0)] = reshape{shape=(9,)}(%a)"), "cannot be reshaped"),
        (line(3, "  %p: int8[1,5,3,4, 0.1*(q-4)] = clamp{low=0.0}(%a)"), "but %p is declared int8[1,5,3,4, 0.1*(q-4)]"),
        (line(5, "  return %nothing"), "Line 5 of the graph: %nothing is read before it is computed."),
        (line(6, "  %y: int8[1] = relu(%x)"), "stands where `}` is expected"),
        (TEXT + "\nmore", "Line 7 of the graph: `more` stands where nothing more is expected."),
        (TEXT.removesuffix("}"), "Line 5 of the graph: the text ends before `}`."),
        ("\n".join(TEXT.splitlines()[:4]), "Line 4 of the graph: the text ends before `return`."),
    ],
)
def test_errors_are_sentences_with_the_line(text, message):
    with pytest.raises(ModelError) as caught:
        parse_graph(text)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("constants", "message"),
    [
        ({"v": np.zeros(3, np.int8)}, "The graph has no constant v."),
        ({"w": np.zeros((4, 3, 3), np.int8)}, "Line 2 of the graph: the constant %w is declared int8[4,3,3,3, per-"),
        ({"w": np.zeros((4, 3, 3, 3), np.int32)}, "but int32[4, 3, 3, 3] is given."),
        ({"w": Tensor("w", i8(2), np.zeros(2, np.int8))}, "but int8[2, 0.05*(q+0)] is given."),
    ],
)
def test_constants_that_do_not_fit(constants, message):
    with pytest.raises(ModelError) as caught:
        parse_graph(TEXT, constants)
    assert message in str(caught.value)


@pytest.mark.parametrize("change", [("stride=(2, 2)", "stride=(0, 2)"), ("kernel=(3, 2)", "kernel=(0, 2)")])
def test_windows_without_size_or_stride_are_a_sentence(change):
    with pytest.raises(ModelError, match="max_pool2d"):
        parse_graph(TEXT.replace(*change))
