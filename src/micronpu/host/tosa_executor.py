"""Run the TOSA program of a partition on the host, bit-exact to TOSA's reference model.

A traced run reports one operator, the program as a whole. The interface is that of
`micronpu.host.litert_executor.LiteRtProgram`.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from micronpu.base.errors import PayloadError
from micronpu.emit.tosa_schema import IDENTIFIER
from micronpu.host.litert_executor import Buffer, Mode, OperatorTrace, check_buffers, scalar_type_of
from micronpu.host.tosa_check import TosaIO, check_tosa
from micronpu.host.tosa_run import computed, value_of

__all__ = ["IDENTIFIER", "TosaProgram"]

_COMPILE_AGAIN = "compile the model again with this version of micronpu"
_NUMPY = {"BOOL": np.bool_, "INT8": np.int8, "INT16": np.int16, "INT32": np.int32}


@dataclass(frozen=True)
class _PartitionIO:
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
        mode: ignored; there is only one set of kernels.
        num_inputs, num_outputs: counts from the payload's header; checked.

    Raises:
        PayloadError: the model cannot be read, or its inputs and outputs do not match.
    """

    def __init__(self, model: bytes, mode: Mode, num_inputs: int, num_outputs: int) -> None:
        checked = check_tosa(model)
        self._names = [[name for name, _ in io] for io in (checked.inputs, checked.outputs)]
        self._inputs, self._outputs = ([_io(t) for _, t in io] for io in (checked.inputs, checked.outputs))
        self.num_operators, self._steps = checked.num_operators, checked.steps
        self._constants = {name: value_of(operand) for name, operand in checked.constants.items()}
        self._last = {name: step.output for step in self._steps for name in step.inputs}
        found = (len(self._inputs), len(self._outputs))
        if found != (num_inputs, num_outputs):
            raise PayloadError(
                f"The payload has {num_inputs} inputs and {num_outputs} outputs, but the TOSA program inside has "
                f"{found[0]} and {found[1]}.",
                hint=_COMPILE_AGAIN,
            )

    @property
    def inputs(self) -> tuple[_PartitionIO, ...]:
        """Sizes and element types of the inputs."""
        return tuple(self._inputs)

    @property
    def outputs(self) -> tuple[_PartitionIO, ...]:
        """Sizes and element types of the outputs."""
        return tuple(self._outputs)

    def run(self, inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> None:
        """Compute all outputs. Inputs and outputs are in the order of the TOSA program.

        Raises:
            PayloadError: a buffer does not fit its tensor, or the result is undefined.
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
        """Return the outputs for input arrays of the program's shapes and types.

        Raises:
            PayloadError: the result is undefined.
        """
        for number, (array, tensor) in enumerate(zip(arrays, self._inputs, strict=True)):
            if (array.shape, array.dtype) != (tensor.shape, tensor.numpy_type):
                raise PayloadError(
                    f"Input {number} of the NPU partition is {tensor.numpy_type}{list(tensor.shape)}, and was given "
                    f"{array.dtype}{list(array.shape)}.",
                    hint="an array of that type and shape",
                )
        values: dict[str, np.ndarray[Any, Any]] = dict(zip(self._names[0], arrays, strict=True))
        try:
            for step in self._steps:
                given = [values[n] if n in values else self._constants[n] for n in step.inputs]
                values[step.output] = computed(step.name, step.call, given)
                for name in step.inputs:  # free values after their last use
                    if self._last[name] == step.output and name not in self._names[1]:
                        values.pop(name, None)
        except MemoryError as error:
            raise PayloadError(
                f"The TOSA program needs more memory than there is: {error}.", hint=_COMPILE_AGAIN
            ) from None
        known = {**self._constants, **values}
        return [np.asarray(known[name], order="C") for name in self._names[1]]

    def _compute(self, inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> list[np.ndarray[Any, Any]]:
        check_buffers("Input", inputs, self._inputs)
        check_buffers("Output", outputs, self._outputs)
        made = self.call(
            *(
                np.frombuffer(ctypes.string_at(buffer.address, buffer.size), tensor.numpy_type).reshape(tensor.shape)
                for buffer, tensor in zip(inputs, self._inputs, strict=True)
            )
        )
        for array, buffer in zip(made, outputs, strict=True):
            ctypes.memmove(buffer.address, array.ctypes.data, buffer.size)
        return made


def _io(tensor: TosaIO) -> _PartitionIO:
    if tensor.dtype not in _NUMPY:
        raise PayloadError(f"The TOSA program passes {tensor.dtype}, which no program does.", hint=_COMPILE_AGAIN)
    return _PartitionIO(tensor.shape, np.dtype(_NUMPY[tensor.dtype]))
