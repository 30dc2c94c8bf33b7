"""The execution plan of a `.pte` as the board's runtime executes it: values, calls, memories.

`micronpu.program.pte` checks the file and summarises its I/O; this module reads the data from which the firmware's
sizes and constants are computed. Layout: `executorch/schema/program.fbs`, ExecuTorch 1.5. No torch, no ExecuTorch.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from micronpu.base import flatbuffer
from micronpu.base.errors import PayloadError
from micronpu.base.parsing import parse_json
from micronpu.program.pte import (
    PteSummary,
    TensorValue,
    graph_output_bytes,
    opened,
    place_of,
    plan_of,
    read_pte,
    recorded_size,
    tensor_of,
    whole,
)
from micronpu.upstream.pte import (
    CONTENT,
    BackendDelegate,
    Chain,
    CompileSpec,
    EValue,
    ExecutionPlan,
    ExtraTensorInfo,
    FreeCall,
    Instruction,
    InstructionArguments,
    JumpFalseCall,
    KernelCall,
    KernelTypes,
    MoveCall,
    Program,
    SubsegmentOffsets,
    Tensor,
    TensorDataLocation,
    operators_of,
    segments_of,
)

_KINDS = frozenset(KernelTypes)
_NUMBERS = {KernelTypes.INT: "<q", KernelTypes.BOOL: "<B", KernelTypes.DOUBLE: "<d"}
_ITEMS = {KernelTypes.INT_LIST: "<q", KernelTypes.TENSOR_LIST: "<i", KernelTypes.OPTIONAL_TENSOR_LIST: "<i"}
_CONTROL = {"MoveCall": MoveCall, "JumpFalseCall": JumpFalseCall, "FreeCall": FreeCall}
_SIZE, _ADD, _EQUAL, _SUBTRACT = (
    "aten::sym_size.int",
    "executorch_prim::add.Scalar",
    "executorch_prim::eq.Scalar",
    "executorch_prim::sub.Scalar",
)
_BY_INDEX = {"aten::select_copy.int_out": 2, "executorch_prim::et_copy_index.tensor": 2}
"""Operators that read the counter as an index, and the position of that argument."""


@dataclass(frozen=True)
class PlanValue:
    """A value of the plan.

    Attributes:
        kind: title of one of `micronpu.upstream.pte.KernelTypes`.
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
    """An instruction.

    Attributes:
        kind: title of one of `micronpu.upstream.pte.InstructionArguments`, or "None".
        operator: of a kernel call; "" for others.
        delegate: number of the delegate that is called.
        arguments: the values that a call names.
        control: of a move, source and target; of a jump, condition and instruction; of a free, the value.
    """

    kind: str
    operator: str = ""
    delegate: int = 0
    arguments: tuple[int, ...] = ()
    control: tuple[int, ...] = ()


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
    """A method's plan, by default of "forward" or the only one, and the summary of the file."""
    summary = read_pte(data, name=name)
    method = method or ("forward" if "forward" in summary.methods else next(iter(summary.methods), ""))
    if method not in summary.methods:
        raise PayloadError(
            f"{name} has no method {method!r}.", hint=f"one of {', '.join(sorted(summary.methods)) or 'none'}"
        )
    with whole(name):
        program, _, base, _ = opened(data, name)
        payloads = [bytes(payload) for payload in summary.methods[method].payloads]
        found = _plan(data, plan_of(program, method), payloads, Stored(program, base))
        return replace(found, named_data=bool(program.offset(Program.NAMED_DATA))), summary


class Stored:
    """Data of tensors in segments: a list in the program names a segment, and the start of each tensor's data in it."""

    def __init__(self, program: flatbuffer.Table, base: int) -> None:
        self._program, self._base, self._segments = program, base, segments_of(program)
        self._offsets: dict[int, tuple[int, ...]] = {}

    def variables(self, extra: flatbuffer.Table | None, where: str) -> flatbuffer.Table:
        """Return the list that has the initial data of a tensor that persists across calls."""
        groups = self._program.vector(Program.MUTABLE_DATA_SEGMENTS)
        number = extra.integer(ExtraTensorInfo.MUTABLE_DATA_SEGMENTS_IDX, "<Q") if extra is not None else 0
        flatbuffer.need(number < groups.length, f"{where} has initial data that are not there")
        return groups.table(number)

    def place(self, group: flatbuffer.Table, index: int, size: int, where: str) -> int:
        """Return the first byte in the file of the data of a tensor of ``size`` bytes."""
        if group.position not in self._offsets:  # every tensor has its own entry in the list
            self._offsets[group.position] = group.vector(SubsegmentOffsets.OFFSETS).integers("<Q")
        offsets, segment = self._offsets[group.position], group.integer(SubsegmentOffsets.SEGMENT_INDEX, "<I")
        flatbuffer.need(index < len(offsets), f"{where} is constant {index} of {len(offsets)}")
        count = len(self._segments)
        flatbuffer.need(segment < count, f"{where} is in segment {segment} of {count}")
        start, length = self._segments[segment]
        room = length - offsets[index]
        flatbuffer.need(size <= room, f"{where} has {size} bytes, but its constant {room}")
        return self._base + start + offsets[index]


def _plan(data: bytes, plan: flatbuffer.Table, payloads: list[bytes], stored: Stored) -> Plan:
    operators = operators_of(plan)
    delegates = tuple(
        Delegate(d.string(BackendDelegate.ID), payload, _specs(d))
        for d, payload in zip(plan.vector(ExecutionPlan.DELEGATES).tables(), payloads, strict=True)
    )
    chains = tuple(calls_of(chain, operators) for chain in plan.vector(ExecutionPlan.CHAINS).tables())
    found = Plan(
        name=plan.string(ExecutionPlan.NAME),
        values=tuple(_value(data, i, v, stored) for i, v in enumerate(plan.vector(ExecutionPlan.VALUES).tables())),
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
    pairs = ((spec.string(CompileSpec.KEY), spec.vector(CompileSpec.VALUE)) for spec in every)
    return tuple((key, bytes(value.data[value.start : value.start + value.length])) for key, value in pairs)


@functools.cache  # programs have thousands of instructions, and a number is a byte
def _title(number: int) -> str:
    return next((kind.title for kind in InstructionArguments if kind == number), "None")


def calls_of(chain: flatbuffer.Table, operators: Sequence[str]) -> tuple[PlanCall, ...]:
    """Return the instructions of a chain."""
    return tuple(_call(*one, operators) for one in enumerate(chain.vector(Chain.INSTRUCTIONS).tables()))


def _call(place: int, instruction: flatbuffer.Table, operators: Sequence[str]) -> PlanCall:
    kind = _title(instruction.integer(Instruction.INSTR_ARGS_TYPE, "<B"))
    body = instruction.table(Instruction.INSTR_ARGS)
    if body is None or kind == "None":
        return PlanCall("None")
    if kind in _CONTROL:
        return PlanCall(kind, control=tuple(map(body.integer, _CONTROL[kind])))
    number, arguments = body.integer(KernelCall.OP_INDEX), body.vector(KernelCall.ARGS).integers()
    if kind == "DelegateCall":
        return PlanCall(kind, delegate=number, arguments=arguments)
    flatbuffer.need(0 <= number < len(operators), f"instruction {place} calls operator {number} of {len(operators)}")
    return PlanCall(kind, operator=operators[number], arguments=arguments)


def value_of(number: int, value: flatbuffer.Table) -> tuple[KernelTypes, Any]:
    """Return the kind and the content of a value, which is damaged if it has none.

    The content is the table of a tensor, a number, or the items of a list of tensors or integers; of a text or another
    list it is the length.

    Args:
        number: of the value, for messages.

    Raises:
        CorruptFlatbufferError: the runtime would read what is not there.
    """
    kind, body, where = value.integer(EValue.VAL_TYPE, "<B"), value.table(EValue.VAL), f"value {number}"
    if kind in (0, KernelTypes.NULL):
        return KernelTypes.NULL, None
    flatbuffer.need(kind in _KINDS, f"{where} has the unknown kind {kind}")
    kind = KernelTypes(kind)
    if body is None:
        raise flatbuffer.CorruptFlatbufferError(f"{where} is empty")
    if kind is KernelTypes.TENSOR:
        return kind, body
    if kind in _NUMBERS:
        return kind, body.integer(CONTENT, _NUMBERS[kind])
    flatbuffer.need(body.offset(CONTENT), f"{where}, a {kind}, has no content")
    items = body.vector(CONTENT)
    if kind in _ITEMS:
        return kind, items.integers(_ITEMS[kind])
    flatbuffer.need(items.fits(8 if kind is KernelTypes.DOUBLE_LIST else 1), f"{where}, a {kind}, leaves the file")
    return kind, items.length


def _value(data: bytes, number: int, value: flatbuffer.Table, stored: Stored) -> PlanValue:
    kind, content = value_of(number, value)
    if kind is KernelTypes.TENSOR:
        return _tensor(data, content, stored, f"value {number}")
    if kind in _NUMBERS or content is None:
        return PlanValue(kind.title, number=content)
    is_listed = kind in _ITEMS
    items = content if is_listed and kind is not KernelTypes.INT_LIST else ()
    return PlanValue(kind.title, length=len(content) if is_listed else content, items=items)


def _tensor(data: bytes, body: flatbuffer.Table, stored: Stored, where: str) -> PlanValue:
    tensor = tensor_of(body)
    place, extra = place_of(body), body.table(Tensor.EXTRA_TENSOR_INFO)
    index, initial = body.integer(Tensor.DATA_BUFFER_IDX, "<I"), None
    if place is not None and index:
        start = stored.place(stored.variables(extra, where), index, tensor.bytes, where)
        initial = data[start : start + tensor.bytes]
    is_elsewhere = extra is not None and extra.integer(ExtraTensorInfo.LOCATION, "<b") == TensorDataLocation.EXTERNAL
    return PlanValue(
        "Tensor",
        tensor=tensor,
        external=is_elsewhere and place is None,
        planned=place[0] if place is not None else 0,
        offset=place[1] if place is not None else 0,
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


def loops_of(calls: Sequence[PlanCall], number: Callable[[int], object]) -> list[ChainLoop]:
    """Return the loops of a chain: backward jumps that ExecuTorch's compiler writes for a scan.

        n = sym_size(x, 0); i = 0
        first: ...; i = i + 1; done = i == n; jump to first unless done; i = i - n

    Only loops of this form are known to terminate, and their number of iterations is known; any other backward jump
    may never end.

    Args:
        number: returns the content of a value that is a number; None for others.
    """
    found = []
    for place, jump in enumerate(calls):
        if jump.kind != "JumpFalseCall" or not 0 <= jump.control[1] <= place - 2:
            continue
        if (loop := _loop(calls, place, jump.control[1], jump.control[0], number)) is not None:
            found.append(loop)
    return found


def _counting(
    calls: Sequence[PlanCall], place: int, condition: int, number: Callable[[int], object]
) -> tuple[int, int] | None:
    """Match `i = i + 1; done = i == n` before a jump and `i = i - n` after it; return (i, n), or None."""
    if [call.operator for call in calls[place - 2 : place + 2]] != [_ADD, _EQUAL, "", _SUBTRACT]:
        return None
    add, equal, subtract = (calls[place + i].arguments for i in (-2, -1, 1))
    if len(add) != 3 or len(equal) != 3:
        return None
    counter, size = equal[:2]
    if equal[2] != condition or add[0] != counter or add[2] != counter or number(add[1]) != 1 or number(counter) != 0:
        return None
    return (counter, size) if subtract == (counter, size, counter) else None


def _loop(
    calls: Sequence[PlanCall], place: int, first: int, condition: int, number: Callable[[int], object]
) -> ChainLoop | None:
    counting = _counting(calls, place, condition, number)
    if counting is None:
        return None
    counter, size = counting
    sizes = [call for call in calls[:first] if call.operator == _SIZE and call.arguments[-1:] == (size,)]
    if len(sizes) != 1 or len(sizes[0].arguments) != 3:
        return None
    own = {place - 2, place - 1, place + 1}
    rest = [call for i, call in enumerate(calls) if i not in own and call != sizes[0]]
    if any({counter, size, condition} & set(_read(call, counter)) for call in rest):
        return None
    return ChainLoop(first, place, *sizes[0].arguments[:2])


def _read(call: PlanCall, counter: int) -> tuple[int, ...]:
    """Return the values that a call or move names, except the counter used as a row index."""
    if call.kind == "MoveCall":
        return call.control
    return tuple(a for n, a in enumerate(call.arguments) if a != counter or _BY_INDEX.get(call.operator) != n)


def recorded_bytes(data: bytes, method: str, *, name: str = "The program") -> int:
    """Return an upper bound of the bytes that one run records in a debug buffer.

    These are every tensor argument of every instruction, and the operators of graphs inside delegates, without the
    operations of the backends' own executors.
    """
    plan, summary = read_plan(data, name=name, method=method)
    graphs = [*summary.methods[method].payloads, *summary.named_data.values()]
    with whole(name):
        own = _recorded_outside(plan)
    return own + sum(graph_output_bytes(bytes(graph)) for graph in graphs)


def _recorded_outside(plan: Plan) -> int:
    """Bytes that the runtime itself records in one run: the arguments of all calls, and the method's outputs."""
    values = plan.values
    tensors = [recorded_size(math.prod(v.tensor.shape)) if v.tensor is not None else 0 for v in values]

    def size_of(index: int) -> int:
        items = [i for i in values[index].items if i >= 0]
        flatbuffer.need(not any(values[i].items for i in items), "a list of tensors holds another list")
        return tensors[index] + sum(tensors[i] for i in items)

    def number(index: int) -> object:
        return values[index].number if values[index].kind == "Int" else None

    total = sum(map(size_of, plan.outputs))
    for chain in plan.chains:
        rounds = [1] * len(chain)
        for loop in loops_of(chain, number):
            tensor, axis = values[loop.tensor].tensor, number(loop.axis)
            if tensor is not None and isinstance(axis, int) and 0 <= axis < len(tensor.shape):
                for i in range(loop.first, loop.last + 1):
                    rounds[i] *= max(tensor.shape[axis], 1)
        total += sum(sum(map(size_of, call.arguments)) * count for call, count in zip(chain, rounds, strict=True))
    return total
