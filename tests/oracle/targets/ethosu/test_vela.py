"""Graphs through Vela: what it makes of them, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest

from micronpu.emit.litert import to_litert
from micronpu.ir import DType, Graph, GraphBuilder, QParams, TensorType
from micronpu.ir.graph import Node, Tensor
from micronpu.ir.op import Op
from micronpu.ir.window import Activation, Padding2d
from micronpu.ops.convolution import Conv2d, DepthwiseConv2d
from micronpu.ops.indices import ArgMax
from micronpu.ops.movement import TO_CHANNELS_LAST, Transpose
from micronpu.ops.pooling import AvgPool2d, MaxPool2d
from micronpu.ops.resize import ResizeBilinear
from micronpu.ops.slicing import Slice
from micronpu.ops.softmax import Softmax
from micronpu.ops.tables.table import LookupTable
from micronpu.targets.ethosu.compile import compile_graph
from micronpu.targets.ethosu.options import EthosUOptions
from micronpu.targets.ethosu.payload import parse
from micronpu.targets.ethosu.rules import VelaJudge
from micronpu.targets.ethosu.vela.compiler import VelaError, compile_flatbuffer

TARGETS = ("ethos-u55-32", "ethos-u55-256", "ethos-u65-256", "ethos-u65-512", "ethos-u85-128", "ethos-u85-2048")
Q = QParams.per_tensor(0.05, 0)


def small_graph(stride: int = 1, transposed: bool = False) -> Graph:
    builder = GraphBuilder()
    shape = (1, 3, 16, 16) if transposed else (1, 16, 16, 3)
    x = builder.input(TensorType(shape, DType.INT8, Q))
    channels_last = builder.emit(Transpose(TO_CHANNELS_LAST), x) if transposed else x
    rng = np.random.default_rng(0)
    weight = TensorType((8, 3, 3, 3), DType.INT8, QParams.per_channel([0.01] * 8, 0))
    bias = TensorType((8,), DType.INT32, QParams.per_channel([0.0005] * 8, 0))
    y = builder.emit(
        Conv2d((stride, stride), Padding2d.symmetric(1, 1), activation=Activation.RELU),
        channels_last,
        builder.constant(rng.integers(-127, 128, (8, 3, 3, 3)), weight),
        builder.constant(rng.integers(-500, 500, 8), bias),
        qparams=QParams.per_tensor(0.1, -128),
    )
    return builder.finish(y)


@pytest.mark.parametrize("target", TARGETS)
def test_payload_and_estimates(target: str) -> None:
    compiled = compile_graph(small_graph(), EthosUOptions(target))
    payload = parse(compiled.payload)
    assert payload.commands == compiled.program.commands
    assert payload.inputs[0].shape[-3:] == (16, 16, 3)
    assert payload.outputs[0].shape[-3:] == (16, 16, 8)
    assert payload.scratch_size >= 16 * 16 * 3 + 16 * 16 * 8
    assert compiled.program.cycles > 0
    assert any(layer.macs == 16 * 16 * 8 * 27 for layer in compiled.program.layers)
    assert {layer.source for layer in compiled.program.layers} <= set(range(len(compiled.model.nodes)))


def test_same_graph_same_bytes() -> None:
    spec = EthosUOptions("ethos-u85-256")
    assert compile_graph(small_graph(), spec).payload == compile_graph(small_graph(), spec).payload


def test_more_multipliers_are_not_slower() -> None:
    cycles = [
        compile_graph(small_graph(), EthosUOptions(f"ethos-u55-{macs}")).program.cycles for macs in (32, 64, 128, 256)
    ]
    assert cycles == sorted(cycles, reverse=True)


def test_flag_reaches_vela() -> None:
    by_size = EthosUOptions("ethos-u55-128", extra_flags=("--optimise=Size",))
    model = to_litert(compile_graph(small_graph(), EthosUOptions("ethos-u55-128")).graph).data
    fast = compile_flatbuffer(model, EthosUOptions("ethos-u55-128"))
    assert compile_flatbuffer(model, by_size).scratch_size <= fast.scratch_size


def test_garbage_is_refused_with_a_sentence() -> None:
    with pytest.raises(VelaError, match="Vela refuses the program"):
        compile_flatbuffer(b"\x08\0\0\0TFL3" + bytes(64), EthosUOptions("ethos-u55-128"))


def test_judge_agrees_with_the_whole() -> None:
    judge = VelaJudge(EthosUOptions("ethos-u55-128"))
    graph = small_graph(stride=2, transposed=True)
    assert [judge(node) for node in graph.nodes] == [[]] * len(graph.nodes)


@pytest.mark.parametrize(
    ("op", "shape", "part"),
    [
        (AvgPool2d((300, 300)), (1, 300, 300, 4), "Vela: kernel height: 300 out of range"),
        (Softmax(), (70000,), "could not run on NPU"),
    ],
)
def test_judge_gives_velas_reason(op: Op, shape: tuple[int, ...], part: str, capfd: pytest.CaptureFixture[str]) -> None:
    builder = GraphBuilder()
    builder.emit(op, builder.input(TensorType(shape, DType.INT8, Q)))
    (reason,) = VelaJudge(EthosUOptions("ethos-u55-128", via="litert"))(builder.graph.nodes[0])
    assert reason.rule == "vela_accepts"
    assert part in reason.detail
    assert capfd.readouterr().out == ""


def test_judge_asks_once_per_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr("micronpu.targets.ethosu.rules.compile_flatbuffer", lambda model, *_: asked.append(model))
    judge = VelaJudge(EthosUOptions("ethos-u55-128", via="litert"))
    for size in (8, 8, 9):
        builder = GraphBuilder()
        builder.emit(MaxPool2d((2, 2), (2, 2)), builder.input(TensorType((1, size, 8, 4), DType.INT8, Q)))
        judge(builder.graph.nodes[0])
    assert len(asked) == 2
    plain, scaled = small_graph(transposed=True), small_graph()
    weight = scaled.nodes[0].inputs[1]
    weight.type = weight.type.with_qparams(QParams.per_channel([0.02] * 8, 0))
    for node in (*plain.nodes, *scaled.nodes):  # a transpose, and a convolution with one weight and another
        judge(node)
    assert len(asked) == 3


def test_judge_tries_both_layouts_and_says_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bytes] = []

    def refuse(model: bytes, *_: object) -> None:
        asked.append(model)
        raise VelaError("Vela: Unsupported opType" if len(asked) % 2 else "Vela: kernel height: 300 out of range")

    monkeypatch.setattr("micronpu.targets.ethosu.rules.compile_flatbuffer", refuse)
    judge = VelaJudge(EthosUOptions("ethos-u85-256"))  # the others ask about this one, too
    for op, shape, forms in ((MaxPool2d((2, 2)), (1, 8, 6, 4), 4), (Softmax(), (6, 4), 2)):
        asked.clear()
        builder = GraphBuilder()
        builder.emit(op, builder.input(TensorType(shape, DType.INT8, Q)))
        (reason,) = judge(builder.graph.nodes[0])
        assert "kernel height: 300" in reason.detail
        assert len(set(asked)) == len(asked) == forms


def test_the_hint_names_another_accelerator_where_that_takes_the_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = {"u55"}

    def refuse(model: bytes, spec: EthosUOptions, *_: object) -> None:
        if spec.accelerator.family in refused:
            raise VelaError("Vela: no")

    monkeypatch.setattr("micronpu.targets.ethosu.rules.compile_flatbuffer", refuse)
    monkeypatch.setattr("micronpu.targets.ethosu.rules.judge_of", VelaJudge)
    builder = GraphBuilder()
    builder.emit(Softmax(), builder.input(TensorType((6, 4), DType.INT8, Q)))
    judge = VelaJudge(EthosUOptions("ethos-u55-128"))
    (reason,) = judge(builder.graph.nodes[0])
    assert reason.hint == "an Ethos-U85, which takes it, or another form of the model"
    refused.add("u85")
    (reason,) = VelaJudge(EthosUOptions("ethos-u55-128"))(builder.graph.nodes[0])
    assert reason.hint == "another form of the model"


def test_judge_takes_an_operator_that_one_form_can_express() -> None:
    """Vela has no word for a table in LiteRT, and none for an image half a pixel off in TOSA."""
    auto, litert, tosa = (VelaJudge(EthosUOptions("ethos-u55-128", via=via)) for via in ("auto", "litert", "tosa"))
    x = TensorType((1, 4, 4, 3), DType.INT8, Q)
    for op, only in ((LookupTable((0,) * 256), tosa), (ResizeBilinear((8, 8), False, True), litert)):
        builder = GraphBuilder()
        builder.emit(op, builder.input(x), qparams=Q)
        (node,) = builder.graph.nodes
        assert not auto(node)
        assert [bool(judge(node)) for judge in (litert, tosa)] == [only is tosa, only is litert]
        assert auto.prefers(node) == (only is tosa)


POSITIONS = [
    (ArgMax(), (1, 4, 4, 127), ("u55-128", "u65-256", "u85-256")),
    (ArgMax(), (2, 3, 127), ("u55-128", "u65-256", "u85-256")),
    (ArgMax(), (1, 4, 4, 128), ("u85-256",)),
    (DepthwiseConv2d((3, 3)), (1, 9, 9, 4), ("u55-128", "u65-256", "u85-256")),
    (DepthwiseConv2d((4, 4)), (1, 9, 9, 4), ("u85-256",)),
    (ResizeBilinear((8, 8), False, True), (1, 4, 4, 3), ("u55-128", "u65-256", "u85-256")),
    (ResizeBilinear((12, 12), False, True), (1, 4, 4, 3), ("u85-256",)),
    (ResizeBilinear((8, 8), True, False), (1, 4, 4, 3), ("u85-256",)),
]


@pytest.mark.parametrize(("op", "shape", "able"), POSITIONS, ids=str)
@pytest.mark.parametrize("accelerator", ["u55-128", "u65-256", "u85-256"])
def test_both_sides_of_limits(op: Op, shape: tuple[int, ...], able: tuple[str, ...], accelerator: str) -> None:
    builder = GraphBuilder()
    operands = [builder.input(TensorType(shape, DType.INT8, Q))]
    if isinstance(op, DepthwiseConv2d):
        weight = TensorType((1, 3, 3, shape[3]), DType.INT8, QParams.per_tensor(0.02, 0))
        bias = TensorType((shape[3],), DType.INT32, QParams.per_tensor(0.02 * Q.scale[0], 0))
        operands += [builder.constant(np.ones(t.shape), t) for t in (weight, bias)]
    builder.emit(op, *operands, qparams=Q)
    reasons = VelaJudge(EthosUOptions(f"ethos-{accelerator}"))(builder.graph.nodes[0])
    assert bool(reasons) == (accelerator not in able)


@pytest.mark.parametrize("via", ["litert", "tosa"])
def test_cycles_stand_at_the_operator_that_takes_them(via: str) -> None:
    """A slice in TOSA has constants of shapes among the operators, which Vela's own numbers leave out."""
    graph = small_graph()
    (x,) = graph.inputs
    wide = Tensor("wide", x.type.with_shape((1, 18, 18, 3)))
    graph.inputs = [wide]
    graph.nodes.insert(0, Node(Slice((0, 1, 1, 0), (1, 16, 16, 3)), [wide], [x]))
    compiled = compile_graph(graph, EthosUOptions("ethos-u85-256", via=via))
    (convolution,) = [i for i, node in enumerate(compiled.graph.nodes) if node.op.name == "conv2d"]
    macs = {compiled.model.nodes[layer.source]: layer.macs for layer in compiled.program.layers if layer.macs}
    assert macs == {convolution: 16 * 16 * 8 * 27}
