"""Methods that read one copy of their weights: the same integers, half of the bytes."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import micronpu
from micronpu.base.errors import OptionError
from micronpu.compiler.program import CompiledMethods
from micronpu.ethosu import EthosUOptions
from micronpu.program.pte import read_pte
from micronpu.report.memory import WEIGHTS
from micronpu.runtime import HostProgram
from micronpu.targets.ethosu import placement
from micronpu.targets.ethosu.compile import EthosUPartition
from micronpu.targets.ethosu.payload import inlined, missing_blocks, parse
from micronpu.targets.ethosu.schedule.constants import layers_of, reordered
from micronpu.targets.ethosu.stream import actions_of

TARGETS = [
    ("ethos-u55-128", "int8"),
    ("ethos-u65-512", "int8"),
    pytest.param("ethos-u85-256", "int8", marks=pytest.mark.slow),  # the weights of the row below, in other blocks
    ("ethos-u85-256", "int16"),
    ("alif-e8", "int16"),  # weights come by transfers
]


class Layers(nn.Module):
    """Keeps what it has seen; `n` rows at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(64, 256), nn.Linear(256, 256), nn.Linear(256, 64)])
        self.gate = nn.Linear(64, 176)
        self.up = nn.Linear(64, 176)
        self.down = nn.Linear(176, 64)
        self.register_buffer("seen", torch.zeros(1, 64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        x = self.down(torch.sigmoid(self.gate(x)) * self.up(x))
        self.seen.copy_(0.5 * self.seen + x.mean(0, keepdim=True))
        return x + self.seen


def rows(count: int, seed: int) -> torch.Tensor:
    return torch.randn(count, 64, generator=torch.Generator().manual_seed(seed))


@functools.cache
def compiled(target: str, activations: str, **options: Any) -> CompiledMethods:
    torch.manual_seed(0)
    model = Layers().eval()
    given = EthosUOptions(target, **options) if options else None
    return micronpu.compile(
        {"many": (model, (rows(16, 0),)), "one": (model, (rows(1, 0),))},
        target,
        calibration={"many": [[rows(16, i)] for i in range(4)], "one": [[rows(1, i) for i in range(8)]]},
        quantization=activations,
        options=given,
    )


def apart(target: str, activations: str) -> list[EthosUPartition]:
    """Partitions that might share their weights and do not yet."""
    own = parts_of(compiled(target, activations, shared_weights=False, disabled_passes=("rows_of_bytes",)))
    return [replace(part, spec=replace(part.spec, shared_weights=True)) for part in own]


def parts_of(program: CompiledMethods) -> list[EthosUPartition]:
    found = [part for method in program.methods.values() for part in method.partitions]
    return [part for part in found if isinstance(part, EthosUPartition)]


@pytest.mark.sweep
@pytest.mark.parametrize(("target", "activations"), TARGETS)
def test_one_copy_computes_what_two_do(target: str, activations: str) -> None:
    program = compiled(target, activations)
    alone = compiled("ethos-u85-256" if target == "alif-e8" else target, activations, shared_weights=False)
    parts, others = parts_of(program), parts_of(alone)
    assert all(part.shares and missing_blocks(part.payload) == ("weight_data",) for part in parts)
    assert not any(part.shares or missing_blocks(part.payload) for part in others)
    assert len({bytes(part.program.constants) for part in parts}) == 1
    whole = len(parts[0].program.constants)
    if target != "alif-e8":
        # Of the two cores of a U65-512 one layer's weights come in a way that is not followed, and stay twice.
        most = 1.1 if target == "ethos-u65-512" else 1.02
        assert whole < most * max(len(part.program.constants) for part in others)
    assert len(program.buffer) < whole + 20_000
    for one in (program, alone):
        one.reset()
    for seed, count in ((50, 16), (51, 1), (52, 1), (53, 16)):
        name = "many" if count > 1 else "one"
        results = [one.run(rows(count, seed), method=name) for one in (program, alone)]
        assert torch.equal(*results)


def test_orders_of_weights() -> None:
    """Blocks of one row are deeper than blocks of sixteen: without another order most weights stay twice."""
    own = apart("ethos-u85-256", "int16")
    orders = placement._orders(own)
    family, changed = own[0].spec.accelerator.family, 0
    for part in own:
        actions, constants = actions_of(part.program.commands), bytes(part.program.constants)
        made = reordered(actions, constants, orders, family)
        if made is None:
            continue
        changed += 1
        assert len(made[1]) == len(constants) and made[1] != constants
        assert reordered(*made, orders, family) is None
        depths = [w.depth for _, _, w, _ in layers_of(made[0], made[1], family)]
        assert depths != [w.depth for _, _, w, _ in layers_of(actions, constants, family)]
    assert changed


def test_a_stream_that_computes_something_else_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    own = apart("ethos-u55-128", "int8")
    assert all(part.shares for part in placement.with_shared_weights(own) if isinstance(part, EthosUPartition))
    right = placement.moved

    def moved(actions: Any, reads: Any, places: Any) -> Any:
        return right(actions, reads, {piece: place + 16 for piece, place in places.items()})

    monkeypatch.setattr(placement, "moved", moved)
    assert placement.with_shared_weights(own) == own


def test_unlike_weights_stay_apart() -> None:
    parts = []
    for seed in range(2):
        torch.manual_seed(seed)
        program = micronpu.compile(nn.Linear(64, 64).eval(), rows(1, 0), "ethos-u55-128", calibration=[rows(1, 1)])
        parts += [part for part in program.partitions if isinstance(part, EthosUPartition)]
    assert placement.with_shared_weights(parts) == parts


def test_driver_actions_that_cannot_be_written_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of Linux: the length of their stream stands elsewhere, and the word in front of it is something else."""
    own = apart("ethos-u55-128", "int8")
    other = [replace(p, program=replace(p.program, commands=b"COP2" + p.program.commands[4:])) for p in own]
    monkeypatch.setattr(placement, "with_actions", lambda *_: pytest.fail("a stream was written"))
    assert placement.with_shared_weights(other) == other


def test_without_the_copy_a_program_says_so() -> None:
    program = compiled("ethos-u55-128", "int8")
    payload = parts_of(program)[0].payload
    named = read_pte(program.buffer).named_data
    whole = inlined(payload, named)
    assert bytes(parse(whole).constants) == bytes(parts_of(program)[0].program.constants)
    assert inlined(payload, {}) == payload and inlined(whole, {}) == whole


def test_reports_and_files(tmp_path: Path) -> None:
    program = compiled("ethos-u55-128", "int8")
    sizes = [r.memory for r in (m.report for m in program.methods.values())]
    for memory in sizes:
        assert memory is not None
        weights = [i.bytes for region in memory.regions for i in region.items if i.what == WEIGHTS]
        assert weights == [len(parts_of(program)[0].program.constants)]  # once
    path = tmp_path / "model.pte"
    program.save(path)
    alone = HostProgram(path, method="one")
    program.reset()
    assert torch.equal(alone.run(rows(1, 9))[0], program.run(rows(1, 9), method="one"))


def test_option() -> None:
    with pytest.raises(OptionError, match="shared_weights"):
        EthosUOptions("ethos-u55-128", shared_weights="yes")  # type: ignore[arg-type]
    assert not EthosUOptions("ethos-u55-128", shared_weights=False).shared_weights
    assert EthosUOptions("ethos-u55-128").to_pairs() == EthosUOptions("ethos-u55-128", shared_weights=True).to_pairs()
