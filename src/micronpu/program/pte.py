"""Check a `.pte` before the runtime loads it, and summarise its requirements, inputs and outputs.

The runtime reports a damaged or unsuitable program as an error number; this module raises a clear message. Layout: a
flatbuffer with identifier `ET12`. If there are segments, 32 bytes of extended header follow the identifier (magic
`eh00`, its length, the flatbuffer's size, offset and size of the segments), and the segments follow the flatbuffer.
Source: `executorch/exir/_serialize` (`_program.py`, `program.fbs`), ExecuTorch 1.5. No torch, no ExecuTorch:
milliseconds.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property

from micronpu.base import flatbuffer
from micronpu.base.arguments import check_bytes, check_text
from micronpu.base.errors import PayloadError
from micronpu.base.flatbuffer import Table
from micronpu.program.containers import Names
from micronpu.upstream.pte import (
    AllocationDetails,
    BackendDelegate,
    BackendDelegateDataReference,
    BackendDelegateInlineData,
    ContainerMetadata,
    DataLocation,
    EValue,
    ExecutionPlan,
    KernelTypes,
    NamedData,
    Program,
    Tensor,
    operators_of,
    segments_of,
)

IDENTIFIER, HEADER = b"ET12", b"eh00"
"""File identifier of the flatbuffer, at its fifth byte, and magic of the extended header, which follows it."""
PREFIX = "micronpu_"
"""Prefix of named-data keys that no board reads."""
DIGEST_KEY, DIGEST_MAGIC, DIGEST_SIZE = f"{PREFIX}digest", b"micronpu sha-256", 32
EMPTY_DIGEST = DIGEST_MAGIC + bytes(DIGEST_SIZE)
"""Named data of a program without a computed digest; see `micronpu.program.digest`."""
_COPY_AGAIN = "copy or export the file again"
ELEMENT_TYPES = {
    0: "uint8",
    1: "int8",
    2: "int16",
    3: "int32",
    4: "int64",
    5: "float16",
    6: "float32",
    7: "float64",
    9: "complex64",
    10: "complex128",
    11: "bool",
    15: "bfloat16",
}
"""Torch's name of ExecuTorch's element type numbers (`executorch/exir/scalar_type.py`)."""
ELEMENT_BYTES = dict(zip(ELEMENT_TYPES.values(), (1, 1, 2, 4, 8, 2, 4, 8, 8, 16, 1, 2), strict=True))
"""Bytes of an element, by torch's name of the type."""
_LITERT, _TOSA = b"TFL3", b"TOSA"


@dataclass(frozen=True)
class TensorValue:
    """A tensor of the program's signature: ExecuTorch's number of its element type, shape, axes in memory order."""

    scalar_type: int
    shape: tuple[int, ...]
    dim_order: tuple[int, ...]
    dynamic: bool

    @property
    def dtype(self) -> str:
        """Torch's name of the element type."""
        return ELEMENT_TYPES.get(self.scalar_type, f"type number {self.scalar_type}")

    @property
    def bytes(self) -> int:
        """Size in memory; 0 for an unknown element type."""
        return math.prod(self.shape) * ELEMENT_BYTES.get(self.dtype, 0)

    @cached_property
    def strides(self) -> tuple[int, ...]:
        """Elements between neighbours along each axis, as the runtime computes them from the order of axes."""
        strides, step = [0] * len(self.shape), 1
        for axis in reversed(self.dim_order):
            strides[axis] = step
            step *= self.shape[axis]
        return tuple(strides)


@dataclass(frozen=True)
class MethodSummary:
    """A method: its tensors (None for other values), the operators and delegates that it calls.

    Attributes:
        payloads: of the delegates, as views of the file's bytes.
        states: tensors in planned memory with an initial value, which persist across calls.
        state_places: memory and offset of each.
        names: of the inputs and outputs.
    """

    name: str
    inputs: tuple[TensorValue | None, ...]
    outputs: tuple[TensorValue | None, ...]
    operators: tuple[str, ...]
    delegates: tuple[str, ...]
    payloads: tuple[memoryview, ...] = field(default=(), repr=False)
    states: tuple[TensorValue, ...] = ()
    state_places: tuple[tuple[int, int], ...] = ()
    names: Names = Names()  # noqa: RUF009 (a frozen value)

    @property
    def shared_places(self) -> tuple[tuple[int, int], ...]:
        """The entries of `state_places` outside the method's own memory."""
        return tuple(place for place in self.state_places if place[0] > 1)


@dataclass(frozen=True)
class PteSummary:
    """Contents of a `.pte`.

    Attributes:
        methods: by name.
        payloads: (delegate name, blob) of each delegate of each method, in program order.
        named_data: data that delegates look up, by key.
        program_size, segment_size: bytes of the flatbuffer and of the segments.
    """

    methods: dict[str, MethodSummary]
    payloads: tuple[tuple[str, bytes], ...]
    named_data: dict[str, bytes]
    program_size: int
    segment_size: int

    def sharing(self, method: str) -> tuple[MethodSummary, ...]:
        """Return a method and, in file order, all methods that share states with it, directly or through others.

        Memory 1 is private to each method; ExecuTorch puts shared tensors into other memories.
        """
        found, places = {method}, set(self.methods[method].shared_places)
        while more := {m.name for m in self.methods.values() if places & set(m.shared_places)} - found:
            found |= more
            places |= {place for name in more for place in self.methods[name].shared_places}
        return tuple(m for m in self.methods.values() if m.name in found)


def read_pte(data: bytes, *, name: str = "The program") -> PteSummary:
    """Check that a `.pte` is complete and summarise it.

    Args:
        data: the file's contents.
        name: what to call it in messages, such as the path.

    Raises:
        PayloadError: empty, not a `.pte`, truncated, or damaged.
    """
    check_bytes("data", data)
    check_text("name", name)
    size = len(data)
    if size == 0:
        raise PayloadError(f"{name} is empty, so it is not an ExecuTorch program.", hint=_COPY_AGAIN)
    if size < 8 or data[4:6] != IDENTIFIER[:2]:
        raise PayloadError(
            f"{name} is not an ExecuTorch program (.pte): its {size} bytes do not carry the identifier ET12.",
            hint="pass a .pte file, such as `micronpu compile` writes of a model file, which `micronpu check` takes",
        )
    if data[4:8] != IDENTIFIER:
        raise PayloadError(
            f"{name} has the ExecuTorch format {data[4:8]!r}, but this runtime reads {IDENTIFIER!r}.",
            hint="export the model again with ExecuTorch 1.5",
        )
    with whole(name):
        return _summary(data, *opened(data, name), name)


@contextmanager
def whole(name: str) -> Iterator[None]:
    """Report offsets that leave the flatbuffer of a program as a `PayloadError`."""
    try:
        yield
    except flatbuffer.CorruptFlatbufferError as error:
        raise PayloadError(f"{name} is a damaged ExecuTorch program: {error}.", hint=_COPY_AGAIN) from error


def opened(data: bytes, name: str) -> tuple[Table, int, int, int]:
    """Return the table of the program, and its `extents`."""
    program_size, base, segment_size = extents(data, name)
    return flatbuffer.root(memoryview(data)[:program_size], IDENTIFIER), program_size, base, segment_size


def extents(data: bytes, name: str) -> tuple[int, int, int]:
    """Sizes from the extended header: flatbuffer, offset of the segments, all segments."""
    size = len(data)
    magic, length = data[8:12], int.from_bytes(data[12:16], "little")
    if magic != HEADER:
        # Without segments there is no header; the runtime's verifier then detects truncation.
        return size, 0, 0
    if size < 40 or length < 24:
        raise PayloadError(f"{name} is truncated or damaged: its extended header is not whole.", hint=_COPY_AGAIN)
    program_size, base = struct.unpack_from("<2Q", data, 16)
    segment_size = struct.unpack_from("<Q", data, 32)[0] if length >= 32 else 0
    needed = max(program_size, base + segment_size)
    if size < needed:
        raise PayloadError(
            f"{name} is truncated: it has {size} of the {needed} bytes that its header names.", hint=_COPY_AGAIN
        )
    if program_size < 8 + length or (segment_size and base < program_size):
        raise PayloadError(f"{name} is damaged: the sizes in its header contradict each other.", hint=_COPY_AGAIN)
    return program_size, base, segment_size


def _summary(
    data: bytes, program: flatbuffer.Table, program_size: int, base: int, segment_size: int, name: str
) -> PteSummary:
    inline = program.vector(Program.BACKEND_DELEGATE_DATA)
    segments = segments_of(program)
    # A program without header may list an empty segment for constants.
    if not base and any(length for _, length in segments):
        raise PayloadError(f"{name} is damaged: it has segments, but no header that says where.", hint=_COPY_AGAIN)
    for index, (offset, length) in enumerate(segments):
        if base + offset + length > len(data):
            raise PayloadError(
                f"{name} is truncated: its segment {index} ends at byte {base + offset + length}, "
                f"but it has {len(data)} bytes.",
                hint=_COPY_AGAIN,
            )

    def segment(index: int) -> memoryview:
        if index >= len(segments):
            raise flatbuffer.CorruptFlatbufferError(f"segment {index} of {len(segments)}")
        start = base + segments[index][0]
        return memoryview(data)[start : start + segments[index][1]]

    named_data = {
        entry.string(NamedData.KEY): bytes(segment(entry.integer(NamedData.SEGMENT_INDEX, "<I")))
        for entry in program.vector(Program.NAMED_DATA).tables()
    }
    named_data.pop(DIGEST_KEY, None)  # not read by delegates
    methods: dict[str, MethodSummary] = {}
    payloads: list[tuple[str, bytes]] = []
    for plan in program.vector(Program.EXECUTION_PLAN).tables():
        values = plan.vector(ExecutionPlan.VALUES)
        delegates, views = [], []
        for delegate in plan.vector(ExecutionPlan.DELEGATES).tables():
            delegates.append(delegate.string(BackendDelegate.ID))
            where = delegate.table(BackendDelegate.PROCESSED)
            location = where.integer(BackendDelegateDataReference.LOCATION, "<b") if where else 0
            index = where.integer(BackendDelegateDataReference.INDEX, "<I") if where else 0
            if location == DataLocation.SEGMENT:
                views.append(segment(index))
            else:
                blob = inline.table(index).vector(BackendDelegateInlineData.DATA)
                views.append(memoryview(blob.data)[blob.start : blob.start + blob.length])
            payloads.append((delegates[-1], bytes(views[-1])))
        operators = operators_of(plan)
        states = _states(values)
        methods[plan.string(ExecutionPlan.NAME)] = MethodSummary(
            name=plan.string(ExecutionPlan.NAME),
            inputs=tuple(_tensor(values.table(i)) for i in plan.vector(ExecutionPlan.INPUTS).integers()),
            outputs=tuple(_tensor(values.table(i)) for i in plan.vector(ExecutionPlan.OUTPUTS).integers()),
            operators=tuple(operators),
            delegates=tuple(delegates),
            payloads=tuple(views),
            states=tuple(states.values()),
            state_places=tuple(states),
            names=_names(plan),
        )
    return PteSummary(methods, tuple(payloads), named_data, program_size, segment_size)


def _names(plan: flatbuffer.Table) -> Names:
    found = plan.table(ExecutionPlan.CONTAINER_META_TYPE)
    if found is None:
        return Names()
    taken, given = map(found.string, (ContainerMetadata.ENCODED_INP_STR, ContainerMetadata.ENCODED_OUT_STR))
    return Names.of(taken, given, *(plan.vector(f).length for f in (ExecutionPlan.INPUTS, ExecutionPlan.OUTPUTS)))


def _tensor(value: flatbuffer.Table) -> TensorValue | None:
    body = value.table(EValue.VAL) if value.integer(EValue.VAL_TYPE, "<B") == KernelTypes.TENSOR else None
    return tensor_of(body) if body is not None else None


def tensor_of(body: flatbuffer.Table) -> TensorValue:
    """Return the element type, shape and order of axes of a tensor."""
    shape, dim_order = body.vector(Tensor.SIZES).integers(), body.vector(Tensor.DIM_ORDER).integers("<B")
    if sorted(dim_order) != list(range(len(shape))):
        raise flatbuffer.CorruptFlatbufferError(f"a tensor of rank {len(shape)} has the order of axes {dim_order}")
    is_dynamic = body.integer(Tensor.SHAPE_DYNAMISM, "<b") != 0
    return TensorValue(body.integer(Tensor.SCALAR_TYPE, "<b"), shape, dim_order, is_dynamic)


def place_of(tensor: Table) -> tuple[int, int] | None:
    """Return the number of the planned memory that holds a tensor, and its offset there; None if none does."""
    place = tensor.table(Tensor.ALLOCATION_INFO)
    if place is None:
        return None
    high = place.integer(AllocationDetails.MEMORY_OFFSET_HIGH, "<I")
    offset = place.integer(AllocationDetails.MEMORY_OFFSET_LOW, "<I") | high << 32
    return place.integer(AllocationDetails.MEMORY_ID, "<I"), offset


def _states(values: flatbuffer.Vector) -> dict[tuple[int, int], TensorValue]:
    # A tensor is identified by its buffer number or its memory offset; both hold a variable's initial value. A view has
    # the offset of its base.
    found: dict[tuple[int, int], TensorValue] = {}
    for value in values.tables():
        if value.integer(EValue.VAL_TYPE, "<B") != KernelTypes.TENSOR or (tensor := value.table(EValue.VAL)) is None:
            continue
        if tensor.integer(Tensor.DATA_BUFFER_IDX, "<I") and (place := place_of(tensor)) is not None:
            found.setdefault(place, tensor_of(tensor))
    return found


def plan_of(program: flatbuffer.Table, method: str) -> flatbuffer.Table:
    """Return the execution plan of a method that the program has."""
    plans = program.vector(Program.EXECUTION_PLAN).tables()
    return {plan.string(ExecutionPlan.NAME): plan for plan in plans}[method]


def graph_output_bytes(blob: bytes) -> int:
    """Bytes that a traced run of a graph in an open container records; 0 for any other blob."""
    return litert_output_bytes(blob) or tosa_output_bytes(blob)


def tosa_output_bytes(blob: bytes) -> int:
    """Bytes that a traced run of a TOSA graph in an open container records, which are its outputs; else 0."""
    start = blob.find(_TOSA)
    if start < 4:
        return 0
    try:
        # TosaGraph.regions 1; TosaRegion.blocks 1; TosaBasicBlock: tensors 2, outputs 4; TosaTensor: name 0, shape 1.
        block = flatbuffer.root(memoryview(blob)[start - 4 :], _TOSA).vector(1).table(0).vector(1).table(0)
        shapes = {tensor.string(0): tensor.vector(1).integers() for tensor in block.vector(2).tables()}
        return sum(recorded_size(math.prod(shapes.get(name, ()))) for name in block.vector(4).strings())
    except flatbuffer.CorruptFlatbufferError:
        return 0


def litert_output_bytes(blob: bytes) -> int:
    """Bytes that a traced run of a LiteRT graph in an open container records; 0 for any other blob."""
    start = blob.find(_LITERT)  # not parsed: the plug-in reports a damaged payload
    if start < 4:
        return 0
    try:
        total = 0
        for graph in flatbuffer.root(memoryview(blob)[start - 4 :], _LITERT).vector(2).tables():
            # SubGraph: tensors 0, operators 3; Operator.outputs 2; Tensor.shape 0.
            tensors = graph.vector(0)
            for operator in graph.vector(3).tables():
                for index in operator.vector(2).integers():
                    if index >= 0:
                        total += recorded_size(math.prod(tensors.table(index).vector(0).integers()))
        return total
    except flatbuffer.CorruptFlatbufferError:
        return 0


def recorded_size(elements: int) -> int:
    """Size of a recorded tensor: up to 8 bytes per element, and padding to the sink's alignment."""
    return 8 * max(elements, 0) + 128
