"""Neutron as a compilation target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from micronpu.chips.core import Core
from micronpu.frontend.program import written_names
from micronpu.ir.graph import Graph
from micronpu.partition.device import CompiledPartition, Device
from micronpu.partition.partition import Partition, Policy
from micronpu.report.operations import Latency
from micronpu.report.warnings import NO_SILICON, NOTE, ReportWarning
from micronpu.targets.cortexm.device import CortexMPart
from micronpu.targets.neutron import BACKEND
from micronpu.targets.neutron.compile import (
    Converted,
    NeutronPartition,
    compile_graph,
    convert_partition,
    write_partition,
)
from micronpu.targets.neutron.costs import neutron_policy, no_latency, npu_latency
from micronpu.targets.neutron.options import CustomDelegationOptions, NeutronOptions
from micronpu.targets.neutron.rules import capabilities_of
from micronpu.targets.neutron.sdk import select_converter
from micronpu.targets.neutron.target_spec import no_silicon
from micronpu.targets.options import Checks

REFERENCE_NOTE = (
    "The NPU program is a reference container: it runs on this machine, bit for bit as LiteRT's reference kernels, "
    "and a board refuses it."
)


class NeutronDevice(Device):
    """A Neutron with its options, by default with the chip's name in reports and a defensive delegation policy; the
    core computes unsupported operators in int8, and operators that one of the user's checks refuses are not
    delegated."""

    backend = BACKEND

    def __init__(
        self,
        options: NeutronOptions,
        target: str = "",
        delegation: CustomDelegationOptions | None = None,
        core: Core | None = None,
        checks: Checks = (),
    ) -> None:
        self.options = options
        self.capabilities, self.disabled_rewrites = capabilities_of(options.target_spec), options.disabled_rewrites
        self.checks = checks
        self.target = target or f"{options.target_spec.chip.name}-neutron"
        self.delegation = delegation
        self.beside = CortexMPart(core, self.options.disabled_passes) if core is not None else None

    def policy(self) -> Policy:
        return neutron_policy(self.options, self.target, self.delegation, self.core, self.checks)

    def excludes(self, node: Any) -> bool:
        excluded = self.options.operators_not_to_delegate
        return bool(excluded) and self.options.excluded(written_names(node)) is not None

    def plan(self, partition: Partition) -> Converted:
        return convert_partition(partition.graph, self.options, before=partition.chosen, pipeline=self.pipeline)

    def probe(self, partition: Partition) -> None:
        """The vendor's converter may find nothing to compute in a partition; the reference converter accepts all."""
        if select_converter(self.options.converter, self.options.target_spec).name != "reference":
            convert_partition(partition.graph, replace(self.options, intermediates_dir=""))

    def compile(self, partition: Partition) -> NeutronPartition:
        converted = partition.plan if isinstance(partition.plan, Converted) else self.plan(partition)
        return write_partition(converted, self.options)

    def compile_program(self, graph: Graph) -> NeutronPartition:
        return compile_graph(graph, self.options)

    def specs(self) -> list[tuple[str, bytes]]:
        return self.options.to_pairs(for_program=True)

    def latency(self, parts: Sequence[CompiledPartition]) -> tuple[Latency, ...]:
        return npu_latency(parts, self.options.target_spec.npu)

    def no_latency(self) -> str:
        return no_latency(self.options.target_spec.npu)

    def notes(self, parts: Sequence[CompiledPartition]) -> tuple[str, ...]:
        own = [p for p in parts if isinstance(p, NeutronPartition)]
        is_reference = any(p.artifacts.kind == "reference" for p in own)
        notes = [REFERENCE_NOTE] if is_reference else []
        for part in own:
            if part.artifacts.kind == "silicon":
                notes.append(
                    "The NPU program is for silicon, made by "
                    + ", ".join(f"{name} {version}" for name, version in part.artifacts.versions.items())
                    + "; the firmware of the board must be of the same version."
                )
            notes += [f"The converter warns: {w}" for w in part.artifacts.warnings]
        return tuple(dict.fromkeys(notes))

    def cautions(self) -> tuple[ReportWarning, ...]:
        if not (what := no_silicon(self.options.target_spec.chip)):
            return ()
        return (ReportWarning(NOTE, NO_SILICON, what, "-t imxrt700, or a chip with an Ethos-U (`micronpu targets`)"),)

    def details(self, parts: Sequence[CompiledPartition]) -> tuple[str, ...]:
        own = [p for p in parts if isinstance(p, NeutronPartition)]
        silicon = any(part.artifacts.kind == "silicon" for part in own)
        found = [_graph_passes(self.options.excluded_graph_passes)] if silicon else []
        found += [
            f"The converter's log does not say what the kernels of `{part.name}` compute, so a profile of the board "
            "shows their numbers and no lines of the model."
            for part in own
            if part.artifacts.payload_version and part.artifacts.kernel_operators is None
        ]
        cycles = [p.artifacts.cycles for p in own if p.artifacts.cycles is not None]
        if own and len(cycles) == len(own):
            found.append(f"The converter estimates {sum(cycles):,} cycles for the NPU alone.")
        return tuple(found)


def _graph_passes(excluded: Sequence[str]) -> str:
    if not excluded:
        return "The converter ran with all of its graph passes; ExecuTorch's own flow leaves some out."
    return f"The converter ran without its graph passes {', '.join(excluded)} (`excluded_graph_passes`)."
