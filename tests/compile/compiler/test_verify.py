"""`compile` compares the program that it made with the quantized model, and names the operator that is wrong."""

from __future__ import annotations

import functools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import micronpu
from micronpu.base.errors import OptionError, RuntimeUnavailableError, WrongResultError
from micronpu.compiler import assemble
from micronpu.compiler.host import host_part, with_parts
from micronpu.ir.graph import Graph
from micronpu.neutron import NeutronQuantizer, calibrate_and_quantize
from micronpu.partition.device import CompiledPartition
from micronpu.passes import run_passes
from micronpu.quantize.data import held_out_rows
from micronpu.targets.ethosu import recall
from micronpu.targets.ethosu.host import simulator
from micronpu.verify import program as verify
from micronpu.verify.program import perturbed
from micronpu.verify.thresholds import TRIES

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
    program = compiled(target, quantization=micronpu.Quantization(io=io))
    agreement = program.report.agreement
    assert (agreement.inputs, agreement.elements, agreement.reason) == (2, 8, "")
    assert agreement.equal > 0.5
    assert agreement.largest <= agreement.bound
    assert json.loads(program.report.to_json())["agreement"]["equal"] == agreement.equal
    assert "Against the quantized model, on 2 inputs:" in str(program.report)
    accuracy = program.report.accuracy
    assert (accuracy.rows, accuracy.of, accuracy.held_out) == ((0, 1, 2, 3), 4, False)
    assert "on 4 samples that also calibrated (give 16 different ones to have" in " ".join(str(program.report).split())
    assert "Measured on 0, 1, 2, 3 of 4 (calibrated, too)." in program.report.all_remarks
    assert "verify" in program.seconds


@pytest.mark.sweep
@pytest.mark.parametrize("target", TARGETS)
def test_data_may_have_another_memory_layout_than_the_example(target):
    images = [row.to(memory_format=torch.channels_last) for row in DATA]  # as images of [N, H, W, C] permuted
    parts = [row.repeat_interleave(2, 3)[..., ::2] for row in DATA]  # strided, in the order of no other layout
    for examples, others in ((DATA, images), (images, DATA), (DATA, parts), (parts, DATA), (parts, parts)):
        model = Net().eval()
        program = micronpu.compile(model, examples[0], target, calibration=others, quantization="int8")
        assert program.report.agreement.inputs == 2 and not program.report.agreement.reason
        judged = [micronpu.evaluate(model, data, program, np.zeros(4, int)) for data in (examples, others)]
        assert judged[0].program.score == judged[1].program.score
        assert judged[0].program.difference == judged[1].program.difference


def test_accuracy_is_measured_on_held_out_rows(tmp_path):
    data = [torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(i)) for i in range(6)]
    data[3] = 100 * data[3]  # which nothing of the calibration has seen
    program = micronpu.compile(
        Net().eval(), data[0], TARGETS[0], calibration=data, verify=micronpu.Verification(held_out=1)
    )
    accuracy = program.report.accuracy
    assert (accuracy.rows, accuracy.of, accuracy.held_out) == ((3,), 6, True)
    (output,) = accuracy.outputs
    with torch.no_grad():
        wanted, found, quantized = Net()(data[3]), program.run(data[3]), program.quantized(data[3])
    ratio = 10 * torch.log10(wanted.square().sum() / (wanted - quantized).square().sum())
    assert output.float_model.sqnr == pytest.approx(float(ratio), abs=1e-3) == accuracy.sqnr
    assert output.float_model.largest == pytest.approx(float((wanted - quantized).abs().max()))
    assert output.float_model.interval is None
    assert accuracy.sqnr < 10 and output.quantized.sqnr > 20
    assert output.quantized.largest == pytest.approx(float((quantized - found).abs().max()))
    reported = json.loads(program.report.to_json())["accuracy"]
    assert reported["rows"] == [3] and reported["held_out"] is True and reported["sqnr"] == accuracy.sqnr
    assert "on 1 held-out sample, which is no verdict: " in str(program.report)
    assert "Measured on 3 of 6 (held out)." in program.report.all_remarks
    program.report.to_html(tmp_path / "report.html")
    assert f"{accuracy.sqnr:.1f} dB</p>" in (tmp_path / "report.html").read_text()


def test_held_out_rows():
    assert [len(held_out_rows(n, None)) for n in (1, 4, 15, 16, 40, 64, 500)] == [0, 0, 0, 2, 8, 32, 32]
    assert held_out_rows(16, None) == (4, 12)
    assert held_out_rows(100, 0) == ()
    assert held_out_rows(3, 2) == (0, 2)
    with pytest.raises(OptionError, match="`held_out` is 4, but calibration needs some of the 4 rows"):
        compiled(TARGETS[0], verify=micronpu.Verification(held_out=4))
    with pytest.raises(OptionError, match="`held_out` is -1; it is a number of calibration rows"):
        held_out_rows(4, -1)


def broken(graph: Graph, **options: Any) -> Graph:
    """The passes, and then one that spoils the second convolution."""
    made = run_passes(graph, **options)
    node = next((n for n in graph.nodes if any(name.startswith("conv2d_1") for name in n.origin.nodes)), None)
    if node is None:  # another operator, shown to Vela alone
        return made
    weight = node.inputs[1]
    weight.data = np.roll(weight.data, 1, axis=0)
    return made


@pytest.mark.sweep
@pytest.mark.parametrize("target", TARGETS)
def test_a_wrong_operator_is_named_with_its_line(target, monkeypatch):
    module = "neutron.costs" if "neutron" in target else "ethosu.legalize"
    monkeypatch.setattr(f"micronpu.targets.{module}.run_passes", broken)
    with pytest.raises(WrongResultError) as caught:
        compiled(target)
    text = str(caught.value)
    assert "The compiled program gives a result 0 that is " in text
    assert "The first operator that differs is `conv2d_1` (" in text
    assert "test_verify.py:" in text
    program = compiled(target, verify=False)
    assert program.report.agreement is None and "verify" not in program.seconds


def test_what_is_wrong_behind_a_right_graph_is_said(monkeypatch):
    """A stream, or a payload, that computes something else than the operators of its graph."""
    results = micronpu.CompiledProgram._results

    def wrong(self: Any, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(y + 3.0 for y in results(self, *inputs))

    monkeypatch.setattr(micronpu.CompiledProgram, "_results", wrong)
    with pytest.raises(WrongResultError, match="Each operator of the graph agrees with it on the same operands"):
        compiled("imxrt700-neutron")


def test_a_quantized_module_is_compared_on_its_examples():
    quantized = calibrate_and_quantize(torch.export.export(Net().eval(), (DATA[0],)), DATA, NeutronQuantizer())
    report = micronpu.compile(quantized, DATA[0], "imxrt700-neutron").report
    assert (report.agreement.inputs, report.agreement.elements) == (1, 4)
    assert report.accuracy.sqnr is None and "Accuracy on the example inputs: " in str(report)


def test_integer_results_of_a_quantized_module_are_compared_too(monkeypatch):
    program = compiled("imxrt700-neutron", quantization=micronpu.Quantization(io="int8"), verify=False)
    x = program.integer_io.quantize(DATA[:1])
    agreement = micronpu.compile(program.quantized, x, "imxrt700-neutron").report.agreement
    assert agreement.bound > 0 and agreement.largest <= agreement.bound
    results = micronpu.CompiledProgram._results
    monkeypatch.setattr(micronpu.CompiledProgram, "_results", lambda *given: tuple(-y for y in results(*given)))
    with pytest.raises(WrongResultError, match="a result 0 that is "):
        micronpu.compile(program.quantized, x, "imxrt700-neutron")


def test_a_program_that_leaves_the_npu_idle_begins_with_a_warning():
    class Inverse(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.erfinv(x)

    checks = micronpu.Verification(allow_missing_kernels=True)
    with pytest.warns(micronpu.AccuracyWarning, match="No operator of the program is on the NPU; the first of 1 is "):
        program = micronpu.compile(Inverse().eval(), DATA[0], "imxrt700-neutron", calibration=DATA, verify=checks)
    assert [warning.rule for warning in program.report.warnings][:2] == ["nothing-delegated", "not-verified"]


@pytest.mark.parametrize("target", TARGETS)
def test_a_program_that_fails_is_refused(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def spoilt(part: CompiledPartition) -> CompiledPartition:
        data = bytearray(part.payload)
        data[200:260] = b"\x7f" * 60
        return replace(part, data=bytes(data))

    monkeypatch.setattr(
        assemble, "host_part", lambda *given, **options: with_parts(host_part(*given, **options), spoilt)
    )
    with pytest.raises(
        WrongResultError, match=r"fails on this machine \(partitions of the NPU: `conv2d`\): .* a report"
    ):
        compiled(target)
    assert compiled(target, verify=False).report.agreement is None


def test_what_cannot_run_here_is_said():
    class Inverse(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.erfinv(torch.tanh(x) * 0.5)

    with pytest.warns(micronpu.AccuracyWarning, match="The program was not run on this machine, .*::erfinv"):
        program = micronpu.compile(
            Inverse().eval(),
            DATA[0],
            "imxrt700-neutron",
            calibration=DATA,
            verify=micronpu.Verification(allow_missing_kernels=True),
        )
    assert "not-verified" in [warning.rule for warning in program.report.warnings]
    assert "was not compared with the quantized model: The program calls" in str(program.report.agreement)


def test_a_missing_tool_makes_no_other_program(monkeypatch):
    """Without a compiler the program is the same, and a warning says that nobody has proved it; strict refuses it."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()).eval()
    data = [(torch.randn(1, 3, 8, 8),) for _ in range(4)]

    def made(**options: object) -> micronpu.CompiledProgram:
        verify = micronpu.Verification(**options)
        with micronpu.no_cache():
            return micronpu.compile(model, data[0], "ethos-u55-128", calibration=data, verify=verify)

    usual = made()

    def missing(*args: object, **options: object) -> Path:
        raise RuntimeUnavailableError("There is no C++ compiler.", hint="install one")

    monkeypatch.setattr(simulator, "_library", None)
    monkeypatch.setattr(simulator, "build_simulator", missing)
    recall.simulator_hash.cache_clear()
    try:
        with pytest.warns(micronpu.AccuracyWarning, match="was not run on this machine, .* There is no C"):
            unproved = made()
        with pytest.raises(micronpu.BudgetError, match="was not run"):
            made(strict=True)
    finally:
        recall.simulator_hash.cache_clear()
    assert unproved.buffer == usual.buffer
    assert unproved.report.warnings[0].rule == "not-verified"
    assert "There is no simulator on this machine" in str(unproved.report)
    assert not any("command stream of the board" in note for note in unproved.report.details)
    assert any("command stream of the board" in note for note in usual.report.details)


class Largest(nn.Module):
    """Which of two is larger, twice: hardly any difference in the first row, a large one in the second."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.argmax(x * torch.tensor([[1.003, 1.0], [4.0, 1.0]]), 2).float() * 2.0 + x[..., 0]


def test_positions_that_hang_on_a_step_of_rounding_are_no_defect(monkeypatch):
    data = [torch.full((1, 2, 2), 0.37), torch.tensor([[[0.1, 0.9]]]).expand(1, 2, 2).clone()]
    program = micronpu.compile(Largest().eval(), data[0], TARGETS[1], calibration=data)
    module = program.quantized
    assert program.report.agreement.hanging == ()
    tried = torch.stack([perturbed(module, [data[:1]], seed)[0] for seed in range(TRIES)])
    spread = tried.amax(0) - tried.amin(0)
    assert spread[0, 0] > 1.5 and spread[0, 1] < 0.1

    def another(self: Any, *inputs: torch.Tensor, place: tuple[int, int] = (0, 0)) -> tuple[torch.Tensor, ...]:
        y = module(*inputs).clone()
        if inputs[0][0, 0, 0] > 0.2:
            y[place] = 2.1  # the other of two positions
        return (y,)

    monkeypatch.setattr(micronpu.CompiledProgram, "_results", another)
    agreement = micronpu.compile(Largest().eval(), data[0], TARGETS[1], calibration=data).report.agreement
    assert agreement.hanging == (0,) and "depend on rounding" in str(agreement)
    monkeypatch.setattr(micronpu.CompiledProgram, "_results", functools.partialmethod(another, place=(0, 1)))
    with pytest.raises(WrongResultError, match="a result 0 that is "):
        micronpu.compile(Largest().eval(), data[0], TARGETS[1], calibration=data)


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


class Parameters(Net):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]
        return super().forward(x), self.fc.bias


def test_a_parameter_among_the_results() -> None:
    model, x = Parameters().eval(), torch.randn(1, 3, 12, 12)
    program = micronpu.compile(model, x, "ethos-u55-128", calibration=[x] * 4, quantization="int8")
    (found, bias), (wanted, _) = program.run(x), model(x)
    torch.testing.assert_close(bias, model.fc.bias.detach(), rtol=0, atol=0.01)
    torch.testing.assert_close(found, wanted.detach(), rtol=0, atol=0.05)
