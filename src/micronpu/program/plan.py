"""The execution plan of a `.pte` as the runtime on the board walks it: values, calls, memories.

`micronpu.program.pte` checks the file and summarises its border; this reads what the firmware's sizes and constants are
computed from.  Layout: `executorch/schema/program.fbs`, ExecuTorch 1.5.  No torch, no ExecuTorch.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from math import prod

from micronpu.base import flatbuffer
from micronpu.base.errors import PayloadError
from micronpu.program.pte import PteSummary, TensorValue, extents, read_pte

_IDENTIFIER = b"ET12"
KINDS = (
    *("None", "Null", "Int", "Bool", "Double", "Tensor", "String"),
    *("IntList", "DoubleList", "BoolList", "TensorList", "OptionalTensorList"),
)
"""Names in the union KernelTypes, by number."""
CALLS = ("None", "KernelCall", "DelegateCall", "MoveCall", "JumpFalseCall", "FreeCall")
"""Names in the union InstructionArguments, by number."""

ELEMENT_BYTES = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "int16": 2,
    "float16": 2,
    "bfloat16": 2,
    "int32": 4,
    "float32": 4,
    "int64": 8,
    "float64": 8,
}
"""Bytes of an element, by torch's name of its type."""


@dataclass(frozen=True)
class Value:
    """A value of the plan.

    Attributes:
        kind: one of `KINDS`.
        tensor: of a tensor.
        number: of an Int, Bool or Double.
        length: elements of a list, characters of a string.
        items: of a list of tensors: the values in it, -1 for an absent one.
        external: a constant tensor whose data stands in a file of its own.
        planned: the memory (1 and up) that holds a tensor, 0 where none does.
        offset: its first byte there.
        initial: of a tensor that lives on from call to call: its bytes when the method is loaded.
    """

    kind: str
    tensor: TensorValue | None = None
    number: float | int | None = None
    length: int = 0
    items: tuple[int, ...] = ()
    external: bool = False
    planned: int = 0
    offset: int = 0
    initial: bytes | None = None


@dataclass(frozen=True)
class Call:
    """An instruction: its kind, the operator or the number of the delegate, and the values that it names."""

    kind: str
    operator: str = ""
    delegate: int = 0
    arguments: tuple[int, ...] = ()


@dataclass(frozen=True)
class Delegate:
    """A delegated part: the backend, its payload, and what it was compiled with, by key."""

    backend: str
    payload: bytes
    specs: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True)
class Plan:
    """One method.

    Attributes:
        memories: bytes of each planned memory, in order.
        chains: the calls of each chain, nearly always one.
    """

    name: str
    values: tuple[Value, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    delegates: tuple[Delegate, ...]
    chains: tuple[tuple[Call, ...], ...]
    memories: tuple[int, ...]

    @property
    def calls(self) -> tuple[Call, ...]:
        return tuple(call for chain in self.chains for call in chain)

    @property
    def operators(self) -> tuple[str, ...]:
        """What the plan calls, sorted, such as "aten::add.out"."""
        return tuple(sorted({call.operator for call in self.calls if call.operator}))

    @property
    def backends(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(d.backend for d in self.delegates))


def read_plan(data: bytes, *, name: str = "The program", method: str = "") -> tuple[Plan, PteSummary]:
    """A method's plan, and the summary of the file.

    Args:
        data: the file's contents.
        name: what to call it in messages.
        method: "forward", or the only one there is, unless named.

    Raises:
        PayloadError: no `.pte`, truncated, damaged, or without that method.
    """
    summary = read_pte(data, name=name)
    method = method or ("forward" if "forward" in summary.methods else next(iter(summary.methods), ""))
    try:
        program = flatbuffer.root(memoryview(data)[: summary.program_size], _IDENTIFIER)
        plans = list(program.vector(1).tables())
        payloads = iter(summary.payloads)
        for plan in plans:
            mine = [next(payloads)[1] for _ in plan.vector(7).tables()]
            if plan.string(0) == method:
                return _plan(plan, mine, _Variables(data, program, summary)), summary
    except flatbuffer.CorruptFlatbufferError as error:
        raise PayloadError(
            f"{name} is a damaged ExecuTorch program: {error}.", hint="copy or export the file again"
        ) from error
    raise PayloadError(
        f"{name} has no method {method!r}.", hint=f"one of {', '.join(sorted(summary.methods)) or 'none'}"
    )


class _Variables:
    """The first values of tensors that live on from call to call."""

    def __init__(self, data: bytes, program: flatbuffer.Table, summary: PteSummary) -> None:
        self._data, self._program = data, program
        self._base = extents(data, "The program")[1]

    def bytes_of(self, extra: flatbuffer.Table | None, index: int, size: int) -> bytes:
        """The first ``size`` bytes of variable ``index`` of the group that a tensor names."""
        # Program: segments 4, mutable_data_segments 6; SubsegmentOffsets: segment_index 0, offsets 1.
        groups = self._program.vector(6)
        number = extra.integer(0, "<Q") if extra is not None else 0
        if number >= groups.length:
            raise flatbuffer.CorruptFlatbufferError("a tensor has first values that are not there")
        group = groups.table(number)
        offsets, segments = group.vector(1).integers("<Q"), self._program.vector(4)
        if index >= len(offsets) or group.integer(0, "<I") >= segments.length:
            raise flatbuffer.CorruptFlatbufferError("a tensor has first values that are not there")
        start = self._base + segments.table(group.integer(0, "<I")).integer(0, "<Q") + offsets[index]
        if start + size > len(self._data):
            raise flatbuffer.CorruptFlatbufferError("a tensor has first values that leave the file")
        return self._data[start : start + size]


def _plan(plan: flatbuffer.Table, payloads: list[bytes], variables: _Variables) -> Plan:
    # ExecutionPlan: name 0, values 2, inputs 3, outputs 4, chains 5, operators 6, delegates 7, memory sizes 8.
    operators = [".".join(filter(None, (o.string(0), o.string(1)))) for o in plan.vector(6).tables()]
    delegates = tuple(
        Delegate(d.string(0), payload, tuple((s.string(0), _bytes(s.vector(1))) for s in d.vector(2).tables()))
        for d, payload in zip(plan.vector(7).tables(), payloads, strict=True)
    )
    chains = tuple(
        tuple(_call(instruction, operators) for instruction in chain.vector(2).tables())
        for chain in plan.vector(5).tables()
    )
    found = Plan(
        name=plan.string(0),
        values=tuple(_value(v, variables) for v in plan.vector(2).tables()),
        inputs=plan.vector(3).integers(),
        outputs=plan.vector(4).integers(),
        delegates=delegates,
        chains=chains,
        memories=plan.vector(8).integers("<q")[1:],
    )
    named = [*found.inputs, *found.outputs, *(i for call in found.calls for i in call.arguments)]
    named += [i for value in found.values for i in value.items if i != -1]
    if any(not 0 <= i < len(found.values) for i in named):
        raise flatbuffer.CorruptFlatbufferError(f"a call names a value outside of the {len(found.values)} there are")
    return found


def _bytes(vector: flatbuffer.Vector) -> bytes:
    return bytes(vector.data[vector.start : vector.start + vector.length])


def _call(instruction: flatbuffer.Table, operators: list[str]) -> Call:
    kind, body = CALLS[min(instruction.integer(0, "<B"), len(CALLS) - 1)], instruction.table(1)
    if body is None or kind not in ("KernelCall", "DelegateCall"):
        return Call(kind)
    number, arguments = body.integer(0), body.vector(1).integers()
    if kind == "DelegateCall":
        return Call(kind, delegate=number, arguments=arguments)
    if not 0 <= number < len(operators):
        raise flatbuffer.CorruptFlatbufferError(f"operator {number} of {len(operators)}")
    return Call(kind, operator=operators[number], arguments=arguments)


def _value(value: flatbuffer.Table, variables: _Variables) -> Value:
    number = value.integer(0, "<B")
    kind, body = KINDS[number] if number < len(KINDS) else "None", value.table(1)
    if body is None:
        return Value(kind)
    if kind == "Tensor":
        return _tensor(body, variables)
    if kind == "Int":
        return Value(kind, number=body.integer(0, "<q"))
    if kind == "Bool":
        return Value(kind, number=body.integer(0, "<B"))
    if kind == "Double":
        bits = body.integer(0, "<q")
        return Value(kind, number=struct.unpack("<d", struct.pack("<q", bits))[0])
    items = body.vector(0).integers() if kind in ("TensorList", "OptionalTensorList") else ()
    return Value(kind, length=body.vector(0).length, items=items)


def _tensor(body: flatbuffer.Table, variables: _Variables) -> Value:
    # Tensor: scalar_type 0, sizes 2, dim_order 3, data_buffer_idx 5, allocation_info 6, shape_dynamism 8,
    # extra_tensor_info 9; AllocationDetails: memory_id 0, memory_offset_low 1, memory_offset_high 2.
    shape, dim_order = body.vector(2).integers(), body.vector(3).integers("<B")
    if sorted(dim_order) != list(range(len(shape))):
        raise flatbuffer.CorruptFlatbufferError(f"a tensor of rank {len(shape)} has the order of axes {dim_order}")
    place, extra = body.table(6), body.table(9)
    tensor = TensorValue(body.integer(0, "<b"), shape, dim_order, body.integer(8, "<b") != 0)
    index, initial = body.integer(5, "<I"), None
    if place is not None and index:
        initial = variables.bytes_of(extra, index, prod(shape) * ELEMENT_BYTES.get(tensor.dtype, 0))
    return Value(
        "Tensor",
        tensor=tensor,
        external=extra is not None and extra.integer(2, "<b") == 1 and place is None,
        planned=place.integer(0, "<I") if place is not None else 0,
        offset=place.integer(1, "<I") | place.integer(2, "<I") << 32 if place is not None else 0,
        initial=initial,
    )
