"""A command stream that computes something else reaches nobody: another plan is taken, or the operator stays out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.compile.small import Small, batches, conv, image

import micronpu
from micronpu.compiler.program import CompiledProgram
from micronpu.ethosu import EthosUOptions
from micronpu.targets.ethosu import compile as ethosu_compile
from micronpu.targets.ethosu import plans
from micronpu.targets.ethosu.compile import EthosUPartition
from micronpu.targets.ethosu.host import prove
from micronpu.targets.ethosu.host.simulator import EthosUSimulator, NotModelledError
from micronpu.targets.ethosu.vela.compiler import VelaProgram

_ACTIVATION_MAX = 0x127


def _two(self: Any, x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.max_pool2d(torch.relu(self.first(x)), 2)


def network() -> Small:
    torch.manual_seed(0)
    return Small(_two, first=conv(8, 8))


def compiled(**options: Any) -> CompiledProgram:
    inputs = (image(),)
    verify = options.pop("verify", True)
    spec = EthosUOptions("ethos-u55-128", **options)
    return micronpu.compile(
        network(), inputs, "ethos-u55-128", calibration=batches(inputs, 4), options=spec, verify=verify
    )


def miscompiled(program: VelaProgram) -> VelaProgram:
    """The program with every upper bound of a result halved."""
    commands = bytearray(program.commands)
    for at in range(0, len(commands) - 3, 4):
        if int.from_bytes(commands[at : at + 2], "little") == _ACTIVATION_MAX:
            commands[at + 2 : at + 4] = (20).to_bytes(2, "little")
    return replace(program, commands=bytes(commands))


def break_vela(monkeypatch: pytest.MonkeyPatch, breaks: Callable[[bytes], bool]) -> None:
    real = plans.compiled

    def wrong(graph: Any, emitted: Any, *rest: Any) -> VelaProgram:
        program = real(graph, emitted, *rest)
        return miscompiled(program) if breaks(emitted.data) else program

    monkeypatch.setattr(plans, "compiled", wrong)
    monkeypatch.setattr(ethosu_compile, "compiled", wrong)


def test_another_plan_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = compiled().run(image())
    break_vela(monkeypatch, lambda data: data[4:8] == b"TFL3")
    program = compiled()
    (part,) = program.partitions
    assert isinstance(part, EthosUPartition) and part.plan.format == "tosa"
    assert any("computes another result" in plan.objection for plan in part.others)
    assert torch.equal(program.run(image()), wanted)


def test_operator_stays_out_where_every_stream_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    break_vela(monkeypatch, lambda data: True)
    program = compiled(verify_streams=True)
    assert program.report.delegated < len(program.report.verdicts)
    reasons = [r for v in program.report.host for r in v.reasons]
    assert any(r.rule == prove.RULE and "values of output 0 differ" in r.detail for r in reasons)


@pytest.mark.parametrize("options", [{"verify": False}, {"verify": False, "verify_streams": True}])
def test_unseen_on_request(monkeypatch: pytest.MonkeyPatch, options: dict[str, bool]) -> None:
    break_vela(monkeypatch, lambda data: True)
    assert compiled(**options).report.share == 1.0


def test_what_is_unknown_is_reported_and_changes_no_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise NotModelledError("The stream sets the register 0x1ff.")

    small = compiled()
    monkeypatch.setattr(EthosUSimulator, "run", unknown)
    with pytest.warns(micronpu.AccuracyWarning, match="cannot run here: .* 0x1ff"):
        program = compiled()
    assert program.buffer == small.buffer
    assert program.report.warnings[0].rule == "not-verified"


def _slices_multiplied(self: Any, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    q, k = x.chunk(2, -1)
    return q @ k.mT, x[1:3] @ x[:2], torch.dot(x[0, 1], x[0, 2])


def test_a_slice_multiplied_with_a_matrix_is_copied_first() -> None:
    """Vela's program for U55 and U65 writes beside the sums of products of a slice."""
    inputs = (image(4, 8, 8),)
    program = micronpu.compile(Small(_slices_multiplied), inputs, "ethos-u55-128", calibration=batches(inputs))
    assert not program.report.host and program.report.partitions == 1
    assert program.report.agreement is not None and not program.report.agreement.reason
