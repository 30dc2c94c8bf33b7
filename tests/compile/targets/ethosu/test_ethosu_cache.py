"""What is kept of an Ethos-U compilation: the same bytes with and without, and Vela is not asked twice."""

from __future__ import annotations

import functools
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import micronpu
from micronpu.base.cache import CACHE, FOLDER
from micronpu.cli.main import app
from micronpu.ir.graph import GraphBuilder, Node
from micronpu.ir.types import DType, QParams, TensorType
from micronpu.ops.pooling import AvgPool2d
from micronpu.targets.ethosu import recall, rules
from micronpu.targets.ethosu.host import prove
from micronpu.targets.ethosu.options import EthosUOptions
from micronpu.targets.ethosu.vela import compiler
from micronpu.targets.ethosu.vela.process import VELA

TARGETS = ("ethos-u55-128", "ethos-u85-256")


class Small(nn.Module):
    """A convolution that is rewritten to cost less, a residual block, a depthwise one, a table and a linear layer."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first = nn.Conv2d(3, 8, 3, 2, 1)
        self.second = nn.Conv2d(8, 8, 3, 1, 1)
        self.depthwise = nn.Conv2d(8, 8, 3, 1, 1, groups=8)
        self.last = nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.first(x))
        y = torch.relu(self.second(y) + y)
        return self.last(torch.nn.functional.gelu(self.depthwise(y)).mean((2, 3)))


QPARAMS = QParams.per_tensor(0.05, -128)
X = torch.randn((1, 3, 32, 32), generator=torch.Generator().manual_seed(7))


def compiled(target: str, model: nn.Module | None = None, **more: Any) -> micronpu.CompiledProgram:
    rules._judge.cache_clear()  # as in a new process
    return micronpu.compile((model or Small()).eval(), (X,), target=target, calibration=[(X,)], **more)


@pytest.fixture
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv(FOLDER, str(tmp_path / "answers"))
    yield tmp_path / "answers"
    rules._judge.cache_clear()


def refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks Vela or runs a proof from now on fails."""

    def never(*args: Any, **more: Any) -> Any:
        raise AssertionError("asked again")

    monkeypatch.setattr(type(VELA), "compile", never)
    monkeypatch.setattr(prove, "made_to_wait", never)


@pytest.mark.sweep
@pytest.mark.parametrize("target", TARGETS)
def test_the_second_time_gives_the_same_and_asks_nobody(
    target: str, cached: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with micronpu.no_cache():
        without = compiled(target)
    assert not cached.exists()
    first = compiled(target)
    assert list(cached.iterdir())
    with monkeypatch.context() as patch:
        refuse(patch)
        second = compiled(target)
        with micronpu.no_cache(), pytest.raises(micronpu.MicroNpuError, match="asked again"):
            compiled(target)
    assert without.buffer == first.buffer == second.buffer
    assert without.report.to_json() == first.report.to_json() == second.report.to_json()
    assert torch.equal(first.run(X), second.run(X))
    for part, other in zip(first.partitions, second.partitions, strict=True):
        assert bytes(part.model.data) == bytes(other.model.data)  # type: ignore[attr-defined]
        assert replace(part.program, constants=b"") == replace(other.program, constants=b"")  # type: ignore[attr-defined]


@pytest.mark.sweep
def test_another_network_gets_an_answer_of_its_own(cached: Path) -> None:
    compiled(TARGETS[0])
    with micronpu.no_cache():
        wanted = [compiled(TARGETS[0], Small(seed)).buffer for seed in (1, 2)]
    assert [compiled(TARGETS[0], Small(seed)).buffer for seed in (1, 2)] == wanted
    options = EthosUOptions(TARGETS[0], via="litert")
    with micronpu.no_cache():
        other = compiled(TARGETS[0], options=options)
    assert compiled(TARGETS[0], options=options).buffer == other.buffer


def test_check_asks_nobody_twice(cached: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = micronpu.check(Small().eval(), (X,), target=TARGETS[0]).report
    rules._judge.cache_clear()
    refuse(monkeypatch)
    assert micronpu.check(Small().eval(), (X,), target=TARGETS[0]).report == first


def pool() -> Node:
    builder = GraphBuilder()
    builder.emit(AvgPool2d((300, 300)), builder.input(TensorType((1, 300, 300, 4), DType.INT8, QPARAMS)))
    return builder.graph.nodes[0]


def test_refusals_are_kept_in_the_same_words(cached: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = EthosUOptions(TARGETS[0], via="litert")
    first = rules.VelaJudge(spec)(pool())
    assert "kernel height: 300 out of range" in first[0].detail
    refuse(monkeypatch)
    assert rules.VelaJudge(spec)(pool()) == first


def test_a_verdict_of_a_process_that_ended_is_not_kept(cached: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = EthosUOptions(TARGETS[0], via="litert")

    def ends(*args: Any, **more: Any) -> Any:
        raise compiler.WorkerEndedError("did not end within 60 s")

    with monkeypatch.context() as patch:
        patch.setattr(type(VELA), "compile", ends)
        assert "did not end" in rules.VelaJudge(spec)(pool())[0].detail
    assert "kernel height: 300 out of range" in rules.VelaJudge(spec)(pool())[0].detail


def test_a_verdict_does_not_depend_on_the_weights_that_it_was_given_with(cached: Path) -> None:
    """It is kept by the shapes of weights, and Vela is shown ones in their place."""
    with micronpu.no_cache():
        wanted = [micronpu.check(Small(seed).eval(), (X,), target=t).report for t in TARGETS for seed in (0, 1)]
    assert [micronpu.check(Small(seed).eval(), (X,), target=t).report for t in TARGETS for seed in (0, 1)] == wanted


@pytest.mark.sweep
@pytest.mark.parametrize("spoil", ["flip", "foreign"])
def test_a_spoilt_answer_changes_nothing_but_the_time(cached: Path, spoil: str) -> None:
    first = compiled(TARGETS[0])
    for path in cached.iterdir():
        if spoil == "flip":
            data = bytearray(path.read_bytes())
            data[-1] ^= 1
            path.write_bytes(data)
        else:
            path.chmod(0o666)
    CACHE._said.clear()
    with pytest.warns(micronpu.CacheWarning) as reported:
        second = compiled(TARGETS[0])
    assert len(reported) == 1 and second.buffer == first.buffer


@pytest.fixture
def proofs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One more for each stream that is run beside its graph."""
    made: list[int] = []

    def counted(*arguments: Any) -> Any:
        made.append(1)
        return prove.checked(*arguments)

    for module in ("compile", "plans"):
        monkeypatch.setattr(f"micronpu.targets.ethosu.{module}.checked", counted)
    return made


def test_a_plan_rests_on_the_simulator_that_proved_it(
    cached: Path, proofs: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = compiled(TARGETS[0])
    assert len(proofs) == 1
    compiled(TARGETS[0])
    assert len(proofs) == 1
    monkeypatch.setattr(recall, "simulator_hash", lambda: b"another build")
    assert compiled(TARGETS[0]).buffer == first.buffer
    assert len(proofs) == 2


def test_a_plan_whose_flatbuffer_is_written_otherwise_is_left_aside(
    cached: Path, proofs: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = compiled(TARGETS[0])
    real = recall.emitters_of

    def longer(spec: Any) -> Any:
        def emit(graph: Any, emit: Any) -> Any:
            emitted = emit(graph)
            return replace(emitted, data=emitted.data + bytes(4))

        return {name: functools.partial(emit, emit=own) for name, own in real(spec).items()}

    monkeypatch.setattr(recall, "emitters_of", longer)
    assert compiled(TARGETS[0]).buffer == first.buffer
    assert len(proofs) == 2


def test_nothing_is_kept_of_a_process_that_ended(cached: Path) -> None:
    crashing = bytes(4) + b"TFL3" + bytes(64)
    for _ in range(2):
        with pytest.raises(compiler.VelaError, match="SIGSEGV"):
            compiler.compile_flatbuffer(crashing, EthosUOptions(TARGETS[0]))
    assert not list(cached.iterdir())


@pytest.mark.sweep
def test_the_command_line_keeps_none_when_asked_to(
    cached: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tmp_path / "net.py"
    model.write_text(
        textwrap.dedent(
            """
            import torch
            def net():
                torch.manual_seed(0)
                return torch.nn.Conv2d(3, 8, 3).eval(), (torch.ones(1, 3, 8, 8),)
            def calibration():
                return [(torch.ones(1, 3, 8, 8),)]
            """
        )
    )
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> str:
        rules._judge.cache_clear()
        done = CliRunner().invoke(app, [*arguments])
        assert done.exit_code == 0, done.output
        return done.stdout

    run("check", "net.py:net", "-t", TARGETS[0], "--no-cache", "-q")
    assert not cached.exists()
    run("compile", "net.py:net", "-t", TARGETS[0], "-q")
    kept = len(list(cached.iterdir()))
    assert kept
    assert f"{kept} answers of" in run("doctor")
    assert f"Deleted {kept} answers of" in run("doctor", "--clear-cache")
    assert not list(cached.iterdir())
