"""ExecuTorch programs (`.pte`, identifier ET12) as bytes: the flatbuffer, its header, and the segments behind it.

For programs that call delegates and kernels and hold no tensors of their own.  The same bytes as ExecuTorch 1.5 writes,
which a test compares; its own serializer comes with all of its compiler, whose import takes longer than a small
network's compilation.  Layout: `program.fbs`, shipped with ExecuTorch.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from micronpu.emit.flatbuffer_tables import Fields, Writer, blob, number, numbers, tables
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
    program: Fields = {
        Program.VERSION: number("Uint32", 0),
        Program.EXECUTION_PLAN: tables([_plan(plan, method)]),
        Program.CONSTANT_BUFFER: tables([]),
        Program.BACKEND_DELEGATE_DATA: tables(
            [{BackendDelegateInlineData.DATA: blob(payload, ALIGNMENT)} for payload in plan.payloads]
        ),
        Program.SEGMENTS: tables(
            [
                {DataSegment.OFFSET: number("Uint64", start), DataSegment.SIZE: number("Uint64", len(data))}
                for start, data in extents
            ]
        ),
        Program.CONSTANT_SEGMENT: {
            SubsegmentOffsets.SEGMENT_INDEX: number("Uint32", 0),
            SubsegmentOffsets.OFFSETS: numbers("Uint64", [0]),
        },
        Program.NAMED_DATA: tables(
            [
                {NamedData.KEY: key, NamedData.SEGMENT_INDEX: number("Uint32", places[data])}
                for key, data in plan.named_data.items()
            ]
        ),
    }
    writer = Writer()
    image = writer.finish(writer.table(program), _IDENTIFIER)
    if not body:
        return image
    room = _HEADER.size + -_HEADER.size % ALIGNMENT
    size = len(image) + room
    base = size + -size % _SEGMENT_ALIGNMENT
    header = _HEADER.pack(b"eh00", _HEADER.size, size, base, len(body)).ljust(room, b"\0")
    start = struct.pack("<I", struct.unpack_from("<I", image)[0] + room)
    return b"".join((start, image[4:8], header, image[8:], bytes(base - size), body))


def _plan(plan: Plan, method: str) -> Fields:
    chain: Fields = {
        Chain.INPUTS: numbers("Int32", []),
        Chain.OUTPUTS: numbers("Int32", []),
        Chain.INSTRUCTIONS: tables([_instruction(call) for call in plan.calls]),
    }
    taken, given = plan.containers
    return {
        ExecutionPlan.NAME: method,
        ExecutionPlan.CONTAINER_META_TYPE: {
            ContainerMetadata.ENCODED_INP_STR: taken,
            ContainerMetadata.ENCODED_OUT_STR: given,
        },
        ExecutionPlan.VALUES: tables([_value(value) for value in plan.values]),
        ExecutionPlan.INPUTS: numbers("Int32", plan.inputs),
        ExecutionPlan.OUTPUTS: numbers("Int32", plan.outputs),
        ExecutionPlan.CHAINS: tables([chain]),
        ExecutionPlan.OPERATORS: tables(
            [{Operator.NAME: name, Operator.OVERLOAD: overload} for name, overload in plan.operators]
        ),
        ExecutionPlan.DELEGATES: tables([_delegate(delegate) for delegate in plan.delegates]),
        ExecutionPlan.NON_CONST_BUFFER_SIZES: numbers("Int64", [0, plan.memory]),
    }


def _delegate(delegate: Delegate) -> Fields:
    return {
        BackendDelegate.ID: delegate.name,
        BackendDelegate.PROCESSED: {
            BackendDelegateDataReference.LOCATION: number("Int8", DataLocation.INLINE),
            BackendDelegateDataReference.INDEX: number("Uint32", delegate.payload),
        },
        BackendDelegate.COMPILE_SPECS: tables(
            [{CompileSpec.KEY: key, CompileSpec.VALUE: blob(value)} for key, value in delegate.specs]
        ),
    }


def _instruction(call: Call) -> Fields:
    index, arguments = number("Int32", call.index), numbers("Int32", call.arguments)
    body: Fields
    if call.is_delegate:
        kind = InstructionArguments.DELEGATE_CALL
        body = {DelegateCall.DELEGATE_INDEX: index, DelegateCall.ARGS: arguments}
    else:
        kind = InstructionArguments.KERNEL_CALL
        body = {KernelCall.OP_INDEX: index, KernelCall.ARGS: arguments}
    return {Instruction.INSTR_ARGS_TYPE: number("Uint8", kind), Instruction.INSTR_ARGS: body}


def _value(value: Value) -> Fields:
    body: Fields
    if value is None:
        kind, body = KernelTypes.NULL, {}
    elif isinstance(value, float):
        kind, body = KernelTypes.DOUBLE, {CONTENT: number("Float64", value)}
    elif isinstance(value, int):
        kind, body = KernelTypes.INT, {CONTENT: number("Int64", value)}
    else:
        kind = KernelTypes.TENSOR
        body = {
            Tensor.SCALAR_TYPE: number("Int8", value.scalar_type),
            Tensor.STORAGE_OFFSET: number("Int32", 0),
            Tensor.SIZES: numbers("Int32", value.shape),
            Tensor.DIM_ORDER: numbers("Uint8", value.order),
            Tensor.REQUIRES_GRAD: number("Bool", False),
            Tensor.DATA_BUFFER_IDX: number("Uint32", 0),
            Tensor.ALLOCATION_INFO: {
                AllocationDetails.MEMORY_ID: number("Uint32", 1),
                AllocationDetails.MEMORY_OFFSET_LOW: number("Uint32", value.offset & 0xFFFFFFFF),
                AllocationDetails.MEMORY_OFFSET_HIGH: number("Uint32", value.offset >> 32),
            },
        }
    return {EValue.VAL_TYPE: number("Uint8", kind), EValue.VAL: body}
