"""Every LiteRT operator that is read, in three shapes or more, computes what LiteRT's reference kernels compute."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from tests.oracle.frontend.litert_rows import all_rows, data_of

import micronpu
from micronpu.frontend.facts import NOT_COMPARED
from micronpu.frontend.model_files import read_model
from micronpu.frontend.model_files.litert_graph import FOLDED, LOWERINGS

ROWS = all_rows()
KINDS = sorted({row.kind for row in ROWS})
ELSEWHERE = {
    "VAR_HANDLE", "READ_VARIABLE", "ASSIGN_VARIABLE", "CALL_ONCE", "IF", "DENSIFY", "CUSTOM Convolution2DTransposeBias",
    "BROADCAST_TO",
}  # fmt: skip
"""Operators of several subgraphs, of sparse weights, without a kernel in the interpreter of the package, or with one
that only large ranks use: `test_litert_control`, `test_litert_forms`."""


@pytest.mark.sweep
@pytest.mark.parametrize("kind", KINDS)
def test_operator_equals_the_reference_kernel(kind: str, tmp_path: Path):
    """Reading raises an error for any element that differs by more than rounding."""
    path = tmp_path / "rows.tflite"
    path.write_bytes(data_of([row for row in ROWS if row.kind == kind]))
    assert not NOT_COMPARED.of(read_model(path).module)


def test_wide_reflections_are_delegated(tmp_path: Path):
    """A selection of so many indices would run on the core."""
    path = tmp_path / "rows.tflite"
    wide = [row for row in ROWS if row.kind == "MIRROR_PAD" and (1, 200, 1) in row.shapes and not row.fields["mode"]]
    path.write_bytes(data_of([row for row in wide if not row.operands[0].scale]))
    report = micronpu.check(path, target="corstone300").report
    assert report.delegated == report.operators


def test_every_operator_has_three_shapes():
    shapes = Counter(kind for kind, *_ in {(row.kind, row.shapes) for row in ROWS})
    few = {kind for kind in LOWERINGS if shapes[kind] < 3} - ELSEWHERE - set(FOLDED)
    assert not few
