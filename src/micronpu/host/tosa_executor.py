"""Runs the TOSA program of a partition on the host, through TOSA's reference model.

The results are the reference model's, bit for bit.  It runs a program as a whole, so a traced run reports one operator.
The interface is that of `micronpu.host.litert_executor.LiteRtProgram`.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from micronpu.base.errors import PayloadError, RuntimeUnavailableError
from micronpu.base.flatbuffer import root
from micronpu.base.installed import HOST_TOOLS
from micronpu.base.quiet import libraries_say
from micronpu.host.litert_executor import Buffer, Mode, OperatorTrace, check_buffers, scalar_type_of
from micronpu.host.tosa_check import IDENTIFIER, TosaBorder, check_tosa

__all__ = ["IDENTIFIER", "TosaProgram"]

_COMPILE_AGAIN = "compile the model again with this version of micronpu"
_NUMPY = {"BOOL": np.bool_, "INT8": np.int8, "INT16": np.int16, "INT32": np.int32}
_VERSION = 0  # of TosaGraph; fields of Version:
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
        checked = check_tosa(model)
        self._inputs, self._outputs = ([_border(t) for t in borders] for borders in (checked.inputs, checked.outputs))
        self.num_operators, self._demands = checked.num_operators, checked.demands
        self._model = _at_the_readers_version(model)
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
        for number, demand in self._demands:
            low, high = (int(end) for end in (arrays[number].min(), arrays[number].max()))
            if not demand.low <= low <= high <= demand.high:
                raise PayloadError(
                    f"Input {number} of the NPU partition has {demand.what}: they are from {low} to {high}, and may be "
                    f"from {demand.low} to {demand.high}.",
                    hint="give it numbers of rows that there are",
                )
        is_defined = False
        try:
            # It says a line for every element without a result, past Python; here that is one sentence.
            with libraries_say(lambda line: is_defined):
                made, status = self._run(self._model, [np.ascontiguousarray(array) for array in arrays])
                is_defined = bool(status == self._valid)
        except (ValueError, RuntimeError) as error:
            detail = " ".join(str(error).split()).rstrip(".")
            raise PayloadError(f"TOSA's reference model failed: {detail}.", hint=_COMPILE_AGAIN) from error
        if not is_defined:
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


def _border(tensor: TosaBorder) -> _Border:
    if tensor.dtype not in _NUMPY:
        raise PayloadError(f"The TOSA program passes {tensor.dtype}, which no program does.", hint=_COMPILE_AGAIN)
    return _Border(tensor.shape, np.dtype(_NUMPY[tensor.dtype]))


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
