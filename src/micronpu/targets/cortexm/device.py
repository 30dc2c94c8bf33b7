"""A core alone as the compiler knows it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from torch.fx import Node

from micronpu.chips.core import Core, find_core
from micronpu.errors import InternalError
from micronpu.frontend.program import ProgramView
from micronpu.ir.graph import Graph
from micronpu.partition.device import CompiledPartition, Device
from micronpu.partition.partition import Partitioning
from micronpu.report.verdict import Reason
from micronpu.targets.cortexm.options import CortexMOptions
from micronpu.targets.cortexm.partition import core_partition

if TYPE_CHECKING:
    from executorch.exir.backend.compile_spec_schema import CompileSpec

    from micronpu.quantize.config import Activations
    from micronpu.targets.cortexm.quantizer import CortexMQuantizer


class CortexMDevice(Device):
    """A core without an NPU: nothing is delegated, and what CMSIS-NN has a kernel for is computed in int8.

    Args:
        options: the core.
        target: name in reports; the core's unless given.
    """

    core: Core

    def __init__(self, options: CortexMOptions, target: str = "") -> None:
        self.options = options
        self.target = target or options.core
        self.core = find_core(options.core)

    def quantizer(
        self,
        *,
        per_channel: bool = True,
        is_qat: bool = False,
        activations: Activations = "int8",
        io: Activations | None = None,
    ) -> CortexMQuantizer:
        from micronpu.targets.cortexm.quantizer import CortexMQuantizer

        return CortexMQuantizer(per_channel=per_channel, is_qat=is_qat, activations=activations, io=io)

    def partition(
        self, view: ProgramView, shared: Collection[Node] = (), refused: Mapping[str, Reason] | None = None
    ) -> Partitioning:
        found = core_partition(view, self.core).report
        title = self.core.title
        verdicts = tuple(replace(v, partition=None, core=title) if v.delegated else v for v in found.verdicts)
        return Partitioning((), replace(found, target=self.target, verdicts=verdicts, has_npu=False))

    def compile(self, graph: Graph) -> CompiledPartition:
        raise InternalError(f"{self.target} delegates nothing, but a partition was to be compiled for it.")

    def specs(self) -> list[CompileSpec]:
        return []

    def notes(self, parts: Sequence[CompiledPartition]) -> tuple[str, ...]:
        return ()
