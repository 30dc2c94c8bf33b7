"""The fields of a `.pte` by name, as ExecuTorch's `program.fbs` numbers them.

Programs are read without ExecuTorch's compiler, whose import takes seconds, and without its generated readers, which
trust their input: `micronpu.base.flatbuffer.Table` takes a field's number.  `differences` compares all of it with the
schema that the installed wheel ships.
"""

from __future__ import annotations

import importlib.metadata
import re
from enum import IntEnum
from pathlib import Path

from micronpu.base.flatbuffer import Table


class Program(IntEnum):
    """The root."""

    VERSION = 0
    EXECUTION_PLAN = 1
    CONSTANT_BUFFER = 2
    BACKEND_DELEGATE_DATA = 3
    SEGMENTS = 4
    CONSTANT_SEGMENT = 5
    MUTABLE_DATA_SEGMENTS = 6
    NAMED_DATA = 7


class ExecutionPlan(IntEnum):
    """A method."""

    NAME = 0
    CONTAINER_META_TYPE = 1
    VALUES = 2
    INPUTS = 3
    OUTPUTS = 4
    CHAINS = 5
    OPERATORS = 6
    DELEGATES = 7
    NON_CONST_BUFFER_SIZES = 8
    NON_CONST_BUFFER_DEVICE = 9


class ContainerMetadata(IntEnum):
    """Which tuples and dictionaries a method takes and gives."""

    ENCODED_INP_STR = 0
    ENCODED_OUT_STR = 1


class EValue(IntEnum):
    """A value: one of `KernelTypes`, and its table."""

    VAL_TYPE = 0
    VAL = 1


class Tensor(IntEnum):
    """A value that is a tensor."""

    SCALAR_TYPE = 0
    STORAGE_OFFSET = 1
    SIZES = 2
    DIM_ORDER = 3
    REQUIRES_GRAD = 4
    DATA_BUFFER_IDX = 5
    ALLOCATION_INFO = 6
    LAYOUT = 7
    SHAPE_DYNAMISM = 8
    EXTRA_TENSOR_INFO = 9


class AllocationDetails(IntEnum):
    """Where in planned memory a tensor is."""

    MEMORY_ID = 0
    MEMORY_OFFSET_LOW = 1
    MEMORY_OFFSET_HIGH = 2


class ExtraTensorInfo(IntEnum):
    """Where the first values of a tensor are."""

    MUTABLE_DATA_SEGMENTS_IDX = 0
    FULLY_QUALIFIED_NAME = 1
    LOCATION = 2
    DEVICE_TYPE = 3
    DEVICE_INDEX = 4


class Chain(IntEnum):
    """Instructions, one after the other."""

    INPUTS = 0
    OUTPUTS = 1
    INSTRUCTIONS = 2
    STACKTRACE = 3


class Instruction(IntEnum):
    """One of `InstructionArguments`, and its table."""

    INSTR_ARGS_TYPE = 0
    INSTR_ARGS = 1


class KernelCall(IntEnum):
    """A call of an operator."""

    OP_INDEX = 0
    ARGS = 1


class DelegateCall(IntEnum):
    """A call of a delegate."""

    DELEGATE_INDEX = 0
    ARGS = 1


class MoveCall(IntEnum):
    """A value becomes another one."""

    MOVE_FROM = 0
    MOVE_TO = 1


class JumpFalseCall(IntEnum):
    """A jump where a value is false."""

    COND_VALUE_INDEX = 0
    DESTINATION_INSTRUCTION = 1


class FreeCall(IntEnum):
    """The end of a tensor's memory."""

    VALUE_INDEX = 0


class Operator(IntEnum):
    """A kernel's name."""

    NAME = 0
    OVERLOAD = 1


class BackendDelegate(IntEnum):
    """A delegate with its payload."""

    ID = 0
    PROCESSED = 1
    COMPILE_SPECS = 2


class BackendDelegateDataReference(IntEnum):
    """Where a payload is: a `DataLocation`, and its number there."""

    LOCATION = 0
    INDEX = 1


class CompileSpec(IntEnum):
    """What a delegate is told."""

    KEY = 0
    VALUE = 1


class BackendDelegateInlineData(IntEnum):
    """A payload in the flatbuffer."""

    DATA = 0


class Buffer(IntEnum):
    """A constant in the flatbuffer."""

    STORAGE = 0


class DataSegment(IntEnum):
    """Bytes behind the flatbuffer."""

    OFFSET = 0
    SIZE = 1


class SubsegmentOffsets(IntEnum):
    """Constants, or first values, in a segment."""

    SEGMENT_INDEX = 0
    OFFSETS = 1


class NamedData(IntEnum):
    """What delegates look up by name."""

    KEY = 0
    SEGMENT_INDEX = 1


class _Union(IntEnum):
    """The kinds of a union; 0 is none of them."""

    @property
    def title(self) -> str:
        """The name of its table."""
        return self.name.title().replace("_", "")

    def __str__(self) -> str:
        return self.name.lower().replace("_", " ")


class KernelTypes(_Union):
    """The kinds of values."""

    NULL = 1
    INT = 2
    BOOL = 3
    DOUBLE = 4
    TENSOR = 5
    STRING = 6
    INT_LIST = 7
    DOUBLE_LIST = 8
    BOOL_LIST = 9
    TENSOR_LIST = 10
    OPTIONAL_TENSOR_LIST = 11


class InstructionArguments(_Union):
    """The kinds of instructions."""

    KERNEL_CALL = 1
    DELEGATE_CALL = 2
    MOVE_CALL = 3
    JUMP_FALSE_CALL = 4
    FREE_CALL = 5


class DataLocation(IntEnum):
    """Where a payload is."""

    INLINE = 0
    SEGMENT = 1


class TensorDataLocation(IntEnum):
    """Where the data of a tensor are."""

    SEGMENT = 0
    EXTERNAL = 1


CORE_KERNELS = "cortex_m::"
"""Begin of the names of the kernels that call CMSIS-NN; ExecuTorch's own are listed, and checked by their schemas."""
CONTENT = 0
"""The only field of a value that is a number, a text or a list."""
_CONTENTS = ("Int", "Bool", "Double", "String", "IntList", "DoubleList", "BoolList", "TensorList", "OptionalTensorList")
_TABLES = (
    Program, ExecutionPlan, ContainerMetadata, EValue, Tensor, AllocationDetails, ExtraTensorInfo, Chain, Instruction,
    KernelCall, DelegateCall, MoveCall, JumpFalseCall, FreeCall, Operator, BackendDelegate,
    BackendDelegateDataReference, CompileSpec, BackendDelegateInlineData, Buffer, DataSegment, SubsegmentOffsets,
    NamedData,
)  # fmt: skip
_ENUMS = (KernelTypes, InstructionArguments, DataLocation, TensorDataLocation)


def segments_of(program: Table) -> list[tuple[int, int]]:
    """Offset behind the flatbuffer and size of each segment."""
    every = program.vector(Program.SEGMENTS).tables()
    return [(s.integer(DataSegment.OFFSET, "<Q"), s.integer(DataSegment.SIZE, "<Q")) for s in every]


def operator_name(operator: Table) -> str:
    """``aten::add.out`` and the like."""
    return ".".join(filter(None, (operator.string(Operator.NAME), operator.string(Operator.OVERLOAD))))


def operators_of(plan: Table) -> list[str]:
    """The operators that a method calls, by their numbers."""
    return [operator_name(operator) for operator in plan.vector(ExecutionPlan.OPERATORS).tables()]


def offset_of(place: Table) -> int:
    """Bytes from the beginning of the memory that an `AllocationDetails` names."""
    high = place.integer(AllocationDetails.MEMORY_OFFSET_HIGH, "<I")
    return place.integer(AllocationDetails.MEMORY_OFFSET_LOW, "<I") | high << 32


def schema_text(name: str = "program.fbs") -> str:
    """A schema as the installed ExecuTorch ships it."""
    wheel = importlib.metadata.distribution("executorch")
    return Path(str(wheel.locate_file(f"executorch/schema/{name}"))).read_text(encoding="utf-8")


def differences(text: str) -> list[str]:
    """What a schema says otherwise than this module, such as ``Tensor.SIZES is 3``; fields may come at the end."""
    text = re.sub(r"//.*", "", text)
    every = re.findall(r"\b(table|union|enum) (\w+)[^{]*\{(.*?)\}", text, re.DOTALL)
    blocks = {name: (kind, body) for kind, name, body in every}
    found = []
    for kind in (*_TABLES, *_ENUMS):
        numbers = _numbers(kind.__name__, blocks)
        for member in kind:
            number = numbers.get(member.name)
            if number != member.value:
                found.append(f"{kind.__name__}.{member.name} is {'not there' if number is None else number}")
    found += [f"{name} has other fields" for name in _CONTENTS if set(_numbers(name, blocks).values()) != {CONTENT}]
    return found


def _numbers(name: str, blocks: dict[str, tuple[str, str]]) -> dict[str, int]:
    """The numbers of a table's fields or of an enum's or union's members, by their names in capitals."""
    kind, body = blocks.get(name, ("", ""))
    if kind == "table":
        slots: list[str] = []
        for field, of in re.findall(r"(\w+)\s*:\s*\[?(\w+)\]?[^;]*;", body):
            is_union = blocks.get(of, ("",))[0] == "union"
            slots += [f"{field}_type", field] if is_union else [field]
        return {slot.upper(): number for number, slot in enumerate(slots)}
    if kind == "union":
        members = [re.sub(r"(?<=[a-z])(?=[A-Z])", "_", member).upper() for member in re.findall(r"\w+", body)]
        return {member: number for number, member in enumerate(members, 1)}
    return {member: int(number) for member, number in re.findall(r"(\w+)\s*=\s*(\d+)", body)}


def check_schema() -> None:
    """Raises `AttributeError` where the installed ExecuTorch numbers the fields otherwise, or ships no schema."""
    try:
        found = differences(schema_text())
    except (OSError, importlib.metadata.PackageNotFoundError) as error:
        raise AttributeError(f"no program.fbs: {error}") from error
    if found:
        raise AttributeError("; ".join(found))
