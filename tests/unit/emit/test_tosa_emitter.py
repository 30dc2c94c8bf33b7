"""What the TOSA emitter writes, read back from the flatbuffer."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tests.cases import Case, case, i8, q, w8
from tosa.DType import DType as TosaDType
from tosa.Op import Op as TosaOp
from tosa.TosaGraph import TosaGraph

from micronpu.base.errors import InternalError, UnsupportedError
from micronpu.emit.tosa import TosaEmitter
from micronpu.ir import DType, Graph, GraphBuilder, QParams, TensorType, interpret
from micronpu.ir.window import Activation, Padding2d
from micronpu.ops.activation import Sigmoid
from micronpu.ops.clamps import Clamp, Relu
from micronpu.ops.convolution import Conv2d, DepthwiseConv2d, TransposeConv2d
from micronpu.ops.elementwise import Add
from micronpu.ops.matmul import FullyConnected
from micronpu.ops.movement import Pad, Reshape, Transpose
from micronpu.ops.pooling import AvgPool2d, MaxPool2d
from micronpu.ops.reduction import Amax, Mean
from micronpu.ops.slicing import Concat
from micronpu.passes import run_passes
from micronpu.passes.legalize import FoldLowestPads
from micronpu.targets.ethosu.legalize import to_tosa

NAMES = {value: name for name, value in vars(TosaOp).items() if not name.startswith("_")}


def block(data: bytes):
    graph = TosaGraph.GetRootAs(data, 0)
    version = graph.Version()
    assert (version._Major(), version._Minor(), version._Patch(), version._Draft()) == (1, 0, 0, False)
    return graph.Regions(0).Blocks(0)


def operators(data: bytes) -> list[str]:
    """Names of the operators in order, constants left out."""
    found = block(data)
    names = [NAMES[found.Operators(i).Op()] for i in range(found.OperatorsLength())]
    return [name for name in names if not name.startswith("CONST")]


def written(row: Case) -> list[str]:
    return operators(to_tosa(row.graph()).data)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (case(Conv2d(), x=i8(1, 4, 4, 3), weight=w8(8, 3, 3, 3, axis=0), out=q(0.1)), ["CONV2D", "RESCALE"]),
        (
            # The clamp is where the result saturates anyhow.
            case(Conv2d(activation=Activation.RELU), x=i8(1, 4, 4, 3), weight=w8(8, 3, 3, 3, axis=0), out=q(0.1, -128)),
            ["CONV2D", "RESCALE"],
        ),
        (
            case(Conv2d(activation=Activation.RELU), x=i8(1, 4, 4, 3), weight=w8(8, 3, 3, 3, axis=0), out=q(0.1, 3)),
            ["CONV2D", "RESCALE", "CLAMP"],
        ),
        (
            case(DepthwiseConv2d(padding=Padding2d(1, 1, 2, 0)), x=i8(1, 4, 4, 3), weight=w8(1, 3, 3, 3), out=q(0.1)),
            ["DEPTHWISE_CONV2D", "RESCALE"],
        ),
        (
            case(FullyConnected(), x=i8(2, 3, 4), weight=w8(5, 4), out=q(0.1)),
            ["RESHAPE", "CONV2D", "RESCALE", "RESHAPE"],
        ),
        (
            case(Add(), x=i8(2, 3), z=i8(3, scale=0.1), out=q(0.2)),
            ["RESCALE", "RESCALE", "RESHAPE", "ADD", "RESCALE"],
        ),
        (case(Sigmoid(), x=i8(2, 3)), ["TABLE"]),
        (case(Clamp(-0.5, 0.5), x=i8(2, 3)), ["CLAMP"]),
        (case(Relu(), x=i8(2, 3, zero=5), out=q(0.05, 5)), ["CLAMP"]),
        (case(Mean((1, 2)), x=i8(1, 7, 7, 8)), ["RESCALE", "REDUCE_SUM", "REDUCE_SUM", "RESCALE", "RESHAPE"]),
        (case(Mean((1,)), x=i8(4, 16)), ["RESHAPE", "CONV2D", "RESCALE", "RESHAPE"]),
        (case(Amax((1,)), x=i8(4, 16)), ["TRANSPOSE", "REDUCE_MAX", "RESHAPE", "RESHAPE"]),
        (case(AvgPool2d((4, 4), (4, 4)), x=i8(1, 4, 4, 8)), ["AVG_POOL2D"]),
        (case(Transpose((0, 2, 1)), x=i8(1, 2, 3)), ["TRANSPOSE"]),
        (case(Reshape((6,)), x=i8(2, 3)), ["RESHAPE"]),
        # A result that is its operand is copied, since it may be an output.
        (case(Reshape((2, 3)), x=i8(2, 3)), ["IDENTITY"]),
        (
            case(TransposeConv2d((1, 1)), x=i8(1, 4, 4, 3), weight=w8(8, 3, 3, 3), out=q(0.1)),
            ["CONV2D", "RESCALE"],
        ),
    ],
    ids=lambda value: str(value)[:60] if isinstance(value, Case) else None,
)
def test_form(row: Case, expected: list[str]):
    assert written(row) == expected


def small() -> Graph:
    """x -> conv2d, twice with the same constants -> concat."""
    builder = GraphBuilder()
    x = builder.input(TensorType((1, 4, 4, 3), DType.INT8, QParams.per_tensor(0.05, 3)))
    weight = TensorType((8, 3, 3, 3), DType.INT8, QParams.per_tensor(0.01, 0))
    bias = TensorType((8,), DType.INT32, QParams.per_tensor(0.0005, 0))
    made = []
    for seed in range(2):
        random = np.random.default_rng(seed)
        w = builder.constant(random.integers(-127, 128, weight.shape), weight)
        b = builder.constant(random.integers(-99, 99, (8,)), bias)
        made.append(builder.emit(Conv2d(padding=Padding2d(1, 1, 1, 1)), x, w, b, qparams=QParams.per_tensor(0.1, 0)))
    return builder.finish(builder.emit(Concat(3), *made))


def test_same_graph_same_bytes_and_the_graph_stays():
    graph = run_passes(small())
    before = str(graph)
    assert to_tosa(graph).data == to_tosa(graph).data == to_tosa(run_passes(small())).data
    assert str(graph) == before


def test_every_operator_has_its_node():
    graph = run_passes(small())
    model = to_tosa(graph)
    found = block(model.data)
    assert len(model.nodes) == found.OperatorsLength()
    kinds = [NAMES[found.Operators(i).Op()] for i in range(found.OperatorsLength())]
    nodes = [graph.nodes[n].op.name for k, n in zip(kinds, model.nodes, strict=True) if k in ("CONV2D", "CONCAT")]
    assert nodes == ["conv2d", "conv2d", "concat"]
    assert sorted(model.nodes) == list(model.nodes)


def test_equal_constants_are_written_once():
    found = block(to_tosa(run_passes(small())).data)
    tensors = [found.Tensors(i) for i in range(found.TensorsLength())]
    names = [t.Name() for t in tensors]
    assert len(set(names)) == len(names)
    constants = [(t.Type(), t.ShapeAsNumpy().tobytes(), t.DataAsNumpy().tobytes()) for t in tensors if t.DataLength()]
    assert len(constants) == len(set(constants)) == 2 + 2 + 5  # kernels, biases; zero points, multiplier, shift


def test_names_are_made_unique():
    """Names of a graph that no pass has renamed may be anything."""
    graph = small()
    for node in graph.nodes:
        node.output.name = "same"
    found = block(to_tosa(graph).data)
    names = [found.Tensors(i).Name() for i in range(found.TensorsLength())]
    assert len(set(names)) == len(names)


def test_padding_that_litert_has_no_word_for_goes_back_into_the_operator():
    """`run_passes` splits it off for LiteRT; TOSA has it as an attribute."""
    builder = GraphBuilder()
    x = builder.input(TensorType((1, 8, 8, 4), DType.INT8, QParams.per_tensor(0.05, 3)))
    y = builder.emit(MaxPool2d((3, 3), (2, 2), Padding2d(1, 1, 1, 1)), x)
    graph = run_passes(builder.finish(y))
    assert [n.op.name for n in graph.nodes] == ["pad", "max_pool2d"]
    model = to_tosa(graph)
    assert operators(model.data) == ["MAX_POOL2D"]
    assert set(model.nodes) == {1}


def pooled(pad: Pad, kernel: int = 3) -> Graph:
    builder = GraphBuilder()
    x = builder.input(TensorType((1, 6, 6, 2), DType.INT8, QParams.per_tensor(0.05, 3)))
    return builder.finish(builder.emit(MaxPool2d((kernel, kernel)), builder.emit(pad, x)))


def test_fold_lowest_pads():
    graph = pooled(Pad((0, 1, 2, 0), (0, 0, 1, 0), -math.inf))
    before = graph.clone()
    assert FoldLowestPads().run(graph)
    graph.remove_dead()
    assert [str(n.op) for n in graph.nodes] == ["max_pool2d{kernel=(3, 3), padding=(1,0,2,1)}"]
    x = np.random.default_rng(0).integers(-128, 128, (1, 6, 6, 2)).astype(np.int8)
    np.testing.assert_array_equal(interpret(graph, [x])[0], interpret(before, [x])[0])


@pytest.mark.parametrize(
    "pad",
    [
        Pad((0, 1, 1, 0), (0, 1, 1, 0), 0.0),  # not the lowest number
        Pad((0, 1, 1, 1), (0, 1, 1, 0), -math.inf),  # channels
        Pad((0, 3, 1, 0), (0, 1, 1, 0), -math.inf),  # as wide as the window
    ],
)
def test_other_pads_stay(pad: Pad):
    graph = pooled(pad)
    assert not FoldLowestPads().run(graph)
    assert len(graph.nodes) == 2


def test_a_high_rank_is_refused():
    row = case(Transpose((6, 5, 4, 3, 2, 1, 0)), x=i8(1, 2, 1, 2, 1, 2, 3))
    with pytest.raises(UnsupportedError, match="rank 7 has no TOSA form, which has up to 6 axes"):
        to_tosa(row.graph())


def test_weights_of_the_run_are_refused():
    builder = GraphBuilder()
    x = builder.input(TensorType((1, 4, 4, 3), DType.INT8, QParams.per_tensor(0.05, 3)))
    w = builder.constant(np.ones((8, 3, 3, 3)), TensorType((8, 3, 3, 3), DType.INT8, QParams.per_tensor(0.01, 0)))
    b = builder.input(TensorType((8,), DType.INT32, QParams.per_tensor(0.0005, 0)))
    graph = builder.finish(builder.emit(Conv2d(), x, w, b, qparams=QParams.per_tensor(0.1, 0)))
    with pytest.raises(UnsupportedError, match="a `bias` that is computed at run time"):
        to_tosa(graph)


def test_a_constant_that_does_not_fit_is_a_defect():
    with pytest.raises(InternalError, match="INT8 cannot hold 128 to 128"):
        TosaEmitter().constant([128])


def test_dtypes_of_the_io():
    found = block(to_tosa(small()).data)
    tensors = {found.Tensors(i).Name(): found.Tensors(i) for i in range(found.TensorsLength())}
    for name in (found.Inputs(0), found.Outputs(0)):
        assert tensors[name].Type() == TosaDType.INT8
