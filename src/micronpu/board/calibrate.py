"""Fit of a chip's constants to measurements: memory speeds, overhead of an NPU invocation, and their accuracy.

    estimate of an operation   the longest of its arithmetic and of each memory's cycles, these times `slower`
    a run                      all operations, and the overhead of an invocation of the NPU for each partition

One log seldom determines both constants, so they are changed as little as possible: a factor of 2 (memories) costs as
much as a factor of 10 (invocation), and measurements are assumed to be right within 5 %.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from micronpu.base.errors import OptionError
from micronpu.base.texts import plural
from micronpu.board.logs import CALL, NPU, OPERATION, RUN, BoardLog
from micronpu.chips import MEASURED, Chip
from micronpu.chips.edit import Place
from micronpu.program.plan import Plan
from micronpu.report.codec import encode
from micronpu.report.delegation import DelegationReport
from micronpu.report.operations import Operation
from micronpu.targets.registry import BACKENDS

_NPU = "NPU"
"""Processor of the latency of the NPU itself; invocation overhead and core follow it."""
_DELEGATE = "DelegateCall"
_LEAST_BAND = 1.25
"""Minimum band of a calibration, as a factor in either direction."""
_MEASURED, _MEMORY, _OF_CALL = 0.05, math.log(2), math.log(10)
"""Standard deviations, as logarithms, of a measurement and of the two kinds of constants."""
_SLOWER = tuple(2 ** (step / 16) for step in range(-48, 49))
_CALLS_US = tuple(10 ** (step / 24) for step in range(-12, 85))
_ROUNDS = 8
_LITTLE = 0.1
"""Minimum share of the time that a memory determines for a measurement to calibrate it."""
_CLOCK = 0.01
"""Relative tolerance of a clock."""


@dataclass(frozen=True)
class Measurement:
    """A measurement with its estimates.

    Attributes:
        what: such as "partition 0, call" or "conv2d".
        measured, before, after: milliseconds; estimates with the old and the new constants of the chip file.
    """

    ALSO: ClassVar[tuple[str, ...]] = ("error_before", "error_after")

    what: str
    measured: float
    before: float
    after: float

    @property
    def error_before(self) -> float:
        """Error of the estimate, relative to the measurement."""
        return self.before / self.measured - 1

    @property
    def error_after(self) -> float:
        return self.after / self.measured - 1


@dataclass(frozen=True)
class Constant:
    """A number of the chip file.

    Attributes:
        name: such as "bandwidth of sram".
        before, after: None if the file did not have it; several numbers as text.
    """

    name: str
    before: str
    after: str


@dataclass(frozen=True)
class MemoryCalibration:
    """Result of a calibration.

    Attributes:
        logs: names and forms of the logs.
        constants: new constants of the chip file.
        beats: numbers of the hardware and of the report, by the name of the counter.
        holds: accuracy of the constants, a sentence each.
    """

    chip: str
    logs: tuple[str, ...]
    rows: tuple[Measurement, ...]
    constants: tuple[Constant, ...]
    beats: Mapping[str, tuple[int, int]]
    holds: tuple[str, ...]

    def to_json(self) -> str:
        return json.dumps({"format": "micronpu calibration", "version": 1, **encode(self)}, indent=2)


_Constants = tuple[Mapping[str, float], float]
"""Slowdown of each memory against the report, and microseconds of an invocation."""


@dataclass(frozen=True)
class Observed:
    """A program with its measurements in milliseconds.

    Attributes:
        report: of its compilation for the chip.
        busy: time of the NPU; None if not measured.
        whole: time of a run; None if not measured.
    """

    report: DelegationReport
    busy: float | None
    whole: float | None

    def busy_with(self, slower: Mapping[str, float]) -> float:
        """Return the estimated time of the NPU, with memories slower by these factors."""
        latency = next(t for t in self.report.latency if t.processor == _NPU)
        return latency.milliseconds * self._cycles(slower) / (self._cycles({}) or 1.0)

    def _cycles(self, slower: Mapping[str, float]) -> float:
        costs = (o.cost for o in self.report.operations if o.cost is not None)
        return sum(
            max([cost.arithmetic_cycles, *(slower.get(m, 1.0) * n for m, n in cost.memory_cycles.items())])
            for cost in costs
        )

    @property
    def memories(self) -> set[str]:
        return {m for o in self.report.operations if o.cost is not None for m in o.cost.memory_cycles}

    @property
    def calls(self) -> int:
        return max(self.report.partitions, 1)

    @property
    def core(self) -> float:
        """Estimated time of operators on the core."""
        return sum(t.milliseconds for t in self.report.latency[1:] if not t.processor.startswith("Calls"))

    def call_us(self) -> float:
        """Return the microseconds of an invocation in the report."""
        found = sum(t.milliseconds for t in self.report.latency if t.processor.startswith("Calls"))
        return found * 1000 / self.calls

    def beside(self, call_us: float) -> float:
        """Return the estimated time of a run without the NPU."""
        return self.core + self.calls * call_us / 1000

    def whole_with(self, slower: Mapping[str, float], call_us: float) -> float:
        """Return the estimated time of a run."""
        return self.busy_with(slower) + self.beside(call_us)


def observed(chip: Chip, log: BoardLog, report: DelegationReport, clock_mhz: float | None = None) -> Observed:
    """Return the measurements of a program in a log.

    Args:
        clock_mhz: of the log's counter; None for the clock in the log, or else the core's clock.
    """
    _check_program(chip, log, report)
    npu = chip.npu
    assert npu is not None and npu.clock_mhz is not None
    _check_clock(log, "NPU", log.npu_clock_mhz, npu.clock_mhz, chip)
    if clock_mhz is None:
        _check_clock(log, "core", log.clock_mhz, chip.core_clock_mhz, chip)
    counter = clock_mhz or log.clock_mhz or chip.core_clock_mhz
    busy = sum(row.ticks for row in log.of(NPU)) / npu.clock_mhz / 1000 or None
    ticks = (
        sum(r.ticks for r in log.of(CALL))
        or sum(r.ticks for r in log.of(RUN))
        or sum(r.ticks for r in log.of(OPERATION))
    )
    whole = None
    if ticks:
        if counter is None:
            raise OptionError(
                f"The log {log.name} counts cycles of a clock that neither it nor the chip file says.",
                hint="`clock_mhz` in [core], or --clock-mhz",
            )
        whole = ticks / counter / 1000
    if busy is None and whole is None:
        raise OptionError(f"The log {log.name} counts no cycles.", hint="firmware whose counter is on")
    return Observed(report, busy, whole)


def _check_program(chip: Chip, log: BoardLog, report: DelegationReport) -> None:
    if log.is_emulated:
        raise OptionError(
            f"{log.name} was measured on an emulated board ({log.board}), whose cycles are estimates.",
            hint="a measurement of the chip itself",
        )
    names = chip.names
    if log.chip and log.chip not in names:
        raise OptionError(
            f"{log.name} was measured on a firmware for the chip {log.chip}, and the chip file is of {chip.name}.",
            hint=f"the chip file of {log.chip}",
        )
    known_by = {k: v for k, v in report.hashes.items() if k.startswith(("program", "partition"))}
    if log.program and known_by and log.program not in known_by.values():
        known = ", ".join(f"{digest[:12]} ({what})" for what, digest in known_by.items())
        raise OptionError(
            f"The log {log.name} is of another program: its SHA-256 begins with {log.program[:12]}, and the report "
            f"knows {known}.",
            hint="the report of the compilation that made the program on the board",
        )
    if report.target not in names and report.target.rpartition(":")[2] not in names:
        raise OptionError(
            f"The report is of the target {report.target!r}, which the chip file of {chip.name} does not have.",
            hint=f"compile the model for {chip.targets[0].name}",
        )
    if not any(t.processor == _NPU for t in report.latency):
        raise OptionError("The report has no estimate of the NPU's time.", hint="the report of a program on the NPU")


def _check_clock(log: BoardLog, what: str, found: float | None, known: float | None, chip: Chip) -> None:
    if found is not None and known is not None and abs(found / known - 1) > _CLOCK:
        raise OptionError(
            f"The log {log.name} is of a {what} at {found:g} MHz, but the chip file of {chip.name} has {known:g}.",
            hint="a log of that clock, or the clock that the board runs at in the chip file",
        )


def fit(runs: Sequence[Observed]) -> tuple[dict[str, float], float]:
    """Return slowdown of each memory, and microseconds of an invocation: the least change that explains the data."""
    usual = max(runs[0].call_us(), 1.0)
    found = dict.fromkeys(sorted(set().union(*(run.memories for run in runs))), 1.0)
    call = usual

    def worth(slower: Mapping[str, float], call_us: float) -> float:
        off = sum((math.log(s) / _MEMORY) ** 2 for s in slower.values()) + (math.log(call_us / usual) / _OF_CALL) ** 2
        for run in runs:
            npu = run.busy_with(slower)
            if run.busy is not None:
                off += (math.log(npu / run.busy) / _MEASURED) ** 2
            if run.whole is not None:
                off += (math.log((npu + run.beside(call_us)) / run.whole) / _MEASURED) ** 2
        return off

    # Overhead and memories can explain the same time: fit first the overhead, then all memories, then each memory.
    for _ in range(_ROUNDS):
        before = dict(found), call
        call = min((call, *_CALLS_US), key=lambda c: worth(found, c))
        steps = [{m: found[m] * s for m in found} for s in _SLOWER]
        found = min((found, *steps), key=lambda f: worth(f, call))
        for memory in tuple(found):
            found = min((found, *({**found, memory: s} for s in _SLOWER)), key=lambda f: worth(f, call))
        if (found, call) == before:
            break
    return found, call


def calibrate(
    chip: Chip, logs: Sequence[BoardLog], runs: Sequence[Observed], plan: Plan | None = None
) -> tuple[MemoryCalibration, dict[Place, float | Sequence[float]]]:
    """Return the calibration of a chip by logs, and the new numbers of its file.

    Args:
        runs: measurements of each log, from `observed`.
        plan: of the program, for a row for each instruction.

    Raises:
        OptionError: the chip's backend has no such constants, or no memory that the logs name.
    """
    _check_memories(chip, logs, runs)
    slower, call = fit(runs)
    before: tuple[dict[str, float], float] = ({}, runs[0].call_us())
    rows: list[Measurement] = []
    for log, run in zip(logs, runs, strict=True):
        rows += _rows(run, before, (slower, call), f"{log.name}: " if len(logs) > 1 else "")
        rows += _instructions(chip, log, run, plan, before, (slower, call))
    totals = [row for row in rows if row.what.endswith(("busy", "run"))]
    spread = max(abs(math.log(row.after / row.measured)) for row in totals)
    band = max(_LEAST_BAND, math.exp(1.5 * spread))
    changes: dict[Place, float | Sequence[float]] = {("npu", "", "band"): (round(1 / band, 2), round(band, 2))}
    changes["npu", "", MEASURED] = len({run.report.hashes.get("program", "") for run in runs})
    if any(run.whole is not None for run in runs):
        changes["npu", "", "call_us"] = tuple(round(call * part, 1) for part in (0.5, 1.0, 2.0))
    for memory in chip.memories:
        rate = _rate(runs, memory.name)
        if rate is not None and slower.get(memory.name, 1.0) != 1.0:
            assert chip.npu is not None and chip.npu.clock_mhz is not None
            changes["memory", memory.name, "bandwidth"] = rate * chip.npu.clock_mhz * 1e6 / slower[memory.name]
    found = MemoryCalibration(
        chip.name,
        tuple(f"{log.name} ({log.form})" for log in logs),
        tuple(rows),
        tuple(_constant(chip, place, value) for place, value in changes.items() if place[2] != MEASURED),
        _beats(logs, runs),
        _holds(totals, runs, slower, band) + _emulated(logs),
    )
    return found, changes


def _check_memories(chip: Chip, logs: Sequence[BoardLog], runs: Sequence[Observed]) -> None:
    """Refuse a chip without constants of time, and logs of memories that its file does not have."""
    backend = next(f for f in BACKENDS.values() if f.has(chip))
    if not backend.is_calibrated:
        raise OptionError(f"{backend.title} has no constants of time in its chip files.", hint="the chip of an Ethos-U")
    for log, run in zip(logs, runs, strict=True):
        for counter, count in log.beats.items():
            port = _port_of(counter, run.report)
            memory = run.report.bus[port].memory if port in run.report.bus else ""
            if count and port and memory not in {m.name for m in chip.memories}:
                raise OptionError(
                    f"The log {log.name} counts {count:,} of {counter}, but the chip file of {chip.name} has no memory "
                    "behind that port.",
                    hint='a [[memory]] with the role "weights", with its size',
                )


def _port_of(counter: str, report: DelegationReport) -> str:
    """Return the report's port of a hardware counter; "" for other counters."""
    head = counter.split("_")[0].rstrip("0123456789") if counter[:3] in ("SRA", "EXT") else counter.split("_")[0]
    ports = sorted(report.bus)
    if head in report.bus:
        return head
    return {"SRAM": ports[0] if ports else head, "EXT": ports[-1] if len(ports) > 1 else head}.get(
        head, head if head.startswith("AXI") else ""
    )


def _beats(logs: Sequence[BoardLog], runs: Sequence[Observed]) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    for log, run in zip(logs, runs, strict=True):
        for counter, count in log.beats.items():
            port = _port_of(counter, run.report)
            if port in run.report.bus:
                moved = run.report.bus[port]
                found[counter] = (count, moved.written_beats if "_WR_" in counter else moved.read_beats)
    return found


def _rate(runs: Sequence[Observed], memory: str) -> float | None:
    """Return the bytes per cycle in the report."""
    for run in runs:
        costs = [o.cost for o in run.report.operations if o.cost is not None]
        traffic = [t for cost in costs for t in cost.bus.values() if t.memory == memory]
        moved = sum(t.read_bytes + t.written_bytes for t in traffic)
        cycles = sum(cost.memory_cycles.get(memory, 0) for cost in costs)
        if moved and cycles:
            return float(moved / cycles)
    return None


def _rows(run: Observed, before: _Constants, after: _Constants, name: str) -> list[Measurement]:
    found = []
    if run.busy is not None:
        found.append(
            Measurement(f"{name}NPU busy", run.busy, *(run.busy_with(slower) for slower, _ in (before, after)))
        )
    if run.whole is not None:
        found.append(
            Measurement(f"{name}whole run", run.whole, *(run.whole_with(*constants) for constants in (before, after)))
        )
    return found


def _milliseconds(operation: Operation) -> float:
    cost = operation.cost
    return cost.microseconds / 1000 if cost is not None and cost.microseconds is not None else 0.0


def _check_whole(name: str, measured: Collection[int], calls: int) -> None:
    missing = sorted(set(range(calls)) - set(measured))
    if missing or len(measured) > calls:
        what = f"instruction {missing[0]} of {calls}" if missing else f"{len(measured)} for {calls}"
        raise OptionError(
            f"The log {name} does not have what the program has: {what}.", hint="the whole log of a finished run"
        )


def _instructions(
    chip: Chip, log: BoardLog, run: Observed, plan: Plan | None, before: _Constants, after: _Constants
) -> list[Measurement]:
    """Return a row for each invocation of the NPU and each kernel of the core that the log measured separately."""
    measured = {row.number: row.ticks for row in log.of(CALL)}
    counter = log.clock_mhz or chip.core_clock_mhz
    if plan is None or not measured or counter is None:
        return []
    calls = [call for chain in plan.chains for call in chain]
    _check_whole(log.name, measured, len(calls))
    found, parts, kernels = [], 0, 0
    for number, call in enumerate(calls):
        time = measured[number] / counter / 1000
        if call.kind == _DELEGATE:
            costs = [(o.partition, o.cost.cycles) for o in run.report.operations if o.cost is not None]
            own, every = sum(c for part, c in costs if part == parts), sum(c for _, c in costs) or 1
            estimates = [run.busy_with(slower) * own / every + us / 1000 for slower, us in (before, after)]
            found.append(Measurement(f"{number}: partition {parts} on the NPU", time, *estimates))
            parts += 1
        elif kernels < len(run.report.core_operations) and "cortex_m" in call.operator:
            estimate = _milliseconds(run.report.core_operations[kernels])
            found.append(Measurement(f"{number}: {call.operator}", time, estimate, estimate))
            kernels += 1
    return found


def _constant(chip: Chip, place: Place, value: float | Sequence[float]) -> Constant:
    table, name, field = place
    if table == "memory":
        known = next((m.bandwidth for m in chip.memories if m.name == name), None)
        assert isinstance(value, (int, float))
        return Constant(
            f"{field} of {name}", "" if known is None else f"{known / 1e9:.3g} GB/s", f"{value / 1e9:.3g} GB/s"
        )
    assert chip.npu is not None and not isinstance(value, (int, float))
    own = chip.npu.own.optional_numbers(field, len(value))
    before = "" if own is None else ", ".join(f"{n:g}" for n in own)
    return Constant(field, before, ", ".join(f"{n:g}" for n in value))


def _emulated(logs: Sequence[BoardLog]) -> tuple[str, ...]:
    cores = {log.name: [row.ticks for row in (*log.of(RUN), *log.of(CALL))] for log in logs}
    return tuple(
        f"The core's counter stands still in {name}, as on an emulated board, whose NPU cycles are estimates."
        for name, ticks in cores.items()
        if ticks and not any(ticks)
    )


def _holds(
    totals: Sequence[Measurement], runs: Sequence[Observed], slower: Mapping[str, float], band: float
) -> tuple[str, ...]:
    errors = [abs(row.error_after) for row in totals]
    found = [
        f"The constants give {plural(len(totals), 'measurement')} back within {max(errors):.0%} "
        f"({max(abs(row.error_before) for row in totals):.0%} before); the band is {1 / band:.2f} to {band:.2f}."
    ]
    for memory in slower:
        share = max(1 - run.busy_with({memory: 0.125}) / run.busy_with({}) for run in runs)
        if share < _LITTLE:
            found.append(
                f"{memory} decides {share:.0%} of the time of what was measured, so that its speed is a guess."
            )
    if not any(run.whole is not None for run in runs):
        found.append("Only the NPU was measured: what a call takes beside it is as it was.")
    return tuple(found)
