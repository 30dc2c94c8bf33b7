"""The program with its vectors as ExecuTorch's bundled program (`.bpte`), which upstream's runners verify.

Layout: `bundled_program_schema.fbs` of ExecuTorch 1.5, version 2 of its format, identifier `BP08`.  Written with
flatbuffers alone: ExecuTorch's own serializer imports torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import flatbuffers

from micronpu.deploy.vectors import Array, Vectors
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
    builder = flatbuffers.Builder(len(program) + 4096)
    cases = []
    for row, expected in zip(vectors.inputs, vectors.outputs, strict=True):
        sides = [
            _tables(builder, [_value(builder, b, a) for b, a in zip(tensors, arrays, strict=True)])
            for tensors, arrays in ((inputs, row), (outputs, expected))
        ]
        cases.append(_table(builder, sides))
    tests = _tables(builder, cases)
    suite = _table(builder, [builder.CreateString(method), tests])
    suites = _tables(builder, [suite])
    data = _bytes(builder, program, _PROGRAM_ALIGNMENT)
    builder.StartObject(3)
    builder.PrependUint32Slot(0, _VERSION, 0)
    builder.PrependUOffsetTRelativeSlot(1, suites, 0)
    builder.PrependUOffsetTRelativeSlot(2, data, 0)
    builder.Finish(builder.EndObject(), file_identifier=_IDENTIFIER)
    return bytes(builder.Output())


def _value(builder: Any, io: ProgramIO, array: Array) -> int:
    order = _bytes(builder, bytes(io.tensor.dim_order), 1)
    data = _bytes(builder, io.flat(array).tobytes(), _DATA_ALIGNMENT)
    shape = io.tensor.shape
    builder.StartVector(4, len(shape), 4)
    for size in reversed(shape):
        builder.PrependInt32(size)
    sizes = builder.EndVector()
    builder.StartObject(4)
    builder.PrependInt8Slot(0, _NUMBERS[io.tensor.dtype], 0)
    builder.PrependUOffsetTRelativeSlot(1, sizes, 0)
    builder.PrependUOffsetTRelativeSlot(2, data, 0)
    builder.PrependUOffsetTRelativeSlot(3, order, 0)
    tensor = builder.EndObject()
    builder.StartObject(2)
    builder.PrependUint8Slot(0, _TENSOR, 0)
    builder.PrependUOffsetTRelativeSlot(1, tensor, 0)
    return int(builder.EndObject())


def _table(builder: Any, fields: Sequence[int]) -> int:
    builder.StartObject(len(fields))
    for number, offset in enumerate(fields):
        builder.PrependUOffsetTRelativeSlot(number, offset, 0)
    return int(builder.EndObject())


def _tables(builder: Any, offsets: Sequence[int]) -> int:
    builder.StartVector(4, len(offsets), 4)
    for offset in reversed(offsets):
        builder.PrependUOffsetTRelative(offset)
    return int(builder.EndVector())


def _bytes(builder: Any, data: bytes, alignment: int) -> int:
    builder.StartVector(1, len(data), alignment)
    builder.head = builder.Head() - len(data)
    builder.Bytes[builder.Head() : builder.Head() + len(data)] = data
    return int(builder.EndVector())
