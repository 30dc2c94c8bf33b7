"""Programs of single TOSA operators through Vela and the simulator, element for element what the reference model says.

They reach what the operators of ours do not: comparisons and logic, integers of 32 and 48 bits, gather and scatter,
kept accumulators, sparse weights.  Ethos-U85 takes all of them, the smaller accelerators what Vela lets them have.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from tests.tosa_rows import ROWS, Row

from micronpu.host.litert_executor import Mode
from micronpu.host.tosa_executor import TosaProgram
from micronpu.targets.ethosu.host.simulator import EthosUSimulator
from micronpu.targets.ethosu.options import EthosUOptions
from micronpu.targets.ethosu.payload import pack
from micronpu.targets.ethosu.vela.compiler import VelaError, compile_flatbuffer

TARGETS = ("ethos-u85-128", "ethos-u85-256", "ethos-u85-512", "ethos-u85-1024", "ethos-u85-2048")
DOUBLE_ROUNDED = {"mul_shift_40"}
"""Rows where Vela asks for double rounding and TOSA for single, see docs/ethosu-simulator.md."""


def problems(rows: Sequence[Row], target: str) -> Iterator[str]:
    """One line for every row whose stream computes something else, or that Vela refuses."""
    simulator = EthosUSimulator(target)
    for row in rows:
        model = row.model()
        try:
            payload = pack(compile_flatbuffer(model, EthosUOptions(target)))
        except VelaError as error:
            yield f"{row.name}: {error.what}"
            continue
        reference = TosaProgram(model, Mode.REFERENCE)
        for inputs in row.samples():
            (got,) = simulator.run(payload, inputs)
            (expected,) = reference.call(*inputs)
            off = np.abs(got.reshape(-1).astype(np.int64) - expected.reshape(-1).astype(np.int64))
            if off.max() > (row.name in DOUBLE_ROUNDED):
                yield f"{row.name}: {np.count_nonzero(off)} of {off.size} elements differ, by up to {off.max()}"


@pytest.mark.sweep
@pytest.mark.parametrize("target", TARGETS)
def test_operators(target: str) -> None:
    wrong = list(problems(ROWS, target))
    assert not wrong, "\n".join(wrong)


def test_names_are_unique() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS)
