"""Weights that are brought ahead: the same integers in fewer cycles, with every wait that is needed."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import micronpu
from micronpu.base.cache import FOLDER
from micronpu.base.errors import OptionError, RuntimeUnavailableError
from micronpu.compiler.program import CompiledProgram
from micronpu.ethosu import EthosUOptions
from micronpu.program.plan import read_plan
from micronpu.targets.board import board_of
from micronpu.targets.ethosu import faster, recall
from micronpu.targets.ethosu.compile import EthosUPartition
from micronpu.targets.ethosu.host import simulator
from micronpu.targets.ethosu.registers import TRANSFER_WAIT
from micronpu.targets.ethosu.schedule.engines import Engines
from micronpu.targets.ethosu.schedule.operations import parts_of, region_of
from micronpu.targets.ethosu.schedule.prefetch import analysed, arrangement_in, missing_waits, prefetched, space_of
from micronpu.targets.ethosu.schedule.ranges import Ranges
from micronpu.targets.ethosu.schedule.traffic import accesses_of
from micronpu.targets.ethosu.stream import actions_of, with_actions
from micronpu.targets.ethosu.vela.compiler import VelaProgram

_TARGETS = ("corstone300", "alif-e7", "alif-e8")
"""A U55 of 128 and one of 256 MACs, and a U85, all with weights in a slower memory than tensors."""


class Deep(nn.Module):
    """Small pictures and many channels: most of the time goes into reading weights."""

    def __init__(self, classes: int = 40) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(3, 32, 3, stride=2, padding=1)
        widths = (32, 64, 64, 128, 128, 192)
        self.depthwise = nn.ModuleList(nn.Conv2d(a, a, 3, padding=1, groups=a) for a in widths[:-1])
        self.pointwise = nn.ModuleList(nn.Conv2d(a, b, 1) for a, b in itertools.pairwise(widths))
        self.last = nn.Linear(192, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.first(x))
        for depthwise, pointwise in zip(self.depthwise, self.pointwise, strict=True):
            x = torch.relu(pointwise(torch.relu(depthwise(x))))
        return torch.softmax(self.last(x.mean((2, 3))), 1)


@functools.cache
def compiled(target: str, classes: int = 40, verify: bool = False, **options: Any) -> CompiledProgram:
    generator = torch.Generator().manual_seed(1)
    batches = [torch.randn(1, 3, 20, 20, generator=generator) for _ in range(3)]
    chosen = replace(part_of(compiled(target, classes)).spec, **options) if options else None
    return micronpu.compile(
        *(Deep(classes).eval(), batches[0], target),
        calibration=batches,
        quantization="int8",
        options=chosen,
        verify=verify,
    )


def part_of(program: CompiledProgram) -> EthosUPartition:
    (part,) = (p for p in program.partitions if isinstance(p, EthosUPartition))
    return part


def check_accesses(program: VelaProgram, spec: EthosUOptions) -> None:
    """What the registers say of a stream is what the simulator sees it read and write.

    Of weights and scales the registers name whole blocks, the end of which an operation need not read.
    """
    seen = list[simulator.SimulatedOperation]()
    inputs = [np.zeros(b.shape, f"<i{b.element_size}") for b in program.inputs]
    simulator.EthosUSimulator(spec.silicon).run(program, inputs, watch=seen.append, accesses=True)
    family = spec.accelerator.family
    operations = [action for action in actions_of(program.commands) if action.is_operation]
    for action, known, one in zip(operations, accesses_of(operations, family), seen, strict=True):
        blocks = Ranges(
            (region_of(action, p.region), p.address, p.address + p.length) for p in parts_of(action, family)
        )
        reads, writes = (Ranges((b.region, b.address, b.address + b.size) for b in x) for x in (one.reads, one.writes))
        assert not reads - known.reads and not known.reads - reads - blocks, one.name
        assert not writes - known.writes and not known.writes - writes, one.name


@pytest.fixture
def no_simulator(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def missing(*args: object, **options: object) -> Path:
        raise RuntimeUnavailableError("There is no C++ compiler.", hint="install one")

    monkeypatch.setattr(simulator, "_library", None)
    monkeypatch.setattr(simulator, "build_simulator", missing)
    recall.simulator_hash.cache_clear()
    yield
    recall.simulator_hash.cache_clear()


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("target", "classes", "options"), [("alif-e8", 40, {}), ("corstone300", 500, {"max_sram_bytes": 120_000})]
)
def test_without_a_simulator_the_program_is_the_same(
    request: pytest.FixtureRequest, target: str, classes: int, options: dict[str, Any]
) -> None:
    usual = compiled(target, classes, True, **options)
    request.getfixturevalue("no_simulator")
    with micronpu.no_cache(), pytest.warns(micronpu.AccuracyWarning, match=r"There is no C\+\+ compiler"):
        unproved = compiled.__wrapped__(target, classes, True, **options)
    part = part_of(unproved)
    assert part.prefetch is not None and part.prefetch.brought and part.prefetch.unproved
    assert unproved.report.warnings[0].rule == "not-verified"
    assert unproved.buffer == usual.buffer


@pytest.mark.sweep
@pytest.mark.parametrize("target", _TARGETS)
def test_the_same_integers_in_fewer_cycles(target: str) -> None:
    usual, vela = compiled(target), compiled(target, prefetch=False)
    mine, theirs = part_of(usual), part_of(vela)
    assert mine.prefetch is not None and theirs.prefetch is None
    assert mine.program.cycles < 0.97 * theirs.program.cycles
    assert mine.prefetch.cycles == theirs.program.cycles
    assert mine.program.constants == theirs.program.constants
    assert mine.program.scratch_size == theirs.program.scratch_size + mine.prefetch.scratch
    for seed in range(3):
        x = torch.randn(1, 3, 20, 20, generator=torch.Generator().manual_seed(seed))
        assert torch.equal(usual.run(x), vela.run(x))
    assert sum(layer.cycles for layer in mine.program.layers) == pytest.approx(mine.program.cycles, rel=0.002)
    (note,) = (n for n in usual.report.details if "`prefetch`" in n)
    assert f"{mine.program.cycles:,} cycles" in note and not any("`prefetch`" in n for n in vela.report.details)


@pytest.mark.parametrize("target", _TARGETS)
def test_vela_s_own_schedule_takes_what_vela_says(target: str) -> None:
    part = part_of(compiled(target, prefetch=False))
    memories = part.spec.memories
    assert memories is not None
    found = analysed(part.program, part.spec.accelerator.family, memories)
    # Operations that read flash and transfers share its port, of which Vela's total knows nothing.
    assert 0.98 <= found.before.cycles / part.program.cycles <= 1.08


@pytest.mark.parametrize("target", ["corstone300", "alif-e8"])
def test_each_wait_is_needed(target: str) -> None:
    """Whichever wait for a transfer is left out, two operations may touch the same bytes at once."""
    part = part_of(compiled(target))
    family, actions = part.spec.accelerator.family, actions_of(part.program.commands)
    accesses = [(a.reads, a.writes) for a in accesses_of(actions, family)]
    assert not missing_waits(actions, accesses, family)
    waits = [i for i, a in enumerate(actions) if a.code == TRANSFER_WAIT]
    assert len(waits) > 3
    for left_out in waits:
        assert missing_waits([a for i, a in enumerate(actions) if i != left_out], accesses, family)


def test_a_stream_that_computes_something_else_reaches_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*arguments: Any) -> Any:
        program, prefetch = prefetched(*arguments)
        actions = [a if a.code != TRANSFER_WAIT else replace(a, parameter=15) for a in actions_of(program.commands)]
        return replace(program, commands=with_actions(program.commands, actions)), prefetch

    monkeypatch.setattr(faster, "prefetched", wrong)
    vela = part_of(compiled("corstone300", prefetch=False))
    spec = part_of(compiled("corstone300")).spec
    found = faster.candidate(vela.program, spec)
    assert found is not None
    program, prefetch = found.proved(spec)
    assert program is vela.program and prefetch.objection


def test_a_wrong_address_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*arguments: Any) -> Any:
        program, prefetch = prefetched(*arguments)
        actions = actions_of(program.commands)
        at = max(i for i, a in enumerate(actions) if a.is_transfer and a.number(0x131) == 1)
        high, low = actions[at].registers[True, 0x30]
        assert low is not None
        actions[at] = replace(actions[at], registers={**actions[at].registers, (True, 0x30): (high, low - 16)})
        return replace(program, commands=with_actions(program.commands, actions)), prefetch

    monkeypatch.setattr(faster, "prefetched", wrong)
    vela = part_of(compiled("corstone300", prefetch=False))
    spec = part_of(compiled("corstone300")).spec
    found = faster.candidate(vela.program, spec)
    assert found is not None
    program, prefetch = found.proved(spec)
    assert program is vela.program and prefetch.objection


def test_without_memory_of_its_own_the_scratch_memory_does_not_grow() -> None:
    part = part_of(compiled("corstone300"))
    bare = part_of(compiled("ethos-u55-128"))
    vela = part_of(compiled("ethos-u55-128", prefetch=False))
    assert part.prefetch is not None and part.prefetch.scratch > 0
    assert bare.program.scratch_size == vela.program.scratch_size
    assert bare.program.cycles <= vela.program.cycles


@pytest.mark.sweep
def test_memory_is_not_more_than_there_is() -> None:
    usual = part_of(compiled("corstone300"))
    least = part_of(compiled("corstone300", prefetch=False)).program.sram_bytes
    for room in (least, least + 16384, least + 65536):
        tight = part_of(compiled("corstone300", max_sram_bytes=room))
        assert tight.program.sram_bytes <= room
        assert tight.program.cycles >= usual.program.cycles


@pytest.mark.sweep
@pytest.mark.parametrize("target", ["ethos-u65-256", "ethos-u85-256"])
def test_where_constants_and_tensors_share_a_memory_nothing_is_done(target: str) -> None:
    part = part_of(compiled(target))
    assert part.spec.memories is None and part.prefetch is None


@pytest.mark.sweep
@pytest.mark.parametrize("room", [0, 1 << 15, 1 << 20])
@pytest.mark.parametrize("target", ["ethos-u65-512", "alif-e8", "alif-e7"])
def test_any_memory_gives_the_same_integers(target: str, room: int) -> None:
    """Whether it pays or not; the two cores of a U65 read streams of their own."""
    modes = {"memory_mode": "Shared_Sram", "system_config": "Ethos_U65_Embedded"} if "u65" in target else {}
    part = part_of(compiled(target, prefetch=False, **modes))
    memories, family = part.spec.memories, part.spec.accelerator.family
    assert memories is not None
    before = faster.run(part.program, part.spec)
    found = analysed(part.program, family, memories)
    program, made = prefetched(found, arrangement_in(found, space_of(found, part.program.scratch_size + room)))
    assert made.brought > 5 and program.scratch_size <= part.program.scratch_size + room
    after = faster.run(program, part.spec, before.inputs)
    assert all(np.array_equal(a, b) for a, b in zip(before.outputs, after.outputs, strict=True))
    actions = actions_of(program.commands)
    assert not missing_waits(actions, [(a.reads, a.writes) for a in accesses_of(actions, family)], family)
    check_accesses(program, part.spec)


@pytest.mark.sweep
def test_large_operators_in_parts() -> None:
    """Where the weights of one have no place, those of a part of it have."""
    room = {"max_sram_bytes": 120_000}
    usual = compiled("corstone300", 500, **room)
    whole = compiled("corstone300", 500, disabled_passes=("split_channels",), **room)
    vela = compiled("corstone300", 500, prefetch=False, **room)
    parts, one = part_of(usual), part_of(whole)
    assert parts.rewrites.get("split_channels") and not one.rewrites.get("split_channels")
    assert parts.program.cycles < 0.97 * one.program.cycles
    assert parts.prefetch is not None and parts.prefetch.cycles == part_of(vela).program.cycles
    assert parts.program.sram_bytes <= 120_000
    for seed in range(2):
        x = torch.randn(1, 3, 20, 20, generator=torch.Generator().manual_seed(seed))
        assert torch.equal(usual.run(x), vela.run(x)) and torch.equal(whole.run(x), vela.run(x))


@pytest.mark.sweep
@pytest.mark.parametrize("classes", [40, 500])
def test_the_second_time_the_schedule_is_known(classes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without = compiled("corstone300", classes)
    monkeypatch.setenv(FOLDER, str(tmp_path / "answers"))
    first = compiled.__wrapped__("corstone300", classes)

    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("run again")

    monkeypatch.setattr(faster, "run", never)
    second = compiled.__wrapped__("corstone300", classes)
    assert without.buffer == first.buffer == second.buffer
    assert part_of(first).prefetch == part_of(second).prefetch is not None
    assert part_of(first).rewrites == part_of(second).rewrites
    assert first.report.to_json() == second.report.to_json()
    monkeypatch.undo()
    monkeypatch.setattr(faster, "run", never)
    with pytest.raises(micronpu.MicroNpuError, match="run again"):
        compiled.__wrapped__("corstone300", classes)


def test_resident_weights_take_what_the_report_says() -> None:
    usual, there = compiled("corstone300", 500), compiled("corstone300", 500, weights="sram")
    vela, resident = part_of(compiled("corstone300", 500, prefetch=False)), part_of(there)
    size = faster.resident_bytes(part_of(usual).program, part_of(usual).spec, part_of(usual).prefetch.scratch)  # type: ignore[union-attr]
    price = usual.report.resident
    assert size is not None and price is not None
    assert price.time == pytest.approx(resident.cycles / part_of(usual).cycles, abs=0.02)
    # Vela's buffers for weights, and the commands, are counted too.
    assert resident.program.sram_bytes <= size <= 1.25 * resident.program.sram_bytes
    assert resident.program.cycles < 0.9 * part_of(usual).program.cycles < vela.program.cycles
    assert resident.spec.memory_mode == "Sram_Only" and resident.prefetch is None
    assert any(
        '`weights="sram"` of the options' in step and "less time for" in step for step in usual.report.next_steps
    )
    x = torch.randn(1, 3, 20, 20, generator=torch.Generator().manual_seed(5))
    assert torch.equal(usual.run(x), there.run(x))
    # deploy puts the program where the memory mode says
    assert board_of(read_plan(there.buffer)[0], None).flash == "sram"
    assert board_of(read_plan(usual.buffer)[0], None).flash != "sram"


def test_weights_have_two_places() -> None:
    with pytest.raises(OptionError, match=r"`weights` is 'dram'.*one of flash, sram"):
        EthosUOptions("ethos-u55-128", weights="dram")
    with pytest.raises(OptionError, match=r"`weights` is 'sram', but the memory mode 'Dedicated_Sram' keeps them"):
        EthosUOptions("ethos-u65-256", weights="sram", memory_mode="Dedicated_Sram")


def test_engines_never_run_two_operations_at_once() -> None:
    rng = np.random.default_rng(0)
    for family in ("u55", "u65", "u85"):
        engines = Engines(family)
        for _ in range(200):
            if rng.random() < 0.5:
                engines.kernel(int(rng.integers(1, 50)), int(rng.integers(0, 80)))
            else:
                engines.transfer(int(rng.integers(1, 80)))
        for jobs in (engines.kernels, engines.transfers):
            assert all(a[1] <= b[0] for a, b in itertools.pairwise(jobs))
