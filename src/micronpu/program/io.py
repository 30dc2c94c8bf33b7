"""Inputs, outputs and states of a program: type, shape, layout and quantization.

States are buffers in its planned memory that persist across calls.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from types import MappingProxyType
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np

from micronpu.base.arrays import Array
from micronpu.base.errors import ModelError, PayloadError
from micronpu.base.flatbuffer import CorruptFlatbufferError
from micronpu.base.parsing import parse_json
from micronpu.base.texts import affine
from micronpu.container.litert_view import read_model
from micronpu.container.payload import parse
from micronpu.program.file_facts import FileFacts
from micronpu.program.plan import Plan, PlanValue
from micronpu.program.pte import ELEMENT_BYTES, PREFIX, TensorValue

# Named data, of which none is deployed to the board:
IO_KEY = f"{PREFIX}borders"
"""The scale and zero point of integer inputs and outputs."""
RANGES_KEY = f"{PREFIX}ranges"
"""The valid range of inputs that are indices."""
COUNTS_KEY = f"{PREFIX}counts"
"""How methods use states that are positions."""
STATES_KEY = f"{PREFIX}states"
"""The names and qparams of the states."""
FILE_KEY = f"{PREFIX}file"
"""Names, labels and normalization of the model file."""
VECTORS = 4
"""Maximum number of calibration samples that become golden vectors of a deployed program."""
_INTEGERS, _FLOATS = ("int8", "uint8", "int16"), ("float16", "float32", "float64")
_DESCRIBED = {
    IO_KEY: "program's description of its integer inputs and outputs",
    RANGES_KEY: "program's description of its positions",
    COUNTS_KEY: "program's description of its positions",
    STATES_KEY: "description of its states in the program",
    FILE_KEY: "program's description of its model file",
}
Content = TypeVar("Content")


Counted: TypeAlias = tuple[int, int | None, bool, int | None]
"""Use of a state that selects rows; see `micronpu.frontend.positions.Count`."""


class Meaning(Protocol):
    """Meaning of an input or output, as computed by `micronpu.frontend.integers`."""

    @property
    def dtype(self) -> str: ...
    @property
    def scale(self) -> float: ...
    @property
    def zero_point(self) -> int: ...


class Known(Protocol):
    """State metadata from the compiler."""

    @property
    def name(self) -> str: ...
    @property
    def scale(self) -> float | None: ...
    @property
    def zero_point(self) -> int | None: ...


def packed(
    method: str,
    io: tuple[Sequence[Meaning | None], Sequence[Meaning | None]] | None = None,
    ranges: Mapping[int, int] = MappingProxyType({}),
    counts: Sequence[Counted] = (),
    states: Sequence[Known] = (),
    file: FileFacts = FileFacts(),  # noqa: B008 (a frozen value)
) -> dict[str, bytes]:
    """Serialize what is known of a method's inputs, outputs and states as named data, without what it does not have.

    Args:
        method: name of the method in a program with several, else "".
        io: the meaning of its inputs and outputs.
        ranges: input number to number of valid positions, of inputs that are indices.
        counts: the use of states that select rows.
        file: what its model file states.
    """
    sides = [[None if m is None else [m.dtype, m.scale, m.zero_point] for m in side] for side in io or ()]
    found = {
        IO_KEY: dict(zip(("inputs", "outputs"), sides, strict=False)),
        RANGES_KEY: sorted(ranges.items()),
        COUNTS_KEY: counts,
        STATES_KEY: [[s.name, s.scale, s.zero_point] for s in states],
        FILE_KEY: file.content(),
    }
    return {
        f"{key}/{method}" if method else key: json.dumps(content, separators=(",", ":")).encode()
        for key, content in found.items()
        if content
    }


def _recorded(named_data: Mapping[str, bytes], key: str, method: str, read: Callable[[Any], Content]) -> Content:
    """Return what a program records of a method, checked and converted from the parsed JSON; an empty list if it
    records nothing."""
    data = named_data.get(f"{key}/{method}", named_data.get(key, b"[]"))
    try:
        return read(parse_json(data))
    except (ValueError, KeyError, TypeError, IndexError, OverflowError) as error:
        raise PayloadError(f"The {_DESCRIBED[key]} is damaged.", hint="compile the model again") from error


def ranges_of(named_data: Mapping[str, bytes], method: str) -> dict[int, int]:
    """Parse the ranges of a method."""
    return _recorded(named_data, RANGES_KEY, method, lambda rows: {int(n): int(size) for n, size in rows})


def counts_of(named_data: Mapping[str, bytes], method: str) -> tuple[Counted, ...]:
    """Parse the counts of a method."""

    def read(rows: Any) -> tuple[Counted, ...]:
        plain = all(isinstance(n, int) and isinstance(counts, bool) for n, _, counts, _ in rows)
        if not plain or not all(isinstance(v, int | None) for _, size, _, step in rows for v in (size, step)):
            raise ValueError
        return tuple((int(n), size, counts, step) for n, size, counts, step in rows)

    return _recorded(named_data, COUNTS_KEY, method, read)


def file_facts_of(named_data: Mapping[str, bytes], method: str) -> FileFacts:
    """Parse what a method's model file states."""
    return _recorded(named_data, FILE_KEY, method, FileFacts.parsed)


@dataclass(frozen=True)
class ProgramIO:
    """An input or output.

    Attributes:
        name: "input_0", "output_0" and so on.
        tensor: type, shape, and order of axes in memory.
        scale, zero_point: ``real = scale * (integer - zero_point)``; None if the elements are not quantized or the file
            does not record it.
        qparams: scale, zero point and limits with which the program quantizes a float input or dequantizes a float
            output.
    """

    name: str
    tensor: TensorValue
    scale: float | None = None
    zero_point: int | None = None
    qparams: tuple[float, int, int, int] | None = None

    @property
    def is_integer(self) -> bool:
        """True if integers of this type may represent quantized floats."""
        return self.tensor.dtype in _INTEGERS

    @property
    def elements(self) -> int:
        return prod(self.tensor.shape)

    @property
    def bytes(self) -> int:
        return self.tensor.bytes

    @property
    def layout(self) -> str:
        """Description of the memory layout."""
        order = self.tensor.dim_order
        if order == tuple(range(len(order))):
            return "contiguous"
        if order == (0, 2, 3, 1):
            return "channels last"
        return f"axes in memory {', '.join(map(str, order))}"

    @property
    def meaning(self) -> str:
        """Formula of the number that an integer represents; "" if it is the number itself, or not recorded."""
        return "" if self.scale is None else affine(self.scale, self.zero_point, ".9g")

    def flat(self, array: Array) -> Array:
        """Return the elements in memory order."""
        return np.ascontiguousarray(np.transpose(array, self.tensor.dim_order)).reshape(-1)

    def taken(self, array: Array) -> Array:
        """Return floats as the program takes them: quantized, or in its precision; anything else unchanged."""
        if array.dtype.kind == "f" and self.tensor.dtype in _FLOATS:
            return array.astype(self.tensor.dtype, copy=False)
        return self.quantize(array) if array.dtype.kind == "f" and self.scale is not None else array

    def quantize(self, array: Array) -> Array:
        """Quantize floats to the program's input, in float32 like the C function."""
        assert self.scale is not None and self.zero_point is not None
        limits = np.iinfo(self.tensor.dtype)
        steps = np.rint(array.astype(np.float32) / np.float32(self.scale)) + np.float32(self.zero_point)
        return np.asarray(np.clip(steps, limits.min, limits.max), self.tensor.dtype)


def io_of(
    plan: Plan, named_data: dict[str, bytes], known: tuple[Sequence[Meaning | None], Sequence[Meaning | None]] | None
) -> tuple[tuple[ProgramIO, ...], tuple[ProgramIO, ...]]:
    """Return the inputs and outputs of a plan.

    Args:
        named_data: of the file before it is stripped: the recorded meanings, and the host's graphs, whose I/O has
            scales.
        known: the compiler's result for inputs and outputs, if available.

    Raises:
        ModelError: an input or output is not a tensor of static shape.
    """
    inputs = tuple(_io(plan, f"input_{i}", index) for i, index in enumerate(plan.inputs))
    outputs = tuple(_io(plan, f"output_{i}", index) for i, index in enumerate(plan.outputs))
    recorded = known or _meanings(named_data, plan.name, (len(inputs), len(outputs)))
    if recorded is not None:
        inputs = tuple(_meant(b, m) for b, m in zip(inputs, recorded[0], strict=True))
        outputs = tuple(_meant(b, m) for b, m in zip(outputs, recorded[1], strict=True))
    carried = _carried(plan, named_data)
    inputs = tuple(_found(b, carried.get(i)) for b, i in zip(inputs, plan.inputs, strict=True))
    outputs = tuple(_found(b, carried.get(i)) for b, i in zip(outputs, plan.outputs, strict=True))
    return inputs, outputs


def _io(plan: Plan, name: str, index: int) -> ProgramIO:
    tensor = plan.values[index].tensor
    if tensor is None or tensor.dynamic:
        kind = "of a shape that varies" if tensor is not None else f"a {plan.values[index].kind}, not a tensor"
        raise ModelError(
            f"The {name.replace('_', ' ')} of the program is {kind}, for which no sources are written.",
            hint="a program whose inputs and outputs are tensors of fixed shapes",
        )
    return ProgramIO(name, tensor, qparams=_qparams(plan, index))


def _qparams(plan: Plan, index: int) -> tuple[float, int, int, int] | None:
    """Scale, zero point and limits of the operator that quantizes an input or dequantizes an output."""
    for call in plan.calls:
        quantizes = call.operator.endswith("::quantize_per_tensor.out") and call.arguments[0] == index
        dequantizes = call.operator.endswith("::dequantize_per_tensor.out") and call.arguments[-1] == index
        if (quantizes or dequantizes) and len(call.arguments) >= 5:
            scale, zero, low, high = (plan.values[i].number for i in call.arguments[1:5])
            if None not in (scale, zero, low, high):
                return float(scale or 0), int(zero or 0), int(low or 0), int(high or 0)
    return None


def _meant(io: ProgramIO, meaning: Meaning | None) -> ProgramIO:
    if meaning is None or meaning.dtype != io.tensor.dtype:
        return io
    return replace(io, scale=meaning.scale, zero_point=meaning.zero_point)


def _found(io: ProgramIO, meaning: tuple[float, int] | None) -> ProgramIO:
    if meaning is None or io.scale is not None or not io.is_integer:
        return io
    return replace(io, scale=meaning[0], zero_point=meaning[1])


@dataclass(frozen=True)
class _Recorded:
    dtype: str
    scale: float
    zero_point: int


def _meanings(
    named_data: Mapping[str, bytes], method: str, count: tuple[int, int]
) -> tuple[list[_Recorded | None], list[_Recorded | None]] | None:

    def read(content: Any) -> tuple[list[_Recorded | None], list[_Recorded | None]]:
        inputs, outputs = (
            [None if row is None else _Recorded(str(row[0]), float(row[1]), int(row[2])) for row in content[side]]
            for side in ("inputs", "outputs")
        )
        if (len(inputs), len(outputs)) != count:
            raise ValueError("another number of inputs or outputs")
        return inputs, outputs

    is_there = IO_KEY in named_data or f"{IO_KEY}/{method}" in named_data
    return _recorded(named_data, IO_KEY, method, read) if is_there else None


def _carried(plan: Plan, named_data: dict[str, bytes]) -> dict[int, tuple[float, int]]:
    """Scale and zero point of values in the delegates' host graphs, by value number."""
    found: dict[int, tuple[float, int]] = {}
    for call in plan.calls:
        if call.kind != "DelegateCall" or call.delegate >= len(plan.delegates):
            continue
        payload = plan.delegates[call.delegate].payload
        blobs = [blob for key, blob in named_data.items() if key.endswith(f"_{len(payload):x}")]
        for blob in (*blobs, payload):
            found.update(_graph_io(blob, call.arguments))
    return found


def _graph_io(blob: bytes, arguments: tuple[int, ...]) -> dict[int, tuple[float, int]]:
    """Scale and zero point of values in one graph of an open container."""
    try:
        container = parse(blob)
    except PayloadError:
        return {}  # a payload of another kind
    if container.weights[4:8] != b"TFL3":
        return {}  # a graph in another format
    try:
        model = read_model(container.weights)
    except CorruptFlatbufferError as error:
        raise PayloadError(
            f"The LiteRT program of an NPU partition is damaged: {error}.",
            hint="copy the file again, or compile the model again",
        ) from error
    layout = container.layout
    places = [slot.index for slot in layout.inputs], [layout.num_arguments + slot.index for slot in layout.outputs]
    found = {}
    for numbers, of in zip((model.inputs, model.outputs), places, strict=True):
        for number, place in zip(numbers, of, strict=False):
            tensor = model.tensors[number]
            if len(tensor.scale) == 1 and place < len(arguments):
                found[arguments[place]] = (tensor.scale[0], tensor.zero_point[0])
    return found


@dataclass(frozen=True)
class StoredState:
    """A state as stored in the file.

    Attributes:
        name: of the buffer in the model; "state_0" and so on if the file does not record it.
        memory: the planned memory (1 and up) that holds it.
        offset: its first byte there.
        initial: its bytes before the first call.
        scale, zero_point: ``real = scale * (integer - zero_point)``; None if it is not a quantized float.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    memory: int
    offset: int
    initial: bytes
    scale: float | None = None
    zero_point: int | None = None

    @property
    def bytes(self) -> int:
        return prod(self.shape) * ELEMENT_BYTES.get(self.dtype, 0)


def states_of(plan: Plan, named_data: dict[str, bytes]) -> tuple[StoredState, ...]:
    """Return the states of a plan, in its order; the named data are those of the file before it is stripped."""
    found: dict[tuple[int, int], PlanValue] = {}
    for value in plan.values:
        if value.initial is not None:
            found.setdefault((value.planned, value.offset), value)  # a view has its base's offset
    variables = list(found.values())
    rows = _recorded(named_data, STATES_KEY, plan.name, lambda rows: [_state_row(*row) for row in rows])
    if len(rows) != len(variables):
        rows = [(f"state_{i}", None, None) for i in range(len(variables))]
    return tuple(
        StoredState(n, v.tensor.dtype, v.tensor.shape, v.planned, v.offset, v.initial or b"", s, z)
        for v, (n, s, z) in zip(variables, rows, strict=True)
        if v.tensor is not None
    )


def _state_row(name: object, scale: float | None, zero_point: int | None) -> tuple[str, float | None, int | None]:
    return str(name), scale if scale is None else float(scale), zero_point if zero_point is None else int(zero_point)
