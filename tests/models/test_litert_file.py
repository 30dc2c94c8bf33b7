"""The trained networks as LiteRT models: LiteRT's interpreter gives the integers of the `.pte`, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter, OpResolverType
from benchmarks import networks

import micronpu

pytestmark = pytest.mark.models

ROWS, CALIBRATION = 20, 100
QUICK = ("resnet8", "autoencoder")


@pytest.mark.sweep
@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in networks.NETWORKS]
)
def test_the_same_integers(name: str) -> None:
    try:
        network = networks.load(name, limit=ROWS)
    except FileNotFoundError as error:
        pytest.skip(str(error))
    program = micronpu.compile(
        network.module,
        network.example_inputs,
        "imxrt700-neutron",
        calibration=network.calibration[:CALIBRATION],
        quantization=micronpu.Quantization(io="int8"),
    )
    assert program.integer_io is not None
    interpreter = Interpreter(
        model_content=program.to_litert(), experimental_op_resolver_type=OpResolverType.BUILTIN_REF
    )
    run = interpreter.get_signature_runner("serving_default")
    (argument,) = run.get_input_details()
    for row in network.inputs.split(1):
        (integers,) = program.integer_io.quantize((row,))
        found = run(**{argument: integers.contiguous().numpy()})["output_0"]
        assert np.array_equal(found, program.run(integers).numpy())
