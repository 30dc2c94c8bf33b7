"""The delegation report, from which the terminal, JSON and HTML views are made."""

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
"""Format and version of the JSON.  Keys may be added within a version; none is removed or changes its meaning."""

_WRITE_ONE = "a file of `micronpu compile --report-json`, or of report.to_json()"


@dataclass(frozen=True)
class Cost:
    """Cost of an operation of an NPU program, estimated by the NPU's compiler or by a model of the NPU.

    Attributes:
        cycles: of the NPU, until the operation is done.
        arithmetic_cycles: cycles of its arithmetic; the remaining ones wait for a memory.
        memory_cycles: cycles for reading and writing each memory, by its name.
        memory_bytes: bytes of working memory in use during the operation.
        utilisation: share of the multipliers' cycles that the MACs fill, 0 to 1.
        start_cycles: cycles before anything is computed, if known.
        clock_mhz: clock of the cycles; None if unknown.
        bus: bus traffic by port of the NPU; empty if unknown.
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
        """Return the bottleneck: "arithmetic", "start", or the name of a memory."""
        parts = {"arithmetic": self.arithmetic_cycles, "start": self.start_cycles, **self.memory_cycles}
        return max(parts, key=parts.__getitem__)

    @property
    def microseconds(self) -> float | None:
        """Return the time of the cycles; None if the clock is unknown."""
        return self.cycles / self.clock_mhz if self.clock_mhz else None


@dataclass(frozen=True)
class Operation:
    """One operation of an NPU program; several operators of the model may be fused into it.

    Attributes:
        partition: number of its partition.
        name: operator of the NPU and the clamp that it applies to its result, such as "conv2d + relu".
        attributes: the operator with its attributes, as the graph's text shows it.
        shape: sizes of the result, in the order of axes that the NPU uses.
        macs: multiply-accumulate operations.
        origin: operators of the model that it computes.
        cost: estimate of the NPU's compiler, or None.
        bytes_read, bytes_written: bytes of activations, on the NPU and on the core.
        constant_bytes: weights and tables that it reads.
        dtype: of the elements of the result.
        scale, zero_point: of the result; None if it has none, or one per channel.
        sparse: True if the NPU reads its weights in 2:4 form and skips the zeros.
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
        """Return the entry of a node of the partition's final graph."""
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
        scale, zero_point: qparams of its integers, or of the integers that the program converts floats to; None if it
            is not quantized.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    scale: float | None = None
    zero_point: int | None = None


@dataclass(frozen=True)
class StateRow:
    """A buffer of the model that persists from one call to the next.

    Attributes:
        name: in the model.
        dtype: of its elements in the program.
        shape: sizes.
        bytes: of memory that it occupies permanently.
        scale, zero_point: qparams of its integers, before and after a call; None if it is not quantized.
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
        """Return time, flash, SRAM, accuracy and operators."""
        return Headline.of(self)

    @property
    def next_steps(self) -> tuple[str, ...]:
        """Return what to try, most valuable first."""
        return next_steps(self)

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
        """Return `remarks` with details of the compilation."""
        return (*self.remarks, *self.details)

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

    def to_dict(self) -> dict[str, Any]:
        """Return the content of `to_json`; docs/report.md describes it."""
        first = {"format": FORMAT, "version": VERSION, "headline": None, "next_steps": None}
        return {**first, **encode(self)}

    def to_json(self, indent: int | None = 2) -> str:
        """Return the report as JSON; docs/report.md describes it."""
        check_type("indent", indent, int, type(None))
        return json.dumps(self.to_dict(), indent=indent)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> DelegationReport:
        """Read the result of `to_json` from a file.

        Raises:
            FileError: it cannot be read, is no report, or has another version.
        """
        try:
            text = read_file(path, "The report").decode()
        except UnicodeDecodeError as error:
            raise FileError(f"{path} is not a report: it is not text.", hint=_WRITE_ONE) from error
        return cls.from_json(text, str(path))

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
        """Write one self-contained page that needs no network.

        Args:
            blame: result of `micronpu.blame` for the model: the graph can then be coloured by errors.

        Raises:
            FileError: it cannot be written.
        """
        check_type("blame", blame, Blame, type(None), hint="micronpu.blame(model, data)")
        shown(self, "page", path, blame)

    def summary(self) -> str:
        """Return one sentence with the counts."""
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
        """Return operators that a core computes in int8, by the core's name."""
        found: dict[str, Counter[str]] = {}
        for verdict in self.host:
            if verdict.core:
                found.setdefault(verdict.core, Counter())[verdict.operator] += 1
        return found

    def __rich__(self) -> RenderableType:
        return rendered(self)

    def _repr_html_(self) -> str:
        """Return the page for a notebook, isolated from the notebook's styles."""
        return str(shown(self, "notebook"))
