"""The command streams that Vela makes of our rows, in the simulator: element for element what the graph says.

Of a LiteRT program the reference interpreter is the oracle, of a TOSA program TOSA's reference model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from tests.cases import Array, Case, all_cases
from tests.ethosu_differences import DIFFERENCES, known

from micronpu.base.errors import MicroNpuError
from micronpu.host.litert_executor import Mode
from micronpu.host.tosa_executor import TosaProgram
from micronpu.ir import interpret
from micronpu.targets.ethosu.compile import EthosUPartition, compile_graph
from micronpu.targets.ethosu.host.simulator import EthosUSimulator, SimulationError
from micronpu.targets.ethosu.options import EthosUOptions

ROWS = all_cases()
TARGETS = (
    *("ethos-u55-32", "ethos-u55-64", "ethos-u55-128", "ethos-u55-256"),
    *("ethos-u65-256", "ethos-u65-512"),
    *("ethos-u85-128", "ethos-u85-256", "ethos-u85-512", "ethos-u85-1024", "ethos-u85-2048"),
)
FORMATS = ("litert", "tosa")
PARTS = 66
"""`make test` takes every 66th row, other ones for every accelerator and format; the slow test takes all."""


def compiled(row: Case, target: str, via: str) -> EthosUPartition | None:
    """The row as a program, None where Vela does not take it in this format."""
    try:
        return compile_graph(row.graph(), EthosUOptions(target, via=via, verify_streams=False))
    except MicroNpuError:
        return None


def oracle(program: EthosUPartition, inputs: Sequence[Array]) -> list[Array]:
    if program.plan.format == "litert":
        return list(interpret(program.graph, inputs))
    reference = TosaProgram(bytes(program.model.data), Mode.REFERENCE)
    return reference.call(*inputs)


def greatest_difference(row: Case, target: str, program: EthosUPartition) -> int | None:
    """In steps, over all samples; None where the stream is refused."""
    greatest = 0
    simulator = EthosUSimulator(target, fast_scratch_bytes=program.program.fast_scratch_size)
    for inputs in row.samples:
        try:
            results = simulator.run(program.payload, inputs)
        except SimulationError:
            return None
        for got, expected in zip(results, oracle(program, inputs), strict=True):
            assert got.size == expected.size
            off = np.abs(got.reshape(-1).astype(np.int64) - expected.reshape(-1).astype(np.int64))
            greatest = max(greatest, int(off.max(initial=0)))
    return greatest


def problems(rows: Sequence[Case], target: str, via: str) -> Iterator[str]:
    """One line for every row that differs for no known reason."""
    for row in rows:
        program = compiled(row, target, via)
        if program is None:
            continue
        found = greatest_difference(row, target, program)
        allowed = known(row, via, target)
        if found == 0 or any(d.largest is None or (found is not None and found <= d.largest) for d in allowed):
            continue
        yield f"{row.name}: {'refused' if found is None else f'off by {found}'}: {row}"


COMBINATIONS = [(target, via) for target in TARGETS for via in FORMATS]


@pytest.mark.sweep
@pytest.mark.parametrize(("target", "via"), COMBINATIONS)
def test_some_streams_are_their_graphs(target: str, via: str) -> None:
    first = COMBINATIONS.index((target, via))
    wrong = list(problems(ROWS[first::PARTS], target, via))
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
@pytest.mark.parametrize(("target", "via"), COMBINATIONS)
def test_all_streams_are_their_graphs(target: str, via: str) -> None:
    wrong = list(problems(ROWS, target, via))
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
@pytest.mark.parametrize("difference", DIFFERENCES, ids=lambda d: "-".join((*d.formats, *d.operators)))
def test_known_differences_are_still_there(difference) -> None:  # type: ignore[no-untyped-def]
    """A cure of Vela's, or of ours, must take its line out of the list."""
    targets = ("ethos-u55-32", "ethos-u55-256", "ethos-u65-256", "ethos-u85-256")
    for target in (t for t in targets if t.startswith(difference.targets)):
        for via in difference.formats:
            rows = [row for row in ROWS if difference.covers(row, via, target)]
            programs = [(row, compiled(row, target, via)) for row in rows]
            assert any(greatest_difference(row, target, program) != 0 for row, program in programs if program)
