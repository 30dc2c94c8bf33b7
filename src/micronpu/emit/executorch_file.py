"""ExecuTorch programs (`.pte`) as bytes: the flatbuffer, its header, and the segments behind it.

The same bytes as ExecuTorch 1.5 writes for the same content; its own serializer comes with all of its compiler, whose
import takes longer than a small network's compilation.  Layout: `program.fbs`, shipped with ExecuTorch.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from micronpu.emit.flatbuffer import write
from micronpu.upstream.pte import DATA_FILE, schema

ALIGNMENT = 16
"""Of planned memory, of constants and of payloads, in bytes."""
_SEGMENT_ALIGNMENT = 128
_HEADER = struct.Struct("<4sI3Q")
_DATA_HEADER = struct.Struct("<4sI4Q")


@dataclass(frozen=True)
class TensorValue:
    """A tensor.

    Attributes:
        scalar_type: ExecuTorch's number of the element type.
        order: axes from the outermost in memory to the innermost.
        memory: the planned memory that holds it; 0 for a constant.
        offset: bytes from the start of this memory.
        data: of a constant its number in `Program.constants`, of a state that of its first values in `Program.states`,
            each counted from 1; 0 for neither.
        is_bounded: whether its shape changes in a run, up to this one.
    """

    scalar_type: int
    shape: tuple[int, ...]
    order: tuple[int, ...]
    memory: int = 0
    offset: int = 0
    data: int = 0
    is_bounded: bool = False


@dataclass(frozen=True)
class ListValue:
    """A list.

    Attributes:
        kind: "IntList", "TensorList" or "OptionalTensorList", whose items are places of values, -1 for none;
            "BoolList" or "DoubleList".
    """

    kind: str
    items: tuple[Any, ...]


Value = TensorValue | ListValue | float | int | bool | str | None
"""What instructions refer to, by its place in `Method.values`."""


@dataclass
class Call:
    """A call of a kernel or of a delegate.

    Attributes:
        index: of the operator or the delegate.
        arguments: places of values, inputs first.
    """

    index: int
    arguments: tuple[int, ...]
    is_delegate: bool = False


@dataclass(frozen=True)
class Jump:
    """A jump to an instruction where a truth value is false."""

    condition: int
    destination: int


@dataclass(frozen=True)
class Delegate:
    """What a delegate computes.

    Attributes:
        name: by which the runtime looks up the delegate.
        payload: index into `Program.payloads`.
        specs: keys and values of its compile specs.
    """

    name: str
    payload: int
    specs: Sequence[tuple[str, bytes]]


@dataclass
class Method:
    """A method of a program.

    Attributes:
        inputs, outputs: places of values.
        operators: name and overload, such as ("aten::add", "out").
        memories: bytes of each planned memory.
        containers: how inputs and outputs are nested, as torch writes it.
    """

    name: str
    values: list[Value] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    instructions: list[Call | Jump] = field(default_factory=list)
    operators: list[tuple[str, str]] = field(default_factory=list)
    delegates: list[Delegate] = field(default_factory=list)
    memories: list[int] = field(default_factory=list)
    containers: tuple[str, str] = ("", "")


@dataclass
class Program:
    """What a file holds.

    Attributes:
        constants: the data of constant tensors.
        states: the first values of tensors that live on from one call to the next.
        named_data: keys and data that travel beside payloads.
    """

    methods: list[Method] = field(default_factory=list)
    payloads: list[bytes] = field(default_factory=list)
    constants: list[bytes] = field(default_factory=list)
    states: list[bytes] = field(default_factory=list)
    named_data: Mapping[str, bytes] = field(default_factory=dict)


def to_bytes(program: Program) -> bytes:
    """The `.pte`."""
    constants, starts = _joined([b"", *program.constants], ALIGNMENT)  # there is none with the number 0
    segments = [constants]
    content: dict[str, Any] = {
        "version": 0,
        "execution_plan": [_method(method) for method in program.methods],
        "constant_buffer": [],
        "backend_delegate_data": [{"data": payload} for payload in program.payloads],
        "constant_segment": {"segment_index": 0, "offsets": starts},
    }
    if program.states:
        data, starts = _joined([b"", *program.states], 1)
        content["mutable_data_segments"] = [{"segment_index": len(segments), "offsets": starts}]
        segments.append(data)
    content["named_data"] = _named(program.named_data, segments)
    body, content["segments"] = _segments(segments)
    image = write(schema(), content)
    room = _HEADER.size + -_HEADER.size % ALIGNMENT
    size = len(image) + room
    base = size + -size % _SEGMENT_ALIGNMENT
    return (
        _file(image, _HEADER.pack(b"eh00", _HEADER.size, size, base, len(body)), base, body) if body else bytes(image)
    )


def data_file(named_data: Mapping[str, bytes]) -> bytes:
    """A `.ptd` with data by key, for what stands beside a program."""
    segments: list[bytes] = []
    named = _named(named_data, segments)
    body, places = _segments(segments)
    image = write(schema(DATA_FILE), {"version": 0, "segments": places, "named_data": named})
    room = _DATA_HEADER.size + -_DATA_HEADER.size % ALIGNMENT
    base = len(image) + room
    base += -base % _SEGMENT_ALIGNMENT
    header = _DATA_HEADER.pack(b"FH01", _DATA_HEADER.size, room, len(image), base, len(body))
    return _file(image, header, base, body)


def _joined(parts: Iterable[bytes], alignment: int) -> tuple[bytes, list[int]]:
    """Data one after the other, and where each begins."""
    body, starts = bytearray(), []
    for data in parts:
        body += bytes(-len(body) % alignment)
        starts.append(len(body))
        body += data
    return bytes(body), starts


def _segments(segments: Sequence[bytes]) -> tuple[bytes, list[dict[str, int]]]:
    body, starts = _joined(segments, _SEGMENT_ALIGNMENT)
    return body, [{"offset": start, "size": len(data)} for start, data in zip(starts, segments, strict=True)]


def _named(named_data: Mapping[str, bytes], segments: list[bytes]) -> list[dict[str, Any]]:
    """Named data, each of which has a segment with the others of the same bytes."""
    places: dict[bytes, int] = {}
    for data in named_data.values():
        if data not in places:
            places[data] = len(segments)
            segments.append(data)
    return [{"key": key, "segment_index": places[data]} for key, data in named_data.items()]


def _file(image: bytes, header: bytes, base: int, body: bytes) -> bytes:
    """A flatbuffer with a header behind its first eight bytes, and segments that begin at ``base``."""
    header = header.ljust(len(header) + -len(header) % ALIGNMENT, b"\0")
    start = struct.pack("<I", struct.unpack_from("<I", image)[0] + len(header))
    return b"".join((start, image[4:8], header, image[8:], bytes(base - len(image) - len(header)), body))


def _method(method: Method) -> dict[str, Any]:
    taken, given = method.containers
    return {
        "name": method.name,
        "container_meta_type": {"encoded_inp_str": taken, "encoded_out_str": given},
        "values": [{"val": _value(value)} for value in method.values],
        "inputs": method.inputs,
        "outputs": method.outputs,
        "chains": [{"inputs": [], "outputs": [], "instructions": [_instruction(i) for i in method.instructions]}],
        "operators": [{"name": name, "overload": overload} for name, overload in method.operators],
        "delegates": [
            {
                "id": delegate.name,
                "processed": {"location": 0, "index": delegate.payload},  # in the flatbuffer
                "compile_specs": [{"key": key, "value": value} for key, value in delegate.specs],
            }
            for delegate in method.delegates
        ],
        "non_const_buffer_sizes": [0, *method.memories],
    }


def _instruction(instruction: Call | Jump) -> dict[str, Any]:
    body: tuple[str, dict[str, Any]]
    if isinstance(instruction, Jump):
        jump = {"cond_value_index": instruction.condition, "destination_instruction": instruction.destination}
        body = ("JumpFalseCall", jump)
    elif instruction.is_delegate:
        body = ("DelegateCall", {"delegate_index": instruction.index, "args": instruction.arguments})
    else:
        body = ("KernelCall", {"op_index": instruction.index, "args": instruction.arguments})
    return {"instr_args": body}


def _value(value: Value) -> tuple[str, dict[str, Any]]:
    """The name and the content of a value's table."""
    if value is None:
        return "Null", {}
    if isinstance(value, ListValue):
        return value.kind, {"items": value.items}
    for kind, python in (("Bool", bool), ("Int", int), ("Double", float), ("String", str)):
        if isinstance(value, python):
            return kind, {f"{kind.lower()}_val": value}
    assert isinstance(value, TensorValue)
    place = {
        "memory_id": value.memory,
        "memory_offset_low": value.offset & 0xFFFFFFFF,
        "memory_offset_high": value.offset >> 32,
    }
    return "Tensor", {
        "scalar_type": value.scalar_type,
        "storage_offset": 0,
        "sizes": value.shape,
        "dim_order": value.order,
        "requires_grad": False,
        "data_buffer_idx": value.data,
        "allocation_info": place if value.memory else None,
        "layout": 0,
        "shape_dynamism": int(value.is_bounded),
    }
