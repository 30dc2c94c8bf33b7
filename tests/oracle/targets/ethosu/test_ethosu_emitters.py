"""Operators that Vela makes wrong streams of, in a form whose stream is right, or outside the partition."""

from __future__ import annotations

import numpy as np
import pytest
from tests.cases import Array, Case, case, i8, i16, index, q

from micronpu.emit.litert import to_litert
from micronpu.ir import interpret
from micronpu.ops.indices import GatherRows
from micronpu.ops.reduction import Amin
from micronpu.ops.resize import ResizeNearest
from micronpu.ops.tables.table import LookupTable
from micronpu.partition.device import RefusedPartitionError
from micronpu.targets.ethosu.compile import compile_graph
from micronpu.targets.ethosu.host.simulator import EthosUSimulator
from micronpu.targets.ethosu.options import EthosUOptions
from micronpu.targets.ethosu.payload import pack
from micronpu.targets.ethosu.vela.compiler import compile_flatbuffer

MANY = 65_537
REVERSED = tuple(range(127, -129, -1))
TABLE = case(LookupTable(REVERSED), x=i8(1, MANY), out=q(0.05))
SMALL_TABLE = case(LookupTable(REVERSED), x=i8(1, 16), out=q(0.05))
NEAREST = case(ResizeNearest((1, 3)), x=i8(1, 1, 2, 5))
SMALLEST = case(Amin((1, 2)), x=i16(2, 4, 5, 6))
ROWS = case(GatherRows(), indices=index(MANY, count=4), table=i8(4, 1))


def simulated(row: Case, target: str, payload: bytes) -> list[Array]:
    return EthosUSimulator(target).run(payload, row.samples[2])


@pytest.mark.parametrize("row", [TABLE, NEAREST, SMALLEST], ids=lambda row: row.op.name)
def test_stream_is_the_graph(row: Case) -> None:
    program = compile_graph(row.graph(), EthosUOptions("ethos-u85-256"))
    assert program.plan.format == "tosa"
    (expected,) = interpret(row.graph(), row.samples[2])
    (got,) = simulated(row, "ethos-u85-256", program.payload)
    np.testing.assert_array_equal(got.reshape(expected.shape), expected)


@pytest.mark.parametrize("row", [TABLE, NEAREST], ids=lambda row: row.op.name)
def test_format_alone_is_refused(row: Case) -> None:
    with pytest.raises(RefusedPartitionError, match="Vela miscompiles it"):
        compile_graph(row.graph(), EthosUOptions("ethos-u85-256", via="litert"))


def test_tables_are_no_gathers() -> None:
    """Whose indices may be overwritten before they are read."""
    program = compile_graph(SMALL_TABLE.graph(), EthosUOptions("ethos-u85-256"))
    assert program.plan.format == "tosa"


@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u65-256"])
def test_smallest_int16_element_is_found_by_halves(target: str) -> None:
    with pytest.raises(RefusedPartitionError, match="only one row is read"):
        compile_graph(SMALLEST.graph(), EthosUOptions(target, disabled_passes=("smallest_by_halves",)))
    program = compile_graph(SMALLEST.graph(), EthosUOptions(target))
    (expected,) = interpret(SMALLEST.graph(), SMALLEST.samples[2])
    (got,) = simulated(SMALLEST, target, program.payload)
    np.testing.assert_array_equal(got.reshape(expected.shape), expected)


def test_gather_of_many_rows_stays_outside() -> None:
    with pytest.raises(RefusedPartitionError, match="of 65,537 rows only 1 are moved"):
        compile_graph(ROWS.graph(), EthosUOptions("ethos-u85-256"))


@pytest.mark.parametrize("row", [TABLE, NEAREST, SMALLEST], ids=lambda row: row.op.name)
def test_defect_is_still_there(row: Case) -> None:
    """A version of Vela without it must take its line out of `micronpu.targets.ethosu.legalize`."""
    payload = pack(compile_flatbuffer(bytes(to_litert(row.graph()).data), EthosUOptions("ethos-u85-256")))
    (expected,) = interpret(row.graph(), row.samples[2])
    (got,) = simulated(row, "ethos-u85-256", payload)
    assert (got.reshape(expected.shape) != expected).any()
