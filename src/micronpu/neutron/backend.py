"""The Neutron back end as ExecuTorch's partitioner interface knows it."""

from __future__ import annotations

from typing import Any

from executorch.exir.backend.backend_details import BackendDetails, ExportedProgram, PreprocessResult
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.backend.partitioner import DelegationSpec, Partitioner, PartitionResult
from executorch.exir.backend.utils import DelegateMappingBuilder, tag_constant_data
from torch.fx import Node

from micronpu.frontend.importer import import_program
from micronpu.frontend.program import ProgramView, is_dequantize, overload_name
from micronpu.neutron.compile import compile_graph
from micronpu.neutron.devices import NeutronTargetSpec
from micronpu.neutron.options import NeutronCompileOptions
from micronpu.neutron.target import neutron_partition
from micronpu.partition.report import DelegationReport


class NeutronBackend(BackendDetails):
    """Compiles a partition; the runtime looks the delegate up by the name of this class."""

    @staticmethod
    def preprocess(edge_program: ExportedProgram, compile_specs: list[CompileSpec]) -> PreprocessResult:
        """The payload of a partition, with a debug handle per NPU operation."""
        options = NeutronCompileOptions.from_specs(compile_specs)
        compiled = compile_graph(import_program(ProgramView(edge_program)), options)
        mapping = DelegateMappingBuilder(generated_identifiers=False)
        for identifier, handles in compiled.debug_handles.items():
            if handles:
                mapping.insert_delegate_mapping_entry(handles=list(handles), identifier=identifier)
        return PreprocessResult(processed_bytes=compiled.payload, debug_handle_map=mapping.get_delegate_mapping())


class NeutronPartitioner(Partitioner):
    """Tags what Neutron runs, for ``to_edge_transform_and_lower(partitioner=[...])``.

    Args:
        compile_spec: from `generate_neutron_compile_spec`; the defaults for i.MX RT700 unless given.
        neutron_target_spec: the device; the chip of the compile spec unless given.

    Attributes:
        report: what the last call of `partition` decided, or None before it.
    """

    def __init__(
        self, compile_spec: list[CompileSpec] | None = None, neutron_target_spec: NeutronTargetSpec | None = None
    ) -> None:
        super().__init__()
        self.options = NeutronCompileOptions.from_specs(compile_spec or [])
        self.target = neutron_target_spec or NeutronTargetSpec(self.options.config)
        self.delegation_spec = DelegationSpec(NeutronBackend.__name__, self.options.to_specs())
        self.report: DelegationReport | None = None

    def ops_to_not_decompose(self, ep: ExportedProgram) -> tuple[list[Any], Any]:
        """Operators to keep whole: exactly the nodes that the same rules would delegate.

        Once the program holds edge operators nothing more is asked for, since ExecuTorch would otherwise fail on a
        kept operator that a later change of the program makes undelegable.
        """
        if any(type(n.target).__name__ == "EdgeOpOverload" for n in ep.graph.nodes):
            return [], None
        partitioning = neutron_partition(ProgramView(ep), self.target, self.options)
        delegated = {n.name for g in partitioning.groups for n in g.nodes}
        kept = {n.target for n in ep.graph.nodes if n.name in delegated and overload_name(n)}
        return list(kept), lambda node: node.name in delegated

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        """Tags the partitions; nodes that stay on the host keep their reasons in `report`."""
        _split_dequantizes(exported_program)
        partitioning = neutron_partition(ProgramView(exported_program), self.target, self.options)
        self.report = partitioning.report
        tags: dict[str, DelegationSpec] = {}
        for number, group in enumerate(partitioning.groups):
            tag = f"neutron_{number}"
            tags[tag] = self.delegation_spec
            for node in group.nodes:
                node.meta["delegation_tag"] = tag
        tag_constant_data(exported_program)
        return PartitionResult(tagged_exported_program=exported_program, partition_tags=tags)


def _split_dequantizes(program: ExportedProgram) -> None:
    """Gives every reader a dequantize of its own, so that none is torn between a partition and the host."""
    changed = False
    for node in list(program.graph.nodes):
        if not is_dequantize(node) or len(node.users) < 2:
            continue
        for user in list(node.users)[1:]:
            with program.graph.inserting_after(node):
                copy: Node = program.graph.node_copy(node)
            user.replace_input_with(node, copy)
            changed = True
    if changed:
        program.graph_module.recompile()
