"""A damaged TOSA program is a sentence: when it is read, or when an operator has another result than it declares.

Rows reach every operator that has a kernel.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from tests.cases import all_cases
from tests.oracle.ops.test_operators import legal
from tests.tosa_rows import IGNORE_NAN, ROWS, Builder, Input, Row

from micronpu.base.errors import MicroNpuError, PayloadError
from micronpu.base.flatbuffer import Table, root
from micronpu.emit.tosa_file import TosaTensor, serialized
from micronpu.emit.tosa_schema import Op
from micronpu.host.litert_executor import Mode
from micronpu.host.tosa_executor import TosaProgram
from micronpu.host.tosa_run import OPERATORS
from micronpu.targets.ethosu.legalize import to_tosa

# --- what is whole ---


def test_every_row_is_read_and_every_kernel_has_a_row():
    reached = set()
    for row in ROWS:
        model = row.model()
        assert TosaProgram(model, Mode.REFERENCE).num_operators > 0, row.name
        block = root(model, b"TOSA").vector(1).table(0).vector(1).table(0)
        reached.update(Op(table.integer(0, "<I")).name for table in block.vector(1).tables())
    # These two are in programs of our operators: see below.
    assert set(OPERATORS) - reached == {"CLAMP", "CONCAT", "RESHAPE", "CAST", "IDENTITY"} - reached
    assert reached - set(OPERATORS) == {"CONST", "CONST_SHAPE"}


@pytest.mark.sweep
@pytest.mark.parametrize("family", sorted({row.family for row in all_cases()}))
def test_what_our_operators_write_passes(family):
    written = 0
    for row in (row for row in all_cases() if row.family == family):
        try:
            model = to_tosa(legal(row.graph())).data
        except MicroNpuError:  # an operator without a TOSA form
            continue
        TosaProgram(model, Mode.REFERENCE)
        written += 1
    assert written


# --- what is damaged ---


def _smallest(row: str) -> Row:
    return min((r for r in ROWS if r.name.startswith(row)), key=lambda r: len(r.model()))


def _one(name: str, shapes: Any, result: Any, *arguments: Any, kind: str = "INT8") -> bytes:
    """A program of one operator of inputs of the given shapes, or of constants: (values, type)."""
    builder, inputs, operands = Builder(), [], []
    for shape in shapes:
        if isinstance(shape, tuple) and len(shape) == 2 and isinstance(shape[1], str):
            operands.append(builder.constant(*shape))
        else:
            inputs.append(TosaTensor(f"input_{len(inputs)}", tuple(shape), kind))
            operands.append(inputs[-1])
    made = builder(name, operands, result, kind, *arguments)

    return serialized(inputs, [made], builder.operators).data


SIZE, ZERO = "SHAPE", ([0], "INT8")
_POOL = ([2, 2], [1, 1], [0, 0, 0, 0], IGNORE_NAN)
WRONG = {
    "shape": (_one("ABS", [(2, 3)], (3, 2), kind="INT32"), r"ABS makes \[2, 3\], which is declared as \[3, 2\]"),
    "operands": (_one("ADD", [(2, 3)], (2, 3), kind="INT32"), "ADD of these operands has no result"),
    "sides": (_one("ADD", [(2, 3), (2, 2)], (2, 3), kind="INT32"), "could not be broadcast"),
    "axis": (_one("REVERSE", [(2, 3)], (2, 3), 2), "axis 2 is out of bounds"),
    "no axis": (_one("REVERSE", [()], (), 0), "axis 0 is out of bounds"),
    "joined": (_one("CONCAT", [(2, 3), (3, 3)], (2, 6), 1), "must match exactly"),
    "order": (_one("TRANSPOSE", [(2, 3)], (2, 2), [0, 0]), "repeated axis"),
    "too few axes": (_one("TRANSPOSE", [(2, 3)], (2, 3), [0]), "axes don't match"),
    "elements": (_one("RESHAPE", [(2, 3), ([2, 4], SIZE)], (2, 4)), "cannot reshape array of size 6"),
    "negative": (_one("RESHAPE", [(2, 3), ([-2, -3], SIZE)], (2, 3)), "only specify one unknown dimension"),
    "box": (_one("SLICE", [(4,), ([2], SIZE), ([3], SIZE)], (3,)), r"SLICE makes \[2\], which is declared as \[3\]"),
    "begin": (_one("SLICE", [(4,), ([-1], SIZE), ([3], SIZE)], (3,)), r"SLICE makes \[0\]"),
    "padding": (_one("PAD", [(4,), ([-1, 1], SIZE), ZERO], (4,)), "negative values"),
    "too few pads": (_one("PAD", [(4,), ([1], SIZE), ZERO], (5,)), "PAD of these operands has no result"),
    "repeated": (_one("TILE", [(4,), ([0], SIZE)], (4,)), r"TILE makes \[0\]"),
    "table": (_one("TABLE", [(4,), ([1] * 255, "INT8")], (4,)), "index 256 is out of bounds"),
    "stride": (
        _one("MAX_POOL2D", [(1, 4, 4, 1)], (1, 3, 3, 1), [2, 2], [0, 1], *_POOL[2:]),
        "slice step cannot be zero",
    ),
    "pads": (
        _one("MAX_POOL2D", [(1, 4, 4, 1)], (1, 3, 3, 1), *_POOL[:2], [2, 0, 0, 0], IGNORE_NAN),
        "MAX_POOL2D of these operands",
    ),
    "rank": (_one("MAX_POOL2D", [(4, 4, 1)], (3, 3, 1), *_POOL), "MAX_POOL2D of these operands"),
    "inner sides": (_one("MATMUL", [(1, 2, 3), (1, 4, 5), ZERO, ZERO], (1, 2, 5)), "mismatch in its core dimension"),
    "kind": (_one("SIN", [(4,)], (4,)), r"operator 0 \(SIN\) is in no program"),
}  # fmt: skip


def _ran(model: bytes) -> list[np.ndarray]:
    """What a program computes of zeros."""
    program = TosaProgram(model, Mode.REFERENCE)
    return program.call(*(np.zeros(io.shape, io.numpy_type) for io in program.inputs))


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_operator_is_a_sentence(case):
    model, sentence = WRONG[case]
    with pytest.raises(PayloadError, match=rf"^The TOSA program inside the payload is corrupted: .*{sentence}"):
        _ran(model)


def _tables(model: bytes) -> dict[str, list[Table]]:
    block = root(model, b"TOSA").vector(1).table(0).vector(1).table(0)
    return {
        "tensors": list(block.vector(2).tables()),
        "operators": list(block.vector(1).tables()),
        "block": [block],
        "location": [t for o in block.vector(1).tables() if (t := o.table(5))],
        "attributes": [t for o in block.vector(1).tables() if (t := o.table(2))],
    }


def _without(model: bytes, table: Table, field: int) -> bytes:
    """The model with a field taken out of the directory of its table; tables share directories, as flatbuffers do."""
    changed = bytearray(model)
    vtable = table.position - struct.unpack_from("<i", model, table.position)[0]
    struct.pack_into("<H", changed, vtable + 4 + 2 * field, 0)
    return bytes(changed)


FIELDS = {"tensors": (0, 1, 2, 3), "operators": (2, 3, 4), "block": (1, 2, 3)}
"""Of each table, those that a program cannot run without."""


@pytest.mark.parametrize("kind", FIELDS)
def test_what_readers_take_for_granted_has_to_be_there(kind):
    """Each field that leads elsewhere, taken out."""
    model = _smallest("conv_INT8_3x3").model()
    for field in FIELDS[kind]:
        with pytest.raises(PayloadError, match="The TOSA program inside the payload is corrupted: "):
            _ran(_without(model, _tables(model)[kind][-1 if kind == "operators" else 0], field))


@pytest.mark.sweep
@pytest.mark.parametrize(
    "row", ["conv_INT8_3x3", "average_INT8", "resize_INT8_BILINEAR", "rescale_INT8_INT8_SINGLE", "gather_INT8"]
)
def test_every_number_of_an_operator_matters_or_is_refused(row):
    """Bytes of the operators and of what they read, one after the other: a sentence, or a whole program."""
    model = _smallest(row).model()
    refused = 0
    for tables in _tables(model).values():
        for table in tables:
            for position in range(table.position, min(table.position + 24, len(model))):
                changed = bytearray(model)
                changed[position] ^= 0x55
                try:
                    _ran(bytes(changed))
                except PayloadError as error:
                    refused += 1
                    assert str(error).startswith("The TOSA program")
    assert refused > 50


# --- values ---


def _looks_up(rows: int, make: Any = None) -> TosaProgram:
    def build(b: Builder, table: TosaTensor, place: TosaTensor) -> TosaTensor:
        return b("GATHER", (table, place if make is None else make(b, place)), (1, 2, 3), "INT8")

    row = Row("", (Input((1, rows, 3), "INT8"), Input((1, 2), "INT32" if make is None else "INT8")), build)
    return TosaProgram(row.model(), Mode.REFERENCE)


def test_a_row_that_is_not_there_is_a_sentence_and_not_the_end_of_the_process():
    program, table = _looks_up(5), np.arange(15, dtype=np.int8).reshape(1, 5, 3)
    assert program.call(table, np.array([[4, 0]], np.int32))[0].tolist() == [[[12, 13, 14], [0, 1, 2]]]
    for wrong in (-1, 5, 1 << 30):
        with pytest.raises(PayloadError, match=r"no defined result .* a row is looked up that is none of 0 to 4"):
            program.call(table, np.array([[0, wrong]], np.int32))


def test_rows_that_are_computed_are_looked_at():
    """A number of eight bits above its zero point is 0 to 255."""

    def number(b: Builder, x: TosaTensor) -> TosaTensor:
        return b.rescale(x, "INT32", 1.0, (-128, 0))

    program = _looks_up(255, number)
    table = np.zeros((1, 255, 3), np.int8)
    assert program.call(table, np.array([[126, -128]], np.int8))[0].shape == (1, 2, 3)
    with pytest.raises(PayloadError, match="none of 0 to 254"):
        program.call(table, np.array([[127, -128]], np.int8))


UNDEFINED = {
    "LOGICAL_LEFT_SHIFT": (99, "a shift is beyond 0 to 31"),
    "ADD": (1 << 30, "the result of ADD leaves INT32"),
    "INTDIV": (0, "INTDIV divides by zero"),
}


@pytest.mark.parametrize("name", UNDEFINED)
def test_what_the_specification_leaves_undefined_is_a_sentence(name):
    value, sentence = UNDEFINED[name]

    def build(b: Builder, x: TosaTensor) -> TosaTensor:
        return b(name, (x, x), x.shape, x.dtype)

    program = TosaProgram(Row("", (Input((1, 50), "INT32"),), build).model(), Mode.REFERENCE)
    with pytest.raises(PayloadError, match=f"has no defined result for these inputs: {sentence}"):
        program.call(np.full((1, 50), value, np.int32))
