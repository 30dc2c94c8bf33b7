"""The sections of a payload with an open container, and the operators of its LiteRT or TOSA program."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from micronpu.base.errors import PayloadError
from micronpu.base.flatbuffer import CorruptFlatbufferError
from micronpu.container import payload as container
from micronpu.container.litert_view import read_model
from micronpu.container.payload import Payload, parse, read_container
from micronpu.emit.tosa_file import SHAPE
from micronpu.host.tosa_executor import check_tosa
from micronpu.report.inside import Inside, InsideStep, InspectedDelegate, Made, Section, Tensor, shape_text


def container_view(blob: bytes) -> Inside:
    """Return the operators of a payload with an open container."""
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
    tensors = dict(zip(names, map(str, model.tensors), strict=True))

    def of(indices: Iterable[int]) -> tuple[str, ...]:
        return tuple(names[i] for i in indices if i >= 0)

    operators = tuple(_Operator(o.name, of(o.inputs), of(o.outputs)) for o in model.operators)
    return _Integers(tensors, of(model.inputs), of(model.outputs), operators)


def _tosa(data: bytes) -> _Integers:
    # Constants are operators in this format; their readers refer to them by name, as in the other format.
    program = check_tosa(data)
    known = [*program.inputs, *program.constants.items(), *((step.output, step.call.result) for step in program.steps)]
    tensors = {name: shape_text(o.dtype.lower(), o.shape) for name, o in known if o.dtype != SHAPE}
    inputs, outputs = (tuple(name for name, _ in io) for io in (program.inputs, program.outputs))
    operators = tuple(_Operator(step.name, step.inputs, (step.output,)) for step in program.steps)
    return _Integers(tensors, inputs, outputs, operators)


def inspect(backend: str, blob: bytes) -> InspectedDelegate:
    """Return the sections and tensors of a payload."""
    payload = container.parse(blob)
    kind = "for silicon" if payload.kind == "silicon" else "open reference container, runs on a host only"
    versions = ", ".join(f"{tool} {version}" for tool, version in payload.versions.items())
    layout = payload.layout
    record = ""
    if payload.kind == "reference":
        program = read_container(payload.microcode, payload.weights)  # raises for a damaged container
        record = f"{program.num_operators} LiteRT operators, checksum {program.crc32:08x} is right"
    sections = (
        Section("header", layout.header_size, f"version {layout.version}"),
        Section("microcode", len(payload.microcode), record),
        Section("weights", len(payload.weights), container.content_of(payload.weights)),
        Section("kernels", len(payload.kernels)),
    )
    tensors = tuple(
        Tensor(
            f"{kind} {i}",
            (),
            "",
            f"argument {slot.index}" + (", the runtime makes channels last of it" if slot.channels_last else ""),
        )
        for kind, slots in (("input", layout.inputs), ("output", layout.outputs))
        for i, slot in enumerate(slots)
    )
    return InspectedDelegate(
        backend, len(blob), f"{kind}{f', made by {versions}' if versions else ''}", sections, tensors
    )
