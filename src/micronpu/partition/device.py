"""Interface of a backend for both entry points: quantizer, verdicts, payloads, and the core's part."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from micronpu.base.errors import FileError, InternalError, UnsupportedError
from micronpu.base.files import write_file
from micronpu.chips import Chip
from micronpu.chips.core import Core
from micronpu.ir.graph import Graph, Node, Tensor
from micronpu.ir.lowering import Capabilities
from micronpu.ops.tables.table import LookupTable
from micronpu.partition.decisions import Decisions
from micronpu.partition.partition import Partition, Partitioning, Policy
from micronpu.passes.pipeline import DEFAULT, Pipeline
from micronpu.passes.rewrite import Choice, rewritten
from micronpu.report.memory import CODE, TABLES, WEIGHTS
from micronpu.report.operations import BusTraffic, Cost, Latency, ResidentPrice
from micronpu.report.verdict import Reason
from micronpu.report.warnings import ReportWarning

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from micronpu.frontend.graphs import GraphModule
    from micronpu.frontend.graphs import Node as FxNode
    from micronpu.frontend.program import ProgramView
    from micronpu.quantize.config import QuantizerChoices
    from micronpu.quantize.quantizer import StaticQuantizer


class RefusedPartitionError(UnsupportedError):
    """The compiler refuses a partition because of one operator.

    Args:
        what: the compiler's message.
        reasons: reasons by name of the operator's nodes in the program.
    """

    def __init__(self, what: str, reasons: Mapping[str, Reason]) -> None:
        super().__init__(what)
        self.reasons = dict(reasons)


@dataclass(frozen=True)
class NamedData:
    """Bytes that are stored beside a payload."""

    data: bytes
    file: str = ""  # ``NAME`` of the ``NAME.ptd`` that holds them; "" for the program's own ``.pte``


_HEAD = 256
"""Number of leading bytes of a payload that are searched in a program; the rest is compared at the match."""


@dataclass(frozen=True, kw_only=True)
class CompiledPartition:
    """A partition after compilation."""

    data: bytes | memoryview  # the payload; a part of the program's bytes after the program is written
    graph: Graph  # the legalised graph, one node per NPU operation
    debug_handles: dict[int, tuple[int, ...]]  # identifier of an NPU operation to ExecuTorch's debug handles
    named_data: Mapping[str, NamedData] = field(default_factory=dict)  # data stored beside the payload, by key
    name: str  # name of its first operator, unique in the program; files about the partition have this name
    # The compiler's estimates, by the index of the graph's node; empty without estimates.
    costs: Mapping[int, Cost] = field(default_factory=dict)
    sparse: frozenset[int] = frozenset()  # indices of the graph's nodes whose weights the NPU reads in 2:4 form
    constant_bytes: int = 0  # bytes of weights and tables as the NPU reads them; 0 if unknown
    cycles: int = 0  # of the NPU for the partition; 0 without an estimate
    # Traffic on the bus of the NPU, by port; empty if unknown.
    bus: Mapping[str, BusTraffic] = field(default_factory=dict)
    unproved: str = ""  # reason why the payload could not be verified against the graph, or ""

    @property
    def payload(self) -> bytes:
        """The bytes that the device's delegate reads."""
        return bytes(self.data)

    def within(self, program: bytes) -> Self:
        """Return a copy whose payload is a view into a program's bytes; unchanged if the program does not have it."""
        size = len(self.data)
        at = program.find(bytes(self.data[:_HEAD]))
        while at >= 0 and not program.startswith(self.data, at):
            at = program.find(bytes(self.data[:_HEAD]), at + 1)
        return replace(self, data=memoryview(program)[at : at + size]) if at >= 0 else self

    @property
    def written(self) -> tuple[int, ...]:
        """Index of the graph's node for each operator that the compiler of the command stream received.

        Empty if the payload is no command stream that could be compared with the graph.
        """
        return ()

    @property
    def flatbuffer(self) -> bytes:
        """Input of the command stream's compiler; b"" without one."""
        return b""

    def program_bytes(self) -> Mapping[str, int]:
        """Return sizes of the payload's parts, by the names of `micronpu.report.memory`."""
        constants = constant_bytes(self.graph)
        return {CODE: max(len(self.data) - sum(constants.values()), 0), **constants}

    @property
    def npu_sram(self) -> int | None:
        """Peak use of the SRAM by the NPU in bytes; None if unknown."""
        return None

    @property
    def prefetched(self) -> int:
        """Bytes of scratch memory that hold prefetched weights during the whole call."""
        return 0

    @property
    def litert_operator(self) -> str:
        """The custom operator by which LiteRT Micro calls the NPU; "" without one."""
        return ""

    def as_litert(
        self, inputs: Sequence[tuple[str, Tensor]], outputs: Sequence[tuple[str, Tensor]]
    ) -> tuple[object, tuple[str, bytes]]:
        """Return the payload as a LiteRT model with one such operator, in LiteRT's object form, and metadata of the
        model.
        """
        raise InternalError(f"LiteRT has no operator for the payload of `{self.name}`.")

    def firmware_files(self) -> Mapping[str, str]:
        """Return files that the firmware must be built with for this partition, text by file name; usually none."""
        return {}


def constant_bytes(graph: Graph) -> dict[str, int]:
    """Return the bytes of weights and of tables in a graph."""
    tables = sum(op.array.nbytes for _, op in graph.of(LookupTable))
    return {WEIGHTS: sum(t.type.bytes for t in graph.constants()), TABLES: tables}


class CorePart(ABC):
    """The part of a core that computes remaining operators in int8."""

    core: Core

    @abstractmethod
    def policy(self) -> Policy:
        """Return the policy of the core."""

    @abstractmethod
    def module(self, graph: Graph) -> GraphModule:
        """Return calls of the core's kernels that compute the graph of a partition."""

    @abstractmethod
    def adapt(self, module: GraphModule) -> None:
        """Change the core part around the calls of kernels, in place, before it is written."""

    @abstractmethod
    def costs(self, graph: Graph) -> Mapping[int, Cost]:
        """Return the cost of each kernel of a partition, by the index of the graph's node."""

    @abstractmethod
    def latency(self, graphs: Iterable[Graph]) -> tuple[Latency, ...]:
        """Return the core's time for int8 kernels; empty if its clock is unknown."""


class Device(ABC):
    """A backend with its options, ready to partition and compile: an NPU, or a core alone.

    Attributes:
        target: name in reports.
        backend: name by which the runtime looks up the delegate; "" for a core alone, which has none.
        beside: computes remaining operators in int8; None if portable kernels compute them in float.
        chip: of the target; None for an NPU or a core without a chip.
        capabilities: its capabilities, by which lowerings of an operator are chosen.
        disabled_rewrites: names of rewrites of the float program that the user has disabled.
        pipeline: passes for the graph of every partition.
    """

    target: str
    capabilities: Capabilities
    disabled_rewrites: tuple[str, ...] = ()
    chip: Chip | None = None
    pipeline: Pipeline = DEFAULT
    backend: str = ""
    beside: CorePart | None = None

    @property
    def core(self) -> Core | None:
        """The core that computes remaining operators in int8."""
        return self.beside.core if self.beside is not None else None

    @property
    def dense_only(self) -> str:
        """Effect of zero weights if they save no cycles, as a sentence; "" if 2:4 sparsity does."""
        return f"{self.target} gains no cycles from weights that are zero, as far as is published."

    def quantizer(self, **choices: Unpack[QuantizerChoices]) -> StaticQuantizer:
        """Return the quantizer for a float model; see `StaticQuantizer` for the arguments."""
        from micronpu.quantize.quantizer import StaticQuantizer

        return StaticQuantizer(self.capabilities, disabled_rewrites=self.disabled_rewrites, **choices)

    def unverified(self) -> Device:
        """Return a device that does not run the compiler's output to verify it."""
        return self

    @abstractmethod
    def policy(self) -> Policy | None:
        """Return the policy of the NPU; None without one."""

    @abstractmethod
    def plan(self, partition: Partition) -> object:
        """Return the compiler's plan for a partition, whose graph stays, or raise `RefusedPartitionError`."""

    def probe(self, partition: Partition) -> None:
        """Check that there is a plan for a partition, whose weights need not be the real ones; no files are written.

        Raises:
            RefusedPartitionError: the compiler refuses it, which not every compiler does.
        """
        return

    @abstractmethod
    def compile(self, partition: Partition) -> CompiledPartition:
        """Write the payload of a partition by its plan, or by a new one, which the compiler may refuse."""

    @abstractmethod
    def compile_program(self, graph: Graph) -> CompiledPartition:
        """Choose operators for an imported graph, all of which is for the NPU, and compile it; changed in place."""

    def excludes(self, node: FxNode) -> bool:
        """Return True if the user wants a node of the program to stay on the core."""
        return False

    def decisions(self, view: ProgramView) -> Decisions:
        """Return the decisions about a quantized program, for NPU and core."""
        policies = (self.policy(), self.beside.policy() if self.beside is not None else None)
        npu, beside = (None if p is None else replace(p, pipeline=self.pipeline) for p in policies)
        return Decisions(view, npu, beside, self.target)

    def partition(self, view: ProgramView) -> Partitioning:
        """Return partitions and verdicts of a quantized program."""
        return self.decisions(view).partitioning()

    def settle(
        self,
        decisions: Decisions,
        partitioning: Partitioning,
        progress: Callable[[float], None] | None = None,
        ask: Callable[[Partition], object] | None = None,
    ) -> Partitioning:
        """Plan every partition; an operator that the compiler refuses is removed from its partition.

        Partitions that do not change keep their plans.

        Args:
            partitioning: the decisions' own.
            progress: called with the finished fraction, 0 to 1.
            ask: returns the plan of a partition; default: `Device.plan`.

        Returns:
            The partitioning, all of whose partitions are planned.
        """
        known: dict[object, object] = {}
        while True:
            try:
                for number, partition in enumerate(partitioning.partitions, 1):
                    # The facts that a plan depends on.
                    key = partition.nodes, partition.inputs, partition.outputs, partition.images
                    if key not in known:
                        known[key] = (ask or self.plan)(partition)
                    partition.plan = known[key]
                    if progress is not None:
                        progress(number / len(partitioning.partitions))
                return partitioning
            except RefusedPartitionError as error:
                if not decisions.refuse(error.reasons):
                    raise
                partitioning = decisions.partitioning()

    def improve(self, partitioning: Partitioning, progress: Callable[[float], None]) -> None:
        """Improve the plans of settled partitions if the options request it, and show the finished fraction."""
        return

    @abstractmethod
    def specs(self) -> list[tuple[str, bytes]]:
        """Return keys and values that are written beside the payload: the options, except those about this machine."""

    def latency(self, parts: Sequence[CompiledPartition]) -> tuple[Latency, ...]:
        """Return the NPU's time for the finished parts; empty without a model of it."""
        return ()

    def resident(self, parts: Sequence[CompiledPartition]) -> ResidentPrice | None:
        """Return time and memory with the weights in SRAM; None if they are there already, or do not fit."""
        return None

    def no_latency(self) -> str:
        """Return the reason why there is no figure of the NPU's time, as a clause; "" if there is one."""
        return "there is no model of it"

    def shared(self, parts: Sequence[CompiledPartition]) -> Sequence[CompiledPartition]:
        """Return the finished parts of several methods of a program, in order, with common data stored once."""
        return parts

    @abstractmethod
    def notes(self, parts: Sequence[CompiledPartition]) -> tuple[str, ...]:
        """Return notes of the report about the finished parts and the tools that made them."""

    def cautions(self) -> tuple[ReportWarning, ...]:
        """Return warnings about the target that hold for any program."""
        return ()

    def details(self, parts: Sequence[CompiledPartition]) -> tuple[str, ...]:
        """Return how the finished parts were made, for the full report."""
        return ()


def graph_for_npu(graph: Graph, policy: Policy) -> Graph:
    """Apply the policy's choices to an imported graph, all of which is for the NPU, in place."""

    def decide(node: Node) -> Choice | None:
        answer = policy.decide(node)
        return answer if isinstance(answer, Choice) else None

    rewritten(graph, decide)
    return policy.finished(graph)


# ---------------------------------------------------------------- files for inspection


class Intermediates:
    """The folder with intermediate results of one partition; without a folder nothing is computed or written.

    Args:
        folder: of the compilation, made if missing; "" for none.
        name: of the partition, and of its folder.
    """

    def __init__(self, folder: str, name: str) -> None:
        self._folder = Path(folder) if folder else None
        self._name = name

    def write(self, file: str, make: Callable[[], str | bytes]) -> None:
        """Write a file into the partition's folder."""
        if self._folder is not None:
            _write(self._folder / self._name / file, make())

    def write_passes(self, graph: Graph, pipeline: Pipeline) -> None:
        """Write a graph before the passes, and after each pass that changed something."""
        if self._folder is None:
            return
        self.write("graph_before.txt", lambda: f"{graph}\n")
        for number, (name, text) in enumerate(pipeline.trace(graph), 1):
            _write(self._folder / self._name / "passes" / f"{number:03}_{name}.txt", text)

    def write_anyway(self, file: str, content: str) -> None:
        """Write a file that was requested separately: into the folder, or the current one without one."""
        _write((self._folder or Path()) / file, content)


def _write(path: Path, content: str | bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        what = f"The folder {path.parent} cannot be made: {error.strerror or error}."
        raise FileError(what, hint="another intermediates_dir") from error
    write_file(path, content.encode() if isinstance(content, str) else content)
