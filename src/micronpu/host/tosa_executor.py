"""Check and run the TOSA program of a partition on the host, bit-exact to TOSA's reference model.

The kernels rely on the number, types and shapes of an operator's operands; a program with wrong ones raises an error.
Every field of every table is checked, and unknown ones are refused; the requirements of operators are in
`micronpu.host.tosa_rules`. A traced run reports one operator, the program as a whole.
"""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from micronpu.base.arrays import Array
from micronpu.base.errors import PayloadError
from micronpu.base.flatbuffer import CorruptFlatbufferError, Table, Vector, need, root
from micronpu.container.payload import bad_payload
from micronpu.emit import tosa_schema as schema
from micronpu.emit.tosa_file import NUMPY, SHAPE
from micronpu.emit.tosa_schema import IDENTIFIER
from micronpu.host.litert_executor import Buffer, HostProgram, Mode, OperatorTrace, PartitionIO, check_buffers
from micronpu.host.tosa_rules import check_call, computed
from micronpu.host.tosa_run import WIDTHS, Operand, TosaCall, value_of

__all__ = ["IDENTIFIER", "TosaProgram"]


class TosaProgram(HostProgram):
    """One TOSA program with one block, ready to run; there is only one set of kernels, in any mode."""

    def __init__(self, model: bytes, mode: Mode) -> None:
        checked = check_tosa(model)
        self._names = [[name for name, _ in io] for io in (checked.inputs, checked.outputs)]
        self.inputs, self.outputs = (tuple(_io(t) for _, t in io) for io in (checked.inputs, checked.outputs))
        self.num_operators, self._steps = checked.num_operators, checked.steps
        self._constants = {name: value_of(operand) for name, operand in checked.constants.items()}
        self._last = {name: step.output for step in self._steps for name in step.inputs}

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
            for step in self._steps:
                given = [values[n] if n in values else self._constants[n] for n in step.inputs]
                values[step.output] = computed(step.name, step.call, given)
                for name in step.inputs:  # free values after their last use
                    if self._last[name] == step.output and name not in self._names[1]:
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


def _io(tensor: Operand) -> PartitionIO:
    if tensor.dtype == "INT48":
        raise bad_payload(f"The TOSA program passes {tensor.dtype}, which no program does.")
    return PartitionIO(tensor.shape, NUMPY[tensor.dtype])


_HINT = "copy the file again, or compile the model again"
_MOST_AXES = 6
"""MAX_RANK of the specification's level 8K."""
_MOST_ELEMENTS = 1 << 28
"""Maximum number of elements of all tensors together; an element takes up to eight bytes of memory."""


_ALWAYS: dict[type[IntEnum], tuple[IntEnum, ...]] = {
    schema.Graph: (schema.Graph.VERSION, schema.Graph.REGIONS),
    schema.Version: (),
    schema.Software: (schema.Software.MODIFIER,),
    schema.Compatibility: (schema.Compatibility.READER,),
    schema.Region: tuple(schema.Region),
    schema.Block: tuple(schema.Block),
    schema.Tensor: (schema.Tensor.NAME, schema.Tensor.SHAPE, schema.Tensor.DATA, schema.Tensor.VARIABLE_NAME),
    schema.Shape: (schema.Shape.NAME, schema.Shape.DATA),
    schema.Operator: (schema.Operator.INPUTS, schema.Operator.OUTPUTS),
    schema.Location: tuple(schema.Location),
}
"""Fields that readers require, empty or not; others may be absent."""


@dataclass(frozen=True)
class TosaStep:
    """An operator of a program: names of its operands and result, and its checked call."""

    name: str
    inputs: tuple[str, ...]
    output: str
    call: TosaCall


@dataclass(frozen=True)
class CheckedTosa:
    """A valid program: inputs and outputs in order, of which an output may occur twice, the number of operators with
    constants, constants by name, and all other operators in order."""

    inputs: tuple[tuple[str, Operand], ...]
    outputs: tuple[tuple[str, Operand], ...]
    num_operators: int
    constants: dict[str, Operand]
    steps: tuple[TosaStep, ...]


def check_tosa(model: bytes | memoryview) -> CheckedTosa:
    """Check a TOSA program; raise `PayloadError` if it is invalid."""
    try:
        graph = root(model, schema.IDENTIFIER)
        _check_head(graph)
        region = _only(graph.vector(schema.Graph.REGIONS), "regions")
        _check_fields(region, schema.Region, "the region")
        _text(region, schema.Region.NAME)
        return _BlockCheck(_only(region.vector(schema.Region.BLOCKS), "blocks")).check()
    except CorruptFlatbufferError as error:
        raise PayloadError(f"The TOSA program inside the payload is corrupted: {error}.", hint=_HINT) from None


def _only(vector: Vector, what: str) -> Table:
    need(vector.length == 1, f"it has {vector.length} {what}, where one is expected")
    return vector.table(0)


def _check_fields(table: Table, known: type[IntEnum], where: str) -> None:
    found = set(table.fields())
    need(found <= set(known), f"{where} has the unknown field {max(found, default=0)}")
    missing = [field.name.lower().replace("_", " ") for field in _ALWAYS[known] if field not in found]
    need(not missing, f"{where} has no {', '.join(missing)}")


def _text(table: Table, field: int) -> str:
    """A string field with a terminating zero, which C readers require."""
    vector = table.vector(field)
    if not table.offset(field):
        return ""
    _check_end(vector)
    return table.string(field)


def _check_end(text: Vector) -> None:
    end = text.start + text.length
    need(end < len(text.data) and not text.data[end], "a text does not end")


def _names(table: Table, field: int) -> list[str]:
    vector = table.vector(field)
    names = list(vector.strings())
    for index, name in enumerate(vector.tables()):
        start = name.position + 4
        _check_end(Vector(vector.data, start, int.from_bytes(vector.data[name.position : start], "little")))
        need(names[index], "a name is empty")
    return names


def _check_head(graph: Table) -> None:
    """Check the versions; they do not affect results."""
    _check_fields(graph, schema.Graph, "the program")
    version, software = graph.table(schema.Graph.VERSION), graph.table(schema.Graph.SOFTWARE)
    if version is not None:
        _check_fields(version, schema.Version, "its version")
        for number in schema.Version:
            version.integer(number, "<B" if number is schema.Version.DRAFT else "<i")
    compatibility, readers = graph.table(schema.Graph.COMPATIBILITY), None
    if compatibility is not None:
        _check_fields(compatibility, schema.Compatibility, "what it asks of readers")
        need(not compatibility.integer(schema.Compatibility.FEATURES, "<Q"), "it asks readers for features")
        readers = compatibility.table(schema.Compatibility.READER)
    for table in (software, readers):
        if table is not None:
            _check_fields(table, schema.Software, "a version of software")
            for field in (schema.Software.MAJOR, schema.Software.MINOR, schema.Software.MICRO):
                table.integer(field)
            _text(table, schema.Software.MODIFIER)


class _BlockCheck:
    """The block of a program: its tensors, and its operators in their order."""

    def __init__(self, block: Table) -> None:
        self._block = block
        self._types = {kind.value: kind.name for kind in schema.DType}
        self._operators = {kind.value: kind.name for kind in schema.Op}
        self._steps: list[TosaStep] = []
        self._constants: dict[str, Operand] = {}

    def check(self) -> CheckedTosa:
        """Check that every operator reads values that exist before it."""
        _check_fields(self._block, schema.Block, "the block")
        _text(self._block, schema.Block.NAME)
        known = self._known()
        inputs, outputs = (_names(self._block, field) for field in (schema.Block.INPUTS, schema.Block.OUTPUTS))
        for name in (*inputs, *outputs):
            need(name in known and known[name].dtype != SHAPE, f"it has no tensor {name!r}")
        need(len(set(inputs)) == len(inputs), "an input is listed twice")
        need(not any(known[name].data for name in inputs), "an input is a constant")
        ready = set(inputs)
        operators = list(self._block.vector(schema.Block.OPERATORS).tables())
        for number, operator in enumerate(operators):
            self._check_operator(operator, number, known, ready)
        for name in outputs:
            need(name in ready, f"nothing makes its output {name!r}")
        io = [tuple((n, known[n]) for n in names) for names in (inputs, outputs)]
        return CheckedTosa(io[0], io[1], len(operators), self._constants, tuple(self._steps))

    def _known(self) -> dict[str, Operand]:
        known: dict[str, Operand] = {}
        for field, read in ((schema.Block.TENSORS, self._tensor), (schema.Block.SHAPES, self._sizes)):
            for table in self._block.vector(field).tables():
                name = _text(table, schema.Tensor.NAME)
                need(name and name not in known, f"two values are called {name!r}")
                known[name] = read(table, name)
        elements = sum(math.prod(value.shape) for value in known.values())
        need(elements <= _MOST_ELEMENTS, f"its tensors have {elements} elements")
        return known

    def _tensor(self, table: Table, name: str) -> Operand:
        where = f"its tensor {name!r}"
        _check_fields(table, schema.Tensor, where)
        shape, number = table.vector(schema.Tensor.SHAPE).integers(), table.integer(schema.Tensor.TYPE, "<I")
        dtype = self._types.get(number, f"of the unknown type {number}")
        need(dtype in WIDTHS and dtype != SHAPE, f"{where} is {dtype}, which no program has")
        fits = len(shape) <= _MOST_AXES and all(n >= 1 for n in shape)
        need(fits, f"{where} has the shape {list(shape)}")
        flags = (table.integer(field, "<B") for field in (schema.Tensor.VARIABLE, schema.Tensor.UNRANKED))
        need(not any(flags), f"{where} is a variable, or without axes")
        need(not _text(table, schema.Tensor.VARIABLE_NAME), f"{where} is a variable")
        need(not table.vector(schema.Tensor.SCALES).length, f"{where} has scales")
        return Operand(dtype, shape, _data(table, schema.Tensor.DATA, math.prod(shape) * WIDTHS[dtype], where))

    def _sizes(self, table: Table, name: str) -> Operand:
        where = f"its shape {name!r}"
        _check_fields(table, schema.Shape, where)
        rank = table.integer(schema.Shape.RANK, "<I")
        need(rank <= 2 * _MOST_AXES, f"{where} has {rank} sizes")
        data = _data(table, schema.Shape.DATA, rank * WIDTHS[SHAPE], where)
        need(data is not None or not rank, f"{where} has no sizes")
        return Operand(SHAPE, (rank,), data or b"")

    def _check_operator(self, table: Table, number: int, known: dict[str, Operand], ready: set[str]) -> None:
        op = table.integer(schema.Operator.OP, "<I")
        name = self._operators.get(op, "of an unknown kind")
        where = f"its operator {number} ({name})"
        _check_fields(table, schema.Operator, where)
        # The schema numbers attributes like operators.
        need(table.integer(schema.Operator.ATTRIBUTE_TYPE, "<B") == op, f"{where} has attributes of another")
        attribute, location = table.table(schema.Operator.ATTRIBUTE), table.table(schema.Operator.LOCATION)
        if attribute is None or location is None:
            raise CorruptFlatbufferError(f"{where} is not whole")
        _check_fields(location, schema.Location, where)
        _text(location, schema.Location.TEXT)
        read, made = _names(table, schema.Operator.INPUTS), _names(table, schema.Operator.OUTPUTS)
        for operand in read:
            need(operand in ready, f"{where} reads {operand!r}, which nothing has made")
        need(len(made) == 1, f"{where} makes {len(made)} values")
        (result,) = made
        need(result in known and result not in ready, f"{where} makes {result!r}, which is unknown or made already")
        ready.add(result)
        if name in ("CONST", "CONST_SHAPE"):
            is_constant = known[result].data is not None and (name == "CONST_SHAPE") == (known[result].dtype == SHAPE)
            need(not read and is_constant, f"{where} is none")
            need(not attribute.fields(), f"{where} has an unknown attribute")
            self._constants[result] = known[result]
            return
        need(known[result].data is None, f"{where} makes {result!r}, which is a constant")
        try:
            call = TosaCall([known[n] for n in read], known[result], attribute)
            check_call(name, call)
        except CorruptFlatbufferError as error:
            raise CorruptFlatbufferError(f"{where} is none: {error}") from None
        self._steps.append(TosaStep(name, tuple(read), result, call))


def _data(table: Table, field: int, size: int, where: str) -> bytes | None:
    """The value of a constant; None for computed tensors."""
    vector = table.vector(field)
    if not vector.length:
        return None
    need(vector.length == size, f"{where} of {size} bytes has {vector.length}")
    return bytes(vector.data[vector.start : vector.start + size])
