"""The delegation report: a value that the terminal, JSON and HTML are made from."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from micronpu.base.arguments import check_text, check_type
from micronpu.base.errors import FileError
from micronpu.base.files import read_file
from micronpu.base.parsing import parse_json
from micronpu.ir.graph import Node, Origin
from micronpu.ir.window import Activation
from micronpu.report.accuracy import ProgramAccuracy
from micronpu.report.agreement import Agreement
from micronpu.report.blame import Blame
from micronpu.report.budget_result import BudgetResult
from micronpu.report.codec import DecodeError, decode, encode, flat, named
from micronpu.report.estimate import Latency
from micronpu.report.headline import Headline, next_steps
from micronpu.report.memory import MemoryReport
from micronpu.report.placement import ResidentPrice
from micronpu.report.shown import rendered, short, shown
from micronpu.report.sparsity import SparsityReport
from micronpu.report.traffic import BusTraffic
from micronpu.report.verdict import Verdict
from micronpu.report.warnings import ReportWarning

if TYPE_CHECKING:
    from rich.console import RenderableType


FORMAT = "micronpu report"
VERSION = 1
"""Of the JSON.  Keys may be added without a new one; none is taken away or changes its meaning."""

_WRITE_ONE = "a file of `micronpu compile --report-json`, or of report.to_json()"


@dataclass(frozen=True)
class Cost:
    """What an operation of an NPU program costs, as the NPU's compiler or a model of the NPU estimates it.

    Attributes:
        cycles: of the NPU, until the operation is done.
        arithmetic_cycles: the part that its arithmetic takes; what is more waits for a memory.
        memory_cycles: of reading and writing each memory, by its name.
        memory_bytes: working memory that is in use meanwhile.
        utilisation: share of the multipliers' cycles that the MACs fill, 0 to 1.
        start_cycles: the part before anything is computed, where it is known.
        clock_mhz: that the cycles are of; None where it is not known.
        bus: what crosses the bus, by port of the NPU; empty where that is not known.
    """

    ALSO: ClassVar[tuple[str, ...]] = ("bound_by", "microseconds")

    cycles: int
    arithmetic_cycles: int
    memory_cycles: Mapping[str, int]
    memory_bytes: int
    utilisation: float
    start_cycles: int = 0
    clock_mhz: float | None = None
    bus: Mapping[str, BusTraffic] = field(default_factory=dict)

    @property
    def bound_by(self) -> str:
        """What takes the longest: "arithmetic", "start", or the name of a memory."""
        parts = {"arithmetic": self.arithmetic_cycles, "start": self.start_cycles, **self.memory_cycles}
        return max(parts, key=parts.__getitem__)

    @property
    def microseconds(self) -> float | None:
        """The time of the cycles; None where the clock is not known."""
        return self.cycles / self.clock_mhz if self.clock_mhz else None


@dataclass(frozen=True)
class Operation:
    """One operation of an NPU program; it stands for several operators of the model where they were fused.

    Attributes:
        partition: number of its partition.
        name: operator of the NPU and the clamp that it applies to its result, such as "conv2d + relu".
        attributes: the operator with its attributes, as the graph's text shows it.
        shape: sizes of the result, in the order of axes that the NPU uses.
        macs: multiply-accumulate operations.
        origin: where it comes from.
        cost: estimate of the NPU's compiler, or None where it has none.
        bytes_read, bytes_written: of activations, whatever executes the operation.
        constant_bytes: weights and tables that it reads.
        dtype: of the elements of the result.
        scale, zero_point: of the result; None where it has none, or more than one.
        sparse: whether the NPU reads its weights as two in four, and skips the zeros.
    """

    partition: int
    name: str = field(metadata=named("operation"))
    attributes: str
    shape: tuple[int, ...]
    macs: int
    origin: Origin = field(metadata=flat("nodes", "source", "module", "passes"))
    cost: Cost | None = None
    bytes_read: int = 0
    bytes_written: int = 0
    constant_bytes: int = 0
    dtype: str = ""
    scale: float | None = None
    zero_point: int | None = None
    sparse: bool = False

    @classmethod
    def of(cls, partition: int, node: Node, cost: Cost | None = None, sparse: bool = False) -> Operation:
        """The entry of a node of the partition's finished graph."""
        clamp = getattr(node.op, "activation", None)
        fused = isinstance(clamp, Activation) and clamp is not Activation.NONE
        result = node.outputs[0].type
        work = node.op.work(result, *node.input_types, constant=tuple(t.is_constant for t in node.inputs))
        quantized = result.qparams if result.qparams is not None and len(result.qparams.scale) == 1 else None
        return cls(
            partition=partition,
            name=f"{node.op.name} + {clamp.name.lower()}" if clamp is not None and fused else node.op.name,
            attributes=str(node.op),
            shape=result.shape,
            macs=work.macs,
            origin=node.origin,
            cost=cost,
            bytes_read=work.bytes_read,
            bytes_written=work.bytes_written,
            constant_bytes=work.constant_bytes,
            dtype=result.dtype.value,
            scale=quantized.scale[0] if quantized is not None else None,
            zero_point=quantized.zero_point[0] if quantized is not None else None,
            sparse=sparse,
        )


@dataclass(frozen=True)
class BorderTensor:
    """An input or output of the program.

    Attributes:
        name: of the input, or "output_0" and so on.
        dtype: of its elements, as torch calls it.
        shape: sizes.
        scale, zero_point: what its integers mean, or the integers that the program makes of floats here; None where
            it is not quantized.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    scale: float | None = None
    zero_point: int | None = None


@dataclass(frozen=True)
class StateRow:
    """A buffer of the model that lives on in the program from one call to the next.

    Attributes:
        name: in the model.
        dtype: of its elements in the program.
        shape: sizes.
        bytes: of memory that it holds all the time.
        scale, zero_point: what its integers mean, before a call and after it; None for a state that is no quantized
            float.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    scale: float | None = None
    zero_point: int | None = None

    def __str__(self) -> str:
        grid = "" if self.scale is None else f", {self.scale:g} * (q - {self.zero_point})"
        return f"`{self.name}` {self.dtype}[{', '.join(map(str, self.shape))}] of {self.bytes:,} bytes{grid}"


@short
@dataclass(frozen=True)
class DelegationReport:
    """What runs where and why.

    Attributes:
        target: name of the target.
        verdicts: one per operator of the program, in execution order.
        notes: what else a user should know, such as the converter that was used.
        details: how the program was made, for who looks deeper: plans and their cycles, formats, scratch memory.
        operations: the operations of the NPU programs in execution order; empty before compilation.
        core_operations: the kernels that the core runs in int8, in execution order; ``partition`` counts its parts.
        memory: what it takes of the chip's memories; None before compilation.
        budgets: limits that were set, and what the program takes of them.
        missing: unavailable figures, each with the reason: "time of the NPU", "energy" and so on.
        program_bytes: size of the ``.pte``; 0 before compilation.
        latency: what a call costs, one entry per processor for which there is a model; empty before compilation.
        agreement: how the program compares with the quantized model on some inputs; None where that was not asked for.
        accuracy: how the program compares with the float model and with the quantized one, on rows kept back from
            calibration where there are enough; None where that was not asked for, or cannot be run here.
        sparsity: what became of the layers of a network that was made sparse; None where that was not asked for.
        has_npu: False for a core alone, which computes in int8 what an NPU would.
        inputs, outputs: of the program, in order; empty before compilation.
        tools: versions of what made the program, by name.
        hashes: SHA-256 in hexadecimal of the program ("program"), of the payload of each partition ("partition 0" and
            so on), and of what the bytes rest on ("model", "data", "options", "tools", "machine"); empty before
            compilation.
        states: buffers that live on from one call to the next; empty before compilation.
        bus: what crosses the bus of the NPU in a call, by port; empty where that is not known.
        resident: what the program would take with its weights in SRAM; None where they are, do not fit, or that is
            not known.
        warnings: what a user should know before the program is used, severe ones first: outputs that are far from the
            float model, with the operator that costs most, and what can be seen without running anything.
    """

    ALSO: ClassVar[tuple[str, ...]] = (
        *("operators", "delegated", "partitions", "macs", "delegated_macs", "headline", "next_steps"),
    )

    target: str
    verdicts: tuple[Verdict, ...]
    notes: tuple[str, ...] = ()
    operations: tuple[Operation, ...] = ()
    program_bytes: int = 0
    latency: tuple[Latency, ...] = ()
    has_npu: bool = True
    agreement: Agreement | None = None
    accuracy: ProgramAccuracy | None = None
    inputs: tuple[BorderTensor, ...] = ()
    outputs: tuple[BorderTensor, ...] = ()
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
        """Time, flash, SRAM, accuracy and operators."""
        return Headline.of(self)

    @property
    def next_steps(self) -> tuple[str, ...]:
        """What to try, most valuable first."""
        return next_steps(self)

    @property
    def operators(self) -> int:
        """Number of operators of the program."""
        return len(self.verdicts)

    @property
    def delegated(self) -> int:
        """Number of operators on the NPU."""
        return sum(v.delegated for v in self.verdicts)

    @property
    def partitions(self) -> int:
        """Number of delegate calls."""
        return len({v.partition for v in self.verdicts if v.delegated})

    @property
    def host(self) -> tuple[Verdict, ...]:
        """Operators that stay on the host."""
        return tuple(v for v in self.verdicts if not v.delegated)

    @property
    def in_float(self) -> tuple[Verdict, ...]:
        """Operators that the host computes in float."""
        return tuple(v for v in self.host if not v.core)

    @property
    def left_over(self) -> tuple[Verdict, ...]:
        """Operators that are not where the target is for: not on the NPU, or in float on a core alone."""
        return self.host if self.has_npu else self.in_float

    @property
    def share(self) -> float:
        """Operators that are not left over as a fraction of all; 1.0 for a program without operators."""
        total = len(self.verdicts)
        return (total - len(self.left_over)) / total if total else 1.0

    @property
    def macs(self) -> int:
        """Multiply-accumulate operations of all operators that micronpu knows."""
        return sum(v.macs for v in self.verdicts)

    @property
    def delegated_macs(self) -> int:
        """The part of `macs` that runs on the NPU."""
        return sum(v.macs for v in self.verdicts if v.delegated)

    @property
    def times(self) -> tuple[str, ...]:
        """What is known of time and energy, and what is not: a sentence each."""
        lacking = (f"{figure[:1].upper()}{figure[1:]}: {why}." for figure, why in self.missing.items())
        return (*map(str, self.latency), *lacking)

    @property
    def figures(self) -> tuple[str, ...]:
        """Time, energy, bus and memory, or why there is none: a sentence each, which begins with what it is of."""
        moved = (f"Bus, {port}: {traffic}." for port, traffic in self.bus.items())
        return (*self.times, *moved, *(self.memory.lines if self.memory is not None else ()))

    @property
    def all_remarks(self) -> tuple[str, ...]:
        """As `remarks`, with how the program was made."""
        return (*self.remarks, *self.details)

    @property
    def remarks(self) -> tuple[str, ...]:
        """What a user should know, the accuracy and the comparison with the quantized model first."""
        said = [str(said) for said in (self.accuracy, self.agreement) if said is not None]
        if self.sparsity is not None:
            said += [self.sparsity.summary(), *self.sparsity.notes]
        if self.states:
            size = sum(state.bytes for state in self.states)
            said.append(f"States that live on from call to call, {size:,} bytes: {'; '.join(map(str, self.states))}.")
        return (*said, *self.notes)

    def to_dict(self) -> dict[str, Any]:
        """What `to_json` writes; docs/report.md says what it means."""
        first = {"format": FORMAT, "version": VERSION, "headline": None, "next_steps": None}
        return {**first, **encode(self)}

    def to_json(self, indent: int | None = 2) -> str:
        """The report as JSON; docs/report.md says what it means."""
        check_type("indent", indent, int, type(None))
        return json.dumps(self.to_dict(), indent=indent)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> DelegationReport:
        """Reads what `to_json` gave from a file.

        Raises:
            FileError: it cannot be read, is no report, or one of another version.
        """
        try:
            text = read_file(path, "The report").decode()
        except UnicodeDecodeError as error:
            raise FileError(f"{path} is not a report: it is not text.", hint=_WRITE_ONE) from error
        return cls.from_json(text, str(path))

    @classmethod
    def from_json(cls, text: str, name: str = "The text") -> DelegationReport:
        """Reads what `to_json` gave.

        Args:
            name: what to call it in messages.

        Raises:
            FileError: it is no report, or one of another version.
        """
        if not isinstance(text, str):
            raise FileError(f"A {type(text).__name__} is given as the text of a report.", hint=_WRITE_ONE)
        check_text("name", name)
        try:
            data = parse_json(text)
        except ValueError as error:
            raise FileError(f"{name} is not a report: it is not JSON ({error}).", hint=_WRITE_ONE) from error
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise FileError(f'{name} is not a report: it has no "format": "{FORMAT}".', hint=_WRITE_ONE)
        if data.get("version") != VERSION:
            raise FileError(
                f"{name} is a report of version {data.get('version')!r}, but this micronpu reads version {VERSION}.",
                hint="the micronpu that wrote it, or compile the model again",
            )
        try:
            return decode(cls, data)
        except DecodeError as error:
            raise FileError(f"{name} is a damaged report: {error}.", hint=_WRITE_ONE) from error

    def to_html(self, path: str | os.PathLike[str], blame: Blame | None = None) -> None:
        """Writes one self-contained page that needs no network.

        Args:
            blame: what `micronpu.blame` returned for the model: the graph can be coloured by the errors, too.

        Raises:
            FileError: it cannot be written there.
        """
        check_type("blame", blame, Blame, type(None), hint="micronpu.blame(model, data)")
        shown(self, "page", path, blame)

    def summary(self) -> str:
        """One sentence with the counts."""
        if not self.has_npu:
            count = len(self.verdicts) - len(self.in_float)
            return f"{count} of {len(self.verdicts)} operators in int8 on {self.target}"
        calls = f"{self.partitions} partition{'' if self.partitions == 1 else 's'}"
        return f"{self.delegated} of {len(self.verdicts)} operators on the NPU of {self.target} in {calls}"

    def __str__(self) -> str:
        lines = [f"{self.summary()}."]
        counts = Counter(v.operator for v in self.verdicts if v.delegated)
        if counts:
            lines.append("On the NPU: " + ", ".join(f"{n} x {o}" for o, n in counts.most_common()) + ".")
        rewritten = Counter(name for v in self.verdicts for name in v.rewrites)
        if rewritten:
            lines.append("Rewritten to fit: " + ", ".join(f"{n} x {name}" for name, n in rewritten.items()) + ".")
        for core, operators in self._by_core().items():
            lines.append(f"On {core}, in int8: " + ", ".join(f"{n} x {o}" for o, n in operators.most_common()) + ".")
        if self.left_over:
            lines.append("On the core, in float:" if self.in_float else "Not on the NPU:")
        lines += dict.fromkeys(f"  - {reason}" for verdict in self.host for reason in verdict.reasons)
        said = [f"{warning.level.capitalize()}: {warning}" for warning in self.warnings]
        return "\n".join([*self.headline.lines[:-1], *lines, *self.figures, *self.all_remarks, *said])

    def _by_core(self) -> dict[str, Counter[str]]:
        """Operators that a core computes in int8, by the core's name."""
        found: dict[str, Counter[str]] = {}
        for verdict in self.host:
            if verdict.core:
                found.setdefault(verdict.core, Counter())[verdict.operator] += 1
        return found

    def __rich__(self) -> RenderableType:
        return rendered(self)

    def _repr_html_(self) -> str:
        """What a notebook shows: the page, closed off from the notebook's own styles."""
        return str(shown(self, "notebook"))
