"""The execution plan of a `.pte` as the board's runtime executes it: values, calls, memories.

`micronpu.program.pte` checks the file and summarises its I/O; this module reads the data from which the firmware's
sizes and constants are computed. Layout: `executorch/schema/program.fbs`, ExecuTorch 1.5. No torch, no ExecuTorch.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace

from micronpu.base import flatbuffer
from micronpu.base.errors import PayloadError
from micronpu.base.parsing import parse_json
from micronpu.program.pte import PteSummary, TensorValue, opened, plan_of, read_pte, tensor_of, whole
from micronpu.upstream.pte import (
    CONTENT,
    AllocationDetails,
    BackendDelegate,
    Chain,
    CompileSpec,
    DataSegment,
    EValue,
    ExecutionPlan,
    ExtraTensorInfo,
    Instruction,
    InstructionArguments,
    KernelCall,
    KernelTypes,
    Program,
    SubsegmentOffsets,
    Tensor,
    TensorDataLocation,
    offset_of,
    operators_of,
)


@dataclass(frozen=True)
class PlanValue:
    """A value of the plan.

    Attributes:
        kind: title of one of `micronpu.upstream.pte.KernelTypes`, or "None".
        tensor: of a tensor.
        number: of an Int, Bool or Double.
        length: elements of a list, characters of a string.
        items: of a list of tensors: value numbers, -1 for an absent one.
        external: a constant tensor whose data is in a separate file.
        planned: number of the memory (1 and up) that holds a tensor, 0 for none.
        offset: its first byte there.
        initial: of a tensor that persists across calls: its bytes when the method is loaded.
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
class PlanCall:
    """An instruction: its kind, the operator or the number of the delegate, and the values that it names."""

    kind: str
    operator: str = ""
    delegate: int = 0
    arguments: tuple[int, ...] = ()


@dataclass(frozen=True)
class Delegate:
    """A delegated partition: the backend, its payload, and its compile specs by key."""

    backend: str
    payload: bytes
    specs: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True)
class Plan:
    """One method.

    Attributes:
        memories: bytes of each planned memory, in order.
        chains: the calls of each chain, nearly always one.
        named_data: True if the file has a table of named data, even an empty one.
    """

    name: str
    values: tuple[PlanValue, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    delegates: tuple[Delegate, ...]
    chains: tuple[tuple[PlanCall, ...], ...]
    memories: tuple[int, ...]
    named_data: bool = False

    @property
    def calls(self) -> tuple[PlanCall, ...]:
        return tuple(call for chain in self.chains for call in chain)

    @property
    def operators(self) -> tuple[str, ...]:
        """The operators that the plan calls, sorted, such as "aten::add.out"."""
        return tuple(sorted({call.operator for call in self.calls if call.operator}))

    @property
    def backends(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(d.backend for d in self.delegates))


def read_plan(data: bytes, *, name: str = "The program", method: str = "") -> tuple[Plan, PteSummary]:
    """A method's plan, and the summary of the file.

    Args:
        data: the file's contents.
        name: what to call it in messages.
        method: default "forward", or the only one.

    Raises:
        PayloadError: not a `.pte`, truncated, damaged, or without that method.
    """
    summary = read_pte(data, name=name)
    method = method or ("forward" if "forward" in summary.methods else next(iter(summary.methods), ""))
    if method not in summary.methods:
        raise PayloadError(
            f"{name} has no method {method!r}.", hint=f"one of {', '.join(sorted(summary.methods)) or 'none'}"
        )
    with whole(name):
        program, _, base, _ = opened(data, name)
        payloads = [bytes(payload) for payload in summary.methods[method].payloads]
        found = _plan(plan_of(program, method), payloads, _Variables(data, program, base))
        return replace(found, named_data=bool(program.offset(Program.NAMED_DATA))), summary


class _Variables:
    """Initial values of tensors that persist across calls."""

    def __init__(self, data: bytes, program: flatbuffer.Table, base: int) -> None:
        self._data, self._program, self._base = data, program, base
        self._offsets: dict[int, tuple[int, ...]] = {}

    def bytes_of(self, extra: flatbuffer.Table | None, index: int, size: int) -> bytes:
        """The first ``size`` bytes of variable ``index`` of the group that a tensor names."""
        groups = self._program.vector(Program.MUTABLE_DATA_SEGMENTS)
        number = extra.integer(ExtraTensorInfo.MUTABLE_DATA_SEGMENTS_IDX, "<Q") if extra is not None else 0
        if number >= groups.length:
            raise flatbuffer.CorruptFlatbufferError("a tensor has first values that are not there")
        group = groups.table(number)
        if number not in self._offsets:  # every variable has its own entry in the list
            self._offsets[number] = group.vector(SubsegmentOffsets.OFFSETS).integers("<Q")
        offsets = self._offsets[number]
        segments = self._program.vector(Program.SEGMENTS)
        if index >= len(offsets) or group.integer(SubsegmentOffsets.SEGMENT_INDEX, "<I") >= segments.length:
            raise flatbuffer.CorruptFlatbufferError("a tensor has first values that are not there")
        segment = segments.table(group.integer(SubsegmentOffsets.SEGMENT_INDEX, "<I"))
        start = self._base + segment.integer(DataSegment.OFFSET, "<Q") + offsets[index]
        if start + size > len(self._data):
            raise flatbuffer.CorruptFlatbufferError("a tensor has first values that leave the file")
        return self._data[start : start + size]


def _plan(plan: flatbuffer.Table, payloads: list[bytes], variables: _Variables) -> Plan:
    operators = operators_of(plan)
    delegates = tuple(
        Delegate(d.string(BackendDelegate.ID), payload, _specs(d))
        for d, payload in zip(plan.vector(ExecutionPlan.DELEGATES).tables(), payloads, strict=True)
    )
    chains = tuple(
        tuple(_call(instruction, operators) for instruction in chain.vector(Chain.INSTRUCTIONS).tables())
        for chain in plan.vector(ExecutionPlan.CHAINS).tables()
    )
    found = Plan(
        name=plan.string(ExecutionPlan.NAME),
        values=tuple(_value(v, variables) for v in plan.vector(ExecutionPlan.VALUES).tables()),
        inputs=plan.vector(ExecutionPlan.INPUTS).integers(),
        outputs=plan.vector(ExecutionPlan.OUTPUTS).integers(),
        delegates=delegates,
        chains=chains,
        memories=plan.vector(ExecutionPlan.NON_CONST_BUFFER_SIZES).integers("<q")[1:],
    )
    named = [*found.inputs, *found.outputs, *(i for call in found.calls for i in call.arguments)]
    named += [i for value in found.values for i in value.items if i != -1]
    if any(not 0 <= i < len(found.values) for i in named):
        raise flatbuffer.CorruptFlatbufferError(f"a call names a value outside of the {len(found.values)} there are")
    return found


def _specs(delegate: flatbuffer.Table) -> tuple[tuple[str, bytes], ...]:
    every = delegate.vector(BackendDelegate.COMPILE_SPECS).tables()
    return tuple((spec.string(CompileSpec.KEY), _bytes(spec.vector(CompileSpec.VALUE))) for spec in every)


def _bytes(vector: flatbuffer.Vector) -> bytes:
    return bytes(vector.data[vector.start : vector.start + vector.length])


@functools.cache  # programs have thousands of values, and a number is a byte
def _title(union: type[KernelTypes] | type[InstructionArguments], number: int) -> str:
    return next((kind.title for kind in union if kind == number), "None")


def _call(instruction: flatbuffer.Table, operators: list[str]) -> PlanCall:
    kind = _title(InstructionArguments, instruction.integer(Instruction.INSTR_ARGS_TYPE, "<B"))
    body = instruction.table(Instruction.INSTR_ARGS)
    if body is None or kind not in ("KernelCall", "DelegateCall"):
        return PlanCall(kind)
    number, arguments = body.integer(KernelCall.OP_INDEX), body.vector(KernelCall.ARGS).integers()
    if kind == "DelegateCall":
        return PlanCall(kind, delegate=number, arguments=arguments)
    if not 0 <= number < len(operators):
        raise flatbuffer.CorruptFlatbufferError(f"operator {number} of {len(operators)}")
    return PlanCall(kind, operator=operators[number], arguments=arguments)


def _value(value: flatbuffer.Table, variables: _Variables) -> PlanValue:
    kind, body = _title(KernelTypes, value.integer(EValue.VAL_TYPE, "<B")), value.table(EValue.VAL)
    if body is None:
        return PlanValue(kind)
    if kind == "Tensor":
        return _tensor(body, variables)
    if kind == "Int":
        return PlanValue(kind, number=body.integer(CONTENT, "<q"))
    if kind == "Bool":
        return PlanValue(kind, number=body.integer(CONTENT, "<B"))
    if kind == "Double":
        bits = body.integer(CONTENT, "<q")
        return PlanValue(kind, number=struct.unpack("<d", struct.pack("<q", bits))[0])
    items = body.vector(CONTENT).integers() if kind in ("TensorList", "OptionalTensorList") else ()
    return PlanValue(kind, length=body.vector(CONTENT).length, items=items)


def _tensor(body: flatbuffer.Table, variables: _Variables) -> PlanValue:
    tensor = tensor_of(body)
    place, extra = body.table(Tensor.ALLOCATION_INFO), body.table(Tensor.EXTRA_TENSOR_INFO)
    index, initial = body.integer(Tensor.DATA_BUFFER_IDX, "<I"), None
    if place is not None and index:
        initial = variables.bytes_of(extra, index, tensor.bytes)
    is_elsewhere = extra is not None and extra.integer(ExtraTensorInfo.LOCATION, "<b") == TensorDataLocation.EXTERNAL
    return PlanValue(
        "Tensor",
        tensor=tensor,
        external=is_elsewhere and place is None,
        planned=place.integer(AllocationDetails.MEMORY_ID, "<I") if place is not None else 0,
        offset=offset_of(place) if place is not None else 0,
        initial=initial,
    )


def files_of_delegates(plan: Plan) -> list[str]:
    """Return names of the files from which delegates of a program read data, according to their options."""
    found = []
    for delegate in plan.delegates:
        for key, value in delegate.specs:
            if key.startswith("external_"):
                try:
                    file = parse_json(value)
                except ValueError:
                    continue
                found += [f"{file}.ptd"] if isinstance(file, str) and file else []
    return list(dict.fromkeys(found))


def needs_data(plan: Plan) -> bool:
    """Return True if a program reads data from other files, so that the firmware must pass a map of it."""
    return bool(files_of_delegates(plan)) or any(value.external for value in plan.values)


def taken(plan: Plan, given: Mapping[str, bytes]) -> tuple[dict[str, bytes], list[str]]:
    """Return the given files that a program reads, and the names of missing ones.

    ExecuTorch stores no file name in a program with external constants: then all given files are used.
    """
    wanted = files_of_delegates(plan)
    missing = [file for file in wanted if file not in given]
    if any(value.external for value in plan.values):
        others = [file for file in given if file not in wanted]
        wanted += others
        missing += [] if others else ["the file with the program's external constants"]
    return {file: given[file] for file in wanted if file in given}, missing
