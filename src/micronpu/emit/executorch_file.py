"""ExecuTorch programs (`.pte`, identifier ET12) as bytes: the flatbuffer, its header, and the segments behind it.

For programs that call delegates and kernels and hold no tensors of their own.  The same bytes as ExecuTorch 1.5 writes,
which a test compares; its own serializer comes with all of its compiler, whose import takes longer than a small
network's compilation.  Layout: `program.fbs`, shipped with ExecuTorch.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import flatbuffers

ALIGNMENT = 16
"""Of planned memory and of payloads, in bytes."""
_SEGMENT_ALIGNMENT = 128
_IDENTIFIER = b"ET12"
_HEADER = struct.Struct("<4sI3Q")
_ROOM = 1 << 14
"""Bytes for what is in a program beside payloads, as a rule."""
_KINDS = {"null": 1, "int": 2, "double": 4, "tensor": 5}  # of the union KernelTypes
_KERNEL_CALL, _DELEGATE_CALL = 1, 2  # of the union InstructionArguments


@dataclass(frozen=True)
class PlannedTensor:
    """A tensor in planned memory.

    Attributes:
        scalar_type: ExecuTorch's number of the element type.
        order: axes from the outermost in memory to the innermost.
        offset: bytes from the start of the memory.
    """

    scalar_type: int
    shape: tuple[int, ...]
    order: tuple[int, ...]
    offset: int


Value = PlannedTensor | float | int | None
"""What instructions refer to, by its place in `Plan.values`."""


@dataclass(frozen=True)
class Call:
    """An instruction.

    Attributes:
        index: of the operator or the delegate.
        arguments: places of values, inputs first.
    """

    index: int
    arguments: tuple[int, ...]
    is_delegate: bool = False


@dataclass(frozen=True)
class Delegate:
    """What a delegate computes.

    Attributes:
        name: by which the runtime looks up the delegate.
        payload: index into `Plan.payloads`.
        specs: keys and values of its compile specs.
    """

    name: str
    payload: int
    specs: Sequence[tuple[str, bytes]]


@dataclass
class Plan:
    """A program with one method.

    Attributes:
        inputs, outputs: places of values.
        operators: name and overload, such as ("aten::add", "out").
        memory: bytes of planned memory.
        containers: how inputs and outputs are nested, as torch writes it.
        named_data: keys and data that travel beside payloads.
    """

    values: list[Value] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    operators: list[tuple[str, str]] = field(default_factory=list)
    delegates: list[Delegate] = field(default_factory=list)
    payloads: list[bytes] = field(default_factory=list)
    memory: int = 0
    containers: tuple[str, str] = ("", "")
    named_data: Mapping[str, bytes] = field(default_factory=dict)


def to_bytes(plan: Plan, method: str = "forward") -> bytes:
    """The `.pte`."""
    segments: list[bytes] = [b""]  # constants, of which there are none
    places: dict[bytes, int] = {}
    for data in plan.named_data.values():
        if data not in places:
            places[data] = len(segments)
            segments.append(data)
    body, starts = bytearray(), []
    for data in segments:
        body += bytes(-len(body) % _SEGMENT_ALIGNMENT)
        starts.append(len(body))
        body += data
    program = (
        _number("Uint32", 0),
        _tables([_plan(plan, method)]),
        _tables([]),
        _tables([(_blob(payload, ALIGNMENT),) for payload in plan.payloads]),
        _tables([(_number("Uint64", o), _number("Uint64", len(d))) for o, d in zip(starts, segments, strict=True)]),
        (_number("Uint32", 0), _numbers("Uint64", [0])),
        None,
        _tables([(key, _number("Uint32", places[data])) for key, data in plan.named_data.items()]),
    )
    # Room for the payloads from the start: a builder that is full takes twice the memory and copies all it has.
    builder = flatbuffers.Builder(sum(map(len, plan.payloads)) + _ROOM)
    builder.Finish(_write_table(builder, program), file_identifier=_IDENTIFIER)
    image = memoryview(builder.Bytes)[builder.Head() :]
    if not body:
        return bytes(image)
    room = _HEADER.size + -_HEADER.size % ALIGNMENT
    size = len(image) + room
    base = size + -size % _SEGMENT_ALIGNMENT
    header = _HEADER.pack(b"eh00", _HEADER.size, size, base, len(body)).ljust(room, b"\0")
    start = struct.pack("<I", struct.unpack_from("<I", image)[0] + room)
    return b"".join((start, image[4:8], header, image[8:], bytes(base - size), body))


def _plan(plan: Plan, method: str) -> _Table:
    chain = (_numbers("Int32", []), _numbers("Int32", []), _tables([_instruction(c) for c in plan.calls]))
    return (
        method,
        plan.containers,
        _tables([_value(v) for v in plan.values]),
        _numbers("Int32", plan.inputs),
        _numbers("Int32", plan.outputs),
        _tables([chain]),
        _tables(list(plan.operators)),
        _tables(
            [
                (
                    d.name,
                    (_number("Int8", 0), _number("Uint32", d.payload)),
                    _tables([(key, _blob(value)) for key, value in d.specs]),
                )
                for d in plan.delegates
            ]
        ),
        _numbers("Int64", [0, plan.memory]),
    )


def _instruction(call: Call) -> _Table:
    kind = _DELEGATE_CALL if call.is_delegate else _KERNEL_CALL
    return _number("Uint8", kind), (_number("Int32", call.index), _numbers("Int32", call.arguments))


def _value(value: Value) -> _Table:
    body: _Table
    if value is None:
        kind, body = "null", ()
    elif isinstance(value, float):
        kind, body = "double", (_number("Float64", value),)
    elif isinstance(value, int):
        kind, body = "int", (_number("Int64", value),)
    else:
        kind = "tensor"
        low, high = value.offset & 0xFFFFFFFF, value.offset >> 32
        body = (
            _number("Int8", value.scalar_type),
            _number("Int32", 0),
            _numbers("Int32", value.shape),
            _numbers("Uint8", value.order),
            _number("Bool", False),
            _number("Uint32", 0),
            (_number("Uint32", 1), _number("Uint32", low), _number("Uint32", high)),
        )
    return _number("Uint8", _KINDS[kind]), body


# ---------------------------------------------------------------- flatbuffers from nested tuples

_SIZES = {"Int32": 4, "Uint8": 1, "Int64": 8, "Uint64": 8}


@dataclass(frozen=True)
class _Number:
    kind: str
    value: Any


@dataclass(frozen=True)
class _Vector:
    """Numbers of a kind, tables where it is "", or bytes that begin at a multiple of ``alignment``."""

    kind: str
    items: Any
    alignment: int = 0


_Table = tuple[Any, ...]
"""The fields of a table in the order of the schema: None (absent), text, a number, a table or a vector."""


def _number(kind: str, value: Any) -> _Number:
    return _Number(kind, value)


def _numbers(kind: str, items: Sequence[int]) -> _Vector:
    return _Vector(kind, items)


def _tables(items: Sequence[_Table]) -> _Vector:
    return _Vector("", items)


def _blob(data: bytes, alignment: int = 1) -> _Vector:
    return _Vector("bytes", data, alignment)


def _write_table(builder: Any, fields: _Table) -> int:
    # What a table points to is written before it.
    offsets = [None if f is None or isinstance(f, _Number) else _write(builder, f) for f in fields]
    builder.StartObject(len(fields))
    for slot, (content, offset) in enumerate(zip(fields, offsets, strict=True)):
        if isinstance(content, _Number):
            getattr(builder, f"Prepend{content.kind}Slot")(slot, content.value, 0)
        elif offset is not None:
            builder.PrependUOffsetTRelativeSlot(slot, offset, 0)
    return int(builder.EndObject())


def _write(builder: Any, content: Any) -> int:
    if isinstance(content, str):
        return int(builder.CreateString(content))
    if isinstance(content, tuple):
        return _write_table(builder, content)
    items = content.items
    if content.kind == "bytes":
        builder.StartVector(1, len(items), content.alignment)
        builder.head = builder.Head() - len(items)
        builder.Bytes[builder.Head() : builder.Head() + len(items)] = items
    elif content.kind:
        size = _SIZES[content.kind]
        builder.StartVector(size, len(items), size)
        for item in reversed(items):
            getattr(builder, f"Prepend{content.kind}")(item)
    else:
        offsets = [_write_table(builder, item) for item in items]
        builder.StartVector(4, len(offsets), 4)
        for offset in reversed(offsets):
            builder.PrependUOffsetTRelative(offset)
    return int(builder.EndVector())
