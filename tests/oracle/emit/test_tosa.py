"""Every row of the operator tests as TOSA: the reference model against the interpreter, and what Vela takes."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from tests.cases import Array, Case, all_cases, case, i8

from micronpu.base.errors import UnsupportedError
from micronpu.host.litert_executor import Mode
from micronpu.host.tosa_executor import TosaProgram
from micronpu.ir import DType, arithmetic, interpret
from micronpu.ops.convolution import Conv2d
from micronpu.ops.reduction import Mean
from micronpu.passes import run_passes
from micronpu.targets.ethosu.legalize import legalize, to_tosa
from micronpu.targets.ethosu.options import EthosUOptions
from micronpu.targets.ethosu.vela.compiler import VelaError, compile_flatbuffer

ROWS = all_cases()

NO_FORM = {
    "conv2d": "no convolution in groups",
    "resize_bilinear": "its step is too long",
}
"""Operators of which some rows have no TOSA form, and why."""

WRAPS = {"mul", "requantize"}
"""Operators of which a row scales numbers out of int32, where LiteRT's result wraps and TOSA's saturates."""


def steps(row: Case) -> int:
    """By how much the TOSA form of a row may differ."""
    allowed = row.op.tosa_steps
    return allowed.int16 if row.graph().outputs[0].type.dtype is DType.INT16 else allowed.int8


def program(row: Case) -> TosaProgram:
    graph = row.graph()
    return TosaProgram(to_tosa(graph).data, Mode.REFERENCE)


def without_form(row: Case) -> str:
    """Why a row has no TOSA form, or "". Only rows of `NO_FORM` are written for it: the test of any other one fails."""
    if row.op.name not in NO_FORM:
        return ""
    try:
        to_tosa(row.graph())
    except UnsupportedError as error:
        return str(error)
    return ""


REASONS = {row.name: without_form(row) for row in ROWS}
WRITTEN = [row for row in ROWS if not REASONS[row.name]]


def test_rows_without_a_form_are_named():
    found: dict[str, set[str]] = defaultdict(set)
    for row in ROWS:
        if REASONS[row.name]:
            found[row.op.name].add(REASONS[row.name])
    assert found.keys() == NO_FORM.keys()
    for name, reasons in found.items():
        assert all(NO_FORM[name] in reason for reason in reasons), reasons


@pytest.fixture
def wraps(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Collects whether the interpreter's left shifts leave int32."""
    found: list[bool] = []
    inner = arithmetic.wrap_int32

    def wrap(x: Any) -> Any:
        wrapped = inner(x)
        found.append(bool((wrapped != x).any()))
        return wrapped

    monkeypatch.setattr(arithmetic, "wrap_int32", wrap)
    return found


@pytest.mark.sweep
@pytest.mark.parametrize("row", WRITTEN, ids=lambda row: row.name)
def test_reference_model_is_the_interpreter(row: Case, wraps: list[bool]):
    runner, graph = program(row), row.graph()
    for number, inputs in enumerate(row.samples):
        wraps.clear()
        (expected,) = interpret(graph, inputs)
        if any(wraps) and row.op.name in WRAPS:
            continue
        (got,) = runner.call(*inputs)
        assert got.dtype == expected.dtype and got.shape == expected.shape
        difference = largest_difference(expected, got)
        assert difference <= steps(row), f"sample {number} differs by {difference}: {row}"


def largest_difference(expected: Array, got: Array) -> int:
    return int(np.abs(expected.astype(np.int64) - got).max(initial=0))


def test_the_comparison_sees_a_difference():
    """An operator that is declared exact and is off by one must be found."""
    row = next(r for r in WRITTEN if r.op.name == "conv2d" and r.name.startswith("convolution"))
    assert steps(row) == 0
    (expected,) = interpret(row.graph(), row.samples[4])
    changed = expected.copy()
    changed.reshape(-1)[-1] ^= 1
    assert largest_difference(expected, expected) == 0
    assert largest_difference(expected, changed) == 1


@pytest.mark.sweep
@pytest.mark.parametrize("name", sorted({r.op.name for r in WRITTEN if steps(r)}))
def test_differences_are_rare(name: str):
    """What differs at all differs in few elements, over all rows of an operator."""
    different = count = 0
    for row in WRITTEN:
        if row.op.name != name or not steps(row):
            continue
        runner, graph = program(row), row.graph()
        for inputs in row.samples:
            (expected,) = interpret(graph, inputs)
            (got,) = runner.call(*inputs)
            different += int((expected != got).sum())
            count += expected.size
    assert different <= RARELY.get(name, OFTEN) * count, f"{different} of {count} elements of {name} differ"


OFTEN = 0.25
RARELY = {"add": 0.001, "fully_connected": 0.05, "mean": 0.03, "neg": 0.05, "softmax": 0.0001, "sub": 0.001}
"""The part of all elements, over the rows of an operator, in which its TOSA form may differ; for others `OFTEN`."""


# ---------------------------------------------------------------- Vela

REFUSED = {
    "ethos-u55-128": {"argmax", "avg_pool2d", "gather_rows", "resize_bilinear", "resize_nearest", "scatter_rows"},
    "ethos-u85-256": set(),
}
"""Operators of which Vela refuses some int8 rows."""


@pytest.mark.sweep
@pytest.mark.parametrize("target", REFUSED)
def test_vela_takes_the_forms(target: str):
    spec = EthosUOptions(target)
    refused: dict[str, list[str]] = defaultdict(list)
    for row in WRITTEN:
        if any(o.type.dtype is DType.INT16 for o in (*row.graph().inputs, *row.graph().outputs)):
            continue
        try:
            compile_flatbuffer(to_tosa(row.graph()).data, spec)
        except VelaError as error:
            refused[row.op.name].append(f"{row}: {error}")
    strangers = {name: found[0] for name, found in refused.items() if name not in REFUSED[target]}
    assert not strangers


def test_a_mean_over_an_image_is_one_pool():
    spec = EthosUOptions("ethos-u85-256")
    graph = legalize(case(Mean((1, 2)), x=i8(1, 7, 7, 64)).graph(), spec)
    compiled = compile_flatbuffer(to_tosa(graph).data, spec)
    assert [layer.operator for layer in compiled.layers] == ["AvgPool"]


def test_the_layers_point_at_the_nodes():
    row = next(r for r in WRITTEN if isinstance(r.op, Conv2d))
    graph = run_passes(row.graph())
    model = to_tosa(graph)
    compiled = compile_flatbuffer(model.data, EthosUOptions("ethos-u55-128"))
    assert {graph.nodes[model.nodes[layer.source]].op.name for layer in compiled.layers} <= {"conv2d", "pad"}
