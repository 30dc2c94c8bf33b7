"""Checks everything in the plan of a `.pte` that ExecuTorch's runtime takes on trust.

The runtime checks that the file is a flatbuffer and that most indices exist. It trusts sizes, kinds and pointers: a
program with wrong ones ends the process or reads other memory. Here such a program raises an error. The computed values
are not checked; see `micronpu.program.digest` for that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from micronpu.base.errors import PayloadError
from micronpu.base.flatbuffer import CorruptFlatbufferError, Table
from micronpu.program.operators import VIEW, Signature, signature_of
from micronpu.program.plan import ChainLoop, PlanCall, Stored, calls_of, loops_of, value_of
from micronpu.program.pte import ELEMENT_BYTES, ELEMENT_TYPES, TensorValue, opened, place_of, tensor_of
from micronpu.upstream.pte import (
    BackendDelegate,
    BackendDelegateDataReference,
    BackendDelegateInlineData,
    Buffer,
    Chain,
    CompileSpec,
    DataLocation,
    ExecutionPlan,
    ExtraTensorInfo,
    Operator,
    Program,
    Tensor,
    TensorDataLocation,
    operator_name,
    segments_of,
)
from micronpu.upstream.pte import KernelTypes as Kind

_HINT = "copy the file again, or compile the model again"
_MOST_AXES = 16  # kTensorDimensionLimit of ExecuTorch
_MOST_MEMORY = 1 << 32  # more than any microcontroller's
_SLACK = 1 << 16  # alignment overhead: largest buffer size minus what its tensors need
_RANGES = {"uint8": (0, 255), "int8": (-128, 127), "int16": (-(1 << 15), (1 << 15) - 1)}
_INT32 = (-(1 << 31), (1 << 31) - 1)
_ITEMS = {  # kinds of the items, by kind of the list
    Kind.INT_LIST: (Kind.INT,),
    Kind.TENSOR_LIST: (Kind.TENSOR,),
    Kind.OPTIONAL_TENSOR_LIST: (Kind.TENSOR, Kind.NULL),
}
_NEEDED = {
    ExecutionPlan.VALUES: "values",
    ExecutionPlan.INPUTS: "inputs",
    ExecutionPlan.OUTPUTS: "outputs",
    ExecutionPlan.CHAINS: "instructions",
    ExecutionPlan.NON_CONST_BUFFER_SIZES: "memory sizes",
}


class _BadPlanError(Exception):
    """The defect, as a clause without a full stop."""


@dataclass(frozen=True)
class _Tensor(TensorValue):
    """A tensor of the plan.

    Attributes:
        constant: its memory belongs to the program and is read-only.
        placed: it has memory before the method runs.
    """

    constant: bool
    placed: bool

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class _Value:
    kind: Kind
    content: Any = None  # _Tensor, a number, or the indices in a list


def check_plan(data: bytes, name: str, method: str, *, external: bool = False) -> None:
    """Check one method of a program that `read_pte` has accepted; optionally, constants may be in separate files, which
    a firmware provides and this machine does not."""
    try:
        program, _, base, _ = opened(data, name)
        plans = program.vector(Program.EXECUTION_PLAN).tables()
        (plan,) = [plan for plan in plans if plan.string(ExecutionPlan.NAME) == method]
        _Plan(program, plan, base, external).check()
    except ValueError as error:
        what = str(error) if isinstance(error, CorruptFlatbufferError) else "it has methods of the same name"
        raise PayloadError(f"{name} is a damaged ExecuTorch program: {what}.", hint=_HINT) from error
    except _BadPlanError as error:
        raise PayloadError(
            f"{name} is not run, because its plan is damaged, or made for another runtime: {error}.", hint=_HINT
        ) from None


class _Plan:
    """One execution plan, read step by step; every step may raise."""

    def __init__(self, program: Table, plan: Table, base: int, external: bool) -> None:
        self._external = external
        self._program, self._plan, self._stored = program, plan, Stored(program, base)
        self._buffers = plan.vector(ExecutionPlan.NON_CONST_BUFFER_SIZES).integers("<q")
        self._used = [0] * len(self._buffers)
        self._values: list[_Value] = []
        self._loops: dict[int, ChainLoop] = {}

    def check(self) -> None:
        """Check everything, in the order in which the runtime reads it."""
        for field, what in _NEEDED.items():
            _need(self._plan.offset(field), f"it has no {what}")
        values = self._plan.vector(ExecutionPlan.VALUES).tables()
        self._values = [self._value(number, table) for number, table in enumerate(values)]
        self._check_lists()
        self._check_memory()
        borders = [self._plan.vector(field).integers() for field in (ExecutionPlan.INPUTS, ExecutionPlan.OUTPUTS)]
        for what, io in zip(("input", "output"), borders, strict=True):
            for number, index in enumerate(io):
                self._at(index, f"{what} {number}")
        self._check_delegates()
        operators = [self._operator(o) for o in self._plan.vector(ExecutionPlan.OPERATORS).tables()]
        has_memory = [i for i, v in enumerate(self._values) if v.kind is Kind.TENSOR and v.content.placed]
        placed = dict.fromkeys([*has_memory, *borders[0], *borders[1]], -1)  # the instruction that gives it memory
        for chain in self._plan.vector(ExecutionPlan.CHAINS).tables():
            _need(chain.offset(Chain.INSTRUCTIONS), "a chain has no instructions")
            calls = calls_of(chain, operators)
            self._loops = {loop.last: loop for loop in loops_of(calls, self._number)}
            self._check_chain(calls, placed)
            for loop in self._loops.values():
                self._check_loop(loop)

    # --- values ---

    def _value(self, number: int, table: Table) -> _Value:
        kind, content = value_of(number, table)
        return _Value(kind, self._tensor(content, f"value {number}") if kind is Kind.TENSOR else content)

    def _tensor(self, table: Table, where: str) -> _Tensor:
        tensor = tensor_of(table)
        dtype, shape = tensor.dtype, tensor.shape
        _need(dtype in ELEMENT_BYTES, f"{where} is a tensor of the unknown type {tensor.scalar_type}")
        _need(table.integer(Tensor.STORAGE_OFFSET) == 0, f"{where} is a tensor that begins inside its memory")
        is_whole = table.offset(Tensor.SIZES) and table.offset(Tensor.DIM_ORDER)
        _need(is_whole, f"{where} is a tensor without sizes or order of axes")
        _need(len(shape) <= _MOST_AXES, f"{where} is a tensor of {len(shape)} axes")
        _need(all(n >= 0 for n in shape), f"{where} is a tensor of the shape {list(shape)}")
        dynamism = table.integer(Tensor.SHAPE_DYNAMISM, "<b")
        _need(dynamism in (0, 1, 2), f"{where} is a tensor of an unknown kind of shape")
        element = ELEMENT_BYTES[dtype]
        # Products of some sizes overflow although one of them is 0.
        _need(math.prod(n for n in shape if n) * element <= _MOST_MEMORY, f"{where} is a tensor of {list(shape)}")
        extra, place = table.table(Tensor.EXTRA_TENSOR_INFO), place_of(table)
        index = table.integer(Tensor.DATA_BUFFER_IDX, "<I")
        is_external = extra is not None and extra.integer(ExtraTensorInfo.LOCATION, "<b") == TensorDataLocation.EXTERNAL
        allowed = self._external and place is None
        _need(allowed or not is_external, f"{where} is a tensor whose data is in another file")
        if index and not is_external:
            self._check_data(index, tensor.bytes, element, extra, place is not None, where)
        if place is not None:
            self._check_place(*place, tensor.bytes, element, where)
        is_constant = (bool(index) or is_external) and place is None
        return _Tensor(**vars(tensor), constant=is_constant, placed=is_constant or place is not None)

    def _check_data(
        self, index: int, size: int, element: int, extra: Table | None, is_variable: bool, where: str
    ) -> None:
        """Check that the data of a constant, or the initial data of a variable, is in the file."""
        inline = self._program.vector(Program.CONSTANT_BUFFER)
        if is_variable:  # copied to its memory, whereas a constant is read in place
            self._stored.place(self._stored.variables(extra, where), index, size, where)
        elif inline.length:
            _need(index < inline.length, f"{where} is constant {index} of {inline.length}")
            data = inline.table(index).vector(Buffer.STORAGE)
            _need(size <= data.length and data.fits(1), f"{where} has {size} bytes, but its constant {data.length}")
        else:
            constants = self._program.table(Program.CONSTANT_SEGMENT)
            if constants is None:
                raise _BadPlanError(f"{where} is a constant that is not there")
            is_aligned = self._stored.place(constants, index, size, where) % element == 0
            _need(is_aligned, f"{where} is a constant at an address that is no multiple of {element}")

    def _check_place(self, memory: int, offset: int, size: int, element: int, where: str) -> None:
        _need(0 < memory < len(self._buffers), f"{where} is in memory {memory}, which the plan does not have")
        end, most = offset + size, self._buffers[memory]
        _need(end <= most, f"{where} ends at byte {end} of {most} in memory {memory}")
        _need(offset % element == 0, f"{where} is at byte {offset} of its memory, which is no multiple of {element}")
        self._used[memory] = max(self._used[memory], end)

    def _check_lists(self) -> None:
        """Check that lists hold elements of their kind, and no lists."""
        for number, value in enumerate(self._values):
            for index in value.content if value.kind in _ITEMS else ():
                if index == -1 and value.kind is Kind.OPTIONAL_TENSOR_LIST:
                    continue
                found = self._at(index, f"an item of value {number}").kind
                _need(found in _ITEMS[value.kind], f"value {number}, a {value.kind}, holds a {found}")

    def _check_memory(self) -> None:
        for number, (size, used) in enumerate(zip(self._buffers, self._used, strict=True)):
            _need(
                0 <= size <= (used + _SLACK if number else _SLACK),
                f"memory {number} has {size} bytes, but its tensors take {used}",
            )
        _need(sum(self._buffers) <= _MOST_MEMORY, f"it asks for {sum(self._buffers)} bytes of memory")

    # --- instructions ---

    def _at(self, index: int, where: str) -> _Value:
        _need(0 <= index < len(self._values), f"{where} is value {index} of {len(self._values)}")
        return self._values[index]

    def _operator(self, table: Table) -> str:
        _need(table.offset(Operator.NAME), "an operator has no name")
        return operator_name(table)

    def _check_delegates(self) -> None:
        inline = self._program.vector(Program.BACKEND_DELEGATE_DATA)
        for number, delegate in enumerate(self._plan.vector(ExecutionPlan.DELEGATES).tables()):
            where = f"delegate {number}"
            reference = delegate.table(BackendDelegate.PROCESSED)
            _need(delegate.offset(BackendDelegate.ID), f"{where} has no name")
            if reference is None:
                raise _BadPlanError(f"{where} has no payload")
            _need(delegate.offset(BackendDelegate.COMPILE_SPECS), f"{where} has no list of compile specs")
            for spec in delegate.vector(BackendDelegate.COMPILE_SPECS).tables():
                is_whole = spec.offset(CompileSpec.KEY) and spec.offset(CompileSpec.VALUE)
                _need(is_whole, f"{where} has a compile spec without key or value")
                _need(spec.vector(CompileSpec.VALUE).fits(1), f"{where} has a compile spec that leaves the file")
            location = reference.integer(BackendDelegateDataReference.LOCATION, "<b")
            index = reference.integer(BackendDelegateDataReference.INDEX, "<I")
            _need(location in tuple(DataLocation), f"{where} has its payload in the unknown place {location}")
            count = inline.length if location == DataLocation.INLINE else len(segments_of(self._program))
            _need(index < count, f"{where} has payload {index} of {count}")
            if location == DataLocation.INLINE:
                _need(inline.table(index).offset(BackendDelegateInlineData.DATA), f"{where} has an empty payload")

    def _check_chain(self, calls: Sequence[PlanCall], placed: dict[int, int]) -> None:
        skipped: dict[int, int] = {}  # the first jump that leads to an instruction
        for number, call in enumerate(calls):
            # Tensors that got memory after the jump may have none here.
            while number in skipped and next(reversed(placed.values()), -1) >= skipped[number]:
                placed.popitem()
            self._check_instruction(call, number, len(calls), placed)
            if call.kind == "JumpFalseCall":
                skipped.setdefault(call.control[1], number)

    def _check_instruction(self, call: PlanCall, number: int, count: int, placed: dict[int, int]) -> None:
        where = f"instruction {number}"
        if call.kind == "KernelCall":
            self._check_call(call, number, placed)
        elif call.kind == "DelegateCall":
            delegates = self._plan.vector(ExecutionPlan.DELEGATES).length
            _need(0 <= call.delegate < delegates, f"{where} calls delegate {call.delegate} of {delegates}")
            for position, argument in enumerate(call.arguments):
                self._at(argument, f"argument {position} of {where}")
                self._check_placed(argument, placed, f"argument {position} of {where}")
        elif call.kind == "MoveCall":  # in branches that ExecuTorch's own writer makes
            moved, into = (self._at(index, where) for index in call.control)
            _need(moved.kind is into.kind is Kind.TENSOR, f"{where} moves a {moved.kind} into a {into.kind}")
            same = replace(moved.content, placed=True) == replace(into.content, placed=True)
            _need(same, f"{where} moves a tensor into one of another type or shape, or a constant")
            for index in call.control:
                self._check_placed(index, placed, where)
        elif call.kind == "JumpFalseCall":
            index, destination = call.control
            condition = self._at(index, where).kind
            _need(condition in (Kind.BOOL, Kind.TENSOR), f"{where} branches on a {condition}")
            self._check_placed(index, placed, f"the condition of {where}")
            loop = self._loops.get(number)
            back = loop is not None and loop.first == destination
            _need(
                back or number < destination <= count,
                f"{where} jumps to instruction {destination}, which is neither forward nor the beginning of a loop "
                "that ends",
            )
        else:
            raise _BadPlanError(f"{where} is a {call.kind}, which no program has that runs here")

    def _number(self, index: int) -> object:
        value = self._values[index] if 0 <= index < len(self._values) else None
        return value.content if value is not None and value.kind is Kind.INT else None

    def _check_loop(self, loop: ChainLoop) -> None:
        """Check that a loop's sequence has at least one row, since it iterates over the rows."""
        value, axis = self._at(loop.tensor, "the sequence of a loop"), self._number(loop.axis)
        _need(value.kind is Kind.TENSOR, f"the loop at instruction {loop.first} is over a {value.kind}")
        shape = value.content.shape
        rows = shape[axis] if isinstance(axis, int) and 0 <= axis < len(shape) else 0
        _need(rows > 0, f"the loop at instruction {loop.first} is over a sequence of no rows")

    def _check_placed(self, index: int, placed: dict[int, int], where: str) -> None:
        value = self._values[index]
        if value.kind is Kind.TENSOR:
            has_memory = index in placed or not value.content.elements
            _need(has_memory, f"{where} is a tensor without memory")
        elif value.kind in (Kind.TENSOR_LIST, Kind.OPTIONAL_TENSOR_LIST):
            for item in value.content:
                if item >= 0:
                    self._check_placed(item, placed, where)

    def _check_call(self, call: PlanCall, number: int, placed: dict[int, int]) -> None:
        operator, arguments, where = call.operator, call.arguments, f"instruction {number}, {call.operator},"
        values = [self._at(index, f"argument {i} of {where}") for i, index in enumerate(arguments)]
        signature = signature_of(operator)
        written: set[int] = set()
        if signature is not None:
            _check_signature(signature, values, where)
            written = {i for i, parameter in enumerate(signature.parameters) if parameter.written}
        for position, (index, value) in enumerate(zip(arguments, values, strict=True)):
            if position in written:
                tensors = [value] if value.kind is Kind.TENSOR else [self._values[i] for i in value.content or ()]
                overwrites = any(t.content.constant for t in tensors)
                _need(not overwrites, f"{where} writes into a constant")
            if operator == VIEW and position >= 2:
                placed.setdefault(index, number)
            self._check_placed(index, placed, f"argument {position} of {where}")
        if signature is not None:
            named = {p.name: v for p, v in zip(signature.parameters, values, strict=False)}
            check = _CHECKS.get(operator)
            if check is not None:
                check(named, where)
            _check_meanings(operator, named, where)


def _need(holds: object, what: str) -> None:
    if not holds:
        raise _BadPlanError(what)


def _check_signature(signature: Signature, values: list[_Value], where: str) -> None:
    count, most = len(signature.parameters), len(signature.parameters) + signature.repeated
    _need(count <= len(values) <= most, f"{where} has {len(values)} arguments instead of {count}")
    for parameter, value in zip(signature.parameters, values, strict=False):
        if value.kind not in parameter.kinds:
            expected = " or ".join(sorted(map(str, parameter.kinds)))
            raise _BadPlanError(f"{where} has a {value.kind} as `{parameter.name}`, which must be {expected}")


# --- what arguments mean, by their names in the operators' schemas ---


def _check_meanings(operator: str, named: dict[str, _Value], where: str) -> None:
    """Check every argument that names a type, a range or qparams against the tensors, for any kernel.

    Both ``out_dtype`` and ``dtype`` name the type of the result, except for a dequantization, where ``dtype`` is the
    type of the integer input.
    """
    library, _, kernel = operator.partition("::")
    for name, value in named.items():
        if value.kind is Kind.INT and (name == "dtype" or name.endswith("_dtype")):
            recorded = ELEMENT_TYPES.get(value.content)
            _need(recorded is not None, f"{where} has as `{name}` the unknown type {value.content}")
            typed = named.get("input" if name == "dtype" and kernel.startswith("dequantize") else "out")
            if typed is not None and typed.kind is Kind.TENSOR:
                _need(
                    typed.content.dtype == recorded,
                    f"{where} has a {typed.content.dtype} tensor where `{name}` says {recorded}",
                )
        elif library != _QUANTIZED:
            continue
        elif value.kind is Kind.DOUBLE and name.endswith("scale"):
            _need(math.isfinite(value.content) and value.content > 0, f"{where} has the {name} {value.content}")
        elif value.kind is Kind.INT and name.endswith("zero_point"):
            _need(_INT32[0] <= value.content <= _INT32[1], f"{where} has the {name} {value.content}")
        elif value.kind is Kind.INT and name.endswith("quant_min"):
            most = named[name.replace("quant_min", "quant_max")].content
            _need(value.content <= most, f"{where} has the range {value.content} to {most}")


_QUANTIZED = "quantized_decomposed"


# --- quantization parameters, which ExecuTorch's kernels check by ending the process ---


def _check_per_tensor(quantized: str) -> Callable[[dict[str, _Value], str], None]:
    def check(named: dict[str, _Value], where: str) -> None:
        floats = named["out" if quantized == "input" else "input"].content
        _check_quantized(named, named[quantized].content.dtype, where)
        _need(floats.dtype == "float32", f"{where} has {floats.dtype} where float32 is expected")

    return check


_DEQUANTIZED = (("float32", "float64"), ("int32", "int64"))


def _check_per_channel(quantized: str) -> Callable[[dict[str, _Value], str], None]:
    def check(named: dict[str, _Value], where: str) -> None:
        tensor = named[quantized].content
        _check_quantized(named, tensor.dtype, where)
        rank, axis = len(tensor.shape), named["axis"].content
        _need(-rank <= axis < rank, f"{where} has the axis {axis} of {rank}")
        channels = tensor.shape[axis]
        # The kernels end the process for types that they do not implement.
        scales, zeros = (("float64",), ("int64",)) if quantized == "out" else _DEQUANTIZED
        for name, dtypes in (("scales", scales), ("zero_points", zeros)):
            value = named[name]
            if value.kind is Kind.NULL:
                continue
            fits = value.content.dtype in dtypes and value.content.elements == channels
            _need(fits, f"{where} has {value.content.elements} {value.content.dtype} `{name}` for {channels} channels")

    return check


def _check_quantized(named: dict[str, _Value], dtype: str, where: str) -> None:
    low, high = _RANGES.get(dtype, _INT32)
    least, most = named["quant_min"].content, named["quant_max"].content
    _need(low <= least <= most <= high, f"{where} has the range {least} to {most} of {dtype}")
    _need(dtype in ("uint8", "int8", "int16", "int32"), f"{where} has integers that are {dtype}")
    given, made = named["input"].content.shape, named["out"].content.shape
    _need(given == made, f"{where} makes {list(made)} of {list(given)}")


_CHECKS = {
    "quantized_decomposed::quantize_per_tensor.out": _check_per_tensor("out"),
    "quantized_decomposed::dequantize_per_tensor.out": _check_per_tensor("input"),
    "quantized_decomposed::quantize_per_channel.out": _check_per_channel("out"),
    "quantized_decomposed::dequantize_per_channel.out": _check_per_channel("input"),
}
