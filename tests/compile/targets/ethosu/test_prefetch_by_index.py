"""Weights that are brought ahead in streams that look rows up: which rows depends on data, the waits must not."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.compile.docs.test_examples import example

import micronpu
from micronpu.compiler.program import CompiledProgram
from micronpu.targets.ethosu.compile import EthosUPartition
from micronpu.targets.ethosu.registers import TRANSFER
from micronpu.targets.ethosu.schedule.operations import is_indexed, tables_of
from micronpu.targets.ethosu.schedule.prefetch import missing_waits
from micronpu.targets.ethosu.schedule.traffic import accesses_of
from micronpu.targets.ethosu.stream import Action, actions_of, large, small

ROWS, WIDTH, LENGTH = 64, 96, 128


@functools.cache
def compiled(prefetch: bool = True) -> CompiledProgram:
    """A step of a language model: tokens, cosines and masks are rows of tables, and a cache lies between layers."""
    torch.manual_seed(0)
    model = example("language_model/model").Model(ROWS, WIDTH, 2, heads=4, groups=4, hidden=256, length=LENGTH)
    options = None if prefetch else replace(part_of(compiled()).spec, prefetch=False)
    return micronpu.compile(
        model.eval(), calls(0)[0], "alif-e8", calibration=[calls(1)], quantization="int8", options=options
    )


def calls(seed: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    tokens = torch.randint(0, ROWS, (24,), generator=torch.Generator().manual_seed(seed))
    return [(token.reshape(1, 1), torch.tensor([place])) for place, token in enumerate(tokens)]


def part_of(program: CompiledProgram) -> EthosUPartition:
    (part,) = (p for p in program.partitions if isinstance(p, EthosUPartition))
    return part


@pytest.mark.sweep
def test_the_same_integers_along_a_text() -> None:
    usual, vela = compiled(), compiled(prefetch=False)
    part = part_of(usual)
    assert any(map(is_indexed, actions_of(part.program.commands)))
    assert part.prefetch is not None and not part.prefetch.objection
    assert part.program.cycles < 0.9 * part_of(vela).program.cycles
    for program in (usual, vela):
        program.reset_states()
    for call in calls(2):
        assert torch.equal(usual.run(*call), vela.run(*call))


def test_waits_hold_for_rows_that_no_run_has_read() -> None:
    part = part_of(compiled())
    actions, family = actions_of(part.program.commands), part.spec.accelerator.family
    accesses = accesses_of(actions, family)
    assert not missing_waits(actions, [(a.reads, a.writes) for a in accesses], family)
    assert ROWS * WIDTH in [end - begin for begin, end in tables_of(actions).of(0)]


def _lookup(source: int, target: int, index: int, **more: int) -> Action:
    """A transfer of four rows of 16 bytes of a table of 32."""
    registers: dict[Any, Any] = {small(0x130): (source, None), small(0x131): (target, None)}
    values = {
        0x30: 0x1000,
        0x31: 0x8000,
        0x32: 16,
        0x33: 16,
        0x35: 16,
        0x38: index,
        **{int(k): v for k, v in more.items()},
    }
    registers |= {large(code): (0, value) for code, value in values.items()}
    return Action(TRANSFER, 0, registers)


@pytest.mark.parametrize(("source", "target"), [(0x800 | 1, 1), (1, 0x800 | 1)])
def test_a_table_is_read_or_written_as_a_whole(source: int, target: int) -> None:
    """A gather from what another operation writes, and a scatter into what another reads."""
    action = _lookup(source, target, 31)
    (found,) = accesses_of([action], "u85")
    whole = 32 * 16
    reads, writes = ((0x1000, whole), (0x8000, 16)) if source & 0x800 else ((0x1000, 16), (0x8000, whole))
    assert found.reads.of(1) == [(reads[0], reads[0] + reads[1])]
    assert found.writes.of(1) == [(writes[0], writes[0] + writes[1])]
    (plain,) = accesses_of([_lookup(1, 1, 31)], "u85")
    assert plain.reads.of(1) == [(0x1000, 0x1010)] and plain.writes.of(1) == [(0x8000, 0x8010)]
