"""What every family does for the two entries: quantizer, verdicts, payloads, and the core's part."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from micronpu.base.errors import InternalError, UnsupportedError
from micronpu.chips import Chip
from micronpu.chips.core import Core
from micronpu.ir.graph import Graph, Node, Tensor
from micronpu.ir.way import Capabilities
from micronpu.ops.tables.table import LookupTable
from micronpu.partition.decisions import Decisions
from micronpu.partition.partition import Partition, Partitioning
from micronpu.partition.policy import Policy
from micronpu.passes.choose import Choice, rewritten
from micronpu.passes.pipeline import DEFAULT, Pipeline
from micronpu.report.delegation import Cost
from micronpu.report.estimate import Latency
from micronpu.report.memory import CODE, TABLES, WEIGHTS
from micronpu.report.placement import ResidentPrice
from micronpu.report.traffic import BusTraffic
from micronpu.report.verdict import Reason

if TYPE_CHECKING:
    from torch.fx import GraphModule
    from torch.fx import Node as FxNode
    from typing_extensions import Self, Unpack

    from micronpu.frontend.program import ProgramView
    from micronpu.quantize.config import QuantizerChoices
    from micronpu.quantize.quantizer import StaticQuantizer


class RefusedError(UnsupportedError):
    """The compiler refuses a partition because of one operator.

    Args:
        what: the compiler's own sentence.
        reasons: why, by name of the program's nodes that the operator stands for.
    """

    def __init__(self, what: str, reasons: Mapping[str, Reason]) -> None:
        super().__init__(what)
        self.reasons = dict(reasons)


@dataclass(frozen=True)
class NamedData:
    """Bytes that travel beside a payload.

    Attributes:
        file: ``NAME`` of the ``NAME.ptd`` that holds them; "" for the program's own ``.pte``.
    """

    data: bytes
    file: str = ""


_HEAD = 256
"""Bytes of a payload that are looked for in a program; the rest is compared where they are found."""


@dataclass(frozen=True, kw_only=True)
class CompiledPartition:
    """A partition after compilation.

    Attributes:
        data: the payload, once there is a program a part of its bytes.
        graph: the legalised graph, one node per NPU operation.
        debug_handles: identifier of an NPU operation to ExecuTorch's debug handles.
        named_data: what travels beside the payload, by key.
        name: of its first operator, unique in the program; files about the partition are called by it.
        costs: the compiler's estimates, by the index of the graph's node; empty where it has none.
        sparse: indices of the graph's nodes whose weights the NPU reads as two in four.
        constant_bytes: weights and tables as the NPU reads them, 0 where that is not known.
        cycles: of the NPU for all of it, 0 where its compiler has no estimate.
        bus: what crosses the bus of the NPU, by port; empty where that is not known.
        unproved: reason why the payload could not be verified against the graph, or "".
    """

    data: bytes | memoryview
    graph: Graph
    debug_handles: dict[int, tuple[int, ...]]
    named_data: Mapping[str, NamedData] = field(default_factory=dict)
    name: str
    costs: Mapping[int, Cost] = field(default_factory=dict)
    sparse: frozenset[int] = frozenset()
    constant_bytes: int = 0
    cycles: int = 0
    bus: Mapping[str, BusTraffic] = field(default_factory=dict)
    unproved: str = ""

    @property
    def payload(self) -> bytes:
        """The bytes that the device's delegate reads."""
        return bytes(self.data)

    def within(self, program: bytes) -> Self:
        """The same with the payload as it stands in a program, not beside it; in no other program it stays as it is."""
        size = len(self.data)
        at = program.find(bytes(self.data[:_HEAD]))
        while at >= 0 and not program.startswith(self.data, at):
            at = program.find(bytes(self.data[:_HEAD]), at + 1)
        return replace(self, data=memoryview(program)[at : at + size]) if at >= 0 else self

    @property
    def written(self) -> tuple[int, ...]:
        """For each operator that the maker of the command stream was given, the index of the graph's node.

        Empty where the payload is no command stream that could be run beside the graph.
        """
        return ()

    @property
    def flatbuffer(self) -> bytes:
        """What the maker of the command stream was given; b"" where there is none."""
        return b""

    def program_bytes(self) -> Mapping[str, int]:
        """What the payload consists of, by the names of `micronpu.report.memory`."""
        constants = constant_bytes(self.graph)
        return {CODE: max(len(self.data) - sum(constants.values()), 0), **constants}

    @property
    def npu_sram(self) -> int | None:
        """Peak use of the SRAM by the NPU; None where its compiler does not say."""
        return None

    @property
    def prefetched(self) -> int:
        """Bytes of scratch memory that hold prefetched weights during the whole call."""
        return 0

    @property
    def litert_operator(self) -> str:
        """The custom operator by which LiteRT Micro calls the NPU; "" where it has none."""
        return ""

    def as_litert(
        self, inputs: Sequence[tuple[str, Tensor]], outputs: Sequence[tuple[str, Tensor]]
    ) -> tuple[Any, tuple[str, bytes]]:
        """The payload as a LiteRT model of one such operator, in LiteRT's object form, and metadata of the model.

        Args:
            inputs, outputs: name and tensor, in the order of the payload's.
        """
        raise InternalError(f"LiteRT has no operator for the payload of `{self.name}`.")

    def firmware_files(self) -> Mapping[str, str]:
        """What the firmware has to be built with for this partition, text by file name; nothing as a rule."""
        return {}


def constant_bytes(graph: Graph) -> dict[str, int]:
    """Bytes of weights and of tables that a graph holds."""
    tables = sum(node.op.array.nbytes for node in graph.nodes if isinstance(node.op, LookupTable))
    return {WEIGHTS: sum(t.type.bytes for t in graph.constants()), TABLES: tables}


class CorePart(ABC):
    """What a core computes in int8 of what the NPU leaves over.

    Attributes:
        core: which one.
    """

    core: Core

    @abstractmethod
    def policy(self) -> Policy:
        """What the core takes."""

    @abstractmethod
    def module(self, graph: Graph) -> GraphModule:
        """Calls of the core's kernels that compute the graph of a partition."""

    @abstractmethod
    def adapt(self, module: GraphModule) -> None:
        """Changes the host part round the calls of kernels, in place, before it is written."""

    @abstractmethod
    def costs(self, graph: Graph) -> Mapping[int, Cost]:
        """What each kernel of a partition costs, by the index of the graph's node."""

    @abstractmethod
    def latency(self, graphs: Iterable[Graph]) -> tuple[Latency, ...]:
        """How long the core computes in int8; empty where its clock is not known."""


class Device(ABC):
    """A family with its options, ready to partition and compile: an NPU, or a core alone.

    Attributes:
        target: name in reports.
        backend: name by which the runtime looks up the delegate; "" for a core alone, which has none.
        beside: computes in int8 what the NPU does not take; None where portable kernels do in float.
        chip: that the target is; None for an NPU or a core by itself.
        capabilities: what it computes with, which chooses among the ways of an operator.
        disabled_rewrites: names of rewrites of the float program that the user wants left out.
        pipeline: what the graph of every partition goes through.
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
        """The core that computes in int8 what the NPU does not take."""
        return self.beside.core if self.beside is not None else None

    @property
    def dense_only(self) -> str:
        """What zeros among the weights do where they save no cycles, as a sentence; "" where two in every four do."""
        return f"{self.target} gains no cycles from weights that are zero, as far as is published."

    def quantizer(self, **choices: Unpack[QuantizerChoices]) -> StaticQuantizer:
        """The quantizer for a float model; see `StaticQuantizer` for the arguments."""
        from micronpu.quantize.quantizer import StaticQuantizer

        return StaticQuantizer(self.capabilities, disabled_rewrites=self.disabled_rewrites, **choices)

    def unverified(self) -> Device:
        """The device that hands out what its compiler makes without running it first."""
        return self

    @abstractmethod
    def policy(self) -> Policy | None:
        """What the NPU takes; None where there is none."""

    @abstractmethod
    def plan(self, partition: Partition) -> object:
        """Asks the compiler for a partition, whose graph stays as it is; what `compile` writes.

        Raises:
            RefusedError: the compiler refuses it after all.
        """

    def probe(self, partition: Partition) -> None:
        """Whether there is a plan for a partition, whose weights need not be the real ones; no files are written.

        Raises:
            RefusedError: the compiler refuses it, which not every compiler does.
        """
        return

    @abstractmethod
    def compile(self, partition: Partition) -> CompiledPartition:
        """Writes the payload of a partition by its plan, or by one made now where it has none.

        Raises:
            RefusedError: there is no plan yet, and the compiler refuses it.
        """

    @abstractmethod
    def compile_program(self, graph: Graph) -> CompiledPartition:
        """Chooses for and compiles an imported graph, all of which is for the NPU; it is changed in place."""

    def excludes(self, node: FxNode) -> bool:
        """Whether the user wants a node of the program to stay on the host."""
        return False

    def decisions(self, view: ProgramView) -> Decisions:
        """Every decision about a quantized program, for the NPU and the core together."""
        policies = (self.policy(), self.beside.policy() if self.beside is not None else None)
        npu, beside = (None if p is None else replace(p, pipeline=self.pipeline) for p in policies)
        return Decisions(view, npu, beside, self.target)

    def partition(self, view: ProgramView) -> Partitioning:
        """Partitions and verdicts of a quantized program."""
        return self.decisions(view).partitioning()

    def settle(
        self,
        decisions: Decisions,
        partitioning: Partitioning,
        progress: Callable[[float], None] | None = None,
        ask: Callable[[Partition], object] | None = None,
    ) -> Partitioning:
        """Plans every partition; where the compiler refuses an operator after all, it leaves the partition.

        A partition that such a refusal leaves as it is keeps its plan.

        Args:
            partitioning: the decisions' own.
            progress: called with the part that is done, 0 to 1.
            ask: for what a partition's plan is, `Device.plan` unless given.

        Returns:
            The partitioning in which all partitions have been asked for.
        """
        known: dict[object, object] = {}
        while True:
            try:
                for number, partition in enumerate(partitioning.partitions, 1):
                    key = _border(partition)
                    if key not in known:
                        known[key] = (ask or self.plan)(partition)
                    partition.plan = known[key]
                    if progress is not None:
                        progress(number / len(partitioning.partitions))
                return partitioning
            except RefusedError as error:
                if not decisions.refuse(error.reasons):
                    raise
                partitioning = decisions.partitioning()

    def improve(self, partitioning: Partitioning, progress: Callable[[float], None]) -> None:
        """Makes the plans of settled partitions better, where the user has asked for more than the usual.

        Args:
            progress: called with the part that is done, 0 to 1.
        """
        return

    @abstractmethod
    def specs(self) -> list[tuple[str, bytes]]:
        """Keys and values that are written beside the payload: the options, without what only concerns this machine."""

    def latency(self, parts: Sequence[CompiledPartition]) -> tuple[Latency, ...]:
        """How long the NPU is busy with the finished parts; empty where there is no model of it."""
        return ()

    def resident(self, parts: Sequence[CompiledPartition]) -> ResidentPrice | None:
        """What the finished parts would take with their weights in SRAM; None where they are, or do not fit."""
        return None

    def no_latency(self) -> str:
        """Why there is no figure of the NPU's time, as a clause; "" where there is one."""
        return "there is no model of it"

    def shared(self, parts: Sequence[CompiledPartition]) -> Sequence[CompiledPartition]:
        """The finished parts of several methods of a program, in order, with one copy of what several of them hold."""
        return parts

    @abstractmethod
    def notes(self, parts: Sequence[CompiledPartition]) -> tuple[str, ...]:
        """What the report says about the finished parts and the tools that made them."""

    def details(self, parts: Sequence[CompiledPartition]) -> tuple[str, ...]:
        """Return how the finished parts were made, for the full report."""
        return ()


def _border(partition: Partition) -> object:
    """What a plan depends on: the nodes, and how they are called."""
    return partition.nodes, partition.inputs, partition.outputs, partition.images


def graph_for_npu(graph: Graph, policy: Policy) -> Graph:
    """An imported graph, all of which is for the NPU, with what the policy chooses for its operators; in place."""

    def decide(node: Node) -> Choice | None:
        answer = policy.decide(node)
        return answer if isinstance(answer, Choice) else None

    rewritten(graph, decide)
    return policy.finished(graph)
