"""The operators of the LiteRT or TOSA program in an open container."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from micronpu.base.errors import PayloadError
from micronpu.base.flatbuffer import CorruptFlatbufferError, Table, root
from micronpu.container.litert_view import element_name, read_model
from micronpu.container.payload import Payload, parse
from micronpu.container.reference import read_container
from micronpu.emit import tosa_schema as schema
from micronpu.report.inside import Inside, InsideStep, Made, shape_text


def container_view(blob: bytes) -> Inside:
    """Return the operators of a payload with an open container.

    Raises:
        PayloadError: it cannot be read, or holds microcode.
    """
    payload = parse(blob)
    if payload.kind != "reference":
        raise PayloadError("microcode, which is not public")
    try:
        return _inside(payload)
    except CorruptFlatbufferError as error:
        raise PayloadError(str(error)) from error


def _inside(payload: Payload) -> Inside:
    model = read_container(payload.microcode, payload.weights).model
    layout = payload.layout
    graph = _litert(model) if model[4:8] == b"TFL3" else _tosa(model)
    made: dict[str, tuple[Made, ...]] = {
        name: ((-1 - slot.index, 0),) for name, slot in zip(graph.inputs, layout.inputs, strict=False)
    }
    steps = []
    for number, operator in enumerate(graph.operators):
        reads = tuple(source for name in operator.reads for source in made.get(name, ()))
        constants = tuple(
            (f"constant {name}", graph.tensors.get(name, "")) for name in operator.reads if name not in made and name
        )
        outputs = tuple((("name", name), ("type", graph.tensors.get(name, ""))) for name in operator.makes)
        result = operator.makes[0] if operator.makes else ""
        steps.append(InsideStep(operator.name, reads, constants, outputs, tensor=result))
        for output, name in enumerate(operator.makes):
            made[name] = ((number, output),)
    results: list[tuple[Made, ...]] = [()] * len(layout.outputs)
    for name, slot in zip(graph.outputs, layout.outputs, strict=False):
        results[slot.index] = made.get(name, ())
    return Inside(tuple(steps), tuple(results))


@dataclass(frozen=True)
class _Operator:
    name: str
    reads: tuple[str, ...]
    makes: tuple[str, ...]


@dataclass(frozen=True)
class _Integers:
    """A LiteRT or TOSA graph: `tensors` maps names to type and shape; tensors without producer are constants."""

    tensors: Mapping[str, str]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    operators: tuple[_Operator, ...]


def _litert(data: bytes) -> _Integers:
    model = read_model(data)
    # Names are more readable than numbers, but only micronpu's own are sure to be unique.
    own = [t.name for t in model.tensors]
    names = [n if own.count(n) == 1 else f"{n}#{i}" for i, n in enumerate(own)] if len(set(own)) < len(own) else own
    tensors = {}
    for name, tensor in zip(names, model.tensors, strict=True):
        suffix = f", scale {tensor.scale[0]:.6g}, zero point {tensor.zero_point[0]}" if tensor.scale else ""
        tensors[name] = shape_text(element_name(tensor.type), tensor.shape) + suffix

    def of(indices: Iterable[int]) -> tuple[str, ...]:
        return tuple(names[i] for i in indices if i >= 0)

    operators = tuple(_Operator(o.name, of(o.inputs), of(o.outputs)) for o in model.operators)
    return _Integers(tensors, of(model.inputs), of(model.outputs), operators)


def _tosa(data: bytes) -> _Integers:
    # TosaGraph.regions 1; TosaRegion.blocks 1; TosaBasicBlock: operators 1, tensors 2, inputs 3, outputs 4;
    # TosaTensor: name 0, shape 1, type 2; TosaOperator: op 0, inputs 3, outputs 4.
    types = {kind.value: kind.name.lower() for kind in schema.DType}
    names = {kind.value: kind.name for kind in schema.Op}

    def operator(table: Table) -> _Operator:
        number = table.integer(0, "<I")
        name = names.get(number, f"operator {number}")
        return _Operator(name, tuple(table.vector(3).strings()), tuple(table.vector(4).strings()))

    block = root(memoryview(data), schema.IDENTIFIER).vector(1).table(0).vector(1).table(0)
    tensors = {
        t.string(0): shape_text(types.get(t.integer(2, "<I"), "?"), t.vector(1).integers())
        for t in block.vector(2).tables()
    }
    # Constants are operators in this format; their readers refer to them by name, as in the other format.
    every = [operator(table) for table in block.vector(1).tables()]
    operators = tuple(o for o in every if not o.name.startswith("CONST"))
    return _Integers(tensors, tuple(block.vector(3).strings()), tuple(block.vector(4).strings()), operators)
