"""What every NPU family does for the two entries: quantizer, verdicts, payloads."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from micronpu.chips.core import Core
from micronpu.errors import UnsupportedError
from micronpu.frontend.importer import import_nodes
from micronpu.ir.graph import Graph
from micronpu.partition.partition import Partitioning
from micronpu.report.delegation import Cost
from micronpu.report.estimate import Latency
from micronpu.report.verdict import Reason

if TYPE_CHECKING:
    from executorch.exir.backend.compile_spec_schema import CompileSpec
    from torch.fx import Node

    from micronpu.frontend.program import ProgramView
    from micronpu.quantize.config import Activations
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


@dataclass(frozen=True, kw_only=True)
class CompiledPartition:
    """A partition after compilation.

    Attributes:
        payload: the bytes that the device's delegate reads.
        graph: the legalised graph, one node per NPU operation.
        debug_handles: identifier of an NPU operation to ExecuTorch's debug handles.
        named_data: what travels beside the payload, by key.
        name: of its first operator, unique in the program; files about the partition are called by it.
        costs: the compiler's estimates, by the index of the graph's node; empty where it has none.
    """

    payload: bytes
    graph: Graph
    debug_handles: dict[int, tuple[int, ...]]
    named_data: Mapping[str, NamedData] = field(default_factory=dict)
    name: str
    costs: Mapping[int, Cost] = field(default_factory=dict)


class Device(ABC):
    """An NPU, or a core alone, with its options.

    Attributes:
        target: name in reports.
        backend: name by which the runtime looks up the delegate; "" for a core alone, which has none.
        core: computes in int8 what the NPU does not take; None where portable kernels do in float.
    """

    target: str
    backend: str = ""
    core: Core | None = None

    @abstractmethod
    def quantizer(
        self,
        *,
        per_channel: bool = True,
        is_qat: bool = False,
        activations: Activations = "int8",
        io: Activations | None = None,
    ) -> StaticQuantizer:
        """The quantizer for a float model; see `StaticQuantizer` for the arguments."""

    @abstractmethod
    def partition(
        self, view: ProgramView, shared: Collection[Node] = (), refused: Mapping[str, Reason] | None = None
    ) -> Partitioning:
        """Partitions and verdicts of a quantized program.

        Args:
            shared: dequantizes that no partition may read, because something else reads them as well.
            refused: by name of the node, why the compiler could not take it when it was tried.
        """

    @abstractmethod
    def compile(self, graph: Graph) -> CompiledPartition:
        """One partition, from the imported graph, which is changed in place."""

    def excludes(self, node: Node) -> bool:
        """Whether the user wants a node of the program to stay on the host."""
        return False

    def refusals(self, view: ProgramView, partitioning: Partitioning) -> dict[str, Reason]:
        """What the compiler would refuse of these partitions, by name of the node; its rules are the whole truth unless
        a device says otherwise."""
        return {}

    def compile_all(
        self,
        view: ProgramView,
        partitioning: Partitioning,
        progress: Callable[[float], None] | None = None,
    ) -> tuple[Partitioning, list[CompiledPartition], Partitioning | None]:
        """Compiles every partition; where the compiler refuses an operator after all, it leaves the partition.

        Args:
            progress: called with the part that is done, 0 to 1.

        Returns:
            The partitioning that was compiled, its partitions, and its `leftovers`.
        """
        refused: dict[str, Reason] = {}
        while True:
            leftovers = self.leftovers(view, partitioning)
            _agree_on_images(view, partitioning, leftovers)
            parts: list[CompiledPartition] = []
            try:
                for group in partitioning.groups:
                    graph = import_nodes(view, group.nodes, list(group.inputs), list(group.outputs))
                    parts.append(self.compile(graph))
                    if progress is not None:
                        progress(len(parts) / len(partitioning.groups))
                return partitioning, parts, leftovers
            except RefusedError as error:
                if error.reasons.keys() <= refused.keys():
                    raise
                refused |= error.reasons
                partitioning = self.partition(view, refused=refused)

    def leftovers(self, view: ProgramView, partitioning: Partitioning) -> Partitioning | None:
        """What the core computes in int8 beside the NPU's partitions; None without such a core."""
        if self.core is None:
            return None
        from micronpu.targets.cortexm.partition import core_partition

        return core_partition(view, self.core, partitioning.groups)

    @abstractmethod
    def specs(self) -> list[CompileSpec]:
        """What is written beside the payload: the options, without what only concerns this machine."""

    def latency(self, parts: Sequence[CompiledPartition]) -> tuple[Latency, ...]:
        """How long the NPU is busy with the finished parts; empty where there is no model of it."""
        return ()

    @abstractmethod
    def notes(self, parts: Sequence[CompiledPartition]) -> tuple[str, ...]:
        """What the report says about the finished parts and the tools that made them."""


def _agree_on_images(view: ProgramView, partitioning: Partitioning, leftovers: Partitioning | None) -> None:
    """Decides what the NPU and the core hand each other as [N, H, W, C]."""
    if leftovers is None:
        return
    from micronpu.targets.cortexm.layout import agree_on_images

    agree_on_images(view, (*partitioning.groups, *leftovers.groups))
