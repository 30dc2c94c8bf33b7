"""Serialize ExecuTorch programs (`.pte`): the flatbuffer, its header, and the segments.

Bytes are identical to ExecuTorch 1.5's for the same content. Its own serializer imports the whole compiler, which takes
longer than compiling a small network. Layout: `program.fbs`, shipped with ExecuTorch.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from micronpu.emit.flatbuffer_tables import write
from micronpu.upstream.pte import DATA_FILE, schema

ALIGNMENT = 16
"""Alignment in bytes of planned memory, constants and payloads."""
_SEGMENT_ALIGNMENT = 128
_HEADER = struct.Struct("<4sI3Q")
_DATA_HEADER = struct.Struct("<4sI4Q")


Fields: TypeAlias = dict[str, Any]
Table: TypeAlias = tuple[str, Fields]
"""Name and content of a table of a union: a value or an instruction."""


def tensor(
    scalar_type: int,
    shape: Sequence[int],
    order: Sequence[int],
    memory: int = 0,
    offset: int = 0,
    data: int = 0,
    is_bounded: bool = False,
) -> Table:
    """Return the value of a tensor.

    Args:
        scalar_type: ExecuTorch's number of the element type.
        order: axes from the outermost in memory to the innermost.
        memory: the planned memory that holds it; 0 for a constant.
        offset: bytes from the start of this memory.
        data: number, from 1, of a constant in `Program.constants` or of a state in `Program.states`; 0 for neither.
        is_bounded: True if its shape changes at run time, up to this one.
    """
    place = {"memory_id": memory, "memory_offset_low": offset & 0xFFFFFFFF, "memory_offset_high": offset >> 32}
    return "Tensor", {
        "scalar_type": scalar_type,
        "storage_offset": 0,
        "sizes": shape,
        "dim_order": order,
        "requires_grad": False,
        "data_buffer_idx": data,
        "allocation_info": place if memory else None,
        "layout": 0,
        "shape_dynamism": int(is_bounded),
    }


def listed(kind: str, items: Sequence[object]) -> Table:
    """Return the value of a list.

    Args:
        kind: "IntList", "TensorList" or "OptionalTensorList", whose items are value indices, -1 for none; "BoolList" or
            "DoubleList".
    """
    return kind, {"items": items}


def plain(value: float | int | bool | str | None) -> Table:
    """Return the value of a number, a text or None."""
    for kind, python in (("Bool", bool), ("Int", int), ("Double", float), ("String", str)):
        if isinstance(value, python):
            return kind, {f"{kind.lower()}_val": value}
    assert value is None, value
    return "Null", {}


def kernel_call(operator: int, arguments: Sequence[int]) -> Table:
    """Return a call of one of `Method.operators`; the arguments are value indices, inputs first."""
    return "KernelCall", {"op_index": operator, "args": arguments}


def delegate_call(delegate: int, arguments: Sequence[int]) -> Table:
    """Return a call of one of `Method.delegates`; the arguments are value indices, inputs first."""
    return "DelegateCall", {"delegate_index": delegate, "args": arguments}


def jump(condition: int, destination: int) -> Table:
    """Return a jump to an instruction if a truth value is false."""
    return "JumpFalseCall", {"cond_value_index": condition, "destination_instruction": destination}


def delegate(name: str, payload: int, specs: Sequence[tuple[str, bytes]]) -> Fields:
    """Return a delegate of a method: a backend in the runtime's registry, the index of its payload, and its compile
    specs."""
    compile_specs = [{"key": key, "value": value} for key, value in specs]
    return {"id": name, "processed": {"location": 0, "index": payload}, "compile_specs": compile_specs}


@dataclass
class Method:
    """A method of a program.

    Attributes:
        values: operands of the instructions, identified by their index.
        inputs, outputs: value indices.
        operators: name and overload, such as ("aten::add", "out").
        memories: bytes of each planned memory.
        containers: nesting of inputs and outputs, in torch's notation.
    """

    name: str
    values: list[Table] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    instructions: list[Table] = field(default_factory=list)
    operators: list[tuple[str, str]] = field(default_factory=list)
    delegates: list[Fields] = field(default_factory=list)
    memories: list[int] = field(default_factory=list)
    containers: tuple[str, str] = ("", "")


@dataclass
class Program:
    """Contents of a file; states are initial values of tensors that persist across calls, and named data is stored
    beside payloads."""

    methods: list[Method] = field(default_factory=list)
    payloads: list[bytes] = field(default_factory=list)
    constants: list[bytes] = field(default_factory=list)
    states: list[bytes] = field(default_factory=list)
    named_data: Mapping[str, bytes] = field(default_factory=dict)


def to_bytes(program: Program) -> bytes:
    """Return the bytes of the `.pte`."""
    constants, starts = _joined([b"", *program.constants], ALIGNMENT)  # number 0 is unused
    segments = [constants]
    content: dict[str, object] = {
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
    """Return a `.ptd` file with data by key, to accompany a program."""
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
    """Concatenate data; return the start of each part."""
    body, starts = bytearray(), []
    for data in parts:
        body += bytes(-len(body) % alignment)
        starts.append(len(body))
        body += data
    return bytes(body), starts


def _segments(segments: Sequence[bytes]) -> tuple[bytes, list[dict[str, int]]]:
    body, starts = _joined(segments, _SEGMENT_ALIGNMENT)
    return body, [{"offset": start, "size": len(data)} for start, data in zip(starts, segments, strict=True)]


def _named(named_data: Mapping[str, bytes], segments: list[bytes]) -> list[Fields]:
    """Return the table of named data; entries of equal bytes share a segment."""
    places: dict[bytes, int] = {}
    for data in named_data.values():
        if data not in places:
            places[data] = len(segments)
            segments.append(data)
    return [{"key": key, "segment_index": places[data]} for key, data in named_data.items()]


def _file(image: bytes, header: bytes, base: int, body: bytes) -> bytes:
    """Insert a header after a flatbuffer's first eight bytes, and append segments at ``base``."""
    header = header.ljust(len(header) + -len(header) % ALIGNMENT, b"\0")
    start = struct.pack("<I", struct.unpack_from("<I", image)[0] + len(header))
    return b"".join((start, image[4:8], header, image[8:], bytes(base - len(image) - len(header)), body))


def _method(method: Method) -> Fields:
    taken, given = method.containers
    return {
        "name": method.name,
        "container_meta_type": {"encoded_inp_str": taken, "encoded_out_str": given},
        "values": [{"val": value} for value in method.values],
        "inputs": method.inputs,
        "outputs": method.outputs,
        "chains": [{"inputs": [], "outputs": [], "instructions": [{"instr_args": i} for i in method.instructions]}],
        "operators": [{"name": name, "overload": overload} for name, overload in method.operators],
        "delegates": method.delegates,
        "non_const_buffer_sizes": [0, *method.memories],
    }
