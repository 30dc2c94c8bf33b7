"""The choice of the cheapest way to compile a partition, with Vela as the judge and LiteRT as the witness."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter, OpResolverType

from micronpu.base.errors import UnsupportedError
from micronpu.emit.litert import to_litert
from micronpu.emit.written import WrittenModel
from micronpu.ir.graph import Graph, GraphBuilder, Tensor
from micronpu.ir.interpreter import interpret
from micronpu.ir.types import DType, QParams, TensorType
from micronpu.ir.window import Activation, Padding2d
from micronpu.ops.activation import Prelu
from micronpu.ops.convolution import Conv2d
from micronpu.ops.elementwise import Add
from micronpu.ops.matmul import BatchMatmul
from micronpu.ops.movement import TO_CHANNELS_LAST, Reshape, Transpose
from micronpu.ops.pooling import AvgPool2d, MaxPool2d
from micronpu.passes import run_passes
from micronpu.targets.ethosu import plans
from micronpu.targets.ethosu.legalize import legalize, to_tosa
from micronpu.targets.ethosu.options import EthosUOptions
from micronpu.targets.ethosu.plans import Bench, MemoryLimitError, best_plan, use_cheapest
from micronpu.targets.ethosu.vela.compiler import VelaError, VelaProgram, compile_flatbuffer

TARGETS = ("ethos-u55-128", "ethos-u65-512", "ethos-u85-256")
QPARAMS = QParams.per_tensor(0.05, -128)


def network(size: int = 32) -> Graph:
    """Planes, a convolution with stride, a residual block of 1x1 and 3x3 convolutions, an average."""
    builder, rng = GraphBuilder(), np.random.default_rng(1)

    def convolution(x: Tensor, outputs: int, kernel: int, stride: int = 1) -> Tensor:
        depth, side = x.shape[3], kernel // 2
        weight = TensorType((outputs, kernel, kernel, depth), DType.INT8, QParams.per_channel([0.004] * outputs, 0))
        bias = TensorType((outputs,), DType.INT32, QParams.per_channel([0.004 * x.type.scale] * outputs, 0))
        return builder.emit(
            Conv2d((stride, stride), Padding2d.symmetric(side, side), activation=Activation.RELU),
            x,
            builder.constant(rng.integers(-127, 128, weight.shape), weight),
            builder.constant(rng.integers(-500, 500, outputs), bias),
            qparams=QPARAMS,
        )

    x = builder.input(TensorType((1, 3, size, size), DType.INT8, QParams.per_tensor(0.02, 3)))
    y = convolution(builder.emit(Transpose(TO_CHANNELS_LAST), x), 16, 3, 2)
    y = convolution(convolution(y, 32, 1), 32, 1)
    y = builder.emit(Add(), convolution(y, 32, 3), y, qparams=QPARAMS)
    return run_passes(builder.finish(builder.emit(AvgPool2d((size // 2, size // 2)), y)))


def run_litert(model: WrittenModel, x: np.ndarray) -> np.ndarray:
    interpreter = Interpreter(
        model_content=model.data, experimental_op_resolver_type=OpResolverType.BUILTIN_REF, num_threads=1
    )
    interpreter.allocate_tensors()
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], x)
    interpreter.invoke()
    return np.asarray(interpreter.get_tensor(interpreter.get_output_details()[0]["index"]))


@pytest.mark.parametrize("target", TARGETS)
def test_choice_is_the_cheapest_and_computes_the_same(target: str) -> None:
    graph, spec = network(), EthosUOptions(target)
    plain = compile_flatbuffer(to_litert(graph).data, spec)
    choice = best_plan(graph, spec)
    assert choice.program.cycles == min(o.cycles for o in choice.plans if o.cycles is not None)
    assert choice.program.cycles <= plain.cycles
    assert choice.plan in choice.plans
    x = np.random.default_rng(2).integers(-128, 128, graph.inputs[0].shape).astype(np.int8)
    expected = interpret(graph, [x])[0]
    assert np.array_equal(interpret(choice.graph, [x])[0], expected)
    assert np.array_equal(run_litert(to_litert(choice.graph), x), expected)


def test_transpose_of_the_input_becomes_cheap_on_u85() -> None:
    graph, spec = network(96), EthosUOptions("ethos-u85-256")
    choice = best_plan(graph, spec)
    assert choice.rewrites["planes_into_convolution"] == 1
    assert not any(isinstance(n.op, Transpose) for n in choice.graph.nodes)
    assert any(isinstance(n.op, Transpose) for n in graph.nodes)  # the graph itself stays
    assert choice.program.cycles < 0.7 * compile_flatbuffer(to_litert(graph).data, spec).cycles


def test_rewrites_are_tried_where_a_large_program_can_be_written_in_the_second_format_alone(monkeypatch):
    def refuses_programs(graph: Graph) -> WrittenModel:
        if len(graph.nodes) > 6:
            raise UnsupportedError("`conv2d` cannot be written.")
        return to_litert(graph)

    monkeypatch.setattr(plans, "_LARGE_NODES", 0)
    emitters = {"litert": refuses_programs, "tosa": to_tosa}
    choice = best_plan(network(96), EthosUOptions("ethos-u85-256"), emitters=emitters)
    assert choice.plan.format == "tosa" and choice.rewrites
    assert {(p.format, p.rewrites) for p in choice.plans} >= {("tosa", True), ("tosa", False)}


def test_equal_operators_are_measured_once() -> None:
    spec = EthosUOptions("ethos-u85-256")
    bench = Bench(spec)
    graph = network()
    use_cheapest(graph.clone(), bench)
    measured = dict(bench._cycles)
    use_cheapest(network(), bench)
    assert bench._cycles == measured


def test_memory_limit_takes_a_smaller_way_or_says_what_is_needed() -> None:
    graph, spec = network(96), EthosUOptions("ethos-u55-128")
    free = best_plan(graph, spec)
    least = min(o.memory for o in free.plans)
    tight = best_plan(graph, spec, memory_limit=free.plan.memory - 1)
    assert tight.plan.fits and tight.plan.memory < free.plan.memory
    assert tight.program.cycles >= free.program.cycles
    with pytest.raises(MemoryLimitError, match="bytes of SRAM") as caught:
        best_plan(graph, spec, memory_limit=min(least, 4096))
    assert caught.value.hint


def test_formats_that_the_options_leave_out_are_not_tried() -> None:
    tried: list[str] = []

    def writes(name: str, works: bool, objection: str = "no such form") -> object:
        def emit(graph: Graph) -> WrittenModel:
            tried.append(name)
            if not works:
                raise VelaError(objection)
            return to_litert(graph)

        return emit

    emitters = {"litert": writes("litert", True), "tosa": writes("tosa", False)}
    choice = best_plan(network(), EthosUOptions("ethos-u85-256", via="litert"), emitters=emitters)
    assert set(tried) == {"litert"}
    choice = best_plan(network(), EthosUOptions("ethos-u85-256"), emitters=emitters)
    refused = [o for o in choice.plans if o.format == "tosa"]
    assert [o.objection for o in refused] == ["no such form"]
    with pytest.raises(VelaError, match="no such form"):
        best_plan(network(), EthosUOptions("ethos-u85-256", via="tosa"), emitters=emitters)
    emitters["litert"] = writes("litert", False, "not that either.")
    with pytest.raises(VelaError, match=r"^LiteRT: not that either\. TOSA: no such form\.$"):
        best_plan(network(), EthosUOptions("ethos-u85-256"), emitters=emitters)


def test_a_long_program_is_compiled_in_one_format(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = EthosUOptions("ethos-u55-128")
    emitters = {"litert": to_litert, "tosa": to_tosa}

    def formats() -> set[str]:
        return {plan.format for plan in best_plan(network(), spec, emitters=emitters).plans}

    assert formats() == {"litert", "tosa"}
    monkeypatch.setattr(plans, "_LARGE_NODES", 0)
    assert formats() == {"litert"}


def test_a_program_that_lacks_an_output_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Vela 5.2 has lost reshaped outputs of TOSA programs; a device would read what is not there."""
    graph, spec = network(16), EthosUOptions("ethos-u55-128")

    def forgetful(model: bytes, spec: EthosUOptions, options: object = None) -> VelaProgram:
        program = compile_flatbuffer(model, spec)
        return program if model[4:8] == b"TFL3" else replace(program, outputs=())

    monkeypatch.setattr(plans, "compile_flatbuffer", forgetful)
    choice = best_plan(graph, spec, emitters={"litert": to_litert, "tosa": to_tosa})
    refused = [o for o in choice.plans if o.cycles is None]
    assert choice.plan.format == "litert" and refused
    assert all(o.format == "tosa" and "outputs of [] bytes instead of [32]" in o.objection for o in refused)
    with pytest.raises(VelaError, match=r"Vela's program has outputs of \[\] bytes instead of \[32\]"):
        best_plan(graph, replace(spec, via="tosa"), emitters={"tosa": to_tosa})


def returned_and_turned(first: str, second: str) -> Graph:
    """A value that is returned, and whose only reader is a transpose that Vela takes into an operator beside it."""
    builder = GraphBuilder()

    def given(*shape: int) -> Tensor:
        return builder.input(TensorType(shape, DType.INT8, QPARAMS))

    if first == "add":
        y = builder.emit(Add(), given(1, 2, 12, 16), given(1, 2, 12, 16), qparams=QPARAMS)
    else:
        product = builder.emit(BatchMatmul(), given(2, 12, 4), given(2, 4, 16), qparams=QPARAMS)
        y = builder.emit(Reshape((1, 2, 12, 16)), product)
    turned = builder.emit(Transpose((0, 1, 3, 2)), y)
    if second == "matmul":
        keys = builder.emit(Reshape((2, 16, 12)), turned)
        return builder.finish(y, builder.emit(BatchMatmul(), given(2, 1, 16), keys, qparams=QPARAMS))
    return builder.finish(y, builder.emit(MaxPool2d((1, 2)), turned))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("first", "second"), [("add", "matmul"), ("matmul", "max_pool2d")])
def test_what_is_returned_and_turned_stays_an_output(first: str, second: str, target: str):
    spec = EthosUOptions(target)
    graph = legalize(returned_and_turned(first, second), spec)
    best = best_plan(graph, spec)
    assert [math.prod(tensor.shape) for tensor in best.program.outputs] == [t.type.size for t in graph.outputs]
    random = np.random.default_rng(0)
    inputs = [random.integers(-128, 128, t.shape).astype(np.int8) for t in graph.inputs]
    for wanted, found in zip(interpret(graph, inputs), interpret(best.graph, inputs), strict=True):
        assert np.array_equal(wanted, found)


@pytest.mark.sweep
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("scale", [0.005, -0.005, 0.05], ids=["below 1", "negative", "above 1"])
def test_a_prelu_costs_as_much_in_tosa_as_in_litert(scale: float, target: str) -> None:
    """Mixed int8 and int16 programs are in TOSA alone; Vela computes a rescale of int8 as a pool of 1 x 1."""
    builder = GraphBuilder()
    x = builder.input(TensorType((1, 24, 32, 32), DType.INT8, QParams.per_tensor(0.05, 3)))
    slopes = np.arange(30, 62) * (1 if scale > 0 else -1)
    slope = builder.constant(slopes, TensorType((32,), DType.INT8, QParams.per_tensor(abs(scale), 0)))
    graph = builder.finish(builder.emit(Prelu(), x, slope, qparams=QParams.per_tensor(0.04, -7)))
    tosa, litert = (best_plan(graph.clone(), EthosUOptions(target, via=form)).program for form in ("tosa", "litert"))
    assert tosa.cycles <= 1.02 * litert.cycles
