"""Ethos-U as the compiler knows it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from torch.fx import Node
from torch.fx.passes.operator_support import OperatorSupportBase

from micronpu.ethosu.compile import EthosUPartition, compile_graph
from micronpu.ethosu.options import EthosUCompileSpec
from micronpu.ethosu.target import ethosu_partition
from micronpu.frontend.program import ProgramView
from micronpu.ir.graph import Graph
from micronpu.partition.device import CompiledPartition, Device
from micronpu.partition.partition import Partitioning

if TYPE_CHECKING:
    from executorch.exir.backend.compile_spec_schema import CompileSpec

    from micronpu.ethosu.quantizer import EthosUQuantizer

HOST_NOTE = (
    "On this machine the program runs its integer graph, bit for bit as LiteRT's reference kernels; the device runs "
    "the command stream that Vela made of it."
)


class EthosUDevice(Device):
    """An Ethos-U with its options.

    Args:
        spec: accelerator and options.
        target: name in reports; the accelerator's unless given.
        additional_checks: the user's own; what one of them refuses stays on the host.
    """

    backend = "EthosUBackend"

    def __init__(
        self, spec: EthosUCompileSpec, target: str = "", additional_checks: Sequence[OperatorSupportBase] = ()
    ) -> None:
        self.spec = spec
        self.target = target or spec.target
        self.additional_checks = tuple(additional_checks)

    def quantizer(self, *, per_channel: bool, is_qat: bool) -> EthosUQuantizer:
        from micronpu.ethosu.quantizer import EthosUQuantizer

        return EthosUQuantizer(self.spec, per_channel=per_channel, is_qat=is_qat)

    def partition(self, view: ProgramView, shared: Collection[Node] = ()) -> Partitioning:
        return ethosu_partition(view, self.spec, self.target, shared, self.additional_checks)

    def compile(self, graph: Graph) -> EthosUPartition:
        return compile_graph(graph, self.spec)

    def specs(self) -> list[CompileSpec]:
        return self.spec.to_specs(for_program=True)

    def notes(self, parts: Sequence[CompiledPartition]) -> tuple[str, ...]:
        own = [p for p in parts if isinstance(p, EthosUPartition)]
        if not own:
            return ()
        notes = [HOST_NOTE] if self.spec.host_runnable else []
        cycles = sum(p.program.cycles for p in own)
        milliseconds = sum(p.program.milliseconds for p in own)
        notes.append(
            f"Vela estimates {cycles:,} cycles, {milliseconds:.2f} ms, for the NPU with {self.spec.system_config} and "
            f"{self.spec.memory_mode}."
        )
        scratch = max(p.program.scratch_size for p in own)
        notes.append(f"The NPU needs {scratch:,} bytes of memory for inputs, outputs and what lies between.")
        return tuple(notes)
