"""Checks a TOSA program before the reference model sees it.

The reference model believes a flatbuffer: every offset, every name, and that an operator's operands are as many, and of
the types and sides, that it asks for.  Here such a program is a sentence.  Every field of every table is looked at, and
one that is not known is refused; what operators ask for is in `micronpu.host.tosa_rules`, and which values they cannot
bear in `micronpu.host.tosa_bounds`.

Field numbers are those of `tosa.fbs`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum

from micronpu.base.errors import PayloadError
from micronpu.base.flatbuffer import CorruptFlatbufferError, Table, Vector, root
from micronpu.host.tosa_bounds import Demand, Parts, asked_of_inputs, demands_of, of_constant, of_input, of_result
from micronpu.host.tosa_rules import SIZES, WIDTHS, Call, Operand, check_call, need

IDENTIFIER = b"TOSA"
"""Of the flatbuffer, at its fifth byte."""

_HINT = "copy the file again, or compile the model again"
_MOST_AXES = 6
"""MAX_RANK of the specification's level 8K."""
_MOST_ELEMENTS = 1 << 28
"""Of all tensors together: the reference model has them all in memory, some in eight bytes an element."""


class _Graph(IntEnum):
    VERSION, REGIONS, SOFTWARE, COMPATIBILITY = range(4)


class _Version(IntEnum):
    MAJOR, MINOR, PATCH, DRAFT = range(4)


class _Software(IntEnum):
    MAJOR, MINOR, MICRO, MODIFIER = range(4)


class _Compatibility(IntEnum):
    READER, FEATURES = range(2)


class _Region(IntEnum):
    NAME, BLOCKS = range(2)


class _Block(IntEnum):
    NAME, OPERATORS, TENSORS, INPUTS, OUTPUTS, SHAPES = range(6)


class _Tensor(IntEnum):
    NAME, SHAPE, TYPE, DATA, VARIABLE, UNRANKED, VARIABLE_NAME = range(7)
    SCALES = 10  # of blocks, which the writer adds empty


class _Shape(IntEnum):
    NAME, RANK, DATA = range(3)


class _Operator(IntEnum):
    OP, ATTRIBUTE_TYPE, ATTRIBUTE, INPUTS, OUTPUTS, LOCATION = range(6)


class _Location(IntEnum):
    TEXT = 0


_ALWAYS: dict[type[IntEnum], tuple[IntEnum, ...]] = {
    _Graph: (_Graph.VERSION, _Graph.REGIONS),
    _Version: (),
    _Software: (_Software.MODIFIER,),
    _Compatibility: (_Compatibility.READER,),
    _Region: tuple(_Region),
    _Block: tuple(_Block),
    _Tensor: (_Tensor.NAME, _Tensor.SHAPE, _Tensor.DATA, _Tensor.VARIABLE_NAME),
    _Shape: (_Shape.NAME, _Shape.DATA),
    _Operator: (_Operator.INPUTS, _Operator.OUTPUTS),
    _Location: tuple(_Location),
}
"""Fields that readers take for granted, empty or not; the others may be absent."""


@dataclass(frozen=True)
class TosaBorder:
    """An input or output of a program: TOSA's name of its element type, and its shape."""

    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class CheckedTosa:
    """What a program that is whole says of itself.

    Attributes:
        demands: what the values of some inputs have to be, which only a run shows: number of the input, and the demand.
    """

    inputs: tuple[TosaBorder, ...]
    outputs: tuple[TosaBorder, ...]
    num_operators: int
    demands: tuple[tuple[int, Demand], ...] = ()


def check_tosa(model: bytes | memoryview) -> CheckedTosa:
    """Checks a TOSA program.

    Args:
        model: the flatbuffer.

    Raises:
        PayloadError: the reference model would trust something that is not so.
    """
    try:
        graph = root(model, IDENTIFIER)
        _check_head(graph)
        region = _only(graph.vector(_Graph.REGIONS), "regions")
        _check_fields(region, _Region, "the region")
        _text(region, _Region.NAME)
        return _BlockCheck(_only(region.vector(_Region.BLOCKS), "blocks")).check()
    except CorruptFlatbufferError as error:
        raise PayloadError(f"The TOSA program inside the payload is corrupted: {error}.", hint=_HINT) from None


def _only(vector: Vector, what: str) -> Table:
    need(vector.length == 1, f"it has {vector.length} {what}, where one is expected")
    return vector.table(0)


def _check_fields(table: Table, known: type[IntEnum], where: str) -> None:
    found = set(table.fields())
    need(found <= set(known), f"{where} has the unknown field {max(found, default=0)}")
    missing = [field.name.lower().replace("_", " ") for field in _ALWAYS[known] if field not in found]
    need(not missing, f"{where} has no {', '.join(missing)}")


def _text(table: Table, field: int) -> str:
    """A string field, which ends with a zero, as readers in C take for granted."""
    vector = table.vector(field)
    if not table.offset(field):
        return ""
    _check_end(vector)
    return table.string(field)


def _check_end(text: Vector) -> None:
    end = text.start + text.length
    need(end < len(text.data) and not text.data[end], "a text does not end")


def _names(table: Table, field: int) -> list[str]:
    vector = table.vector(field)
    names = list(vector.strings())
    for index, name in enumerate(vector.tables()):
        start = name.position + 4
        _check_end(Vector(vector.data, start, int.from_bytes(vector.data[name.position : start], "little")))
        need(names[index], "a name is empty")
    return names


def _check_head(graph: Table) -> None:
    """Versions; what they say is the reference model's to judge."""
    _check_fields(graph, _Graph, "the program")
    version, software = graph.table(_Graph.VERSION), graph.table(_Graph.SOFTWARE)
    if version is not None:
        _check_fields(version, _Version, "its version")
        for number in _Version:
            version.integer(number, "<B" if number is _Version.DRAFT else "<i")
    compatibility, readers = graph.table(_Graph.COMPATIBILITY), None
    if compatibility is not None:
        _check_fields(compatibility, _Compatibility, "what it asks of readers")
        need(not compatibility.integer(_Compatibility.FEATURES, "<Q"), "it asks readers for features")
        readers = compatibility.table(_Compatibility.READER)
    for table in (software, readers):
        if table is not None:
            _check_fields(table, _Software, "a version of software")
            for field in (_Software.MAJOR, _Software.MINOR, _Software.MICRO):
                table.integer(field)
            _text(table, _Software.MODIFIER)


class _BlockCheck:
    """The block of a program: its tensors, and its operators in their order."""

    def __init__(self, block: Table) -> None:
        from tosa.DType import DType
        from tosa.Op import Op

        self._block = block
        self._types = {value: name for name, value in vars(DType).items() if not name.startswith("_")}
        self._operators = {value: name for name, value in vars(Op).items() if not name.startswith("_")}
        self._bounds: dict[str, Parts] = {}
        self._asked: dict[str, list[Demand]] = {}

    def check(self) -> CheckedTosa:
        """Every operator reads what is there before it: for a value that never comes the reference model waits."""
        _check_fields(self._block, _Block, "the block")
        _text(self._block, _Block.NAME)
        known = self._known()
        inputs, outputs = (_names(self._block, field) for field in (_Block.INPUTS, _Block.OUTPUTS))
        for name in (*inputs, *outputs):
            need(name in known and known[name].dtype != SIZES, f"it has no tensor {name!r}")
        need(len(set(inputs)) == len(inputs), "an input stands for two")
        need(not any(known[name].data for name in inputs), "an input is a constant")
        self._bounds.update({name: of_input(known[name], name) for name in inputs})
        ready = set(inputs)
        operators = list(self._block.vector(_Block.OPERATORS).tables())
        for number, operator in enumerate(operators):
            self._check_operator(operator, number, known, ready)
        for name in outputs:
            need(name in ready, f"nothing makes its output {name!r}")
        borders = [tuple(TosaBorder(known[n].dtype, known[n].shape) for n in names) for names in (inputs, outputs)]
        demands = tuple((inputs.index(name), demand) for name, asked in self._asked.items() for demand in asked)
        return CheckedTosa(borders[0], borders[1], len(operators), demands)

    def _known(self) -> dict[str, Operand]:
        """Tensors and lists of sizes by name."""
        known: dict[str, Operand] = {}
        for field, read in ((_Block.TENSORS, self._tensor), (_Block.SHAPES, self._sizes)):
            for table in self._block.vector(field).tables():
                name = _text(table, _Tensor.NAME)
                need(name and name not in known, f"two values are called {name!r}")
                known[name] = read(table, name)
        elements = sum(math.prod(value.shape) for value in known.values())
        need(elements <= _MOST_ELEMENTS, f"its tensors have {elements} elements")
        return known

    def _tensor(self, table: Table, name: str) -> Operand:
        where = f"its tensor {name!r}"
        _check_fields(table, _Tensor, where)
        shape, number = table.vector(_Tensor.SHAPE).integers(), table.integer(_Tensor.TYPE, "<I")
        dtype = self._types.get(number, f"of the unknown type {number}")
        need(dtype in WIDTHS and dtype != SIZES, f"{where} is {dtype}, which no program has")
        fits = len(shape) <= _MOST_AXES and all(n >= 1 for n in shape)
        need(fits, f"{where} has the shape {list(shape)}")
        flags = (table.integer(field, "<B") for field in (_Tensor.VARIABLE, _Tensor.UNRANKED))
        need(not any(flags), f"{where} is a variable, or without axes")
        need(not _text(table, _Tensor.VARIABLE_NAME), f"{where} is a variable")
        need(not table.vector(_Tensor.SCALES).length, f"{where} has scales")
        return Operand(dtype, shape, _data(table, _Tensor.DATA, math.prod(shape) * WIDTHS[dtype], where))

    def _sizes(self, table: Table, name: str) -> Operand:
        where = f"its shape {name!r}"
        _check_fields(table, _Shape, where)
        rank = table.integer(_Shape.RANK, "<I")
        need(rank <= 2 * _MOST_AXES, f"{where} has {rank} sizes")
        data = _data(table, _Shape.DATA, rank * WIDTHS[SIZES], where)
        need(data is not None or not rank, f"{where} has no sizes")
        return Operand(SIZES, (rank,), data or b"")

    def _check_operator(self, table: Table, number: int, known: dict[str, Operand], ready: set[str]) -> None:
        op = table.integer(_Operator.OP, "<I")
        name = self._operators.get(op, "of an unknown kind")
        where = f"its operator {number} ({name})"
        _check_fields(table, _Operator, where)
        # The schema numbers attributes as it numbers operators.
        need(table.integer(_Operator.ATTRIBUTE_TYPE, "<B") == op, f"{where} has attributes of another")
        attribute, location = table.table(_Operator.ATTRIBUTE), table.table(_Operator.LOCATION)
        if attribute is None or location is None:
            raise CorruptFlatbufferError(f"{where} is not whole")
        _check_fields(location, _Location, where)
        _text(location, _Location.TEXT)
        read, made = _names(table, _Operator.INPUTS), _names(table, _Operator.OUTPUTS)
        for operand in read:
            need(operand in ready, f"{where} reads {operand!r}, which nothing has made")
        need(len(made) == 1, f"{where} makes {len(made)} values")
        (result,) = made
        need(result in known and result not in ready, f"{where} makes {result!r}, which is unknown or made already")
        ready.add(result)
        if name in ("CONST", "CONST_SHAPE"):
            is_constant = known[result].data is not None and (name == "CONST_SHAPE") == (known[result].dtype == SIZES)
            need(not read and is_constant, f"{where} is none")
            need(not attribute.fields(), f"{where} has an unknown attribute")
            self._bounds[result] = of_constant(known[result])
            return
        need(known[result].data is None, f"{where} makes {result!r}, which is a constant")
        try:
            call = Call([known[n] for n in read], known[result], attribute)
            check_call(name, call)
            for demand in demands_of(name, call):
                for asked in asked_of_inputs(demand, self._bounds[read[demand.operand]]):
                    self._asked.setdefault(asked, []).append(demand)
            self._bounds[result] = of_result(name, call, [self._bounds[n] for n in read])
        except CorruptFlatbufferError as error:
            raise CorruptFlatbufferError(f"{where} is none: {error}") from None


def _data(table: Table, field: int, size: int, where: str) -> bytes | None:
    """The value of a constant, None of what is computed."""
    vector = table.vector(field)
    if not vector.length:
        return None
    need(vector.length == size, f"{where} of {size} bytes has {vector.length}")
    return bytes(vector.data[vector.start : vector.start + size])
