"""Command streams of operators of two types, against the reference interpreter."""

from __future__ import annotations

import numpy as np
import pytest
from tests.unit.targets.ethosu.test_ethosu_conversions import FUSED, samples

from micronpu.base.errors import UnsupportedError
from micronpu.ir.interpreter import interpret
from micronpu.ops.quantization import Requantize
from micronpu.passes.pipeline import DEFAULT
from micronpu.targets.ethosu.host.simulator import EthosUSimulator
from micronpu.targets.ethosu.legalize import emitters_of, legalize
from micronpu.targets.ethosu.options import EthosUOptions
from micronpu.targets.ethosu.payload import pack
from micronpu.targets.ethosu.rules import judge_of
from micronpu.targets.ethosu.vela.compiler import compile_flatbuffer

TARGETS = ("ethos-u55-128", "ethos-u65-512", "ethos-u85-256")


@pytest.mark.parametrize("target", TARGETS)
def test_streams_of_two_types_compute_the_graph(target: str) -> None:
    spec, simulator = EthosUOptions(target), EthosUSimulator(target)
    for name, make in FUSED.items():
        graph = make()
        made = legalize(graph.clone(), spec, DEFAULT, judge_of(spec).prefers)
        assert not any(isinstance(node.op, Requantize) for node in made.nodes), name
        programs = [
            compile_flatbuffer(emitters_of(spec)["tosa"](one).data, spec) for one in (made, legalize(graph, spec))
        ]
        assert programs[0].cycles < programs[1].cycles, name
        (found,) = simulator.run(pack(programs[0]), samples(made))
        assert np.array_equal(found, interpret(made, samples(made))[0].reshape(found.shape)), name


def test_litert_has_no_operators_of_two_types() -> None:
    """Vela compiles them, but no LiteRT kernel runs the graph that is carried with the program."""
    graph = FUSED["narrowing_convolution"]()
    for via in ("litert", "tosa"):
        spec = EthosUOptions("ethos-u55-128", via=via)
        made = legalize(graph.clone(), spec, DEFAULT, judge_of(spec).prefers)
        assert any(isinstance(node.op, Requantize) for node in made.nodes) == (via == "litert")
    with pytest.raises(UnsupportedError, match="LiteRT has none that reads int16 and writes int8"):
        emitters_of(spec)["litert"](made)
