"""The program with its vectors as ExecuTorch's bundled program (`.bpte`), which upstream's runners verify.

Layout: `bundled_program_schema.fbs` of ExecuTorch 1.5, version 2 of its format, identifier `BP08`.
"""

from __future__ import annotations

from collections.abc import Sequence

from micronpu.deploy.vectors import Array, Vectors
from micronpu.emit.flatbuffer_tables import Fields, FlatbufferWriter, blob, number, numbers, tables
from micronpu.program.io import ProgramIO
from micronpu.program.pte import ELEMENT_TYPES

_IDENTIFIER = b"BP08"
_VERSION = 2
_TENSOR = 1  # of the union ValueUnion
_PROGRAM_ALIGNMENT, _DATA_ALIGNMENT = 32, 16
_NUMBERS = {name: number for number, name in ELEMENT_TYPES.items()}


def bundle(
    program: bytes, method: str, inputs: Sequence[ProgramIO], outputs: Sequence[ProgramIO], vectors: Vectors
) -> bytes:
    """Return the bytes of the `.bpte`."""
    cases = [
        {
            side: tables([_value(io, array) for io, array in zip(tensors, arrays, strict=True)])
            for side, (tensors, arrays) in enumerate(((inputs, row), (outputs, expected)))
        }
        for row, expected in zip(vectors.inputs, vectors.outputs, strict=True)
    ]
    writer = FlatbufferWriter()
    suites = tables([{0: method, 1: tables(cases)}])
    root = {0: number("Uint32", _VERSION), 1: suites, 2: blob(program, _PROGRAM_ALIGNMENT)}
    return writer.finish(writer.table(root), _IDENTIFIER)


def _value(io: ProgramIO, array: Array) -> Fields:
    tensor = {
        0: number("Int8", _NUMBERS[io.tensor.dtype]),
        1: numbers("Int32", io.tensor.shape),
        2: blob(io.flat(array).tobytes(), _DATA_ALIGNMENT),
        3: blob(bytes(io.tensor.dim_order)),
    }
    return {0: number("Uint8", _TENSOR), 1: tensor}
