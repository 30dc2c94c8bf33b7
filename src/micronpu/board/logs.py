"""Reader of time measurements printed by firmware, in several common formats, and of `measurement.toml`.

    form              by                                                      lines
    micronpu          `micronpu deploy` with -DMICRONPU_PROFILE               micronpu-cycles NAME INSTRUCTION CYCLES
                      the same with -DMICRONPU_RUNS=N                         micronpu-run NAME VECTOR RUN CYCLES
    ExecuTorch        ExecuTorch's runner for Arm, Zephyr's samples           ethosu_pmu_cycle_cntr : CYCLES
    evaluation kit    Arm's ml-embedded-evaluation-kit                        INFO - NPU TOTAL cycles: CYCLES
    helia-profiler    Ambiq's profiler                                        tables between HPX_START and HPX_END
    MicroProfiler     TensorFlow Lite Micro                                   NAME took CYCLES ticks (MS ms).
    ETDump            ExecuTorch's event tracer: a file, or its base64        a flatbuffer

`measurement.toml` keeps what a run on a board has measured, of which program, and where.

Other lines, and prefixes such as a time or a log level, are ignored.  Repeated measurements become their median.
"""

from __future__ import annotations

import base64
import binascii
import csv
import math
import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from micronpu.base.errors import FileError
from micronpu.base.files import write_file
from micronpu.base.flatbuffer import CorruptFlatbufferError, Table, root
from micronpu.base.installed import VERSION as OWN_VERSION
from micronpu.base.parsing import JsonObject, parse_toml, toml_text
from micronpu.board.printed import count, numbers_read, read_printed
from micronpu.report.codec import DecodeError, decode, encode

NPU, CALL, OPERATION, RUN = "npu", "call", "operation", "run"
"""Kinds of measurements: busy cycles of the NPU, an instruction of the program, an operation of a delegate or a layer
of another runtime, and a whole run."""
_LONGEST = 64 << 20
"""Maximum bytes of a log."""
_FORMS = "one with lines `micronpu-cycles ...`, an ETDump, or one of the other forms on the page about calibrating"


@dataclass(frozen=True)
class Measured:
    """A measurement.

    Attributes:
        kind: `NPU`, `CALL`, `OPERATION` or `RUN`.
        name: of the program, the operation or the counter.
        number: of the instruction or layer; -1 without one.
        ticks: of the counter, the median of all measurements.
    """

    kind: str
    name: str
    number: int
    ticks: float
    times: int = 1


@dataclass(frozen=True)
class BoardLog:
    """A log.

    Attributes:
        form: see the module.
        program: SHA-256 of the program that ran or of its first payload, in hexadecimal; "" if unknown.
        clock_mhz: of the counter; None if unknown.
        npu_clock_mhz: of the NPU; None if unknown.
        beats: beats of the bus, by the name of the hardware's counter.
        chip: of the program; "" if unknown.
        board: where it ran; "" if unknown.
        is_emulated: True if the board was an emulator, whose cycles are estimates.
        tools: versions of tools, by name.
    """

    name: str
    form: str
    rows: tuple[Measured, ...]
    program: str = ""
    clock_mhz: float | None = None
    npu_clock_mhz: float | None = None
    beats: Mapping[str, int] = field(default_factory=dict)
    chip: str = ""
    board: str = ""
    is_emulated: bool = False
    tools: Mapping[str, str] = field(default_factory=dict)

    def of(self, kind: str) -> tuple[Measured, ...]:
        return tuple(row for row in self.rows if row.kind == kind)


def read_log(data: bytes, name: str) -> BoardLog:
    """Read a log."""
    if len(data) > _LONGEST:
        raise FileError(f"The log {name} has {len(data):,} bytes.", hint=f"one of at most {_LONGEST:,}")
    if _is_etdump(data):
        return _etdump(data, name)
    with numbers_read(name):
        return _read_text(data, name)


def _read_text(data: bytes, name: str) -> BoardLog:
    text = data.decode("utf-8", errors="replace")
    lines = text.splitlines()
    if (own := _own(lines, name)) is not None:
        return own
    if "micronpu-etdump " in text:
        return _etdump(read_printed(data, name).etdump, name)
    if (packed := _base64(lines)) is not None:
        return _etdump(packed, name)
    for reads in _READERS:
        if (found := reads(lines, name)) is not None:
            return found
    raise FileError(f"The log {name} holds no measurement in a form that is known.", hint=_FORMS)


def _half(name: str, what: str) -> FileError:
    return FileError(f"The log {name} ends before the run does: {what}.", hint="the whole log of a finished run")


class _Collected:
    """Measurements of equal things, in the order of the first."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str, int], list[float]] = {}

    def add(self, kind: str, name: str, number: int, ticks: float) -> None:
        self._found.setdefault((kind, name, number), []).append(ticks)

    def rows(self) -> tuple[Measured, ...]:
        return tuple(
            Measured(kind, name, number, float(statistics.median(ticks)), len(ticks))
            for (kind, name, number), ticks in self._found.items()
        )

    def times(self) -> dict[tuple[str, str, int], int]:
        return {key: len(ticks) for key, ticks in self._found.items()}


# ---------------------------------------------------------------- micronpu

_OWN = re.compile(r"micronpu-(npu-)?cycles (\S+) (\d+) (\d+)\s*$")
_OWN_RUN = re.compile(r"micronpu-(npu-)?run (\w+) \d+ \d+ (\d+)\s*$")
_OWN_END = re.compile(r"(PASS|FAIL): \d+ vectors, \d+ elements differ\s*$")
_OWN_PROGRAM = re.compile(r"micronpu-program (\S+) ([0-9a-fA-F]{64})\s*$")
_OWN_CHIP = re.compile(r"micronpu-chip ([\w.+-]+)\s*$")
_OWN_BEATS = re.compile(r"micronpu-npu-beats \w+ (\d+) ([A-Z0-9_]+) (\d+)\s*$")
_OWN_CLOCK = re.compile(r"micronpu-(npu-)?clock (\d+)\s*$")


def _check_own(found: _Collected, name: str, *, ended: bool) -> None:
    """Refuse logs of several programs, and incomplete ones."""
    every = {key[1] for key in found.times()}
    if len(every) > 1:
        raise FileError(
            f"The log {name} is of the programs {', '.join(sorted(every))}.", hint="a separate log of each program"
        )
    times = {key: count for key, count in found.times().items() if key[0] == CALL}
    if not times and not ended:
        raise _half(name, "it has no line `PASS` or `FAIL`")
    most = max(times.values(), default=0)
    if short := [number for (_, _, number), count in times.items() if count < most]:
        raise _half(name, f"instruction {short[0]} is measured {most - 1} times or less, and others {most} times")


def _own(lines: Sequence[str], name: str) -> BoardLog | None:
    found, program, chip, clocks = _Collected(), "", "", dict[str | None, float]()
    beats: dict[tuple[str, int], list[int]] = {}
    ended = False
    for line in lines:
        ended |= _OWN_END.search(line) is not None
        if match := _OWN_RUN.search(line):
            found.add(NPU if match[1] else RUN, match[2], -1, count(match[3]))
        elif match := _OWN.search(line):
            found.add(NPU if match[1] else CALL, match[2], count(match[3]), count(match[4]))
        elif match := _OWN_PROGRAM.search(line):
            if program and match[2].lower() != program:
                raise FileError(f"The log {name} is of several programs.", hint="a separate log of each program")
            program = match[2].lower()
        elif match := _OWN_CHIP.search(line):
            chip = match[1]
        elif match := _OWN_BEATS.search(line):
            beats.setdefault((match[2], count(match[1])), []).append(count(match[3]))
        elif match := _OWN_CLOCK.search(line):
            clocks[match[1]] = count(match[2]) / 1e6
    if not found.times():
        return None
    _check_own(found, name, ended=ended)
    counted: Counter[str] = Counter()
    for (counter, _), counts in beats.items():
        counted[counter] += round(statistics.median(counts))
    return BoardLog(name, "micronpu", found.rows(), program, clocks.get(None), clocks.get("npu-"), dict(counted), chip)


# ---------------------------------------------------------------- ExecuTorch's runner, Zephyr's sample

_PMU_CYCLES = re.compile(r"ethosu_pmu_cycle_cntr\s*:\s*(\d+)")
_PMU_COUNTER = re.compile(r"ethosu_pmu_cntr(\d+)\s*:\s*(\d+)")
_PMU_EVENTS = re.compile(r"Ethos-U PMU Events:\s*\[([^\]]*)\]")
_PMU_TOTAL = re.compile(r"(?:Total )?[Ii]nference.*?[Cc]ycles?\s*:\s*(\d+)")


def _executorch(lines: Sequence[str], name: str) -> BoardLog | None:
    found, counters, events, begun = _Collected(), dict[int, int](), list[str](), False
    for line in lines:
        begun |= "Ethos-U PMU report" in line
        if match := _PMU_CYCLES.search(line):
            found.add(NPU, "ethosu_pmu_cycle_cntr", -1, count(match[1]))
        elif match := _PMU_COUNTER.search(line):
            counters[count(match[1])] = count(match[2])
        elif match := _PMU_EVENTS.search(line):
            events = [e.strip().removeprefix("ETHOSU_PMU_") for e in match[1].split(",")]
        elif match := _PMU_TOTAL.search(line):
            found.add(RUN, "inference", -1, count(match[1]))
    if not found.rows() and not begun:
        return None
    if not any(row.kind == NPU for row in found.rows()):
        if not begun:
            return None
        raise _half(name, "it has no line `ethosu_pmu_cycle_cntr`")
    beats = {event: counters[n] for n, event in enumerate(events) if n in counters and "BEAT" in event}
    return BoardLog(name, "ExecuTorch", found.rows(), beats=beats)


# ---------------------------------------------------------------- Arm's evaluation kit

_KIT_CYCLES = re.compile(r"NPU (ACTIVE|IDLE|TOTAL) cycles:\s*(\d+)")
_KIT_BEATS = re.compile(r"NPU (\w+_BEAT_\w+) beats:\s*(\d+)")


def _kit(lines: Sequence[str], name: str) -> BoardLog | None:
    found, beats, begun = _Collected(), dict[str, int](), 0
    for line in lines:
        begun += "Profile for " in line
        if match := _KIT_CYCLES.search(line):
            if match[1] == "TOTAL":
                found.add(NPU, "NPU TOTAL", -1, count(match[2]))
            begun = max(begun, 1)
        elif match := _KIT_BEATS.search(line):
            beats[match[1]] = count(match[2])
            begun = max(begun, 1)
    if not begun:
        return None
    if sum(row.times for row in found.rows()) < begun:
        raise _half(name, "a profile has no line `NPU TOTAL cycles`")
    return BoardLog(name, "evaluation kit", found.rows(), beats=beats)


# ---------------------------------------------------------------- helia-profiler

_HPX_START, _HPX_END = "--- HPX_START ---", "--- HPX_END ---"
_HPX_CLOCK = re.compile(r"HPX_SYSTEM_CLOCK_HZ=(\d+)")
_HPX_CYCLES = ("ARM_PMU_CPU_CYCLES", "CPU_CYCLES", "cycles", "DWT_CYCCNT")
_HPX_NPU = ("ETHOSU_PMU_CYCLE", "NPU_CYCLES", "ETHOS_NPU_CYCLES")


def _helia(lines: Sequence[str], name: str) -> BoardLog | None:
    texts = [line.strip() for line in lines]
    if _HPX_START not in texts:
        return None
    texts = texts[texts.index(_HPX_START) + 1 :]
    if _HPX_END not in texts:
        raise _half(name, f"it has no line `{_HPX_END}`")
    found, clock, header = _Collected(), None, list[str]()
    for line in texts[: texts.index(_HPX_END)]:
        if match := _HPX_CLOCK.match(line):
            clock = count(match[1]) / 1e6
        elif line.startswith("---"):
            header = []
        elif line and not line.startswith("HPX_"):
            cells = next(csv.reader([line]), [])
            if not header:
                header = [cell.strip() for cell in cells]
            else:
                _helia_row(dict(zip(header, cells, strict=False)), len(cells) == len(header), found, name)
    if not found.rows():
        raise FileError(f"The log {name} has no column of cycles.", hint=f"a preset with {_HPX_CYCLES[0]}")
    return BoardLog(name, "helia-profiler", found.rows(), clock_mhz=clock)


def _helia_row(row: Mapping[str, str], whole: bool, found: _Collected, name: str) -> None:
    number, op = row.get("Layer", ""), row.get("Op") or row.get("tag") or "layer"
    if not whole or not number.strip().isdecimal():
        raise FileError(f"The log {name} has a damaged row of layer {number or '?'}.", hint="a log without lost bytes")
    for kind, columns in ((OPERATION, _HPX_CYCLES), (NPU, _HPX_NPU)):
        cell = next((row[column].strip() for column in columns if column in row), "")
        if cell.isdecimal():
            found.add(kind, op, count(number), count(cell))


# ---------------------------------------------------------------- MicroProfiler

_TICKS = re.compile(r"(?:^|\s)([\w./:-]+) took (\d+) ticks")


def _micro_profiler(lines: Sequence[str], name: str) -> BoardLog | None:
    found, number = _Collected(), 0
    for line in lines:
        if match := _TICKS.search(line):
            found.add(OPERATION, match[1], number, count(match[2]))
            number += 1
    return BoardLog(name, "MicroProfiler", found.rows()) if number else None


# ---------------------------------------------------------------- ETDump

_LEAST_PACKED = 64


def _base64(lines: Sequence[str]) -> bytes | None:
    """Return an ETDump that a runner has printed, as `echo "..." | base64 -d` or as lines of base64, or None."""
    text = "".join(line.strip().strip('"') for line in lines if re.fullmatch(r'"?[A-Za-z0-9+/=]{16,}"?', line.strip()))
    quoted = re.findall(r'"([A-Za-z0-9+/=]{64,})"', "\n".join(lines))
    for packed in (*quoted, text):
        if len(packed) < _LEAST_PACKED:
            continue
        try:
            data = base64.b64decode(packed, validate=True)
        except (binascii.Error, ValueError):
            continue
        if _is_etdump(data):
            return data
    return None


# Layout: `executorch/devtools/etdump/etdump_schema_flatcc.fbs`, ExecuTorch 1.5.
_IDENTIFIER = b"ED00"
_RUNS, _EVENTS, _PROFILE = 1, 3, 0
_NAME, _INSTRUCTION, _DELEGATE_ID, _DELEGATE_NAME, _START, _END = 0, 2, 3, 4, 6, 7
_EXECUTES = "Method::execute"
"""Name of the event of a whole run."""
_CALLS = ("OPERATOR_CALL", "DELEGATE_CALL")
"""Names of the events of an instruction; a kernel inside of one has a separate event, `native_call_...`."""


def _is_etdump(data: bytes) -> bool:
    """Return True if bytes are an ETDump, by their identifier; the runtime writes the size before it."""
    return _IDENTIFIER in (data[4:8], data[8:12])


def _etdump(data: bytes, name: str) -> BoardLog:
    found = _Collected()
    ended = False
    try:
        for event in _events(data):
            title, instruction = event.string(_NAME), event.integer(_INSTRUCTION, default=-1)
            start, end = (event.integer(number, "<Q") for number in (_START, _END))
            if end < start:
                raise CorruptFlatbufferError("an event ends before it begins")
            if event.integer(_DELEGATE_ID, default=-1) >= 0 or event.string(_DELEGATE_NAME):
                found.add(OPERATION, title, instruction, end - start)
            elif title == _EXECUTES:
                found.add(RUN, title, -1, end - start)
                ended = True
            elif instruction >= 0 and title in _CALLS:
                found.add(CALL, title, instruction, end - start)
    except CorruptFlatbufferError as error:
        raise FileError(f"The ETDump {name} is damaged: {error}.", hint="record the run again") from error
    if not ended:
        raise _half(name, f"its ETDump has no event `{_EXECUTES}`")
    return BoardLog(name, "ETDump", found.rows())


def _events(data: bytes) -> Iterator[Table]:
    """Yield all events with a duration, run by run."""
    has_size = data[8:12] == _IDENTIFIER and data[4:8] != _IDENTIFIER
    if has_size and int.from_bytes(data[:4], "little") > len(data) - 4:
        raise CorruptFlatbufferError(f"it has {len(data)} bytes, fewer than it says")
    for run in root(data[4:] if has_size else data, _IDENTIFIER).vector(_RUNS).tables():
        for event in run.vector(_EVENTS).tables():
            if (found := event.table(_PROFILE)) is not None:
                yield found


_READERS: tuple[Callable[[Sequence[str], str], BoardLog | None], ...] = (_executorch, _kit, _helia, _micro_profiler)


# ---------------------------------------------------------------- measurement.toml

FORMAT, VERSION = "micronpu measurement", 1
_HEAD = ("format", "version")
_HEAD_BYTES = 4096
_FORMAT = re.compile(rb'^format\s*=\s*"micronpu measurement"', re.MULTILINE)
_COMPILER = re.compile(rb"(GCC: \([^\0\n]{1,80}|[\w ]{0,20}clang version [^\0\n]{1,80})\0")
"""A compiler's name in the section .comment of an image."""
_HINT = "a file of `micronpu board run --measurement`"


def write_measurement(path: Path, output: bytes, image: bytes, board: str, *, is_emulated: bool) -> None:
    """Write what a firmware has printed as a measurement."""
    try:
        log = read_log(output, path.name)
        rows = tuple(row for row in log.rows if row.ticks)  # an emulated core may have no counter
    except FileError as error:
        raise FileError(f"There is nothing to write to {path}: {error.what}", hint=_BUILD) from error
    if not rows:
        raise FileError(f"There is nothing to write to {path}: all counters of the firmware are 0.", hint=_BUILD)
    compiler = _COMPILER.search(image)
    tools = {"micronpu": OWN_VERSION} | ({"compiler": compiler[1].decode(errors="replace")} if compiler else {})
    log = replace(log, rows=rows, board=board, is_emulated=is_emulated, tools=tools)
    write_file(path, _text(log).encode())


_BUILD = "a firmware that is built with -DMICRONPU_RUNS=10 or -DMICRONPU_PROFILE=ON"


def _text(log: BoardLog) -> str:
    values = {"format": FORMAT, "version": VERSION, **encode(log)}
    del values["name"]
    rows, tables = values.pop("rows"), {k: v for k, v in values.items() if isinstance(v, dict)}
    lines = ["# Made by `micronpu board run --measurement`, for `micronpu calibrate`."]
    lines += _pairs({k: v for k, v in values.items() if k not in tables})
    for name, table in tables.items():
        lines += ["", f"[{name}]", *_pairs(table)] if table else []
    for row in rows:
        lines += ["", "[[rows]]", *_pairs(row)]
    return "\n".join(lines) + "\n"


def _pairs(table: JsonObject) -> list[str]:
    return [f"{key} = {toml_text(value)}" for key, value in table.items() if value is not None]


def read_measurement(data: bytes, name: str) -> BoardLog:
    """Read a measurement, or a log in one of the forms of `read_log`."""
    if _FORMAT.search(data[:_HEAD_BYTES]) is None:
        return read_log(data, name)
    try:
        values = parse_toml(data.decode())
        if values.get("version") != VERSION:
            raise DecodeError(f"its version is {values.get('version')!r}, and this micronpu reads {VERSION}")
        _check_keys(values, {*_HEAD, *(f.name for f in fields(BoardLog))} - {"name"}, "")
        log = decode(BoardLog, {**values, "name": name})
        for number, (row, given) in enumerate(zip(log.rows, values["rows"], strict=True)):
            _check_keys(given, {f.name for f in fields(Measured)}, f"rows[{number}].")
            _check_number(row.ticks, f"rows[{number}].ticks")
        for clock in ("clock_mhz", "npu_clock_mhz"):
            if (mhz := getattr(log, clock)) is not None:
                _check_number(mhz, clock)
        if not log.rows:
            raise DecodeError("it has no `rows`")
        if negative := [counter for counter, count in log.beats.items() if count < 0]:
            raise DecodeError(f"`beats.{negative[0]}` is negative")
    except ValueError as error:
        raise FileError(f"{name} is no measurement: {error}.", hint=_HINT) from error
    return log


def _check_keys(table: JsonObject, known: set[str], where: str) -> None:
    for key in table:
        if key not in known:
            raise DecodeError(f"it has the unknown key `{where}{key}`; known are {', '.join(sorted(known))}")


def _check_number(value: float, where: str) -> None:
    if not 0 < value < math.inf:
        raise DecodeError(f"`{where}` is {value:g}, and must be a number above 0")
