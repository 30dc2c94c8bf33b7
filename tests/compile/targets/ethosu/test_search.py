"""Looking for a faster program, and choosing where the weights are."""

from __future__ import annotations

import pickle
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import ANY

import pytest
import torch
from tests.compile.targets.ethosu.test_prefetch import Deep, compiled, part_of

import micronpu
from micronpu.base.cache import FOLDER
from micronpu.base.errors import OptionError, RuntimeUnavailableError
from micronpu.compiler.program import CompiledProgram
from micronpu.ethosu import EthosUOptions
from micronpu.report.alternatives import Candidate
from micronpu.report.views.tables import candidate_rows
from micronpu.targets.ethosu import search
from micronpu.targets.ethosu.search import Maker, Variant, VariantTrial


@pytest.fixture(autouse=True)
def own_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path / "answers"))


def found(target: str = "corstone300", classes: int = 500, **options: Any) -> CompiledProgram:
    batches = [torch.randn(1, 3, 20, 20, generator=torch.Generator().manual_seed(1))]
    chosen = replace(part_of(compiled(target, classes)).spec, **options)
    return micronpu.compile(
        Deep(classes).eval(), batches[0], target, calibration=batches, quantization="int8", options=chosen, verify=False
    )


def same_results(a: CompiledProgram, b: CompiledProgram) -> bool:
    x = torch.randn(1, 3, 20, 20, generator=torch.Generator().manual_seed(7))
    return torch.equal(a.run(x), b.run(x))


@pytest.mark.sweep
def test_a_bad_plan_is_left_for_a_better_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The usual plan is without parts here, and variants are those with and without them."""
    monkeypatch.setattr(search, "_ARENAS", ())
    monkeypatch.setattr(search, "_FEATURES", ())
    room: Any = {"max_sram_bytes": 120_000}
    monkeypatch.setattr("micronpu.targets.ethosu.compile.in_parts", lambda graph, spec: {})
    usual, better = found(**room), found(**room, search=60.0)
    mine = part_of(better)
    assert mine.searched is not None and mine.searched.cycles < 0.97 * mine.searched.before
    assert mine.searched.before == part_of(usual).cycles and mine.searched.cycles == mine.cycles
    assert "layers in parts of " in mine.searched.variant and mine.rewrites.get("split_channels")
    assert mine.program.sram_bytes <= 120_000
    assert mine.searched.tried == mine.searched.variants and not mine.searched.ended
    assert same_results(usual, better)
    (note,) = (n for n in better.report.notes if n.startswith("Search for partition"))
    assert f"{mine.cycles:,} cycles instead of" in note and mine.searched.variant in note


@pytest.mark.sweep
def test_a_search_goes_on_where_it_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "_ARENAS", ())
    monkeypatch.setattr(search, "_FEATURES", ())
    asked: list[Variant] = []
    real = Maker.program

    def noted(self: Any, variant: Variant) -> Any:
        asked.append(variant)
        if len(asked) == 3:
            raise KeyboardInterrupt
        return real(self, variant)

    monkeypatch.setattr(Maker, "program", noted)
    first = part_of(found(search=60.0)).searched
    assert first is not None and first.ended == "it was interrupted" and first.tried == 2
    second = part_of(found(search=60.0)).searched
    assert second is not None and second.tried == second.variants and not second.ended
    assert not set(asked[:2]) & set(asked[2 : second.variants])


@pytest.mark.sweep
def test_what_only_promised_to_be_better_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Maker, "trial", lambda self, variant: VariantTrial(1))
    monkeypatch.setattr(search, "_ARENAS", ())
    monkeypatch.setattr(search, "_FEATURES", ())
    usual, after = found(classes=40), found(classes=40, search=60.0)
    assert part_of(after).cycles <= part_of(usual).cycles
    monkeypatch.setattr(search._Search, "_carried_out", lambda self, variant: None)
    assert found(classes=40, search=60.0).buffer == usual.buffer


@pytest.mark.parametrize("seconds", [0, -1.0, float("nan"), float("inf"), "60", True])
def test_a_search_takes_seconds(seconds: Any) -> None:
    with pytest.raises(OptionError, match=r"`search` is .*; it is a number of seconds"):
        EthosUOptions("ethos-u55-128", search=seconds)


@pytest.mark.sweep
def test_weights_go_where_it_pays() -> None:
    auto, usual, there = found(weights="auto"), found(), found(weights="sram")
    assert auto.buffer == there.buffer != usual.buffer
    (note,) = (n for n in auto.report.notes if "puts them in SRAM" in n)
    assert f"{part_of(usual).cycles:,} cycles" in note and f"{part_of(there).cycles:,}" in note
    assert same_results(auto, usual)
    price = usual.report.resident
    assert price is not None and auto.report.resident is None
    assert price.time == pytest.approx(part_of(there).program.cycles / part_of(usual).program.cycles, rel=0.05)
    row = Candidate.of("corstone300", "int8", usual.report)
    shown = candidate_rows(row, "")[1][0]
    assert f"weights in SRAM: {price.time:.2f} of the NPU's time for {price.sram_bytes:,} bytes of SRAM more" in shown


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"max_sram_bytes": 130_000}, "they do not fit 90% of 130,000 bytes"),
        ({"max_sram_bytes": 0}, "the size of the SRAM is unknown"),
    ],
)
def test_weights_stay_where_there_is_no_memory(options: dict[str, Any], why: str) -> None:
    auto, usual = found(weights="auto", **options), found(**options)
    assert auto.buffer == usual.buffer
    (note,) = (n for n in auto.report.notes if "puts them in flash" in n)
    assert why in note


class _Cluster(ModuleType):
    """Ray's calls that a search makes; every task goes through a pickle, as on its way to another machine."""

    def __init__(self, crashing: int = 0) -> None:
        super().__init__("ray")
        crashed = type("WorkerCrashedError", (Exception,), {})
        self.exceptions = SimpleNamespace(WorkerCrashedError=crashed)
        self.tasks: list[bytes] = []
        self.most, self.inside, self.crashing = 0, 0, crashing

    def init(self, **options: Any) -> None:
        self.inside += 1

    def shutdown(self) -> None:
        self.inside -= 1

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 3.0}

    def put(self, value: Any) -> bytes:
        return pickle.dumps(value)

    def remote(self, num_cpus: int) -> Any:
        def task(function: Any) -> Any:
            def begin(maker: bytes, variant: Variant) -> bytes:
                assert self.inside == 1
                self.tasks.append(pickle.dumps((function, maker, variant, len(self.tasks))))
                return self.tasks[-1]

            return SimpleNamespace(remote=begin)

        return task

    def wait(self, running: list[bytes], num_returns: int, timeout: float | None) -> tuple[list[bytes], list[bytes]]:
        self.most = max(self.most, len(running))
        return ([], running) if timeout == 0.0 else (running[-1:], running[:-1])  # the last is ready first

    def get(self, reference: bytes) -> VariantTrial:
        function, maker, variant, number = pickle.loads(reference)
        if number < self.crashing:
            raise self.exceptions.WorkerCrashedError
        trial: VariantTrial = function(pickle.loads(maker), variant)
        return trial


@pytest.fixture
def few_variants(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "_ARENAS", ())
    monkeypatch.setattr(search, "_FEATURES", ())
    monkeypatch.setattr("micronpu.targets.ethosu.compile.in_parts", lambda graph, spec: {})


@pytest.mark.sweep
def test_a_cluster_finds_the_same(few_variants: None, monkeypatch: pytest.MonkeyPatch) -> None:
    ray = _Cluster()
    monkeypatch.setitem(sys.modules, "ray", ray)
    with micronpu.no_cache():
        here, there = found(search=60.0), found(search=60.0, ray=True)
    mine = part_of(here).searched
    assert mine is not None and mine.variant and part_of(there).searched == replace(mine, seconds=ANY)
    assert there.buffer == here.buffer
    assert len(ray.tasks) == mine.variants and ray.most == 3 and ray.inside == 0


@pytest.mark.sweep
def test_what_a_cluster_did_not_return_is_requested_again(few_variants: None, monkeypatch: pytest.MonkeyPatch) -> None:
    for crashing in (2, 0):
        ray = _Cluster(crashing)
        monkeypatch.setitem(sys.modules, "ray", ray)
        mine = part_of(found(search=60.0, ray=True)).searched
        assert mine is not None and mine.tried == mine.variants and not mine.ended
        assert len(ray.tasks) == (mine.variants if crashing else 2)


def test_the_time_of_a_cluster_ends(few_variants: None, monkeypatch: pytest.MonkeyPatch) -> None:
    ray = _Cluster()
    monkeypatch.setattr(ray, "wait", lambda running, num_returns, timeout: ([], running))
    monkeypatch.setitem(sys.modules, "ray", ray)
    mine = part_of(found(search=60.0, ray=True)).searched
    assert mine is not None and mine.tried == 0 and mine.ended == "the time was over" and ray.inside == 0


def test_a_cluster_needs_ray_and_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OptionError, match="`ray` is for a search"):
        EthosUOptions("ethos-u55-128", ray=True)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(RuntimeUnavailableError, match=r"Ray cannot be imported.*micronpu\[ray\]"):
        found(search=60.0, ray=True)
