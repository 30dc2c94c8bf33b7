"""Everything of micronpu that reads files, as targets of the fuzzer.

A further target is one function with `@target`, which gives its seeds and returns how a file is read.
"""

from __future__ import annotations

import io
import math
import os
import random
import struct
import tempfile
import zlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
from tests.fuzz.harness import Mutate, Target
from tests.fuzz.mutate import mutate_bytes, mutate_text, mutate_within
from tests.fuzz.programs import KINDS

from micronpu.host.litert_executor import Buffer, LiteRtProgram, Mode, scalar_type_of
from micronpu.host.tosa_executor import TosaProgram
from micronpu.program.pte import extents
from micronpu.runtime import Digest, stamp, state_of

GOLDEN = Path(__file__).parents[1] / "golden"
FURTHER = "MICRONPU_FUZZ_PROGRAMS"
"""A folder with what `tests.fuzz.programs` has written."""
_RECORD, _MAGIC = 64, b"MNPR"
_MOST_ELEMENTS = 1 << 20

Read = Callable[[bytes], str]
TARGETS: dict[str, Callable[[], Target]] = {}
"""By name; a target is made when it is needed, since some import torch."""


def target(
    name: str, mutate: Mutate, share: float = 1.0
) -> Callable[[Callable[[], tuple[Sequence[bytes], Read]]], None]:
    """Registers a function that gives seeds and how a file is read."""

    def register(make: Callable[[], tuple[Sequence[bytes], Read]]) -> None:
        def made() -> Target:
            seeds, read = make()
            return Target(name, seeds, read, mutate, share)

        TARGETS[name] = made

    return register


def golden(*kinds: str) -> list[bytes]:
    """Golden programs: all, or those of some kinds."""
    return [path.read_bytes() for path in sorted(GOLDEN.glob("*.pte")) if not kinds or path.stem in kinds]


# --- mutations that get behind the checksums ---


def _stamped(data: bytes) -> bytes:
    """With the right digest, as somebody would have it who means to do harm; as it is where there is no place."""
    from micronpu.base.errors import PayloadError

    try:
        return stamp(data)
    except PayloadError:
        return data


def _model(data: bytes) -> tuple[int, int]:
    """Where the inner model of a program is, and its size."""
    record = data.index(_MAGIC)
    return record + _RECORD, struct.unpack_from("<I", data, record + 28)[0]


def _with_checksums(data: bytes) -> bytes:
    """The program with the checksums of its container right again."""
    record = data.index(_MAGIC)
    start, size = _model(data)
    changed = bytearray(data)
    struct.pack_into("<I", changed, record + 16, zlib.crc32(data[start : start + size]))
    struct.pack_into("<I", changed, record + 32, zlib.crc32(changed[record : record + 32]))
    return bytes(changed)


def plan(data: bytes, random_: random.Random, others: Sequence[bytes]) -> bytes:
    """The flatbuffer of the program, but for what is inside of payloads."""
    program_size, _, _ = extents(data, "it")
    end = data.find(_MAGIC)
    end = end if 0 < end < program_size else program_size
    # The plan lies before the payloads or behind them: both parts are tried.
    behind = _model(data)[0] + _model(data)[1] if end < program_size else end
    start, stop = random_.choice(((48, end), (behind, program_size))) if behind < program_size - 8 else (48, end)
    return _stamped(mutate_within(data, random_, start, stop - start))


def container(data: bytes, random_: random.Random, others: Sequence[bytes]) -> bytes:
    """Header and record of a payload."""
    start, size = _model(data)
    head = start - _RECORD - 16
    changed = mutate_within(data, random_, head, random_.choice((start - head, start + size - head)))
    return _stamped(changed)


def record(data: bytes, random_: random.Random, others: Sequence[bytes]) -> bytes:
    """The record of the container, with the right checksum."""
    start, _ = _model(data)
    changed = bytearray(mutate_within(data, random_, start - _RECORD + 4, 28))
    begin = start - _RECORD
    struct.pack_into("<I", changed, begin + 32, zlib.crc32(changed[begin : begin + 32]))
    return _stamped(bytes(changed))


def inner(data: bytes, random_: random.Random, others: Sequence[bytes]) -> bytes:
    """The graph inside of the container, with right checksums."""
    start, size = _model(data)
    return _stamped(_with_checksums(mutate_within(data, random_, start, size)))


def blocks(data: bytes, random_: random.Random, others: Sequence[bytes]) -> bytes:
    """The blocks of an Ethos-U payload."""
    start = data.index(b"vela_bin_stream")
    size = data.index(b"vela_end_stream") + 32 - start
    return _stamped(mutate_within(data, random_, start, size))


def mutate_inside(data: bytes, random_: random.Random, others: Sequence[bytes]) -> bytes:
    """A graph that keeps its length, so that most offsets still lead where they did."""
    return mutate_within(data, random_, 8, len(data) - 8)


# --- programs ---


def _run_program(known: Sequence[bytes], graph: bool = False) -> Read:
    """Loads and runs a program as the process of an isolated one does.

    Args:
        graph: of Ethos-U programs the graph that they carry, not the command stream.
    """
    import torch

    import micronpu.quantize  # noqa: F401
    from micronpu.runtime.plugin import load_plugin
    from micronpu.runtime.program import HostProgram, RunOptions

    class Program(HostProgram):
        _checks_digest = False

    load_plugin()
    options = RunOptions(isolated=False, graph=graph)
    torch.set_num_threads(1)

    def outputs(data: bytes) -> list[np.ndarray] | None:
        program = Program(data, options)
        given = []
        for signature in program.inputs:
            if signature is None or math.prod(signature.shape) > _MOST_ELEMENTS:
                return None
            count = math.prod(signature.shape)
            values = (torch.arange(count) % 251 - 125).reshape(signature.shape)
            given.append(values.to(getattr(torch, signature.dtype)))
        made = program.run(*given)
        return [y.float().numpy() if isinstance(y, torch.Tensor) else np.asarray(y) for y in made]

    results = [outputs(data) for data in known]

    def read(data: bytes) -> str:
        state = state_of(data)
        if state is Digest.RIGHT and data in known:
            return "not changed"
        made = outputs(data)
        if made is None:
            return "loaded"
        same = any(
            result is not None
            and len(result) == len(made)
            and all(np.array_equal(a, b) for a, b in zip(result, made, strict=True))
            for result in results
        )
        return "ran: the same result" if same else "ran: another result"

    return read


@target("programs, as they are found", mutate_bytes, share=4)
def _accidental() -> tuple[Sequence[bytes], Read]:
    """Damage as it happens: the digest tells, whatever else is checked."""
    from micronpu.base.errors import MicroNpuError
    from micronpu.program.pte import read_pte

    seeds = golden()
    run = _run_program(seeds)

    def read(data: bytes) -> str:
        if data in seeds:
            return "not changed"
        try:
            read_pte(data)
        except MicroNpuError:
            return "refused"
        state = state_of(data)
        if state is Digest.RIGHT:
            raise AssertionError("a changed program has the right digest")
        if state is Digest.WRONG:
            return "refused by its digest"
        return f"without digest, {run(data)}"

    return seeds, read


def made_here() -> list[bytes]:
    """Those further kinds that need no compiler."""
    return [make() for kind, make in KINDS.items() if kind in ("stripped", "stripped-combined")]


@target("plans, signed", plan, share=6)
def _plans() -> tuple[Sequence[bytes], Read]:
    return golden(), _run_program(golden())


@target("plans of further kinds, signed", plan, share=14)
def _further() -> tuple[Sequence[bytes], Read]:
    """Recurrent loops, states, sparse weights, int16, stripped programs: `tests.fuzz.programs`."""
    folder = os.environ.get(FURTHER)
    seeds = [path.read_bytes() for path in sorted(Path(folder).glob("*.pte"))] if folder else made_here()
    return seeds, _run_program(seeds)


@target("containers, signed", container)
def _containers() -> tuple[Sequence[bytes], Read]:
    seeds = golden("neutron", "combined", "ethosu-litert")
    return seeds, _run_program(seeds)


@target("records of containers, signed", record)
def _records() -> tuple[Sequence[bytes], Read]:
    seeds = golden("neutron", "combined", "ethosu-litert")
    return seeds, _run_program(seeds)


@target("LiteRT graphs, signed", inner, share=4)
def _litert() -> tuple[Sequence[bytes], Read]:
    seeds = golden("neutron", "combined", "ethosu-litert")
    return seeds, _run_program(seeds, graph=True)


@target("TOSA graphs, signed", inner, share=1)
def _tosa() -> tuple[Sequence[bytes], Read]:
    seeds = golden("ethosu-tosa")
    return seeds, _run_program(seeds, graph=True)


def _run_graph(kind: type[LiteRtProgram] | type[TosaProgram]) -> Read:
    """Loads a graph behind its check and runs it as the delegate does, on numbers that may be rows and divisors."""

    def read(data: bytes) -> str:
        if kind is LiteRtProgram and zlib.crc32(data) % 4 == 0:  # the kernels of other modes believe other things
            run(kind(data, Mode.FAST))
        return run(kind(data, Mode.REFERENCE))

    def run(program: LiteRtProgram | TosaProgram) -> str:
        if sum(tensor.size for tensor in (*program.inputs, *program.outputs)) > _MOST_ELEMENTS:
            return "loaded"
        counts = [b.size // b.numpy_type.itemsize for b in program.inputs]
        given = [(1 + np.arange(n) % 2).astype(b.numpy_type) for n, b in zip(counts, program.inputs, strict=True)]
        made = [np.zeros(b.size, np.uint8).view(b.numpy_type) for b in program.outputs]
        program.run(*([Buffer(a.ctypes.data, a.nbytes, scalar_type_of(a.dtype)) for a in x] for x in (given, made)))
        return "ran"

    return read


def _smallest(models: Iterable[tuple[str, bytes]]) -> list[bytes]:
    """The smallest two models of each kind."""
    kinds: dict[str, list[bytes]] = {}
    for kind, model in models:
        kinds.setdefault(kind, []).append(model)
    return [model for found in kinds.values() for model in sorted(found, key=len)[:2]]


@target("LiteRT graphs of every operator", mutate_inside, share=4)
def _litert_operators() -> tuple[Sequence[bytes], Read]:
    from tests.cases import all_cases
    from tests.oracle.ops.test_operators import legal

    from micronpu.emit.litert import to_litert

    rows = ((f"{row.family} {row.op.name}", bytes(to_litert(legal(row.graph())).data)) for row in all_cases())
    return _smallest(rows), _run_graph(LiteRtProgram)


@target("TOSA graphs of every operator", mutate_inside, share=4)
def _tosa_operators() -> tuple[Sequence[bytes], Read]:
    from tests.tosa_rows import ROWS

    return _smallest((row.name.partition("_INT")[0], row.model()) for row in ROWS), _run_graph(TosaProgram)


@target("Ethos-U payloads, signed", blocks)
def _ethosu() -> tuple[Sequence[bytes], Read]:
    seeds = golden("ethosu-litert", "ethosu-tosa")
    return seeds, _run_program(seeds)


@target("inspection", mutate_bytes)
def _inspection() -> tuple[Sequence[bytes], Read]:
    import json

    from micronpu.cli.inspection import inspect_pte

    def read(data: bytes) -> str:
        json.dumps(inspect_pte(data, "a.pte").to_dict())
        return "inspected"

    return golden(), read


# --- text, arrays, saved programs ---


def _in_file(suffix: str, use: Callable[[Path], object]) -> Read:
    """Reads bytes through a file of this process."""

    def read(data: bytes) -> str:
        path = Path(tempfile.gettempdir()) / f"micronpu-fuzz-{os.getpid()}{suffix}"
        path.write_bytes(data)
        try:
            use(path)
        finally:
            path.unlink()
        return "read"

    return read


@target("chips", mutate_text, share=2)
def _chips() -> tuple[Sequence[bytes], Read]:
    from micronpu import chips
    from micronpu.chips.chip import load_chip

    folder = Path(chips.__file__).parent
    return [path.read_bytes() for path in sorted(folder.rglob("*.toml"))], _in_file(".toml", load_chip)


@target("Vela configurations", mutate_text)
def _vela() -> tuple[Sequence[bytes], Read]:
    from micronpu.targets.ethosu.accelerators import default_ini
    from micronpu.targets.ethosu.options import EthosUOptions

    def use(path: Path) -> None:
        EthosUOptions("ethos-u55-128", config_ini=str(path))

    return [default_ini().encode()], _in_file(".ini", use)


@target("kernel selections", mutate_text, share=0.5)
def _selections() -> tuple[Sequence[bytes], Read]:
    from micronpu.targets.neutron.sdk import merge_kernel_selections, render_selection

    def use(path: Path) -> None:
        merge_kernel_selections([path], path)

    return [render_selection(["conv2d", "add", "softmax"]).encode()], _in_file(".c", use)


_GRAPH = """\
graph(%x: int8[1,5,4,4, 0.2*(q-4)], %z: int8[4, 0.1*(q+0)]) {
  %p: int8[1,2,2,4, 0.2*(q-4)] = max_pool2d{kernel=(3, 2), stride=(2, 2), padding=(0,0,0,0)}(%x)  # pool, pool_1
  %y: int8[1,2,2,4, 0.3*(q-9)] = add(%p, %z)
  return %y, %p
}"""


@target("graphs as text", mutate_text)
def _graphs() -> tuple[Sequence[bytes], Read]:
    from tests.graph_text import parse_graph

    import micronpu.ops.elementwise
    import micronpu.ops.pooling  # noqa: F401
    from micronpu.base.errors import ModelError

    def read(data: bytes) -> str:
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            raise ModelError("no text") from error
        parse_graph(text)
        return "read"

    parse_graph(_GRAPH)
    return [_GRAPH.encode()], read


@target("arrays", mutate_bytes)
def _arrays() -> tuple[Sequence[bytes], Read]:
    from micronpu.cli.files import load_arrays

    memory = io.BytesIO()
    np.savez_compressed(memory, a=np.arange(12.0).reshape(3, 4), b=np.zeros(2, np.int8))
    single = io.BytesIO()
    np.save(single, np.arange(12, dtype=np.int16).reshape(3, 4))

    def use(path: Path) -> None:
        load_arrays(str(path))

    npy, npz = _in_file(".npy", use), _in_file(".npz", use)
    return [memory.getvalue(), single.getvalue()], lambda data: (npz if data[:1] == b"P" else npy)(data)


@target("saved programs", mutate_bytes, share=0.2)
def _saved() -> tuple[Sequence[bytes], Read]:
    import zipfile

    import torch

    import micronpu.quantize  # noqa: F401
    from micronpu.cli.archive import load_archive

    memory = io.BytesIO()
    model = torch.nn.Sequential(torch.nn.Conv2d(2, 4, 3), torch.nn.ReLU())
    torch.export.save(torch.export.export(model, (torch.randn(1, 2, 6, 6),)), memory)
    # Without checksums that hide what is inside from mutations: the records as they are.
    with zipfile.ZipFile(memory) as archive:
        names = archive.namelist()
    assert names
    return [memory.getvalue()], _in_file(".pt2", load_archive)


@target("logs of boards", mutate_text)
def _logs() -> tuple[Sequence[bytes], Read]:
    from tests import board_logs

    from micronpu.cli.probe import log_view

    printed = (
        *("micronpu-output net 0 0 int16:1x2x1x2:0,2,3,1 8 0 AQACAAMA", "micronpu-run net 0 0 1200"),
        *("micronpu-output net 0 0 int16:1x2x1x2:0,2,3,1 8 6 BAA=", "micronpu-value net 1 7 int8:2:0 2 0 AQI="),
    )
    ending = "\nPASS: 1 vectors, 0 elements differ\n"

    def read(data: bytes) -> str:
        log_view(data, "console.txt").to_json()
        return "read"

    return [("\n".join(printed) + ending).encode(), board_logs.own().encode()], read


@target("ETDumps", mutate_bytes)
def _records_of_runs() -> tuple[Sequence[bytes], Read]:
    from tests import board_logs

    from micronpu.board.logs import read_log

    whole = board_logs.etdump()

    def read(data: bytes) -> str:
        read_log(data, "run.etdump")
        return "read"

    return [whole, len(whole).to_bytes(4, "little") + whole], read


@target("measurements", mutate_text)
def _measurements() -> tuple[Sequence[bytes], Read]:
    from tests import board_logs

    from micronpu.board.logs import read_measurement, write_measurement

    path = Path(tempfile.gettempdir()) / f"micronpu-fuzz-{os.getpid()}-measurement.toml"
    write_measurement(path, board_logs.own().encode(), b"", "a board", is_emulated=True)
    seed = path.read_bytes()
    path.unlink()

    def read(data: bytes) -> str:
        read_measurement(data, "measurement.toml")
        return "read"

    return [seed], read


# --- models of other tools ---


def _read_model(suffix: str, seeds: Iterable[bytes]) -> tuple[Sequence[bytes], Read]:
    """Those of the seeds that are read, and their reader without the file's own runtime, which has a process."""
    from micronpu.base.errors import MicroNpuError
    from micronpu.frontend.model_files import read_model

    read = _in_file(suffix, lambda path: read_model(path, verify_import=False))

    def is_read(data: bytes) -> bool:
        try:
            return read(data) == "read"
        except MicroNpuError:
            return False

    return [data for data in seeds if is_read(data)], read


@target("LiteRT models", mutate_inside, share=2)
def _litert_models() -> tuple[Sequence[bytes], Read]:
    from tests.cases import all_cases
    from tests.oracle.ops.test_operators import legal

    from micronpu.emit.litert import to_litert

    rows = ((f"{row.family} {row.op.name}", bytes(to_litert(legal(row.graph())).data)) for row in all_cases())
    return _read_model(".tflite", _smallest(rows))


@target("ONNX models", mutate_bytes, share=2)
def _onnx_models() -> tuple[Sequence[bytes], Read]:
    from tests.compile.frontend.onnx_rows import ROWS

    return _read_model(".onnx", _smallest((row.kind, row.model()) for row in ROWS))


# --- servers ---


@target("answers of GDB servers", mutate_text)
def _gdb_servers() -> tuple[Sequence[bytes], Read]:
    """A line for each answer, whose checksum is right; the connection ends after the last."""
    from tests.board.gdb_server import Board, served, written

    from micronpu.board.probe import ProbeOptions, run_on_probe

    class Answers(Board):
        def __init__(self, lines: Iterable[bytes]) -> None:
            super().__init__()
            self.lines = iter(lines)

        def answer(self, packet: str) -> str | None:
            return next(self.lines, b"X01").decode("latin-1")

    class Recorded(Board):
        def answer(self, packet: str) -> str | None:
            answers.append((super().answer(packet) or "").encode("latin-1"))
            return answers[-1].decode("latin-1")

    def run(board: Board) -> str:
        path = Path(tempfile.gettempdir()) / f"micronpu-fuzz-{os.getpid()}.elf"
        try:
            with served(board) as address:
                done = run_on_probe(written(path), ProbeOptions(address, seconds=2))
        finally:
            path.unlink()
        return "passed" if done.exit_code == 0 else "failed"

    answers: list[bytes] = []
    seeds = []
    for options in ({}, {"by": "breakpoint"}, {"fault": 1 << 9}):
        answers.clear()
        run(Recorded(**options))
        seeds.append(b"\n".join(answers))
    return seeds, lambda data: run(Answers(data.split(b"\n")))
