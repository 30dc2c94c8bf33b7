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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property

from micronpu.base import flatbuffer
from micronpu.base.arguments import check_bytes, check_text
from micronpu.base.errors import PayloadError
from micronpu.base.flatbuffer import Table
from micronpu.program.containers import Names
from micronpu.upstream.pte import (
    CONTENT,
    AllocationDetails,
    BackendDelegate,
    BackendDelegateDataReference,
    BackendDelegateInlineData,
    Chain,
    ContainerMetadata,
    DataLocation,
    EValue,
    ExecutionPlan,
    Instruction,
    InstructionArguments,
    JumpFalseCall,
    KernelCall,
    KernelTypes,
    MoveCall,
    NamedData,
    Program,
    Tensor,
    offset_of,
    operators_of,
    segments_of,
)

_SIZE, _ADD, _EQUAL, _SUBTRACT = (
    "aten::sym_size.int",
    "executorch_prim::add.Scalar",
    "executorch_prim::eq.Scalar",
    "executorch_prim::sub.Scalar",
)
_BY_INDEX = {"aten::select_copy.int_out": 2, "executorch_prim::et_copy_index.tensor": 2}
"""Operators that read the counter as an index, and the position of that argument."""


@dataclass(frozen=True)
class ChainLoop:
    """A loop of a chain.

    Attributes:
        first, last: repeated instructions; the last one jumps back.
        tensor, axis: values: the sequence, and the axis whose size is the number of iterations.
    """

    first: int
    last: int
    tensor: int
    axis: int


def loops_of(
    instructions: Sequence[Table], operators: Sequence[str], number: Callable[[int], object]
) -> list[ChainLoop]:
    """Return the loops of a chain: backward jumps that ExecuTorch's compiler writes for a scan.

        n = sym_size(x, 0); i = 0
        first: ...; i = i + 1; done = i == n; jump to first unless done; i = i - n

    Only loops of this form are known to terminate, and their number of iterations is known; any other backward jump
    may never end.

    Args:
        number: returns the content of a value that is a number; None for others.
    """
    calls: list[tuple[str, tuple[int, ...]]] = []
    for instruction in instructions:
        body = instruction.table(Instruction.INSTR_ARGS)
        kind = instruction.integer(Instruction.INSTR_ARGS_TYPE, "<B")
        if body is None or kind not in (InstructionArguments.KERNEL_CALL, InstructionArguments.MOVE_CALL):
            calls.append(("", ()))
        elif kind == InstructionArguments.MOVE_CALL:
            calls.append(("move", (body.integer(MoveCall.MOVE_FROM), body.integer(MoveCall.MOVE_TO))))
        else:
            index = body.integer(KernelCall.OP_INDEX)
            name = operators[index] if 0 <= index < len(operators) else ""
            calls.append((name, body.vector(KernelCall.ARGS).integers()))
    found = []
    for place, instruction in enumerate(instructions):
        kind, body = instruction.integer(Instruction.INSTR_ARGS_TYPE, "<B"), instruction.table(Instruction.INSTR_ARGS)
        if kind != InstructionArguments.JUMP_FALSE_CALL or body is None:
            continue
        first = body.integer(JumpFalseCall.DESTINATION_INSTRUCTION)
        if not 0 <= first <= place - 2:
            continue
        loop = _loop(calls, place, first, body.integer(JumpFalseCall.COND_VALUE_INDEX), number)
        if loop is not None:
            found.append(loop)
    return found


def _counting(
    calls: Sequence[tuple[str, tuple[int, ...]]], place: int, condition: int, number: Callable[[int], object]
) -> tuple[int, int] | None:
    """Match `i = i + 1; done = i == n` before a jump and `i = i - n` after it; return (i, n), or None."""
    (added, add), (compared, equal) = calls[place - 2], calls[place - 1]
    if added != _ADD or compared != _EQUAL or len(add) != 3 or len(equal) != 3 or place + 1 >= len(calls):
        return None
    counter, size = equal[:2]
    if equal[2] != condition or add[0] != counter or add[2] != counter or number(add[1]) != 1 or number(counter) != 0:
        return None
    return (counter, size) if calls[place + 1] == (_SUBTRACT, (counter, size, counter)) else None


def _loop(
    calls: Sequence[tuple[str, tuple[int, ...]]],
    place: int,
    first: int,
    condition: int,
    number: Callable[[int], object],
) -> ChainLoop | None:
    counting = _counting(calls, place, condition, number)
    if counting is None:
        return None
    counter, size = counting
    sizes = [args for i, (name, args) in enumerate(calls) if name == _SIZE and args[-1:] == (size,) and i < first]
    if len(sizes) != 1 or len(sizes[0]) != 3:
        return None
    own = {place - 2, place - 1, place + 1}
    rest = [call for i, call in enumerate(calls) if i not in own and call != (_SIZE, sizes[0])]
    if any({counter, size, condition} & set(_read(name, args, counter)) for name, args in rest):
        return None
    return ChainLoop(first, place, sizes[0][0], sizes[0][1])


def _read(name: str, args: tuple[int, ...], counter: int) -> list[int]:
    """Return the values that a call reads, except the counter used as a row index."""
    return [a for n, a in enumerate(args) if not (a == counter and _BY_INDEX.get(name) == n)]


IDENTIFIER, HEADER = b"ET12", b"eh00"
"""File identifier of the flatbuffer, at its fifth byte, and magic of the extended header, which follows it."""
PREFIX = "micronpu_"
"""Prefix of named-data keys that no board reads."""
DIGEST_KEY, DIGEST_MAGIC, DIGEST_SIZE = f"{PREFIX}digest", b"micronpu sha-256", 32
EMPTY_DIGEST = DIGEST_MAGIC + bytes(DIGEST_SIZE)
"""Named data of a program without a computed digest; see `micronpu.program.digest`."""
_COPY_AGAIN = "copy or export the file again"
_TENSOR_LISTS = (KernelTypes.TENSOR_LIST, KernelTypes.OPTIONAL_TENSOR_LIST)
_CALLS = (InstructionArguments.KERNEL_CALL, InstructionArguments.DELEGATE_CALL)
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
            hint="pass a .pte file, such as program.save() writes",
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
    """Return the table of the program, and its `extents`.

    Raises:
        PayloadError: as `extents`.
        CorruptFlatbufferError: it is no flatbuffer of a program.
    """
    program_size, base, segment_size = extents(data, name)
    return flatbuffer.root(memoryview(data)[:program_size], IDENTIFIER), program_size, base, segment_size


def extents(data: bytes, name: str) -> tuple[int, int, int]:
    """Sizes from the extended header: flatbuffer, offset of the segments, all segments.

    Raises:
        PayloadError: the header is damaged, or names more bytes than the file has.
    """
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


def _states(values: flatbuffer.Vector) -> dict[tuple[int, int], TensorValue]:
    """The states by memory and offset."""
    # A tensor is identified by its buffer number or its memory offset; both hold a variable's initial value. A view has
    # the offset of its base.
    found: dict[tuple[int, int], TensorValue] = {}
    for value in values.tables():
        if value.integer(EValue.VAL_TYPE, "<B") != KernelTypes.TENSOR or (tensor := value.table(EValue.VAL)) is None:
            continue
        place = tensor.table(Tensor.ALLOCATION_INFO)
        if place is not None and tensor.integer(Tensor.DATA_BUFFER_IDX, "<I"):
            found.setdefault((place.integer(AllocationDetails.MEMORY_ID, "<I"), offset_of(place)), tensor_of(tensor))
    return found


def plan_of(program: flatbuffer.Table, method: str) -> flatbuffer.Table:
    """Return the execution plan of a method that the program has."""
    plans = program.vector(Program.EXECUTION_PLAN).tables()
    return {plan.string(ExecutionPlan.NAME): plan for plan in plans}[method]


def recorded_bytes(data: bytes, method: str, *, name: str = "The program") -> int:
    """Return an upper bound of the bytes that one run records in a debug buffer.

    These are every tensor argument of every instruction, and the operators of graphs inside delegates, without the
    operations of the backends' own executors.
    """
    summary = read_pte(data, name=name)
    graphs = [*summary.methods[method].payloads, *summary.named_data.values()]
    with whole(name):
        program = flatbuffer.root(memoryview(data)[: summary.program_size], IDENTIFIER)
        own = _recorded_outside(plan_of(program, method))
    return own + sum(graph_output_bytes(bytes(graph)) for graph in graphs)


def _recorded_outside(plan: flatbuffer.Table) -> int:
    """Bytes that the runtime itself records in one run: the arguments of all calls, and the method's outputs."""
    values = plan.vector(ExecutionPlan.VALUES)
    sizes: dict[int, int] = {}

    def size_of(index: int, in_list: bool = False) -> int:
        if index not in sizes:
            value = values.table(index)
            kind, body = value.integer(EValue.VAL_TYPE, "<B"), value.table(EValue.VAL)
            if kind in _TENSOR_LISTS and body is not None:
                if in_list:
                    raise flatbuffer.CorruptFlatbufferError("a list of tensors holds another list")
                sizes[index] = sum(size_of(i, True) for i in body.vector(CONTENT).integers() if i >= 0)
            else:
                tensor = _tensor(value)
                sizes[index] = recorded_size(math.prod(tensor.shape)) if tensor else 0
        return sizes[index]

    total = sum(map(size_of, plan.vector(ExecutionPlan.OUTPUTS).integers()))
    for chain in plan.vector(ExecutionPlan.CHAINS).tables():
        instructions = list(chain.vector(Chain.INSTRUCTIONS).tables())
        rounds = _rounds(plan, values, instructions)
        for number, instruction in enumerate(instructions):
            kind = instruction.integer(Instruction.INSTR_ARGS_TYPE, "<B")
            call = instruction.table(Instruction.INSTR_ARGS)
            if call is not None and kind in _CALLS:
                total += sum(map(size_of, call.vector(KernelCall.ARGS).integers())) * rounds[number]
    return total


def _rounds(plan: flatbuffer.Table, values: flatbuffer.Vector, instructions: list[flatbuffer.Table]) -> list[int]:
    """Number of executions of each instruction of a chain."""
    operators = operators_of(plan)

    def number(index: int) -> object:
        value = values.table(index) if 0 <= index < values.length else None
        if value is None or value.integer(EValue.VAL_TYPE, "<B") != KernelTypes.INT:
            return None
        body = value.table(EValue.VAL)
        return body.integer(CONTENT, "<q") if body is not None else None

    found = [1] * len(instructions)
    for loop in loops_of(instructions, operators, number):
        tensor = _tensor(values.table(loop.tensor)) if 0 <= loop.tensor < values.length else None
        axis = number(loop.axis)
        if tensor is not None and isinstance(axis, int) and 0 <= axis < len(tensor.shape):
            for i in range(loop.first, loop.last + 1):
                found[i] *= max(tensor.shape[axis], 1)
    return found


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
