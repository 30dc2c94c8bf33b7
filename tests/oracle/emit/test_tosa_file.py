"""TOSA files, byte for byte as TOSA's own serializer writes them."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import pytest
import tosa_serializer as tosa
from tests import tosa_rows
from tests.cases import Case, all_cases

from micronpu.base.errors import UnsupportedError
from micronpu.emit import tosa as emitter
from micronpu.emit import tosa_schema as schema
from micronpu.emit.tosa_file import TosaOperator, TosaTensor, serialized
from micronpu.emit.written import WrittenModel
from micronpu.targets.ethosu.legalize import to_tosa

ATTRIBUTES = {name.removesuffix("Attribute").lower(): name for name in dir(tosa.TosaSerializerAttribute)}


def theirs(inputs: Sequence[TosaTensor], outputs: Sequence[TosaTensor], operators: Sequence[TosaOperator]) -> bytes:
    """The same, written by the library."""
    serializer = tosa.TosaSerializer("", tosa.ConstMode.EMBED, *schema.VERSION, False)
    block = serializer.currRegion.currBasicBlock
    for x in inputs:
        serializer.addInputTensor(tosa.TosaSerializerTensor(x.name, list(x.shape), getattr(tosa.DType, x.dtype)))
    written = set(inputs)
    for operator in operators:
        for x in operator.inputs:
            if x not in written:
                serializer.addConst(list(x.shape), getattr(tosa.DType, x.dtype), x.data, x.name)
                written.add(x)
        y = operator.output
        block.addTensor(y.name, list(y.shape), getattr(tosa.DType, y.dtype))
        written.add(y)
        attribute = tosa.TosaSerializerAttribute()
        getattr(attribute, ATTRIBUTES[operator.name.replace("_", "").lower()])(*map(argument, operator.arguments))
        names = [t.name for t in operator.inputs]
        serializer.addOperator(getattr(tosa.Op, operator.name), names, [y.name], attribute)
    for y in outputs:
        block.addOutput(y.name)
    return bytes(serializer.serialize())


def argument(value: Any) -> Any:
    if isinstance(value, IntEnum):
        return getattr(getattr(tosa, type(value).__name__), value.name)
    return list(value) if isinstance(value, bytes) else value


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of the files that were compared."""
    sizes: list[int] = []

    def both(
        inputs: Sequence[TosaTensor], outputs: Sequence[TosaTensor], operators: Sequence[TosaOperator]
    ) -> WrittenModel:
        ours = serialized(inputs, outputs, operators)
        assert ours.data == theirs(inputs, outputs, operators)
        sizes.append(len(ours.data))
        return ours

    monkeypatch.setattr(emitter, "serialized", both)
    monkeypatch.setattr(tosa_rows, "serialized", both)
    return sizes


def test_operators_of_graphs(compared: list[int]) -> None:
    """Every tenth row of the operator tests, and the first of each operator."""
    rows = all_cases()
    first: dict[str, Case] = {row.op.name: row for row in reversed(rows)}
    for row in (*first.values(), *rows[::10]):
        try:
            to_tosa(row.graph())
        except UnsupportedError:
            continue
    assert len(compared) > 150


def test_operators_of_tosa(compared: list[int]) -> None:
    for row in tosa_rows.ROWS:
        row.model()
    assert len(compared) == len(tosa_rows.ROWS)
