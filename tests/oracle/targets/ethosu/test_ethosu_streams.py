"""What the laptop runs and what an Ethos-U computes is one arithmetic.

What the command streams compute was measured with models of U55 and U85 that run them: every sum of a convolution is
rounded twice, as LiteRT's convolution is, and so is that of a fully connected layer, which LiteRT rounds once; and some
operators come out wrong altogether.
"""

from __future__ import annotations

import numpy as np
import pytest
from tests.cases import Case, all_cases
from tests.runtime import neutron_programs as programs

from micronpu.host.litert_executor import Mode
from micronpu.host.tosa_executor import TosaProgram
from micronpu.ir import DType, Graph, GraphBuilder, QParams, Stage, TensorType, interpret, verify
from micronpu.ir.arithmetic import requantize, saturate
from micronpu.ops.matmul import FullyConnected
from micronpu.ops.pooling import MaxPool2d
from micronpu.ops.reduction import Amax, Amin
from micronpu.passes.rewrite import rewritten
from micronpu.targets.ethosu.compile import compile_graph
from micronpu.targets.ethosu.legalize import choose_sound
from micronpu.targets.ethosu.options import EthosUOptions

SCALES = (0.021, 0.0073, 0.043)  # of input, weights and result


def layer(rows: int, inputs: int, outputs: int) -> Graph:
    random = np.random.default_rng(0)
    builder = GraphBuilder()
    x = builder.input(TensorType((rows, inputs), DType.INT8, QParams.per_tensor(SCALES[0], 3)))
    weight = TensorType((outputs, inputs), DType.INT8, QParams.per_tensor(SCALES[1], 0))
    bias = TensorType((outputs,), DType.INT32, QParams.per_tensor(SCALES[0] * SCALES[1], 0))
    y = builder.emit(
        FullyConnected(),
        x,
        builder.constant(random.integers(-127, 128, weight.shape), weight),
        builder.constant(random.integers(-500, 500, outputs), bias),
        qparams=QParams.per_tensor(SCALES[2] * (inputs / 64) ** 0.5, -9),
    )
    return builder.finish(y)


# The last two have more inputs than an image of Vela's has channels.
@pytest.mark.parametrize("shape", [(40, 64, 90), (4, 70_000, 3), (1, 120_000, 4)], ids=lambda s: f"{s[1]}-inputs")
@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u85-256"])
@pytest.mark.parametrize("via", ["litert", "tosa"])
def test_a_fully_connected_layer_is_rounded_twice(target: str, via: str, shape: tuple[int, int, int]) -> None:
    graph = layer(*shape)
    x = np.random.default_rng(1).integers(-128, 128, shape[:2]).astype(np.int8)
    weight, bias = (t.data for t in graph.nodes[0].inputs[1:])
    sums = (x.astype(np.int64) - 3) @ weight.astype(np.int64).T + bias
    scale = graph.outputs[0].type.scale
    twice = saturate(requantize(sums, SCALES[0] * SCALES[1] / scale) - 9, -128, 127)
    (once,) = interpret(graph, [x])
    assert twice.size < 100 or (twice != once).any()  # otherwise the comparison below says nothing of rounding
    part = compile_graph(graph, EthosUOptions(target, via=via))
    (got,) = interpret(part.graph, [x])
    assert np.array_equal(got, twice)
    model = part.model.data
    if via == "litert":
        (ran,) = programs.invoke(programs.interpreter(model), x)
    else:
        (ran,) = TosaProgram(model, Mode.REFERENCE).call(x)
    assert np.array_equal(ran, twice)


SPEC = EthosUOptions("ethos-u55-128")
UNSOUND = {"amax", "amin", "reflect_pad"}
"""Operators of which Vela's streams were seen to compute something else."""

WRONG = [row for row in all_cases() if row.op.name in UNSOUND and not row.family.startswith("int16")]


@pytest.mark.parametrize("row", WRONG, ids=lambda row: row.name)
def test_streams_that_were_wrong_are_written_otherwise(row: Case) -> None:
    graph = row.graph()
    changed = graph.clone()
    assert rewritten(changed, lambda node: choose_sound(node, SPEC))
    verify(changed, Stage.IMPORTED)
    assert not UNSOUND & {n.op.name for n in changed.nodes}
    for inputs in row.samples:
        assert np.array_equal(interpret(changed, inputs)[0], interpret(graph, inputs)[0])


def test_a_long_axis_is_reduced_in_windows_that_the_chip_has() -> None:
    for op in (Amax((0,)), Amin((1,)), Amax((0, 2), keep=True)):
        builder = GraphBuilder()
        builder.emit(op, builder.input(TensorType((521, 3, 2), DType.INT8, QParams.per_tensor(0.05, 3))))
        graph = builder.graph.clone()
        graph.outputs = [graph.nodes[-1].output]
        changed = graph.clone()
        assert rewritten(changed, lambda node: choose_sound(node, SPEC))
        assert all(max(n.op.kernel) <= 256 for n in changed.nodes if isinstance(n.op, MaxPool2d))
        x = np.random.default_rng(0).integers(-128, 128, (521, 3, 2)).astype(np.int8)
        assert np.array_equal(interpret(changed, [x])[0], interpret(graph, [x])[0])
        assert compile_graph(graph, EthosUOptions("ethos-u55-128")).program.cycles
