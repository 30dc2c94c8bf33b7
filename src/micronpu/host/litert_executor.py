"""Run the LiteRT program of a partition for any NPU: the functional simulator behind the plug-in.

There are two sets of kernels: LiteRT's reference kernels, which are bit-exact to micronpu's arithmetic, and the fast
kernels (XNNPACK), which round a few results differently (0.06 % of the elements of a large convolution by one LSB). A
traced run executes operator by operator, through single-operator models cut from the program, so that each operator has
its own time and values.

C++ passes memory as addresses; see `Buffer`.
"""

from __future__ import annotations

import ctypes
import math
import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntFlag
from typing import Any, NamedTuple, Protocol

import numpy as np

from micronpu.base.arrays import Array
from micronpu.base.errors import ModelError, RuntimeUnavailableError
from micronpu.container.litert_view import element_name, read_model
from micronpu.container.payload import bad_payload
from micronpu.host.litert_check import check_litert
from micronpu.program.pte import ELEMENT_TYPES

_WIDE_SOFTMAX = 512

NUMPY_TYPES: dict[int, type[np.generic]] = {
    number: np.dtype(name).type for number, name in ELEMENT_TYPES.items() if name != "bfloat16"
}
"""NumPy type of ExecuTorch's element type numbers (`ScalarType`)."""
_SCALAR_TYPES = {np.dtype(numpy_type): number for number, numpy_type in NUMPY_TYPES.items()}


def scalar_type_of(numpy_type: np.dtype[Any]) -> int:
    """Return ExecuTorch's number of a NumPy element type."""
    if numpy_type not in _SCALAR_TYPES:
        raise bad_payload(f"ExecuTorch has no element type for LiteRT's {numpy_type}.")
    return _SCALAR_TYPES[numpy_type]


class Mode(IntFlag):
    """Kernels and features of a run; the bits are part of the C interface.

    FAST: XNNPACK instead of the reference kernels. TRACED: prepare for `run_traced`. GRAPH: an Ethos-U program runs the
    integer graph that it carries, not its command stream.
    """

    REFERENCE = 0
    FAST = 1
    TRACED = 2
    GRAPH = 4


class Buffer(NamedTuple):
    """A tensor's memory: address, size in bytes, and ExecuTorch's number of its element type."""

    address: int
    size: int
    scalar_type: int


@dataclass(frozen=True)
class PartitionIO:
    """An input or output of a partition's program; ExecuTorch's number of its element type, and the index of a LiteRT
    tensor."""

    shape: tuple[int, ...]
    numpy_type: np.dtype[Any]
    index: int = 0
    scalar_type: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "scalar_type", scalar_type_of(self.numpy_type))

    @property
    def size(self) -> int:
        """Bytes."""
        return math.prod(self.shape) * self.numpy_type.itemsize


def check_buffers(what: str, buffers: Sequence[Buffer], tensors: Sequence[PartitionIO]) -> None:
    """Check that the memory passed to a partition fits the partition's inputs or outputs."""
    for position, (buffer, tensor) in enumerate(zip(buffers, tensors, strict=True)):
        if buffer.size == tensor.size and buffer.scalar_type == tensor.scalar_type:
            continue
        found = NUMPY_TYPES.get(buffer.scalar_type)
        passed = f"{buffer.size} bytes of {found.__name__ if found else 'an unknown type'}"
        raise bad_payload(
            f"{what} {position} of the NPU partition has {tensor.size} bytes of {tensor.numpy_type.name}, "
            f"but the program around it passes {passed}."
        )


@dataclass(frozen=True)
class OperatorTrace:
    """One operator of a traced run.

    Attributes:
        index: of the operator in the LiteRT program; the identifier in the delegate's debug handle map.
        name: LiteRT's, such as CONV_2D.
        nanoseconds: host time of the operator alone; unrelated to time on the NPU.
        outputs: its values, laid out as in the LiteRT program.
    """

    index: int
    name: str
    nanoseconds: int
    outputs: tuple[Array, ...]


class Executor(Protocol):
    """Runs the program of a partition on memory that the runtime provides; inputs and outputs are in its order."""

    inputs: Sequence[object]
    outputs: Sequence[object]

    @abstractmethod
    def run(self, inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> None:
        """Compute all outputs.

        Raises:
            PayloadError: a buffer does not fit its tensor, or a kernel fails.
        """

    @abstractmethod
    def run_traced(
        self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], sink: Callable[[OperatorTrace], None]
    ) -> None:
        """Like `run`; `sink` is called after each operation; for a TOSA program, after the last one."""


class HostProgram(Executor):
    """A LiteRT or TOSA program with its kernels, ready to run."""

    inputs: tuple[PartitionIO, ...]
    outputs: tuple[PartitionIO, ...]

    def outputs_of(self, inputs: Sequence[Array], sink: Callable[[OperatorTrace], None] | None = None) -> list[Array]:
        """Return the outputs, without shapes, for inputs with the program's bytes."""
        arrays = [np.ascontiguousarray(a) for a in inputs]
        made = [np.empty(math.prod(io.shape), io.numpy_type) for io in self.outputs]
        given, taken = (
            [Buffer(a.ctypes.data, a.nbytes, io.scalar_type) for a, io in zip(memories, tensors, strict=True)]
            for memories, tensors in ((arrays, self.inputs), (made, self.outputs))
        )
        if sink is None:
            self.run(given, taken)
        else:
            self.run_traced(given, taken, sink)
        return made


def _interpreter(model: bytes, mode: Mode) -> Any:
    try:
        from ai_edge_litert.interpreter import Interpreter, OpResolverType
    except ImportError as error:
        raise RuntimeUnavailableError(
            f"LiteRT, which simulates the NPU on the host, cannot be imported: {error}.",
            hint="pip install ai-edge-litert",
        ) from error
    resolver = OpResolverType.AUTO if Mode.FAST in mode else OpResolverType.BUILTIN_REF
    try:
        interpreter = Interpreter(model_content=model, experimental_op_resolver_type=resolver)
        interpreter.allocate_tensors()
    except (ValueError, RuntimeError) as error:
        raise bad_payload(f"LiteRT cannot load the program of the NPU partition: {_one_line(error)}.") from error
    return interpreter


class LiteRtProgram(HostProgram):
    """One LiteRT program with one subgraph and the kernels of a mode, ready to run."""

    def __init__(self, model: bytes, mode: Mode) -> None:
        check_litert(model)
        self._model = model
        self._mode = mode
        self._interpreter = _interpreter(model, mode)
        self.inputs = tuple(map(_io, self._interpreter.get_input_details()))
        self.outputs = tuple(map(_io, self._interpreter.get_output_details()))
        # Inputs are written directly into LiteRT's arena, whose address is fixed: shapes are static.
        self._addresses = [_address(self._interpreter, tensor) for tensor in self.inputs]
        self._in_parts = Mode.FAST not in mode and _has_wide_softmax(model)
        self._cuts = _cut(model, mode) if Mode.TRACED in mode or self._in_parts else None

    def run(self, inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> None:
        if self._in_parts:
            return self.run_traced(inputs, outputs, lambda trace: None)
        check_buffers("Input", inputs, self.inputs)
        check_buffers("Output", outputs, self.outputs)
        for tensor, address, buffer in zip(self.inputs, self._addresses, inputs, strict=True):
            if address is None:
                value = np.frombuffer(ctypes.string_at(buffer.address, buffer.size), tensor.numpy_type)
                self._interpreter.set_tensor(tensor.index, value.reshape(()))
            elif buffer.size:
                ctypes.memmove(address, buffer.address, buffer.size)
        _invoke(self._interpreter)
        for tensor, buffer in zip(self.outputs, outputs, strict=True):
            # The view must be released before the next invoke.
            if buffer.size:
                made = np.asarray(self._interpreter.tensor(tensor.index)())  # a scalar without axes
                ctypes.memmove(buffer.address, made.ctypes.data, buffer.size)
                del made

    def run_traced(
        self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], sink: Callable[[OperatorTrace], None]
    ) -> None:
        check_buffers("Input", inputs, self.inputs)
        check_buffers("Output", outputs, self.outputs)
        if self._cuts is None:
            self._cuts = _cut(self._model, self._mode)
        values: dict[int, Array] = {}
        for tensor, buffer in zip(self.inputs, inputs, strict=True):
            values[tensor.index] = np.frombuffer(ctypes.string_at(buffer.address, buffer.size), tensor.numpy_type)
        for cut in self._cuts:
            sink(cut.run(values))
        for tensor, buffer in zip(self.outputs, outputs, strict=True):
            # An output that no operator computes is a constant of the program.
            made = values[tensor.index] if tensor.index in values else self._interpreter.get_tensor(tensor.index)
            ctypes.memmove(buffer.address, np.ascontiguousarray(made).ctypes.data, buffer.size)


class _Cut:
    """One operator as a separate LiteRT model. It keeps its interpreter, so variable tensors keep their state."""

    def __init__(self, index: int, name: str, model: bytes, mode: Mode, inputs: list[int], outputs: list[int]) -> None:
        self.index = index
        self.name = name
        self.inputs = inputs
        self.outputs = outputs
        self._softmax = Mode.FAST not in mode and _has_wide_softmax(model)
        self._interpreter = _interpreter(model, mode)
        self._input_details = self._interpreter.get_input_details()
        self._output_details = self._interpreter.get_output_details()

    def run(self, values: dict[int, Array]) -> OperatorTrace:
        start = time.perf_counter_ns()
        if self._softmax:
            made = (_reference_softmax(values[self.inputs[0]], self._input_details[0], self._output_details[0]),)
            elapsed = time.perf_counter_ns() - start
        else:
            for tensor, detail in zip(self.inputs, self._input_details, strict=True):
                self._interpreter.set_tensor(detail["index"], values[tensor].reshape(detail["shape"]))
            start = time.perf_counter_ns()
            _invoke(self._interpreter)
            elapsed = time.perf_counter_ns() - start
            made = tuple(self._interpreter.get_tensor(detail["index"]) for detail in self._output_details)
        values.update(zip(self.outputs, made, strict=True))
        return OperatorTrace(self.index, self.name, elapsed, made)


def _has_wide_softmax(model: bytes) -> bool:
    """True if an int8 softmax may have a sum of exponentials of 512 or more.

    LiteRT's reference kernel then shifts by more than 31 bits, and an assertion in it ends the process.
    """
    view = read_model(model)
    inputs = (view.tensors[operator.inputs[0]] for operator in view.operators if operator.name == "SOFTMAX")
    return any(element_name(x.type) == "int8" and x.shape[-1] >= _WIDE_SOFTMAX for x in inputs)


def _reference_softmax(x: Array, detail: dict[str, Any], made: dict[str, Any]) -> Array:
    """Compute LiteRT's softmax by micronpu's own definition."""
    from micronpu.ir.op import Value
    from micronpu.ir.types import DType, QParams, TensorType
    from micronpu.ops.softmax import Softmax

    shape = tuple(int(n) for n in detail["shape"])
    given, result = (TensorType(shape, DType.INT8, QParams.per_tensor(*d["quantization"])) for d in (detail, made))
    return np.asarray(Softmax().reference(result, Value(x.reshape(shape), given)))


def _cut(model: bytes, mode: Mode) -> list[_Cut]:
    import flatbuffers
    from ai_edge_litert import schema_py_generated as schema

    whole = schema.ModelT.InitFromPackedBuf(model, 0)
    (graph,) = whole.subgraphs
    # Constants have data; all other operands are inputs of the model, except the operator's own state.
    is_constant = [tensor.isVariable or whole.buffers[tensor.buffer].data is not None for tensor in graph.tensors]
    made = {int(index) for operator in graph.operators for index in operator.outputs}
    names, cuts = [operator.name for operator in read_model(model).operators], []
    for position, operator in enumerate(graph.operators):
        touched = (*operator.inputs, *_intermediates(operator), *operator.outputs)
        used = list(dict.fromkeys(int(i) for i in touched if i >= 0))
        outputs = [int(i) for i in operator.outputs if i >= 0]
        # Without the intermediates of an LSTM; each tensor once even if the operator reads it twice.
        read = dict.fromkeys(int(i) for i in operator.inputs if i >= 0)
        inputs = [i for i in read if i in made or not is_constant[i]]
        renumbered = {-1: -1, **{old: new for new, old in enumerate(used)}}

        part = schema.ModelT()
        part.version = whole.version
        part.operatorCodes = [whole.operatorCodes[operator.opcodeIndex]]
        part.buffers = [schema.BufferT()]
        sub = schema.SubGraphT()
        sub.tensors = [_copy(graph.tensors[old]) for old in used]
        for old, tensor in zip(used, sub.tensors, strict=True):
            data = whole.buffers[tensor.buffer]
            tensor.buffer = 0
            if old not in inputs and old not in outputs and data.data is not None:
                tensor.buffer = len(part.buffers)
                part.buffers.append(data)
        alone = _copy(operator)
        alone.opcodeIndex = 0
        alone.inputs = [renumbered[int(i)] for i in operator.inputs]
        alone.outputs = [renumbered[i] for i in outputs]
        if len(_intermediates(operator)):
            alone.intermediates = [renumbered[int(i)] for i in operator.intermediates]
        sub.operators = [alone]
        sub.inputs = [renumbered[i] for i in inputs]
        sub.outputs = list(alone.outputs)
        part.subgraphs = [sub]

        builder = flatbuffers.Builder(1024)
        builder.Finish(part.Pack(builder), b"TFL3")
        cuts.append(_Cut(position, names[position], bytes(builder.Output()), mode, inputs, outputs))
    return cuts


def _copy(record: object) -> Any:
    """Shallow copy of a record of the object API: callers replace its lists but do not modify them."""
    twin = object.__new__(type(record))
    twin.__dict__.update(record.__dict__)
    return twin


def _intermediates(operator: Any) -> Sequence[int]:
    return operator.intermediates if operator.intermediates is not None else ()


def _io(detail: dict[str, Any]) -> PartitionIO:
    return PartitionIO(tuple(map(int, detail["shape"])), np.dtype(detail["dtype"]), int(detail["index"]))


def _address(interpreter: Any, tensor: PartitionIO) -> int | None:
    """Address of an input in LiteRT's memory; None for a tensor without axes, which LiteRT returns as a number."""
    try:
        view = interpreter.tensor(tensor.index)()
        return int(view.ctypes.data) if isinstance(view, np.ndarray) else None
    except ValueError as error:
        if tensor.size == 0:
            return 0
        raise ModelError(
            f"Input tensor {tensor.index} of the NPU partition has no memory in LiteRT: {_one_line(error)}.",
            hint="remove inputs that the model does not use",
        ) from error


def _invoke(interpreter: Any) -> None:
    try:
        interpreter.invoke()
    except (ValueError, RuntimeError) as error:
        raise bad_payload(f"LiteRT failed while it ran the NPU partition: {_one_line(error)}.") from error


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()).rstrip(".")
