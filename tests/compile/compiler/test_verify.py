"""`compile` compares the program that it made with the quantized model, and names the operator that is wrong."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import micronpu
from micronpu.compiler import verify
from micronpu.errors import WrongResultError
from micronpu.ir.graph import Graph
from micronpu.neutron import NeutronQuantizer, calibrate_and_quantize
from micronpu.passes import run_passes

TARGETS = ("imxrt700-neutron", "corstone300")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.fc = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.fc(torch.relu(self.second(torch.relu(self.first(x)))).mean((2, 3)))
        return y


DATA = [torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(i)) for i in range(4)]


def compiled(target: str, **options: Any) -> micronpu.CompiledProgram:
    return micronpu.compile(Net().eval(), DATA[0], target, calibration=DATA, **options)


@pytest.mark.parametrize("io", [None, "int8"])
@pytest.mark.parametrize("target", TARGETS)
def test_the_agreement_is_in_the_report(target, io):
    program = compiled(target, io=io)
    agreement = program.report.agreement
    assert (agreement.inputs, agreement.elements, agreement.reason) == (2, 8, "")
    assert agreement.equal > 0.5
    assert agreement.largest <= agreement.bound
    assert json.loads(program.report.to_json())["agreement"]["equal"] == agreement.equal
    assert "On 2 inputs the program gives what the quantized model gives" in str(program.report)
    assert "verify" in program.seconds


def broken(graph: Graph, **options: Any) -> Graph:
    """The passes, and then one that spoils the second convolution."""
    made = run_passes(graph, **options)
    node = next((n for n in graph.nodes if any(name.startswith("conv2d_1") for name in n.origin.nodes)), None)
    if node is None:  # another operator, shown to Vela alone
        return made
    weight = node.inputs[1]
    weight.data = np.roll(weight.data, 1, axis=0)
    return made


@pytest.mark.parametrize("target", TARGETS)
def test_a_wrong_operator_is_named_with_its_line(target, monkeypatch):
    module = "neutron.policy" if "neutron" in target else "ethosu.legalize"
    monkeypatch.setattr(f"micronpu.targets.{module}.run_passes", broken)
    with pytest.raises(WrongResultError) as caught:
        compiled(target)
    text = str(caught.value)
    assert "The compiled program gives a result 0 that is " in text
    assert "The first operator that differs is `conv2d_1` (" in text or "is `relu_1` (" in text
    assert "test_verify.py:" in text
    program = compiled(target, verify=False)
    assert program.report.agreement is None and "verify" not in program.seconds


def test_a_quantized_module_is_compared_on_its_examples():
    quantized = calibrate_and_quantize(torch.export.export(Net().eval(), (DATA[0],)), DATA, NeutronQuantizer())
    agreement = micronpu.compile(quantized, DATA[0], "imxrt700-neutron").report.agreement
    assert (agreement.inputs, agreement.elements) == (1, 4)


def test_what_cannot_run_here_is_said():
    class Inverse(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.erfinv(torch.tanh(x) * 0.5)

    program = micronpu.compile(
        Inverse().eval(), DATA[0], "imxrt700-neutron", calibration=DATA, allow_missing_kernels=True
    )
    assert "this machine does not run it" in program.report.agreement.reason
    assert "was not compared with the quantized model" in str(program.report)


ROWS = {
    "equal": (([1.0, 2.0], [1.0, 2.0], None, 0.5), (0.0, None)),
    "a step": (([1.0, 2.5], [1.0, 2.0], None, 0.5), (1.0, None)),
    "infinity on both sides": (([float("inf"), 2.0], [float("inf"), 2.0], None, 0.5), (0.0, None)),
    "bound": (([0.0, 12.7], [0.0, 12.7], [0.0, 12.5], 0.1), (0.0, (2 * 0.2 + 4 * 0.1) / 0.1)),
    "of a float": (([0.0, 1.27], [0.0, 1.27], [0.0, 1.27], 0.0), (0.0, 4.0)),
    "zero": (([0.0], [0.0], None, 0.0), (0.0, 0.0)),
    "not zero": (([0.1], [0.0], None, 0.0), (float("inf"), 0.0)),
}


@pytest.mark.parametrize("name", ROWS)
def test_the_bound(name):
    (y, q, real, scale), (found, allowed) = ROWS[name]
    tensors = [None if v is None else torch.tensor(v) for v in (y, q, real)]
    got = verify._difference(*tensors, scale)
    assert got[0] == pytest.approx(found)
    if allowed is not None:
        assert got[1] == pytest.approx(allowed)
