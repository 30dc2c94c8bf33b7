"""What the laptop runs and what an Ethos-U computes is one arithmetic.

The rounding of the command streams was measured with models of U55 and U85 that run them: every sum of a convolution is
rounded twice, as LiteRT's convolution is, and so is that of a fully connected layer, which is none of LiteRT's doing.
"""

from __future__ import annotations

import numpy as np
import pytest
from tests.runtime import neutron_programs as programs

from micronpu.ir import DType, Graph, GraphBuilder, QParams, TensorType, interpret
from micronpu.ir.arithmetic import requantize, saturate
from micronpu.ops.linear import FullyConnected
from micronpu.runtime.litert_executor import Mode
from micronpu.runtime.tosa_executor import TosaProgram
from micronpu.targets.ethosu.compile import compile_graph
from micronpu.targets.ethosu.options import EthosUCompileSpec

ROWS, INPUTS, OUTPUTS = 40, 64, 90
SCALES = (0.021, 0.0073, 0.043)  # of input, weights and result


def layer() -> Graph:
    random = np.random.default_rng(0)
    builder = GraphBuilder()
    x = builder.input(TensorType((ROWS, INPUTS), DType.INT8, QParams.per_tensor(SCALES[0], 3)))
    weight = TensorType((OUTPUTS, INPUTS), DType.INT8, QParams.per_tensor(SCALES[1], 0))
    bias = TensorType((OUTPUTS,), DType.INT32, QParams.per_tensor(SCALES[0] * SCALES[1], 0))
    y = builder.emit(
        FullyConnected(),
        x,
        builder.constant(random.integers(-127, 128, weight.shape), weight),
        builder.constant(random.integers(-500, 500, OUTPUTS), bias),
        qparams=QParams.per_tensor(SCALES[2], -9),
    )
    return builder.finish(y)


@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u85-256"])
@pytest.mark.parametrize("via", ["litert", "tosa"])
def test_a_fully_connected_layer_is_rounded_twice(target: str, via: str) -> None:
    graph = layer()
    x = np.random.default_rng(1).integers(-128, 128, (ROWS, INPUTS)).astype(np.int8)
    weight, bias = (t.data for t in graph.nodes[0].inputs[1:])
    sums = (x.astype(np.int64) - 3) @ weight.astype(np.int64).T + bias
    twice = saturate(requantize(sums, SCALES[0] * SCALES[1] / SCALES[2]) - 9, -128, 127)
    (once,) = interpret(graph, [x])
    assert (twice != once).any()  # otherwise the comparison below says nothing
    part = compile_graph(graph, EthosUCompileSpec(target, via=via))
    (got,) = interpret(part.graph, [x])
    assert np.array_equal(got, twice)
    model = part.form.model.data
    if via == "litert":
        (ran,) = programs.invoke(programs.interpreter(model), x)
    else:
        (ran,) = TosaProgram(model, Mode.REFERENCE, 1, 1).call(x)
    assert np.array_equal(ran, twice)
