"""Weights of fewer bits, priced by compiling."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.compile.small import Small, conv, linear

import micronpu
from micronpu import MicroNpuError

U55 = "ethos-u55-128"


def network() -> Any:
    torch.manual_seed(0)
    return Small(lambda m, x: m.fc(m.conv(x).relu().mean((2, 3))), conv=conv(16, 64, 3), fc=linear(64, 8))


def inputs(count: int = 40) -> list[torch.Tensor]:
    return list(torch.randn(count, 16, 6, 6, generator=torch.Generator().manual_seed(0)).split(1))


def largest(program: Any) -> int:
    graph = program.partitions[0].graph
    return max(
        int(np.abs(n.inputs[1].data.astype(int)).max())
        for n in graph.nodes
        if len(n.inputs) > 1 and n.inputs[1].data is not None and n.inputs[1].data.ndim > 1
    )


def test_weights_get_fewer_bits_while_the_answers_stay() -> None:
    x = inputs(1)[0]
    plain = micronpu.compile(network(), x, U55, calibration=inputs())
    small = micronpu.compile(network(), x, U55, calibration=inputs(), transforms=micronpu.Transforms(compress=1.0))
    before, after = (p.partitions[0].constant_bytes for p in (plain, small))
    assert after < 0.8 * before and largest(plain) == 127 and largest(small) == 15
    (note,) = (n for n in small.report.notes if n.startswith("Weights of 5 bits"))
    assert f"take {after:,} bytes instead of" in note and "8 bits" in note and "agreement" in note
    assert small.report.agreement is not None and not small.report.agreement.reason


def test_weights_keep_their_bits_where_that_costs_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    from micronpu.transforms.sparsity.judge import Judge, SparseJudgement

    shares = iter([1.0, 1.0, 0.98, 0.98])  # of each of both, without and with corrections
    monkeypatch.setattr(Judge, "judged", lambda self, model: SparseJudgement(next(shares), 0.0, 0.0))
    program = micronpu.compile(
        network(), inputs(1)[0], U55, calibration=inputs(), transforms=micronpu.Transforms(compress=0.01), verify=False
    )
    (note,) = (n for n in program.report.notes if n.startswith("Weights keep eight bits"))
    assert "7 bits" in note and "6 bits" not in note and largest(program) == 127


def test_zeros_stay_zeros_and_other_targets_stay_as_they_are() -> None:
    model = network()
    with torch.no_grad():
        model.conv.weight[:, ::2] = 0
    x = inputs(1)[0]
    program = micronpu.compile(
        model, x, "ethos-u85-256", calibration=inputs(), transforms=micronpu.Transforms(compress=1.0), verify=False
    )
    assert "conv" in {o.origin.module for o in program.report.operations if o.sparse} and largest(program) == 15
    neutron = micronpu.compile(
        network(),
        x,
        "imxrt700-neutron",
        calibration=inputs(),
        transforms=micronpu.Transforms(compress=0.5),
        verify=False,
    )
    assert any("keep their eight bits" in note for note in neutron.report.notes)


@pytest.mark.parametrize("given", [-0.1, 2, True, "much"])
def test_the_share_is_checked(given: Any) -> None:
    with pytest.raises(MicroNpuError, match="`compress` is"):
        micronpu.compile(
            network(), inputs(1)[0], U55, calibration=inputs(), transforms=micronpu.Transforms(compress=given)
        )


def test_few_inputs_are_a_sentence() -> None:
    with pytest.raises(MicroNpuError, match="4 calibration inputs are too few"):
        micronpu.compile(
            network(), inputs(1)[0], U55, calibration=inputs(4), transforms=micronpu.Transforms(compress=0.01)
        )
