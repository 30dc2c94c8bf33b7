"""The delegation report, from which the terminal, JSON and HTML views are made."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from micronpu.base.arguments import check_text, check_type
from micronpu.base.errors import FileError
from micronpu.base.files import read_file, write_file
from micronpu.base.parsing import JsonObject
from micronpu.base.texts import plural, sentence
from micronpu.report.accuracy import Agreement, ProgramAccuracy, decibel_text
from micronpu.report.codec import decode_text, encode
from micronpu.report.diagnosis import Blame
from micronpu.report.memory import PROGRAM, MemoryReport, Region
from micronpu.report.operations import BusTraffic, IOTensor, Latency, Operation, ResidentPrice, StateRow, idle_hotspot
from micronpu.report.shown import JsonReport, shown
from micronpu.report.sparsity import SparsityReport
from micronpu.report.verdict import SEARCHED_FOR, Verdict, host_groups
from micronpu.report.warnings import BudgetResult, ReportWarning

_WRITE_ONE = "a file of `micronpu compile --report-json`, or of report.to_json()"


@dataclass(frozen=True)
class Headline:
    """Time, flash, SRAM, accuracy and operators of a program.

    Attributes:
        milliseconds: estimated time of a call, all processors together; None without an estimate.
        low, high: its band: the sums of the bands of the processors.
        flash: bytes of the program; None before compilation.
        sram: bytes of SRAM, with the pools of ExecuTorch's runtime; None before compilation.
        sqnr: of the worst output against the float model in dB; None if not measured.
        agreement: share of the samples with the float model's top-1 result or integers, 0 to 1; None if no output has
            one.
        samples: number of samples that the accuracy was measured on.
        operators: of the program.
        in_place: operators on the NPU, or in int8 on a core without an NPU.
        lines: the same as text, each as "Name: text".
    """

    milliseconds: float | None
    low: float | None
    high: float | None
    flash: int | None
    sram: int | None
    sqnr: float | None
    agreement: float | None
    samples: int
    operators: int
    in_place: int
    lines: tuple[str, ...]

    @classmethod
    def of(cls, report: DelegationReport) -> Headline:
        times, memory, accuracy = report.latency, report.memory, report.accuracy
        lines = [f"Operators: {report.summary().replace(' operators', '', 1)}"]
        if memory is not None:
            regions = {region.kind: region for region in reversed(memory.regions)}
            program = next((r for r in memory.regions if any(i.what in PROGRAM for i in r.items)), None)
            from_sram = f", run from {program.name}" if program is not None and program.kind == "sram" else ""
            lines = [
                f"Time: {_time(report)}",
                f"Flash: {memory.flash:,} bytes{from_sram or _verdict(program)}",
                f"SRAM: {memory.sram:,} bytes{_verdict(regions.get('sram'))}",
                f"Accuracy: {_accuracy(report)}",
                *([f"Precision: {report.precision}"] if report.precision else []),
                *lines,
            ]
        return cls(
            milliseconds=sum(t.milliseconds for t in times) if times else None,
            low=sum(t.band[0] for t in times) if times else None,
            high=sum(t.band[1] for t in times) if times else None,
            flash=memory.flash if memory is not None else None,
            sram=memory.sram if memory is not None else None,
            sqnr=accuracy.sqnr if accuracy is not None else None,
            agreement=accuracy.agreement if accuracy is not None else None,
            samples=max(len(accuracy.rows) + accuracy.calibrated, 1) if accuracy is not None else 0,
            operators=report.operators,
            in_place=report.operators - len(report.left_over),
            lines=tuple(lines),
        )


@dataclass(frozen=True, repr=False)
class DelegationReport(JsonReport):
    """Placement of each operator with reasons, and figures of the program.

    Attributes:
        target: name of the target.
        verdicts: one per operator of the program, in execution order.
        notes: other notes, such as the converter that was used.
        details: details of the compilation: plans and their cycles, formats, scratch memory.
        operations: the operations of the NPU programs in execution order; empty before compilation.
        core_operations: the kernels that the core runs in int8, in execution order; ``partition`` counts its parts.
        memory: use of the chip's memories; None before compilation.
        budgets: budgets that were set, with the program's values.
        missing: unavailable figures, each with the reason: "time of the NPU", "energy" and so on.
        program_bytes: size of the ``.pte``; 0 before compilation.
        latency: time of a call, one entry per processor with a time model; empty before compilation.
        agreement: comparison of the program with the quantized model on some inputs; None if not requested.
        accuracy: comparison of the program with the float model and with the quantized one, on held-out samples if
            there are enough; None if not requested, or if the program cannot run on this machine.
        sparsity: result for each layer of a network that was made sparse; None if not requested.
        precision: precision that a search chose, with what int8 would give and its option; "" for int8, or no search.
        has_npu: False for a core alone, on which operators in int8 count as placed.
        inputs, outputs: of the program, in order; empty before compilation.
        tools: versions of the tools that made the program, by name.
        hashes: SHA-256 in hexadecimal of the program ("program"), of the payload of each partition ("partition 0" and
            so on), and of the inputs of the compilation ("model", "data", "options", "tools", "machine"); empty before
            compilation.
        states: buffers that persist from one call to the next; empty before compilation.
        bus: bus traffic of the NPU in a call, by port; empty if unknown.
        resident: time and memory with the weights in SRAM; None if they are there already, do not fit, or if it is
            unknown.
        warnings: warnings, severe ones first: outputs that are far from the float model, with the operator that costs
            most, and findings of static checks.
    """

    FORMAT = "micronpu report"
    ALSO: ClassVar[tuple[str, ...]] = (
        *("operators", "delegated", "partitions", "macs", "delegated_macs", "headline", "next_steps"),
    )

    target: str
    verdicts: tuple[Verdict, ...]
    notes: tuple[str, ...] = ()
    operations: tuple[Operation, ...] = ()
    program_bytes: int = 0
    latency: tuple[Latency, ...] = ()
    precision: str = ""
    has_npu: bool = True
    agreement: Agreement | None = None
    accuracy: ProgramAccuracy | None = None
    inputs: tuple[IOTensor, ...] = ()
    outputs: tuple[IOTensor, ...] = ()
    tools: Mapping[str, str] = field(default_factory=dict)
    hashes: Mapping[str, str] = field(default_factory=dict)
    core_operations: tuple[Operation, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)
    memory: MemoryReport | None = None
    budgets: tuple[BudgetResult, ...] = ()
    states: tuple[StateRow, ...] = ()
    sparsity: SparsityReport | None = None
    bus: Mapping[str, BusTraffic] = field(default_factory=dict)
    resident: ResidentPrice | None = None
    warnings: tuple[ReportWarning, ...] = ()
    details: tuple[str, ...] = ()

    @property
    def headline(self) -> Headline:
        """Return time, flash, SRAM, accuracy and operators."""
        return Headline.of(self)

    @property
    def next_steps(self) -> tuple[str, ...]:
        """Return what to try, most valuable first."""
        return _next_steps(self)

    @property
    def operators(self) -> int:
        """Return the number of operators of the program."""
        return len(self.verdicts)

    @property
    def delegated(self) -> int:
        """Return the number of operators on the NPU."""
        return sum(v.delegated for v in self.verdicts)

    @property
    def partitions(self) -> int:
        """Return the number of delegate calls."""
        return len({v.partition for v in self.verdicts if v.delegated})

    @property
    def host(self) -> tuple[Verdict, ...]:
        """Return the operators that stay on the core."""
        return tuple(v for v in self.verdicts if not v.delegated)

    @property
    def in_float(self) -> tuple[Verdict, ...]:
        """Return the operators that the core computes in float."""
        return tuple(v for v in self.host if not v.core)

    @property
    def left_over(self) -> tuple[Verdict, ...]:
        """Return the non-delegated operators; for a core alone, those in float."""
        return self.host if self.has_npu else self.in_float

    @property
    def share(self) -> float:
        """Return the fraction of operators that are not in `left_over`; 1.0 for a program without operators."""
        total = len(self.verdicts)
        return (total - len(self.left_over)) / total if total else 1.0

    @property
    def macs(self) -> int:
        """Return the number of multiply-accumulate operations of all known operators."""
        return sum(v.macs for v in self.verdicts)

    @property
    def delegated_macs(self) -> int:
        """Return the part of `macs` that runs on the NPU."""
        return sum(v.macs for v in self.verdicts if v.delegated)

    @property
    def times(self) -> tuple[str, ...]:
        """Return a sentence for each known and each missing figure of time and energy."""
        lacking = (f"{figure[:1].upper()}{figure[1:]}: {why}." for figure, why in self.missing.items())
        return (*map(str, self.latency), *lacking)

    @property
    def figures(self) -> tuple[str, ...]:
        """Return a sentence for each figure of time, energy, bus and memory, starting with its name."""
        moved = (f"Bus, {port}: {traffic}." for port, traffic in self.bus.items())
        return (*self.times, *moved, *(self.memory.lines if self.memory is not None else ()))

    @property
    def all_remarks(self) -> tuple[str, ...]:
        """Return `remarks` with the numbers of the samples, the rewrites, and details of the compilation."""
        rewritten = Counter(name for v in self.verdicts for name in v.rewrites)
        names = ", ".join(f"{n} x {name}" for name, n in rewritten.items())
        numbers = [] if self.accuracy is None or not self.accuracy.rows else [f"{self.accuracy.numbers}."]
        return (*self.remarks, *numbers, *([f"Rewritten to fit: {names}."] if names else []), *self.details)

    @property
    def remarks(self) -> tuple[str, ...]:
        """Return notes for the user, starting with the accuracy and the comparison with the quantized model."""
        said = [str(said) for said in (self.accuracy, self.agreement) if said is not None]
        if self.sparsity is not None:
            said += [self.sparsity.summary(), *self.sparsity.notes]
        if self.states:
            size = sum(state.bytes for state in self.states)
            said.append(f"States that live on from call to call, {size:,} bytes: {'; '.join(map(str, self.states))}.")
        return (*said, *self.notes)

    def to_dict(self) -> JsonObject:
        """Return the content of `to_json`; docs/report.md describes it."""
        first = {"format": self.FORMAT, "version": self.VERSION, "headline": None, "next_steps": None}
        return {**first, **encode(self)}

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> DelegationReport:
        """Read the result of `to_json` from a file.

        Raises:
            FileError: it cannot be read, is no report, or has another version.
        """
        form = cls.FORMAT, cls.VERSION
        return decode_text(cls, read_file(path, "The report"), form, str(path), _WRITE_ONE)

    @classmethod
    def from_json(cls, text: str, name: str = "The text") -> DelegationReport:
        """Read the result of `to_json`.

        Args:
            name: name in messages.

        Raises:
            FileError: it is no report, or has another version.
        """
        if not isinstance(text, str):
            raise FileError(f"A {type(text).__name__} is given as the text of a report.", hint=_WRITE_ONE)
        check_text("name", name)
        return decode_text(cls, text, (cls.FORMAT, cls.VERSION), name, _WRITE_ONE)

    def to_html(self, path: str | os.PathLike[str], blame: Blame | None = None) -> None:
        """Write one self-contained page that needs no network.

        Args:
            blame: result of `micronpu.blame` for the model: the graph can then be coloured by errors.

        Raises:
            FileError: it cannot be written.
        """
        check_type("blame", blame, Blame, type(None), hint="micronpu.blame(model, data, target)")
        write_file(path, shown(self, "page", blame).encode())

    def summary(self) -> str:
        """Return one sentence with the counts."""
        if not self.has_npu:
            count = len(self.verdicts) - len(self.in_float)
            return f"{count} of {len(self.verdicts)} operators in int8 on {self.target}"
        on_npu = f"{self.delegated} of {len(self.verdicts)} operators on the NPU of {self.target}"
        return f"{on_npu} in {plural(self.partitions, 'partition')}"


def _time(report: DelegationReport) -> str:
    lacking = [f"{figure}: {why}" for figure, why in report.missing.items() if figure.startswith("time")]
    if not report.latency:
        return f"no estimate ({'; '.join(lacking)})" if lacking else "no estimate"
    low, high = (sum(t.band[i] for t in report.latency) for i in (0, 1))
    total = sum(t.milliseconds for t in report.latency)
    digits = max(report.latency, key=lambda t: t.milliseconds).digits
    without = f", without the {'; '.join(lacking)}" if lacking else ""
    return f"{total:.{digits}f} ms a call, estimated ({low:.{digits}f} to {high:.{digits}f}){without}"


def _verdict(region: Region | None) -> str:
    if region is None or (region.capacity is None and not region.outside):
        return ""
    if region.capacity is None:
        return f", in {region.name} outside of the chip"
    if region.over:
        return f", {region.over:,} more than {region.name} has"
    share = f"{100 * region.bytes / region.capacity:.1f}"
    return f", in {region.name}" if share == "0.0" else f", {share} % of {region.name} in use"


def _accuracy(report: DelegationReport) -> str:
    said, accuracy, agreement = [], report.accuracy, report.agreement
    if accuracy is not None and accuracy.metric is not None:
        said.append(f"{accuracy.metric.name} {accuracy.metric.quantized:.4g} (float {accuracy.metric.float_model:.4g})")
    if accuracy is not None and accuracy.sqnr is not None:
        said.append(f"{decibel_text(accuracy.sqnr, accuracy.sqnr_interval)} against float")
    if accuracy is not None and accuracy.agreement is not None:
        # It is a share of elements, not of samples, for integers that are no scores.
        count = accuracy.calls or max(len(accuracy.rows) + accuracy.calibrated, 1)
        agreeing = f"{accuracy.agreement:.1%}"
        if accuracy.integers is None:
            agreeing = f"{round(accuracy.agreement * count)} of {count}"
        said.append(f"top-1 agrees on {agreeing}")
    if accuracy is not None and said:
        return f"{', '.join(said)}, {accuracy.measured_on}"
    why = "the program was not run" if agreement is None else agreement.reason or "there is no float model"
    return f"not measured, because {why}"


def _written(report: DelegationReport) -> Iterator[tuple[float, str]]:
    """Yield functions that several operations compute: their share of the NPU's cycles, and what to try."""
    said, by_function = {v.node: v.written for v in report.verdicts}, dict[str, list[int]]()
    for operation in report.operations:
        if (cost := operation.cost) is not None:
            functions = {said.get(node, "") for node in operation.origin.nodes}
            by_function.setdefault(functions.pop() if len(functions) == 1 else "", []).append(cost.cycles)
    total = max(sum(map(sum, by_function.values())), 1)
    for what, cycles in by_function.items():
        if what and len(cycles) > 1 and (share := sum(cycles) / total) > 1 / 8:
            text = f"{len(cycles)} operations, {100 * share:.0f} % of the NPU's cycles, compute {sentence(what)}"
            text = text.replace(" -> ", " as ", 1)
            yield share, f"{text} Try: a function that the NPU has, such as relu or hardswish for an activation."


def _next_steps(report: DelegationReport) -> tuple[str, ...]:
    """Return what to try, a sentence or two each: severe warnings, memories that are too small, accuracy, then speed.

    Speed is sorted by the share of the time that it may save.
    """
    total = sum(t.milliseconds for t in report.latency)
    of_npu = sum(t.milliseconds for t in report.latency if t.processor == "NPU") / total if total else 1.0
    found: list[tuple[float, str]] = []
    if report.resident is not None and report.resident.time < 1:
        saved = (1 - report.resident.time) * of_npu
        price = f"{100 * saved:.0f} % less time for about {report.resident.sram_bytes:,} bytes more of SRAM"
        found.append((saved, f'Keep the weights in SRAM (--weights sram, `weights="sram"` of the options): {price}.'))
    if (spot := idle_hotspot(report.operations)) is not None:
        # An upper bound, and the change needs training: weighted by one half.
        value = spot.share * (1 - (spot.use or 0.0)) * of_npu / 2
        found.append((value, f"{spot}. Try: `micronpu advise`, which compiles alternatives."))
    costs = [o.cost for o in report.operations if o.cost is not None]
    starts = sum(c.cycles for c in costs if c.bound_by == "start") / max(sum(c.cycles for c in costs), 1)
    if starts > 1 / 2:
        what = f"{100 * starts:.0f} % of the NPU's cycles are in operations bound by their start."
        found.append((of_npu / 2, f"{what} Try: fewer and larger operations; `micronpu advise` compiles alternatives."))
    found += [(share * of_npu / 2, text) for share, text in _written(report)]
    clocks = {t.processor: t.clock_mhz for t in report.latency}
    for group in host_groups(report.host, report.core_operations):
        hint = next((r.hint for r in group.verdicts[0].reasons if r.hint and r.rule != SEARCHED_FOR), "")
        core = group.verdicts[0].core
        slow = group.cycles / clocks[core] / 1000 / total if core in clocks else 0.0
        if hint and (not core or (report.has_npu and slow > 1 / 4)):
            share = slow if core else len(group.verdicts) / report.operators
            work = sum(v.macs for v in group.verdicts) / report.macs if report.macs else 0.0
            what = f"{group.title} on the core{f', {100 * slow:.0f} % of the time' if core else ''} ({group.places})"
            found.append((max(share, work), f"{what}. Try: {sentence(hint)}"))
    found.sort(key=lambda entry: -entry[0])
    severe, mild = ([str(w) for w in report.warnings if w.is_severe is kind] for kind in (True, False))
    return (*severe, *mild, *(text for _, text in found))


@dataclass(frozen=True, repr=False)
class MethodsReport(JsonReport):
    """Report of a program with several methods.

    Attributes:
        methods: the report of each, by its name.
    """

    FORMAT = "micronpu report of methods"

    methods: Mapping[str, DelegationReport]

    @property
    def _first(self) -> DelegationReport:
        return next(iter(self.methods.values()))

    @property
    def target(self) -> str:
        """Name of the target."""
        return self._first.target

    @property
    def program_bytes(self) -> int:
        """Size of the file, which holds all methods."""
        return self._first.program_bytes

    @property
    def states(self) -> tuple[StateRow, ...]:
        """States of all methods, each once."""
        return tuple({state.name: state for report in self.methods.values() for state in report.states}.values())

    @property
    def operators(self) -> int:
        """Number of operators of all methods."""
        return sum(report.operators for report in self.methods.values())

    @property
    def delegated(self) -> int:
        """Number of operators on the NPU."""
        return sum(report.delegated for report in self.methods.values())

    def summary(self) -> str:
        """Return one sentence with the counts."""
        names = ", ".join(f"{name} {r.delegated} of {r.operators}" for name, r in self.methods.items())
        return f"{plural(len(self.methods), 'method')}: {names} operators on the NPU of {self.target}"

    def to_dict(self) -> JsonObject:
        """Return the content of `to_json`: the report of each method, as `DelegationReport.to_dict` returns it."""
        return {
            "format": self.FORMAT,
            "version": self.VERSION,
            "target": self.target,
            "program_bytes": self.program_bytes,
            "methods": {name: report.to_dict() for name, report in self.methods.items()},
        }

    def to_html(self, path: str | os.PathLike[str]) -> None:
        """Write one self-contained page that contains the page of each method.

        Raises:
            FileError: it cannot be written.
        """
        write_file(path, shown(self, "page").encode())

    @property
    def whole(self) -> tuple[str, ...]:
        """A sentence each on the size of the file and on shared memory."""
        memories = [report.memory.planned for report in self.methods.values() if report.memory is not None]
        own = max((planned[0] for planned in memories if planned), default=0)
        shared = max((sum(planned[1:]) for planned in memories), default=0)
        said = [f"The file holds all methods in {self.program_bytes:,} bytes."]
        if memories:
            said.append(
                f"Planned memory: {own:,} bytes for whichever method runs, and {shared:,} bytes of "
                f"{plural(len(self.states), 'state')} that all of them have."
            )
        return tuple(said)
