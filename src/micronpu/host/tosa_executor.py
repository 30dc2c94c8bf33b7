"""Run the TOSA program of a partition on the host, bit-exact to TOSA's reference model.

A program is read once, and its operators run in NumPy, which checks its operands itself: of a damaged program, an
operator fails, or its result is not what is declared. A traced run reports one operator, the program as a whole.
"""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from micronpu.base.arrays import Array
from micronpu.base.errors import PayloadError
from micronpu.base.flatbuffer import CorruptFlatbufferError, Table, Vector, need, root
from micronpu.container.payload import bad_payload
from micronpu.emit import tosa_schema as schema
from micronpu.emit.tosa_file import NUMPY, SHAPE
from micronpu.emit.tosa_schema import IDENTIFIER
from micronpu.host.litert_executor import Buffer, HostProgram, Mode, OperatorTrace, PartitionIO, check_buffers
from micronpu.host.tosa_run import OPERATORS, TosaCall, computed
from micronpu.ir.types import Shape

__all__ = ["IDENTIFIER", "TosaProgram"]

_BYTES = {"BOOL": 1, "INT8": 1, "INT16": 2, "INT32": 4, "INT48": 6, SHAPE: 8}
"""Bytes of an element in the file."""
_MOST_AXES = 6
"""MAX_RANK of the specification's level 8K."""
_MOST_ELEMENTS = 1 << 28
"""Maximum number of elements of all tensors together; an element takes up to eight bytes of memory."""
_CONSTANTS = ("CONST", "CONST_SHAPE")


@dataclass(frozen=True)
class _Operand:
    """A tensor or a list of sizes: element type, shape, and the value of a constant as stored in the file."""

    dtype: str
    shape: Shape
    data: bytes

    @property
    def io(self) -> PartitionIO:
        need(self.dtype not in ("INT48", SHAPE) and not self.data, f"an input or output is {self.dtype}, or a constant")
        return PartitionIO(self.shape, NUMPY[self.dtype])

    @property
    def value(self) -> Array:
        """The constant; 48-bit values in int64."""
        size = math.prod(self.shape)
        need(len(self.data) == size * _BYTES[self.dtype], f"a constant of {size} elements has {len(self.data)} bytes")
        if self.dtype == "INT48":
            wide = np.zeros((size, 8), np.uint8)
            wide[:, 2:] = np.frombuffer(self.data, np.uint8).reshape(-1, 6)
            return np.right_shift(wide.view("<i8"), 16).reshape(self.shape)
        stored = np.frombuffer(self.data, np.uint8 if self.dtype == "BOOL" else NUMPY.get(self.dtype, np.int64))
        return stored.reshape(self.shape).astype(NUMPY.get(self.dtype, np.int64), copy=False)


class TosaProgram(HostProgram):
    """One TOSA program with one block, ready to run; there is only one set of kernels, in any mode."""

    def __init__(self, model: bytes, mode: Mode) -> None:
        with _reading():
            region = _only(root(model, IDENTIFIER).vector(schema.Graph.REGIONS), "regions")
            block = _only(region.vector(schema.Region.BLOCKS), "blocks")
            known = dict(_operands(block))
            elements = sum(math.prod(operand.shape) for operand in known.values())
            need(elements <= _MOST_ELEMENTS, f"its tensors have {elements} elements")
            self._names = [[*block.vector(field).strings()] for field in (schema.Block.INPUTS, schema.Block.OUTPUTS)]
            for name in (*self._names[0], *self._names[1]):
                need(name in known, f"it has no tensor {name!r}")
            self.inputs, self.outputs = (tuple(known[name].io for name in names) for names in self._names)
            self._constants: dict[str, Array] = {}
            self._calls = list(self._read(block, known))
            self.num_operators = block.vector(schema.Block.OPERATORS).length
        self._last = {name: call.output for call in self._calls for name in call.inputs}

    def _read(self, block: Table, known: Mapping[str, _Operand]) -> Iterator[TosaCall]:
        """Yield the operators, each of which reads values that exist before it and makes one; keep the constants."""
        ready, names = {*self._names[0]}, {op.value: op.name for op in schema.Op}
        for number, table in enumerate(block.vector(schema.Block.OPERATORS).tables()):
            name = names.get(table.integer(schema.Operator.OP, "<I"), "of an unknown kind")
            where, attributes = f"its operator {number} ({name})", table.table(schema.Operator.ATTRIBUTE)
            need(name in OPERATORS or name in _CONSTANTS, f"{where} is in no program")
            read, made = (tuple(table.vector(f).strings()) for f in (schema.Operator.INPUTS, schema.Operator.OUTPUTS))
            for operand in read:
                need(operand in ready, f"{where} reads {operand!r}, which nothing has made")
            need(len(made) == 1 and known.keys() - ready >= {*made}, f"{where} makes {', '.join(made) or 'nothing'}")
            ready.add(made[0])
            result = known[made[0]]
            if name in _CONSTANTS:
                self._constants[made[0]] = result.value
            else:
                need(attributes is not None and result.dtype != SHAPE and not result.data, f"{where} is not whole")
                assert attributes is not None
                yield TosaCall(name, read, made[0], result.dtype, result.shape, attributes)
        for name in self._names[1]:
            need(name in ready, f"nothing makes its output {name!r}")

    def run(self, inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> None:
        self._compute(inputs, outputs)

    def run_traced(
        self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], sink: Callable[[OperatorTrace], None]
    ) -> None:
        start = time.perf_counter_ns()
        made = self._compute(inputs, outputs)
        elapsed = time.perf_counter_ns() - start
        sink(OperatorTrace(self.num_operators - 1, "TOSA", elapsed, tuple(made)))

    def call(self, *arrays: Array) -> list[Array]:
        """Return the outputs for input arrays of the program's shapes and types."""
        for number, (array, tensor) in enumerate(zip(arrays, self.inputs, strict=True)):
            if (array.shape, array.dtype) != (tensor.shape, tensor.numpy_type):
                raise PayloadError(
                    f"Input {number} of the NPU partition is {tensor.numpy_type}{list(tensor.shape)}, and was given "
                    f"{array.dtype}{list(array.shape)}.",
                    hint="an array of that type and shape",
                )
        values: dict[str, Array] = dict(zip(self._names[0], arrays, strict=True))
        try:
            with _reading():
                for call in self._calls:
                    given = [values[n] if n in values else self._constants[n] for n in call.inputs]
                    values[call.output] = computed(call, given)
                    for name in call.inputs:  # free values after their last use
                        if self._last[name] == call.output and name not in self._names[1]:
                            values.pop(name, None)
        except MemoryError as error:
            raise bad_payload(f"The TOSA program needs more memory than there is: {error}.") from None
        known = {**self._constants, **values}
        return [np.asarray(known[name], order="C") for name in self._names[1]]

    def _compute(self, inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> list[Array]:
        check_buffers("Input", inputs, self.inputs)
        check_buffers("Output", outputs, self.outputs)
        made = self.call(
            *(
                np.frombuffer(ctypes.string_at(buffer.address, buffer.size), tensor.numpy_type).reshape(tensor.shape)
                for buffer, tensor in zip(inputs, self.inputs, strict=True)
            )
        )
        for array, buffer in zip(made, outputs, strict=True):
            ctypes.memmove(buffer.address, array.ctypes.data, buffer.size)
        return made


@contextmanager
def _reading() -> Iterator[None]:
    try:
        yield
    except CorruptFlatbufferError as error:
        raise PayloadError(
            f"The TOSA program inside the payload is corrupted: {error}.",
            hint="copy the file again, or compile the model again",
        ) from None


def _only(vector: Vector, what: str) -> Table:
    need(vector.length == 1, f"it has {vector.length} {what}, where one is expected")
    return vector.table(0)


def _operands(block: Table) -> Iterator[tuple[str, _Operand]]:
    """Yield the tensors and lists of sizes of a block, by name."""
    types = {kind.value: kind.name for kind in schema.DType}
    for table in block.vector(schema.Block.TENSORS).tables():
        shape, number = table.vector(schema.Tensor.SHAPE).integers(), table.integer(schema.Tensor.TYPE, "<I")
        name, dtype = table.string(schema.Tensor.NAME), types.get(number, f"of the unknown type {number}")
        need(dtype in NUMPY, f"its tensor {name!r} is {dtype}, which no program has")
        fits = len(shape) <= _MOST_AXES and all(n >= 1 for n in shape)
        need(fits, f"its tensor {name!r} has the shape {list(shape)}")
        yield name, _Operand(dtype, shape, _bytes_of(table.vector(schema.Tensor.DATA)))
    for table in block.vector(schema.Block.SHAPES).tables():
        count = table.integer(schema.Shape.RANK, "<I")
        yield table.string(schema.Shape.NAME), _Operand(SHAPE, (count,), _bytes_of(table.vector(schema.Shape.DATA)))


def _bytes_of(vector: Vector) -> bytes:
    return bytes(vector.data[vector.start : vector.start + vector.length])
