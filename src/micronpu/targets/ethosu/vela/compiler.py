"""Call Vela's compiler core in memory, in a process that may crash; and write its program as its command does.

    x8, command stream, constants, scratch, fast scratch ── ethos-u ── y8

LiteRT Micro's Ethos-U kernel runs such a model. The custom operator's operands are the command stream, then the memory
of the driver's regions 0, 1 and 2; the metadata `OfflineMemoryAllocation` places inputs and outputs inside of the
scratch memory at the stream's addresses. Sources: the kernel of LiteRT Micro (`micro/kernels/ethos_u`), LiteRT Micro's
documentation of offline memory planning, and a file of Vela 5.2 for comparison.
"""

from __future__ import annotations

import functools
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields, replace
from typing import Any, TypeAlias

import numpy as np
from ai_edge_litert import schema_py_generated as schema

from micronpu.base import timing
from micronpu.base.cache import CACHE, Entry, in_short
from micronpu.base.errors import UnsupportedError
from micronpu.base.parsing import head_and_rest, with_head
from micronpu.emit.litert import add_tensor
from micronpu.ir.graph import Tensor
from micronpu.ir.types import DType, TensorType
from micronpu.targets.ethosu.accelerators import clock_hz, vela_package
from micronpu.targets.ethosu.options import EthosUOptions
from micronpu.targets.ethosu.payload import EthosUPayload, VelaIO
from micronpu.targets.ethosu.schedule.engines import NOTHING, EngineWork
from micronpu.targets.ethosu.stream import operation_offsets
from micronpu.targets.ethosu.vela.process import VELA, WorkerEndedError

_NO_LIMIT = 2**32
_SECONDS = 60.0
_SECONDS_PER_KIB = 0.1
"""Time limit. MobileNetV2 at 224 takes 0.2 s for 4 MiB, 400 blocks of convolutions 0.5 s for 1.3 MiB."""
_SMALL_MODEL = 2**17
"""Maximum size in bytes of models whose results are cached individually: usually one or two operators."""
_REFUSED, _TAKEN = b"-", b"+"


_TOOLS = ("ethos-u-vela", "ai-edge-litert", "flatbuffers", "numpy")
_NO_MATTER = (
    *("intermediates_dir", "debug_info", "config_ini", "carry_graph"),
    *("external_commands", "external_weights", "shared_weights", "search", "ray"),
)
"""Options that no plan depends on: their effect is in the Vela configuration, or in the payload."""


def entry_of(kind: str, *inputs: object) -> Entry:
    """Return the cache entry of a result from Vela, or from the code that writes and runs programs for it."""
    return CACHE.entry(kind, _TOOLS, _vela(), *inputs)


def options_of(spec: EthosUOptions) -> Any:
    """The options of a compilation that its cached results depend on."""
    return _hashed(spec, spec.ini)


@functools.lru_cache(maxsize=16)
def _hashed(spec: EthosUOptions, ini: str) -> object:
    values = tuple((f.name, getattr(spec, f.name)) for f in fields(spec) if f.name not in _NO_MATTER)
    return in_short((values, ini))


@functools.cache
def _vela() -> tuple[str, ...]:
    """Identity of Vela's core: its files and version."""
    package = vela_package()
    found = sorted(package.glob("regor*")) if package is not None else []
    return tuple(f"{path.name} {path.stat().st_size} {path.stat().st_mtime_ns}" for path in found if path.is_file())


class VelaError(UnsupportedError):
    """Vela refuses a program; the message is Vela's."""


@dataclass(frozen=True)
class LayerEstimate:
    """Vela's estimate for one operation.

    Attributes:
        source: index of the operator in Vela's input, or -1.
        cycles: of the whole operation, the maximum of the following.
        macs: multiply-accumulate operations.
        npu_cycles: of the arithmetic.
        memory_cycles: of reading and writing, per memory.
        staging_bytes: working memory in use.
        work: cost without the transfers of its weights.
    """

    name: str
    operator: str
    source: int
    cycles: int
    macs: int
    npu_cycles: int = 0
    memory_cycles: Mapping[str, int] = field(default_factory=dict)
    staging_bytes: int = 0
    work: EngineWork = NOTHING


@dataclass(frozen=True)
class VelaProgram(EthosUPayload):
    """A program compiled by Vela: the content of its payload, and Vela's estimates.

    Attributes:
        fast_scratch_size: bytes of the second scratch memory of Dedicated_Sram modes.
        cycles: Vela's estimate for the whole.
        memory: peak use in bytes per memory.
        layers: estimate per operation.
        clock_hz: clock of the cycles.
        sources: index of the operator in Vela's input for each operation of the stream, transfers included, or -1.
        places: number of the layer of each operation of the command stream, or -1.
    """

    fast_scratch_size: int
    cycles: int
    memory: dict[str, int]
    layers: tuple[LayerEstimate, ...]
    clock_hz: float
    sources: tuple[int, ...] = ()
    places: tuple[int, ...] = ()

    @property
    def sram_bytes(self) -> int:
        """Peak use of the SRAM, including weights if the memory mode stores them there."""
        return self.memory.get("Sram", 0)

    @property
    def milliseconds(self) -> float:
        return self.cycles / self.clock_hz * 1000


def compile_flatbuffer(
    model: bytes, spec: EthosUOptions, options: Mapping[tuple[str, str], str] | None = None
) -> VelaProgram:
    """Compile a LiteRT or TOSA flatbuffer.

    Args:
        options: (section, key) and value of compiler options in addition to those of the spec.

    Results of small programs are cached on disk; large ones are cached as part of a plan.

    Raises:
        VelaError: Vela refuses the program, leaves an operator to the CPU, crashes or times out.
        RuntimeUnavailableError: the process for Vela cannot be started.
    """
    accelerator = spec.accelerator
    system = (
        f"[architecture]\nmacs={accelerator.macs}\ncores={accelerator.cores}\n"
        f"[vela]\nsystem_config_name={spec.system_config}\nmemory_mode_name={spec.memory_mode}\n{spec.ini}"
    )
    question = (accelerator.architecture, system, _options(spec, options or {}))
    if len(model) > _SMALL_MODEL:
        return _compiled(model, spec, question)
    entry = entry_of("vela", question, model)
    if (data := entry.read()) is not None:
        if data[:1] == _REFUSED:
            raise VelaError(data[1:].decode())
        return unpack_program(memoryview(data)[1:])
    try:
        program = _compiled(model, spec, question)
    except VelaEndedError:
        raise
    except VelaError as error:
        entry.write(_REFUSED + error.what.encode())
        raise
    if entry.is_kept:
        entry.write(_TAKEN + pack_program(program))
    return program


class VelaEndedError(VelaError):
    """Vela's process ended before it responded; the next attempt may succeed."""


def _compiled(model: bytes, spec: EthosUOptions, question: tuple[str, str, str]) -> VelaProgram:
    architecture, system, options = question
    try:
        with timing.part("Vela"):
            answer = VELA.compile(
                architecture,
                model,
                "TFLITE" if model[4:8] == b"TFL3" else "TOSA",
                system,
                seconds=_SECONDS + _SECONDS_PER_KIB * len(model) / 1024,
                options=options,
                verbose=False,
            )
    except WorkerEndedError as error:
        raise VelaEndedError(f"Vela {error} on this program.") from error
    result = answer.result
    if answer.objection:
        raise VelaError(_objection(answer.text) or f"Vela refuses the program: {answer.objection}")
    left, taken = result["cpu_operators"], result["npu_operators"]
    if left:
        raise VelaError(f"Vela leaves {left} of {left + taken} operators to the CPU.")
    return VelaProgram(
        commands=answer.commands,
        constants=answer.constants,
        scratch_size=result["scratch_size"],
        fast_scratch_size=result["fast_scratch_size"],
        inputs=_io(result["inputs"]),
        outputs=_io(result["outputs"]),
        cycles=result["cycles"],
        memory=result["memory"],
        layers=_layers(result["tables"]),
        clock_hz=clock_hz(spec.ini, spec.system_config or ""),
        sources=_sources(result["tables"], answer.commands),
        places=_places(result["tables"], answer.commands),
    )


def pack_program(program: VelaProgram) -> bytes:
    own = {f.name: getattr(program, f.name) for f in fields(program) if f.name not in ("commands", "constants")}
    io = {name: [astuple(tensor) for tensor in own[name]] for name in ("inputs", "outputs")}
    record = {**own, **io, "layers": [astuple(layer) for layer in program.layers]}
    head = {"program": record, "commands": len(program.commands)}
    return with_head(head, program.commands, program.constants)


def unpack_program(data: memoryview) -> VelaProgram:
    """Parse the output of `pack_program`; the constants are a view of the data."""
    record, rest = head_and_rest(data)
    own, end = record["program"], record["commands"]
    for name in ("inputs", "outputs"):
        own[name] = _io(own[name])
    own["layers"] = tuple(replace(LayerEstimate(*record), work=EngineWork(*work)) for *record, work in own["layers"])
    own["sources"], own["places"] = tuple(own["sources"]), tuple(own["places"])
    return VelaProgram(commands=bytes(rest[:end]), constants=rest[end:], **own)


def _io(tensors: Sequence[Any]) -> tuple[VelaIO, ...]:
    return tuple(VelaIO(tuple(shape), *rest) for shape, *rest in tensors)


def _objection(text: str) -> str:
    """Vela's reason and constraint as one sentence, from ``Reason: ...`` and the lines that follow it."""
    _, found, rest = text.partition("Reason:")
    lines = [line.strip(" -\t") for line in rest.splitlines() if line.strip()]
    return f"Vela: {'; '.join(line.rstrip('.:') for line in lines[:4])}." if found and lines else ""


def _options(spec: EthosUOptions, more: Mapping[tuple[str, str], str]) -> str:
    values = {
        ("compiler", "enable_db"): "true",
        ("compiler", "output_format"): "Raw",
        ("compiler", "cop_format"): "COP1",
        ("scheduler", "optimize"): "Performance",
        ("scheduler", "arena_size_limit"): str(_NO_LIMIT),
        ("scheduler", "cpu_tensor_alignment"): "16",
        ("scheduler", "tensor_allocator"): "HillClimb",
    }
    values |= {**more, **spec.vela_options()}
    text = ""
    for section in ("compiler", "scheduler"):
        lines = [f"{key}={value}" for (where, key), value in values.items() if where == section]
        text += f"\n[{section}]\n" + "\n".join(lines) + "\n"
    return text


Tables: TypeAlias = Mapping[str, Sequence[Sequence[str]]]
"""Tables of Vela by name; the first row of each is its header."""


def _rows(tables: Tables, name: str) -> list[dict[str, str]]:
    """The rows of a table by column; none if Vela did not make it."""
    header, *rows = tables.get(name) or [()]
    return [dict(zip(header, row, strict=True)) for row in rows]


def _sources(tables: Tables, commands: bytes) -> tuple[int, ...]:
    if not {"queue", "optimised", "source"} <= tables.keys():
        return ()
    keys = {row["id"]: int(row["ext_key"]) for row in _rows(tables, "source")}
    optimised = {row["id"]: row["source_id"] for row in _rows(tables, "optimised")}
    return tuple(keys.get(optimised.get(i, ""), -1) for i in _queued(tables, "optimised_id", commands))


def _places(tables: Tables, commands: bytes) -> tuple[int, ...]:
    """Row of the table of estimates of each operation of a stream."""
    if not {"queue", "perf"} <= tables.keys():
        return ()
    numbers = {row["id"]: number for number, row in enumerate(_rows(tables, "perf"))}
    return tuple(numbers.get(i, -1) for i in _queued(tables, "scheduled_id", commands))


def _queued(tables: Tables, column: str, commands: bytes) -> Iterator[str]:
    """A column of Vela's queue table for each operation of a stream.

    The table has the offset of an operation's first command; its commands extend to the next offset.
    """
    queue = {int(row["offset"]): row[column] for row in _rows(tables, "queue")}
    starts = sorted(queue)
    for offset in operation_offsets(commands):
        number = bisect_right(starts, offset)
        yield queue[starts[number - 1]] if number else ""


def _layers(tables: Tables) -> tuple[LayerEstimate, ...]:
    # Vela's numbering excludes constants of shapes, but names the operator of the file.
    order = {row["id"]: int(row["ext_key"]) for row in _rows(tables, "source")}
    works = {row["id"]: _work(row) for row in _rows(tables, "figures")}
    return tuple(
        LayerEstimate(
            row["name"],
            row["operator"],
            order.get(row["source_id"], -1),
            int(row["op_cycles"]),
            int(row["mac_count"]),
            int(row["npu_cycles"]),
            memory_cycles={name.removesuffix("_ac"): int(n) for name, n in row.items() if name.endswith("_ac")},
            staging_bytes=int(row["staging_usage"]),
            work=works.get(row["id"], NOTHING),
        )
        for row in _rows(tables, "perf")
    )


def _work(row: Mapping[str, str]) -> EngineWork:
    """Cost of an operation without the transfers of its weights; an empty cell means zero."""

    def cells(end: str) -> list[int]:
        return [int(cell or 0) for name, cell in row.items() if name.endswith(end)]

    # The table has both the bytes of the transfer of weights and those that the operation reads.
    weights, scales = (max(cells(end), default=0) for end in ("Weights_read", "Scales_read"))
    (arithmetic,) = cells("est_op_cycles_without_buffering")
    return EngineWork(arithmetic, sum(cells("FeatureMap_ac")), weights + scales)


OPERATOR = "ethos-u"
ALLOCATION = "OfflineMemoryAllocation"
_OPTIONS = bytes((1, 4, 1))  # a flexbuffer of the number 1: the type of the operator's operands
_ALIGNMENT = 16
_ANYWHERE, _VERSION = -1, 0


def optimised(
    program: VelaProgram, inputs: Sequence[tuple[str, Tensor]], outputs: Sequence[tuple[str, Tensor]]
) -> tuple[schema.ModelT, tuple[str, bytes]]:
    """Return the model in LiteRT's object form, and its metadata, for names and tensors in the program's order."""
    model, graph = schema.ModelT(), schema.SubGraphT()
    model.version, model.buffers, model.subgraphs = 3, [schema.BufferT()], [graph]
    graph.name, graph.tensors = "main", []
    places: list[int] = []

    def tensor(name: str, type: TensorType, place: int, data: bytes | None = None) -> int:
        places.append(place)
        return add_tensor(model, graph, name, type, None if data is None else np.frombuffer(data, np.uint8))

    def memory(name: str, size: int, place: int, data: bytes | None = None) -> int:
        return tensor(name, TensorType((size,), DType.UINT8), place, data)

    # No padding after the stream: the driver would interpret it as further actions, and refuses zeros.
    commands = program.commands
    constants = (bytes(program.constants) or bytes(_ALIGNMENT)) + bytes(-len(program.constants) % _ALIGNMENT)
    stream = memory("ethos_u_command_stream", len(commands), _ANYWHERE, commands)
    read_only = memory("read_only", len(constants), _ANYWHERE, constants)
    scratch = fast = memory("scratch", program.scratch_size, 0)
    if program.fast_scratch_size:
        fast = memory("scratch_fast", program.fast_scratch_size, _ANYWHERE)
    graph.inputs = [tensor(n, t.type, b.address) for (n, t), b in zip(inputs, program.inputs, strict=True)]
    graph.outputs = [tensor(n, t.type, b.address) for (n, t), b in zip(outputs, program.outputs, strict=True)]
    code = schema.OperatorCodeT()
    code.builtinCode = code.deprecatedBuiltinCode = int(schema.BuiltinOperator.CUSTOM)
    code.customCode, code.version = OPERATOR, 1
    model.operatorCodes = [code]
    operator = schema.OperatorT()
    operator.opcodeIndex = 0
    operator.inputs, operator.outputs = [stream, read_only, scratch, fast, *graph.inputs], list(graph.outputs)
    operator.customOptions = np.frombuffer(_OPTIONS, np.uint8)
    graph.operators = [operator]
    words = np.array([_VERSION, len(model.subgraphs), len(places), *places], "<i4")
    return model, (ALLOCATION, words.tobytes())
