"""ExecuTorch programs (`.pte`, identifier ET12) as bytes: the flatbuffer, its header, and the segments behind it.

For programs that call delegates and kernels and hold no tensors of their own.  The same bytes as ExecuTorch 1.5 writes,
which a test compares; its own serializer comes with all of its compiler, whose import takes longer than a small
network's compilation.  Layout: `program.fbs`, shipped with ExecuTorch.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import flatbuffers

from micronpu.upstream.pte import (
    CONTENT,
    AllocationDetails,
    BackendDelegate,
    BackendDelegateDataReference,
    BackendDelegateInlineData,
    Chain,
    CompileSpec,
    ContainerMetadata,
    DataLocation,
    DataSegment,
    DelegateCall,
    EValue,
    ExecutionPlan,
    Instruction,
    InstructionArguments,
    KernelCall,
    KernelTypes,
    NamedData,
    Operator,
    Program,
    SubsegmentOffsets,
    Tensor,
)

ALIGNMENT = 16
"""Of planned memory and of payloads, in bytes."""
_SEGMENT_ALIGNMENT = 128
_IDENTIFIER = b"ET12"
_HEADER = struct.Struct("<4sI3Q")
_ROOM = 1 << 14
"""Bytes for what is in a program beside payloads, as a rule."""


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
    extents = zip(starts, segments, strict=True)
    program: _Table = {
        Program.VERSION: _number("Uint32", 0),
        Program.EXECUTION_PLAN: _tables([_plan(plan, method)]),
        Program.CONSTANT_BUFFER: _tables([]),
        Program.BACKEND_DELEGATE_DATA: _tables(
            [{BackendDelegateInlineData.DATA: _blob(payload, ALIGNMENT)} for payload in plan.payloads]
        ),
        Program.SEGMENTS: _tables(
            [
                {DataSegment.OFFSET: _number("Uint64", start), DataSegment.SIZE: _number("Uint64", len(data))}
                for start, data in extents
            ]
        ),
        Program.CONSTANT_SEGMENT: {
            SubsegmentOffsets.SEGMENT_INDEX: _number("Uint32", 0),
            SubsegmentOffsets.OFFSETS: _numbers("Uint64", [0]),
        },
        Program.NAMED_DATA: _tables(
            [
                {NamedData.KEY: key, NamedData.SEGMENT_INDEX: _number("Uint32", places[data])}
                for key, data in plan.named_data.items()
            ]
        ),
    }
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
    chain: _Table = {
        Chain.INPUTS: _numbers("Int32", []),
        Chain.OUTPUTS: _numbers("Int32", []),
        Chain.INSTRUCTIONS: _tables([_instruction(call) for call in plan.calls]),
    }
    taken, given = plan.containers
    return {
        ExecutionPlan.NAME: method,
        ExecutionPlan.CONTAINER_META_TYPE: {
            ContainerMetadata.ENCODED_INP_STR: taken,
            ContainerMetadata.ENCODED_OUT_STR: given,
        },
        ExecutionPlan.VALUES: _tables([_value(value) for value in plan.values]),
        ExecutionPlan.INPUTS: _numbers("Int32", plan.inputs),
        ExecutionPlan.OUTPUTS: _numbers("Int32", plan.outputs),
        ExecutionPlan.CHAINS: _tables([chain]),
        ExecutionPlan.OPERATORS: _tables(
            [{Operator.NAME: name, Operator.OVERLOAD: overload} for name, overload in plan.operators]
        ),
        ExecutionPlan.DELEGATES: _tables([_delegate(delegate) for delegate in plan.delegates]),
        ExecutionPlan.NON_CONST_BUFFER_SIZES: _numbers("Int64", [0, plan.memory]),
    }


def _delegate(delegate: Delegate) -> _Table:
    return {
        BackendDelegate.ID: delegate.name,
        BackendDelegate.PROCESSED: {
            BackendDelegateDataReference.LOCATION: _number("Int8", DataLocation.INLINE),
            BackendDelegateDataReference.INDEX: _number("Uint32", delegate.payload),
        },
        BackendDelegate.COMPILE_SPECS: _tables(
            [{CompileSpec.KEY: key, CompileSpec.VALUE: _blob(value)} for key, value in delegate.specs]
        ),
    }


def _instruction(call: Call) -> _Table:
    index, arguments = _number("Int32", call.index), _numbers("Int32", call.arguments)
    body: _Table
    if call.is_delegate:
        kind = InstructionArguments.DELEGATE_CALL
        body = {DelegateCall.DELEGATE_INDEX: index, DelegateCall.ARGS: arguments}
    else:
        kind = InstructionArguments.KERNEL_CALL
        body = {KernelCall.OP_INDEX: index, KernelCall.ARGS: arguments}
    return {Instruction.INSTR_ARGS_TYPE: _number("Uint8", kind), Instruction.INSTR_ARGS: body}


def _value(value: Value) -> _Table:
    body: _Table
    if value is None:
        kind, body = KernelTypes.NULL, {}
    elif isinstance(value, float):
        kind, body = KernelTypes.DOUBLE, {CONTENT: _number("Float64", value)}
    elif isinstance(value, int):
        kind, body = KernelTypes.INT, {CONTENT: _number("Int64", value)}
    else:
        kind = KernelTypes.TENSOR
        body = {
            Tensor.SCALAR_TYPE: _number("Int8", value.scalar_type),
            Tensor.STORAGE_OFFSET: _number("Int32", 0),
            Tensor.SIZES: _numbers("Int32", value.shape),
            Tensor.DIM_ORDER: _numbers("Uint8", value.order),
            Tensor.REQUIRES_GRAD: _number("Bool", False),
            Tensor.DATA_BUFFER_IDX: _number("Uint32", 0),
            Tensor.ALLOCATION_INFO: {
                AllocationDetails.MEMORY_ID: _number("Uint32", 1),
                AllocationDetails.MEMORY_OFFSET_LOW: _number("Uint32", value.offset & 0xFFFFFFFF),
                AllocationDetails.MEMORY_OFFSET_HIGH: _number("Uint32", value.offset >> 32),
            },
        }
    return {EValue.VAL_TYPE: _number("Uint8", kind), EValue.VAL: body}


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


_Table: TypeAlias = dict[int, Any]
"""The fields of a table by their numbers, which rise: text, a number, a table or a vector."""


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
    offsets = {slot: _write(builder, f) for slot, f in fields.items() if not isinstance(f, _Number)}
    builder.StartObject(max(fields, default=-1) + 1)
    for slot, content in fields.items():
        if isinstance(content, _Number):
            getattr(builder, f"Prepend{content.kind}Slot")(int(slot), content.value, 0)
        else:
            builder.PrependUOffsetTRelativeSlot(int(slot), offsets[slot], 0)
    return int(builder.EndObject())


def _write(builder: Any, content: Any) -> int:
    if isinstance(content, str):
        return int(builder.CreateString(content))
    if isinstance(content, dict):
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
