"""Ethos-U as the compiler knows it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from torch.fx import Node
from torch.fx.passes.operator_support import OperatorSupportBase

from micronpu.ethosu.compile import EthosUPartition, compile_graph
from micronpu.ethosu.options import EthosUCompileSpec
from micronpu.ethosu.target import ethosu_partition
from micronpu.frontend.importer import import_nodes
from micronpu.frontend.program import ProgramView
from micronpu.ir.graph import Graph
from micronpu.partition.device import CompiledPartition, Device, RefusedError
from micronpu.partition.partition import Partitioning
from micronpu.partition.verdict import Reason

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

    def partition(
        self, view: ProgramView, shared: Collection[Node] = (), refused: Mapping[str, Reason] | None = None
    ) -> Partitioning:
        return ethosu_partition(view, self.spec, self.target, shared, refused, self.additional_checks)

    def refusals(self, view: ProgramView, partitioning: Partitioning) -> dict[str, Reason]:
        """Vela is the last judge: operators that it takes one by one can be too much together."""
        found: dict[str, Reason] = {}
        for group in partitioning.groups:
            graph = import_nodes(view, group.nodes, list(group.inputs), list(group.outputs))
            try:
                compile_graph(graph, replace(self.spec, intermediates_dir="", host_runnable=False))
            except RefusedError as error:
                found |= error.reasons
        return found

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
