"""Runs the TOSA program of a partition on the host, through TOSA's reference model.

The results are the reference model's, bit for bit.  It runs a program as a whole, so a traced run reports one operator.
The interface is that of `micronpu.host.litert_executor.LiteRtProgram`.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from micronpu.base.errors import PayloadError, RuntimeUnavailableError
from micronpu.base.flatbuffer import CorruptFlatbufferError, Table, root
from micronpu.base.installed import HOST_TOOLS
from micronpu.host.litert_executor import Buffer, Mode, OperatorTrace, check_buffers, scalar_type_of

IDENTIFIER = b"TOSA"
"""Of the flatbuffer, at its fifth byte."""

_COMPILE_AGAIN = "compile the model again with this version of micronpu"
_NUMPY = {"BOOL": np.bool_, "INT8": np.int8, "INT16": np.int16, "INT32": np.int32}
# Fields of the schema: TosaGraph, TosaRegion, TosaBasicBlock, TosaTensor, Version.
_VERSION, _REGIONS = 0, 1
_BLOCKS = 1
_OPERATORS, _TENSORS, _INPUTS, _OUTPUTS, _SHAPES = 1, 2, 3, 4, 5
_NAME, _SHAPE, _TYPE = 0, 1, 2
_READ, _MADE = 3, 4  # of TosaOperator
_MINOR, _DRAFT = 1, 3


@dataclass(frozen=True)
class _Border:
    """An input or output of the program."""

    shape: tuple[int, ...]
    numpy_type: np.dtype[Any]

    @property
    def size(self) -> int:
        """Bytes."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.numpy_type.itemsize

    @property
    def scalar_type(self) -> int:
        """ExecuTorch's number of the element type."""
        return scalar_type_of(self.numpy_type)


class TosaProgram:
    """One TOSA program, ready to run.

    Args:
        model: TOSA flatbuffer with one block.
        mode: the reference model has one way to compute, so that the fast mode makes no difference.
        num_inputs, num_outputs: what the payload's header says; checked.

    Raises:
        PayloadError: the model cannot be read, or its inputs and outputs do not match.
    """

    def __init__(self, model: bytes, mode: Mode, num_inputs: int, num_outputs: int) -> None:
        try:
            import tosa_serializer  # noqa: F401  (and the package `tosa` with it)
            from tosa_reference_model import GraphStatus, run
        except ImportError as error:
            raise RuntimeUnavailableError(
                f"The program's graph is in TOSA, whose reference model cannot be imported here: {error}.",
                hint=HOST_TOOLS,
            ) from error
        self._run, self._valid = run, GraphStatus.TOSA_VALID
        try:
            self._inputs, self._outputs, self.num_operators = _borders(model)
            self._model = _at_the_readers_version(model)
        except CorruptFlatbufferError as error:
            raise PayloadError(
                f"The TOSA program inside the payload is corrupted: {error}.", hint=_COMPILE_AGAIN
            ) from error
        found = (len(self._inputs), len(self._outputs))
        if found != (num_inputs, num_outputs):
            raise PayloadError(
                f"The payload has {num_inputs} inputs and {num_outputs} outputs, but the TOSA program inside has "
                f"{found[0]} and {found[1]}.",
                hint=_COMPILE_AGAIN,
            )

    @property
    def inputs(self) -> tuple[_Border, ...]:
        """Sizes and element types of the inputs."""
        return tuple(self._inputs)

    @property
    def outputs(self) -> tuple[_Border, ...]:
        """Sizes and element types of the outputs."""
        return tuple(self._outputs)

    def run(self, inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> None:
        """Compute all outputs. Inputs and outputs are in the order of the TOSA program.

        Raises:
            PayloadError: a buffer does not fit its tensor, or the reference model fails.
        """
        self._compute(inputs, outputs)

    def run_traced(
        self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], sink: Callable[[OperatorTrace], None]
    ) -> None:
        """Like `run`; `sink` is called once, with the last operator's index, since the program runs as a whole.

        Raises:
            PayloadError: as `run`.
        """
        start = time.perf_counter_ns()
        made = self._compute(inputs, outputs)
        elapsed = time.perf_counter_ns() - start
        sink(OperatorTrace(self.num_operators - 1, "TOSA", elapsed, tuple(made)))

    def call(self, *arrays: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
        """The outputs for inputs as arrays of the program's shapes and types.

        Raises:
            PayloadError: the reference model fails.
        """
        try:
            made, status = self._run(self._model, [np.ascontiguousarray(array) for array in arrays])
        except (ValueError, RuntimeError) as error:
            detail = " ".join(str(error).split()).rstrip(".")
            raise PayloadError(f"TOSA's reference model failed: {detail}.", hint=_COMPILE_AGAIN) from error
        if status != self._valid:
            raise PayloadError(
                f"The TOSA program has no defined result for these inputs: the reference model says {status.name}.",
                hint="calibrate with data that covers the values that occur",
            )
        return [
            np.ascontiguousarray(array, border.numpy_type).reshape(border.shape)
            for array, border in zip(made, self._outputs, strict=True)
        ]

    def _compute(self, inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> list[np.ndarray[Any, Any]]:
        check_buffers("Input", inputs, self._inputs)
        check_buffers("Output", outputs, self._outputs)
        made = self.call(
            *(
                np.frombuffer(ctypes.string_at(buffer.address, buffer.size), border.numpy_type).reshape(border.shape)
                for buffer, border in zip(inputs, self._inputs, strict=True)
            )
        )
        for array, buffer in zip(made, outputs, strict=True):
            ctypes.memmove(buffer.address, array.ctypes.data, buffer.size)
        return made


def _only(table: Table, field: int, what: str) -> Table:
    vector = table.vector(field)
    if vector.length != 1:
        raise CorruptFlatbufferError(f"it has {vector.length} {what}, where one is expected")
    return vector.table(0)


def _borders(model: bytes) -> tuple[list[_Border], list[_Border], int]:
    """Inputs and outputs of a TOSA model, and how many operators it has."""
    from tosa.DType import DType

    names = {value: name for name, value in vars(DType).items() if not name.startswith("_")}
    block = _only(_only(root(model, IDENTIFIER), _REGIONS, "regions"), _BLOCKS, "blocks")
    tensors = {tensor.string(_NAME): tensor for tensor in block.vector(_TENSORS).tables()}

    def border(name: str) -> _Border:
        if name not in tensors:
            raise CorruptFlatbufferError(f"it has no tensor {name!r}")
        tensor = tensors[name]
        kind = names.get(tensor.integer(_TYPE, "<I"), "of an unknown type")
        if kind not in _NUMPY:
            raise CorruptFlatbufferError(f"its tensor {name!r} is {kind}, which no program passes")
        return _Border(tensor.vector(_SHAPE).integers(), np.dtype(_NUMPY[kind]))

    _check_order(block, tensors)
    inputs, outputs = ([border(name) for name in block.vector(field).strings()] for field in (_INPUTS, _OUTPUTS))
    return inputs, outputs, block.vector(_OPERATORS).length


def _check_order(block: Table, tensors: Mapping[str, Table]) -> None:
    """Every operator reads what is there before it: for a value that never comes the reference model waits."""
    known = {*tensors, *(shape.string(_NAME) for shape in block.vector(_SHAPES).tables())}
    ready = set(block.vector(_INPUTS).strings())
    for number, operator in enumerate(block.vector(_OPERATORS).tables()):
        for name in operator.vector(_READ).strings():
            if name not in ready:
                raise CorruptFlatbufferError(f"its operator {number} reads {name!r}, which nothing has made")
        for name in operator.vector(_MADE).strings():
            if name not in known or name in ready:
                raise CorruptFlatbufferError(f"its operator {number} makes {name!r}, which is unknown or made already")
            ready.add(name)
    if missing := set(block.vector(_OUTPUTS).strings()) - ready:
        raise CorruptFlatbufferError(f"nothing makes its output {min(missing)!r}")


def _at_the_readers_version(model: bytes) -> bytes:
    """The model under the specification's version that the reference model is of, which it would else complain about.

    The reference model reads 1.0 programs all the same, and computes the same; the complaint goes to standard output.
    """
    import tosa_serializer

    version = root(model, IDENTIFIER).table(_VERSION)
    patched = bytearray(model)
    known = (tosa_serializer.TOSA_VERSION_MINOR, tosa_serializer.TOSA_VERSION_DRAFT)
    for field, value in zip((_MINOR, _DRAFT), known, strict=True):
        position = version.offset(field) if version is not None else 0
        if position:  # an absent one has its default
            patched[position] = int(value)
    return bytes(patched)
