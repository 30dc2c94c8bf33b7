"""What every NPU family does for the two entries: quantizer, verdicts, payloads."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from micronpu.ir.graph import Graph
from micronpu.partition.partition import Partitioning

if TYPE_CHECKING:
    from executorch.exir.backend.compile_spec_schema import CompileSpec
    from torch.fx import Node

    from micronpu.frontend.program import ProgramView
    from micronpu.quantize.quantizer import Int8Quantizer


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
    """

    payload: bytes
    graph: Graph
    debug_handles: dict[int, tuple[int, ...]]
    named_data: Mapping[str, NamedData] = field(default_factory=dict)
    name: str


class Device(ABC):
    """An NPU with its options.

    Attributes:
        target: name in reports.
        backend: name by which the runtime looks up the delegate.
    """

    target: str
    backend: str

    @abstractmethod
    def quantizer(self, *, per_channel: bool, is_qat: bool) -> Int8Quantizer:
        """The quantizer for a float model."""

    @abstractmethod
    def partition(self, view: ProgramView, shared: Collection[Node] = ()) -> Partitioning:
        """Partitions and verdicts of a quantized program.

        Args:
            shared: dequantizes that no partition may read, because something else reads them as well.
        """

    @abstractmethod
    def compile(self, graph: Graph) -> CompiledPartition:
        """One partition, from the imported graph, which is changed in place."""

    @abstractmethod
    def specs(self) -> list[CompileSpec]:
        """What is written beside the payload: the options, without what only concerns this machine."""

    @abstractmethod
    def notes(self, parts: Sequence[CompiledPartition]) -> tuple[str, ...]:
        """What the report says about the finished parts and the tools that made them."""
