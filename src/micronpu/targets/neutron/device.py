"""Neutron as the compiler knows it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from torch.fx import Node

from micronpu.chips.core import Core
from micronpu.frontend.importer import import_nodes
from micronpu.frontend.program import ProgramView, written_names
from micronpu.ir.graph import Graph
from micronpu.partition.device import CompiledPartition, Device, RefusedError
from micronpu.partition.partition import Partitioning
from micronpu.report.estimate import Latency
from micronpu.report.verdict import Reason
from micronpu.targets.neutron.compile import NeutronPartition, compile_graph
from micronpu.targets.neutron.costs import npu_latency
from micronpu.targets.neutron.options import CustomDelegationOptions, NeutronCompileOptions
from micronpu.targets.neutron.sdk import select_converter
from micronpu.targets.neutron.verdicts import neutron_partition

if TYPE_CHECKING:
    from executorch.exir.backend.compile_spec_schema import CompileSpec

    from micronpu.quantize.config import Activations
    from micronpu.targets.neutron.quantizer import NeutronQuantizer

REFERENCE_NOTE = (
    "The NPU program is a reference container: it runs on this machine, bit for bit as LiteRT's reference kernels, "
    "and a device refuses it."
)


class NeutronDevice(Device):
    """A Neutron with its options.

    Args:
        options: chip, rule set, converter and more.
        target: name in reports; made of the chip's unless given.
        delegation: how bold to delegate; defensive unless given.
        core: computes in int8 what the Neutron does not take.
    """

    backend = "NeutronBackend"

    def __init__(
        self,
        options: NeutronCompileOptions,
        target: str = "",
        delegation: CustomDelegationOptions | None = None,
        core: Core | None = None,
    ) -> None:
        self.options = options
        self.target = target or f"{options.target.chip.name}-neutron"
        self.delegation = delegation
        self.core = core

    def quantizer(
        self,
        *,
        per_channel: bool = True,
        is_qat: bool = False,
        activations: Activations = "int8",
        io: Activations | None = None,
    ) -> NeutronQuantizer:
        from micronpu.targets.neutron.quantizer import NeutronQuantizer

        return NeutronQuantizer(
            self.options.target,
            per_channel=per_channel,
            is_qat=is_qat,
            disabled_rewrites=self.options.disabled_rewrites,
            activations=activations,
            io=io,
        )

    def partition(
        self, view: ProgramView, shared: Collection[Node] = (), refused: Mapping[str, Reason] | None = None
    ) -> Partitioning:
        return neutron_partition(
            view, self.options.target, self.options, self.target, self.delegation, shared, refused, self.core
        )

    def excludes(self, node: Node) -> bool:
        excluded = self.options.operators_not_to_delegate
        return bool(excluded) and self.options.excluded(written_names(node)) is not None

    def refusals(self, view: ProgramView, partitioning: Partitioning) -> dict[str, Reason]:
        """The vendor's converter may find nothing to compute in a partition; the reference converter takes all."""
        found: dict[str, Reason] = {}
        if select_converter(self.options.converter, self.options.target).name == "reference":
            return found
        for group in partitioning.groups:
            graph = import_nodes(view, group.nodes, list(group.inputs), list(group.outputs))
            try:
                compile_graph(graph, replace(self.options, intermediates_dir="", dump_kernel_selection_code=False))
            except RefusedError as error:
                found |= error.reasons
        return found

    def compile(self, graph: Graph) -> NeutronPartition:
        return compile_graph(graph, self.options)

    def specs(self) -> list[CompileSpec]:
        return self.options.to_specs(for_program=True)

    def latency(self, parts: Sequence[CompiledPartition]) -> tuple[Latency, ...]:
        return npu_latency(parts, self.options.target.npu)

    def notes(self, parts: Sequence[CompiledPartition]) -> tuple[str, ...]:
        own = [p for p in parts if isinstance(p, NeutronPartition)]
        notes = [REFERENCE_NOTE] if any(p.artifacts.kind == "reference" for p in own) else []
        for part in own:
            if part.artifacts.kind == "silicon":
                notes.append(
                    "The NPU program is for silicon, made by "
                    + ", ".join(f"{name} {version}" for name, version in part.artifacts.versions.items())
                    + "; the firmware of the device must be of the same version."
                )
            notes += [f"The converter warns: {w}" for w in part.artifacts.warnings]
        cycles = [p.artifacts.cycles for p in own if p.artifacts.cycles is not None]
        if own and len(cycles) == len(own):
            notes.append(f"The converter estimates {sum(cycles):,} cycles for the NPU alone.")
        return tuple(dict.fromkeys(notes))
