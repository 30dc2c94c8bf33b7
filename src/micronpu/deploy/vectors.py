"""Golden vectors: inputs, and the outputs of the program for them in this machine's runtime.

With the program they are ExecuTorch's bundled program (`.bpte`), which upstream's runners verify. Layout:
`bundled_program_schema.fbs` of ExecuTorch 1.5, version 2 of its format, identifier `BP08`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from micronpu.base.arguments import check_text
from micronpu.base.arrays import Array
from micronpu.base.errors import ModelError
from micronpu.base.texts import file_name, plural
from micronpu.emit.flatbuffer_tables import Fields, FlatbufferWriter, Number, Vector
from micronpu.program.io import VECTORS, ProgramIO
from micronpu.program.pte import ELEMENT_TYPES

Run: TypeAlias = Callable[[Sequence[Array]], Sequence[Array]]


@dataclass(frozen=True)
class Vectors:
    """Inputs with their outputs.

    Attributes:
        inputs, outputs: for each vector an array per input or output, of its shape and type.
        source: origin of the inputs, as a clause.
    """

    inputs: tuple[tuple[Array, ...], ...]
    outputs: tuple[tuple[Array, ...], ...]
    source: str

    def __len__(self) -> int:
        return len(self.inputs)


def from_arrays(
    arrays: Mapping[str, Array], inputs: Sequence[ProgramIO], outputs: Sequence[ProgramIO], run: Run, source: str
) -> Vectors:
    """Return vectors from a user's arrays: one per input in order, with a row per vector; ``output_0`` and so on may
    follow.

    Floats for an integer input are quantized if its scale is known.
    """
    for name in arrays:
        check_text("vectors", name, "a list of arrays by name")
    given = {n: a for n, a in arrays.items() if not n.startswith("output")}
    wanted = {n: a for n, a in arrays.items() if n.startswith("output")}
    if len(given) != len(inputs):
        file = source.rpartition(":")[0] if ".npz:" in source else source
        raise ModelError(
            f"{source} holds {plural(len(given), 'array')} for inputs ({', '.join(given) or 'none'}), but the program "
            f"has {plural(len(inputs), 'input')}.",
            hint=f"--vectors {file}:{','.join([*list(given)[: len(inputs)], *wanted])}"
            if file.endswith(".npz") and len(given) > len(inputs)
            else "one array per input, in order; arrays called output_0 and so on are the expected outputs",
        )
    columns = [_rows(a, b, f"the array {n} of {source}") for (n, a), b in zip(given.items(), inputs, strict=True)]
    if wanted and len(wanted) != len(outputs):
        raise ModelError(
            f"{source} holds {plural(len(wanted), 'array')} for outputs, but the program has "
            f"{plural(len(outputs), 'output')}.",
            hint="all of them, output_0 and so on, or none",
        )
    expected = [
        _rows(a, b, f"the array {n} of {source}") for (n, a), b in zip(sorted(wanted.items()), outputs, strict=False)
    ]
    counts = {len(c) for c in (*columns, *expected)}
    if len(counts) != 1 or counts == {0}:
        raise ModelError(
            f"The arrays of {source} have different numbers of rows: {', '.join(map(str, sorted(counts)))}.",
            hint="one row per vector, at least one",
        )
    rows = tuple(zip(*columns, strict=True))
    results = tuple(zip(*expected, strict=True)) if expected else tuple(tuple(run(row)) for row in rows)
    return Vectors(rows, results, file_name(source))  # of files that are built elsewhere


def _rows(array: Array, io: ProgramIO, what: str) -> list[Array]:
    """Return the rows of an array, each with the shape and type of an input or output."""
    shape, dtype = io.tensor.shape, np.dtype(io.tensor.dtype)
    array = io.taken(array)
    if array.dtype != dtype:
        raise ModelError(
            f"The elements of {what} are {array.dtype}, but the {io.name.replace('_', ' ')} of the program is {dtype}.",
            hint=f"array.astype(numpy.{dtype})",
        )
    # A row per vector: [N, 1, ...] is split into N of [1, ...], and [N, *shape] into N of shape.
    if array.ndim == len(shape) and shape and shape[0] == 1 and array.shape[1:] == shape[1:]:
        return [array[i : i + 1] for i in range(len(array))]
    if array.shape[1:] == shape and array.ndim == len(shape) + 1:
        return list(array)
    if array.shape == shape:
        return [array]
    raise ModelError(
        f"The shape of {what} is {list(array.shape)}, but the {io.name.replace('_', ' ')} of the program is "
        f"{list(shape)}.",
        hint=f"an array of shape [N, {', '.join(map(str, shape[1:] if shape and shape[0] == 1 else shape))}]",
    )


def from_rows(rows: Sequence[Sequence[Array]], inputs: Sequence[ProgramIO], run: Run, source: str) -> Vectors:
    """Return vectors from the first few inputs of the program."""
    taken = tuple(
        tuple(_rows(np.asarray(a), b, source)[0] for a, b in zip(row, inputs, strict=True)) for row in rows[:VECTORS]
    )
    return Vectors(taken, tuple(tuple(run(row)) for row in taken), source)


def made_up(inputs: Sequence[ProgramIO], run: Run) -> Vectors:
    """Return vectors that cover the range of each input, the same on every machine, for a program without data.

    Indices and booleans are zeros, since other values may be out of range.
    """
    rows = tuple(tuple(_made(io, vector, number) for number, io in enumerate(inputs)) for vector in range(VECTORS))
    return Vectors(rows, tuple(tuple(run(row)) for row in rows), "pseudo-random numbers over the range of each input")


def _made(io: ProgramIO, vector: int, number: int) -> Array:
    # A full-period linear congruential generator (Numerical Recipes), whose upper bits are used.
    seed = 1 + vector + 97 * number
    state, words = seed & 0xFFFFFFFF, np.empty(io.elements, np.uint32)
    for i in range(io.elements):
        state = (1664525 * state + 1013904223) & 0xFFFFFFFF
        words[i] = state >> 8
    part = words.astype(np.float64) / (1 << 24)
    dtype = np.dtype(io.tensor.dtype)
    if io.is_integer:
        limits = np.iinfo(dtype)
        values = np.floor(limits.min + part * (int(limits.max) - int(limits.min) + 1))
    elif dtype.kind == "f":
        scale, zero, low, high = io.qparams or (1 / 128, 0, -128, 127)
        values = scale * (low - zero + part * (high - low))
    else:
        values = np.zeros(io.elements)
    return np.asarray(values, dtype).reshape(io.tensor.shape)


_IDENTIFIER = b"BP08"
_VERSION = 2
_TENSOR = 1  # of the union ValueUnion
_PROGRAM_ALIGNMENT, _DATA_ALIGNMENT = 32, 16
_NUMBERS = {name: number for number, name in ELEMENT_TYPES.items()}


def bundle(
    program: bytes, method: str, inputs: Sequence[ProgramIO], outputs: Sequence[ProgramIO], vectors: Vectors
) -> bytes:
    """Return the bytes of the bundled program."""
    cases = [
        {
            side: Vector("tables", [_value(io, array) for io, array in zip(tensors, arrays, strict=True)])
            for side, (tensors, arrays) in enumerate(((inputs, row), (outputs, expected)))
        }
        for row, expected in zip(vectors.inputs, vectors.outputs, strict=True)
    ]
    writer = FlatbufferWriter()
    suites = Vector("tables", [{0: method, 1: Vector("tables", cases)}])
    root = {0: Number("Uint32", _VERSION), 1: suites, 2: Vector("bytes", program, _PROGRAM_ALIGNMENT)}
    return writer.finish(writer.table(root), _IDENTIFIER)


def _value(io: ProgramIO, array: Array) -> Fields:
    tensor = {
        0: Number("Int8", _NUMBERS[io.tensor.dtype]),
        1: Vector("Int32", io.tensor.shape),
        2: Vector("bytes", io.flat(array).tobytes(), _DATA_ALIGNMENT),
        3: Vector("bytes", bytes(io.tensor.dim_order)),
    }
    return {0: Number("Uint8", _TENSOR), 1: tensor}
