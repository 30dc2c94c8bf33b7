"""What TOSA programs compute here, integer for integer what TOSA's reference model computes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import tosa_serializer
from tests.cases import all_cases
from tests.tosa_rows import ROWS, Builder, Input, Row
from tosa_reference_model import GraphStatus, run

from micronpu.base.errors import PayloadError, UnsupportedError
from micronpu.base.flatbuffer import root
from micronpu.emit import tosa_schema as schema
from micronpu.emit.tosa_file import TosaTensor
from micronpu.host.litert_executor import Mode
from micronpu.host.tosa_executor import TosaProgram
from micronpu.targets.ethosu.legalize import to_tosa

Array = np.ndarray[Any, Any]
PARTS = 3
"""Tests of the rows of the operator tests, of which commits run other ones."""


def theirs(model: bytes, inputs: Sequence[Array]) -> list[Array] | None:
    """What the reference model computes, or None where it says that nothing is defined.

    It complains on standard output about programs of an earlier version of the specification, which it reads all the
    same: the version is set to its own.
    """
    version = root(model, schema.IDENTIFIER).table(schema.Graph.VERSION)
    assert version is not None
    patched = bytearray(model)
    known = (tosa_serializer.TOSA_VERSION_MINOR, tosa_serializer.TOSA_VERSION_DRAFT)
    for field, value in zip((schema.Version.MINOR, schema.Version.DRAFT), known, strict=True):
        if position := version.offset(field):
            patched[position] = int(value)
    made, status = run(bytes(patched), [np.ascontiguousarray(x) for x in inputs])
    return made if status == GraphStatus.TOSA_VALID else None


def ours(model: bytes, inputs: Sequence[Array]) -> list[Array] | None:
    try:
        return TosaProgram(model, Mode.REFERENCE).call(*inputs)
    except PayloadError as error:
        assert "has no defined result" in str(error)
        return None


def assert_same(name: str, model: bytes, inputs: Sequence[Array]) -> None:
    expected, got = theirs(model, inputs), ours(model, inputs)
    if expected is None or got is None:
        assert expected is None and got is None, name
        return
    for a, b in zip(expected, got, strict=True):
        assert np.array_equal(np.asarray(a).reshape(-1), b.reshape(-1)), name


def test_operators_of_tosa() -> None:
    for row in ROWS:
        for inputs in row.samples():
            assert_same(row.name, row.model(), inputs)


def _compare_cases(part: slice) -> None:
    compared = 0
    for row in all_cases()[part]:
        try:
            model = to_tosa(row.graph()).data
        except UnsupportedError:
            continue
        for inputs in row.samples:
            assert_same(row.name, model, inputs)
            compared += 1
    assert compared > 1000


@pytest.mark.sweep
@pytest.mark.parametrize("part", range(PARTS))
def test_operators_of_graphs(part: int) -> None:
    _compare_cases(slice(part, None, PARTS))


BIG = (1 << 31) - 1
EDGES: dict[str, tuple[tuple[int, ...], ...]] = {
    "ADD": ((BIG, 1), (-BIG - 1, -1), (BIG, -1)),
    "SUB": ((-BIG - 1, 1), (0, BIG), (-1, BIG)),
    "MUL": ((1 << 16, 1 << 15), (-(1 << 16), 1 << 15), (46340, 46340)),
    "INTDIV": ((-7, 2), (7, -2), (BIG, -BIG)),
    "ARITHMETIC_RIGHT_SHIFT": ((-5, 1), (5, 31), (5, 32), (5, -1)),
    "LOGICAL_RIGHT_SHIFT": ((-5, 1), (-5, 31), (5, 32), (5, -1)),
    "LOGICAL_LEFT_SHIFT": ((3, 31), (3, 32), (-3, 4)),
}
"""Operands at which results leave their type, or just do not."""


@pytest.mark.parametrize("name", EDGES)
def test_edges(name: str) -> None:
    def build(b: Builder, x: TosaTensor, z: TosaTensor) -> TosaTensor:
        more = {"MUL": [b.constant([0])]}.get(name, [])
        arguments = (True,) if name == "ARITHMETIC_RIGHT_SHIFT" else ()
        return b(name, (x, z, *more), x.shape, x.dtype, *arguments)

    model = Row("", (Input((1,), "INT32"), Input((1,), "INT32")), build).model()
    for pair in EDGES[name]:
        assert_same(f"{name} {pair}", model, [np.array([n], np.int32) for n in pair])
