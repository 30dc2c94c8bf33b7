"""The fields of a `.pte` by name, read from the schema that the installed ExecuTorch ships.

Programs are read and written without ExecuTorch's compiler, whose import takes seconds, and without its generated
readers, which trust their input: `micronpu.base.flatbuffer.Table` takes a field's number, and
`micronpu.emit.flatbuffer_tables` a schema.
"""

from __future__ import annotations

import functools
import importlib.metadata
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from micronpu.base.flatbuffer import Table

_WIDTHS = {
    **dict.fromkeys(("bool",), "Bool"),
    **dict.fromkeys(("byte", "int8"), "Int8"),
    **dict.fromkeys(("ubyte", "uint8"), "Uint8"),
    **dict.fromkeys(("int", "int32"), "Int32"),
    **dict.fromkeys(("uint", "uint32"), "Uint32"),
    **dict.fromkeys(("long", "int64"), "Int64"),
    **dict.fromkeys(("ulong", "uint64"), "Uint64"),
    **dict.fromkeys(("double", "float64"), "Float64"),
}
"""Types of a schema, by the names that `flatbuffers` uses."""
_NUMBERS = frozenset(_WIDTHS.values())


@dataclass(frozen=True)
class Field:
    """A field of a table.

    Attributes:
        number: index in the table; for a union that of its value, which follows that of its kind.
        kind: name of a number type in `flatbuffers`, "string", "union", or the name of a table.
        is_vector: True for a vector.
        alignment: of a vector's elements in bytes, 1 by default.
    """

    number: int
    kind: str
    is_vector: bool
    alignment: int

    @property
    def is_number(self) -> bool:
        """True for numbers and vectors of them; a table may have the name of a number type."""
        return self.kind in _NUMBERS


@dataclass(frozen=True)
class Schema:
    """Content of a `.fbs` file.

    Attributes:
        tables: fields by name of each table, by name.
        enums: numbers of the members of each enum and union, by name.
        identifier: four bytes at the beginning of a file.
        root: name of the table that a file holds.
    """

    tables: Mapping[str, Mapping[str, Field]]
    enums: Mapping[str, Mapping[str, int]]
    identifier: bytes
    root: str


_FIELD = re.compile(r"(\w+)\s*:\s*(\[?)([\w.]+)\]?[^;(]*(?:\(force_align:\s*(\d+)\))?[^;]*;")


def parsed(text: str) -> Schema:
    """Return the schema of the text of a `.fbs` file, which follows the texts of the files that it includes."""
    text = re.sub(r"//.*", "", text)
    blocks = re.findall(r"\b(table|union|enum) (\w+)[^{]*\{(.*?)\}", text, re.DOTALL)
    enums = {name: _members(kind, body) for kind, name, body in blocks if kind != "table"}
    unions = {name for kind, name, _ in blocks if kind == "union"}
    tables: dict[str, dict[str, Field]] = {}
    for kind, name, body in blocks:
        if kind == "table":
            tables[name] = fields = {}
            number = 0
            for field, vector, of, alignment in _FIELD.findall(body):
                own = of.rpartition(".")[2]
                number += own in unions
                kept = "union" if own in unions else "Int8" if own in enums else _WIDTHS.get(own, own)
                fields[field] = Field(number, kept, bool(vector), int(alignment or 1))
                number += 1
    identifier = re.search(r'file_identifier "(....)"', text)
    root = re.search(r"root_type (\w+)", text)
    return Schema(tables, enums, identifier[1].encode() if identifier else b"", root[1] if root else "")


def _members(kind: str, body: str) -> dict[str, int]:
    if kind == "union":
        return {member: number for number, member in enumerate(re.findall(r"\w+", body), 1)}
    return {member: int(number) for member, number in re.findall(r"(\w+)\s*=\s*(\d+)", body)}


PROGRAM = "schema/program.fbs"
DATA_FILE = "extension/flat_tensor/serialize/flat_tensor.fbs"
"""Schema of a `.ptd`."""


def schema_text(path: str = PROGRAM) -> str:
    """Return the text of a schema of the installed ExecuTorch."""
    try:
        wheel = importlib.metadata.distribution("executorch")
        return Path(str(wheel.locate_file(f"executorch/{path}"))).read_text(encoding="utf-8")
    except (OSError, importlib.metadata.PackageNotFoundError) as error:
        raise AttributeError(f"no {path}: {error}") from error


@functools.lru_cache(maxsize=2)
def schema(path: str = PROGRAM) -> Schema:
    """Return a schema of the installed ExecuTorch, with the files that it includes."""
    text = schema_text(path)
    home = path.rpartition("/")[0]
    return parsed("\n".join([*(schema_text(f"{home}/{n}") for n in re.findall(r'include "(.*?)"', text)), text]))


class Fields:
    """The numbers of a table's fields by their names in capitals; ``VAL_TYPE`` is the kind of a union ``VAL``."""

    def __init__(self, table: str) -> None:
        self.table = table

    def __getattr__(self, name: str) -> int:
        if name.startswith("__"):
            raise AttributeError(name)
        fields = schema().tables.get(self.table, {})
        own, of = fields.get(name.lower()), fields.get(name.lower().removesuffix("_type"))
        if own is not None:
            number = own.number
        elif of is not None and of.kind == "union":
            number = of.number - 1
        else:
            raise AttributeError(f"{self.table}.{name} is not there")
        setattr(self, name, number)
        return number

    def __iter__(self) -> Iterator[int]:
        return (field.number for field in schema().tables[self.table].values())


Program = Fields("Program")
ExecutionPlan = Fields("ExecutionPlan")
ContainerMetadata = Fields("ContainerMetadata")
EValue = Fields("EValue")
Tensor = Fields("Tensor")
AllocationDetails = Fields("AllocationDetails")
ExtraTensorInfo = Fields("ExtraTensorInfo")
Chain = Fields("Chain")
Instruction = Fields("Instruction")
KernelCall = Fields("KernelCall")
DelegateCall = Fields("DelegateCall")
MoveCall = Fields("MoveCall")
JumpFalseCall = Fields("JumpFalseCall")
FreeCall = Fields("FreeCall")
Operator = Fields("Operator")
BackendDelegate = Fields("BackendDelegate")
BackendDelegateDataReference = Fields("BackendDelegateDataReference")
CompileSpec = Fields("CompileSpec")
BackendDelegateInlineData = Fields("BackendDelegateInlineData")
Buffer = Fields("Buffer")
DataSegment = Fields("DataSegment")
SubsegmentOffsets = Fields("SubsegmentOffsets")
NamedData = Fields("NamedData")


class _Union(IntEnum):
    """Kinds of a union; 0 means none."""

    @property
    def title(self) -> str:
        """Name of its table."""
        return self.name.title().replace("_", "")

    def __str__(self) -> str:
        return self.name.lower().replace("_", " ")


class KernelTypes(_Union):
    """Kinds of values."""

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
    """Kinds of instructions."""

    KERNEL_CALL = 1
    DELEGATE_CALL = 2
    MOVE_CALL = 3
    JUMP_FALSE_CALL = 4
    FREE_CALL = 5


class DataLocation(IntEnum):
    """Place of a payload."""

    INLINE = 0
    SEGMENT = 1


class TensorDataLocation(IntEnum):
    """Place of a tensor's data."""

    SEGMENT = 0
    EXTERNAL = 1


CORE_KERNELS = "cortex_m::"
"""Prefix of the names of kernels that call CMSIS-NN; ExecuTorch's own are listed, and checked by their schemas."""
CONTENT = 0
"""Index of the only field of a value that is a number, a text or a list."""
_CONTENTS = ("Int", "Bool", "Double", "String", "IntList", "DoubleList", "BoolList", "TensorList", "OptionalTensorList")


def segments_of(program: Table) -> list[tuple[int, int]]:
    """Return the offset from the end of the flatbuffer, and the size, of each segment."""
    every = program.vector(Program.SEGMENTS).tables()
    return [(s.integer(DataSegment.OFFSET, "<Q"), s.integer(DataSegment.SIZE, "<Q")) for s in every]


def operator_name(operator: Table) -> str:
    """Return a name such as ``aten::add.out``."""
    return ".".join(filter(None, (operator.string(Operator.NAME), operator.string(Operator.OVERLOAD))))


def operators_of(plan: Table) -> list[str]:
    """Return the operators that a method calls, by index."""
    return [operator_name(operator) for operator in plan.vector(ExecutionPlan.OPERATORS).tables()]


def differences(text: str) -> list[str]:
    """Return differences between a schema and this module, such as ``KernelTypes.INT is 3``; additions are allowed."""
    given = parsed(text)
    found = []
    for kind in (KernelTypes, InstructionArguments, DataLocation, TensorDataLocation):
        numbers = given.enums.get(kind.__name__, {})
        for member in kind:
            number = numbers.get(member.title if isinstance(member, _Union) else member.name)
            if number != member.value:
                found.append(f"{kind.__name__}.{member.name} is {'not there' if number is None else number}")
    others = [name for name in _CONTENTS if {f.number for f in given.tables.get(name, {}).values()} != {CONTENT}]
    return found + [f"{name} has other fields" for name in others]


def check_schema() -> None:
    """Raise `AttributeError` if the installed ExecuTorch numbers the kinds differently, or has no schema."""
    if found := differences(schema_text()):
        raise AttributeError("; ".join(found))
